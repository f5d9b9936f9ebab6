"""Submitting executions and following them, with a worker in this process."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.durable import FolderObjects, MemoryJournal, SqliteJournal
from agentloop.errors import (
    ClusterError,
    ConfigurationError,
    DecisionError,
    InvalidParameter,
    JournalError,
    UnknownExecution,
    WorkFailed,
    WorkRefused,
)
from agentloop.service.cluster import Cluster, ClusterDatabase, Worker
from agentloop.service.cluster.deletions import DeletionSweep
from agentloop.service.cluster.engine import Engine
from agentloop.service.cluster.executions import ResumeRequest, forget_execution, resume_prefix
from agentloop.values import Decision, ExecutionStatus, Message, approve, deny
from agentloop.values.jobs import Job, JobKind, JobState
from agentloop.values.secrets import Secret
from tests.limits import LONGEST
from tests.loaded import loaded_agentloop
from tests.postgres import run_sql
from tests.service.cluster import agents
from tests.service.cluster.workers import AGENT, eventually, working


async def test_a_submitted_execution_runs_on_a_worker_and_its_result_is_found_by_id(db: str) -> None:
    async with Cluster(db) as cluster, working(db):
        execution_id = await cluster.submit(AGENT, "mark a, mark b")
        state = await cluster.result(execution_id)

    assert state.final_text == "done: mark a, mark b"
    assert state.execution_id == execution_id
    assert [line.rpartition(":")[2] for line in agents.ledger()] == ["a", "b"]


async def test_long_texts_of_records_go_into_an_object_store(db: str, tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path / "objects")
    text = f"mark {'a' * 100_000}"
    async with Cluster(db, objects=objects) as cluster, working(db, objects=objects):
        state = await cluster.result(await cluster.submit(AGENT, text))

    assert state.final_text == f"done: {text}"
    assert any(each.is_file() for each in objects.path.rglob("*"))


async def test_the_same_id_submitted_twice_at_once_is_one_execution(db: str) -> None:
    async with Cluster(db) as cluster, Cluster(db) as other, working(db):
        ids = await asyncio.gather(
            *[client.submit(AGENT, "mark a", execution_id="order-42") for client in (cluster, other) * 3]
        )
        await cluster.result("order-42")
        assert set(ids) == {"order-42"}
        assert len(await cluster.journal.list()) == 1

    assert agents.ledger() == ["order-42/1/0:a"]


async def test_work_that_was_submitted_before_any_worker_ran_waits_for_one(db: str) -> None:
    async with Cluster(db) as cluster:
        await cluster.submit(AGENT, Message.user("mark a"), execution_id="early")
        status = await cluster.status()
        assert [(queue.name, queue.waiting) for queue in status.queues] == [("default", 1)]
        assert status.unserved == (AGENT,)
        async with working(db):
            assert (await cluster.result("early")).final_text == "done: mark a"


async def test_without_a_worker_of_the_agent_work_is_refused_only_if_asked_to(db: str) -> None:
    async with Cluster(db) as cluster, working(db):
        with pytest.raises(
            WorkRefused, match=r"no live worker runs the agent 'tests.service.cluster.agents:lop', did you mean"
        ):
            await cluster.submit("tests.service.cluster.agents:lop", "hello", needs_worker=True)
        await cluster.submit("tests.service.cluster.agents:lop", "hello", execution_id="waits")
        assert (
            await cluster.result(await cluster.submit(AGENT, "hello", needs_worker=True))
        ).final_text == "done: hello"
        assert await cluster.journal.head("waits") is None


async def test_a_worker_takes_work_of_its_version_and_new_work_gets_the_newest_live_version(db: str) -> None:
    async with Cluster(db, version="1") as old, Cluster(db) as newest:
        await old.submit(AGENT, "mark old", execution_id="old")
        async with working(db, version="2"):
            await newest.submit(AGENT, "mark new", execution_id="new")
            await newest.result("new")
            assert await newest.journal.head("old") is None
            assert (await newest.status()).unserved == (f"{AGENT} 1",)
        async with working(db, version="1"):
            assert (await old.result("old")).status is ExecutionStatus.COMPLETED


async def test_the_execution_with_the_highest_priority_starts_first(db: str) -> None:
    async with Cluster(db) as cluster:
        for name, priority in (("low", -1), ("middle", 0), ("high", 5)):
            await cluster.submit(AGENT, f"mark {name}", execution_id=name, priority=priority)
        async with working(db, executions=1):
            for name in ("low", "middle", "high"):
                await cluster.result(name)

    assert [line.rpartition(":")[2] for line in agents.ledger()] == ["high", "middle", "low"]


async def test_a_queue_runs_no_more_executions_at_a_time_than_its_limit(db: str) -> None:
    async with Cluster(db) as cluster, working(db, executions=4):
        await cluster.limit_queue("slow", concurrency=1)
        for name in ("a", "b"):
            await cluster.submit(AGENT, f"pause {name}", execution_id=name, queue="slow")
        await eventually(lambda: len(agents.ledger()) == 1)
        await cluster.submit(AGENT, "mark c", execution_id="c")
        await cluster.result("c")  # other queues go on
        assert len(agents.ledger()) == 2
        for name in ("a", "b"):
            (agents.folder() / name).touch()
        for name in ("a", "b"):
            await cluster.result(name)


async def test_a_paused_queue_starts_nothing_until_it_goes_on(db: str) -> None:
    async with Cluster(db) as cluster:
        command = loaded_agentloop("cluster", "limit", "default", "--pause", "--db", db)
        assert await asyncio.to_thread(subprocess.check_output, command) == b"default: paused\n"
        await cluster.submit(AGENT, "mark a", execution_id="a")
        await cluster.submit(AGENT, "mark b", execution_id="b", queue="other")
        async with working(db):
            await cluster.result("b")
            assert [line.rpartition(":")[2] for line in agents.ledger()] == ["b"]
            await cluster.limit_queue("default")
            await cluster.result("a")


async def test_a_rate_limits_how_many_executions_start(db: str) -> None:
    async with Cluster(db) as cluster, working(db):
        await cluster.limit_queue("default", rate=(2, 3600.0))
        for number in range(4):
            await cluster.submit(AGENT, "hello", execution_id=f"e{number}")
        await asyncio.gather(*[cluster.result(f"e{number}") for number in range(2)])
        async with asyncio.timeout(LONGEST):  # a result is known a little before its job has ended
            while any(queue.running for queue in (await cluster.status()).queues):  # noqa: ASYNC110  # of another thread
                await asyncio.sleep(0.01)
        status = await cluster.status()
        assert [(queue.waiting, queue.running) for queue in status.queues] == [(2, 0)]


async def test_a_delayed_execution_starts_after_its_delay(db: str) -> None:
    async with Cluster(db) as cluster, working(db):
        submitted = datetime.now(UTC)
        await cluster.submit(AGENT, "mark later", execution_id="later", delay=1.0)
        await cluster.submit(AGENT, "mark now", execution_id="now")
        await cluster.result("now")
        assert (await cluster.result("later")).status is ExecutionStatus.COMPLETED
        head = await cluster.journal.head("later")

    assert head is not None
    assert head.started_at >= submitted + timedelta(seconds=1)
    assert sorted(line.rpartition(":")[2] for line in agents.ledger()) == ["later", "now"]


async def test_a_suspended_execution_is_resumed_with_decisions_which_are_used_once(db: str) -> None:
    async with Cluster(db) as cluster, working(db):
        await cluster.submit(AGENT, "mark a, pay b", execution_id="paid")
        state = await cluster.result("paid")
        assert state.status is ExecutionStatus.SUSPENDED
        decisions = {call.key: approve() for call in state.pending}
        resumed = await asyncio.gather(*[cluster.resume("paid", decisions) for _ in range(3)], return_exceptions=True)
        refused = [error for error in resumed if isinstance(error, BaseException)]
        assert len(refused) < len(resumed)
        # The execution may have ended before the last ones.
        assert all(isinstance(error, DecisionError) for error in refused), refused
        assert (await cluster.result("paid")).status is ExecutionStatus.COMPLETED
        with pytest.raises(DecisionError):
            await cluster.resume("paid", decisions)

    assert agents.ledger() == ["paid/1/0:a", "paid/2/0:paid"]


async def test_of_different_decisions_about_the_same_calls_the_first_ones_are_used(db: str) -> None:
    async with Cluster(db) as cluster, Cluster(db) as other:
        async with working(db):
            await cluster.submit(AGENT, "pay b", execution_id="paid")
            (pending,) = (await cluster.result("paid")).pending
        first = {pending.key: deny("too expensive", principal="ada")}
        await cluster.resume("paid", first)
        for decision in (approve(), deny("too expensive", principal="bob"), deny("too expensive")):
            with pytest.raises(DecisionError, match="submitted before"):
                await other.resume("paid", {pending.key: decision})
        await other.resume("paid", first)
        async with working(db):
            assert (await cluster.result("paid")).status is ExecutionStatus.COMPLETED

    assert agents.ledger() == []


@pytest.mark.parametrize(
    ("key", "decision", "state"),
    [
        ("paid/1/0", deny("not with card-4111"), JobState.FINISHED),
        ("paid/1/0", deny("not with card-4112"), JobState.FAILED),
        ("paid/1/0", approve(), JobState.FAILED),
        ("paid/2/0", approve(), JobState.FAILED),
    ],
)
async def test_a_job_of_decisions_that_were_not_used_fails(
    db: str, key: str, decision: Decision, state: JobState
) -> None:
    """One whose decisions were used goes on, as after the death of its worker; records do not hold the secrets in them."""
    async with (
        Cluster(db) as cluster,
        Engine(ClusterDatabase.parse(db)) as engine,
        working(db, secrets=["card-4111"]),
    ):
        await cluster.submit(AGENT, "pay b, pay c", execution_id="paid")
        await cluster.result("paid")
        head = await cluster.journal.head("paid")
        assert head is not None
        await cluster.resume("paid", {"paid/1/0": deny("not with card-4111")})
        assert (await cluster.result("paid")).pending[0].key == "paid/2/0"
        request = ResumeRequest("paid", head.record_count, {key: decision, "paid/1/0": decision})
        late = Job(
            id=f"{resume_prefix('paid')}{head.record_count}:0123456789abcdef",
            kind=JobKind.EXECUTION,
            agent=AGENT,
            payload=request.to_payload(),
        )
        await engine.enqueue(late)
        ended = await engine.wait(late.id, JobKind.EXECUTION)
        assert ended.state is state, ended.error
        if state is JobState.FAILED:
            assert ended.error is not None
            assert ended.error.type == "DecisionError"
            with pytest.raises(WorkFailed, match="DecisionError"):
                await cluster.result("paid")
        await cluster.resume("paid", {"paid/2/0": approve()})
        assert (await cluster.result("paid")).status is ExecutionStatus.COMPLETED

    assert agents.ledger() == ["paid/2/0:paid"]


async def test_of_two_jobs_with_different_decisions_about_a_call_one_fails(db: str) -> None:
    async with Cluster(db) as cluster, Engine(ClusterDatabase.parse(db)) as engine:
        async with working(db):
            await cluster.submit(AGENT, "pay b", execution_id="paid")
            await cluster.result("paid")
        head = await cluster.journal.head("paid")
        assert head is not None
        both: list[Decision] = [approve(), deny("too expensive")]
        for number, decision in enumerate(both):
            request = ResumeRequest("paid", head.record_count, {"paid/1/0": decision})
            job_id = f"{resume_prefix('paid')}{head.record_count}:{number:016x}"
            await engine.enqueue(Job(id=job_id, kind=JobKind.EXECUTION, agent=AGENT, payload=request.to_payload()))
        async with working(db):
            ended = [
                await engine.wait(job.id, JobKind.EXECUTION)
                for job in await engine.list(prefix="resume:", kind=JobKind.EXECUTION)
            ]
    assert {job.state for job in ended} == {JobState.FINISHED, JobState.FAILED}
    assert agents.ledger() == (["paid/1/0:paid"] if ended[0].state is JobState.FINISHED else [])


async def test_decisions_whose_job_failed_before_they_were_used_can_be_submitted_again(db: str) -> None:
    async with Cluster(db) as cluster, Engine(ClusterDatabase.parse(db)) as engine, working(db):
        await cluster.submit(AGENT, "pay b", execution_id="paid")
        await cluster.result("paid")
        head = await cluster.journal.head("paid")
        assert head is not None
        decisions = {"paid/1/0": approve()}
        broken = Job(id=ResumeRequest("paid", head.record_count, decisions).job_id, kind=JobKind.EXECUTION, agent=AGENT)
        await engine.enqueue(broken)
        with pytest.raises(WorkFailed):
            await cluster.result("paid")
        await cluster.resume("paid", decisions)
        assert (await cluster.result("paid")).status is ExecutionStatus.COMPLETED


async def test_decisions_about_a_call_that_is_not_pending_are_refused_at_once(db: str) -> None:
    async with Cluster(db) as cluster, working(db):
        await cluster.submit(AGENT, "pay b", execution_id="paid")
        await cluster.result("paid")
        with pytest.raises(DecisionError):
            await cluster.resume("paid", {"paid/9/9": approve()})
        with pytest.raises(UnknownExecution):
            await cluster.resume("other", {"paid/1/0": approve()})


async def test_a_running_execution_is_stopped_from_another_process(db: str) -> None:
    async with Cluster(db) as cluster, working(db):
        await cluster.submit(AGENT, "pause forever", execution_id="stopped")
        await eventually(lambda: len(agents.ledger()) == 1)
        await cluster.stop("stopped", "not needed", principal="ada")
        state = await cluster.result("stopped")

    assert state.status is ExecutionStatus.STOPPED
    assert state.stop_signal is not None
    assert "not needed" in state.stop_signal.message


async def test_an_execution_that_waits_in_its_queue_is_stopped_without_being_run(db: str) -> None:
    async with Cluster(db) as cluster:
        await cluster.submit(AGENT, "mark a", execution_id="stopped")
        await cluster.stop("stopped")
        async with working(db):
            await cluster.result(await cluster.submit(AGENT, "mark b"))
            state = await cluster.result("stopped")

    assert state.status is ExecutionStatus.STOPPED
    assert state.messages[0].text == "mark a"
    assert [line.rpartition(":")[2] for line in agents.ledger()] == ["b"]


async def test_a_suspended_execution_is_stopped_at_once(db: str) -> None:
    async with Cluster(db) as cluster, working(db):
        await cluster.submit(AGENT, "pay b", execution_id="stopped")
        await cluster.result("stopped")
        await cluster.stop("stopped", "too expensive")
        assert (await cluster.result("stopped")).status is ExecutionStatus.STOPPED
        await cluster.stop("stopped")  # no effect


async def test_a_message_reaches_a_running_execution(db: str) -> None:
    async with Cluster(db) as cluster, working(db):
        await cluster.submit(AGENT, "pause a", execution_id="told")
        await eventually(lambda: len(agents.ledger()) == 1)
        await cluster.send("told", "one more thing")
        async with asyncio.timeout(LONGEST):
            while await cluster.journal.commands(["told"]):  # noqa: ASYNC110  # a worker takes them
                await asyncio.sleep(0.01)
        (agents.folder() / "a").touch()
        state = await cluster.result("told")

    assert state.final_text == "done: one more thing"


async def test_the_status_reads_nothing_of_executions_that_no_worker_has_taken(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(db) as cluster:
        for _ in range(3):
            await cluster.submit(AGENT, "mark a")

        async def refuse(execution_id: str) -> None:
            raise AssertionError(f"{execution_id} is read")

        monkeypatch.setattr(cluster.journal, "head", refuse)
        status = await cluster.status()

    assert [queue.waiting for queue in status.queues] == [3]
    assert not status.doubts


async def test_a_schedule_starts_one_execution_at_each_of_its_times(db: str) -> None:
    async with Cluster(db) as cluster, working(db):
        await cluster.schedule("tick", "* * * * * *", AGENT, "mark tick")
        assert [(item.name, item.agent, item.input) for item in await cluster.schedules()] == [
            ("tick", AGENT, "mark tick")
        ]
        await eventually(lambda: len(agents.ledger()) >= 2)
        assert await cluster.unschedule("tick")
        assert not await cluster.unschedule("tick")
        assert await cluster.schedules() == []

    executions = [line.partition("/")[0] for line in agents.ledger()]
    assert len(set(executions)) == len(executions)


async def test_a_cron_expression_with_mistakes_is_refused(db: str) -> None:
    async with Cluster(db) as cluster:
        with pytest.raises(InvalidParameter, match="is no cron expression"):
            await cluster.schedule("tick", "every day", AGENT, "hello")
        assert await cluster.schedules() == []
        await cluster.schedule("tick", "0 9 * * *", AGENT, "hello")
        with pytest.raises(InvalidParameter, match="is no cron expression"):
            await cluster.schedule("tick", "every day", AGENT, "bye")
        assert [(item.cron, item.input) for item in await cluster.schedules()] == [("0 9 * * *", "hello")]
        await cluster.schedule("tick", "0 10 * * *", AGENT, "bye")
        assert [(item.cron, item.input) for item in await cluster.schedules()] == [("0 10 * * *", "bye")]


def engine_files(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if "engine" in file.name or "workers" in file.name]


async def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    file.write_text("not a database, but a text that is long enough to be read as one\n" * 20)
    with pytest.raises(JournalError, match="not a SQLite database"):
        async with Cluster(file):
            pass
    with pytest.raises(JournalError, match="not a SQLite database"):
        await Worker(agents.loop, file).run()
    assert not engine_files(tmp_path)


@pytest.mark.parametrize("damage", ["text", "cut", "bytes"])
async def test_a_damaged_file_of_the_queues_is_named(tmp_path: Path, damage: str) -> None:
    file = ClusterDatabase.parse(tmp_path / "a.db").engine_path
    async with Cluster(tmp_path / "a.db") as cluster:
        await cluster.submit(AGENT, "hello")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = file.read_bytes()
    broken = {"text": b"text\n" * 100, "cut": data[: len(data) // 2], "bytes": data[:200] + b"\xff" * (len(data) - 200)}
    file.write_bytes(broken[damage])
    with pytest.raises(ClusterError, match=r"a\.db-engine: the file is"):
        async with Cluster(tmp_path / "a.db") as cluster:
            await cluster.status()
    with pytest.raises(ClusterError, match=r"a\.db-engine: the file is"):
        await Worker(agents.loop, tmp_path / "a.db").run()


async def test_mistakes_in_a_submission_are_refused(db: str) -> None:
    async with Cluster(db) as cluster:
        with pytest.raises(InvalidParameter):
            await cluster.submit(AGENT, 7)  # type: ignore[arg-type]  # the mistake
        with pytest.raises(InvalidParameter):
            await cluster.submit(AGENT, "hello", execution_id=" ")
        for text in ("a\udcff", "a\0b"):
            with pytest.raises(InvalidParameter, match="the id of an execution is"):
                await cluster.submit(AGENT, "hello", execution_id=text)
            with pytest.raises(InvalidParameter, match="the name of the queue is"):
                await cluster.submit(AGENT, "hello", queue=text)
            with pytest.raises(InvalidParameter, match="the name of the queue is"):
                await cluster.limit_queue(text, concurrency=1)
            with pytest.raises(InvalidParameter, match="the name of the agent is"):
                await cluster.submit(text, "hello")
            async with Cluster(db, version=text) as other:
                with pytest.raises(InvalidParameter, match="the version is"):
                    await other.submit(AGENT, "hello")
            with pytest.raises(InvalidParameter, match="the name of a schedule is"):
                await cluster.schedule(text, "* * * * *", AGENT, "hello")
            with pytest.raises(InvalidParameter, match="the name of a schedule is"):
                await cluster.unschedule(text)
        with pytest.raises(ConfigurationError, match="reserved"):
            await cluster.submit(AGENT, "hello", execution_id="a/1/1/agent")
        with pytest.raises(InvalidParameter, match="priority"):
            await cluster.submit(AGENT, "hello", priority=10_000_000)
        with pytest.raises(InvalidParameter, match="delay"):
            await cluster.submit(AGENT, "hello", delay=float("nan"))
        with pytest.raises(InvalidParameter, match="queue is empty"):
            await cluster.submit(AGENT, "hello", queue=" ")
        with pytest.raises(InvalidParameter, match="text that the execution starts with is empty"):
            await cluster.submit(AGENT, " ")
        with pytest.raises(InvalidParameter, match="agent is empty"):
            await cluster.submit("", "hello")
        with pytest.raises(UnknownExecution):
            await cluster.result("never")


async def test_work_that_cannot_be_carried_out_is_reported_and_the_worker_goes_on(db: str) -> None:
    broken = agents.loop.replace(output_type=int, max_steps=1)
    async with Cluster(db) as cluster, working(db, broken):
        first = await cluster.result(await cluster.submit(AGENT, "hello"))
        second = await cluster.result(await cluster.submit(AGENT, "hello"))

    assert first.status is second.status is ExecutionStatus.FAILED


async def test_every_value_that_the_engine_stores_is_json(db: str) -> None:
    async with Cluster(db) as cluster, working(db):
        await cluster.submit(AGENT, "mark a, pay b", execution_id="paid")
        state = await cluster.result("paid")
        await cluster.resume("paid", {call.key: approve() for call in state.pending})
        await cluster.result("paid")
        await cluster.schedule("tick", "* * * * * *", AGENT, "mark tick")
        await eventually(lambda: len(agents.ledger()) >= 3)

    values = list(_stored_values(db))
    assert len(values) >= 8
    for value in values:
        json.loads(value)


_STORED = {
    "workflow_status": ("inputs", "output", "error"),
    "workflow_input": ("inputs",),
    "workflow_output": ("output", "error"),
    "workflow_schedules": ("context",),
    "operation_outputs": ("output", "error"),
}
"""The columns in which the engine stores values of programs; not every version of it has all of them."""


def _stored_values(db: str) -> Iterator[str]:
    for table, columns in _STORED.items():
        for column in columns:
            with suppress(sqlite3.OperationalError, psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
                yield from [str(value) for (value,) in _query(db, table, column) if value is not None]


def _query(db: str, table: str, column: str) -> list[tuple[object, ...]]:
    if db.startswith("postgresql"):
        return run_sql(db, f"SELECT {column} FROM dbos.{table}")
    with closing(sqlite3.connect(f"{db}-engine")) as connection:
        return connection.execute(f"SELECT {column} FROM {table}").fetchall()


async def test_the_url_of_a_database_is_shown_without_its_password() -> None:
    cluster = Cluster("postgresql://ada:secret@host/agents")
    assert repr(cluster) == "Cluster('postgresql://host/agents')"


async def test_an_agent_with_a_journal_of_its_own_is_refused(db: str) -> None:
    with pytest.raises(ConfigurationError, match="journal of its own"):
        async with working(db, agents.loop.replace(journal=SqliteJournal(agents.folder() / "other.db"))):
            pass


async def test_secrets_of_a_journal_in_memory_are_not_lost_silently(db: str) -> None:
    with pytest.raises(ConfigurationError, match="pass them to the worker"):
        Worker(agents.loop.replace(journal=MemoryJournal(secrets=["card-4111"])), db)

    async with Cluster(db) as cluster, working(db, secrets=["card-4111"]):
        await cluster.result(await cluster.submit(AGENT, "mark card-4111", execution_id="paid"))
        assert "card-4111" not in "".join([record.body for record in await cluster.journal.read("paid")])


async def test_a_job_of_which_the_decisions_are_refused_fails_and_says_why(db: str) -> None:
    async with Cluster(db) as cluster, working(db):
        await cluster.submit(AGENT, "pay b, pay c", execution_id="paid")
        state = await cluster.result("paid")
        async with Cluster(db) as other:
            await other.stop("paid")
        with pytest.raises((WorkFailed, DecisionError)):
            await cluster.resume("paid", {call.key: approve() for call in state.pending})


async def test_jobs_of_an_execution_whose_id_begins_with_that_of_another_one_and_a_colon_are_not_its_own(
    db: str,
) -> None:
    async with Cluster(db) as cluster, Engine(ClusterDatabase.parse(db)) as engine, working(db):
        await cluster.submit(AGENT, "pay b", execution_id="paid")
        assert (await cluster.result("paid")).status is ExecutionStatus.SUSPENDED
        broken = Job(id="resume:paid:1:7:0123456789abcdef", kind=JobKind.EXECUTION, agent=AGENT)
        await engine.enqueue(broken)
        assert (await engine.wait(broken.id, JobKind.EXECUTION)).state is JobState.FAILED
        assert (await cluster.result("paid")).status is ExecutionStatus.SUSPENDED
        await forget_execution(engine, "paid")
        assert [job.id for job in await engine.list(kind=JobKind.EXECUTION)] == [broken.id]


async def test_an_execution_whose_job_failed_before_it_began_can_be_submitted_again(db: str) -> None:
    broken = Job(id="start:again", kind=JobKind.EXECUTION, agent=AGENT, payload={"action": "start"})
    async with Cluster(db) as cluster, Engine(ClusterDatabase.parse(db)) as engine, working(db):
        await engine.enqueue(broken)
        with pytest.raises(WorkFailed):
            await cluster.result("again")
        await asyncio.gather(*[cluster.submit(AGENT, "mark a", execution_id="again") for _ in range(3)])
        assert (await cluster.result("again")).status is ExecutionStatus.COMPLETED

    assert agents.ledger() == ["again/1/0:a"]


async def test_jobs_of_executions_that_have_ended_are_deleted_after_the_retention(db: str) -> None:
    async with Cluster(db) as cluster, Engine(ClusterDatabase.parse(db)) as engine:
        async with working(db):
            for name, text in (("ended", "mark a"), ("suspended", "pay b")):
                await cluster.submit(AGENT, text, execution_id=name)
                await cluster.result(name)
        assert len(await engine.list(kind=JobKind.EXECUTION)) == 2
        async with working(db, retention=0.0):
            while await engine.find("start:ended", JobKind.EXECUTION) is not None:  # noqa: ASYNC110  # another thread deletes it
                await asyncio.sleep(0.01)
            state = await cluster.result("suspended")
            await cluster.resume("suspended", {call.key: approve() for call in state.pending})
            assert (await cluster.result("suspended")).status is ExecutionStatus.COMPLETED
        assert (await cluster.result("ended")).status is ExecutionStatus.COMPLETED


async def test_a_worker_masks_the_keys_of_its_agents(db: str) -> None:
    """What a tool repeats of a key that its agent has is masked in the journal, although nobody declared it."""
    key = Secret("sk-live-0123456789")

    @tool(effect="pure")
    def leak() -> str:
        """Repeat the key."""
        return f"it is {key.reveal()}"

    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "leak", "{}"), "Done."), tools=[leak])
    async with Cluster(db) as cluster, working(db, loop):
        state = await cluster.result(await cluster.submit(AGENT, "Go."), timeout=LONGEST)
    assert state.steps[0].executions[0].value == "it is ***"


@pytest.mark.unmonitored  # an execution that was deleted starts again under its id
async def test_a_cluster_knows_nothing_of_an_execution_that_was_deleted(db: str) -> None:
    """Its records are all that there was of it: the id is unknown, and submitted again, it is a new execution."""
    async with Cluster(db) as cluster, Engine(ClusterDatabase.parse(db)) as engine, working(db):
        for name in ("read", "sent", "stopped", "awaited", "again"):
            await cluster.submit(AGENT, f"mark {name}", execution_id=name)
            await cluster.result(name, timeout=LONGEST)
            assert await cluster.journal.delete(name)
        assert await cluster.unrecorded_state("read") is None
        with pytest.raises(UnknownExecution):
            await cluster.send("sent", "more")
        with pytest.raises(UnknownExecution):
            await cluster.stop("stopped")
        with pytest.raises(UnknownExecution):
            await cluster.result("awaited", timeout=LONGEST)
        await cluster.submit(AGENT, "mark again", execution_id="again")
        assert (await cluster.result("again", timeout=LONGEST)).status is ExecutionStatus.COMPLETED
        assert [line.rpartition(":")[2] for line in agents.ledger()].count("again") == 2
        assert [job.id for job in await engine.list(kind=JobKind.EXECUTION)] == ["start:again"]


async def test_workers_forget_what_was_deleted_and_that_nobody_asks_for(db: str) -> None:
    """The input of a deleted execution does not stay in its job; what was not deleted stays."""
    async with Cluster(db) as cluster, Engine(ClusterDatabase.parse(db)) as engine:
        async with working(db):
            for name, text in (("deleted", "mark a"), ("kept", "mark b"), ("suspended", "pay c")):
                await cluster.submit(AGENT, text, execution_id=name)
                await cluster.result(name, timeout=LONGEST)
        await cluster.submit(AGENT, "mark d", execution_id="late")
        await cluster.stop("late")
        assert await cluster.journal.delete("deleted")
        await DeletionSweep(engine, cluster.journal).apply()
        left = sorted(job.id for job in await engine.list(kind=JobKind.EXECUTION))
        assert left == ["start:kept", "start:late", "start:suspended"]
