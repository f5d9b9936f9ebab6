"""Deadlines: the time of an execution reaches into its tools and inferences."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from agentloop import AgentLoop, AgentState, Budget, ScriptedInference, ToolCallingDriver
from agentloop.testing import Ledger, LoopClock, ManualClock, run_in_virtual_time, toy_call, toy_tools
from agentloop.values import ToolStatus
from tests.interception.budget_models import Tireless, loop_of, outcome


def timed(loop: AgentLoop) -> tuple[AgentState, float]:
    """Run in virtual time, and say how long it took."""

    async def run() -> tuple[AgentState, float]:
        state = await loop.execute("go")
        return state, asyncio.get_running_loop().time()

    return run_in_virtual_time(run())


def test_a_tool_runs_no_longer_than_the_time_that_is_left_for_tools() -> None:
    """Calls are cut off when only the reserve is left, their siblings are kept, and the last answer has its time."""
    model = Tireless(calls=lambda: [toy_call("echo", 1, seconds=2), toy_call("echo", 2, seconds=50)], seconds=1)
    state, seconds = timed(loop_of(model, Budget(seconds=20)))
    assert outcome(state) == ("stopped", "time_limit")
    assert [one.status for one in state.steps[0].executions] == [ToolStatus.SUCCEEDED, ToolStatus.TIMED_OUT]
    assert state.steps[0].executions[1].may_have_run
    assert state.final_text == "what I found"
    assert seconds == pytest.approx(19)


def test_each_batch_has_what_the_ones_before_it_have_left() -> None:
    """The time is one for the whole execution, not one for each call."""
    model = Tireless(calls=lambda: [toy_call("echo", 1, seconds=7)])
    state, seconds = timed(loop_of(model, Budget(seconds=20)))
    statuses = [one.status.value for step in state.steps for one in step.executions]
    assert statuses == ["succeeded", "succeeded", "timed_out"]
    assert seconds == pytest.approx(18)


def test_without_a_last_answer_calls_have_all_the_time() -> None:
    """A budget that keeps nothing back cuts calls off at the end, and stops there."""
    model = Tireless(calls=lambda: [toy_call("echo", 1, seconds=50)])
    state, seconds = timed(loop_of(model, Budget(seconds=20, wrap_up=0)))
    assert (outcome(state), state.step_count) == (("stopped", "time_limit"), 1)
    assert seconds == pytest.approx(20)


def test_an_inference_is_cut_off_at_the_end() -> None:
    """A model that does not answer in time does not hold the execution, be it asked for the last answer or not."""
    for seconds in (30.0, 0.5):
        model = Tireless(seconds=seconds)
        state, took = timed(loop_of(model, Budget(seconds=0.4)))
        assert outcome(state) == ("stopped", "time_limit")
        assert took == pytest.approx(0.4)
        assert state.step_count == 0


def test_no_call_begins_when_its_time_is_over() -> None:
    """A model that took the time that its calls would have needed gets them back as blocked; no effect has begun."""
    ledger = Ledger()
    model = Tireless(seconds=9.5)
    state, seconds = timed(loop_of(model, Budget(seconds=10), ledger=ledger))
    assert [one.status for one in state.steps[0].executions] == [ToolStatus.BLOCKED]
    assert not ledger.calls
    assert outcome(state) == ("stopped", "time_limit")
    assert seconds == pytest.approx(10)


class Hasty(ManualClock):
    """A clock on which two seconds pass each time that it is looked at."""

    def now(self) -> object:  # type: ignore[override]  # a moment, as the clock it extends gives it
        self.advance(2)
        return super().now()


def test_the_time_is_that_of_the_loop() -> None:
    """Whether time is left is asked of the clock that the loop was given, whatever the machine's says."""
    loop = AgentLoop(
        ToolCallingDriver(ScriptedInference(*[[toy_call("echo", n)] for n in range(50)])),
        toy_tools(Ledger()),
        interceptors=[Budget(seconds=60, wrap_up=0)],
        clock=Hasty(),
    )
    state = run_in_virtual_time(loop.execute("go"))
    assert outcome(state) == ("stopped", "time_limit")
    assert 1 <= state.step_count < 20


def test_a_stored_state_keeps_its_beginning() -> None:
    """Time that passed while a state was stored counts: the deadline is that of the execution."""

    async def run() -> AgentState:
        loop = loop_of(Tireless(), Budget(seconds=20))
        begun = AgentState.start("go", clock=LoopClock()).with_execution_started("one", LoopClock().now())
        await asyncio.sleep(timedelta(minutes=1).total_seconds())
        return await loop.execute(begun)

    state = run_in_virtual_time(run())
    assert (outcome(state), state.step_count) == (("stopped", "time_limit"), 0)
