"""Final answers that have a type, in every mode."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

import pytest
from attrs import field, frozen
from attrs.validators import gt

from agentloop import (
    AgentLoop,
    AgentState,
    Budget,
    Interceptor,
    ScriptedDriver,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    tool,
)
from agentloop.drivers import ScenarioStep
from agentloop.errors import ToolDefinitionError
from agentloop.events import InferenceDeltaReceived, ValidationFailed
from agentloop.modes import NativeMode
from agentloop.modes.native import ANSWER_TOOL
from agentloop.values import Event, ExecutionStatus, InferenceRequest, from_json, to_json
from agentloop.values.points import BeforeInference


class Kind(Enum):
    """A kind."""

    SMALL = "small"
    LARGE = "large"


@frozen
class Sum:
    """A sum."""

    total: int = field(validator=gt(0))
    kind: Kind
    notes: list[str] = field(factory=list)


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


GOOD = {"total": 3, "kind": "small"}
BAD = {"total": "three", "kind": "small"}
ADD = ToolCall("1", "add", '{"a": 1, "b": 2}')


def native(answer: Any) -> Any:
    """Answer by the response format."""
    return json.dumps(answer)


def by_tool(answer: Any) -> Any:
    """Answer by the answer's tool."""
    return ToolCall("9", ANSWER_TOOL, json.dumps(answer))


def structured(answer: Any) -> Any:
    """Answer in the mode structured."""
    return json.dumps({"next": [{"answer": answer}]})


def as_text(answer: Any) -> Any:
    """Answer in a text with words around."""
    return f"Here you are:\n```json\n{json.dumps(answer)}\n```\nBye."


WAYS: dict[str, tuple[Any, Any]] = {
    "by format": ("native", native),
    "by tool": (NativeMode(output="tool"), by_tool),
    "structured": ("structured", structured),
    "validated": ("validated", as_text),
    "parsed": ("parsed", as_text),
}
ways = pytest.mark.parametrize(("mode", "says"), WAYS.values(), ids=list(WAYS))


async def run(mode: Any, *lines: Any, output_type: Any = Sum) -> tuple[AgentState, list[InferenceRequest], list[Event]]:
    """Run a loop that wants an output."""
    model, events = ScriptedInference(*lines), list[Event]()
    loop = AgentLoop(ToolCallingDriver(model, mode=mode), [add], output_type=output_type)
    loop.wiretap(events.append)
    return await loop.execute("1 + 2?"), model.requests, events


@ways
async def test_an_answer_is_structured_into_its_type(mode: Any, says: Any) -> None:
    """The output is of the type, whatever way the model gave it."""
    state, _, _ = await run(mode, says(GOOD))
    assert state.output == Sum(3, Kind.SMALL)


@ways
async def test_an_answer_of_another_form_is_asked_for_again(mode: Any, says: Any) -> None:
    """The model is told what is wrong, and its next answer counts; the conversation holds only that."""
    state, requests, events = await run(mode, says(BAD), says(GOOD))
    assert state.output == Sum(3, Kind.SMALL)
    assert (state.step_count, len(requests)) == (1, 2)
    assert "total" in requests[1].messages[-1].text
    assert [event.attempt for event in events if isinstance(event, ValidationFailed)] == [1]


@ways
async def test_asking_again_is_bounded_and_ends_as_a_failure(mode: Any, says: Any) -> None:
    """After the last try the execution fails, with the answer as far as it came."""
    state, requests, _ = await run(mode, *[says(BAD)] * 3)
    assert (state.status, len(requests)) == (ExecutionStatus.FAILED, 3)
    assert "$.total" in state.errors[-1].message


async def test_what_the_type_itself_refuses_is_asked_for_again() -> None:
    """A validator of the type speaks to the model."""
    state, requests, _ = await run("native", native({**GOOD, "total": -1}), native(GOOD))
    assert state.output == Sum(3, Kind.SMALL)
    assert "total" in requests[1].messages[-1].text


@pytest.mark.parametrize(
    ("kind", "answer", "output"),
    [(int, 5, 5), (list[int], [1, 2], [1, 2]), (int | None, None, None), (Kind, "large", Kind.LARGE), (str, "a", "a")],
)
@pytest.mark.parametrize("way", ["by format", "by tool", "structured", "parsed"])
async def test_an_output_need_not_be_an_object(kind: Any, answer: Any, output: Any, way: str) -> None:
    """Any type that has a schema will do."""
    mode, says = WAYS[way]
    wrapped = says({"answer": answer}) if way == "by tool" else says(answer)
    state, _, _ = await run(mode, wrapped, output_type=kind)
    assert state.output == output


async def test_tools_are_called_before_the_answer() -> None:
    """Calls are not answers; the answer's tool beside another call is too early."""
    for mode, first in (("native", [ADD]), (NativeMode(output="tool"), [ADD, by_tool(GOOD)])):
        says = native if mode == "native" else by_tool
        state, requests, _ = await run(mode, first, says(GOOD))
        assert [execution.value for step in state.steps for execution in step.executions] == [3]
        assert (state.output, len(requests)) == (Sum(3, Kind.SMALL), 2)


async def test_another_model_gives_the_answer_its_form() -> None:
    """The final model's answer is checked, and asked for again."""
    strong = ScriptedInference(native(BAD), native(GOOD))
    driver = ToolCallingDriver(ScriptedInference("any words"), final_inference=strong)
    state = await AgentLoop(driver, output_type=Sum).execute("?")
    assert (state.output, len(strong.requests)) == (Sum(3, Kind.SMALL), 2)


@ways
async def test_the_last_answer_of_a_budget_has_its_type(mode: Any, says: Any) -> None:
    """A limit makes an answer the last one, and no other kind of answer."""
    without_tools = native if mode == "structured" else says
    model = ScriptedInference(without_tools(GOOD))
    loop = AgentLoop(ToolCallingDriver(model, mode=mode), [add], output_type=Sum, interceptors=[Budget(steps=1)])
    state = await loop.execute("1 + 2?")
    assert (state.status, state.output) == (ExecutionStatus.STOPPED, Sum(3, Kind.SMALL))


async def test_an_answer_to_be_gone_on_from_is_left_as_it_is_when_a_limit_comes() -> None:
    """Nobody asked that it have the type, so nothing fails."""

    class GoesOn(Interceptor):
        def before_inference(self, point: BeforeInference) -> BeforeInference:
            return point.with_state(point.state.with_continuation_requested())

    driver = ToolCallingDriver(ScriptedInference("so far"), max_retries=0)
    loop = AgentLoop(driver, output_type=Sum, max_steps=1, interceptors=[GoesOn()])
    state = await loop.execute("?")
    assert (state.status, state.final_text) == (ExecutionStatus.STOPPED, "so far")


async def test_a_stored_state_has_the_json_of_its_output() -> None:
    """Types are not stored: what comes back is JSON, equal to what the model said; the states are equal."""
    state, _, _ = await run("native", native(GOOD))
    stored = from_json(to_json(state), AgentState)
    assert stored == state
    assert stored.output == GOOD


async def test_a_driver_that_knows_nothing_of_outputs_is_held_to_them() -> None:
    """A final answer of another form fails the execution, also under a driver that cannot ask again."""
    loop = AgentLoop(ScriptedDriver(ScenarioStep.final("no form")), output_type=Sum)
    assert (await loop.execute("?")).status is ExecutionStatus.FAILED
    loop = AgentLoop(ScriptedDriver(ScenarioStep.final(json.dumps(GOOD))), output_type=Sum)
    assert (await loop.execute("?")).output == Sum(3, Kind.SMALL)


async def test_without_a_type_the_output_is_the_text() -> None:
    """Free text is free."""
    state = await AgentLoop(ToolCallingDriver(ScriptedInference("Hello."))).execute("?")
    assert state.output == "Hello."


def test_a_type_without_a_json_form_is_refused_when_the_loop_is_made() -> None:
    """The mistake is told where it is made."""
    with pytest.raises(ToolDefinitionError):
        AgentLoop(ToolCallingDriver(ScriptedInference()), output_type=complex)


async def test_an_answer_by_tool_streams_as_text() -> None:
    """Whoever watches sees the answer, not the call by which it is given."""
    driver = ToolCallingDriver(ScriptedInference(by_tool(GOOD)), mode=NativeMode(output="tool"), streaming=True)
    loop, told = AgentLoop(driver, output_type=Sum), list[tuple[str, str]]()
    loop.on(InferenceDeltaReceived, lambda event: told.append((event.delta.kind, event.delta.text)))
    await loop.execute("?")
    assert told == [("text", json.dumps(GOOD))]
