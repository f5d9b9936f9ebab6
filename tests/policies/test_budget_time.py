"""Limits on time: they apply to the tool calls and inferences of an execution."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import count

import pytest

from agentloop import AgentLoop, AgentState, Budget, ScriptedInference, TimeLimit, ToolCallingDriver
from agentloop.contracts import CanIntercept
from agentloop.testing import Ledger, LoopClock, ManualClock, run_in_virtual_time, toy_call, toy_tools
from agentloop.values import ToolStatus
from tests.policies.budget_models import PersistentModel, create_loop, status_and_reason


def execute_timed(loop: AgentLoop) -> tuple[AgentState, float]:
    """Execute in virtual time; return the state and the seconds that passed."""

    async def run() -> tuple[AgentState, float]:
        state = await loop.execute("go")
        return state, asyncio.get_running_loop().time()

    return run_in_virtual_time(run())


def test_calls_are_cancelled_when_only_the_reserved_time_remains() -> None:
    """The other calls of the batch keep their outcomes, and time is left for the last answer."""
    model = PersistentModel(calls=lambda: [toy_call("echo", 1, seconds=2), toy_call("echo", 2, seconds=50)], seconds=1)
    state, seconds = execute_timed(create_loop(model, Budget(seconds=20)))
    assert status_and_reason(state) == ("stopped", "time_limit")
    statuses = [execution.status for execution in state.steps[0].executions]
    assert statuses == [ToolStatus.SUCCEEDED, ToolStatus.TIMED_OUT]
    assert state.steps[0].executions[1].may_have_run
    assert state.final_text == "what I found"
    assert seconds == pytest.approx(19)


def test_each_batch_has_the_time_that_remains_after_the_previous_ones() -> None:
    """The limit applies to the whole execution, not to each call."""
    numbers = count()
    model = PersistentModel(calls=lambda: [toy_call("echo", next(numbers), seconds=7)])
    state, seconds = execute_timed(create_loop(model, Budget(seconds=20)))
    statuses = [execution.status.value for step in state.steps for execution in step.executions]
    assert statuses == ["succeeded", "succeeded", "timed_out"]
    assert seconds == pytest.approx(18)


def test_without_a_last_answer_calls_have_all_the_time() -> None:
    """A budget without a reserve cancels calls at the limit, and the execution stops."""
    model = PersistentModel(calls=lambda: [toy_call("echo", 1, seconds=50)])
    state, seconds = execute_timed(create_loop(model, Budget(seconds=20, wrap_up=0)))
    assert (status_and_reason(state), state.step_count) == (("stopped", "time_limit"), 1)
    assert seconds == pytest.approx(20)


def test_a_call_may_use_the_last_moment() -> None:
    """A call that begins shortly before the limit runs."""
    calls = [toy_call("echo", 1, seconds=1.5), toy_call("echo", 2, seconds=0.25)]
    state, seconds = execute_timed(create_loop(ScriptedInference(*calls, "done"), Budget(seconds=2, wrap_up=0)))
    assert status_and_reason(state) == ("completed", "completed")
    assert seconds == pytest.approx(1.75)


def test_an_inference_is_cancelled_at_the_limit() -> None:
    """The execution stops at the limit even if the model has not answered, also during the last answer."""
    for seconds in (30.0, 0.5):
        model = PersistentModel(seconds=seconds)
        state, elapsed = execute_timed(create_loop(model, Budget(seconds=0.4)))
        assert status_and_reason(state) == ("stopped", "time_limit")
        assert elapsed == pytest.approx(0.4)
        assert state.step_count == 0


def test_no_call_starts_when_the_time_for_tools_is_over() -> None:
    """Calls for which the model has left no time are blocked."""
    ledger = Ledger()
    model = PersistentModel(seconds=9.5)
    state, seconds = execute_timed(create_loop(model, Budget(seconds=10), ledger=ledger))
    assert [execution.status for execution in state.steps[0].executions] == [ToolStatus.BLOCKED]
    assert not ledger.calls
    assert status_and_reason(state) == ("stopped", "time_limit")
    assert seconds == pytest.approx(10)


@pytest.mark.parametrize("limit", [TimeLimit(10), Budget(seconds=10, wrap_up=0)])
def test_no_call_starts_after_one_that_has_taken_all_the_time(limit: CanIntercept) -> None:
    """The running call ends as timed out, and the next one is blocked."""
    ledger, model = Ledger(), ScriptedInference([toy_call("alone", 1, seconds=50), toy_call("alone", 2)], "never")
    state, seconds = execute_timed(create_loop(model, limit, ledger=ledger))
    statuses = [execution.status for execution in state.steps[0].executions]
    assert statuses == [ToolStatus.TIMED_OUT, ToolStatus.BLOCKED]
    assert ledger.values == [1]
    assert status_and_reason(state) == ("stopped", "time_limit")
    assert seconds == pytest.approx(10)


class FastClock(ManualClock):
    """A clock that advances by two seconds each time it is read."""

    def now(self) -> object:  # type: ignore[override]  # a moment, as the clock it extends gives it
        self.advance(2)
        return super().now()


def test_time_is_read_from_the_clock_of_the_loop() -> None:
    """The limit takes effect by the loop's clock, not by the system's."""
    loop = AgentLoop(
        ToolCallingDriver(ScriptedInference(*[[toy_call("echo", n)] for n in range(50)])),
        toy_tools(Ledger()),
        interceptors=[Budget(seconds=60, wrap_up=0)],
        clock=FastClock(),
    )
    state = run_in_virtual_time(loop.execute("go"))
    assert status_and_reason(state) == ("stopped", "time_limit")
    assert 1 <= state.step_count < 20


def test_a_stored_state_keeps_its_start() -> None:
    """Time that passes while a state is stored counts."""

    async def run() -> AgentState:
        loop = create_loop(PersistentModel(), Budget(seconds=20))
        started = AgentState.start("go", clock=LoopClock()).with_execution_started("run", LoopClock().now())
        await asyncio.sleep(timedelta(minutes=1).total_seconds())
        return await loop.execute(started)

    state = run_in_virtual_time(run())
    assert (status_and_reason(state), state.step_count) == (("stopped", "time_limit"), 0)
