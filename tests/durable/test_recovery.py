"""Recovery from every record boundary: recorded work is not repeated, and doubts are reported."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from attrs import evolve

from agentloop import AgentLoop, AgentState, Interceptor, ToolCallingDriver, ToolContext, to_json, tool
from agentloop.contracts.can_journal import Claim
from agentloop.durable import MemoryJournal
from agentloop.durable.chain import verify_records
from agentloop.durable.fold import fold_records
from agentloop.errors import (
    ConfigurationError,
    DecisionError,
    JournalConflict,
    JournalCorrupt,
    JournalError,
    UnknownExecution,
)
from agentloop.events import InferenceReused, ProtocolMonitor, ToolCallIntentKept, ToolCallRecovered
from agentloop.interception import AfterStep, BeforeToolUse, RequireApproval, at
from agentloop.testing import CrashableJournal
from agentloop.values import (
    Effect,
    Event,
    ExecutionHead,
    ExecutionStatus,
    JournalRecord,
    RecordKind,
    ToolStatus,
    answer,
    approve,
    cannot_tell,
    deny,
    did_not_happen,
    happened,
)
from agentloop.values.interruptions import interrupted_state
from agentloop.values.records import Reconciliation
from tests.durable.recovery_bench import Model, ToolLedger, Turn, truncate

SCRIPT: tuple[Turn, ...] = (
    [("look", {"n": 1})],
    [("pay", {"n": 1}), ("put", {"n": 1}), ("look", {"n": 2})],
    [("pay", {"n": 2})],
    [("put", {"n": 2}), ("pay", {"n": 3})],
    "Done.",
)


def ledger_tools(world: ToolLedger, *, reconcile: Any = None) -> list[Any]:
    """Return a pure, an idempotent and an effect tool that record their calls."""

    @tool(effect="pure")
    def look(n: int, context: ToolContext) -> str:
        """Look."""
        world.effects[context.idempotency_key] += 1
        return f"saw {n}"

    @tool(effect="idempotent")
    async def put(n: int, context: ToolContext) -> str:
        """Put."""
        world.effects[context.idempotency_key] += 1
        return f"put {n}"

    @tool(reconcile=reconcile)
    async def pay(n: int, context: ToolContext) -> str:
        """Pay."""
        world.effects[context.idempotency_key] += 1
        return f"paid {n}"

    return [look, put, pay]


def loop_for(world: ToolLedger, journal: MemoryJournal, *turns: Turn, **parts: Any) -> AgentLoop:
    """Return a loop with a journal."""
    tools = parts.pop("tools", None) or ledger_tools(world)
    return AgentLoop(ToolCallingDriver(Model(*(turns or SCRIPT))), tools, journal=journal, **parts)


async def run_recorded(world: ToolLedger, **parts: Any) -> tuple[MemoryJournal, AgentState]:
    """Run the script, and return the journal with the final state."""
    journal = MemoryJournal()
    return journal, await loop_for(world, journal, **parts).execute("Go.", execution_id="run")


async def test_the_state_is_the_fold_of_the_records() -> None:
    """After every step, and at the end, the state in the journal is the one in memory, byte for byte (law 15)."""
    journal = MemoryJournal()
    async for state in loop_for(ToolLedger(), journal).iterate("Go.", execution_id="run"):
        recorded = fold_records(verify_records(await journal.read("run"), "run"), "run").state
        assert recorded is not None
        assert to_json(recorded) == to_json(state)
    head = await journal.head("run")
    assert head is not None
    assert (head.status, head.step_count, head.input) == (ExecutionStatus.COMPLETED, 5, "Go.")


async def test_recovery_from_every_record_boundary() -> None:
    """Wherever the records end, the execution completes, and no recorded work and no effect is repeated (law 14)."""
    world = ToolLedger()
    journal, final = await run_recorded(world)
    records = await journal.read("run")
    whole = world.effects.copy()
    assert set(whole.values()) == {1}
    for count in range(1, len(records) + 1):
        again, events = ToolLedger(), list[Event]()
        loop = loop_for(again, await truncate(journal, "run", count))
        monitor = ProtocolMonitor()
        loop.wiretap(monitor)
        loop.wiretap(events.append)
        state = await loop.recover("run")
        monitor.check()
        check_recovered(records[:count], state, again, events)
        assert state.final_text == final.final_text
        assert state.usage == final.usage
        assert fold_records(verify_records(await truncated_journal_of(loop).read("run"), "run"), "run").state == state


def truncated_journal_of(loop: AgentLoop) -> MemoryJournal:
    """Return the journal of a loop."""
    assert isinstance(loop.journal, MemoryJournal)
    return loop.journal


def check_recovered(
    before: list[JournalRecord] | Any, state: AgentState, again: ToolLedger, events: list[Event]
) -> None:
    """Check that no recorded work was repeated and that every reuse and every doubt was reported."""
    settled = {r.body.split('"key":"')[1].split('"')[0] for r in before if r.kind is RecordKind.CALL_OUTCOME}
    started = {r.body.split('"key":"')[1].split('"')[0] for r in before if r.kind is RecordKind.CALL_INTENT} - settled
    doubted = {e.key for e in events if isinstance(e, ToolCallRecovered) and e.recovery == "in_doubt"}
    reused = {e.key for e in events if isinstance(e, ToolCallRecovered) and e.recovery == "reused"}
    assert reused <= settled
    if before[-1].kind is RecordKind.CALL_OUTCOME:
        assert before[-1].body.split('"key":"')[1].split('"')[0] in reused
    for step in state.steps:
        for execution in step.executions:
            if execution.key in settled:
                assert again.effects[execution.key] == 0
                assert execution.succeeded
            elif execution.key in started and execution.name == "pay":
                assert again.effects[execution.key] == 0
                assert execution.status is ToolStatus.IN_DOUBT
                assert execution.may_have_run
                assert "do not repeat" in execution.error_message
                assert execution.key in doubted
            else:
                assert again.effects[execution.key] == 1
                assert execution.succeeded
    assert sum(isinstance(e, InferenceReused) for e in events) <= 1


async def test_recorded_inferences_are_not_repeated() -> None:
    """Only inferences that are not recorded are sent to the model."""
    journal, _ = await run_recorded(ToolLedger())
    records = await journal.read("run")
    for count in range(1, len(records) + 1):
        done = sum(record.kind is RecordKind.INFERENCE_RECORDED for record in records[:count])
        model = Model(*SCRIPT)
        await AgentLoop(
            ToolCallingDriver(model), ledger_tools(ToolLedger()), journal=await truncate(journal, "run", count)
        ).recover("run")
        assert model.asked == 5 - done


async def test_a_recovered_execution_can_be_recovered_again() -> None:
    """An execution that is interrupted during its recovery can be recovered as well."""
    journal, final = await run_recorded(ToolLedger())
    first = await truncate(journal, "run", 9)
    await loop_for(ToolLedger(), first).recover("run")
    for count in range(9, len(await first.read("run")) + 1):
        state = await loop_for(ToolLedger(), await truncate(first, "run", count)).recover("run")
        assert state.final_text == final.final_text


RECONCILERS = {
    "happened": (lambda n: happened(f"paid {n}"), ToolStatus.SUCCEEDED, 0),
    "did not happen": (lambda n: did_not_happen(), ToolStatus.SUCCEEDED, 1),
    "cannot tell": (lambda n: cannot_tell("the bank does not answer"), ToolStatus.IN_DOUBT, 0),
    "raises": (lambda n: 1 / 0, ToolStatus.IN_DOUBT, 0),
    "returns nonsense": (lambda n: True, ToolStatus.IN_DOUBT, 0),
}


@pytest.mark.parametrize("case", RECONCILERS)
async def test_a_tool_reconciles_its_interrupted_call(case: str) -> None:
    """A reconciler settles a call in doubt, lets it run, or leaves it in doubt."""
    reconcile, status, runs = RECONCILERS[case]
    journal, at = await interrupted_journal("pay")
    world = ToolLedger()
    state = await loop_for(world, journal, tools=ledger_tools(world, reconcile=reconcile)).recover("run")
    execution = next(execution for step in state.steps for execution in step.executions if execution.key == at)
    assert (execution.status, world.effects[at]) == (status, runs)
    if execution.succeeded:
        assert execution.value == "paid 1"
    assert state.status is ExecutionStatus.COMPLETED


async def interrupted_journal(name: str) -> tuple[MemoryJournal, str]:
    """Return a journal that ends with the first intent of a tool, and the key of the call."""
    journal, _ = await run_recorded(ToolLedger())
    for record in await journal.read("run"):
        if record.kind is RecordKind.CALL_INTENT and f'"name":"{name}"' in record.body:
            return await truncate(journal, "run", record.sequence), record.body.split('"key":"')[1].split('"')[0]
    raise AssertionError(name)


async def test_a_reconciler_receives_the_key_of_its_call() -> None:
    """A reconciler can take the context of the call and any of its arguments."""
    journal, at = await interrupted_journal("pay")
    seen: list[tuple[int, str]] = []

    async def reconcile(context: ToolContext, n: int) -> Reconciliation:
        seen.append((n, context.idempotency_key))
        return happened()

    await loop_for(ToolLedger(), journal, tools=ledger_tools(ToolLedger(), reconcile=reconcile)).recover("run")
    assert seen == [(1, at)]


async def test_the_policy_suspend_waits_for_a_decision_about_a_call_in_doubt() -> None:
    """Nothing runs before the decision; an approval runs the call, an answer settles it."""
    for decision, status, runs in (
        (approve(), ToolStatus.SUCCEEDED, 1),
        (answer("paid by hand"), ToolStatus.SUCCEEDED, 0),
        (deny("leave it"), ToolStatus.BLOCKED, 0),
    ):
        journal, at = await interrupted_journal("pay")
        world = ToolLedger()
        loop = loop_for(world, journal, in_doubt="suspend")
        waiting = await loop.recover("run")
        assert [call.key for call in waiting.pending] == [at]
        assert "Approve to run it again" in waiting.pending[0].reason
        assert world.effects[at] == 0
        state = await loop.resume("run", {at: decision})
        execution = next(execution for step in state.steps for execution in step.executions if execution.key == at)
        assert (execution.status, world.effects[at]) == (status, runs)
        assert execution.may_have_run is (status is ToolStatus.BLOCKED)
        assert state.status is ExecutionStatus.COMPLETED


async def test_the_policy_fail_ends_an_execution_with_a_call_in_doubt() -> None:
    """The execution fails, with the doubt in its state."""
    journal, at = await interrupted_journal("pay")
    state = await loop_for(ToolLedger(), journal).recover("run", in_doubt="fail")
    assert state.status is ExecutionStatus.FAILED
    assert "in doubt" in state.errors[-1].message
    execution = next(execution for step in state.steps for execution in step.executions if execution.key == at)
    assert execution.status is ToolStatus.IN_DOUBT


async def test_a_removed_tool_leaves_its_call_in_doubt() -> None:
    """A call without its tool is in doubt whatever its effect was; a recorded outcome is kept."""
    journal, final = await run_recorded(ToolLedger())
    for record in await journal.read("run"):
        if record.kind is not RecordKind.STEP_COMPLETED:
            state = await AgentLoop(
                ToolCallingDriver(Model(*SCRIPT)), journal=await truncate(journal, "run", record.sequence)
            ).recover("run")
            statuses = {execution.status for step in state.steps for execution in step.executions}
            assert statuses <= {ToolStatus.SUCCEEDED, ToolStatus.IN_DOUBT, ToolStatus.REJECTED}
    assert final.status is ExecutionStatus.COMPLETED


async def test_a_started_call_resumes_with_its_recorded_arguments() -> None:
    """An interceptor that would change or block a started call is overruled, and an event reports that."""
    journal, _ = await run_recorded(ToolLedger())
    records = await journal.read("run")

    def change(point: BeforeToolUse) -> BeforeToolUse:
        return point.with_arguments({"n": 99})

    def block(point: BeforeToolUse) -> BeforeToolUse:
        return point.block("not today")

    class RaisingInterceptor(Interceptor):
        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            raise OSError("down")

    outcome = next(r.sequence for r in records if r.kind is RecordKind.CALL_OUTCOME and "paid 1" in r.body)
    for interceptor in (at("before_tool_use", change), at("before_tool_use", block), RequireApproval("pay")):
        world, kept_intents = ToolLedger(), list[ToolCallIntentKept]()
        loop = loop_for(world, await truncate(journal, "run", outcome), interceptors=[interceptor])
        loop.on(ToolCallIntentKept, kept_intents.append)
        state = await loop.recover("run")
        execution = next(execution for execution in state.steps[1].executions if execution.name == "pay")
        assert execution.value == "paid 1"
        assert world.effects[execution.key] == 0
        assert any(event.key == execution.key for event in kept_intents) or isinstance(interceptor, RequireApproval)
    failed = await loop_for(
        ToolLedger(), await truncate(journal, "run", outcome), interceptors=[RaisingInterceptor()]
    ).recover("run")
    assert failed.status is ExecutionStatus.FAILED
    assert next(execution for execution in failed.steps[1].executions if execution.name == "pay").value == "paid 1"


async def test_the_interceptors_of_an_interrupted_step_run_again() -> None:
    """Their changes of the state are there after the recovery, once."""

    class CountsSteps(Interceptor):
        def after_step(self, point: AfterStep) -> AfterStep:
            count = point.state.context.metadata.get("steps", 0)
            return point.with_state(point.state.with_metadata(steps=count + 1))

    journal, final = await run_recorded(ToolLedger(), interceptors=[CountsSteps()])
    assert final.context.metadata["steps"] == 5
    for count in range(1, len(await journal.read("run")) + 1):
        state = await loop_for(
            ToolLedger(), await truncate(journal, "run", count), interceptors=[CountsSteps()]
        ).recover("run")
        assert state.context.metadata["steps"] == 5


async def test_recovering_an_ended_execution_returns_its_state() -> None:
    """Nothing runs."""
    journal, final = await run_recorded(ToolLedger())
    world = ToolLedger()
    assert await loop_for(world, journal).recover("run") == final
    assert not world.effects


async def test_recovery_errors_say_what_to_do() -> None:
    """No journal, an unknown execution and an id in use are three errors."""
    journal, final = await run_recorded(ToolLedger())
    loop = loop_for(ToolLedger(), journal)
    with pytest.raises(ConfigurationError, match="journal"):
        await loop.replace(journal=None).recover("run")
    with pytest.raises(ConfigurationError, match="journal"):
        await loop.replace(journal=None).resume("run", {})
    with pytest.raises(UnknownExecution, match="'else'"):
        await loop.recover("else")
    with pytest.raises(JournalConflict, match="another id"):
        await loop.execute("Again.", execution_id="run")
    going_on = await loop.execute(final.with_message("And then?"), execution_id="next")
    assert going_on.execution_count == 2


async def test_two_continuations_of_one_conversation_conflict() -> None:
    """The second next execution of an agent is refused before it does anything."""
    journal, final = await run_recorded(ToolLedger())
    world = ToolLedger()
    loop = loop_for(world, journal, *SCRIPT, "More.")
    await loop.execute(final.with_message("One."), execution_id="one")
    with pytest.raises(JournalConflict):
        await loop.execute(final.with_message("Two."), execution_id="two")
    assert await journal.head("two") is None


async def test_a_running_execution_cannot_be_recovered() -> None:
    """It can be recovered when its run was abandoned."""
    journal = MemoryJournal()
    loop = loop_for(ToolLedger(), journal)
    steps = loop.iterate("Go.", execution_id="run")
    await anext(steps)
    with pytest.raises(JournalConflict):
        await loop.recover("run")
    await steps.aclose()
    assert (await loop.recover("run")).status is ExecutionStatus.COMPLETED


class FullJournal(MemoryJournal):
    """A journal that is full after a number of appends."""

    def __init__(self, appends: int) -> None:
        super().__init__()
        self.left = appends

    async def append(self, head: ExecutionHead, records: Any, claim: Claim) -> None:
        """Append, or raise JournalError."""
        if self.left == 0:
            raise JournalError("no room")
        self.left -= 1
        await super().append(head, records, claim)


async def test_nothing_is_done_that_cannot_be_recorded() -> None:
    """A failing journal ends the run with its error and the last state; no call runs without its intent."""
    whole = FullJournal(1000)
    await loop_for(ToolLedger(), whole).execute("Go.", execution_id="run")
    for appends in range(1000 - whole.left):
        world, journal = ToolLedger(), FullJournal(appends)
        with pytest.raises(JournalError) as caught:
            await loop_for(world, journal).execute("Go.", execution_id="run")
        assert interrupted_state(caught.value) is not None
        intents = [r.body for r in await journal.read("run") if r.kind is RecordKind.CALL_INTENT]
        assert all(any(f'"{key}"' in body for body in intents) for key in world.effects)
        if appends:
            journal.left = -1
            again = ToolLedger()
            state = await loop_for(again, journal).recover("run")
            assert state.status is ExecutionStatus.COMPLETED
            for step in state.steps:
                for execution in step.executions:
                    total = world.effects[execution.key] + again.effects[execution.key]
                    assert total == 1 or (execution.status is ToolStatus.IN_DOUBT) or execution.name != "pay"


async def test_a_journal_with_a_changed_record_is_refused() -> None:
    """Recovery from a journal that was tampered with is an error."""
    journal, _ = await run_recorded(ToolLedger())
    broken = await truncate(journal, "run", 6)
    records = broken._records["run"]
    records[3] = evolve(records[3], body=records[3].body.replace("saw 1", "saw 7"))
    with pytest.raises(JournalCorrupt) as caught:
        await loop_for(ToolLedger(), broken).recover("run")
    assert caught.value.sequence == 4


async def cancelled_when(loop: AgentLoop, moment: asyncio.Event) -> AgentState:
    """Run, cancel when the event is set, and return the state that the cancellation carries."""
    task = asyncio.create_task(loop.execute("Go.", execution_id="run"))
    await moment.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    state = interrupted_state(caught.value)
    assert state is not None
    return state


async def test_a_cancelled_execution_is_in_progress_in_the_journal() -> None:
    """The call that was cut off has an outcome in the state, and in the journal a start alone, as after a crash."""
    journal, started = MemoryJournal(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return ""

    loop = AgentLoop(ToolCallingDriver(Model([("wait", {})], "Done.")), [wait], journal=journal)
    state = await cancelled_when(loop, started)
    assert state.status is ExecutionStatus.IN_PROGRESS
    assert state.steps[0].executions[0].status is ToolStatus.CANCELLED
    assert state.steps[0].executions[0].may_have_run
    recorded = fold_records(verify_records(await journal.read("run"), "run"), "run")
    assert recorded.state is not None
    assert (recorded.state.status, recorded.state.steps) == (ExecutionStatus.IN_PROGRESS, ())
    assert [call.execution for call in recorded.calls.values()] == [None]


@pytest.mark.parametrize("way", ["recover", "execute"])
async def test_a_cancelled_execution_is_continued_from_its_journal(way: str) -> None:
    """Outcomes of settled calls are reused, and a call that was cut off is resumed, from the id and from the carried state."""
    journal, started, runs = MemoryJournal(), asyncio.Event(), list[str]()

    @tool(effect="idempotent")
    async def work(name: str) -> str:
        """Work."""
        runs.append(name)
        if name == "slow" and runs.count(name) == 1:
            started.set()
            await asyncio.Event().wait()
        return name

    loop = AgentLoop(
        ToolCallingDriver(Model([("work", {"name": "quick"}), ("work", {"name": "slow"})], "Done.")), [work]
    )
    loop = loop.replace(journal=journal)
    state = await cancelled_when(loop, started)
    with pytest.raises(JournalConflict):
        await loop.execute(state.with_message("A message that is not in the journal."))
    done = await (loop.recover("run") if way == "recover" else loop.execute(state))
    assert (done.status, done.final_text) == (ExecutionStatus.COMPLETED, "Done.")
    assert [execution.value for execution in done.steps[0].executions] == ["quick", "slow"]
    assert sorted(runs) == ["quick", "slow", "slow"]


async def test_a_decision_is_used_once() -> None:
    """A suspended state is resumed once, wherever it was stored; then the journal refuses it (law 16)."""
    journal, world = MemoryJournal(), ToolLedger()
    loop = loop_for(world, journal, interceptors=[RequireApproval("pay")])
    waiting = await loop.execute("Go.", execution_id="run")
    assert waiting.status is ExecutionStatus.SUSPENDED
    key = waiting.pending[0].key
    await loop.resume(waiting, {key: approve(waiting.pending[0].digest)})
    with pytest.raises(DecisionError, match=r"once|newest"):
        await loop.resume(waiting, {key: approve()})
    assert world.effects[key] == 1
    used = [r for r in await journal.read("run") if r.kind is RecordKind.DECISION_USED]
    assert len(used) == 1


@pytest.mark.parametrize("how", ["by its id", "by its state"])
async def test_the_error_of_a_used_decision_says_how_to_continue(how: str) -> None:
    """An execution that was interrupted after its decisions were used is recovered; one that has ended is not."""
    chronicle = CrashableJournal()
    turns: tuple[Turn, ...] = ([("pay", {"n": 1})], "Done.")
    loop = loop_for(ToolLedger(), chronicle, *turns, interceptors=[RequireApproval("pay")])
    waiting = await loop.execute("Go.", execution_id="run")
    decisions = {waiting.pending[0].key: approve(waiting.pending[0].digest)}
    await loop.resume("run", decisions)
    kinds = [record.kind for record in chronicle.appended]
    left = await chronicle.after_crash(kinds.index(RecordKind.EXECUTION_RESUMED) + 1)
    suspended: AgentState | str = "run" if how == "by its id" else waiting
    for journal, status in [
        (left, "in_progress; continue it with `recover`"),
        (chronicle, "completed"),
    ]:
        expected = f"execution 'run' does not wait for decisions: it is {status}. A decision is used once"
        with pytest.raises(DecisionError, match=f"^{re.escape(expected)}$"):
            await loop.replace(journal=journal).resume(suspended, decisions)


async def test_recovery_of_an_execution_that_was_suspended_and_resumed() -> None:
    """Wherever the records end, approvals apply to their calls only, and each is used once."""
    journal, world = MemoryJournal(), ToolLedger()
    loop = loop_for(world, journal, interceptors=[RequireApproval("pay")])
    state = await loop.execute("Go.", execution_id="run")
    while state.pending:
        state = await loop.resume("run", {call.key: approve() for call in state.pending if not call.waits_for})
    records = await journal.read("run")
    assert state.status is ExecutionStatus.COMPLETED
    for count in range(1, len(records) + 1):
        again = ToolLedger()
        loop = loop_for(again, await truncate(journal, "run", count), interceptors=[RequireApproval("pay")])
        approved = {
            r.body.split('"key":"')[1].split('"')[0] for r in records[:count] if r.kind is RecordKind.DECISION_USED
        }
        recovered = await loop.recover("run")
        if records[count - 1].kind is RecordKind.DECISION_USED:
            continue  # written in one group with the resumption; never alone
        for key in again.effects:
            name = next(
                execution.name for step in recovered.steps for execution in step.executions if execution.key == key
            )
            assert name != "pay" or key in approved
        waited = recovered.status is ExecutionStatus.SUSPENDED
        assert waited or recovered.final_text == "Done."


async def test_the_recorded_effect_of_a_call_counts() -> None:
    """The effect that the tool had when the call started counts, even if the tool declares a lesser one now."""
    journal, at = await interrupted_journal("pay")
    world = ToolLedger()

    @tool(effect=Effect.PURE)
    async def pay(n: int, context: ToolContext) -> str:
        """Pay."""
        world.effects[context.idempotency_key] += 1
        return f"paid {n}"

    state = await loop_for(world, journal, tools=[*ledger_tools(world)[:2], pay]).recover("run")
    execution = next(execution for step in state.steps for execution in step.executions if execution.key == at)
    assert execution.status is ToolStatus.IN_DOUBT
