"""Final answers with an output type, in every mode."""

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
from agentloop.errors import NoOutput, ToolDefinitionError
from agentloop.events import InferenceDeltaReceived, ValidationFailed
from agentloop.models.modes.native import NativeMode
from agentloop.values import (
    Event,
    ExecutionStatus,
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    ResponseFormat,
    StopReason,
    Text,
    from_json,
    to_json,
)
from agentloop.values.points import BeforeInference
from agentloop.values.tool_calls import ANSWER_TOOL


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
    """Answer in the response format."""
    return json.dumps(answer)


def by_tool(answer: Any) -> Any:
    """Answer with a call of the answer tool."""
    return ToolCall("9", ANSWER_TOOL, json.dumps(answer))


def structured(answer: Any) -> Any:
    """Answer in the mode `structured`."""
    return json.dumps({"next": [{"answer": answer}]})


def as_text(answer: Any) -> Any:
    """Answer in a text with words around the JSON."""
    return f"Here you are:\n```json\n{json.dumps(answer)}\n```\nBye."


WAYS: dict[str, tuple[Any, Any]] = {
    "by format": ("native", native),
    "by tool": (NativeMode(output="tool"), by_tool),
    "structured": ("structured", structured),
    "validated": ("validated", as_text),
    "parsed": ("parsed", as_text),
}
ways = pytest.mark.parametrize(("mode", "says"), WAYS.values(), ids=list(WAYS))


async def execute_typed(
    mode: Any, *lines: Any, output_type: Any = Sum
) -> tuple[AgentState, list[InferenceRequest], list[Event]]:
    """Run a loop with an output type."""
    model, events = ScriptedInference(*lines), list[Event]()
    loop = AgentLoop(ToolCallingDriver(model, mode=mode), [add], output_type=output_type)
    loop.wiretap(events.append)
    return await loop.execute("1 + 2?"), model.requests, events


@ways
async def test_an_answer_is_converted_to_its_type(mode: Any, says: Any) -> None:
    """The output has the type, in whichever form the model gave it."""
    state, _, _ = await execute_typed(mode, says(GOOD))
    assert state.output == Sum(3, Kind.SMALL)


@ways
async def test_an_invalid_answer_is_requested_again(mode: Any, says: Any) -> None:
    """The model receives the problems, and its next answer counts; the conversation has only that one."""
    state, requests, events = await execute_typed(mode, says(BAD), says(GOOD))
    assert state.output == Sum(3, Kind.SMALL)
    assert (state.step_count, len(requests)) == (1, 2)
    assert "total" in requests[1].messages[-1].text
    assert [event.attempt for event in events if isinstance(event, ValidationFailed)] == [1]


@ways
async def test_the_number_of_retries_for_an_answer_is_limited(mode: Any, says: Any) -> None:
    """After the last attempt the execution fails, with the last answer in its step."""
    state, requests, _ = await execute_typed(mode, *[says(BAD)] * 3)
    assert (state.status, len(requests)) == (ExecutionStatus.FAILED, 3)
    assert "$.total" in state.errors[-1].message


@pytest.mark.parametrize("mode", ["native", "structured", "validated", "parsed"])
async def test_an_answer_that_is_cut_off_stops_the_execution_with_this_reason(mode: Any) -> None:
    """The limit of tokens is the reason, not the JSON that lacks its end; there is no output."""
    cut = InferenceResponse((Text('{"total": 3, "kin'),), FinishReason.LENGTH)
    state, requests, _ = await execute_typed(mode, *[cut] * 3)
    assert (state.status, len(requests)) == (ExecutionStatus.STOPPED, 3)
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.FINISH_REASON
    for stopped in (state, from_json(to_json(state), AgentState)):
        assert (stopped.is_cut_off, stopped.errors) == (True, ())
        with pytest.raises(NoOutput):
            _ = stopped.output


async def test_several_answers_of_a_type_are_none() -> None:
    """Two numbers are not joined to another one."""
    two, one = '{"next": [{"answer": 1}, {"answer": 2}]}', '{"next": [{"answer": 3}]}'
    state, requests, _ = await execute_typed("structured", two, one, output_type=int)
    assert state.output == 3
    assert "several answers" in requests[1].messages[-1].text


async def test_an_answer_that_the_type_refuses_is_requested_again() -> None:
    """The message of the type's validator reaches the model."""
    state, requests, _ = await execute_typed("native", native({**GOOD, "total": -1}), native(GOOD))
    assert state.output == Sum(3, Kind.SMALL)
    assert "total" in requests[1].messages[-1].text


@pytest.mark.parametrize(
    ("kind", "answer", "output"),
    [(int, 5, 5), (list[int], [1, 2], [1, 2]), (int | None, None, None), (Kind, "large", Kind.LARGE), (str, "a", "a")],
)
@pytest.mark.parametrize("way", ["by format", "by tool", "structured", "parsed"])
async def test_an_output_can_be_of_any_type(kind: Any, answer: Any, output: Any, way: str) -> None:
    """Any type with a JSON Schema is possible."""
    mode, says = WAYS[way]
    wrapped = says({"answer": answer}) if way == "by tool" else says(answer)
    state, _, _ = await execute_typed(mode, wrapped, output_type=kind)
    assert state.output == output


async def test_tools_are_called_before_the_answer() -> None:
    """Calls are not answers; a call of the answer tool together with another call is too early."""
    for mode, first in (("native", [ADD]), (NativeMode(output="tool"), [ADD, by_tool(GOOD)])):
        says = native if mode == "native" else by_tool
        state, requests, _ = await execute_typed(mode, first, says(GOOD))
        assert [execution.value for step in state.steps for execution in step.executions] == [3]
        assert (state.output, len(requests)) == (Sum(3, Kind.SMALL), 2)


async def test_a_final_model_formats_the_answer() -> None:
    """The final model's answer is checked and requested again."""
    strong = ScriptedInference(native(BAD), native(GOOD))
    driver = ToolCallingDriver(ScriptedInference("any words"), final_inference=strong)
    state = await AgentLoop(driver, output_type=Sum).execute("?")
    assert (state.output, len(strong.requests)) == (Sum(3, Kind.SMALL), 2)


@ways
async def test_the_last_answer_of_a_budget_has_its_type(mode: Any, says: Any) -> None:
    """A limit changes when the last answer is given, not its type."""
    without_tools = native if mode == "structured" else says
    model = ScriptedInference(without_tools(GOOD))
    loop = AgentLoop(ToolCallingDriver(model, mode=mode), [add], output_type=Sum, interceptors=[Budget(steps=1)])
    state = await loop.execute("1 + 2?")
    assert (state.status, state.output) == (ExecutionStatus.STOPPED, Sum(3, Kind.SMALL))


async def test_an_intermediate_answer_at_a_limit_is_not_typed() -> None:
    """An answer with a requested continuation has no type to match, so nothing fails."""

    class RequestsContinuation(Interceptor):
        def before_inference(self, point: BeforeInference) -> BeforeInference:
            return point.with_state(point.state.with_continuation_requested())

    driver = ToolCallingDriver(ScriptedInference("so far"), max_retries=0)
    loop = AgentLoop(driver, output_type=Sum, max_steps=1, interceptors=[RequestsContinuation()])
    state = await loop.execute("?")
    assert (state.status, state.final_text) == (ExecutionStatus.STOPPED, "so far")


async def test_a_stored_state_has_the_json_of_its_output() -> None:
    """Types are not stored: a loaded state has the JSON of the answer, and equals the original."""
    state, _, _ = await execute_typed("native", native(GOOD))
    stored = from_json(to_json(state), AgentState)
    assert stored == state
    assert stored.output == GOOD


async def test_the_answers_of_every_driver_are_checked() -> None:
    """A final answer of another form fails the execution, also under a driver that does not check answers."""
    loop = AgentLoop(ScriptedDriver(ScenarioStep.final("no form")), output_type=Sum)
    assert (await loop.execute("?")).status is ExecutionStatus.FAILED
    loop = AgentLoop(ScriptedDriver(ScenarioStep.final(json.dumps(GOOD))), output_type=Sum)
    assert (await loop.execute("?")).output == Sum(3, Kind.SMALL)


async def test_without_a_type_the_output_is_the_text() -> None:
    """The output of a loop without an output type is text."""
    state = await AgentLoop(ToolCallingDriver(ScriptedInference("Hello."))).execute("?")
    assert state.output == "Hello."


def test_a_type_without_a_schema_is_refused_at_construction() -> None:
    """The error is raised when the loop is created."""
    with pytest.raises(ToolDefinitionError):
        AgentLoop(ToolCallingDriver(ScriptedInference()), output_type=complex)


async def test_an_answer_by_tool_is_streamed_as_text() -> None:
    """A listener sees the answer, not the call with which it is given."""
    driver = ToolCallingDriver(ScriptedInference(by_tool(GOOD)), mode=NativeMode(output="tool"), streaming=True)
    loop, deltas = AgentLoop(driver, output_type=Sum), list[tuple[str, str]]()
    loop.on(InferenceDeltaReceived, lambda event: deltas.append((event.delta.kind, event.delta.text)))
    await loop.execute("?")
    assert deltas == [("text", json.dumps(GOOD))]


async def test_a_loop_without_a_type_continues_in_text() -> None:
    """The output type of an earlier loop is not that of the conversation, also in a state that was stored."""
    typed = await AgentLoop.for_model(ScriptedInference('{"total": 3, "kind": "small"}'), output_type=Sum).execute(
        "1 + 2?"
    )
    model = ScriptedInference("Three.")
    loop = AgentLoop.for_model(model)
    assert await loop.run(from_json(to_json(typed), AgentState).with_message("In words?")) == "Three."
    assert model.requests[0].response_format is None


async def test_a_response_format_of_the_state_stays() -> None:
    """A loop without an output type leaves the format that the program has set, also after one with an output type."""
    typed = await AgentLoop.for_model(ScriptedInference('{"total": 3, "kind": "small"}'), output_type=Sum).execute(
        "1 + 2?"
    )
    mine = ResponseFormat({"type": "object"})
    state: AgentState = typed.with_response_format(mine)
    for question in ("As JSON?", "Once more?"):
        model = ScriptedInference('{"a": 1}')
        state = await AgentLoop.for_model(model).execute(state.with_message(question))
        assert model.requests[0].response_format == mine
        assert json.loads(state.final_text or "") == {"a": 1}
