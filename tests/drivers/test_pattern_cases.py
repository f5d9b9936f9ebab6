"""The usual cases of the ReAct pattern, in every driver and mode."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import frozen

from agentloop import AgentLoop, AgentState, ReActDriver, StopReason, ToolCall, ToolCallingDriver, tool
from agentloop.contracts import CanUseTools
from agentloop.events import ValidationFailed
from agentloop.models import get_mode
from agentloop.testing import NOTATIONS, Scenario, ScriptedTurn
from agentloop.values import Event, ExecutionStatus, ToolStatus

RETRYING = frozenset({"structured", "validated", "react-json", "react-text"})
every_mode = pytest.mark.parametrize("mode", NOTATIONS)


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="pure")
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@tool(effect="pure")
def divide(a: int, b: int) -> float:
    """Divide a number by another."""
    return a / b


@frozen
class CaseResult:
    """The result of a case.

    Attributes:
        state: the final state.
        requests: the text of each request.
        rejections: the number of calls that the driver or the executor rejected.
        events: the names of the events.
    """

    state: AgentState
    requests: list[str]
    rejections: int
    events: list[str]

    @property
    def executions(self) -> list[tuple[str, str, Any]]:
        """The calls that ran: name, status and value."""
        executions = [execution for step in self.state.steps for execution in step.executions]
        return [
            (execution.name, execution.status, execution.value)
            for execution in executions
            if execution.status is not ToolStatus.REJECTED
        ]


def call_turn(name: str, **arguments: object) -> ScriptedTurn:
    """Return a turn that calls a tool."""
    return ScriptedTurn("I call.", (ToolCall("call_1", name, json.dumps(arguments)),))


async def run(mode: str, *turns: ScriptedTurn) -> CaseResult:
    """Run these turns of a model in the notation of a mode, with the driver of the mode."""
    model = Scenario(turns=turns).inference(NOTATIONS[mode])
    react: Any = {"react-json": "json", "react-text": "text"}.get(mode)
    driver: CanUseTools = ReActDriver(model, output=react) if react else ToolCallingDriver(model, mode=get_mode(mode))
    loop = AgentLoop(driver, [add, multiply, divide])
    events: list[Event] = []
    loop.wiretap(events.append)
    state = await loop.execute("What is it?")
    retried = sum(isinstance(event, ValidationFailed) for event in events)
    rejected = sum(execution.status is ToolStatus.REJECTED for step in state.steps for execution in step.executions)
    assert (rejected if mode in RETRYING else retried) == 0
    assert state.usage.requests == len(turns)
    requests = [_text_of(request.messages) for request in model.requests]
    return CaseResult(state, requests, retried + rejected, [type(event).__name__ for event in events])


def _text_of(messages: Any) -> str:
    """Return the texts of messages and of the results in them."""
    texts = [message.text for message in messages]
    return "\n".join([*texts, *[exchange.execution.text for message in messages for exchange in message.exchanges]])


def _is_completed(result: CaseResult, text: str) -> bool:
    signal = result.state.stop_signal
    return (
        result.state.final_text == text
        and result.state.status is ExecutionStatus.COMPLETED
        and signal is not None
        and signal.reason is StopReason.COMPLETED
    )


@every_mode
async def test_happy_path(mode: str) -> None:
    """The model calls a tool, reads the result and answers."""
    result = await run(mode, call_turn("add", a=1, b=2), ScriptedTurn("It is 3."))
    assert _is_completed(result, "It is 3.")
    assert (result.executions, result.rejections) == ([("add", "succeeded", 3)], 0)
    assert "3" in result.requests[1]


@every_mode
async def test_wrong_tool(mode: str) -> None:
    """The model calls an unsuitable tool first, and the right tool after reading the result."""
    result = await run(mode, call_turn("multiply", a=1, b=2), call_turn("add", a=1, b=2), ScriptedTurn("It is 3."))
    assert _is_completed(result, "It is 3.")
    assert (result.executions, result.rejections) == ([("multiply", "succeeded", 2), ("add", "succeeded", 3)], 0)
    assert result.state.step_count == 3


@every_mode
async def test_missing_argument(mode: str) -> None:
    """A call without a required argument does not run; the model reads which argument is missing, and calls again."""
    result = await run(mode, call_turn("add", a=1), call_turn("add", a=1, b=2), ScriptedTurn("It is 3."))
    assert _is_completed(result, "It is 3.")
    assert (result.executions, result.rejections) == ([("add", "succeeded", 3)], 1)
    assert "'b' is a required property" in result.requests[1]


@every_mode
async def test_tool_failure(mode: str) -> None:
    """The error of a tool is an observation; the model reads it and answers."""
    result = await run(mode, call_turn("divide", a=1, b=0), ScriptedTurn("It cannot be divided."))
    assert _is_completed(result, "It cannot be divided.")
    assert (result.executions, result.rejections) == ([("divide", "failed", None)], 0)
    assert "division by zero" in result.requests[1]


@every_mode
async def test_hallucinated_tool(mode: str) -> None:
    """A call of an unknown tool does not run; the model reads which tools there are, and calls one of them."""
    result = await run(mode, call_turn("sum_up", a=1, b=2), call_turn("add", a=1, b=2), ScriptedTurn("It is 3."))
    assert _is_completed(result, "It is 3.")
    assert (result.executions, result.rejections) == ([("add", "succeeded", 3)], 1)
    assert "sum_up" in result.requests[1]
    assert "multiply" in result.requests[1]


@every_mode
async def test_no_tool_needed(mode: str) -> None:
    """The model answers without calling a tool."""
    result = await run(mode, ScriptedTurn("Good morning."))
    assert _is_completed(result, "Good morning.")
    assert (result.executions, result.rejections, result.state.step_count) == ([], 0, 1)


@every_mode
async def test_each_inference_and_each_call_has_its_events(mode: str) -> None:
    """They are the same events in the same order."""
    result = await run(mode, call_turn("add", a=1, b=2), ScriptedTurn("It is 3."))
    inference, call = ["InferenceRequestStarted", "InferenceResponseReceived"], ["ToolCallStarted", "ToolCallCompleted"]
    assert [name for name in result.events if name in {*inference, *call}] == [*inference, *call, *inference]
