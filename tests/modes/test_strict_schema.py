"""Schemas in the subset that providers accept for strict output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.modes.strict import NotStrict, strict_schema, without_nulls
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
    """Make schemas of objects."""
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
    """Make data that satisfies a schema of those above; what is optional may be left out."""
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema or schema["type"] == ["string", "null"]:
        return st.none() | st.text(max_size=2)
    if schema["type"] == "array":
        return st.lists(data_for(schema["items"]), max_size=2)
    if schema["type"] == "object":
        made = {name: data_for(inner) for name, inner in schema["properties"].items()}
        required = set(schema.get("required", ()))
        return st.fixed_dictionaries(
            {name: one for name, one in made.items() if name in required},
            optional={name: one for name, one in made.items() if name not in required},
        )
    kinds: dict[str, st.SearchStrategy[Any]] = {"integer": st.integers(-5, 5), "boolean": st.booleans()}
    return kinds.get(schema["type"], st.text(max_size=2))


def filled(data: Any, strict: Any, definitions: Any) -> Any:
    """Give null for whatever is left out, as a model has to."""
    if "$ref" in strict:
        return filled(data, definitions[strict["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in strict:
        branch = next((b for b in strict["anyOf"] if b.get("type") in {"object", "array"} or "$ref" in b), None)
        return data if branch is None or data is None else filled(data, branch, definitions)
    if isinstance(data, list) and "items" in strict:
        return [filled(item, strict["items"], definitions) for item in data]
    if isinstance(data, dict) and "properties" in strict:
        return {
            name: filled(data[name], inner, definitions) if name in data else None
            for name, inner in strict["properties"].items()
        }
    return data


def places(schema: Any) -> Iterator[dict[str, Any]]:
    """Return a schema and all inside of it."""
    yield schema
    for inner in [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]:
        yield from places(inner)
    if "items" in schema:
        yield from places(schema["items"])


def check_subset(strict: Any) -> None:
    """Check that a schema keeps to the subset."""
    for place in places(strict):
        assert place.keys() <= ALLOWED
        if place.get("type") == "object":
            assert place["additionalProperties"] is False
            assert place["required"] == list(place["properties"])


@given(schemas.flatmap(lambda schema: st.tuples(st.just(schema), data_for(schema))))
def test_data_goes_there_and_back(case: tuple[Any, Any]) -> None:
    """What satisfies a schema satisfies its strict form with nulls for what is left out, and comes back as it was."""
    schema, data = case
    strict, definitions = strict_schema(schema)
    check_subset(strict)
    written = filled(data, strict, definitions)
    assert SchemaValidator(strict).accepts(written)
    back = without_nulls(written, schema)
    assert SchemaValidator(schema).accepts(back)
    assert without_nulls(filled(back, strict, definitions), schema) == back


@pytest.mark.parametrize(
    ("schema", "why"),
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
def test_what_cannot_be_expressed_is_told_with_its_place(schema: dict[str, Any], why: str) -> None:
    """A schema outside of the subset is refused by name, not bent."""
    with pytest.raises(NotStrict, match=why):
        strict_schema(schema)


def test_definitions_are_kept_under_names_of_their_own() -> None:
    """Recursive schemas stay recursive; a prefix keeps the definitions of several tools apart."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "value": {"type": "integer"}}}
    strict, definitions = strict_schema({"$ref": "#/$defs/node", "$defs": {"node": node}}, "walk.")
    assert strict == {"$ref": "#/$defs/walk.node"}
    assert definitions["walk.node"]["properties"]["next"]["anyOf"][0] == {"$ref": "#/$defs/walk.node"}


def test_the_schemas_of_a_benchmark_come_through(corpus: Path) -> None:
    """Of real tools, those with free keys apart, the right arguments satisfy the strict form and come back."""
    through, lost = 0, []
    for line in (corpus / "executor" / "schema_cases.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["gold_errors"]:
            continue
        try:
            strict, definitions = strict_schema(row["schema"])
        except NotStrict:
            continue
        written = filled(row["gold"], strict, definitions)
        assert SchemaValidator({**strict, "$defs": definitions}).accepts(written), row["id"]
        if without_nulls(written, row["schema"]) != row["gold"]:
            lost.append(row["id"])  # keys that the schema does not name, and leaves open
        through += 1
    assert through > 800
    assert len(lost) < 0.01 * through, lost
