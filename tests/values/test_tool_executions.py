"""Batches of calls and their outcomes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from agentloop.errors import ContractViolation, ToolError
from agentloop.values.batches import ToolCalls, ToolExecutions, parse_key
from agentloop.values.decisions import Approve, Deny, PendingCall
from agentloop.values.interruptions import BatchFailed, BatchInterrupted
from agentloop.values.messages import Message
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution, ToolStatus

NOW = datetime(2024, 1, 1, tzinfo=UTC)
CALLS = (ToolCall("1", "a"), ToolCall("1", "b"))


def state_in_execution() -> AgentState:
    """Return a state with the execution `run` in progress."""
    return AgentState.start("hello").with_execution_started("run", NOW)


def execution(status: ToolStatus, name: str = "a") -> ToolExecution:
    """Return an execution with this status."""
    error = None if status is ToolStatus.SUCCEEDED else ErrorInfo("ToolFailed", f"{name} is broken")
    call = ToolCall("1", name)
    return ToolExecution(id=name, key=name, call=call, status=status, error=error, started_at=NOW, ended_at=NOW)


def test_keys_follow_from_the_position_in_the_next_step() -> None:
    """The key of a call names its execution, its step and its place, whatever id the provider gave."""
    state = state_in_execution()
    assert ToolCalls.of(CALLS, state).keys == ("run/1/0", "run/1/1")
    step = AgentStep(id="s", number=1, message=Message.assistant("x"), started_at=NOW, ended_at=NOW)
    assert ToolCalls.of(CALLS, state.with_step(step)).keys == ("run/2/0", "run/2/1")


def test_a_batch_is_its_calls_in_order() -> None:
    """A batch has a length and can be iterated."""
    batch = ToolCalls.of(list(CALLS), state_in_execution())
    assert len(batch) == 2
    assert tuple(batch) == batch.calls == CALLS
    assert len(ToolCalls.of([], state_in_execution())) == 0


def test_every_call_of_a_batch_has_a_key() -> None:
    """A batch with a missing key is refused."""
    with pytest.raises(ContractViolation, match="2 calls need as many keys, there are 1"):
        ToolCalls(CALLS, ("x",))


def test_the_arguments_of_a_batch_are_copied() -> None:
    """Lists and dicts become immutable, so a batch can be hashed."""
    calls, keys, decisions = list(CALLS), ["x", "y"], {"x": Approve()}
    batch: Any = ToolCalls(calls, keys, decisions)
    same = hash(batch)
    calls.clear()
    keys.clear()
    decisions["y"] = Approve("z")
    assert batch == ToolCalls(CALLS, ("x", "y"), {"x": Approve()})
    assert hash(batch) == same
    with pytest.raises(TypeError, match="immutable"):
        batch.decisions["y"] = Deny()


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("run/1/0", (1, 0)),
        ("a/b/c/12/3", (12, 3)),
        ("/1/0", (1, 0)),
        ("run/1", None),
        ("run", None),
        ("", None),
        ("run/x/0", None),
        ("run/1/-1", None),
        ("run/1/", None),
        ("run/1/²", None),
    ],
)
def test_a_key_contains_its_step_and_index(key: str, place: tuple[int, int] | None) -> None:
    """Step and index are parsed from the end; keys of another form give None."""
    assert parse_key(key) == place


def test_outcomes_have_a_length_an_order_and_failures() -> None:
    """Failures are all that did not succeed, in order."""
    good, bad, blocked = execution(ToolStatus.SUCCEEDED), execution(ToolStatus.FAILED), execution(ToolStatus.BLOCKED)
    outcome = ToolExecutions((good, bad, blocked), (PendingCall("k", CALLS[0]),), state_in_execution())
    assert len(outcome) == 3
    assert list(outcome) == [good, bad, blocked]
    assert outcome.failures == (bad, blocked)


def test_with_state_replaces_only_the_state() -> None:
    """The outcome is equal, and the state is replaced in a copy."""
    state, other = state_in_execution(), state_in_execution().with_message("more")
    outcome = ToolExecutions((), (), state)
    changed = outcome.with_state(other)
    assert (changed.executions, changed.pending, changed.state) == ((), (), other)
    assert outcome.state is state


def test_a_failed_batch_carries_all_of_its_outcomes() -> None:
    """The error names the call that failed and contains every execution."""
    failed = execution(ToolStatus.TIMED_OUT, "slow")
    outcome = ToolExecutions((execution(ToolStatus.SUCCEEDED), failed), (), state_in_execution())
    cause = BatchFailed(failed)
    error = BatchInterrupted(outcome, cause)
    assert str(cause) == "the tool 'slow' timed_out: slow is broken"
    assert str(error) == "BatchFailed: the tool 'slow' timed_out: slow is broken"
    assert error.executions is outcome
    assert error.cause is cause
    assert isinstance(cause, ToolError)
