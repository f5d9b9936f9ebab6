"""Workers as processes: what happens to their work when they die, are drained, or must not start."""

from __future__ import annotations

import asyncio
import signal

import pytest

from agentloop.service.cluster import Cluster, engine_worker
from agentloop.values import ExecutionStatus, Message
from agentloop.values.records import RecordKind
from tests.service.cluster import agents
from tests.service.cluster.workers import AGENT, MAINLY_POSTGRES, MAINLY_SQLITE, Workers, eventually


def test_a_worker_looks_for_dead_ones_each_second() -> None:
    """So it takes over within five seconds, which no test measures: a busy machine takes longer for everything."""
    assert engine_worker._WATCH_INTERVAL <= 1


@MAINLY_POSTGRES
async def test_another_worker_continues_the_executions_of_a_killed_one(db: str, workers: Workers) -> None:
    first = workers.start("first")
    async with Cluster(db) as cluster:
        await cluster.submit(AGENT, "mark a, pause b", execution_id="moved")
        await eventually(lambda: len(agents.ledger()) == 2)
        second = workers.start("second")
        first.send(signal.SIGKILL)
        await eventually(lambda: len(agents.ledger()) == 3)
        (agents.folder() / "b").touch()
        state = await cluster.result("moved")
        second.send(signal.SIGTERM)
        assert await asyncio.to_thread(second.exit_code) == 0

    assert state.status is ExecutionStatus.COMPLETED
    assert agents.ledger() == ["moved/1/0:a", "moved/2/0:b", "moved/2/0:b"]  # the interrupted call, with the same key


@MAINLY_SQLITE
async def test_a_drained_worker_hands_over_at_once_and_nothing_is_stopped(db: str, workers: Workers) -> None:
    first = workers.start("first", "--drain-grace", "0")
    async with Cluster(db) as cluster:
        await cluster.submit(AGENT, "pause b", execution_id="moved")
        await eventually(lambda: len(agents.ledger()) == 1)
        second = workers.start("second")
        first.send(signal.SIGTERM)
        assert await asyncio.to_thread(first.exit_code) == 0
        assert "handed over" in "".join(first.lines)
        await eventually(lambda: len(agents.ledger()) == 2)
        (agents.folder() / "b").touch()
        state = await cluster.result("moved")
        kinds = [record.kind for record in await cluster.journal.read("moved")]
        second.send(signal.SIGTERM)
        assert await asyncio.to_thread(second.exit_code) == 0

    assert state.status is ExecutionStatus.COMPLETED
    assert kinds.count(RecordKind.EXECUTION_ENDED) == 1


@MAINLY_POSTGRES
async def test_a_second_worker_of_one_name_refuses_to_start_until_the_first_has_died(db: str, workers: Workers) -> None:
    first = workers.start("one")
    second = workers.launch("one")
    assert await asyncio.to_thread(second.exit_code) == 2
    assert "a worker named 'one' is running" in "".join(second.lines)
    first.send(signal.SIGKILL)
    assert await asyncio.to_thread(first.exit_code) == -signal.SIGKILL
    workers.start("one")


@MAINLY_SQLITE
async def test_an_execution_that_kills_its_workers_ends_as_failed_after_the_cap(db: str, workers: Workers) -> None:
    async with Cluster(db) as cluster:
        await cluster.submit(AGENT, "mark a, die now", execution_id="poison")
        for number in range(3):
            workers.start(f"victim-{number}", "--max-recoveries", "1")
        state = await cluster.result("poison")

    assert state.status is ExecutionStatus.FAILED
    assert state.errors[-1].type == "TooManyRecoveries"
    assert agents.ledger().count("died") == 2


@pytest.mark.heavy
async def test_an_execution_that_kills_its_workers_takes_no_other_with_it(db: str, workers: Workers) -> None:
    names = [f"innocent-{number}" for number in range(3)]
    async with Cluster(db) as cluster:
        for name in names:
            await cluster.submit(AGENT, "pause go", execution_id=name)
        await cluster.submit(AGENT, "die now", execution_id="poison")
        for number in range(2):
            victim = workers.start(f"victim-{number}", "--max-recoveries", "2")
            assert await asyncio.to_thread(victim.exit_code) == agents.DEATH
        (agents.folder() / "go").touch()
        for number in range(2, 4):
            workers.start(f"victim-{number}", "--max-recoveries", "2")
        states = [await cluster.result(name) for name in names]
        poison = await cluster.result("poison")

    assert {state.status for state in states} == {ExecutionStatus.COMPLETED}
    assert poison.status is ExecutionStatus.FAILED


@MAINLY_SQLITE
async def test_an_agent_moves_from_memory_to_two_workers_by_one_argument_and_one_command(
    db: str, workers: Workers
) -> None:
    here = await agents.loop.execute("mark a, mark b")

    workers.start("first")
    workers.start("second")
    async with Cluster(db) as cluster:
        ids = [await cluster.submit(AGENT, Message.user("mark a, mark b")) for _ in range(4)]
        states = [await cluster.result(execution_id) for execution_id in ids]

    assert {state.final_text for state in states} == {here.final_text}
    assert len(agents.ledger()) == 10
