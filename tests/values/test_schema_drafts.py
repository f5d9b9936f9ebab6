"""Tests of schemas of older drafts, written in draft 2020-12."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator

from agentloop.models.modes.strict import without_nulls
from agentloop.models.programs.signatures import render_signatures
from agentloop.models.text_calls import read_calls
from agentloop.models.wire_formats.schemas import flat_parameters
from agentloop.testing.random_inference import sample
from agentloop.values import ToolSpec
from agentloop.values.json import freeze_object, thaw
from agentloop.values.schema_drafts import modern_schema, schema_problem

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a tuple": (
        {"$schema": DRAFT_7, "items": [{"type": "number"}, {"type": "string"}], "additionalItems": False},
        {"prefixItems": [{"type": "number"}, {"type": "string"}], "items": False},
    ),
    "a tuple without a draft": ({"items": [{}]}, {"prefixItems": [{}]}),
    "further items of a list": ({"items": {"type": "number"}, "additionalItems": False}, {"items": {"type": "number"}}),
    "definitions": (
        {"$ref": "#/definitions/a", "definitions": {"a": {"type": "string"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
    ),
    "definitions of both kinds": (
        {
            "definitions": {"a": {}},
            "$defs": {"a": False},
            "anyOf": [{"$ref": "#/definitions/a"}, {"$ref": "#/$defs/a"}],
        },
        {"$defs": {"a_": {}, "a": False}, "anyOf": [{"$ref": "#/$defs/a_"}, {"$ref": "#/$defs/a"}]},
    ),
    "a place in a tuple": (
        {"items": [{"type": "number"}], "not": {"$ref": "#/items/0"}},
        {"prefixItems": [{"type": "number"}], "not": {"$ref": "#/prefixItems/0"}},
    ),
    "a property with the name of a keyword": (
        {"properties": {"definitions": {}, "items": {}, "id": {}}, "not": {"$ref": "#/properties/definitions"}},
        {"properties": {"definitions": {}, "items": {}, "id": {}}, "not": {"$ref": "#/properties/definitions"}},
    ),
    "an exclusive bound": ({"$schema": DRAFT_4, "minimum": 0, "exclusiveMinimum": True}, {"exclusiveMinimum": 0}),
    "an inclusive bound": ({"$schema": DRAFT_4, "maximum": 0, "exclusiveMaximum": False}, {"maximum": 0}),
    "an exclusive bound in a newer draft": (
        {"$schema": DRAFT_2020, "minimum": 0, "exclusiveMinimum": True},
        {"$schema": DRAFT_2020, "exclusiveMinimum": 0},
    ),
    "dependencies": (
        {"dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
        {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"required": ["d"]}}},
    ),
    "an id": ({"$schema": DRAFT_4, "id": "http://example.com/a#b"}, {"$id": "http://example.com/a", "$anchor": "b"}),
    "an anchor": ({"$schema": DRAFT_7, "not": {"$id": "#b"}}, {"not": {"$anchor": "b"}}),
    "a recursion": (
        {"$schema": DRAFT_2019, "$recursiveAnchor": True, "items": {"$recursiveRef": "#"}},
        {"items": {"$ref": "#"}},
    ),
    "what stands beside a reference": (
        {"$schema": DRAFT_7, "items": {"$ref": "#", "minLength": 3, "title": "A"}},
        {"items": {"$ref": "#", "title": "A"}},
    ),
    "null": ({"properties": None, "required": None, "enum": None, "items": None, "type": None}, {}),
    "null as data": (
        {"const": None, "default": None, "enum": [None]},
        {"const": None, "default": None, "enum": [None]},
    ),
    "a property that is null": ({"properties": {"a": None}}, {"properties": {"a": {}}}),
    "an empty list of properties": ({"properties": []}, {"properties": {}}),
    "requirements of draft 3": (
        {"properties": {"a": {"required": True}, "b": {"required": False}}},
        {"properties": {"a": {}, "b": {}}, "required": ["a"]},
    ),
    "annotations of a wrong type": ({"title": 5, "description": None, "examples": "a"}, {"examples": ["a"]}),
}


@pytest.mark.parametrize("name", CASES)
def test_older_drafts_are_written_in_draft_2020_12(name: str) -> None:
    """Each form of an older draft has its form in draft 2020-12, which needs no further change."""
    schema, expected = CASES[name]
    modern = modern_schema(schema).schema
    assert thaw(modern) == expected
    assert not schema_problem(modern)
    assert modern_schema(modern).schema == modern


def test_what_was_no_schema_is_named() -> None:
    """A repair is reported, the form of an older draft is not."""
    assert modern_schema({"required": None}).repairs == ("required is null, which counts as absent",)
    assert not modern_schema({"$schema": DRAFT_7, "items": [{}], "definitions": {}}).repairs


def test_a_schema_of_draft_2020_12_is_the_same_object() -> None:
    """Nothing is copied where nothing has to be changed."""
    schema = freeze_object({"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}}}})
    assert modern_schema(schema).schema is schema


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "bb"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)


def schemas(*, is_draft_4: bool) -> st.SearchStrategy[Any]:
    """Schemas with the keywords that differ between the drafts."""
    leaf = st.sampled_from(
        [{}, {"type": "string"}, {"type": "integer"}, {"$ref": "#/definitions/d"}, {"type": ["null", "array"]}]
    )
    bound = st.booleans() if is_draft_4 else st.integers(-2, 2)

    def extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        names = st.sampled_from("abc")
        return st.fixed_dictionaries(
            {},
            optional={
                "properties": st.dictionaries(names, inner, max_size=2),
                "items": inner | st.lists(inner, min_size=1, max_size=2),
                "additionalItems": inner | st.just(value=False),
                "dependencies": st.dictionaries(names, st.just(["a"]) | inner, max_size=2),
                "anyOf": st.lists(inner, min_size=1, max_size=2),
                "minimum": st.integers(-2, 2),
                **({} if is_draft_4 else {"exclusiveMaximum": bound}),
            },
        )

    return st.recursive(leaf, extend, max_leaves=6)


@given(st.data(), st.sampled_from([4, 7]), st.lists(VALUES, min_size=3, max_size=6))
def test_the_same_data_is_accepted(data: st.DataObject, draft: int, values: list[Any]) -> None:
    """Data satisfies a schema of draft 4 or 7 exactly if it satisfies the schema in draft 2020-12."""
    is_draft_4 = draft == 4
    schema = data.draw(schemas(is_draft_4=is_draft_4))
    old = {**schema, "definitions": {"d": {"type": "string"}}, "$schema": DRAFT_4 if is_draft_4 else DRAFT_7}
    if is_draft_4 and "minimum" in old:
        old["exclusiveMinimum"] = data.draw(st.booleans())
    before = (Draft4Validator if is_draft_4 else Draft7Validator)(old)
    after = Draft202012Validator(thaw(modern_schema(old).schema))
    for value in values:
        assert before.is_valid(value) is after.is_valid(value), value


@given(st.dictionaries(st.sampled_from(
    ["type", "properties", "required", "items", "anyOf", "enum", "minimum", "exclusiveMinimum", "minLength", "pattern", "title",
     "additionalProperties", "$defs", "uniqueItems", "multipleOf", "dependentRequired", "not", "default", "$id", "examples"]
), VALUES | st.sampled_from(["string", ["string"], [{}], [True], {"a": {}}, {"a": ["b"]}, 1.5, 2.0]), max_size=4))  # fmt: skip
def test_the_check_of_schemas_agrees_with_the_metaschema(schema: dict[str, Any]) -> None:
    """A problem is found exactly where the metaschema of draft 2020-12 has one."""
    is_valid = next(Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema), None) is None
    assert is_valid is not bool(schema_problem(schema))


def _flat(schema: Any) -> object:
    place = schema["properties"]["point"]
    return "x" in flat_parameters(freeze_object({"allOf": [place], "$defs": schema["$defs"]}))["properties"]


def _written_text(schema: Any) -> object:
    """Return a text of the point that a model writes in a notation without types; it looks like a number."""
    text = "<tool_call>look\n<arg_key>y</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
    place = f"{schema['properties']['point']['$ref']}/properties/y"
    merged = {"type": "object", "properties": {"y": {"$ref": place}}, "$defs": schema["$defs"]}
    (call,) = read_calls(text, [ToolSpec("look", "Look.", merged)]).calls
    return call.arguments["y"]


READERS: dict[str, Callable[[Any], object]] = {
    "a wire format": _flat,
    "a signature": lambda schema: "x: int" in render_signatures([ToolSpec("look", "Look.", schema)]),
    "a reader of nulls": lambda schema: without_nulls({"point": {"x": 1, "y": None}}, schema) == {"point": {"x": 1}},
    "a reader of calls": lambda schema: _written_text(schema) == "1",
    "a sampler": lambda schema: isinstance(sample(freeze_object(schema), Random(1))["point"]["x"], int),
}
"""What follows references; each returns whether it has found the definition of the property `point`."""


@pytest.mark.parametrize("name", ["Point", "A Point", "List[Point]", "a~b/c", "100%"])
@pytest.mark.parametrize("reader", READERS)
def test_each_reader_follows_a_reference_to_any_name(reader: str, name: str) -> None:
    """A reference is an address, in which some characters of a name are written in another form."""
    schema = {
        "type": "object",
        "properties": {"point": {"$ref": f"#/definitions/{quote(name.replace('~', '~0').replace('/', '~1'))}"}},
        "required": ["point"],
        "definitions": {
            name: {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "string"}},
                "required": ["x"],
            }
        },
    }
    assert READERS[reader](thaw(freeze_object(modern_schema(schema).schema)))
