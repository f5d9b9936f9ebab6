"""Validation of arguments against the whole JSON Schema, with the paths of problems."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from agentloop import AgentLoop, Bounds, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.errors import InvalidArguments, ToolDefinitionError
from agentloop.testing import ExecutorBench
from agentloop.tools import SchemaValidator, json_schema
from agentloop.tools.validation import Schema
from agentloop.values.tool_calls import ToolExecution, ToolStatus


@dataclass
class Line:
    """A line of an order."""

    item: str
    count: Annotated[int, Field(ge=1, le=9)] = 1


class Address(BaseModel):
    """An address."""

    street: str
    zip: Annotated[str, Field(pattern=r"^\d{5}$")]


@dataclass
class Rate:
    """Rejects values that its type accepts."""

    percent: float

    def __post_init__(self) -> None:
        if self.percent > 100:
            raise ValueError("nothing is more than all")


@tool
async def order(lines: list[Line], address: Address | None = None, notes: dict[str, str] | None = None) -> int:
    """Order something."""
    return len(lines)


@tool
async def rate(rates: list[Rate]) -> int:
    """Rate something."""
    return len(rates)


async def outcome_of(name: str, arguments: str) -> ToolExecution:
    (outcome,) = (await ExecutorBench([order, rate]).run(ToolCall("", name, arguments))).executions
    return outcome


@pytest.mark.parametrize(
    ("name", "arguments", "path", "message"),
    [
        ("order", "{}", "$", "'lines' is a required property"),
        ("order", '{"lines": [], "more": 1}', "$", "'more' was unexpected"),
        ("order", '{"lines": {}}', "$.lines", "is not of type 'array'"),
        ("order", '{"lines": [{"item": "a"}, {"count": 1}]}', "$.lines[1]", "'item' is a required property"),
        ("order", '{"lines": [{"item": "a", "count": 0}]}', "$.lines[0].count", "less than the minimum of 1"),
        ("order", '{"lines": [{"item": "a", "count": true}]}', "$.lines[0].count", "is not of type 'integer'"),
        ("order", '{"lines": [{"item": "a", "size": 2}]}', "$.lines[0]", "'size' was unexpected"),
        ("order", '{"lines": [], "notes": {"a": 1}}', "$.notes.a", "1 is not of type 'string'"),
        ("order", '{"lines": [], "address": {"street": "a", "zip": "1"}}', "$.address.zip", "does not match"),
        ("rate", '{"rates": [{"percent": 1}, {"percent": 101}]}', "$.rates[1]", "nothing is more than all"),
    ],
)
async def test_invalid_arguments_are_reported_with_their_path(
    name: str, arguments: str, path: str, message: str
) -> None:
    """Every keyword of the schema counts, at any depth, and so do errors of the type itself."""
    outcome = await outcome_of(name, arguments)
    assert outcome.status.value == "rejected"
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.path) == ("InvalidArguments", path)
    assert f"at {path}: " in outcome.error.message
    assert message in outcome.error.message


async def test_one_error_lists_several_problems() -> None:
    """The error lists several problems, so that a model can fix all of them at once."""
    outcome = await outcome_of("order", '{"lines": [{"item": 1, "count": 10}], "notes": {"a": 1}}')
    for part in ("$.lines[0].item: 1", "$.lines[0].count: 10", "$.notes.a: 1"):
        assert part in outcome.error_message


def test_a_long_value_is_shortened_in_the_message() -> None:
    """The message does not repeat a value of ten thousand characters."""
    with pytest.raises(InvalidArguments) as caught:
        SchemaValidator({"type": "object", "properties": {"a": {"type": "integer"}}}).validate({"a": "x" * 10_000})
    assert len(str(caught.value)) < 400


def test_data_that_is_nested_too_deeply_is_rejected() -> None:
    """Data beyond the recursion limit is invalid, and does not break the validator."""
    validator = SchemaValidator({"type": "object", "additionalProperties": {"$ref": "#"}})
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert not validator.accepts(deep)
    with pytest.raises(InvalidArguments, match="nested too deeply"):
        validator.validate(deep)
    while deep:  # taken apart level by level: Python frees a chain this long by recursion
        deep = deep["a"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": 7}, r"the schema is not a valid JSON Schema: at \$.type: 7"),
        ({"properties": {"a": {"minimum": "1"}}}, r"at \$.properties.a.minimum: '1' is not of type 'number'"),
        ({"properties": {"a": {"$ref": "#/$defs/Missing"}}}, r"refers to '#/\$defs/Missing', which is not in it"),
        ({"$ref": "https://elsewhere.invalid/schema"}, "nothing is fetched: put the definition into"),
        ({"$ref": "#"}, "refers to itself without end"),
        ({"$schema": 7}, r"at \$.\$schema: it has to be a URL"),
        ({"default": object()}, "cannot be a JSON Schema"),
    ],
)
def test_an_invalid_schema_is_reported_with_the_place(schema: dict[str, Any], message: str) -> None:
    """The schema is checked at construction, never in a call."""
    with pytest.raises(ToolDefinitionError, match=message):
        SchemaValidator(schema)


def test_the_draft_of_a_schema_is_used() -> None:
    """`$schema` names the draft; the default is 2020-12."""
    items = {"type": "array", "items": [{"type": "integer"}]}
    draft_7 = SchemaValidator({"$schema": "http://json-schema.org/draft-07/schema#", **items})
    assert draft_7.accepts([1, "a"])
    assert not draft_7.accepts(["a"])
    with pytest.raises(ToolDefinitionError, match="the tool's schema is not a valid JSON Schema"):
        SchemaValidator(items, "the tool's schema")


def test_the_schema_of_a_type_can_be_validated() -> None:
    """A validator accepts the schema of a type."""
    validator = SchemaValidator(json_schema(dict[str, list[int]]))
    assert validator.accepts({"a": [1]})
    assert validator.problems({"a": [1, "b"]}) == [("$.a[1]", "'b' is not of type 'integer'")]


@pytest.mark.parametrize("data", [1, "text", None, [], {}])
def test_a_schema_can_be_a_boolean(data: Any) -> None:
    """The schema true accepts everything and false nothing."""
    everything: Schema = True
    nothing: Schema = False
    assert SchemaValidator(everything).accepts(data)
    assert not SchemaValidator(nothing).accepts(data)


def test_unevaluated_members_are_found_through_patterns_and_many_references() -> None:
    """`unevaluatedProperties` works beside `patternProperties` and any number of references."""
    named = {f"d{number}": {"properties": {f"p{number}": {"type": "integer"}}} for number in range(40)}
    schema = {
        "$defs": named,
        "patternProperties": {"^x-": {"type": "string"}},
        "allOf": [{"$ref": f"#/$defs/{name}"} for name in named],
        "unevaluatedProperties": False,
    }
    validator = SchemaValidator(schema)
    assert validator.accepts({"x-note": "text", "p0": 1, "p39": 2})
    assert not validator.accepts({"x-note": 1})
    ((path, message),) = validator.problems({"p0": 1, "other": 1})
    assert path == "$"
    assert "'other' was unexpected" in message


_2019 = {"$schema": "https://json-schema.org/draft/2019-09/schema"}


@pytest.mark.parametrize(
    ("schema", "data", "is_valid"),
    [
        ({"allOf": [{"unevaluatedItems": False}], "unevaluatedProperties": False}, {"a": 1}, False),
        ({"allOf": [{"unevaluatedItems": True}], "unevaluatedProperties": False}, {"a": 1}, False),
        ({"allOf": [{"unevaluatedProperties": True}], "unevaluatedProperties": False}, {"a": 1}, True),
        ({"allOf": [{"unevaluatedProperties": False}], "unevaluatedItems": False}, [1], False),
        ({"allOf": [{"unevaluatedItems": True}], "unevaluatedItems": False}, [1], True),
        ({"additionalItems": True, "unevaluatedItems": False}, [1], False),
        ({"items": {"type": "integer"}, "unevaluatedItems": False}, [1, 2], True),
        ({"prefixItems": [True], "unevaluatedItems": False}, [1], True),
        ({"prefixItems": [True], "unevaluatedItems": False}, [1, 2], False),
        ({"prefixItems": [True], "additionalItems": True, "unevaluatedItems": False}, [1, 2], False),
        ({"contains": {"type": "string"}, "unevaluatedItems": False}, ["a"], True),
        ({**_2019, "additionalItems": True, "unevaluatedItems": False}, [1], False),
        ({**_2019, "items": True, "unevaluatedItems": False}, [1, 2], True),
        ({**_2019, "items": [True], "unevaluatedItems": False}, [1], True),
        ({**_2019, "items": [True], "unevaluatedItems": False}, [1, 2], False),
        ({**_2019, "items": [True], "additionalItems": True, "unevaluatedItems": False}, [1, 2], True),
        ({**_2019, "prefixItems": [True], "unevaluatedItems": False}, [1], False),
        ({**_2019, "contains": {"type": "string"}, "unevaluatedItems": False}, ["a"], False),
        ({"$recursiveRef": "#", "unevaluatedItems": False}, ["a"], False),
        ({**_2019, "$dynamicRef": "#nowhere", "unevaluatedItems": False}, [], True),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$dynamicRef": "#nowhere"}, ["a"], True),
    ],
)
def test_what_is_evaluated_depends_on_the_kind_of_the_value_and_on_the_draft(
    schema: Schema, data: Any, *, is_valid: bool
) -> None:
    """`unevaluatedItems` evaluates no properties; a draft has its own keywords for items, and ignores those of another."""
    assert SchemaValidator(schema).accepts(data) is is_valid


def test_unevaluated_members_are_found_in_each_place_once() -> None:
    """References that lead to the same subschema in 2^40 ways are followed once."""
    doubled: dict[str, Any] = {
        f"d{number}": {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(40)
    }
    doubled["d40"] = {"properties": {"a": True}}
    validator = SchemaValidator({"$defs": doubled, "$ref": "#/$defs/d0", "unevaluatedProperties": False})
    assert validator.accepts({"a": 1})
    assert not validator.accepts({"b": 1})


def test_unevaluated_members_match_hostile_patterns_in_linear_time() -> None:
    """A pattern that takes exponential time with backtracking is matched for `unevaluatedProperties` too."""
    validator = SchemaValidator({"patternProperties": {"^(a+)+$": True}, "unevaluatedProperties": False})
    assert validator.accepts({"a" * 200: 1})
    assert not validator.accepts({"a" * 200 + "!": 1})


@pytest.mark.parametrize(("steps", "status"), [(30_000, ToolStatus.REJECTED), (300_000, ToolStatus.SUCCEEDED)])
async def test_the_bounds_of_the_loop_apply_to_checks_of_arguments(steps: int, status: ToolStatus) -> None:
    """Arguments whose check takes more steps than `Bounds.schema_steps` of the loop are rejected."""
    lines = json.dumps({"lines": [{"item": "text"}] * 10_000})
    model = ScriptedInference([ToolCall("", "order", lines)], "Done.")
    loop = AgentLoop(ToolCallingDriver(model), [order], bounds=Bounds(schema_steps=steps))
    final = await loop.execute("Order.")
    (execution,) = final.steps[0].executions
    assert execution.status is status
    assert (status is ToolStatus.SUCCEEDED) is ("Bounds.schema_steps" not in str(execution.error))


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "http://json-schema.org/draft-03/schema#", "properties": {"a": {"type": [{"type": "integer"}]}}},
        {"properties": {"a": {"$schema": "http://json-schema.org/draft-03/schema", "type": "integer"}}},
    ],
)
def test_draft_3_is_refused(schema: dict[str, Any]) -> None:
    """Its types may be schemas or unknown names, which would be found in a call only."""
    with pytest.raises(ToolDefinitionError, match="draft 3 of JSON Schema is not supported"):
        SchemaValidator({"type": "object", **schema})
