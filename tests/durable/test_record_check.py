"""The model of records: it accepts what the package writes, and finds what nobody may write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from attrs import evolve

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal, check_journal, fork
from agentloop.durable.record_rules import ExecutionModel, Move, Stage, WaitingCall, advance
from agentloop.interception import RequireApproval
from agentloop.testing.journal_bench import append_claimed
from agentloop.values import approve
from agentloop.values.records import JournalRecord, RecordKind
from tests.durable.records import make_head, make_records

KEY = "e/1/0"
START = Move(kind=RecordKind.EXECUTION_STARTED)
INTENT = Move(kind=RecordKind.CALL_INTENT, key=KEY, name="pay", effect="effect")
OUTCOME = Move(kind=RecordKind.CALL_OUTCOME, key=KEY)
STEP = Move(kind=RecordKind.STEP_COMPLETED, step=1, settled=frozenset({KEY}))
END = Move(kind=RecordKind.EXECUTION_ENDED, step=1, is_complete=True)
WAITS = Move(kind=RecordKind.EXECUTION_SUSPENDED, step=1, waiting=(WaitingCall(KEY, "d"),))
DECISION = Move(kind=RecordKind.DECISION_USED, key=KEY, digest="d", permits=True)
DENIAL = evolve(DECISION, permits=False)
RESUMED = Move(kind=RecordKind.EXECUTION_RESUMED)
RECOVERED = Move(kind=RecordKind.EXECUTION_RECOVERED)
SENT = Move(kind=RecordKind.MESSAGES_SENT, messages=("m",), command="c")
TAKEN = Move(kind=RecordKind.MESSAGES_TAKEN, messages=("m",))


def judge(*moves: Move) -> list[str]:
    """Return the rules that a history breaks."""
    model, broken = ExecutionModel(), list[str]()
    for move in moves:
        model, problems = advance(model, move)
        broken += problems
    return broken


@pytest.mark.parametrize(
    "moves",
    [
        (START, INTENT, OUTCOME, STEP, END),
        (START, INTENT, RECOVERED, INTENT, OUTCOME, STEP, END),
        (START, WAITS, DECISION, RESUMED, INTENT, OUTCOME, STEP, END),
        (START, WAITS, DENIAL, RESUMED, STEP, END),
        (START, SENT, RECOVERED, TAKEN, END),
    ],
)
def test_what_may_be_written_breaks_no_rule(moves: Sequence[Move]) -> None:
    """The model accepts histories of each kind."""
    assert judge(*moves) == []


@pytest.mark.parametrize(
    ("moves", "problem"),
    [
        ((START, START), "execution_started while the execution is running"),
        ((INTENT,), "call_intent while the execution is new"),
        ((START, END, RECOVERED), "while the execution is ended"),
        ((START, INTENT, INTENT), "starts twice without an interruption"),
        ((START, INTENT, OUTCOME, RECOVERED, INTENT), "starts although its outcome is recorded"),
        ((START, evolve(INTENT, key="e/2/0")), "starts in step 1"),
        ((START, OUTCOME), "ends and has not started"),
        ((START, INTENT, OUTCOME, OUTCOME), "ends although its outcome is recorded"),
        ((START, INTENT, evolve(STEP, settled=frozenset())), "does not tell how it ended"),
        ((START, INTENT, OUTCOME, WAITS), "waits although its outcome is recorded"),
        ((START, WAITS, RESUMED, INTENT), "without a decision that lets it run"),
        ((START, WAITS, DENIAL, RESUMED, INTENT), "without a decision that lets it run"),
        ((START, WAITS, DECISION, DECISION), "a second decision"),
        ((START, WAITS, evolve(DECISION, digest="x")), "another suspension"),
        ((START, WAITS, evolve(DECISION, key="e/1/1")), "which does not wait"),
        ((START, evolve(WAITS, waiting=())), "no call waits"),
        ((START, evolve(END, waiting=WAITS.waiting)), "has ended while calls wait"),
        ((START, evolve(STEP, step=2)), "step 2 follows step 0"),
        ((START, TAKEN), "was not sent"),
        ((START, SENT, TAKEN, TAKEN), "was taken before"),
        ((START, SENT, SENT), "delivers its message twice"),
        ((START, SENT, END), "was not taken"),
    ],
)
def test_what_must_not_be_written_breaks_a_rule(moves: Sequence[Move], problem: str) -> None:
    """Each rule can be broken, and only the last move breaks it."""
    assert judge(*moves[:-1]) == []
    assert [broken for broken in judge(*moves) if problem in broken], judge(*moves)


def test_the_model_goes_on_behind_a_broken_rule() -> None:
    """One wrong record is one finding."""
    model, problems = advance(ExecutionModel(stage=Stage.ENDED), START)
    assert problems
    assert model.stage is Stage.RUNNING


@tool
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


CALL = ToolCall("1", "pay", '{"cents": 5}')


async def store() -> MemoryJournal:
    """Return a journal with an agent that waited inside of a call, and with a fork."""
    journal = MemoryJournal()
    inner = AgentLoop.for_model(ScriptedInference(CALL, "paid"), tools=[pay], interceptors=[RequireApproval(["pay"])])
    agent = inner.as_tool("helper", "Helps.")
    loop = AgentLoop.for_model(
        ScriptedInference([ToolCall("1", "helper", '{"task": "go"}'), CALL], "done"),
        tools=[agent, pay],
        journal=journal,
    )
    state = await loop.execute("go", execution_id="e")
    await loop.resume("e", {state.pending[0].inner[0].key: approve()})
    again = loop.replace(driver=AgentLoop.for_model(ScriptedInference(CALL, "done")).driver)
    await again.recover(await fork(journal, "e", at_step=0))
    return journal


def test_what_the_package_writes_breaks_no_rule() -> None:
    """Agents, decisions and forks are as the model says."""
    journal = asyncio.run(store())
    assert len(asyncio.run(journal.list())) == 3
    assert not asyncio.run(check_journal(journal))


def test_what_does_not_fit_together_is_found() -> None:
    """An agent whose caller is missing, and a head that does not say what the records say, are findings."""

    async def find() -> list[str]:
        source, journal = await store(), MemoryJournal()
        for execution_id in ("e/1/0/agent", "e/fork-1"):
            head, records = await source.head(execution_id), await source.read(execution_id)
            assert head is not None
            kept = records if execution_id == "e/fork-1" else records[:-1]
            changed = evolve(head, record_count=len(kept), last_hash=kept[-1].hash)
            await append_claimed(journal, changed, list[JournalRecord](kept))
        return [finding.problem for finding in await check_journal(journal)]

    problems = asyncio.run(find())
    assert "it serves a call of e, which is not recorded" in problems
    assert "its head says completed, and its records say running" in problems


def test_records_that_cannot_be_read_are_found() -> None:
    """A record of another form is a finding, and no error."""

    async def find() -> list[str]:
        journal = MemoryJournal()
        records = make_records("e", "{}", "{}")
        await append_claimed(journal, make_head(records), records)
        return [finding.problem for finding in await check_journal(journal, "e")]

    assert any("cannot be read" in problem for problem in asyncio.run(find()))
