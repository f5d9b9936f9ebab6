"""The state of one execution: steps, totals, status and continuation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import reduce

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ContractViolation
from agentloop.values.inference import Usage
from agentloop.values.serialization import to_json
from agentloop.values.steps import NO_TOTALS, AgentStep, ExecutionState, ExecutionStatus, Totals
from agentloop.values.stop import Continuation
from tests.strategies import agent_steps, continuations, usages

NOW = datetime(2024, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


def state_with(*steps: AgentStep) -> ExecutionState:
    """Return an execution in progress with these steps."""
    state = ExecutionState(id="run", status=ExecutionStatus.IN_PROGRESS, started_at=NOW)
    return reduce(ExecutionState.with_step, steps, state)


def totals_of(steps: list[AgentStep]) -> Totals:
    """Return the sums over the steps."""
    usage = sum([step.usage for step in steps], Usage.none())
    calls = [call for step in steps for execution in step.executions for call in (execution, *execution.inner)]
    return Totals(usage, len(calls) + sum(len(step.pending) for step in steps))


@given(st.lists(agent_steps(), max_size=4))
def test_totals_are_running_sums(steps: list[AgentStep]) -> None:
    """After any number of steps, the totals are the sums over the steps."""
    state = state_with(*steps)
    assert state.steps == tuple(steps)
    assert state.totals == (totals_of(steps) if steps else NO_TOTALS)


@given(st.lists(agent_steps(), min_size=1, max_size=3), usages())
def test_replacing_the_last_step_keeps_the_sums_right(steps: list[AgentStep], usage: Usage) -> None:
    """The usage is the sum over the current steps, and calls stay counted."""
    before = state_with(*steps)
    last = evolve(steps[-1], usage=usage, model="another")
    after = before.with_last_step(last)
    assert after.steps == (*steps[:-1], last)
    assert after.totals == totals_of([*steps[:-1], last])
    assert before.steps == tuple(steps)


def test_the_last_step_cannot_be_replaced_before_the_first() -> None:
    """The error is a ContractViolation, not an IndexError."""
    step = AgentStep(id="s", number=1, started_at=NOW, ended_at=NOW)
    with pytest.raises(ContractViolation, match="no step yet"):
        state_with().with_last_step(step)


@pytest.mark.parametrize("status", ExecutionStatus)
def test_an_execution_has_ended_when_its_status_is_terminal(status: ExecutionStatus) -> None:
    """Completed, stopped and failed are terminal; suspended is not."""
    state = state_with().with_status(status, LATER)
    terminal = status in {ExecutionStatus.COMPLETED, ExecutionStatus.STOPPED, ExecutionStatus.FAILED}
    assert status.is_terminal is terminal
    assert state.status is status
    assert state.ended_at == (LATER if terminal else None)


def test_an_execution_that_continues_has_no_end_time() -> None:
    """A status that is not terminal removes the end time."""
    ended = state_with().with_status(ExecutionStatus.STOPPED, NOW)
    assert ended.with_status(ExecutionStatus.IN_PROGRESS, LATER).ended_at is None


@given(agent_steps(), continuations())
def test_transitions_do_not_change_their_execution(step: AgentStep, continuation: Continuation) -> None:
    """Each transition returns a new value and leaves the original unchanged."""
    state = state_with(step)
    before = to_json(state)
    assert state.with_continuation(continuation).continuation == continuation
    state.with_step(step)
    state.with_last_step(step)
    state.with_status(ExecutionStatus.FAILED, LATER)
    assert to_json(state) == before


@given(st.lists(agent_steps(), min_size=1, max_size=3), usages(), usages())
def test_tokens_between_the_steps_are_counted_and_stay_counted(
    steps: list[AgentStep], outside_steps: Usage, usage: Usage
) -> None:
    """The usage of an inference outside of any step is in the sum, also when a step is replaced (law 6)."""
    state = state_with(*steps[:-1]).with_usage(outside_steps).with_step(steps[-1])
    assert state.totals.beside == Usage.none() + outside_steps
    assert state.totals.usage == sum([step.usage for step in steps], Usage.none()) + outside_steps
    last = evolve(steps[-1], usage=usage, model="another")
    assert (
        state.with_last_step(last).totals.usage
        == sum([s.usage for s in [*steps[:-1], last]], Usage.none()) + outside_steps
    )
