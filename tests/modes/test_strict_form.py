"""The form of a typed answer, as it is sent to providers that enforce schemas."""

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
    below: list[Node]


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
    """Return the schema that the model was asked to keep to, and whether it is to be enforced."""
    form = model.requests[-1].response_format
    assert form is not None
    assert form.schema is not None
    return form.schema, form.strict


def is_accepted(schema: Any) -> bool:
    """Say whether every object of a schema is closed and requires all of its properties."""
    if isinstance(schema, Mapping):
        if "properties" in schema and (
            set(schema["required"]) != set(schema["properties"]) or schema["additionalProperties"] is not False
        ):
            return False
        return all(is_accepted(one) for one in schema.values())
    return not isinstance(schema, list | tuple) or all(map(is_accepted, schema))


KINDS = ("native", "structured", "react")
CASES: list[tuple[Any, Any, Any]] = [
    (int, {"answer": 42}, 42),
    (list[str], {"answer": ["a"]}, ["a"]),
    (int | None, {"answer": None}, None),
    (str, {"answer": "plain"}, "plain"),
    (Sum, {"total": 3, "unit": None, "terms": None}, Sum(3)),
    (Sum, {"total": 3, "unit": "pears", "terms": [1, 2]}, Sum(3, "pears", [1, 2])),
    (list[Sum], {"answer": [{"total": 3, "unit": None, "terms": []}]}, [Sum(3)]),
    (Node, {"answer": {"name": "a", "below": [{"name": "b", "below": []}]}}, Node("a", [Node("b", [])])),
]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("hint", "written", "output"), CASES)
async def test_an_answer_is_asked_for_in_a_form_that_providers_accept(
    kind: str, hint: Any, written: Any, output: Any, *, streaming: bool
) -> None:
    """The root is an object, all is closed and required; what comes is read back into what was asked for."""
    model = ScriptedInference(json.dumps(written))
    loop = AgentLoop(driver_of(kind, model, streaming=streaming), [add], output_type=hint)
    told: list[Event] = []
    loop.wiretap(told.append)
    state = await loop.execute("?")
    assert (state.output, len(model.requests)) == (output, 1)
    schema, is_strict = sent_by(model)
    assert (schema["type"], is_strict, is_accepted(schema)) == ("object", True, True)
    if streaming:
        deltas = [event.delta for event in told if isinstance(event, InferenceDeltaReceived)]
        assert "".join(delta.text for delta in deltas if delta.kind == "text").endswith(state.final_text)


@pytest.mark.parametrize("hint", [dict[str, int], list[dict[str, int]]])
async def test_what_cannot_be_strict_is_sent_without_asking_to_enforce_it(hint: Any) -> None:
    """A provider refuses a strict schema with free keys; the answer is checked here all the same."""
    wanted: Any = {"a": 1} if hint == dict[str, int] else [{"a": 1}]
    wrong, right = ("[]", wanted) if hint == dict[str, int] else ('{"answer": 1}', {"answer": wanted})
    model = ScriptedInference(wrong, json.dumps(right))
    state = await AgentLoop(ToolCallingDriver(model), output_type=hint).execute("?")
    assert state.output == wanted
    schema, is_strict = sent_by(model)
    assert (schema["type"], is_strict) == ("object", False)


async def test_an_answer_in_the_form_that_was_asked_for_is_read_too() -> None:
    """A model that is not held to the form may answer without the property around it."""
    for written in ("42", "```json\n42\n```", '{"answer": 42}'):
        state = await AgentLoop(ToolCallingDriver(ScriptedInference(written)), output_type=int).execute("?")
        assert state.output == 42


async def test_calls_before_the_answer_are_left_as_they_are() -> None:
    """The form is for answers alone."""
    model = ScriptedInference(["One moment.", ToolCall("1", "add", '{"a": 1, "b": 2}')], '{"answer": 3}')
    state = await AgentLoop(ToolCallingDriver(model), [add], output_type=int).execute("?")
    assert (state.messages[1].text, state.steps[0].executions[0].value, state.output) == ("One moment.", 3, 3)


async def test_a_form_that_is_strict_already_is_sent_as_it_is() -> None:
    """Nothing is made of it that a prompt cache would not know."""

    @frozen
    class Pair:
        a: int
        b: int

    model = ScriptedInference('{"a": 1, "b": 2}')
    loop = AgentLoop(ToolCallingDriver(model), output_type=Pair)
    state = await loop.execute("?")
    assert model.requests[0].response_format is not None
    assert model.requests[0].response_format == state.context.response_format
