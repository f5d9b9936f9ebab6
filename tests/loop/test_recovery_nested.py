"""Recovery of what runs inside of a run: agents that serve calls, handed over conversations, messages, retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
from agentloop.events import ProtocolMonitor, ToolCallRecovered
from agentloop.interception import AfterToolUse, RequireApproval, Resilience
from agentloop.journal import MemoryJournal
from agentloop.journal.chain import verify_records
from agentloop.journal.fold import fold_records
from agentloop.testing import Chronicle
from agentloop.values import ExecutionStatus, RecordKind, RetryPolicy, StopReason, ToolStatus, approve
from tests.loop.recovery_bench import Model, Turn, World


def pay_tool(world: World) -> Any:
    """Return a tool with an effect."""

    @tool
    async def pay(n: int, context: ToolContext) -> str:
        """Pay."""
        world.effects[context.idempotency_key] += 1
        return f"paid {n}"

    return pay


def family(world: World, journal: MemoryJournal, **parts: Any) -> AgentLoop:
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


async def crashes(
    build: Callable[[World, MemoryJournal], AgentLoop], chronicle: Chronicle, execution_id: str = "run"
) -> list[tuple[AgentState, World, AgentLoop]]:
    """Recover from a crash after each record; return what came of each."""
    found = []
    for count in range(1, len(chronicle.order) + 1):
        journal = await chronicle.crashed_after(count)
        if await journal.head(execution_id) is None:
            continue
        world = World()
        loop = build(world, journal)
        monitor = ProtocolMonitor()
        loop.wiretap(monitor)
        state = await loop.recover(execution_id)
        monitor.check()
        for head in await journal.list():
            told = fold_records(
                verify_records(await journal.read(head.execution_id), head.execution_id), head.execution_id
            )
            assert told.state is not None
            assert told.state.status is head.status
        found.append((state, world, loop))
    return found


async def test_agents_recover_with_their_callers() -> None:
    """Wherever it is cut short, an agent goes on from its own records: no effect of its is repeated, none is lost."""
    world, chronicle = World(), Chronicle()
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
        r.body.split('"key":"')[1].split('"')[0]: i for i, r in enumerate(chronicle.order) if r.kind == "call_outcome"
    }
    intents = {
        r.body.split('"key":"')[1].split('"')[0]: i for i, r in enumerate(chronicle.order) if r.kind == "call_intent"
    }
    for count, (state, again, _) in enumerate(await crashes(family, chronicle), 1):
        assert state.final_text == final.final_text
        for key in world.effects:
            begun, settled = intents[key] < count, outcomes[key] < count
            assert again.effects[key] == (0 if begun else 1), (count, key, settled)


async def test_an_agent_that_waits_recovers_with_its_caller() -> None:
    """Approvals inside of an agent surface in the caller's state, also after a crash, and are used once."""

    def build(world: World, journal: MemoryJournal) -> AgentLoop:
        return family(world, journal, child_interceptors=[RequireApproval("pay")])

    world, chronicle = World(), Chronicle()
    loop = build(world, chronicle)
    state = await loop.execute("Go.", execution_id="run")
    while state.pending:
        state = await loop.resume(
            "run", {one.key: approve() for one in state.pending if not (one.waits_for or one.inner)}
        )
    assert state.status is ExecutionStatus.COMPLETED
    assert set(world.effects.values()) == {1}
    intents = {
        r.body.split('"key":"')[1].split('"')[0]: i for i, r in enumerate(chronicle.order) if r.kind == "call_intent"
    }
    for count in range(1, len(chronicle.order) + 1):
        journal = await chronicle.crashed_after(count)
        kinds = [r.kind for r in chronicle.order[:count]]
        if kinds[-1] is RecordKind.DECISION_USED:
            continue  # written in one group with the resumption
        again = World()
        loop = build(again, journal)
        state = await loop.recover("run")
        for _ in range(6):
            if not state.pending:
                break
            decisions = {one.key: approve() for one in state.pending if not (one.waits_for or one.inner)}
            state = await loop.resume("run", decisions)
        assert state.status is ExecutionStatus.COMPLETED, (count, state.explain())
        for key in world.effects:
            assert again.effects[key] <= (0 if intents[key] < count else 1), (count, key)


async def test_a_handed_over_conversation_recovers_with_the_loop_that_has_it() -> None:
    """After a handover the other loop goes on, also when the program has died meanwhile."""

    def build(world: World, journal: MemoryJournal) -> AgentLoop:
        billing = AgentLoop(ToolCallingDriver(Model("?", [("pay", {"n": 1})], "Billed.")), [pay_tool(world)])
        desk = Model([("transfer_to_billing", {})])
        return AgentLoop(
            ToolCallingDriver(desk),
            [handoff_to(billing, name="transfer_to_billing", description="For bills.")],
            journal=journal,
        )

    chronicle = Chronicle()
    final = await build(World(), chronicle).execute("Go.", execution_id="run")
    assert final.final_text == "Billed."
    for state, _, _ in await crashes(build, chronicle):
        assert state.final_text == "Billed."


async def test_messages_that_were_sent_are_not_lost() -> None:
    """A message that was sent while a call ran is there after a crash, at the same place, once."""
    chronicle = Chronicle()

    def build(world: World, journal: MemoryJournal) -> AgentLoop:
        loop: AgentLoop

        @tool(effect="pure")
        async def look() -> str:
            """Look."""
            if not any("Hurry" in record.body for record in chronicle.order):
                loop.inbox("run").send("Hurry.")
                loop.inbox("run").send("Please.")
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            return "seen"

        loop = AgentLoop(ToolCallingDriver(Model([("look", {})], [("look", {})], "Done.")), [look], journal=journal)
        return loop

    final = await build(World(), chronicle).execute("Go.", execution_id="run")
    texts = [message.text for message in final.messages if message.role == "user"]
    assert texts == ["Go.", "Hurry.", "Please."]
    sent = [i for i, r in enumerate(chronicle.order) if r.kind is RecordKind.MESSAGES_SENT]
    assert sent
    for count in range(max(sent) + 1, len(chronicle.order) + 1):
        state = await build(World(), await chronicle.crashed_after(count)).recover("run")
        assert [m.text for m in state.messages if m.role == "user"] == texts
        assert state.final_text == "Done."


async def test_budgets_count_what_was_spent_before_the_crash() -> None:
    """A recovered execution has what was left of its budget, and stops where the first would have."""

    def build(world: World, journal: MemoryJournal) -> AgentLoop:
        turns = [[("pay", {"n": n})] for n in range(6)]
        return AgentLoop(
            ToolCallingDriver(Model(*turns, "Done.")),
            [pay_tool(world)],
            interceptors=[Budget(tool_calls=3, wrap_up=False)],
            journal=journal,
        )

    chronicle = Chronicle()
    final = await build(World(), chronicle).execute("Go.", execution_id="run")
    assert final.stop_signal is not None
    assert final.stop_signal.reason is StopReason.TOOL_CALL_LIMIT
    for state, _, _ in await crashes(build, chronicle):
        assert state.stop_signal is not None
        assert (state.stop_signal.reason, state.tool_call_count) == (StopReason.TOOL_CALL_LIMIT, final.tool_call_count)


async def test_retries_have_one_intent() -> None:
    """However often a call is tried, it begins once and ends once in the journal; after a crash it is tried anew."""

    def build(world: World, journal: MemoryJournal) -> AgentLoop:
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

    world, chronicle = World(), Chronicle()
    await build(world, chronicle).execute("Go.", execution_id="run")
    kinds = [record.kind for record in chronicle.order]
    assert world.effects["run/1/0"] == 3
    assert (kinds.count(RecordKind.CALL_INTENT), kinds.count(RecordKind.CALL_OUTCOME)) == (1, 1)
    for state, _, _ in await crashes(build, chronicle):
        assert state.steps[0].executions[0].succeeded


async def test_a_stop_that_a_tool_asks_for_is_recorded() -> None:
    """A tool that stops the execution has stopped it, also when its outcome is used again."""

    def build(world: World, journal: MemoryJournal) -> AgentLoop:
        @tool
        async def halt() -> str:
            """Stop."""
            raise AgentStop("enough")

        return AgentLoop(ToolCallingDriver(Model([("halt", {})], "Done.")), [halt], journal=journal)

    chronicle = Chronicle()
    final = await build(World(), chronicle).execute("Go.", execution_id="run")
    assert final.stop_signal is not None
    intent = next(i for i, r in enumerate(chronicle.order, 1) if r.kind is RecordKind.CALL_INTENT)
    for count, (state, _, _) in enumerate(await crashes(build, chronicle), 1):
        if count != intent:
            assert state.stop_signal == final.stop_signal


async def test_what_after_points_change_is_in_the_record_of_the_step() -> None:
    """A value that an interceptor masks after a call is masked in the recovered state, too."""

    class Mask(Interceptor):
        def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            return point.with_value("masked")

    def build(world: World, journal: MemoryJournal) -> AgentLoop:
        return AgentLoop(
            ToolCallingDriver(Model([("pay", {"n": 1})], "Done.")),
            [pay_tool(world)],
            interceptors=[Mask()],
            journal=journal,
        )

    chronicle = Chronicle()
    await build(World(), chronicle).execute("Go.", execution_id="run")
    for state, _, _ in await crashes(build, chronicle):
        assert state.steps[0].executions[0].value == "masked"


@pytest.mark.parametrize("limit", [1, 2])
async def test_parallel_calls_recover_under_a_cap(limit: int) -> None:
    """Calls that wait for their turn have no intent; those that had begun are in doubt, the others run."""

    def build(world: World, journal: MemoryJournal) -> AgentLoop:
        calls = [("pay", {"n": n}) for n in range(5)]
        return AgentLoop(
            ToolCallingDriver(Model(calls, "Done.")),
            [pay_tool(world)],
            executor=ToolExecutor(max_concurrency=limit),
            journal=journal,
        )

    chronicle = Chronicle()
    await build(World(), chronicle).execute("Go.", execution_id="run")
    for count, (state, world, loop) in enumerate(await crashes(build, chronicle), 1):
        intents = {r.body.split('"key":"')[1].split('"')[0] for r in chronicle.order[:count] if r.kind == "call_intent"}
        settled = {
            r.body.split('"key":"')[1].split('"')[0] for r in chronicle.order[:count] if r.kind == "call_outcome"
        }
        doubted = {one.key for one in state.steps[0].executions if one.status is ToolStatus.IN_DOUBT}
        assert doubted == intents - settled
        assert set(world.effects) == {f"run/1/{n}" for n in range(5)} - intents
        assert isinstance(loop.journal, MemoryJournal)


async def test_recovery_tells_what_it_does() -> None:
    """Each call that had begun is told, with what becomes of it."""
    chronicle = Chronicle()
    await family(World(), chronicle).execute("Go.", execution_id="run")
    begun = next(i for i, r in enumerate(chronicle.order, 1) if r.kind == "call_intent" and "agent/2/0" in r.body)
    told: list[ToolCallRecovered] = []
    loop = family(World(), await chronicle.crashed_after(begun))
    loop.on(ToolCallRecovered, told.append)
    await loop.recover("run")
    assert {(one.key, one.recovery.value) for one in told} >= {
        ("run/1/0", "continued"),
        ("run/1/0/agent/2/0", "in_doubt"),
    }
