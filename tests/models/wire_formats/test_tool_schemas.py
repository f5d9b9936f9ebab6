"""The parameters of tools as providers accept them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.models import LLMConfig
from agentloop.models.wire_formats.schemas import UNIONS, complete_parameters, flat_parameters
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.tools import SchemaValidator, json_schema
from agentloop.values import InferenceRequest, Message, ToolSpec
from agentloop.values.json import freeze_object, thaw

Schema = dict[str, Any]

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
REFUSED_BY_OPENAI = {*UNIONS, "enum", "const", "not", "$ref"}


def branch(*required: str, **properties: object) -> Schema:
    """Return an object schema."""
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        (
            {"oneOf": [branch("kind", "a", kind=TEXT, a=INTEGER), branch("kind", kind=TEXT, b=TEXT)]},
            branch("kind", kind=TEXT, a=INTEGER, b=TEXT),
        ),
        (
            {"type": "object", "anyOf": [branch("a", a=INTEGER), branch("a", a=TEXT), branch("a", a=INTEGER)]},
            branch("a", a={"anyOf": [INTEGER, TEXT]}),
        ),
        (
            {"type": "object", "anyOf": [branch(a={"const": 1}), branch(a={"const": True})]},
            branch(a={"anyOf": [{"const": 1}, {"const": True}]}),
        ),
        (
            {**branch("a", a=INTEGER), "allOf": [branch("b", b=TEXT), branch("c", a=TEXT, c=TEXT)]},
            branch("a", "b", "c", a=INTEGER, b=TEXT, c=TEXT),
        ),
        (
            {**branch(a=TEXT, b=TEXT), "anyOf": [{"required": ["a"]}, {"required": ["b"]}], "title": "T"},
            {**branch(a=TEXT, b=TEXT), "title": "T"},
        ),
        ({"type": "object", "anyOf": [branch("a", a=TEXT), {"type": "null"}, False]}, branch("a", a=TEXT)),
        ({"type": "object", "anyOf": [branch("a", a=TEXT), True]}, branch(a=TEXT)),
        (
            {"oneOf": [{"$ref": "#/$defs/A"}, {"allOf": [branch("b", b=TEXT), {"$ref": "#/$defs/A"}]}]}
            | {"$defs": {"A": branch("a", a={"$ref": "#/$defs/A"})}},
            branch("a", a={"$ref": "#/$defs/A"}, b=TEXT) | {"$defs": {"A": branch("a", a={"$ref": "#/$defs/A"})}},
        ),
        ({"type": "object", "anyOf": [{"$ref": "#"}, {"$ref": "https://localhost"}, {"$ref": "#/x"}]}, branch()),
        (
            {**branch(a=TEXT), "anyOf": [branch(b=TEXT)], "unevaluatedProperties": False},
            branch(a=TEXT, b=TEXT),
        ),
        (
            {"anyOf": [branch(a=TEXT), branch(b={"$ref": "#/anyOf/0/properties/a"})]},
            branch(a=TEXT, b={"$ref": "#/$defs/dropped/anyOf/0/properties/a"})
            | {
                "$defs": {
                    "dropped": {"anyOf": [branch(a=TEXT), branch(b={"$ref": "#/$defs/dropped/anyOf/0/properties/a"})]}
                }
            },
        ),
    ],
    ids=[
        "branches",
        "alternatives",
        "1 and true",
        "all",
        "required alone",
        "no objects",
        "anything",
        "references",
        "references to nothing",
        "unevaluated",
        "references into a branch",
    ],
)
def test_a_union_becomes_one_object(schema: Schema, sent: Schema) -> None:
    """The properties of its branches are those of the object, of which what every branch requires is required."""
    assert {"type": "object", **thaw(flat_parameters(freeze_object(schema)))} == sent  # type: ignore[arg-type]
    assert thaw(complete_parameters(freeze_object(schema))) == sent  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({}, branch()),
        ({"type": "object"}, branch()),
        ({"type": ["object", "null"], "properties": {}}, branch()),
        ({**branch(a=TEXT), "not": {"required": ["a"]}}, branch(a=TEXT)),
        ({**branch(a=TEXT), "enum": [{"a": "x"}]}, branch(a=TEXT)),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": branch("a", a=TEXT)}},
            branch("a", a=TEXT) | {"$defs": {"A": branch("a", a=TEXT)}},
        ),
        (branch(a=json_schema(list)), branch(a={"type": "array", "items": {}})),
        (
            branch(a=json_schema(tuple[int, str])),
            branch(a={"type": "array", "prefixItems": [INTEGER, TEXT], "minItems": 2, "maxItems": 2, "items": {}}),
        ),
        (
            branch(a={"anyOf": [{"type": ["array", "null"]}, {"type": "array", "items": {"type": "array"}}]}),
            branch(
                a={
                    "anyOf": [
                        {"type": ["array", "null"], "items": {}},
                        {"type": "array", "items": {"type": "array", "items": {}}},
                    ]
                }
            ),
        ),
        (
            branch(type={"type": "array"}) | {"$defs": {"type": {"type": "array"}}},
            branch(type={"type": "array", "items": {}}) | {"$defs": {"type": {"type": "array", "items": {}}}},
        ),
    ],
)
def test_what_openai_misses_is_added(schema: Schema, sent: Schema) -> None:
    """It refuses parameters of another type, without properties, with an enumeration, or with arrays without items."""
    assert thaw(complete_parameters(freeze_object(schema))) == sent  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "schema",
    [
        branch("a", a={"anyOf": [INTEGER, TEXT]}, b={"type": "array", "items": INTEGER}),
        branch(oneOf=TEXT, enum={"enum": [{"type": "array"}]}, items={"default": {"type": "array"}}),
        branch(a={"type": "object"}) | {"examples": [{"type": "array"}], "additionalProperties": False},
    ],
)
def test_usual_parameters_are_sent_as_they_are(schema: Schema) -> None:
    """They are the same object, with the same bytes."""
    frozen = freeze_object(schema)
    assert flat_parameters(frozen) is frozen
    assert complete_parameters(frozen) is frozen


names = st.sampled_from(["a", "b", "c"])
property_schemas = st.sampled_from([INTEGER, TEXT, {"const": 1}, {"const": True}, {"type": "array"}, {}])
objects = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={"properties": st.dictionaries(names, property_schemas), "required": st.lists(names, unique=True)},
)
closed = objects.map(lambda schema: {**schema, "additionalProperties": False})
references = st.just({"$ref": "#/$defs/D"})


def unions(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    """Return schemas with unions of these parts."""
    alternatives = st.lists(parts | references | st.sampled_from([{"type": "null"}, False]), min_size=1, max_size=3)
    conjuncts = st.lists(objects | references | st.sampled_from([True]), min_size=1, max_size=2)
    return st.builds(
        lambda schema, more: {**schema, **more},
        objects,
        st.fixed_dictionaries({}, optional={"anyOf": alternatives, "oneOf": alternatives, "allOf": conjuncts}),
    )


closed_unions = unions(closed).map(lambda schema: {**schema, "additionalProperties": False})
values = st.sampled_from([1, True, "x", [1], None])


@given(unions(closed | closed_unions), closed, st.dictionaries(names, values))
def test_arguments_that_satisfy_a_schema_satisfy_what_is_sent(schema: Schema, shared: Schema, data: Schema) -> None:
    """A provider that enforces what is sent prevents no call that may run, and accepts the form of it."""
    schema = {**schema, "$defs": {"D": shared}}
    flat = thaw(flat_parameters(freeze_object(schema)))  # type: ignore[arg-type]
    complete = thaw(complete_parameters(freeze_object(schema)))  # type: ignore[arg-type]
    assert UNIONS.isdisjoint(flat)
    assert REFUSED_BY_OPENAI.isdisjoint(complete)
    assert complete["type"] == "object"
    assert all("items" in item for item in complete["properties"].values() if item.get("type") == "array")
    if SchemaValidator(schema).accepts(data):
        assert SchemaValidator(flat).accepts(data)
        assert SchemaValidator(complete).accepts(data)
    again = freeze_object(complete)
    assert complete_parameters(again) is again


keywords = st.sampled_from(["type", "properties", "required", "anyOf", "allOf", "not", "$ref", "$defs", "a"])
odd_values = st.recursive(
    st.sampled_from([None, True, False, 1, "object", "array", "#", "#/anyOf/0", "#/anyOf/0/a", "#/$defs/a"]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(keywords, values, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(keywords, odd_values, max_size=5))
def test_schemas_that_are_none_are_no_errors_of_an_encoder(schema: Schema) -> None:
    """Whether a schema is valid is for the provider to say, or for what makes tools."""
    frozen = freeze_object(schema)
    assert UNIONS.isdisjoint(flat_parameters(frozen))
    assert REFUSED_BY_OPENAI.isdisjoint(complete_parameters(frozen))


def test_unions_of_references_to_unions_stay_small() -> None:
    """Each definition has two references to the next one, so that expanding them would take the age of the universe."""
    definitions: Schema = {"D0": branch(a=TEXT)}
    for number in range(1, 40):
        below = {"$ref": f"#/$defs/D{number - 1}"}
        definitions[f"D{number}"] = {"anyOf": [below, {"oneOf": [below, branch(a={"const": number})]}]}
    schema = freeze_object({"anyOf": [{"$ref": "#/$defs/D39"}, {"$ref": "#/$defs/D38"}], "$defs": definitions})
    assert len(json.dumps(thaw(complete_parameters(schema)))) < 10_000  # type: ignore[arg-type]


PLACES = {
    "openai-chat": ("tools", 0, "function", "parameters"),
    "openai-responses": ("tools", 0, "parameters"),
    "anthropic-messages": ("tools", 0, "input_schema"),
    "bedrock-converse": ("toolConfig", "tools", 0, "toolSpec", "inputSchema", "json"),
    "gemini": ("tools", 0, "functionDeclarations", 0, "parametersJsonSchema"),
    "ollama": ("tools", 0, "function", "parameters"),
    "cohere-v2": ("tools", 0, "function", "parameters"),
}


def sent_parameters(name: str, schema: Mapping[str, Any]) -> Any:
    """Return the parameters of a tool in a request."""
    config = LLMConfig(model="m", base_url="http://localhost/v1", wire_format=name)
    request = InferenceRequest(messages=(Message.user("hi"),), tools=(ToolSpec("f", "", schema),))
    found = json.loads(wire_format(name).encode_request(request, config).body)
    for key in PLACES[name]:
        found = found[key]
    return found


@pytest.mark.parametrize("name", PLACES)
def test_each_provider_gets_what_it_accepts(name: str) -> None:
    """OpenAI, Anthropic and Bedrock refuse unions, only OpenAI misses items and properties; the others get the schema."""
    union = {"type": "object", "oneOf": [branch("a", a=TEXT), branch("a", a=TEXT, b={"type": "array"})]}
    merged = branch("a", a=TEXT, b={"type": "array"})
    expected = {
        "openai-chat": [branch("a", a=TEXT, b={"type": "array", "items": {}}), branch()],
        "openai-responses": [branch("a", a=TEXT, b={"type": "array", "items": {}}), branch()],
        "anthropic-messages": [merged, {"type": "object"}],
        "bedrock-converse": [merged, {"type": "object"}],
    }
    sent = [sent_parameters(name, schema) for schema in (union, {"type": "object"})]
    assert sent == expected.get(name, [union, {"type": "object"}])
