"""The account of an execution that people read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings

from agentloop.values.decisions import PendingCall
from agentloop.values.inference import Usage
from agentloop.values.messages import Message
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep, ExecutionStatus, SuspendedTurn
from agentloop.values.stop import StopReason, StopSignal
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution, ToolStatus
from tests.generated import examples
from tests.strategies import agent_states

NOW = datetime(2024, 1, 1, tzinfo=UTC)


def step(number: int, **fields: Any) -> AgentStep:
    """Return a step of two seconds."""
    times = {"started_at": NOW, "ended_at": NOW + timedelta(seconds=2)}
    return AgentStep(**{"id": "s", "number": number, "usage": Usage(600, 20, 0, 0, 0, 1), **times, **fields})


def outcome(call: ToolCall, status: ToolStatus, **fields: Any) -> ToolExecution:
    """Return an execution of a quarter of a second."""
    times = {"started_at": NOW, "ended_at": NOW + timedelta(milliseconds=250)}
    return ToolExecution(**{"id": "e", "key": "k", "call": call, "status": status, **times, **fields})


def test_an_account_lists_the_steps_of_an_execution() -> None:
    """It has the status and reason, the totals, each step with its calls and their outcomes, and the answer."""
    weather = ToolCall("1", "weather", '{"city": "Paris"}')
    failing = ToolCall("2", "rates", "{}")
    executions = [
        outcome(weather, ToolStatus.SUCCEEDED, value={"degrees": 21}),
        outcome(failing, ToolStatus.FAILED, error=ErrorInfo("ToolFailed", "no\nnetwork")),
    ]
    state = (
        AgentState.start("How warm is it?")
        .with_execution_started("run", NOW)
        .with_step(step(1, message=Message.of_response([weather, failing], executions), model="some-model"))
        .with_step(step(2, message=Message.assistant("It is\n21 degrees.")))
        .with_stop_signal(StopSignal(StopReason.COMPLETED, "the model has answered", "driver"))
        .with_status(ExecutionStatus.COMPLETED, NOW + timedelta(seconds=4))
    )
    assert state.explain().splitlines() == [
        "execution run: completed: completed (by driver), the model has answered",
        "  2 steps, 2 tool calls, 1,240 tokens, 4.0 s",
        "  step 1: tool execution [some-model]",
        '    weather(city="Paris") succeeded in 250 ms: {"degrees":21}',
        "    rates() failed in 250 ms: ToolFailed: no network",
        "  step 2: final response",
        r"    'It is\n21 degrees.'",
    ]


def test_an_account_lists_pending_calls_and_errors() -> None:
    """A suspended and a failed step read as such."""
    call = ToolCall("1", "pay", '{"amount":\n5}')
    waits = step(1, open_turn=SuspendedTurn([call], [PendingCall("k", call, "more than\n4")]), usage=Usage())
    state = AgentState.start("Pay.").with_execution_started("run", NOW).with_step(waits)
    failed = state.with_step(step(2, errors=[ErrorInfo("RateLimited", "slow\ndown")]))
    assert failed.explain().splitlines() == [
        "execution run: in_progress",
        "  2 steps, 1 tool call, unknown tokens",
        "  step 1: tool execution",
        "    pay(amount=5) waits: more than 4",
        "  step 2: error",
        "    error RateLimited: slow down",
    ]


def test_before_the_first_execution_there_is_no_account() -> None:
    """Without an execution, the account says that there is none yet."""
    assert AgentState.start("hello").explain() == "no execution yet"


def test_long_lines_are_cut_with_a_sign() -> None:
    """A megabyte of result does not hide the rest."""
    call = ToolCall("1", "read")
    execution = outcome(call, ToolStatus.SUCCEEDED, value="x" * 1_000_000)
    state = AgentState.start("Read.").with_execution_started("run", NOW)
    line = state.with_step(step(1, message=Message.of_response([call], [execution]))).explain().splitlines()[-1]
    assert len(line) <= 120
    assert line.endswith("x…")


@settings(max_examples=examples(20))
@given(agent_states())
def test_every_state_can_be_explained(state: AgentState) -> None:
    """An account has a line for each step, and for each call and error in it, and stays readable."""
    lines = state.explain().splitlines()
    if state.execution is None:
        assert lines == ["no execution yet"]
        return
    extra = [
        sum([1 + len(execution.inner) for execution in item.executions])
        + len(item.pending)
        + len(item.errors)
        + bool(item.message and item.message.text)
        for item in state.steps
    ]
    assert len(lines) == 2 + len(state.steps) + sum(extra)
    assert all(len(line) <= 400 for line in lines)
