"""Recovery of nested work: sub-agents, handoffs, messages and retries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentloop import (
    AgentLoop,
    AgentState,
    AgentStop,
    Budget,
    Interceptor,
    ToolCallingDriver,
    ToolContext,
    ToolExecutor,
    handoff_to,
    tool,
)
from agentloop.contracts.can_journal import Claim
from agentloop.durable import MemoryJournal, replay
from agentloop.durable.chain import verify_records
from agentloop.durable.fold import fold_records
from agentloop.durable.recovery import stop_execution
from agentloop.errors import JournalConflict
from agentloop.events import ProtocolMonitor, ToolCallRecovered
from agentloop.interception import AfterToolUse, RequireApproval
from agentloop.policies import Resilience
from agentloop.testing import CrashableJournal
from agentloop.testing.journal_bench import append_claimed
from agentloop.values import (
    ExecutionHead,
    ExecutionStatus,
    InDoubt,
    JournalRecord,
    RecordKind,
    RetryPolicy,
    StopReason,
    ToolStatus,
    approve,
)
from tests.durable.recovery_bench import Model, ToolLedger, Turn


def pay_tool(world: ToolLedger) -> Any:
    """Return a tool with an effect."""

    @tool
    async def pay(n: int, context: ToolContext) -> str:
        """Pay."""
        world.effects[context.idempotency_key] += 1
        return f"paid {n}"

    return pay


def family(world: ToolLedger, journal: MemoryJournal, **parts: Any) -> AgentLoop:
    """Return a loop whose tool is an agent with an effect."""
    child = AgentLoop(
        ToolCallingDriver(Model([("pay", {"n": 1})], [("pay", {"n": 2})], "Both are paid.")),
        [pay_tool(world)],
        interceptors=parts.pop("child_interceptors", ()),
    )
    clerk = child.as_tool("clerk", "Pays.")
    turns: tuple[Turn, ...] = (
        [("clerk", {"task": "Pay both."}), ("pay", {"n": 3})],
        [("clerk", {"task": "Again."})],
        "Done.",
    )
    return AgentLoop(ToolCallingDriver(Model(*turns)), [clerk, pay_tool(world)], journal=journal, **parts)


async def recover_after_each_record(
    build: Callable[[ToolLedger, MemoryJournal], AgentLoop], chronicle: CrashableJournal, execution_id: str = "run"
) -> list[tuple[AgentState, ToolLedger, AgentLoop]]:
    """Recover from a crash after each record; return the final states."""
    results = []
    for count in range(1, len(chronicle.appended) + 1):
        journal = await chronicle.after_crash(count)
        if await journal.head(execution_id) is None:
            continue
        world = ToolLedger()
        loop = build(world, journal)
        monitor = ProtocolMonitor()
        loop.wiretap(monitor)
        state = await loop.recover(execution_id)
        monitor.check()
        for head in await journal.list():
            recorded = fold_records(
                verify_records(await journal.read(head.execution_id), head.execution_id), head.execution_id
            )
            assert recorded.state is not None
            assert recorded.state.status is head.status
        results.append((state, world, loop))
    return results


async def test_agents_recover_with_their_callers() -> None:
    """Wherever the records end, an agent resumes from its own: no effect is repeated, none is lost."""
    world, chronicle = ToolLedger(), CrashableJournal()
    final = await family(world, chronicle).execute("Go.", execution_id="run")
    assert sorted(world.effects) == [
        "run/1/0/agent/1/0",
        "run/1/0/agent/2/0",
        "run/1/1",
        "run/2/0/agent/1/0",
        "run/2/0/agent/2/0",
    ]
    assert {head.execution_id for head in await chronicle.list()} == {"run", "run/1/0/agent", "run/2/0/agent"}
    outcomes = {
        r.body.split('"key":"')[1].split('"')[0]: i
        for i, r in enumerate(chronicle.appended)
        if r.kind == "call_outcome"
    }
    intents = {
        r.body.split('"key":"')[1].split('"')[0]: i for i, r in enumerate(chronicle.appended) if r.kind == "call_intent"
    }
    for count, (state, again, _) in enumerate(await recover_after_each_record(family, chronicle), 1):
        assert state.final_text == final.final_text
        for key in world.effects:
            started, settled = intents[key] < count, outcomes[key] < count
            assert again.effects[key] == (0 if started else 1), (count, key, settled)


async def test_agents_are_stopped_with_their_callers() -> None:
    """Wherever the records end, what has not ended is stopped, what has ended stays as it is, and nothing stays claimed."""
    chronicle, kinds = CrashableJournal(), set[tuple[int, int]]()
    await family(ToolLedger(), chronicle).execute("Go.", execution_id="run")
    for count in range(1, len(chronicle.appended)):
        journal = await chronicle.after_crash(count)
        heads = await journal.list()
        open_ids = [head.execution_id for head in heads if not head.status.is_terminal]
        ended = {head.execution_id: await journal.read(head.execution_id) for head in heads if head.status.is_terminal}
        kinds.add((len(open_ids), len(ended)))
        begun = {each: set(fold_records(await journal.read(each), each).calls) for each in open_ids}
        state = await stop_execution(journal, "run", "enough", principal="ada")
        assert state == await journal.state("run")
        for each in open_ids:
            stopped = await journal.state(each)
            signal = stopped.stop_signal
            assert signal is not None
            assert (stopped.status, signal.message) == (ExecutionStatus.STOPPED, "enough")
            assert signal.context["principal"] == "ada"
            assert begun[each] <= {call.key for step in stopped.steps for call in step.executions}
        assert {each: await journal.read(each) for each in ended} == ended
        assert await journal.verify() == ()
        assert await journal.delete("run")
        assert not await journal.list()
    assert kinds == {(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)}


async def test_an_agent_that_another_writer_drives_keeps_its_callers_from_being_stopped() -> None:
    """Nothing is recorded, and all can be stopped when the writer has left."""
    chronicle = CrashableJournal()
    await family(ToolLedger(), chronicle).execute("Go.", execution_id="run")
    begun = [record.kind for record in chronicle.appended].index(RecordKind.CALL_OUTCOME)
    journal = await chronicle.after_crash(begun)
    below = "run/1/0/agent"
    assert {head.execution_id for head in await journal.list()} == {"run", below}
    before = [await journal.read(each) for each in ("run", below)]
    claim = await journal.claim(below)
    with pytest.raises(JournalConflict):
        await stop_execution(journal, "run", "enough")
    assert [await journal.read(each) for each in ("run", below)] == before
    await claim.release()
    await stop_execution(journal, "run", "enough")
    assert {head.status for head in await journal.list()} == {ExecutionStatus.STOPPED}
    with pytest.raises(JournalConflict, match="has ended already: it is stopped"):
        await stop_execution(journal, "run", "again")


async def test_an_agent_whose_tool_was_away_continues_from_its_records() -> None:
    """Its call, which was in doubt and is approved, repeats nothing that is recorded, and has the answer of the agent."""
    chronicle = CrashableJournal()
    final = await family(ToolLedger(), chronicle).execute("go", execution_id="run")
    answer = final.steps[0].executions[0].value
    agent = "run/1/0/agent"
    count = 0
    for position, record in enumerate(chronicle.appended, 1):
        if record.execution_id != agent:
            continue
        journal, world = await chronicle.after_crash(position), ToolLedger()
        away = family(world, journal, in_doubt=InDoubt.SUSPEND).replace(tools=[pay_tool(world)])
        state = await away.recover("run")
        loop = family(world, journal)
        state = await loop.resume("run", {call.key: approve(call.digest) for call in state.pending})
        assert state.status is ExecutionStatus.COMPLETED
        assert state.steps[0].executions[0].value == answer
        before = [each for each in chronicle.appended[:position] if each.kind is RecordKind.CALL_INTENT]
        started = {json.loads(each.body)["intent"]["key"] for each in before if each.execution_id == agent}
        assert not started & set(world.effects)
        assert (await replay(journal, "run", loop)).is_equal
        count += 1
    assert count > 5


class LateJournal(MemoryJournal):
    """A journal in which another process starts an agent, and dies, just before its caller is claimed."""

    late: tuple[ExecutionHead, Sequence[JournalRecord]] | None = None

    async def claim(self, execution_id: str) -> Claim:
        """Let the agent start first."""
        if self.late is not None and execution_id == "run":
            late, self.late = self.late, None
            await append_claimed(self, *late)
        return await super().claim(execution_id)


async def test_an_agent_that_started_late_is_stopped_with_its_caller() -> None:
    """Nothing is left in progress below an execution that was stopped."""
    chronicle, journal = CrashableJournal(), LateJournal()
    await family(ToolLedger(), chronicle).execute("go", execution_id="run")
    first = next(n for n, record in enumerate(chronicle.appended, 1) if record.execution_id == "run/1/0/agent")
    source = await chronicle.after_crash(first)
    agent, caller = [(head, await source.read(head.execution_id)) for head in await source.list()]
    await append_claimed(journal, *caller)
    journal.late = agent
    assert (await stop_execution(journal, "run", "not needed")).status is ExecutionStatus.STOPPED
    left = await journal.head("run/1/0/agent")
    assert left is not None
    assert left.status is ExecutionStatus.STOPPED


async def test_a_suspended_agent_recovers_with_its_caller() -> None:
    """Approvals inside an agent are pending in the caller's state, also after a crash, and are used once."""

    def build(world: ToolLedger, journal: MemoryJournal) -> AgentLoop:
        return family(world, journal, child_interceptors=[RequireApproval("pay")])

    world, chronicle = ToolLedger(), CrashableJournal()
    loop = build(world, chronicle)
    state = await loop.execute("Go.", execution_id="run")
    while state.pending:
        state = await loop.resume(
            "run", {call.key: approve() for call in state.pending if not (call.waits_for or call.inner)}
        )
    assert state.status is ExecutionStatus.COMPLETED
    assert set(world.effects.values()) == {1}
    intents = {
        r.body.split('"key":"')[1].split('"')[0]: i for i, r in enumerate(chronicle.appended) if r.kind == "call_intent"
    }
    for count in range(1, len(chronicle.appended) + 1):
        journal = await chronicle.after_crash(count)
        kinds = [r.kind for r in chronicle.appended[:count]]
        if kinds[-1] is RecordKind.DECISION_USED:
            continue  # written in one group with the resumption
        again = ToolLedger()
        loop = build(again, journal)
        state = await loop.recover("run")
        for _ in range(6):
            if not state.pending:
                break
            decisions = {call.key: approve() for call in state.pending if not (call.waits_for or call.inner)}
            state = await loop.resume("run", decisions)
        assert state.status is ExecutionStatus.COMPLETED, (count, state.explain())
        for key in world.effects:
            assert again.effects[key] <= (0 if intents[key] < count else 1), (count, key)


async def test_a_handed_over_conversation_recovers_with_the_other_loop() -> None:
    """After a handoff the other loop continues, also if the process crashed in between."""

    def build(world: ToolLedger, journal: MemoryJournal) -> AgentLoop:
        billing = AgentLoop(ToolCallingDriver(Model("?", [("pay", {"n": 1})], "Billed.")), [pay_tool(world)])
        desk = Model([("transfer_to_billing", {})])
        return AgentLoop(
            ToolCallingDriver(desk),
            [handoff_to(billing, name="transfer_to_billing", description="For bills.")],
            journal=journal,
        )

    chronicle = CrashableJournal()
    final = await build(ToolLedger(), chronicle).execute("Go.", execution_id="run")
    assert final.final_text == "Billed."
    for state, _, _ in await recover_after_each_record(build, chronicle):
        assert state.final_text == "Billed."


async def test_sent_messages_survive_a_crash() -> None:
    """A message that was sent during a call is there after a crash, in the same place, once."""
    chronicle = CrashableJournal()

    def build(world: ToolLedger, journal: MemoryJournal) -> AgentLoop:
        loop: AgentLoop

        @tool(effect="pure")
        async def look() -> str:
            """Look."""
            if not any("Hurry" in record.body for record in chronicle.appended):
                loop.inbox("run").send("Hurry.")
                loop.inbox("run").send("Please.")
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            return "seen"

        loop = AgentLoop(ToolCallingDriver(Model([("look", {})], [("look", {})], "Done.")), [look], journal=journal)
        return loop

    final = await build(ToolLedger(), chronicle).execute("Go.", execution_id="run")
    texts = [message.text for message in final.messages if message.role == "user"]
    assert texts == ["Go.", "Hurry.", "Please."]
    sent = [i for i, r in enumerate(chronicle.appended) if r.kind is RecordKind.MESSAGES_SENT]
    assert sent
    for count in range(max(sent) + 1, len(chronicle.appended) + 1):
        state = await build(ToolLedger(), await chronicle.after_crash(count)).recover("run")
        assert [m.text for m in state.messages if m.role == "user"] == texts
        assert state.final_text == "Done."


async def test_budgets_count_the_usage_before_a_crash() -> None:
    """A recovered execution has the rest of its budget, and stops where the first run would have."""

    def build(world: ToolLedger, journal: MemoryJournal) -> AgentLoop:
        turns = [[("pay", {"n": n})] for n in range(6)]
        return AgentLoop(
            ToolCallingDriver(Model(*turns, "Done.")),
            [pay_tool(world)],
            interceptors=[Budget(tool_calls=3, wrap_up=False)],
            journal=journal,
        )

    chronicle = CrashableJournal()
    final = await build(ToolLedger(), chronicle).execute("Go.", execution_id="run")
    assert final.stop_signal is not None
    assert final.stop_signal.reason is StopReason.TOOL_CALL_LIMIT
    for state, _, _ in await recover_after_each_record(build, chronicle):
        assert state.stop_signal is not None
        assert (state.stop_signal.reason, state.tool_call_count) == (StopReason.TOOL_CALL_LIMIT, final.tool_call_count)


async def test_retries_have_one_intent() -> None:
    """However often a call is retried, the journal has one intent and one outcome; after a crash it is retried again."""

    def build(world: ToolLedger, journal: MemoryJournal) -> AgentLoop:
        @tool(effect="idempotent", retry=RetryPolicy(3, initial_wait=0.0))
        async def flaky(context: ToolContext) -> str:
            """Try."""
            world.effects[context.idempotency_key] += 1
            if world.effects[context.idempotency_key] < 3:
                raise ConnectionError("again")
            return "done"

        return AgentLoop(
            ToolCallingDriver(Model([("flaky", {})], "Done.")), [flaky], interceptors=[Resilience()], journal=journal
        )

    world, chronicle = ToolLedger(), CrashableJournal()
    await build(world, chronicle).execute("Go.", execution_id="run")
    kinds = [record.kind for record in chronicle.appended]
    assert world.effects["run/1/0"] == 3
    assert (kinds.count(RecordKind.CALL_INTENT), kinds.count(RecordKind.CALL_OUTCOME)) == (1, 1)
    for state, _, _ in await recover_after_each_record(build, chronicle):
        assert state.steps[0].executions[0].succeeded


async def test_the_stop_of_a_tool_is_recorded() -> None:
    """A tool that stopped the execution has stopped it, also when its outcome is reused."""

    def build(world: ToolLedger, journal: MemoryJournal) -> AgentLoop:
        @tool
        async def halt() -> str:
            """Stop."""
            raise AgentStop("enough")

        return AgentLoop(ToolCallingDriver(Model([("halt", {})], "Done.")), [halt], journal=journal)

    chronicle = CrashableJournal()
    final = await build(ToolLedger(), chronicle).execute("Go.", execution_id="run")
    assert final.stop_signal is not None
    intent = next(i for i, r in enumerate(chronicle.appended, 1) if r.kind is RecordKind.CALL_INTENT)
    for count, (state, _, _) in enumerate(await recover_after_each_record(build, chronicle), 1):
        if count != intent:
            assert state.stop_signal == final.stop_signal


async def test_changes_after_a_call_are_in_the_record_of_the_step() -> None:
    """A value that an interceptor masks after a call is masked in the recovered state as well."""

    class Mask(Interceptor):
        def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            return point.with_value("masked")

    def build(world: ToolLedger, journal: MemoryJournal) -> AgentLoop:
        return AgentLoop(
            ToolCallingDriver(Model([("pay", {"n": 1})], "Done.")),
            [pay_tool(world)],
            interceptors=[Mask()],
            journal=journal,
        )

    chronicle = CrashableJournal()
    await build(ToolLedger(), chronicle).execute("Go.", execution_id="run")
    for state, _, _ in await recover_after_each_record(build, chronicle):
        assert state.steps[0].executions[0].value == "masked"


@pytest.mark.parametrize("limit", [1, 2])
async def test_parallel_calls_recover_under_a_limit(limit: int) -> None:
    """Calls that wait for a slot have no intent and run; those that started are in doubt."""

    def build(world: ToolLedger, journal: MemoryJournal) -> AgentLoop:
        calls = [("pay", {"n": n}) for n in range(5)]
        return AgentLoop(
            ToolCallingDriver(Model(calls, "Done.")),
            [pay_tool(world)],
            executor=ToolExecutor(max_concurrency=limit),
            journal=journal,
        )

    chronicle = CrashableJournal()
    await build(ToolLedger(), chronicle).execute("Go.", execution_id="run")
    for count, (state, world, loop) in enumerate(await recover_after_each_record(build, chronicle), 1):
        intents = {
            r.body.split('"key":"')[1].split('"')[0] for r in chronicle.appended[:count] if r.kind == "call_intent"
        }
        settled = {
            r.body.split('"key":"')[1].split('"')[0] for r in chronicle.appended[:count] if r.kind == "call_outcome"
        }
        doubted = {execution.key for execution in state.steps[0].executions if execution.status is ToolStatus.IN_DOUBT}
        assert doubted == intents - settled
        assert set(world.effects) == {f"run/1/{n}" for n in range(5)} - intents
        assert isinstance(loop.journal, MemoryJournal)


async def test_recovery_reports_every_started_call() -> None:
    """Each call that started is reported, with how it was recovered."""
    chronicle = CrashableJournal()
    await family(ToolLedger(), chronicle).execute("Go.", execution_id="run")
    started = next(i for i, r in enumerate(chronicle.appended, 1) if r.kind == "call_intent" and "agent/2/0" in r.body)
    recoveries: list[ToolCallRecovered] = []
    loop = family(ToolLedger(), await chronicle.after_crash(started))
    loop.on(ToolCallRecovered, recoveries.append)
    await loop.recover("run")
    assert {(event.key, event.recovery.value) for event in recoveries} >= {
        ("run/1/0", "continued"),
        ("run/1/0/agent/2/0", "in_doubt"),
    }
