"""Schemas in the subset that providers accept for strict output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.models.modes.strict import NotStrict, strict_schema, without_nulls
from agentloop.tools import SchemaValidator

ALLOWED = {"type", "properties", "required", "additionalProperties", "items", "enum", "anyOf", "description", "$ref"}

leaves = st.sampled_from(
    [
        {"type": "string", "minLength": 0},
        {"type": "integer", "minimum": -5},
        {"type": ["string", "null"]},
        {"type": "boolean", "description": "Yes?"},
        {"enum": ["a", "b"]},
        {"const": 3},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
    ]
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for schemas of objects."""
    return st.dictionaries(st.sampled_from("abcd"), inner, max_size=3).flatmap(
        lambda properties: (
            st.lists(st.sampled_from(sorted(properties)), unique=True).map(
                lambda required: {"type": "object", "properties": properties, "required": required}
            )
            if properties
            else st.just({"type": "object", "properties": {}, "additionalProperties": False})
        )
    )


schemas = st.recursive(
    leaves,
    lambda inner: objects(inner) | inner.map(lambda items: {"type": "array", "items": items, "maxItems": 2}),
    max_leaves=6,
)


def data_for(schema: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for data that satisfies a schema; optional properties may be missing."""
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema or schema["type"] == ["string", "null"]:
        return st.none() | st.text(max_size=2)
    if schema["type"] == "array":
        return st.lists(data_for(schema["items"]), max_size=2)
    if schema["type"] == "object":
        properties = {name: data_for(inner) for name, inner in schema["properties"].items()}
        required = set(schema.get("required", ()))
        return st.fixed_dictionaries(
            {name: value for name, value in properties.items() if name in required},
            optional={name: value for name, value in properties.items() if name not in required},
        )
    kinds: dict[str, st.SearchStrategy[Any]] = {"integer": st.integers(-5, 5), "boolean": st.booleans()}
    return kinds.get(schema["type"], st.text(max_size=2))


def fill_nulls(data: Any, strict: Any, definitions: Any) -> Any:
    """Add null for every missing property, as a model must."""
    if "$ref" in strict:
        return fill_nulls(data, definitions[strict["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in strict:
        branch = next((b for b in strict["anyOf"] if b.get("type") in {"object", "array"} or "$ref" in b), None)
        return data if branch is None or data is None else fill_nulls(data, branch, definitions)
    if isinstance(data, list) and "items" in strict:
        return [fill_nulls(item, strict["items"], definitions) for item in data]
    if isinstance(data, dict) and "properties" in strict:
        return {
            name: fill_nulls(data[name], inner, definitions) if name in data else None
            for name, inner in strict["properties"].items()
        }
    return data


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas inside it."""
    yield schema
    for inner in [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]:
        yield from subschemas(inner)
    if "items" in schema:
        yield from subschemas(schema["items"])


def check_subset(strict: Any) -> None:
    """Assert that a schema is in the strict subset."""
    for part in subschemas(strict):
        assert part.keys() <= ALLOWED
        if part.get("type") == "object":
            assert part["additionalProperties"] is False
            assert part["required"] == list(part["properties"])


@given(schemas.flatmap(lambda schema: st.tuples(st.just(schema), data_for(schema))))
def test_data_survives_a_round_trip(case: tuple[Any, Any]) -> None:
    """Data of a schema, with nulls for missing properties, satisfies the strict schema and is restored from it."""
    schema, data = case
    strict, definitions = strict_schema(schema)
    check_subset(strict)
    written = fill_nulls(data, strict, definitions)
    assert SchemaValidator(strict).accepts(written)
    restored = without_nulls(written, schema)
    assert SchemaValidator(schema).accepts(restored)
    assert without_nulls(fill_nulls(restored, strict, definitions), schema) == restored


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object"}, "an object with free keys"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "an object with free keys"),
        ({"type": "object", "properties": {"a": {}}}, r"\$\.a: a value of any type"),
        ({"type": "object", "properties": {"a": True}}, "allows anything"),
        ({"type": "array"}, "an array of anything"),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, "prefixItems"),
        ({"not": {"type": "string"}}, "not cannot"),
        ({"$ref": "https://elsewhere.test/schema"}, "the reference"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "allOf"),
    ],
)
def test_an_inexpressible_schema_raises_with_reason_and_place(schema: dict[str, Any], reason: str) -> None:
    """A schema outside the subset raises `NotStrict` instead of being approximated."""
    with pytest.raises(NotStrict, match=reason):
        strict_schema(schema)


def test_an_all_of_with_one_branch_is_the_branch() -> None:
    """Generators of schemas write it around a branch to describe it; the description around it is the one that counts."""
    inner = {"type": "string", "description": "Any text."}
    assert strict_schema({"allOf": [inner]}) == (inner, {})
    described = {"allOf": [inner], "description": "A name."}
    assert strict_schema(described) == ({"type": "string", "description": "A name."}, {})


def test_nothing_stands_beside_a_reference() -> None:
    """Providers refuse a description there, which generators add by an `allOf` around the reference, too."""
    schema = {
        "$defs": {"color": {"enum": ["red"]}},
        "type": "object",
        "properties": {
            "plain": {"$ref": "#/$defs/color", "description": "A color."},
            "wrapped": {"allOf": [{"$ref": "#/$defs/color"}], "description": "A color."},
        },
        "required": ["plain", "wrapped"],
    }
    strict, _ = strict_schema(schema)
    assert strict["properties"] == {name: {"$ref": "#/$defs/color"} for name in ("plain", "wrapped")}


def test_definitions_have_prefixed_names() -> None:
    """Recursive schemas remain recursive, and the prefix separates the definitions of several tools."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "value": {"type": "integer"}}}
    strict, definitions = strict_schema({"$ref": "#/$defs/node", "$defs": {"node": node}}, "walk.")
    assert strict == {"$ref": "#/$defs/walk.node"}
    assert definitions["walk.node"]["properties"]["next"]["anyOf"][0] == {"$ref": "#/$defs/walk.node"}


@pytest.mark.parametrize(
    ("optional", "strict"),
    [
        ({"type": "string"}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
        ),
        ({"type": "null"}, {"type": "null"}),
        ({"const": None}, {"enum": [None]}),
        ({"enum": ["a", None]}, {"enum": ["a", None]}),
        ({"enum": ["a"]}, {"anyOf": [{"enum": ["a"]}, {"type": "null"}]}),
    ],
)
def test_an_optional_property_accepts_null_in_one_way(optional: dict[str, Any], strict: dict[str, Any]) -> None:
    """A property that knows null already is not changed; the others get a branch for it."""
    schema, _ = strict_schema({"type": "object", "properties": {"a": optional}})
    assert (schema["properties"], schema["required"]) == ({"a": strict}, ["a"])


def test_schemas_of_real_tools_survive_a_round_trip(corpus: Path) -> None:
    """For real tools without free keys, correct arguments satisfy the strict schema and are restored."""
    count, changed = 0, []
    for line in (corpus / "executor" / "schema_cases.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["gold_errors"]:
            continue
        try:
            strict, definitions = strict_schema(row["schema"])
        except NotStrict:
            continue
        written = fill_nulls(row["gold"], strict, definitions)
        assert SchemaValidator({**strict, "$defs": definitions}).accepts(written), row["id"]
        if without_nulls(written, row["schema"]) != row["gold"]:
            changed.append(row["id"])  # keys that the schema allows without declaring them
        count += 1
    assert count > 800
    assert len(changed) < 0.01 * count, changed


def test_nulls_are_removed_behind_references() -> None:
    """What a reference leads to is known, also over several references; a reference to itself ends somewhere."""
    inner = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a"]}
    definitions = {"first": {"$ref": "#/$defs/second"}, "second": inner, "loop": {"$ref": "#/$defs/loop"}}
    properties = {"x": {"$ref": "#/$defs/first"}, "y": {"$ref": "#/$defs/loop"}}
    schema = {"type": "object", "properties": properties, "required": ["x"], "$defs": definitions}
    assert without_nulls({"x": {"a": "1", "b": None}, "y": None}, schema) == {"x": {"a": "1"}}


@pytest.mark.parametrize(("length", "is_followed"), [(66, True), (67, False)])
def test_a_chain_of_references_is_followed_up_to_a_bound(length: int, *, is_followed: bool) -> None:
    """The bound is sixty-four references and one for each key at the root; behind it, data stays as it is."""
    definitions: dict[str, Any] = {f"{n}": {"$ref": f"#/$defs/{n + 1}"} for n in range(1, length)}
    definitions[f"{length}"] = {"type": "object", "properties": {"a": {"type": "string"}}}
    schema = {"$ref": "#/$defs/1", "$defs": definitions}
    assert without_nulls({"a": None}, schema) == ({} if is_followed else {"a": None})


@pytest.mark.parametrize("union", ["anyOf", "oneOf", "allOf"])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"a": "1", "b": None}, {"a": "1"}),
        ({"a": "1", "c": {"d": None}}, {"a": "1", "c": {}}),
        ({"e": 1, "f": None}, {"e": 1}),
        ({"a": "1", "z": None}, {"a": "1", "z": None}),
        ([{"a": None}], [{"a": None}]),
        ("text", "text"),
        (None, None),
    ],
    ids=["first", "nested", "second", "no branch", "list", "text", "null"],
)
def test_nulls_are_removed_by_the_branch_that_declares_all_keys(union: str, data: Any, expected: Any) -> None:
    """What belongs to no branch is left as it is."""
    text, inner = {"type": "string"}, {"type": "object", "properties": {"d": {"type": "string"}}}
    first = {"type": "object", "properties": {"a": text, "b": text, "c": inner}}
    second = {"type": "object", "properties": {"e": {"type": "integer"}, "f": text}}
    schema = {union: [{"$ref": "#/$defs/first"}, second], "$defs": {"first": first}}
    assert without_nulls(data, schema) == expected


@pytest.mark.parametrize(
    "optional",
    [
        {"type": "null"},
        {"type": ["string", "null"]},
        {"enum": ["a", None]},
        {"const": None},
        {"anyOf": [{"type": "string"}, {"oneOf": [{"type": "null"}]}]},
        {"$ref": "#/$defs/nothing"},
    ],
)
def test_a_null_that_the_schema_accepts_is_a_value(optional: dict[str, Any]) -> None:
    """A model that writes it means it; only the null of a property that has no null says that it is missing."""
    definitions = {"nothing": {"type": "null"}}
    schema = {"type": "object", "properties": {"a": optional, "b": {"type": "string"}}, "$defs": definitions}
    assert without_nulls({"a": None, "b": None}, schema) == {"a": None}
