"""Calls that a tool makes itself: their places, their outcomes, and what happens when the tool runs again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import pytest

from agentloop import AgentLoop, AgentState, AgentStop, Interceptor, ScriptedInference, Tool, ToolCall, tool
from agentloop.contracts.tool import CanCallTools, CanContinueCall, InnerCalls, ToolPolicy
from agentloop.durable import MemoryJournal
from agentloop.errors import CallSuspended
from agentloop.events import AbandonedToolCallEnded, ToolCallAbandoned
from agentloop.interception import AroundToolUse, BeforeToolUse, ProceedToolUse, at
from agentloop.testing import CrashableJournal, ExecutorBench, Ledger, run_in_virtual_time, toy_call, toy_tools
from agentloop.testing.executor_bench import started_state
from agentloop.values import ExecutionStatus, RecordKind, ToolCalls, ToolExecution, ToolStatus, approve, deny
from tests.durable.recovery_bench import Model

Batches = Sequence[Sequence[ToolCall]]


class Script(Tool, CanCallTools, CanContinueCall):
    """A tool that makes batches of calls, and returns their values or raises at the end.

    Args:
        batches: returns the calls that it makes in one run.
        error: what it raises after them.
    """

    name = "script"
    description = "Call other tools."
    parameters: Mapping[str, Any] = {"type": "object"}  # as a user writes it
    continues_calls = True

    def __init__(
        self, batches: Callable[[], Batches], *, error: Exception | None = None, inner: InnerCalls | None = None
    ) -> None:
        self.batches = batches
        self.error = error
        self.inner = inner

    def with_inner_calls(self, inner: InnerCalls) -> Self:
        return type(self)(self.batches, error=self.error, inner=inner)

    async def use(self, *_: Any, **__: Any) -> list[Any]:
        assert self.inner is not None
        values = [execution.value for batch in self.batches() for execution in await self.inner.execute(batch)]
        self.inner.check_complete()
        if self.error is not None:
            raise self.error
        return values


class Placed(Interceptor):
    """Notes how many calls come before each call."""

    def __init__(self) -> None:
        self.places: dict[str, int | None] = {}

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        self.places[point.key] = point.preceding
        return point


CALL = ToolCall("", "script", "{}")


def echoes(*values: int) -> list[ToolCall]:
    return [toy_call("echo", value) for value in values]


def test_inner_calls_are_inside_the_outcome_in_order() -> None:
    """Each has a key below that of the outer call, which is its id as well, and a place among all calls of the step."""
    placed, ledger = Placed(), Ledger()
    script = Script(lambda: [echoes(1, 2), [toy_call("alone", 3)]])
    bench = ExecutorBench([*toy_tools(ledger), script], interceptors=[placed])
    done = run_in_virtual_time(bench.run(*echoes(0), CALL, *echoes(4)))
    outer = done.executions[1]
    assert outer.value == (1, 2, 3)
    keys = [f"run/1/1/program/{number}" for number in range(3)]
    assert [(inner.key, inner.id, inner.value) for inner in outer.inner] == [
        (key, key, number) for number, key in enumerate(keys, 1)
    ]
    assert len({execution.id for execution in done} - {execution.key for execution in done}) == 3
    assert list(placed.places.values()) == [0, 1, 2, 3, 4, 5]
    assert ledger.values == [0, 1, 2, 3, 4]


def test_a_repeated_tool_does_not_make_its_calls_again() -> None:
    """Each attempt counts its calls from the first one on, and gets the outcomes of the attempt before."""

    class Repeating(Interceptor):
        repeats_effects = True

        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            if point.call.name == "script":
                assert (await proceed()).value == (1, 2)
            return await proceed()

    ledger, script = Ledger(), Script(lambda: [echoes(1), echoes(2)])
    bench = ExecutorBench([*toy_tools(ledger), script], interceptors=[Repeating()])
    (outer,) = run_in_virtual_time(bench.run(CALL))
    assert (outer.value, len(outer.inner)) == ((1, 2), 2)
    assert ledger.values == [1, 2]


@pytest.mark.parametrize(
    ("calls", "may_have_run"),
    [
        ([toy_call("echo", 1)], True),
        ([toy_call("fail", 1)], True),
        ([toy_call("echo", "invalid"), toy_call("echo", 1)], True),
        ([toy_call("echo", "invalid")], False),
        ([], False),
    ],
)
def test_a_tool_may_have_had_the_effects_of_its_calls(calls: list[ToolCall], *, may_have_run: bool) -> None:
    """If it fails, an effect can be excluded only if none of its calls has run."""
    script = Script(lambda: [calls], error=OSError("broken"))
    (outer,) = run_in_virtual_time(ExecutorBench([*toy_tools(Ledger()), script]).run(CALL))
    assert (outer.status, outer.may_have_run) == (ToolStatus.FAILED, may_have_run)


class StopAt(Interceptor):
    """Stops the execution before a value."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        if point.arguments.get("value") == 2:
            raise AgentStop("enough")
        return point


def test_a_tool_ends_by_its_timeout_although_one_of_its_calls_does_not() -> None:
    """The call that ignores its cancellation is left behind in time for the tool to end, which is not left behind itself."""

    @tool
    async def stubborn() -> None:
        """Ignore the cancellation."""
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(100)

    class Limited(Script):
        policy = ToolPolicy(timeout=2)

    bench = ExecutorBench([stubborn, Limited(lambda: [[ToolCall("", "stubborn")]])])

    async def run() -> ToolExecution:
        (outer,) = await bench.run(CALL)
        await asyncio.sleep(200)
        return outer

    outer = run_in_virtual_time(run())
    assert [(call.status, call.may_have_run) for call in (outer, *outer.inner)] == [
        (ToolStatus.TIMED_OUT, True),
        (ToolStatus.CANCELLED, True),
    ]
    kinds = (ToolCallAbandoned, AbandonedToolCallEnded)
    assert [event.key for event in bench.events if isinstance(event, kinds)] == ["run/1/0/program/0"] * 2


def test_a_tool_that_makes_more_than_ten_thousand_calls_is_in_doubt() -> None:
    """The batch with the call that is one too many does not run."""
    ledger = Ledger()
    script = Script(lambda: [[toy_call("echo", 1)] * 10_001])
    (outer,) = run_in_virtual_time(ExecutorBench([*toy_tools(ledger), script]).run(CALL))
    assert outer.status is ToolStatus.IN_DOUBT
    assert "'script' makes more than 10,000 calls" in outer.error_message
    assert (outer.inner, ledger.values) == ((), [])


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    ("second", "interceptors", "message"),
    [(toy_call("stop", 2), [], "the toy stops at 2"), (toy_call("echo", 2), [StopAt()], "enough")],
)
def test_no_call_is_made_after_one_that_stops_the_execution(
    second: ToolCall, interceptors: list[Interceptor], message: str, *, before: bool
) -> None:
    """The tool ends with it, whether the call asked for the stop or an interceptor did, and also if one before asked for the same."""
    ledger, script = Ledger(), Script(lambda: [echoes(1), [second], echoes(3)])
    bench = ExecutorBench([*toy_tools(ledger), script], interceptors=interceptors)
    done = run_in_virtual_time(bench.run(*[second] * before, CALL))
    outer = done.executions[-1]
    assert outer.status is ToolStatus.CANCELLED
    assert f"not completed, because the execution stops: {message}" in outer.error_message
    assert 3 not in ledger.values
    assert done.state.stop_signal is not None


class Suspending(Interceptor):
    """Suspends calls with a value above 1, until they are approved."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        value = point.arguments.get("value", 0)
        must_wait = isinstance(value, int) and value > 1 and point.decision is None
        return point.suspend("above one") if must_wait else point


def suspended(ledger: Ledger, script: Script) -> tuple[AgentLoop, AgentState]:
    """Return a loop, and the state in which calls of the script wait."""
    loop = AgentLoop.for_model(
        ScriptedInference([CALL], "done"), tools=[*toy_tools(ledger), script], interceptors=[Suspending()]
    )
    state = loop.execute_sync("go", execution_id="run")
    assert state.status is ExecutionStatus.SUSPENDED
    return loop, state


@pytest.mark.parametrize(
    ("values", "reason"),
    [((2,), "1 call of 'script' waits for a decision"), ((2, 3), "2 calls of 'script' wait for a decision")],
)
def test_a_tool_waits_for_the_decisions_about_its_calls(values: tuple[int, ...], reason: str) -> None:
    """Calls that have run do not run again when it resumes."""
    ledger, script = Ledger(), Script(lambda: [echoes(1), echoes(1, *values)])
    loop, state = suspended(ledger, script)
    (outer,) = [call for call in state.pending if call.key == "run/1/0"]
    assert outer.reason == reason
    assert ledger.values == [1, 1]
    done = loop.resume_sync(state, {f"run/1/0/program/{2 + place}": approve() for place in range(len(values))})
    (execution,) = done.steps[0].executions
    assert execution.value == (1, 1, *values)
    assert ledger.values == [1, 1, *values]


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ([echoes(1), echoes(9)], "its call number 1 is one of 'echo', and was another call, of 'echo'"),
        ([echoes(9), echoes(2)], "its call number 0 is one of 'echo', and was another call, of 'echo'"),
        ([echoes(1)], "it ends after 1 calls, and had made more"),
    ],
)
def test_a_resumed_tool_that_makes_other_calls_is_in_doubt(then: Batches, message: str) -> None:
    """Calls that ran before, and those that wait, are the same in the same order; nothing else runs."""
    ledger, batches = Ledger(), [[echoes(1), echoes(2)], then]
    loop, state = suspended(ledger, Script(lambda: batches.pop(0)))
    done = loop.resume_sync(state, {"run/1/0/program/1": approve()})
    (outer,) = done.steps[0].executions
    assert outer.status is ToolStatus.IN_DOUBT
    assert message in outer.error_message
    assert ledger.values == [1]


def test_a_call_whose_suspension_the_tool_has_ignored_waits_again() -> None:
    """It is not taken for the call that the tool waits for, and does not run without a decision."""

    runs: list[int] = []

    class Ignoring(Script):
        async def use(self, *_: Any, **__: Any) -> list[Any]:
            assert self.inner is not None
            runs.append(len(runs))
            first, second = self.batches()
            with contextlib.suppress(*[CallSuspended] * (len(runs) == 1)):
                await self.inner.execute(first)
            await self.inner.execute(second)
            return []

    ledger = Ledger()
    loop, state = suspended(ledger, Ignoring(lambda: [echoes(2), echoes(3)]))
    assert [call.key for call in state.pending if not call.waits_for] == ["run/1/0/program/1"]
    again = loop.resume_sync(state, {"run/1/0/program/1": approve()})
    assert [call.key for call in again.pending if not call.waits_for] == ["run/1/0/program/0"]
    assert ledger.values == []


def test_a_denied_tool_keeps_the_calls_that_it_made() -> None:
    """Those that have run are in its outcome with their values, and those that wait are closed."""
    ledger, script = Ledger(), Script(lambda: [echoes(1), [toy_call("defer", 1)]])
    bench = ExecutorBench([*toy_tools(ledger), script])
    (pending,) = run_in_virtual_time(bench.run(CALL)).pending
    batch = ToolCalls((CALL,), (pending.key,), {pending.key: deny("no more")}, begun={pending.key: pending})
    (outer,) = run_in_virtual_time(bench.run_batch(batch, started_state("agent", "run")))
    assert outer.status is ToolStatus.BLOCKED
    assert [(call.key, call.status, call.value) for call in outer.inner] == [
        ("run/1/0/program/0", ToolStatus.SUCCEEDED, 1),
        ("run/1/0/program/1", ToolStatus.CANCELLED, None),
    ]


# --- after an interruption --------------------------------------------------------------------------------------------


SECRET = "s3cr3t-token-9"


class MaskingJournal(CrashableJournal):
    """A journal with a declared secret."""

    def __init__(self) -> None:
        MemoryJournal.__init__(self, secrets=[SECRET])
        self.appended = []


def told(word: str) -> ToolCall:
    return ToolCall("", "tell").with_arguments({"word": word})


async def recovered(
    first: Batches,
    then: Batches,
    journal: CrashableJournal,
    *,
    outcomes: int,
    interceptors: Sequence[Interceptor] = (),
) -> tuple[ToolExecution, list[str]]:
    """Interrupt a tool after some of its calls have ended; return its outcome after the recovery, and what ran then."""
    ran: list[str] = []

    @tool
    async def tell(word: str) -> str:
        """Tell."""
        ran.append(word)
        return f"told {len(word)}"

    def loop_for(batches: Batches, journal: MemoryJournal) -> AgentLoop:
        model, tools = Model([("script", {})], "done"), [tell, Script(lambda: batches)]
        return AgentLoop.for_model(model, tools=tools, journal=journal, interceptors=interceptors)

    await loop_for(first, journal).execute("go", execution_id="run")
    places = [at for at, record in enumerate(journal.appended, 1) if record.kind is RecordKind.CALL_OUTCOME]
    ran.clear()
    loop = loop_for(then, await journal.after_crash(places[outcomes - 1]))
    state = await loop.recover("run", in_doubt="tell")
    return state.steps[0].executions[0], ran


async def test_a_recovered_tool_makes_only_the_calls_that_are_not_recorded() -> None:
    """The outcomes of the others are reused."""
    batches = [[told("one")], [told("two")]]
    outer, ran = await recovered(batches, batches, CrashableJournal(), outcomes=1)
    assert (outer.value, ran) == (("told 3", "told 3"), ["two"])


class Shouting(Interceptor):
    """Changes what is told."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        word = point.arguments.get("word")
        return point if word is None else point.with_arguments({"word": f"{word}!"})


async def test_a_recovered_call_that_an_interceptor_had_changed_is_the_same_call() -> None:
    """The tool makes it as before, and gets the outcome of the call that ran in its place."""
    batches, journal = [[told("one")], [told("two")]], CrashableJournal()
    outer, ran = await recovered(batches, batches, journal, outcomes=1, interceptors=[Shouting()])
    assert (outer.status, outer.value, ran) == (ToolStatus.SUCCEEDED, ("told 4", "told 4"), ["two!"])


async def test_a_recovered_call_with_a_masked_argument_is_the_same_call() -> None:
    """The record holds a mask in place of the secret, with which the tool makes the call again."""
    batches = [[told(f"{SECRET}!")], [told("two")]]
    outer, ran = await recovered(batches, batches, MaskingJournal(), outcomes=1)
    assert (outer.status, outer.value, ran) == (ToolStatus.SUCCEEDED, ("told 15", "told 3"), ["two"])


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ([[told("other")], [told("two")]], "its call number 0 is one of 'tell', and was another call, of 'tell'"),
        ([], "it ends after 0 calls, and had made more"),
    ],
)
@pytest.mark.parametrize("journal", [CrashableJournal, MaskingJournal])
async def test_a_recovered_tool_that_makes_other_calls_is_in_doubt(
    then: Batches, message: str, journal: type[CrashableJournal]
) -> None:
    """What it did before the interruption is in its outcome, and nothing else runs."""
    outer, ran = await recovered([[told("one")], [told("two")]], then, journal(), outcomes=1)
    assert outer.status is ToolStatus.IN_DOUBT
    assert message in outer.error_message
    assert [(call.key, call.value) for call in outer.inner] == [("run/1/0/program/0", "told 3")]
    assert ran == []


async def test_a_tool_with_a_masked_argument_makes_no_calls_again() -> None:
    """It would make other ones than before; its call is in doubt, wherever its records end."""
    ran: list[int] = []

    def insert(point: BeforeToolUse) -> BeforeToolUse:
        return point.with_arguments({"key": SECRET}) if point.call.name == "script" else point

    @tool
    async def pay(n: int) -> None:
        """Pay."""
        ran.append(n)

    def loop_for(journal: MemoryJournal) -> AgentLoop:
        script = Script(lambda: [[ToolCall("", "pay", f'{{"n": {n}}}')] for n in range(2)])
        model = Model([("script", {})], "done")
        return AgentLoop.for_model(
            model, tools=[script, pay], journal=journal, interceptors=[at("before_tool_use", insert)]
        )

    journal = MaskingJournal()
    await loop_for(journal).execute("go", execution_id="run")
    kinds = [record.kind for record in journal.appended]
    assert ran == [0, 1]
    for count in range(kinds.index(RecordKind.CALL_INTENT) + 1, kinds.index(RecordKind.STEP_COMPLETED) - 1):
        state = await loop_for(await journal.after_crash(count)).recover("run")
        (execution,) = state.steps[0].executions
        assert (execution.status, execution.may_have_run) == (ToolStatus.IN_DOUBT, True)
        assert len(execution.inner) == kinds[:count].count(RecordKind.CALL_INTENT) - 1
    assert ran == [0, 1]
