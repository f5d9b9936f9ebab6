"""Calls under a journal: when their ends are recorded, and what interceptors and policies make of recovered ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
from attrs import evolve

from agentloop import AgentLoop, AgentState, AgentStop, Interceptor, ToolContext, tool
from agentloop.contracts.can_journal import Claim
from agentloop.durable import MemoryJournal
from agentloop.errors import ClaimLost, JournalError, ToolUnavailable
from agentloop.events import (
    AgentStepCompleted,
    EventBus,
    ProtocolMonitor,
    ToolCallCompleted,
    ToolCallIntentKept,
    ToolCallProgressed,
    ToolCallRecovered,
)
from agentloop.interception import AfterToolUse, AroundToolUse, BeforeToolUse, ProceedToolUse, at
from agentloop.testing import CrashableJournal, run_in_virtual_time
from agentloop.values import (
    ExecutionHead,
    ExecutionStatus,
    JournalRecord,
    RecordKind,
    ToolExecution,
    ToolStatus,
    cannot_tell,
    did_not_happen,
    happened,
)
from agentloop.values.decisions import Suspend
from agentloop.values.records import Reconciliation
from tests.durable.recovery_bench import Model

PAY = [("pay", {"n": 1})]
Effects = Literal["pure", "idempotent", "effect"]


async def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


def loop_for(journal: MemoryJournal, *tools: Any, **parts: Any) -> AgentLoop:
    """Return a loop that makes one call of `pay`."""
    return AgentLoop.for_model(Model(PAY, "done"), tools=tools or [pay], journal=journal, **parts)


async def interrupted(kind: RecordKind, *tools: Any) -> CrashableJournal:
    """Return the journal of an execution that ended after the first record of this kind."""
    journal = CrashableJournal()
    await loop_for(journal, *tools).execute("go", execution_id="run")
    return await journal.after_crash(place_of(journal, kind))


def place_of(journal: CrashableJournal, kind: RecordKind) -> int:
    """Return the number of records up to the first one of this kind."""
    return next(place for place, record in enumerate(journal.appended, 1) if record.kind is kind)


def keys_of(records: Sequence[JournalRecord]) -> list[str]:
    """Return the keys of the calls whose ends are recorded."""
    return [json.loads(record.body)["execution"]["key"] for record in records if record.kind is RecordKind.CALL_OUTCOME]


def test_the_end_of_a_call_is_recorded_when_it_comes() -> None:
    """It does not wait for the calls before it, which are settled first: a crash would lose it."""
    journal, seen = MemoryJournal(), list[str]()

    @tool
    async def slow() -> None:
        """Look at the journal after five seconds."""
        await asyncio.sleep(5)
        seen.extend(keys_of(await journal.read("run")))

    @tool
    async def fast() -> None:
        """End at once."""

    async def run() -> AgentState:
        model = Model([("slow", {}), ("fast", {})], "done")
        return await AgentLoop.for_model(model, tools=[slow, fast], journal=journal).execute("go", execution_id="run")

    run_in_virtual_time(run())
    assert seen == ["run/1/1"]


class FullOnce(MemoryJournal):
    """A journal that cannot take the first outcome of a call."""

    is_full = True

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        if self.is_full and any(record.kind is RecordKind.CALL_OUTCOME for record in records):
            self.is_full = False
            raise JournalError("the disk is full")
        await super().append(head, records, claim)


@pytest.mark.parametrize("count", [1, 3])
async def test_after_an_outcome_that_cannot_be_recorded_nothing_more_runs(count: int) -> None:
    """No other tool begins, the model is not asked again, and the execution ends with the error of the journal."""
    ran: list[int] = []

    @tool(name="pay", sequential=True)
    async def pay_alone(n: int) -> None:
        """Pay."""
        ran.append(n)

    model, completed = Model([("pay", {"n": n}) for n in range(count)], "done"), list[AgentStepCompleted]()
    loop = AgentLoop.for_model(model, tools=[pay_alone], journal=FullOnce())
    loop.on(AgentStepCompleted, completed.append)
    with pytest.raises(JournalError, match="the disk is full"):
        await loop.execute("go", execution_id="run")
    assert (ran, model.asked, completed) == ([0], 1, [])


def test_a_call_does_not_run_if_it_is_settled_while_its_start_is_recorded() -> None:
    """An interceptor that does not wait for `proceed` may settle the call in the meantime."""
    ran: list[int] = []
    late: list[asyncio.Task[ToolExecution]] = []

    class SlowJournal(MemoryJournal):
        async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
            if any(record.kind is RecordKind.CALL_INTENT for record in records):
                await asyncio.sleep(5)
            await super().append(head, records, claim)

    class Impatient(Interceptor):
        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            late.append(asyncio.ensure_future(proceed()))
            await asyncio.sleep(1)
            return point.succeed("in the meantime")

    @tool(name="pay")
    async def count(n: int) -> None:
        """Pay."""
        ran.append(n)

    async def run() -> AgentState:
        state = await loop_for(SlowJournal(), count, interceptors=[Impatient()]).execute("go")
        await asyncio.wait(late)
        return state

    state = run_in_virtual_time(run())
    assert state.steps[0].executions[0].value == "in the meantime"
    assert "was awaited after the call was settled" in str(late[0].exception())
    assert ran == []


def test_a_tool_that_was_left_behind_reports_no_more_progress() -> None:
    """Its call is settled when the execution has ended, also if the call is recorded."""
    updates: list[object] = []

    @tool(name="pay")
    async def ignorant(n: int, context: ToolContext) -> None:
        """Ignore the cancellation."""
        context.progress("early")
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(1000)
        context.progress("late")

    async def run() -> None:
        loop = loop_for(MemoryJournal(), ignorant)
        loop.on(ToolCallProgressed, lambda event: updates.append(event.update))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.execute("go"), 1)
        await asyncio.sleep(3000)

    run_in_virtual_time(run())
    assert updates == ["early"]


# --- recovered calls --------------------------------------------------------------------------------------------------


class FailingAfter(Interceptor):
    """Fails at each outcome."""

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        raise OSError("cannot mask")


@pytest.mark.parametrize("kind", [RecordKind.CALL_INTENT, RecordKind.CALL_OUTCOME])
async def test_a_recovered_success_that_is_dropped_may_have_run(kind: RecordKind) -> None:
    """Whether it was reused or found by the tool: the effect has happened, although an interceptor failed at it."""
    reconciled = tool(name="pay", reconcile=lambda n: happened("in the books"))(pay)
    loop = loop_for(await interrupted(kind), reconciled, interceptors=[FailingAfter()])
    state = await loop.recover("run")
    assert state.status is ExecutionStatus.FAILED
    (execution,) = state.steps[0].executions
    assert (execution.status, execution.value, execution.may_have_run) == (ToolStatus.FAILED, None, True)


@pytest.mark.parametrize(
    ("first", "then", "status"),
    [
        ("fail", "fail", ExecutionStatus.FAILED),
        ("fail", "tell", ExecutionStatus.COMPLETED),
        ("tell", "fail", ExecutionStatus.FAILED),
        ("tell", "tell", ExecutionStatus.COMPLETED),
    ],
)
async def test_a_recorded_doubt_counts_in_the_next_recovery(first: str, then: str, status: ExecutionStatus) -> None:
    """A recovery that was interrupted after the doubt was recorded ends like one that was not, by its own policy."""
    journal = await interrupted(RecordKind.CALL_INTENT)
    await loop_for(journal).recover("run", in_doubt=first)
    again = await journal.after_crash(place_of(journal, RecordKind.CALL_OUTCOME))
    state = await loop_for(again).recover("run", in_doubt=then)
    assert state.status is status
    (execution,) = state.steps[0].executions
    assert execution.status is ToolStatus.IN_DOUBT
    assert all("in doubt" in error.message for error in state.errors)


async def test_a_repeated_call_is_recorded_with_its_present_effect() -> None:
    """Its tool may have another effect by now, by which a further interruption is judged."""
    journal = await interrupted(RecordKind.CALL_INTENT, tool(effect="pure")(pay))
    state = await loop_for(journal, tool(effect="idempotent")(pay)).recover("run")
    assert state.steps[0].executions[0].value == "paid 1"
    records = await journal.read("run")
    intents = [json.loads(record.body)["intent"] for record in records if record.kind is RecordKind.CALL_INTENT]
    assert [intent["effect"] for intent in intents] == ["pure", "idempotent"]


async def test_the_ends_of_calls_that_a_listener_interrupts_are_recorded() -> None:
    """The execution ends as failed and is not resumed: its records hold an outcome of each call that began."""
    journal, bus = MemoryJournal(), EventBus(strict=True)

    @tool
    async def slow() -> None:
        """Take longer than the execution lasts."""
        await asyncio.sleep(1000)

    def fail(event: ToolCallCompleted) -> None:
        if event.execution.name == "pay":
            raise ValueError("a defect")

    bus.on(ToolCallCompleted, fail)
    model = Model([*PAY, ("slow", {})], "done")
    loop = AgentLoop.for_model(model, tools=[pay, slow], journal=journal, events=bus)
    state = await loop.execute("go", execution_id="run")
    assert state.status is ExecutionStatus.FAILED
    statuses = [execution.status for execution in state.steps[0].executions]
    assert statuses == [ToolStatus.SUCCEEDED, ToolStatus.CANCELLED]
    assert keys_of(await journal.read("run")) == ["run/1/0", "run/1/1"]


@pytest.mark.parametrize(
    ("effect", "found", "recovery", "reason", "status"),
    [
        ("pure", None, "repeated", "", ToolStatus.SUCCEEDED),
        ("idempotent", None, "repeated", "", ToolStatus.SUCCEEDED),
        ("effect", did_not_happen(), "repeated", "the tool reports that it did not run", ToolStatus.SUCCEEDED),
        ("effect", happened("in the books"), "reconciled", "", ToolStatus.SUCCEEDED),
        ("effect", cannot_tell("no books"), "in_doubt", "no books", ToolStatus.IN_DOUBT),
    ],
)
async def test_a_recovery_is_reported_and_settles_its_call_for_good(
    effect: Effects, found: Reconciliation | None, recovery: str, reason: str, status: ToolStatus
) -> None:
    """The event says what becomes of the call; that is recorded, so that a further recovery neither asks nor runs the tool."""
    runs, asked = list[int](), list[int]()

    def reconcile(n: int) -> Reconciliation | None:
        asked.append(n)
        return found

    @tool(name="pay", effect=effect, reconcile=None if found is None else reconcile)
    async def count(n: int) -> str:
        """Pay."""
        runs.append(n)
        return f"paid {n}"

    async def recover(journal: CrashableJournal) -> tuple[ToolExecution, list[tuple[str, str]]]:
        loop, seen = loop_for(journal, count), list[ToolCallRecovered]()
        loop.on(ToolCallRecovered, seen.append)
        (execution,) = (await loop.recover("run")).steps[0].executions
        return execution, [(event.recovery.value, event.reason) for event in seen]

    journal = await interrupted(RecordKind.CALL_INTENT, tool(effect=effect)(pay))
    settled, [(how, why)] = await recover(journal)
    assert (settled.status, how, reason in why) == (status, recovery, True)
    assert reason or not why
    assert keys_of(await journal.read("run")) == ["run/1/0"]
    again = await journal.after_crash(place_of(journal, RecordKind.CALL_OUTCOME))
    assert await recover(again) == (settled, [("reused", "")])
    assert (runs, asked) == ([1] * (recovery == "repeated"), [1] * (found is not None))


@pytest.mark.parametrize(
    ("effect", "status", "may_have_run"),
    [
        ("pure", ToolStatus.CANCELLED, False),
        ("idempotent", ToolStatus.CANCELLED, True),
        ("effect", ToolStatus.IN_DOUBT, True),
    ],
)
def test_calls_that_are_not_resumed_any_more_are_settled_by_their_records(
    effect: Effects, status: ToolStatus, *, may_have_run: bool
) -> None:
    """A listener ends the recovery before they are: what had ended has its outcome, and what had not may have had its effect."""

    @tool(name="pay", effect=effect)
    async def wait(n: int) -> str:
        """Pay; the later the call, the earlier it ends."""
        await asyncio.sleep(3 - n)
        return f"paid {n}"

    def fail(_: ToolCallIntentKept) -> None:
        raise ValueError("a defect")

    def loop_with(journal: MemoryJournal, **parts: Any) -> AgentLoop:
        model = Model([("pay", {"n": 1}), ("pay", {"n": 2})], "done")
        return AgentLoop.for_model(model, tools=[wait], journal=journal, **parts)

    async def run() -> tuple[AgentState, list[str]]:
        journal, bus = CrashableJournal(), EventBus(strict=True)
        await loop_with(journal).execute("go", execution_id="run")
        crashed = await journal.after_crash(place_of(journal, RecordKind.CALL_OUTCOME))
        bus.on(ToolCallIntentKept, fail)
        block = at("before_tool_use", lambda point: point.block("not today"))
        state = await loop_with(crashed, interceptors=[block], events=bus).recover("run")
        return state, keys_of(await crashed.read("run"))

    state, recorded = run_in_virtual_time(run())
    assert state.status is ExecutionStatus.FAILED
    first, second = state.steps[0].executions
    assert (first.status, first.may_have_run) == (status, may_have_run)
    assert "it was interrupted, and then" in first.error_message
    assert (second.status, second.value) == (ToolStatus.SUCCEEDED, "paid 2")
    assert recorded == ["run/1/1", "run/1/0"]


async def test_an_outcome_that_is_recorded_is_not_recorded_again_when_the_claim_is_lost() -> None:
    """Whoever drives the execution then reuses it, and finds one record of it."""
    journal, bus = await interrupted(RecordKind.CALL_OUTCOME), EventBus(strict=True)

    def lose(_: ToolCallRecovered) -> None:
        raise ClaimLost("lost", execution_id="run")

    bus.on(ToolCallRecovered, lose)
    with pytest.raises(ClaimLost, match="lost"):
        await loop_for(journal, events=bus).recover("run")
    assert keys_of(await journal.read("run")) == ["run/1/0"]
    (execution,) = (await loop_for(journal).recover("run")).steps[0].executions
    assert execution.value == "paid 1"


# --- what interceptors make of calls that had begun -------------------------------------------------------------------


class Raising(Interceptor):
    """Fails before or around each call, without running it."""

    def __init__(self, place: str) -> None:
        self.place = place

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        if self.place == "before":
            raise OSError("down")
        return point

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        if self.place == "around":
            raise OSError("down")
        return await proceed()


@pytest.mark.parametrize("effect", ["pure", "idempotent", "effect"])
@pytest.mark.parametrize("place", ["before", "around"])
async def test_a_call_that_had_begun_is_settled_for_good_if_an_interceptor_fails_at_it(
    place: str, effect: Effects
) -> None:
    """That is recorded: no later recovery runs the call, wherever the records of the failed one end."""
    ran: list[int] = []

    @tool(name="pay", effect=effect, reconcile=lambda n: did_not_happen())
    async def count(n: int) -> None:
        """Pay."""
        ran.append(n)

    journal = await interrupted(RecordKind.CALL_INTENT, tool(effect=effect)(pay))
    failed = await loop_for(journal, count, interceptors=[Raising(place)]).recover("run")
    assert failed.status is ExecutionStatus.FAILED
    assert keys_of(await journal.read("run")) == ["run/1/0"]
    for end in range(place_of(journal, RecordKind.CALL_OUTCOME), len(journal.appended) + 1):
        state = await loop_for(await journal.after_crash(end), count).recover("run")
        assert state.steps[0].executions == failed.steps[0].executions
        assert state.steps[0].executions[0].status is (ToolStatus.IN_DOUBT if place == "before" else ToolStatus.FAILED)
    assert ran == []


def refuse(point: AroundToolUse) -> ToolExecution:
    """Let the call fail without running it, as a circuit that is open does."""
    return point.fail("the circuit is open")


def give_up(point: AroundToolUse) -> ToolExecution:
    """Stop the execution."""
    raise AgentStop("enough")


def break_down(point: AroundToolUse) -> ToolExecution:
    """Raise an error."""
    raise OSError("down")


@pytest.mark.parametrize("end", [refuse, give_up, break_down])
@pytest.mark.parametrize(
    ("effect", "found", "may_have_run"),
    [
        ("pure", None, False),
        ("idempotent", None, True),
        ("effect", did_not_happen(), False),
        ("effect", cannot_tell(), True),
    ],
)
async def test_a_repeated_call_that_does_not_run_again_may_have_run_before_the_interruption(
    end: Callable[[AroundToolUse], ToolExecution], effect: Effects, found: Reconciliation | None, *, may_have_run: bool
) -> None:
    """Unless its tool has no effect, or says that it did not run."""

    async def instead(point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        return end(point)

    reconcile = None if found is None else (lambda n: found)
    journal = await interrupted(RecordKind.CALL_INTENT, tool(effect=effect)(pay))
    loop = loop_for(
        journal, tool(effect=effect, reconcile=reconcile)(pay), interceptors=[at("around_tool_use", instead)]
    )
    (execution,) = (await loop.recover("run")).steps[0].executions
    assert not execution.succeeded
    assert execution.may_have_run is may_have_run


async def test_an_agent_that_is_not_continued_may_have_had_effects_before_the_interruption() -> None:
    """Its calls are not known where an interceptor fails at the call of the agent."""

    async def fail(point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        return point.fail("the circuit is open")

    def loop_with_agent(journal: MemoryJournal, **parts: Any) -> AgentLoop:
        clerk = AgentLoop.for_model(Model(PAY, "paid"), tools=[pay]).as_tool("clerk", "Pays.")
        return AgentLoop.for_model(Model([("clerk", {"task": "pay"})], "done"), tools=[clerk], journal=journal, **parts)

    journal = CrashableJournal()
    await loop_with_agent(journal).execute("go", execution_id="run")
    crashed = await journal.after_crash(place_of(journal, RecordKind.CALL_OUTCOME))
    state = await loop_with_agent(crashed, interceptors=[at("around_tool_use", fail)]).recover("run")
    (execution,) = state.steps[0].executions
    assert (execution.status, execution.may_have_run) == (ToolStatus.FAILED, True)


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
async def test_a_repeated_call_whose_tool_is_unavailable_now_may_have_run_before_the_interruption(
    effect: Effects,
) -> None:
    """The error says only that the tool did not run again."""

    @tool(name="pay", effect=effect)
    async def closed(n: int) -> None:
        """Pay."""
        raise ToolUnavailable("closed on Sundays")

    journal = await interrupted(RecordKind.CALL_INTENT, tool(effect=effect)(pay))
    (execution,) = (await loop_for(journal, closed).recover("run")).steps[0].executions
    assert (execution.status, execution.may_have_run) == (ToolStatus.FAILED, effect == "idempotent")


Before = Callable[[BeforeToolUse], BeforeToolUse]


def stop(point: BeforeToolUse) -> BeforeToolUse:
    """Stop the execution."""
    raise AgentStop("enough")


@pytest.mark.parametrize("kind", [RecordKind.CALL_INTENT, RecordKind.CALL_OUTCOME])
@pytest.mark.parametrize(
    ("before", "refused", "status"),
    [
        (lambda point: point.with_arguments({"n": 99}), "change to pay(n=99)", ExecutionStatus.COMPLETED),
        (lambda point: point.block("not today"), "block: not today", ExecutionStatus.COMPLETED),
        (lambda point: evolve(point, verdict=Suspend("ask")), "suspend: ask", ExecutionStatus.COMPLETED),
        (lambda point: point.answer("paid by hand"), "answer", ExecutionStatus.COMPLETED),
        (stop, "enough", ExecutionStatus.STOPPED),
        (lambda point: point, None, ExecutionStatus.COMPLETED),
    ],
)
async def test_an_event_says_what_an_interceptor_would_have_made_of_a_call_that_had_begun(
    before: Before, refused: str | None, status: ExecutionStatus, kind: RecordKind
) -> None:
    """The call is resumed as it was recorded, also if the execution is to stop, which it does after the step."""
    idempotent, kept = tool(effect="idempotent")(pay), list[ToolCallIntentKept]()
    loop = loop_for(await interrupted(kind, idempotent), idempotent, interceptors=[at("before_tool_use", before)])
    loop.wiretap(ProtocolMonitor())
    loop.on(ToolCallIntentKept, kept.append)
    state = await loop.recover("run")
    assert state.status is status
    assert [execution.value for execution in state.steps[0].executions] == ["paid 1"]
    expected = [] if refused is None else [("run/1/0", "pay", {"n": 1}, refused)]
    assert [(event.key, event.name, event.recorded.arguments, event.refused) for event in kept] == expected
