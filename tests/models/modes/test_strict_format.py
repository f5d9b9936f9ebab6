"""The response format of a typed answer as it is sent to providers that enforce schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from attrs import Factory, frozen

from agentloop import AgentLoop, ReActDriver, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.drivers.inferring_driver import InferringDriver
from agentloop.events import InferenceDeltaReceived
from agentloop.values import Event


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@frozen
class Sum:
    """A sum, with a unit where there is one."""

    total: int
    unit: str = "apples"
    terms: list[int] = Factory(list[int])


@frozen
class Node:
    """A tree."""

    name: str
    children: list[Node]


def driver_of(kind: str, model: ScriptedInference, *, streaming: bool = False) -> InferringDriver:
    """Return a driver whose last request has no tools, or one in the native mode."""
    if kind == "native":
        return ToolCallingDriver(model, mode="native", streaming=streaming)
    first = {"structured": '{"next":[{"answer":"x"}]}', "react": '{"thought":"","type":"final","answer":"x"}'}[kind]
    chooser = ScriptedInference(first)
    if kind == "structured":
        return ToolCallingDriver(chooser, mode="structured", final_inference=model, streaming=streaming)
    return ReActDriver(chooser, output="json", final_inference=model, streaming=streaming)


def sent_by(model: ScriptedInference) -> tuple[Mapping[str, Any], bool]:
    """Return the schema of the last request, and whether the provider is asked to enforce it."""
    response_format = model.requests[-1].response_format
    assert response_format is not None
    assert response_format.schema is not None
    return response_format.schema, response_format.strict


def is_strict_schema(schema: Any) -> bool:
    """Whether every object of a schema is closed and requires all of its properties."""
    if isinstance(schema, Mapping):
        if "properties" in schema and (
            set(schema["required"]) != set(schema["properties"]) or schema["additionalProperties"] is not False
        ):
            return False
        return all(is_strict_schema(value) for value in schema.values())
    return not isinstance(schema, list | tuple) or all(map(is_strict_schema, schema))


KINDS = ("native", "structured", "react")
CASES: list[tuple[Any, Any, Any]] = [
    (int, {"answer": 42}, 42),
    (list[str], {"answer": ["a"]}, ["a"]),
    (int | None, {"answer": None}, None),
    (str, {"answer": "plain"}, "plain"),
    (Sum, {"total": 3, "unit": None, "terms": None}, Sum(3)),
    (Sum, {"total": 3, "unit": "pears", "terms": [1, 2]}, Sum(3, "pears", [1, 2])),
    (list[Sum], {"answer": [{"total": 3, "unit": None, "terms": []}]}, [Sum(3)]),
    (Node, {"answer": {"name": "a", "children": [{"name": "b", "children": []}]}}, Node("a", [Node("b", [])])),
]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("hint", "written", "output"), CASES)
async def test_the_answer_schema_is_one_that_providers_accept(
    kind: str, hint: Any, written: Any, output: Any, *, streaming: bool
) -> None:
    """The root is an object, all objects are closed and all properties required; the answer has the requested type."""
    model = ScriptedInference(json.dumps(written))
    loop = AgentLoop(driver_of(kind, model, streaming=streaming), [add], output_type=hint)
    events: list[Event] = []
    loop.wiretap(events.append)
    state = await loop.execute("?")
    assert (state.output, len(model.requests)) == (output, 1)
    schema, is_strict = sent_by(model)
    assert (schema["type"], is_strict, is_strict_schema(schema)) == ("object", True, True)
    if streaming:
        deltas = [event.delta for event in events if isinstance(event, InferenceDeltaReceived)]
        assert "".join(delta.text for delta in deltas if delta.kind == "text").endswith(state.final_text or "?")


@pytest.mark.parametrize("hint", [dict[str, int], list[dict[str, int]]])
async def test_an_inexpressible_schema_is_sent_without_enforcement(hint: Any) -> None:
    """A schema with free keys cannot be enforced by a provider; the loop checks the answer nevertheless."""
    expected: Any = {"a": 1} if hint == dict[str, int] else [{"a": 1}]
    wrong, right = ("[]", expected) if hint == dict[str, int] else ('{"answer": 1}', {"answer": expected})
    model = ScriptedInference(wrong, json.dumps(right))
    state = await AgentLoop(ToolCallingDriver(model), output_type=hint).execute("?")
    assert state.output == expected
    schema, is_strict = sent_by(model)
    assert (schema["type"], is_strict) == ("object", False)


async def test_an_unwrapped_answer_is_also_read() -> None:
    """A model without enforced schemas may answer without the property around the answer."""
    for written in ("42", "```json\n42\n```", '{"answer": 42}'):
        state = await AgentLoop(ToolCallingDriver(ScriptedInference(written)), output_type=int).execute("?")
        assert state.output == 42


async def test_an_answer_in_the_requested_form_keeps_its_spelling() -> None:
    """An answer with neither a property around it nor a null to remove is stored as the model wrote it."""
    written = '{ "unit": "pears",  "total": 3, "terms": [1, 2] }'
    model = ScriptedInference(written)
    state = await AgentLoop(ToolCallingDriver(model), output_type=Sum).execute("?")
    assert (state.final_text, state.output) == (written, Sum(3, "pears", [1, 2]))


async def test_calls_before_the_answer_are_unchanged() -> None:
    """The response format applies to the answer only."""
    model = ScriptedInference(["One moment.", ToolCall("1", "add", '{"a": 1, "b": 2}')], '{"answer": 3}')
    state = await AgentLoop(ToolCallingDriver(model), [add], output_type=int).execute("?")
    assert (state.messages[1].text, state.steps[0].executions[0].value, state.output) == ("One moment.", 3, 3)


async def test_a_strict_schema_is_sent_unchanged() -> None:
    """A schema that is already strict is not rewritten, so that prompt caches stay valid."""

    @frozen
    class Pair:
        a: int
        b: int

    model = ScriptedInference('{"a": 1, "b": 2}')
    loop = AgentLoop(ToolCallingDriver(model), output_type=Pair)
    state = await loop.execute("?")
    assert model.requests[0].response_format is not None
    assert model.requests[0].response_format == state.context.response_format
