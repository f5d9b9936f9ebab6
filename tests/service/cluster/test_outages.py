"""Workers that cannot reach their database: what they do, and what does not count against their executions."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any

import psycopg
import pytest
from dbos._sys_db import SystemDatabase
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from agentloop import AgentLoop, ScriptedInference
from agentloop.errors import AgentLoopError, DatabaseUnavailable, JournalBusy
from agentloop.service.cluster import Cluster, Worker
from agentloop.service.cluster.database import ClusterDatabase
from agentloop.service.cluster.engine import Engine
from agentloop.service.cluster.executions import ExecutionJobs
from agentloop.service.cluster.postgres_liveness import PostgresLocks
from agentloop.service.cluster.rows import DEATHS
from agentloop.values import ExecutionStatus
from agentloop.values.jobs import Job, JobKind, RunningJob, WorkerNote
from tests.limits import LONGEST
from tests.postgres import PostgresServer, TcpProxy
from tests.service.cluster import agents
from tests.service.cluster.workers import AGENT, MAINLY_POSTGRES, MAINLY_SQLITE, Workers, eventually, working

LOST = 75


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(agents.FOLDER, str(tmp_path))


@pytest.fixture
def own_workers(own_postgres: PostgresServer) -> Iterator[Workers]:
    """Worker processes on a server of their own."""
    started = Workers(own_postgres.url)
    yield started
    started.close()


@pytest.mark.heavy  # it waits for three outages; the next test has one
async def test_outages_end_workers_with_75_and_do_not_count_against_their_executions(
    own_postgres: PostgresServer, own_workers: Workers
) -> None:
    async with Cluster(own_postgres.url) as cluster:
        await cluster.submit(AGENT, "pause a, mark b", execution_id="patient")
    for outage in range(3):
        worker = own_workers.start("one", "--max-recoveries", "1", "--lost-after", "1")
        await eventually(partial(_has_lines, outage + 1))
        own_postgres.stop()
        assert await asyncio.to_thread(worker.exit_code) == LOST
        assert "could not be reached" in "".join(worker.lines)
        own_postgres.start()

    (agents.folder() / "a").touch()
    own_workers.start("two", "--max-recoveries", "1")
    async with Cluster(own_postgres.url) as cluster:
        assert (await cluster.result("patient")).status is ExecutionStatus.COMPLETED


async def test_jobs_are_run_whose_taking_the_worker_did_not_hear_of(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has given them to the worker, and the connection was lost before the answer came."""
    take, lost = SystemDatabase.start_queued_workflows, list[str]()

    @wraps(take)  # the parameters are checked before a database is used
    def take_and_lose(self: Any, *values: Any, **options: Any) -> Any:
        taken, reason = take(self, *values, **options)
        if taken and not lost:
            lost.extend(taken)
            raise OperationalError("", (), psycopg.OperationalError("server closed the connection unexpectedly"))
        return taken, reason

    monkeypatch.setattr(SystemDatabase, "start_queued_workflows", take_and_lose)
    async with Cluster(postgres_url) as cluster, working(postgres_url):
        state = await cluster.result(await cluster.submit(AGENT, "mark a", execution_id="e"), timeout=LONGEST)
    assert lost == ["execution:start:e"]
    assert state.status is ExecutionStatus.COMPLETED


async def test_a_job_that_a_part_of_its_own_cancelled_goes_back_into_its_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asked for its end, so that it must not stay "running" on a worker that lives; the next attempt completes it."""
    db, run, attempts = str(tmp_path / "jobs.db"), ExecutionJobs.run, list[int]()

    async def cancelled_once(self: ExecutionJobs, job: RunningJob) -> object:
        attempts.append(job.attempt)
        if len(attempts) == 1:
            raise asyncio.CancelledError
        return await run(self, job)

    monkeypatch.setattr(ExecutionJobs, "run", cancelled_once)
    async with Cluster(db) as cluster, working(db):
        state = await cluster.result(await cluster.submit(AGENT, "mark a", execution_id="e"), timeout=LONGEST)
    assert state.status is ExecutionStatus.COMPLETED
    assert len(attempts) == 2


async def test_a_worker_whose_name_was_taken_while_it_was_cut_off_ends_with_75(postgres_url: str) -> None:
    proxy = TcpProxy(postgres_url)
    far, near = Workers(proxy.url(postgres_url)), Workers(postgres_url)
    try:
        first = far.start("one")
        proxy.refuse()
        await asyncio.to_thread(_start_as_soon_as_free, near, "one")
        proxy.heal()
        assert await asyncio.to_thread(first.exit_code) == LOST
        assert "another worker took its name" in "".join(first.lines)
    finally:
        far.close()
        near.close()
        proxy.close()


def _has_lines(count: int) -> bool:
    return len(agents.ledger()) == count


def _start_as_soon_as_free(workers: Workers, name: str) -> None:
    """Start a worker; the server may need a moment to release the lock of a connection that was reset."""
    while True:
        worker = workers.launch(name)
        try:
            worker.until("runs")
        except AssertionError:
            assert worker.exit_code() == 2
        else:
            return


@MAINLY_SQLITE
async def test_tool_calls_that_run_end_and_are_recorded_before_a_worker_is_drained(db: str, workers: Workers) -> None:
    first = workers.start("first", "--drain-grace", "100")
    async with Cluster(db) as cluster:
        await cluster.submit(AGENT, "pause a, pause b", execution_id="moved")
        await eventually(lambda: len(agents.ledger()) == 1)
        first.send(signal.SIGTERM)
        await asyncio.to_thread(first.until, "drains")
        (agents.folder() / "a").touch()
        assert await asyncio.to_thread(first.exit_code) == 0
        (agents.folder() / "b").touch()
        workers.start("second")
        state = await cluster.result("moved")

    assert state.status is ExecutionStatus.COMPLETED
    assert [line.rpartition(":")[2] for line in agents.ledger()].count("a") == 1


@MAINLY_POSTGRES
async def test_a_second_sigterm_ends_a_worker_at_once(db: str, workers: Workers) -> None:
    first = workers.start("first", "--drain-grace", "1000")
    async with Cluster(db) as cluster:
        await cluster.submit(AGENT, "pause a", execution_id="moved")
        await eventually(lambda: len(agents.ledger()) == 1)
        first.send(signal.SIGTERM)
        await asyncio.to_thread(first.until, "drains")
        first.send(signal.SIGTERM)
        assert await asyncio.to_thread(first.exit_code) == 143


@MAINLY_POSTGRES
async def test_a_worker_that_is_started_again_under_its_name_counts_the_deaths_of_the_one_before(
    db: str, workers: Workers
) -> None:
    async with Cluster(db) as cluster:
        await cluster.submit(AGENT, "die now", execution_id="poison")
        for _ in range(2):
            worker = workers.start("one", "--max-recoveries", "1")
            assert await asyncio.to_thread(worker.exit_code) == agents.DEATH
        workers.start("one", "--max-recoveries", "1")
        state = await cluster.result("poison")

    assert state.errors[-1].type == "TooManyRecoveries"
    assert agents.ledger().count("died") == 2


@pytest.mark.parametrize("started_at", [1, 4_000_000_000_000], ids=["a clock far behind", "a clock far ahead"])
@pytest.mark.parametrize("counts", [False, True])
async def test_a_death_is_counted_whatever_the_clock_of_the_machine_showed(
    postgres_url: str, started_at: int, *, counts: bool
) -> None:
    """The job has the time of the worker's machine, which is compared with no other one."""
    async with Engine(ClusterDatabase.parse(postgres_url)) as engine:
        await engine.enqueue(Job(id="start:e", kind=JobKind.EXECUTION, agent=AGENT, payload={}))
        system = engine.client._sys_db
        table = system.tables.workflow_status
        with system.engine.begin() as connection:
            taken = {"status": "PENDING", "executor_id": "gone", "started_at_epoch_ms": started_at}
            connection.execute(table.update().values(**taken))
        assert await engine.release_dead("gone", counts=counts) == 1
        with system.engine.begin() as connection:
            (row,) = connection.execute(table.select()).mappings()
    assert (row["attributes"] or {}).get(DEATHS, 0) == int(counts)


def test_a_worker_that_left_before_a_restart_of_the_server_is_known(own_postgres: PostgresServer) -> None:
    """Its note names the start of the server that it has seen: the server's own word, and no time of the worker's machine."""
    gone, other = PostgresLocks(own_postgres.url), PostgresLocks(own_postgres.url)
    for name, locks in (("gone", gone), ("other", other)):
        locks.connect()
        assert locks.take(name)
        assert not locks.has_missed_restart(name)
        locks.write_note(WorkerNote(name=name, started=4e9))
        assert not locks.has_missed_restart(name)
    own_postgres.stop()
    own_postgres.start()
    with pytest.raises(psycopg.Error):
        other.connect()
    assert other.connect()
    assert other.has_missed_restart("gone")
    assert other.has_missed_restart("other")
    other.write_note(WorkerNote(name="other"))
    assert not other.has_missed_restart("other")
    other.close()
    with pytest.raises(psycopg.Error):
        gone.connect()


async def test_a_worker_that_starts_while_the_server_is_away_waits_for_it(
    own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so, and takes work as soon as the server is there."""
    own_postgres.stop()
    worker = Worker(AgentLoop.for_model(ScriptedInference("Hello.")), own_postgres.url, lost_after=LONGEST)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: "waits for its database" in caplog.text)
    assert not running.done()
    await asyncio.to_thread(own_postgres.start)
    await asyncio.wait_for(worker.started(), LONGEST)
    async with Cluster(own_postgres.url) as cluster:
        state = await cluster.result(await cluster.submit("default", "Hi.", execution_id="e"), timeout=LONGEST)
    assert state.final_text == "Hello."
    await worker.drain()
    await running


async def test_what_a_cluster_raises_while_its_server_is_away_is_ours(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No error of a driver comes out; each method works again when the server is back, as does one that waited for it."""
    monkeypatch.setattr("agentloop.service.cluster.engine._AWAY_SECONDS", 0.3)
    async with Cluster(own_postgres.url) as cluster:
        await cluster.submit("default", "Hi.", execution_id="e")
        own_postgres.stop()
        for method in (
            partial(cluster.submit, "default", "Hi.", execution_id="f"),
            cluster.status,
            cluster.schedules,
            partial(cluster.limit_queue, "q", concurrency=1),
        ):
            with pytest.raises((DatabaseUnavailable, JournalBusy)):
                await method()
        with pytest.raises(AgentLoopError):
            async with Cluster(own_postgres.url):
                pass
        monkeypatch.setattr("agentloop.service.cluster.engine._AWAY_SECONDS", LONGEST)
        submitting = asyncio.create_task(cluster.submit("default", "Hi.", execution_id="f"))
        await asyncio.to_thread(own_postgres.start)
        assert await submitting == "f"
        assert len((await cluster.status()).queues) == 1
    own_postgres.stop()
    with pytest.raises(JournalBusy):
        await Worker(AgentLoop.for_model(ScriptedInference("Hello.")), own_postgres.url, lost_after=0.3).run()


async def test_a_full_file_of_the_queues_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite refuses what needs more pages; the job is queued once there is space."""
    monkeypatch.setattr("agentloop.service.cluster.engine._AWAY_SECONDS", 0.3)
    async with Engine(ClusterDatabase.parse(tmp_path / "a.db")) as engine:
        large, limits = {"text": "x" * 500_000}, [1, 2**30]

        @event.listens_for(engine.client._sys_db.engine, "begin")
        def limit(connection: Any) -> None:
            connection.exec_driver_sql(f"PRAGMA max_page_count = {limits[0]}")

        job = Job(id="start:e", kind=JobKind.EXECUTION, agent=AGENT, payload=large)
        with pytest.raises(DatabaseUnavailable, match="full"):
            await engine.enqueue(job)
        limits.pop(0)
        await engine.enqueue(job)
        assert await engine.payload_of("start:e") == large
