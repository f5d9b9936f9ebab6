"""The cases of the pattern of thought, action and observation, under every driver and mode."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import frozen

from agentloop import AgentLoop, AgentState, CanUseTools, ReActDriver, StopReason, ToolCall, ToolCallingDriver, tool
from agentloop.events import ValidationFailed
from agentloop.modes import get_mode
from agentloop.testing import NOTATIONS, Scenario, ScriptedTurn
from agentloop.values import Event, ExecutionStatus, ToolStatus

ASKING_AGAIN = frozenset({"structured", "validated", "react-json", "react-text"})
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
class Told:
    """What came of a case.

    Attributes:
        state: the final state.
        requests: what the model was asked, as texts of messages.
        refused: how many calls were refused, by the driver or by the executor.
    """

    state: AgentState
    requests: list[str]
    refused: int

    @property
    def ran(self) -> list[tuple[str, str, Any]]:
        """The calls that ran, each with how it ended and what it returned."""
        executions = [one for step in self.state.steps for one in step.executions]
        return [(one.name, one.status, one.value) for one in executions if one.status is not ToolStatus.REJECTED]


def calling(name: str, **arguments: object) -> ScriptedTurn:
    """Make a turn that calls a tool."""
    return ScriptedTurn("I call.", (ToolCall("call_1", name, json.dumps(arguments)),))


async def run(mode: str, *turns: ScriptedTurn) -> Told:
    """Have a model decide these turns, in the notation of a mode, under the driver of the mode."""
    model = Scenario(turns=turns).inference(NOTATIONS[mode])
    react: Any = {"react-json": "json", "react-text": "text"}.get(mode)
    driver: CanUseTools = ReActDriver(model, output=react) if react else ToolCallingDriver(model, mode=get_mode(mode))
    loop = AgentLoop(driver, [add, multiply, divide])
    events: list[Event] = []
    loop.wiretap(events.append)
    state = await loop.execute("What is it?")
    told = sum(isinstance(event, ValidationFailed) for event in events)
    rejected = sum(one.status is ToolStatus.REJECTED for step in state.steps for one in step.executions)
    assert (told if mode not in ASKING_AGAIN else rejected) == 0
    assert state.usage.requests == len(turns)
    return Told(state, [_shown(request.messages) for request in model.requests], told + rejected)


def _shown(messages: Any) -> str:
    """Return all that a request shows of results."""
    texts = [message.text for message in messages]
    return "\n".join([*texts, *[one.execution.text for message in messages for one in message.exchanges]])


def _ended_well(told: Told, text: str) -> bool:
    signal = told.state.stop_signal
    return (
        told.state.final_text == text
        and told.state.status is ExecutionStatus.COMPLETED
        and signal is not None
        and signal.reason is StopReason.COMPLETED
    )


@every_mode
async def test_happy_path(mode: str) -> None:
    """One tool is called, its result is seen, and the answer is given."""
    told = await run(mode, calling("add", a=1, b=2), ScriptedTurn("It is 3."))
    assert _ended_well(told, "It is 3.")
    assert (told.ran, told.refused) == ([("add", "succeeded", 3)], 0)
    assert "3" in told.requests[1]


@every_mode
async def test_wrong_tool(mode: str) -> None:
    """A tool that does not fit is called first; its result leads to the one that does."""
    told = await run(mode, calling("multiply", a=1, b=2), calling("add", a=1, b=2), ScriptedTurn("It is 3."))
    assert _ended_well(told, "It is 3.")
    assert (told.ran, told.refused) == ([("multiply", "succeeded", 2), ("add", "succeeded", 3)], 0)
    assert told.state.step_count == 3


@every_mode
async def test_missing_argument(mode: str) -> None:
    """A call without a required argument never runs; the model is told which one is missing, and calls again."""
    told = await run(mode, calling("add", a=1), calling("add", a=1, b=2), ScriptedTurn("It is 3."))
    assert _ended_well(told, "It is 3.")
    assert (told.ran, told.refused) == ([("add", "succeeded", 3)], 1)
    assert "'b' is a required property" in told.requests[1]


@every_mode
async def test_tool_failure(mode: str) -> None:
    """A tool that raises is an observation; the model reads it and answers."""
    told = await run(mode, calling("divide", a=1, b=0), ScriptedTurn("It cannot be divided."))
    assert _ended_well(told, "It cannot be divided.")
    assert (told.ran, told.refused) == ([("divide", "failed", None)], 0)
    assert "division by zero" in told.requests[1]


@every_mode
async def test_hallucinated_tool(mode: str) -> None:
    """A tool that does not exist never runs; the model is told those that do, and calls one."""
    told = await run(mode, calling("sum_up", a=1, b=2), calling("add", a=1, b=2), ScriptedTurn("It is 3."))
    assert _ended_well(told, "It is 3.")
    assert (told.ran, told.refused) == ([("add", "succeeded", 3)], 1)
    assert "sum_up" in told.requests[1]
    assert "multiply" in told.requests[1]


@every_mode
async def test_no_tool_needed(mode: str) -> None:
    """The model answers at once, although tools are on offer."""
    told = await run(mode, ScriptedTurn("Good morning."))
    assert _ended_well(told, "Good morning.")
    assert (told.ran, told.refused, told.state.step_count) == ([], 0, 1)
