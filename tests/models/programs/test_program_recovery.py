"""Programs under a journal: whatever record is the last, no call of a program is lost or made twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agentloop import AgentLoop, RequireApproval, ToolCallingDriver, ToolContext, tool
from agentloop.durable import MemoryJournal, Redaction
from agentloop.events import ProtocolMonitor, ToolCallRecovered
from agentloop.models import RunProgram
from agentloop.testing import CrashableJournal
from agentloop.values import Decision, ExecutionStatus, InDoubt, RecordKind, ToolStatus, approve, deny, edit
from agentloop.values.decisions import Approve, Deny
from tests.durable.recovery_bench import Model, ToolLedger

SOURCE = """
import asyncio
first = await pay(n=1)
both = await asyncio.gather(pay(n=2), look(n=3))
print(first, both)
last = await pay(n=len(both) + 2)
last
"""


def build(
    world: ToolLedger, journal: MemoryJournal, *, source: str = SOURCE, mode: str = "native", **parts: Any
) -> AgentLoop:
    """Return a loop that runs a program, and makes a call after it."""

    @tool
    async def pay(n: int, context: ToolContext) -> str:
        """Pay."""
        world.effects[context.idempotency_key] += 1
        return f"paid {n}"

    @tool(effect="pure")
    async def look(n: int, context: ToolContext) -> int:
        """Look."""
        world.effects[context.idempotency_key] += 1
        return n

    @tool(effect="pure")
    async def reveal(context: ToolContext) -> str:
        """Return a secret."""
        world.effects[context.idempotency_key] += 1
        return "topsecret"

    @tool
    async def tell(word: str, context: ToolContext) -> str:
        """Use a secret."""
        world.effects[context.idempotency_key] += 1
        return "used"

    calls = [("run_program", {"code": source}), *([] if mode == "program" else [("pay", {"n": 9})])]
    driver = ToolCallingDriver(Model(calls, "Done."), mode=mode)  # type: ignore[arg-type]  # a name
    return AgentLoop(driver, [pay, look, reveal, tell, RunProgram()], journal=journal, **parts)


class SecretJournal(CrashableJournal):
    """A journal that masks a secret."""

    def __init__(self) -> None:
        super().__init__()
        self._redaction = Redaction(["topsecret"])

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        """Mask the secret."""
        return self._redaction.redact(body)


def places(chronicle: CrashableJournal, kind: RecordKind) -> dict[str, int]:
    """Return the position of the first record of this kind for each call, by key."""
    found: dict[str, int] = {}
    for position, record in enumerate(chronicle.appended, 1):
        body = json.loads(record.body)
        if record.kind is kind:
            key = body["intent"]["key"] if "intent" in body else body["execution"]["key"]
            found.setdefault(key, position)
    return found


async def after_each_record(
    chronicle: CrashableJournal, make: Callable[[ToolLedger, MemoryJournal], AgentLoop], *, decide: Any = None
) -> list[tuple[int, Any, ToolLedger]]:
    """Recover from a crash after each record; return how many records there were, the final state and what ran."""
    results = []
    for count in range(1, len(chronicle.appended) + 1):
        if chronicle.appended[count - 1].kind is RecordKind.DECISION_USED:
            continue  # written in one group with the resumption
        journal, world = await chronicle.after_crash(count), ToolLedger()
        loop, monitor = make(world, journal), ProtocolMonitor()
        loop.wiretap(monitor)
        state = await loop.recover("run")
        while state.pending and decide is not None:
            state = await loop.resume("run", {call.key: decide(call) for call in state.pending if not call.waits_for})
        monitor.check()
        results.append((count, state, world))
    return results


@pytest.mark.parametrize("mode", ["native", "program"])
async def test_programs_recover_after_each_record(mode: str) -> None:
    """A call that started is not started again, and one that did not is made; the outcome is that of the first run."""

    def make(world: ToolLedger, journal: MemoryJournal) -> AgentLoop:
        return build(world, journal, mode=mode)

    world, chronicle = ToolLedger(), CrashableJournal()
    final = await make(world, chronicle).execute("Go.", execution_id="run")
    expected = final.steps[0].executions[0]
    assert expected.value == {"printed": "paid 1 ['paid 2', 3]\n", "value": "paid 4"}
    assert [inner.key for inner in expected.inner] == [f"run/1/0/program/{number}" for number in range(4)]
    intents, outcomes = places(chronicle, RecordKind.CALL_INTENT), places(chronicle, RecordKind.CALL_OUTCOME)
    for count, state, again in await after_each_record(chronicle, make):
        assert state.status is ExecutionStatus.COMPLETED
        (outer, *_) = state.steps[0].executions
        # A call in doubt raises in the program, which does not handle that.
        made = [inner.key for inner in outer.inner]
        assert made == [inner.key for inner in expected.inner][: len(made)]
        for inner in outer.inner:
            is_pure = inner.name == "look"
            in_doubt = intents[inner.key] <= count < outcomes[inner.key]
            started = intents[inner.key] <= count and not (is_pure and in_doubt)
            assert again.effects[inner.key] == (0 if started else 1), (count, inner.key)
            if in_doubt and not is_pure:
                assert inner.status is ToolStatus.IN_DOUBT
        if not any(inner.status is ToolStatus.IN_DOUBT for inner in outer.inner):
            assert outer.value == expected.value


@pytest.mark.heavy  # hundreds of runs, each after another crash
async def test_programs_wait_for_decisions_across_crashes() -> None:
    """Every payment of a program waits for a person; with a crash after any record, each is made once."""

    def make(world: ToolLedger, journal: MemoryJournal) -> AgentLoop:
        return build(world, journal, interceptors=[RequireApproval("pay")])

    world, chronicle = ToolLedger(), CrashableJournal()
    loop = make(world, chronicle)
    state = await loop.execute("Go.", execution_id="run")
    rounds = 0
    while state.pending:
        rounds += 1
        decisions = {call.key: approve(call.digest) for call in state.pending if not call.waits_for}
        state = await make(world, chronicle).resume("run", decisions)
    assert rounds == 4
    assert state.status is ExecutionStatus.COMPLETED
    assert set(world.effects.values()) == {1}
    assert len(world.effects) == 5
    intents = places(chronicle, RecordKind.CALL_INTENT)
    results = await after_each_record(chronicle, make, decide=lambda call: approve(call.digest))
    for count, recovered, again in results:
        assert recovered.status is ExecutionStatus.COMPLETED
        for key in world.effects:
            started = intents[key] <= count and not key.endswith("/program/2")  # a pure call runs again
            assert again.effects[key] <= (0 if started else 1), (count, key)


async def test_a_denied_call_raises_in_the_program() -> None:
    """The program goes on after a denial, in another process; the denied call does not run."""
    source = "try:\n    await pay(n=1)\nexcept PermissionError as error:\n    print(error)\nawait pay(n=2)"
    world, journal = ToolLedger(), MemoryJournal()

    def make() -> AgentLoop:
        return build(world, journal, source=source, mode="program", interceptors=[RequireApproval("pay")])

    state = await make().execute("Go.", execution_id="run")
    for decision in (deny("too much"), approve()):
        state = await make().resume("run", {call.key: decision for call in state.pending if not call.waits_for})
    assert state.steps[0].executions[0].text == "pay: ToolBlocked: too much\npaid 2"
    assert dict(world.effects) == {"run/1/0/program/1": 1}


async def test_a_program_that_is_denied_keeps_what_it_did() -> None:
    """Who denies the call of the program itself ends it; the calls that it made stay in its execution."""
    source = "await look(n=1)\nawait pay(n=2)"
    world, journal = ToolLedger(), MemoryJournal()
    loop = build(world, journal, source=source, mode="program", interceptors=[RequireApproval("pay")])
    state = await loop.execute("Go.", execution_id="run")
    state = await loop.resume("run", {"run/1/0": deny("enough")})
    (outer,) = state.steps[0].executions
    assert outer.was_blocked
    assert [(inner.name, inner.status.value) for inner in outer.inner] == [("look", "succeeded"), ("pay", "cancelled")]
    assert state.tool_call_count == 3


async def test_a_program_with_a_masked_outcome_runs_on_the_mask() -> None:
    """The truth is the record: after a crash a program sees what was recorded, and a masked argument does not run."""
    source = "word = await reveal()\nawait tell(word=word)\nawait pay(n=1)"
    world, chronicle = ToolLedger(), SecretJournal()
    await build(world, chronicle, source=source, mode="program").execute("Go.", execution_id="run")
    assert len(world.effects) == 3
    assert "topsecret" not in "".join(str(record.body) for record in chronicle.appended)
    position = places(chronicle, RecordKind.CALL_OUTCOME)["run/1/0/program/0"]
    again = ToolLedger()
    state = await build(again, await chronicle.after_crash(position), source=source, mode="program").recover("run")
    (outer,) = state.steps[0].executions
    assert outer.status is ToolStatus.FAILED
    assert "was masked in the journal" in outer.error_message
    assert not again.effects


async def test_a_masked_program_in_doubt_can_be_approved() -> None:
    """It does not run again, since a secret in it was not recorded; the model reads that, and the execution goes on."""
    source = "await pay(n=1)\nawait tell(word='topsecret')"
    world, chronicle = ToolLedger(), SecretJournal()
    loop = build(world, chronicle, source=source, mode="program", interceptors=[RequireApproval("pay")])
    waiting = await loop.execute("Go.", execution_id="run")
    await loop.resume(waiting, {call.key: approve() for call in waiting.pending if not call.waits_for})
    position = places(chronicle, RecordKind.CALL_OUTCOME)["run/1/0/program/0"]
    again = ToolLedger()
    loop = build(again, await chronicle.after_crash(position), source=source, mode="program")
    state = await loop.recover("run", in_doubt=InDoubt.SUSPEND)
    assert [call.key for call in state.pending] == ["run/1/0"]
    state = await loop.resume("run", {"run/1/0": approve()})
    assert state.status is ExecutionStatus.COMPLETED, state.explain()
    (outer,) = state.steps[0].executions
    assert outer.status is ToolStatus.FAILED
    assert "was masked in the journal" in outer.error_message
    assert not again.effects


@pytest.mark.parametrize(
    "decision", [approve(), deny("no"), edit({"code": "await pay(n=7)"})], ids=["approve", "deny", "edit"]
)
async def test_a_program_whose_tool_was_away_keeps_its_outcomes(decision: Decision) -> None:
    """Its call is in doubt. When it is approved, only what has no outcome is made; when it is denied, what ran is known."""
    world, chronicle = ToolLedger(), CrashableJournal()
    source = "first = await pay(n=1)\nlast = await pay(n=2)\n[first, last]"
    await build(world, chronicle, source=source).execute("Go.", execution_id="run")
    position = places(chronicle, RecordKind.CALL_OUTCOME)["run/1/0/program/0"]
    again, journal = ToolLedger(), await chronicle.after_crash(position)
    loop = build(again, journal, source=source)
    away = loop.replace(tools=[each for each in loop.tools if each.name != "run_program"])
    state = await away.recover("run", in_doubt=InDoubt.SUSPEND)
    (pending,) = [call for call in state.pending if not call.waits_for]
    assert pending.key == "run/1/0"
    state = await loop.resume("run", {pending.key: decision})
    assert state.status is ExecutionStatus.COMPLETED, state.explain()
    outer = state.steps[0].executions[0]
    made = [(inner.key, inner.status) for inner in outer.inner]
    first, last = ("run/1/0/program/0", ToolStatus.SUCCEEDED), ("run/1/0/program/1", ToolStatus.SUCCEEDED)
    if isinstance(decision, Approve):
        assert outer.succeeded
        assert made == [first, last]
    else:
        assert outer.status is (ToolStatus.BLOCKED if isinstance(decision, Deny) else ToolStatus.IN_DOUBT)
        assert made == [first]
    assert again.effects["run/1/0/program/0"] == 0
    assert again.effects["run/1/0/program/1"] == (1 if isinstance(decision, Approve) else 0)


async def test_a_changed_order_of_calls_is_in_doubt() -> None:
    """A program that makes another call than was recorded does not go on: its call is in doubt, and nothing runs twice."""
    world, chronicle = ToolLedger(), CrashableJournal()
    await build(world, chronicle, mode="program").execute("Go.", execution_id="run")
    outcomes = places(chronicle, RecordKind.CALL_OUTCOME)
    position = outcomes["run/1/0/program/0"]
    journal = await chronicle.after_crash(position)

    class Renumbered(RunProgram):
        """Runs another program than the model wrote."""

        async def use(self, *_: Any, code: str) -> Any:
            return await super().use(code=code.replace("n=1", "n=7"))

    again = ToolLedger()
    loop = build(again, journal, mode="program")
    loop = loop.replace(tools=[*[t for t in loop.tools if t.name != "run_program"], Renumbered()])
    events: list[Any] = []
    loop.on(ToolCallRecovered, events.append)
    state = await loop.recover("run", in_doubt=InDoubt.TELL)
    (outer,) = state.steps[0].executions
    assert outer.status is ToolStatus.IN_DOUBT
    assert "makes other calls than before" in outer.error_message
    assert [inner.key for inner in outer.inner] == ["run/1/0/program/0"]
    assert not again.effects
