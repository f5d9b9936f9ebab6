"""Single flight: of several calls that are the same, one runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, AgentState, ToolCall, ToolContext, ToolExecutor, tool
from agentloop.contracts import CanIntercept, CanJournal, ToolPolicy
from agentloop.errors import CallSuspended
from agentloop.events import ToolCallCompleted
from agentloop.events.resilience import ToolAttemptTimedOut, ToolCallDeduplicated
from agentloop.interception import AroundToolUse, ProceedToolUse, at
from agentloop.models import RunProgram
from agentloop.policies import (
    Deduplicate,
    ExactCalls,
    InFlight,
    Resilience,
    SimilarCalls,
    WithinSeconds,
    WithinSteps,
    any_caller,
)
from agentloop.testing import CrashableJournal, run_in_virtual_time
from agentloop.values import (
    CallPolicy,
    DeduplicatePolicy,
    Deduplicator,
    Effect,
    Reconciliation,
    RecordKind,
    SeenCall,
    ToolExecution,
    ToolStatus,
    approve,
    did_not_happen,
    thaw,
)
from tests.compilers.conversations import call_message, with_question, with_steps
from tests.policies.resilience.worker import Run, Worker, create_loop, fail_first, observe, run_loop, work


@given(st.integers(1, 60), st.integers(1, 5))
def test_any_number_of_equal_calls_at_once_run_once(calls: int, different: int) -> None:
    """Each different call runs once, all equal calls get its result, and each of them is an event."""
    worker = Worker(lambda run: [run.key, run.value], seconds=3)
    run = run_loop(worker, [Deduplicate()], [work(n % different) for n in range(calls)])
    assert len(worker.runs) == min(calls, different)
    assert [thaw(outcome.value)[1] for outcome in run.outcomes] == [n % different for n in range(calls)]
    assert run.seconds == 3
    for event in run.events_of(ToolCallDeduplicated):
        (outcome,) = [outcome for outcome in run.outcomes if outcome.key == event.key]
        assert thaw(outcome.value)[0] == event.original
    assert len(run.events_of(ToolCallDeduplicated)) == calls - len(worker.runs)


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 9), st.booleans()), min_size=1, max_size=15))
def test_results_are_never_shared_with_other_arguments_and_errors_never(calls: list[tuple[int, float, bool]]) -> None:
    """Whenever calls arrive and whichever fail, a result is of equal arguments, and an error is that of the call itself."""

    async def arrive(point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        await asyncio.sleep(thaw(point.arguments)["value"]["at"])
        return await proceed()

    def behavior(run: Run) -> Any:
        if run.value["fails"]:
            raise ConnectionError(run.key)
        return run.value["what"]

    def is_alike(call: SeenCall, earlier: SeenCall) -> bool:
        return bool(thaw(call.arguments)["value"]["what"] == thaw(earlier.arguments)["value"]["what"])

    worker = Worker(behavior, seconds=2)
    arguments = [{"what": what, "at": at, "fails": fails} for what, at, fails in calls]
    run = run_loop(worker, [at("around_tool_use", arrive), Deduplicate(is_alike)], [work(value) for value in arguments])
    for value, outcome in zip(arguments, run.outcomes, strict=True):
        assert outcome.value == value["what"] if outcome.succeeded else outcome.error_message == outcome.key
    successes = [attempt.value["what"] for attempt in worker.runs if not attempt.value["fails"]]
    assert len(successes) == len(set(successes))


def test_when_the_first_fails_the_next_runs() -> None:
    """Of three equal calls the first fails; the second runs, and the third gets its result."""
    worker = Worker(lambda run: fail_first(1)(Run(run.key, run.value, run.at, len(worker.runs))), seconds=1)
    run = run_loop(worker, [Deduplicate()], [work(1)] * 3)
    assert run.statuses == ["failed", "succeeded", "succeeded"]
    assert len(worker.runs) == 2
    assert run.seconds == 2


def test_calls_with_an_effect_are_deduplicated_only_on_request() -> None:
    """By default, three equal calls of a tool with an effect run three times; with `effects=True` once."""
    worker = Worker(declared_effect=Effect.EFFECT)
    run_loop(worker, [Deduplicate()], [work(1)] * 3)
    assert len(worker.runs) == 3
    run_loop(worker, [Deduplicate(effects=True)], [work(1)] * 3)
    assert len(worker.runs) == 4


def test_duplicates_of_an_effect_in_doubt_do_not_run() -> None:
    """When the call that ran timed out and may have had its effect, its duplicates fail instead of running."""
    worker = Worker(declared_effect=Effect.EFFECT, seconds=9, declared_policy=ToolPolicy(timeout=1))
    run = run_loop(worker, [Deduplicate(effects=True)], [work(1)] * 2)
    assert len(worker.runs) == 1
    assert run.statuses == ["timed_out", "failed"]
    assert all(outcome.may_have_run for outcome in run.outcomes)
    assert "may have run" in run.outcomes[1].error_message


@pytest.mark.parametrize(
    ("by", "runs"),
    [
        (InFlight(), [1, 2, 1, 1]),
        (ExactCalls(), [1, 2]),
        (WithinSeconds(10), [1, 2, 1]),
        (WithinSeconds(9), [1, 2, 1, 1]),
        (WithinSteps(2), [1, 2, 1]),
        (WithinSteps(1), [1, 2, 1, 1]),
        (WithinSteps(2, inner=WithinSeconds(9)), [1, 2, 1, 1]),
        (SimilarCalls(lambda call, earlier: call.name == earlier.name), [1]),
    ],
    ids=["in flight", "exact", "10 s", "9 s", "2 steps", "1 step", "2 steps or 9 s", "similar"],
)
def test_windows_of_time_and_of_steps(by: Deduplicator, runs: list[int]) -> None:
    """Of calls at 0, 0, 10 and 25 seconds, in steps 1, 1, 3 and 5, of which the second differs, each deduplicator runs some."""
    worker, waiter = Worker(), Worker(tool_name="wait", declared_effect=Effect.EFFECT, seconds=10)
    more = Worker(tool_name="more", declared_effect=Effect.EFFECT, seconds=15)
    turns = [[work(1), work(2)], [work(0, "wait")], [work(1)], [work(0, "more")], [work(1)]]
    run = run_loop([worker, waiter, more], [Deduplicate(by)], *turns)
    assert [attempt.value for attempt in worker.runs] == runs
    assert all(outcome.succeeded for outcome in run.outcomes)


def test_executions_share_results_only_on_request() -> None:
    """Concurrent executions share the result of a call only with `across_executions`, and only for one caller."""

    def count_runs(layer: Deduplicate, *agents: str) -> int:
        worker = Worker(seconds=5)
        loop = create_loop(worker, [layer], [work(1)])

        async def together() -> None:
            await asyncio.gather(
                *[observe(create_loop(worker, [layer], [work(1)]), agent=agent) for agent in agents], observe(loop)
            )

        run_in_virtual_time(together())
        return len(worker.runs)

    assert count_runs(Deduplicate(), "agent", "agent") == 3
    assert count_runs(Deduplicate(across_executions=True), "agent", "agent") == 1
    assert count_runs(Deduplicate(across_executions=True), "ada", "bob") == 3
    assert count_runs(Deduplicate(across_executions=True, caller=any_caller), "ada", "bob") == 1


def test_when_the_running_call_is_cancelled_another_one_runs() -> None:
    """Cancelling the execution whose call runs does not cancel the executions that wait for it."""
    worker = Worker(seconds=5)
    layer = Deduplicate(across_executions=True)

    async def cancel_first() -> list[Any]:
        runs = [asyncio.create_task(observe(create_loop(worker, [layer], [work(1)]))) for _ in range(3)]
        await asyncio.sleep(2)
        runs[0].cancel()
        return await asyncio.gather(*runs, return_exceptions=True)

    first, second, third = run_in_virtual_time(cancel_first())
    assert isinstance(first, asyncio.CancelledError)
    assert second.statuses == third.statuses == ["succeeded"]
    assert [attempt.at for attempt in worker.runs] == [0, 2]


def test_an_effect_whose_execution_was_cancelled_is_not_repeated() -> None:
    """When the execution whose call ran is cancelled, the duplicates in other executions fail, because it may have run."""
    worker = Worker(declared_effect=Effect.EFFECT, seconds=5)
    layer = Deduplicate(across_executions=True, effects=True)

    async def cancel_first() -> list[Any]:
        runs = [asyncio.create_task(observe(create_loop(worker, [layer], [work(1)]))) for _ in range(2)]
        await asyncio.sleep(2)
        runs[0].cancel()
        return await asyncio.gather(*runs, return_exceptions=True)

    _, second = run_in_virtual_time(cancel_first())
    assert second.statuses == ["failed"]
    assert second.outcomes[0].may_have_run
    assert len(worker.runs) == 1


def test_a_nested_call_does_not_wait_for_the_call_that_contains_it() -> None:
    """A tool that starts an execution which makes the same call again ends."""
    layer = Deduplicate(across_executions=True)
    inner = Worker(lambda run: run.value)

    class Nested(Worker):
        async def use(self, *_: Any, value: Any = None) -> Any:
            run = await observe(create_loop(inner, [layer], [work(value)]))
            return run.outcomes[0].value

        def with_tool_context(self, context: Any) -> Nested:
            return self

    assert run_loop(Nested(), [layer], [work(1)]).outcomes[0].value == 1
    assert len(inner.runs) == 1


def test_the_number_of_remembered_calls_is_limited() -> None:
    """The oldest calls that have ended are forgotten first."""
    worker = Worker()
    run_loop(worker, [Deduplicate(ExactCalls(), max_remembered=2)], *[[work(n)] for n in (1, 2, 3, 3, 2, 1)])
    assert [attempt.value for attempt in worker.runs] == [1, 2, 3, 1]


def test_a_thousand_calls_are_remembered_unless_told_otherwise() -> None:
    """After one more, the first is forgotten, and the second is not."""
    worker = Worker()
    turns = [[work(n) for n in range(first, first + 91)] for first in range(0, 1_001, 91)]
    run_loop(worker, [Deduplicate(ExactCalls())], *turns, [work(1), work(0)])
    assert [attempt.value for attempt in worker.runs] == [*range(1_001), 0]


@pytest.mark.parametrize(("steps", "runs"), [(1, 1), (2, 2)])
async def test_a_call_whose_key_has_no_step_is_of_the_next_one(steps: int, runs: int) -> None:
    """It is one step further than the last of the state, as the windows of steps count."""
    keys: list[str] = []
    layer = Deduplicate(WithinSteps(1))
    first = with_question(AgentState.start(), "go")
    later = with_steps(first, *[call_message("work", None)] * steps)
    for state, key in [(first, "run-1/1/0"), (later, "elsewhere")]:
        point = AroundToolUse(state, work(1), Worker().spec, key, key, datetime.now(UTC))

        async def proceed(point: AroundToolUse = point) -> ToolExecution:
            keys.append(point.key)
            return point.succeed(1)

        await layer.around_tool_use(point, proceed)
    assert keys == ["run-1/1/0", "elsewhere"][:runs]


def test_calls_that_cannot_be_reused_are_forgotten() -> None:
    """With `InFlight`, a layer remembers no call that has ended."""
    layer = Deduplicate(across_executions=True)

    async def remembered_counts() -> list[int]:
        await observe(create_loop(Worker(), [layer], [work(1), work(1)], [work(2)]))
        return [len(seen_calls) for seen_calls in layer._calls_of_loops.values()]

    assert run_in_virtual_time(remembered_counts()) == [0]


@pytest.mark.parametrize("at_once", [1, None])
@pytest.mark.parametrize("seconds", [0, 1])
def test_equal_calls_of_one_answer_run_once(at_once: int | None, seconds: float) -> None:
    """Whether a duplicate runs depends neither on the time of the tool nor on how many calls run at once."""
    worker = Worker(seconds=seconds)
    loop = create_loop(worker, [Deduplicate()], [work(1), work(2), work(1)], [work(1)])
    run = run_in_virtual_time(observe(loop.replace(executor=ToolExecutor(max_concurrency=at_once))))
    assert [attempt.value for attempt in worker.runs] == [1, 2, 1]
    assert run.statuses == ["succeeded"] * 4


@pytest.mark.parametrize(
    ("by", "runs"), [(ExactCalls(), [1]), (WithinSteps(2), [1]), (WithinSteps(1), [1, 1]), (InFlight(), [1, 1])]
)
def test_calls_before_a_suspension_are_remembered_after_it(by: Deduplicator, runs: list[int]) -> None:
    """Of equal calls in the first and the third step the second one is a duplicate, if it is one without the suspension."""
    worker, asking = Worker(), Worker(tool_name="ask")
    suspend = at("before_tool_use", lambda point: point.suspend("may I?") if point.call.name == "ask" else point)
    loop = create_loop([worker, asking], [Deduplicate(by), suspend], [work(1)], [work(0, "ask")], [work(1)])

    async def execute_and_resume() -> AgentState:
        suspended = await loop.execute("go")
        return await loop.resume(suspended, {call.key: approve() for call in suspended.pending})

    state = run_in_virtual_time(execute_and_resume())
    assert [execution.succeeded for step in state.steps for execution in step.executions] == [True] * 3
    assert [attempt.value for attempt in worker.runs] == runs


@pytest.mark.parametrize(
    "programs",
    [["await work(value=1)", "await ask(value=0)"], ["await work(value=1)\nawait ask(value=0)\nawait work(value=1)"]],
    ids=["before", "suspended"],
)
def test_calls_of_programs_before_a_suspension_are_remembered_after_it(programs: list[str]) -> None:
    """As those of the model are: in an earlier step, and in the program that was suspended."""
    worker, asking = Worker(), Worker(tool_name="ask")
    suspend = at("before_tool_use", lambda point: point.suspend("may I?") if point.call.name == "ask" else point)
    calls = [[ToolCall(code, "run_program", json.dumps({"code": code}))] for code in programs]
    loop = create_loop([worker, asking, RunProgram()], [Deduplicate(ExactCalls()), suspend], *calls, [work(1)])

    async def execute_and_resume() -> AgentState:
        suspended = await loop.execute("go")
        waiting = [call.key for call in suspended.pending if not call.waits_for]
        return await loop.resume(suspended, {key: approve() for key in waiting})

    state = run_in_virtual_time(execute_and_resume())
    assert [execution.succeeded for step in state.steps for execution in step.executions] == [True] * (
        len(programs) + 1
    )
    assert [attempt.value for attempt in worker.runs] == [1]


@pytest.mark.parametrize("across", [False, True])
def test_equal_calls_of_one_answer_run_once_however_fast_they_are(*, across: bool) -> None:
    """Those of a later answer run, and nothing is remembered after the end of the execution."""
    worker = Worker(declared_effect=Effect.EFFECT, declared_policy=ToolPolicy(repeatable=True))
    layer = Deduplicate(effects=True, across_executions=across)
    loop = create_loop(worker, [layer], [work(1), work(2), work(1)], [work(1), work(1)])
    run = run_in_virtual_time(observe(loop.replace(executor=ToolExecutor(max_concurrency=1))))
    assert [attempt.key for attempt in worker.runs] == [run.outcomes[index].key for index in (0, 1, 3)]
    assert all(len(calls) == 0 for calls in layer._calls_of_loops.values())


def run_suspended(worker: Worker, layers: Sequence[CanIntercept], seconds: float, *turns: list[ToolCall]) -> AgentState:
    """Run a call, suspend the execution for some seconds, resume it, and run further calls."""
    asking = Worker(tool_name="ask")
    suspend = at("before_tool_use", lambda point: point.suspend("may I?") if point.call.name == "ask" else point)
    loop = create_loop(
        [worker, asking, Worker(tool_name="wait", seconds=5)],
        [*layers, suspend],
        [work(1)],
        [work(0, "ask")],
        *turns,
    )

    async def execute_and_resume() -> AgentState:
        suspended = await loop.execute("go")
        await asyncio.sleep(seconds)
        return await loop.resume(suspended, {call.key: approve() for call in suspended.pending})

    return run_in_virtual_time(execute_and_resume())


@pytest.mark.parametrize(("seconds", "runs"), [(0, [1, 2]), (5, [1, 2]), (6, [1, 1, 2]), (1_000, [1, 1, 2])])
def test_a_suspension_counts_to_the_age_of_a_call(seconds: float, runs: list[int]) -> None:
    """A result is shared for ten seconds after its call has ended: during the suspension and the five after it."""
    worker = Worker(seconds=3)
    run_suspended(worker, [Deduplicate(WithinSeconds(10))], seconds, [work(0, "wait")], [work(1), work(2)])
    assert [attempt.value for attempt in worker.runs] == runs


@pytest.mark.parametrize("by", [InFlight(), WithinSeconds(10), ExactCalls()])
@pytest.mark.parametrize("seconds", [0, 1_000])
def test_a_call_in_doubt_before_a_suspension_is_in_doubt_after_it(by: Deduplicator, seconds: float) -> None:
    """However long ago it was: its duplicate fails instead of running, another call runs."""
    worker = Worker(
        seconds=lambda run: 9 if run.value == 1 else 0,
        declared_effect=Effect.EFFECT,
        declared_policy=ToolPolicy(timeout=1),
    )
    state = run_suspended(worker, [Deduplicate(by, effects=True)], seconds, [work(1), work(2)])
    assert [execution.status.value for execution in state.steps[0].executions] == ["timed_out"]
    assert [execution.status.value for execution in state.steps[2].executions] == ["failed", "succeeded"]
    assert [attempt.value for attempt in worker.runs] == [1, 2]


def test_what_an_inner_layer_called_in_doubt_before_a_suspension_is_in_doubt_after_it() -> None:
    """Also if the tool itself has not begun: the layer may have called it elsewhere."""
    asked: list[str] = []

    async def lose(point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        asked.append(point.key)
        return point.fail("connection lost", status=ToolStatus.IN_DOUBT)

    layers = [Deduplicate(effects=True), at("around_tool_use", lose, priority=-2_000)]
    state = run_suspended(Worker(declared_effect=Effect.EFFECT), layers, 1, [work(1)])
    assert "may have run" in state.steps[2].executions[0].error_message
    assert asked.count(state.steps[0].executions[0].key) == 1
    assert state.steps[2].executions[0].key not in asked


@pytest.mark.parametrize("by", [InFlight(), WithinSeconds(1_000), ExactCalls()])
@pytest.mark.parametrize("across", [False, True])
def test_equal_calls_of_an_interrupted_step_run_once(by: Deduplicator, *, across: bool) -> None:
    """Whenever the process died: a duplicate gets the result that was recorded, and fails if the call is in doubt."""

    def loop_of(worker: Worker, journal: CanJournal) -> AgentLoop:
        layer = Deduplicate(by, effects=True, across_executions=across)
        other = Worker(tool_name="other", seconds=3)
        return create_loop([worker, other], [layer], [work(1), work(0, "other"), work(1)]).replace(journal=journal)

    async def crash_everywhere() -> None:
        journal, worker = CrashableJournal(), Worker(seconds=1, declared_effect=Effect.EFFECT)
        await loop_of(worker, journal).execute("go", execution_id="run")
        bodies = [record.body for record in journal.appended]
        for count in range(1, len(bodies)):
            again = evolve(worker, runs=[])
            state = await loop_of(again, await journal.after_crash(count)).recover("run")
            has_begun = any('"run/1/0"' in body for body in bodies[:count])
            assert len(again.runs) + has_begun == 1, count
            first, _, duplicate = state.steps[0].executions
            # A record of the duplicate may have been cut in two.
            assert duplicate.succeeded is first.succeeded or duplicate.status is ToolStatus.IN_DOUBT
            assert first.succeeded or duplicate.may_have_run

    run_in_virtual_time(crash_everywhere())


def test_an_interrupted_call_that_did_not_happen_runs_again() -> None:
    """Its record is in the way of other calls alone: nobody knows what it did until its tool has been asked."""
    runs: list[str] = []

    async def ask(value: int) -> Reconciliation:
        return did_not_happen()

    @tool(reconcile=ask)
    async def pay(value: int, context: ToolContext) -> str:
        """Pay."""
        runs.append(context.idempotency_key)
        return "paid"

    calls = [work(1, "pay"), work(1, "pay"), work(2, "pay")]

    async def crash() -> AgentState:
        loop, journal = create_loop(pay, [Deduplicate(effects=True)], calls), CrashableJournal()
        await loop.replace(journal=journal).execute("go", execution_id="run")
        count = 1 + [record.kind for record in journal.appended].index(RecordKind.CALL_INTENT)
        runs.clear()
        loop = create_loop(pay, [Deduplicate(effects=True)], calls)
        return await loop.replace(journal=await journal.after_crash(count)).recover("run")

    state = run_in_virtual_time(crash())
    assert runs == ["run/1/0", "run/1/2"]
    first, duplicate, other = state.steps[0].executions
    assert (first.value, other.value) == ("paid", "paid")
    assert duplicate.value == "paid" or duplicate.may_have_run


def test_a_call_that_its_tool_has_suspended_is_resumed_and_is_in_doubt_for_others() -> None:
    """Nobody else knows whether it will still have its effect; the call itself goes on."""

    def ask_first(run: Run) -> Any:
        if run.attempt == 1:
            raise CallSuspended("which one?")
        return run.value

    worker = Worker(ask_first, declared_effect=Effect.EFFECT)
    loop = create_loop(worker, [Deduplicate(across_executions=True, effects=True)], [work(1)])

    async def execute_and_resume() -> list[ToolExecution]:
        suspended = await loop.execute(AgentState.start("go", agent_id="agent"))
        (other,) = (await observe(loop)).outcomes
        state = await loop.resume(suspended, {call.key: approve() for call in suspended.pending})
        return [*state.steps[0].executions, other]

    resumed, other = run_in_virtual_time(execute_and_resume())
    assert resumed.value == 1
    assert (other.status, other.may_have_run) == (ToolStatus.FAILED, True)
    assert len(worker.runs) == 2


@pytest.mark.parametrize(("status", "may_have_run"), [("failed", True), ("in_doubt", False)])
def test_what_an_inner_layer_says_about_an_effect_counts(status: str, may_have_run: bool) -> None:  # noqa: FBT001  # columns
    """A call of which an interceptor returns that it may have run, or is in doubt, has no duplicate that runs."""
    asked: list[str] = []

    async def lose(point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        asked.append(point.key)
        return evolve(point.fail("connection lost", status=ToolStatus(status)), may_have_run=may_have_run)

    inner = at("around_tool_use", lose, priority=-2_000)
    run = run_loop(Worker(declared_effect=Effect.EFFECT), [Deduplicate(effects=True), inner], [work(1)] * 2)
    assert len(asked) == 1
    assert run.statuses == [status, "failed"]
    assert "may have run" in run.outcomes[1].error_message


@pytest.mark.parametrize(
    ("effect", "status", "may_have_run"),
    [
        (Effect.EFFECT, "failed", False),
        (Effect.EFFECT, "blocked", False),
        (Effect.EFFECT, "cancelled", False),
        (Effect.IDEMPOTENT, "failed", True),
        (Effect.IDEMPOTENT, "in_doubt", True),
        (Effect.PURE, "timed_out", True),
    ],
)
def test_a_duplicate_of_a_call_that_did_no_harm_runs(effect: Effect, status: str, may_have_run: bool) -> None:  # noqa: FBT001  # a column
    """After a call that did not succeed the next one runs, if the first has not run or the tool may be repeated."""
    asked: list[str] = []

    async def lose_first(point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        asked.append(point.key)
        if len(asked) > 1:
            return await proceed()
        return evolve(point.fail("not now", status=ToolStatus(status)), may_have_run=may_have_run)

    inner = at("around_tool_use", lose_first, priority=-2_000)
    worker = Worker(declared_effect=effect)
    run = run_loop(worker, [Deduplicate(effects=True), inner], [work(1)] * 3)
    assert run.statuses == [status, "succeeded", "succeeded"]
    assert len(worker.runs) == 1


def test_calls_of_earlier_steps_are_not_compared_again_and_again() -> None:
    """With `InFlight`, the number of comparisons does not grow with the number of steps before (law 20)."""
    compared: list[int] = []

    class Counted(InFlight):
        def is_same(self, call: SeenCall, earlier: SeenCall) -> bool:
            compared.append(call.step - earlier.step)
            return super().is_same(call, earlier)

    run_loop(worker := Worker(), [Deduplicate(Counted())], *[[work(1)]] * 20)
    assert len(worker.runs) == 20
    assert len(compared) < 20


def test_how_calls_end_is_reported_in_call_order() -> None:
    """What ends a call before an earlier one is reported after the event of the earlier one, and right before its own."""
    slow = Worker(tool_name="slow", seconds=9)
    hasty = Worker(tool_name="hasty", seconds=9, declared_policy=ToolPolicy(timeout=1))
    run = run_loop(
        [slow, hasty, Worker()], [Resilience(retry=None)], [work(1, "slow"), work(2, "hasty"), work(3), work(3)]
    )
    events = run.events_of(ToolAttemptTimedOut, ToolCallDeduplicated, ToolCallCompleted)
    assert [type(event).__name__ for event in events] == [
        "ToolCallCompleted",
        "ToolAttemptTimedOut",
        "ToolCallCompleted",
        "ToolCallCompleted",
        "ToolCallDeduplicated",
        "ToolCallCompleted",
    ]


def test_an_invalid_deduplicator_is_refused() -> None:
    """The error names the valid types."""
    wrong: Any = "exact"
    with pytest.raises(TypeError, match="function of two calls"):
        Deduplicate(wrong)


# --- what a tool declares -------------------------------------------------------------------------------------------


def values_that_ran(declared: Any) -> list[int]:
    """Return which of the calls at 0, 0, 10 and 25 seconds, in steps 1, 1, 3 and 5, ran; the second differs."""
    worker = Worker(declared_policy=ToolPolicy(deduplicate=declared))
    waiter = Worker(tool_name="wait", declared_effect=Effect.EFFECT, seconds=10)
    more = Worker(tool_name="more", declared_effect=Effect.EFFECT, seconds=15)
    turns = [[work(1), work(2)], [work(0, "wait")], [work(1)], [work(0, "more")], [work(1)]]
    run_loop([worker, waiter, more], [Resilience()], *turns)
    return [attempt.value for attempt in worker.runs]


@pytest.mark.parametrize(
    ("declared", "runs"),
    [
        (None, [1, 2, 1, 1]),
        (DeduplicatePolicy(), [1, 2, 1, 1]),
        ("exact", [1, 2]),
        (DeduplicatePolicy(10), [1, 2, 1]),
        (DeduplicatePolicy(9), [1, 2, 1, 1]),
        (DeduplicatePolicy(steps=2), [1, 2, 1]),
        (DeduplicatePolicy(9, 2), [1, 2, 1, 1]),
        (DeduplicatePolicy(by=ExactCalls()), [1, 2]),
        (DeduplicatePolicy(by=lambda call, earlier: call.name == earlier.name), [1]),
        (DeduplicatePolicy(10, by=lambda call, earlier: call.name == earlier.name), [1, 1]),
    ],
    ids=[
        "nothing",
        "in flight",
        "exact",
        "10 s",
        "9 s",
        "2 steps",
        "2 steps and 9 s",
        "by exact",
        "by name",
        "10 s by name",
    ],
)
def test_a_tool_declares_which_of_its_calls_are_the_same(declared: Any, runs: list[int]) -> None:
    """Each form of the policy has the effect of the corresponding deduplicator."""
    assert values_that_ran(declared) == runs


def test_a_tool_with_an_effect_is_deduplicated_if_it_declares_it() -> None:
    """Another tool with an effect in the same step runs each of its calls."""
    declaring = Worker(
        declared_effect=Effect.EFFECT, declared_policy=ToolPolicy(deduplicate=DeduplicatePolicy()), seconds=1
    )
    silent = Worker(tool_name="pay", declared_effect=Effect.EFFECT)
    run = run_loop([declaring, silent], [Resilience()], [work(1), work(1), work(1, "pay"), work(1, "pay")])
    assert (len(declaring.runs), len(silent.runs)) == (1, 2)
    assert [outcome.value for outcome in run.outcomes] == [1] * 4
    assert len(run.events_of(ToolCallDeduplicated)) == 1


def test_an_effect_that_declares_deduplication_is_still_not_repeatable() -> None:
    """Duplicates of a call in doubt do not run, even though the tool declares deduplication."""
    worker = Worker(
        declared_effect=Effect.EFFECT, seconds=9, declared_policy=ToolPolicy(timeout=1, deduplicate="exact")
    )
    run = run_loop(worker, [Resilience()], [work(1)] * 2)
    assert len(worker.runs) == 1
    assert run.statuses == ["timed_out", "failed"]


def test_the_declaration_of_a_tool_takes_precedence_over_the_layer() -> None:
    """A layer that remembers every call in every execution remembers less for a tool that declares less."""
    less, silent = Worker(declared_policy=ToolPolicy(deduplicate=DeduplicatePolicy())), Worker(tool_name="silent")
    layer = Deduplicate(ExactCalls(), across_executions=True)

    async def twice() -> None:
        for _ in range(2):
            await observe(
                create_loop([less, silent], [layer], [work(1), work(1, "silent")], [work(1), work(1, "silent")])
            )

    run_in_virtual_time(twice())
    assert (len(less.runs), len(silent.runs)) == (4, 1)


@pytest.mark.parametrize(("across", "runs"), [(True, 1), (False, 2)])
def test_a_tool_declares_deduplication_across_executions(across: bool, runs: int) -> None:  # noqa: FBT001  # a row of the table
    """Of two executions with one stack, the second gets the result of the first only if the tool declares it."""
    worker = Worker(declared_policy=ToolPolicy(deduplicate=DeduplicatePolicy(60, across_executions=across)))
    stack = Resilience()

    async def twice() -> list[list[str]]:
        return [(await observe(create_loop(worker, [stack], [work(1)]))).statuses for _ in range(2)]

    assert run_in_virtual_time(twice()) == [["succeeded"]] * 2
    assert len(worker.runs) == runs


def test_a_policy_can_be_set_by_the_name_of_a_tool() -> None:
    """`Resilience(tools=…)` sets the policy of tools that declare none."""
    worker = Worker(declared_effect=Effect.EFFECT)
    run_loop(worker, [Resilience(tools={"wo*": CallPolicy(deduplicate="exact")})], [work(1)], [work(1)], [work(2)])
    assert [attempt.value for attempt in worker.runs] == [1, 2]


def test_the_decorator_sets_the_policy() -> None:
    """`@tool(deduplicate=…)` is part of the tool's policy."""

    @tool(deduplicate="exact")
    def find(what: str) -> str:
        """Find a thing by its name."""
        return what

    assert find.policy.deduplicate == DeduplicatePolicy(float("inf"))


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: CallPolicy(deduplicate="exactly"), "a DeduplicatePolicy or 'exact', not 'exactly'"),  # type: ignore[arg-type]  # the mistake under test
        (
            lambda: DeduplicatePolicy(by="name"),  # type: ignore[arg-type]  # the same
            "a Deduplicator, a function of two calls, 'principal' or 'tenant', not 'name'",
        ),
        (lambda: DeduplicatePolicy(-1), ">= 0"),
        (lambda: DeduplicatePolicy(steps=-1), ">= 0"),
    ],
    ids=["word", "by", "seconds", "steps"],
)
def test_an_invalid_policy_is_refused(create: Any, message: str) -> None:
    """The error names the valid values."""
    with pytest.raises((TypeError, ValueError), match=message):
        create()
