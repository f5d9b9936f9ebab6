"""Rows of the engine's tables that this program did not write: nothing of them runs, each fails, and the others go on."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest
from dbos._serialization import DBOSDefaultSerializer, DefaultSerializer, deserialize_value

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.errors import AgentLoopError, ClusterError, InvalidParameter, WorkFailed
from agentloop.service.cluster import Cluster, ClusterDatabase, QueuedToolExecutor, Worker
from agentloop.service.cluster.engine import Engine
from agentloop.service.cluster.liveness import open_locks, read_live_notes
from agentloop.values.jobs import JobKind, WorkerNote
from tests.limits import LONGEST
from tests.postgres import run_sql
from tests.service.cluster import agents, hostile
from tests.service.cluster.hostile import EngineTables
from tests.service.cluster.workers import AGENT, eventually, working

Damage: TypeAlias = Callable[[EngineTables, Path], None]

_ROW = "workflow_uuid = 'execution:start:bad'"


def _set(table: str, **values: object) -> Damage:
    """Return what writes values into columns of the row of the job `bad`; a function gets the folder of the marker."""

    def write(tables: EngineTables, folder: Path) -> None:
        for column, value in values.items():
            made = value(folder) if callable(value) else value
            tables.run(f"UPDATE {table} SET {column} = ? WHERE {_ROW}", made)

    return write


def _status(**values: object) -> Damage:
    return _set("workflow_status", **values)


def _input(value: object, **status: object) -> Damage:
    def write(tables: EngineTables, folder: Path) -> None:
        _set("workflow_input", inputs=value)(tables, folder)
        _status(**status)(tables, folder)

    return write


def _payload(payload: object) -> Damage:
    return _input(json.dumps({"args": [payload], "kwargs": {}}))


_REFUSED: dict[str, Damage] = {
    "a pickle": _input(hostile.encoded, serialization="py_pickle"),
    "JSON that is a pickle, too": _input(hostile.polyglot, serialization="py_pickle"),
    "a pickle by its own format": _input(hostile.encoded),
    "the portable format of DBOS": _status(serialization="portable_json"),
    "a format that nobody knows": _status(serialization="x" * 5000),
    "no JSON": _input("not json"),
    "nothing": _input(""),
    "nested deeper than JSON is read": _input('{"args": [' + "[" * 100_000 + "]" * 100_000 + '], "kwargs": {}}'),
    "nested deeper than values are": _input('{"args": [' + "[" * 500 + "]" * 500 + '], "kwargs": {}}'),
    "another shape": _input("[1, 2]"),
    "a number": _input("7"),
    "no argument": _input('{"args": [], "kwargs": {}}'),
    "keyword arguments": _input('{"args": [1], "kwargs": {"x": 1}}'),
    "megabytes of text": _input("x" * 5_000_000),
    "a number of a million digits": _input('{"args": [' + "9" * 1_000_000 + '], "kwargs": {}}'),
    "not a number": _input('{"args": [NaN], "kwargs": {}}'),
    "an unknown function": _status(name="os.system"),
    "an inner function of DBOS": _status(name="_dbos_debouncer_workflow"),
    "the function of schedules": _status(name="agentloop.schedule"),
    "the function of another kind": _status(name="agentloop.tool"),
    "a class": _status(class_name="subprocess.Popen"),
    "an object of a class": _status(config_name="x", class_name="subprocess.Popen"),
    "an unknown status": _status(status="FOO"),
    "no status": _status(status=None),
    "an unknown queue": _status(queue_name="elsewhere"),
    "no queue": _status(queue_name=None),
    "the queue of another kind": _status(queue_name="agentloop.tools.default"),
    "a delay without end": _status(status="DELAYED", delay_until_epoch_ms=2**62),
    "a delay without a time": _status(status="DELAYED", delay_until_epoch_ms=None),
    "running by nobody": _status(status="PENDING", executor_id=None),
    "attributes that are a list": _status(attributes="[1]"),
    "attributes that are deep": _status(attributes='{"x":' + "[" * 2000 + "]" * 2000 + "}"),
}
_FAILED: dict[str, Damage] = {
    "the request of another execution": _payload(
        {"action": "start", "execution_id": "other", "input": {"text": "mark a"}}
    ),
    "a request without its parts": _payload({"action": "start"}),
    "a list for a request": _payload([1, 2]),
    "a number for an input": _payload({"action": "start", "execution_id": "bad", "input": 5}),
    "a state of another form": _payload({"action": "start", "execution_id": "bad", "input": {"state": {"x": 1}}}),
    "decisions of another form": _payload(
        {"action": "resume", "execution_id": "bad", "record_count": "x", "decisions": []}
    ),
}
_SQLITE: dict[str, Damage] = {
    "bytes for an input": _input(hostile.pickled),
    "text that is no UTF-8": lambda tables, _: _set_raw(tables, "workflow_input", "inputs"),
    "bytes for a format": _status(serialization=b"py_pickle"),
    "bytes for a name": _status(name=hostile.pickled),
    "a null character in a format": _status(serialization="agentloop_json\0"),
    "attributes that are no JSON": _status(attributes="not json"),
    "attributes that are no text": lambda tables, _: _set_raw(tables, "workflow_status", "attributes"),
    "an agent that is no text": _status(queue_partition_key=b"\xff"),
    "a queue that is no text": _status(queue_name=b"\xff\xfe"),
    "a delay that is no number": _status(status="DELAYED", delay_until_epoch_ms="soon"),
    "a worker that is no text": lambda tables, folder: _set_raw(tables, "workflow_status", "executor_id", "PENDING"),
}


def _set_raw(tables: EngineTables, table: str, column: str, status: str = "ENQUEUED") -> None:
    """Write bytes as text that is no UTF-8, which SQLite stores and the driver cannot read."""
    tables.run(f"UPDATE workflow_status SET status = ? WHERE {_ROW}", status)
    tables.run(f"UPDATE {table} SET {column} = CAST(x'ff80fe' AS TEXT) WHERE {_ROW}")


_OPEN = "SELECT count(*) FROM workflow_status WHERE status IN ('ENQUEUED', 'PENDING')"


async def _check(db: str, tmp_path: Path, damage: Damage) -> str:
    """Damage one of three jobs, and return why it failed; the others end as they should."""
    tables = EngineTables(db)
    async with Cluster(db) as cluster:
        for name in ("first", "bad", "last"):
            await cluster.submit(AGENT, f"mark {name}", execution_id=name)
        tables.remove_guards()
        damage(tables, tmp_path)
        async with working(db):
            for name in ("first", "last"):
                assert (await cluster.result(name, timeout=LONGEST)).final_text == f"done: mark {name}"
            with pytest.raises(WorkFailed) as caught:
                await cluster.result("bad", timeout=LONGEST)
            # A client sees at once what is wrong with a row; the worker ends it soon after.
            await eventually(lambda: tables.run(f"SELECT status FROM workflow_status WHERE {_ROW}") == [("ERROR",)])
            # A worker that stops now would put back a job whose execution has just ended.
            await eventually(lambda: tables.run(_OPEN) == [(0,)])
        state = await cluster.unrecorded_state("bad")
        assert state is not None
        assert state.status == "failed"
        status = await cluster.status()
        assert not status.queues
        assert status.damaged == () or "execution:start:bad: " in status.damaged[0]
    assert not hostile.has_run(tmp_path)
    assert sorted(line.rpartition(":")[2] for line in agents.ledger()) == ["first", "last"]
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000
    return text


@pytest.mark.parametrize("damage", _REFUSED.values(), ids=_REFUSED)
async def test_a_row_of_another_form_fails_before_any_of_it_is_used(db: str, tmp_path: Path, damage: Damage) -> None:
    """Whatever is wrong with the row of a job, the job fails with the reason, nothing of it runs, and the others go on."""
    assert "WorkDamaged: " in await _check(db, tmp_path, damage)


@pytest.mark.parametrize("damage", _FAILED.values(), ids=_FAILED)
async def test_a_request_of_another_form_fails(db: str, tmp_path: Path, damage: Damage) -> None:
    """A row of the right form whose request makes no sense fails as well, and starts no other execution."""
    assert "InvalidDocument: " in await _check(db, tmp_path, damage)


@pytest.mark.parametrize("damage", _SQLITE.values(), ids=_SQLITE)
async def test_what_only_sqlite_stores_in_a_column_fails(
    tmp_path: Path, damage: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite stores any bytes in any column; a job with some that no driver reads fails alone."""
    monkeypatch.setenv(agents.FOLDER, str(tmp_path))
    assert "WorkDamaged: " in await _check(str(tmp_path / "runs.db"), tmp_path, damage)


async def test_the_database_refuses_data_of_another_format(db: str) -> None:
    """A row that names a format which DBOS would unpickle cannot be written, also into tables from before; ours can."""
    async with Cluster(db) as cluster:
        await cluster.submit(AGENT, "mark a", execution_id="bad")
    tables = EngineTables(db)
    tables.remove_guards()
    tables.run(f"UPDATE workflow_status SET status = 'SUCCESS', serialization = 'py_pickle' WHERE {_ROW}")
    async with Cluster(db) as cluster:
        assert (await cluster.status()).damaged == (
            "execution:start:bad: the format of its data is 'py_pickle', and not agentloop_json",
        )
        with pytest.raises((sqlite3.IntegrityError, psycopg.errors.CheckViolation)):
            tables.run(f"UPDATE workflow_status SET serialization = 'py_pickle' WHERE {_ROW}")
        with pytest.raises((sqlite3.IntegrityError, psycopg.errors.CheckViolation)):
            tables.run(
                "INSERT INTO workflow_status (workflow_uuid, name, serialization, application_name, created_at, updated_at, priority) "
                "VALUES ('x', 'y', 'portable_json', 'agentloop', 0, 0, 0)"
            )
        await cluster.submit(AGENT, "mark b", execution_id="bad")
        async with working(db):
            assert (await cluster.result("bad", timeout=LONGEST)).final_text == "done: mark b"


async def test_rows_of_another_program_in_the_same_tables_are_left_alone(postgres_url: str) -> None:
    """In PostgreSQL, another program can use DBOS in the same database, with a format of its own."""
    async with Cluster(postgres_url) as cluster:
        EngineTables(postgres_url).run(
            "INSERT INTO workflow_status (workflow_uuid, name, status, queue_name, serialization, application_name, created_at, updated_at, "
            "priority) VALUES ('x', 'y', 'ENQUEUED', 'q', 'py_pickle', 'other', 0, 0, 0)"
        )
        async with working(postgres_url):
            await cluster.result(await cluster.submit(AGENT, "mark b"), timeout=LONGEST)
        assert (await cluster.status()).damaged == ()
    assert EngineTables(postgres_url).run("SELECT status FROM workflow_status WHERE name = 'y'") == [("ENQUEUED",)]


async def test_a_role_that_may_not_change_tables_can_use_a_cluster(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the role may not add a constraint, programs check the format of data themselves."""
    monkeypatch.setenv(agents.FOLDER, str(tmp_path))
    async with Cluster(postgres_url) as cluster, working(postgres_url):
        await cluster.result(await cluster.submit(AGENT, "mark a"), timeout=LONGEST)
    tables = EngineTables(postgres_url)
    tables.remove_guards()
    role = f"limited_{postgres_url.partition('/test_')[2][:8]}"
    run_sql(postgres_url, f"CREATE ROLE {role} LOGIN")
    try:
        database = postgres_url.rpartition("/test_")[2].partition("?")[0]
        run_sql(postgres_url, f"GRANT CREATE ON DATABASE test_{database} TO {role}")
        for schema in ("dbos", "agentloop", "agentloop_cluster"):
            run_sql(postgres_url, f"GRANT USAGE ON SCHEMA {schema} TO {role}")
            run_sql(postgres_url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
            run_sql(postgres_url, f"GRANT CREATE ON SCHEMA {schema} TO {role}")
            run_sql(postgres_url, f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}")
        async with Cluster(postgres_url.replace("postgres@", f"{role}@")) as cluster:
            await cluster.submit(AGENT, "mark a", execution_id="bad")
            _input(hostile.encoded, serialization="py_pickle")(tables, tmp_path)
            with pytest.raises(WorkFailed, match="py_pickle"):
                await cluster.result("bad", timeout=LONGEST)
    finally:
        run_sql(postgres_url, f"DROP OWNED BY {role}")
        run_sql(postgres_url, f"DROP ROLE {role}")
    assert not hostile.has_run(tmp_path)


def test_dbos_unpickles_nothing_in_this_process(tmp_path: Path) -> None:
    """The serializer that DBOS uses by default raises in both directions, whoever calls it."""
    for serializer in (DBOSDefaultSerializer, DefaultSerializer()):
        with pytest.raises(ClusterError, match="serializer of its own"):
            serializer.deserialize(hostile.encoded(tmp_path))
        with pytest.raises(ClusterError, match="serializer of its own"):
            serializer.serialize({})
    with pytest.raises(ClusterError):
        deserialize_value(hostile.encoded(tmp_path), "py_pickle", serializer)
    assert not hostile.has_run(tmp_path)


@pytest.mark.parametrize("name", ["agentloop.schedule", "agentloop.execution", "_dbos_debouncer_workflow", "os.system"])
async def test_the_inner_queue_of_dbos_runs_nothing_of_a_row(db: str, tmp_path: Path, name: str) -> None:
    """DBOS takes work from a queue of its own without asking; a damaged row in it does not get that far."""
    async with Cluster(db) as cluster:
        await cluster.submit(AGENT, "mark a", execution_id="bad")
        tables = EngineTables(db)
        tables.remove_guards()
        values = {"workflow_uuid": "sched-x-1", "queue_name": "_dbos_internal_queue", "name": name}
        _input(hostile.encoded, serialization="py_pickle")(tables, tmp_path)
        tables.run("UPDATE workflow_input SET workflow_uuid = ?", "sched-x-1")
        tables.run(
            f"UPDATE workflow_status SET {', '.join(f'{column} = ?' for column in values)} WHERE {_ROW}",
            *values.values(),
        )
        async with working(db):
            await cluster.result(await cluster.submit(AGENT, "mark b"), timeout=LONGEST)
            await eventually(
                lambda: (
                    tables.run("SELECT status FROM workflow_status WHERE workflow_uuid = 'sched-x-1'") == [("ERROR",)]
                )
            )
    assert not hostile.has_run(tmp_path)


_SCHEDULES: dict[str, tuple[str, object]] = {
    "a pickle": ("context", hostile.encoded),
    "no JSON": ("context", "{"),
    "a job of another form": ("context", '{"agent": 5}'),
    "an unknown time zone": ("cron_timezone", "../../etc/passwd"),
    "an unknown function": ("workflow_name", "os.system"),
    "a class": ("workflow_class_name", "subprocess.Popen"),
    "another queue": ("queue_name", "elsewhere"),
}


@pytest.mark.parametrize(("column", "value"), _SCHEDULES.values(), ids=_SCHEDULES)
async def test_a_damaged_schedule_stops_no_other(db: str, tmp_path: Path, column: str, value: object) -> None:
    """A schedule that cannot be read starts nothing and is named; the others start executions at their times."""
    async with Cluster(db) as cluster:
        await cluster.schedule("bad", "* * * * * *", AGENT, "mark bad")
        await cluster.schedule("good", "* * * * * *", AGENT, "mark good")
        made = value(tmp_path) if callable(value) else value
        EngineTables(db).run(f"UPDATE workflow_schedules SET {column} = ? WHERE schedule_name = 'bad'", made)
        async with working(db):
            await eventually(lambda: bool(agents.ledger()))
        found = {schedule.name: schedule for schedule in await cluster.schedules()}
        assert found["bad"].problem
        assert not found["good"].problem
        assert [text for text in (await cluster.status()).damaged if text.startswith("schedule bad: ")]
        assert await cluster.unschedule("bad")
        assert [schedule.name for schedule in await cluster.schedules()] == ["good"]
    assert {line.rpartition(":")[2] for line in agents.ledger()} == {"good"}
    assert not hostile.has_run(tmp_path)


_ELSEWHERE: dict[str, tuple[str, ...]] = {
    "a job without an id": (f"UPDATE workflow_status SET workflow_uuid = NULL, priority = -5 WHERE {_ROW}",),
    "a job whose id is bytes": (f"UPDATE workflow_status SET workflow_uuid = x'80', priority = -5 WHERE {_ROW}",),
    "a job whose id is no text": (
        f"UPDATE workflow_status SET workflow_uuid = CAST(x'80' AS TEXT), priority = -5 WHERE {_ROW}",
    ),
    "a job whose id is a number": (f"UPDATE workflow_status SET workflow_uuid = 7, priority = -5 WHERE {_ROW}",),
    "a running job of a worker that is no text": (
        f"UPDATE workflow_status SET status = 'PENDING', executor_id = CAST(x'80' AS TEXT) WHERE {_ROW}",
    ),
    "a running job of a worker with a long name": (
        f"UPDATE workflow_status SET status = 'PENDING', executor_id = printf('%.5000c', 'x') WHERE {_ROW}",
    ),
    "a version that is no text": ("INSERT INTO application_versions VALUES ('v', CAST(x'80' AS TEXT), 9e18, 0, NULL)",),
    "a version of the future": (
        "INSERT INTO application_versions VALUES ('v', 'agentloop-1:z', 9223372036854775807, 0, 'agentloop')",
    ),
    "another queue whose name is no text": (
        "INSERT INTO queues (queue_id, name, polling_interval_sec, created_at, updated_at) VALUES ('q', CAST(x'80' AS TEXT), 1, 0, 0)",
    ),
    "another queue whose limits are no numbers": (
        "INSERT INTO queues (queue_id, name, concurrency, rate_limit_max, polling_interval_sec, created_at, updated_at) "  # noqa: ISC004
        "VALUES ('q', 'agentloop.executions.other', 'x', 'y', 1, 0, 0)",
    ),
}


@pytest.mark.parametrize("statements", _ELSEWHERE.values(), ids=_ELSEWHERE)
async def test_no_row_of_sqlite_holds_up_the_others(
    tmp_path: Path, statements: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DBOS reads many rows with one query, which fails for one value that is no text; the jobs of the others run."""
    monkeypatch.setenv(agents.FOLDER, str(tmp_path))
    db = str(tmp_path / "runs.db")
    tables = EngineTables(db)
    async with Cluster(db) as cluster:
        async with working(db, executions=1):
            # While a worker runs, so that what it does at its start is not enough.
            await cluster.submit(AGENT, "mark bad", execution_id="bad", delay=3600)
            tables.remove_guards()
            for statement in statements:
                tables.run(statement)
            tables.run("UPDATE workflow_status SET status = 'ENQUEUED' WHERE status = 'DELAYED'")
            state = await cluster.result(await cluster.submit(AGENT, "mark good"), timeout=LONGEST)
            assert state.final_text == "done: mark good"
            await cluster.status()
        async with working(db, executions=1):
            state = await cluster.result(await cluster.submit(AGENT, "mark better"), timeout=LONGEST)
            assert state.final_text == "done: mark better"
            await eventually(
                lambda: not tables.run("SELECT 1 FROM workflow_status WHERE status IN ('ENQUEUED', 'PENDING')")
            )


@pytest.mark.parametrize("limit", ["rate_limit_period_sec = -1", "concurrency = -5", "partition_concurrency = 1"])
async def test_a_queue_with_damaged_limits_waits_and_is_named(db: str, limit: str) -> None:
    """Nothing is taken without a limit that cannot be read; the other queues go on, and limits that are set again count."""
    async with Cluster(db) as cluster:
        await cluster.limit_queue("slow", rate=(5, 1.0))
        await cluster.submit(AGENT, "mark slow", execution_id="slow", queue="slow")
        EngineTables(db).run(f"UPDATE queues SET {limit} WHERE name = 'agentloop.executions.slow'")
        async with working(db):
            await cluster.result(await cluster.submit(AGENT, "mark other"), timeout=LONGEST)
            status = await cluster.status()
            assert status.damaged == ("queue agentloop.executions.slow: its limits cannot be read; set them again",)
            assert [(queue.name, queue.waiting) for queue in status.queues] == [("slow", 1)]
            await cluster.limit_queue("slow", concurrency=2)
            assert (await cluster.result("slow", timeout=LONGEST)).final_text == "done: mark slow"


_OUTCOMES: dict[str, Damage] = {
    "a pickle": _status(status="SUCCESS", output=hostile.encoded, serialization="py_pickle"),
    "a pickled error": _status(status="ERROR", error=hostile.encoded, serialization="py_pickle"),
    "no JSON": _status(status="SUCCESS", output="not json"),
    "an error that is no JSON": _status(status="ERROR", error="not json"),
    "an error of another form": _status(status="ERROR", error="[1]"),
    "a deep result": _status(status="SUCCESS", output="[" * 500 + "]" * 500),
    "a portable error": _status(status="ERROR", error='{"name": "x", "message": "y"}', serialization="portable_json"),
}


@pytest.mark.parametrize("damage", _OUTCOMES.values(), ids=_OUTCOMES)
async def test_a_damaged_outcome_is_not_believed(db: str, tmp_path: Path, damage: Damage) -> None:
    """A client reads what a job returned only from a row that this program wrote."""
    async with Cluster(db) as cluster:
        await cluster.submit(AGENT, "mark a", execution_id="bad")
        tables = EngineTables(db)
        tables.remove_guards()
        damage(tables, tmp_path)
        with pytest.raises(WorkFailed, match="WorkDamaged: "):
            await cluster.result("bad", timeout=LONGEST)
        await cluster.status()
        async with working(db):
            # It is submitted again as one that has failed before it was recorded.
            await cluster.submit(AGENT, "mark b", execution_id="bad")
            assert (await cluster.result("bad", timeout=LONGEST)).final_text == "done: mark b"
    assert not hostile.has_run(tmp_path)


@pytest.mark.parametrize("result", ['{"status": "succeeded", "result": 5}', "not json", "[]", '{"status": "x"}'])
async def test_a_damaged_result_of_a_queued_call_is_in_doubt(db: str, result: str) -> None:
    """A tool may have had its effect although its result cannot be read: the call has neither succeeded nor failed."""

    @tool
    def act() -> str:
        """Do something."""
        return "done"

    model = ScriptedInference(ToolCall("1", "act", "{}"), "over")
    loop = AgentLoop.for_model(model, tools=[act]).replace(executor=QueuedToolExecutor(db=db, agent=AGENT))
    async with Engine(ClusterDatabase.parse(db)) as engine:
        running = asyncio.create_task(loop.execute("Act."))
        while not await engine.list(kind=JobKind.TOOL):
            assert not running.done(), await running
        tables = EngineTables(db)
        tables.run("UPDATE workflow_status SET status = 'SUCCESS', output = ?", result)
        async with working(
            db, AgentLoop.for_model(ScriptedInference(), tools=[act])
        ):  # the tool is asked what it knows
            state = await asyncio.wait_for(running, LONGEST)
        assert [execution.status for execution in state.steps[0].executions] == ["in_doubt"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "[" * 5000,
        '{"name": 5}',
        '{"name": "x", "agents": "abc"}',
        "\0",
        "__import__('os')",
        '{"x": 1}',
    ],
)
async def test_a_damaged_note_of_a_worker_is_passed_over(db: str, text: str) -> None:
    """What a live worker seems to say about itself is left out if it is no note; workers and clients go on."""
    database = ClusterDatabase.parse(db)
    locks = open_locks(database)
    try:
        locks.connect()
        assert locks.take("odd")
        locks.write_note(WorkerNote(name="odd", agents=(AGENT,)))
        assert [note.name for note in read_live_notes(database)] == ["odd"]
        if database.path is None:
            run_sql(db, "UPDATE agentloop_cluster.workers SET note = %s", text.replace("\0", ""))
        else:
            (database.workers_path / "odd.lock").write_text(text)
        assert read_live_notes(database) == []
        async with Cluster(db) as cluster, working(db, name="even"):
            await cluster.result(await cluster.submit(AGENT, "mark a"), timeout=LONGEST)
            assert [note.name for note in (await cluster.status()).workers] == ["even"]
    finally:
        locks.close()


async def test_data_that_is_too_long_is_not_queued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no reader would read is refused when it is submitted."""
    monkeypatch.setattr("agentloop.service.cluster.dbos_binding.MAX_DATA", 1000)
    async with Cluster(tmp_path / "runs.db") as cluster:
        with pytest.raises(InvalidParameter, match="at most 1,000 can be queued"):
            await cluster.submit(AGENT, "x" * 1000)


@pytest.mark.parametrize("version", ["abc", -1, b"x", None])
async def test_tables_of_an_unknown_version_are_a_typed_error(tmp_path: Path, version: object) -> None:
    """A client and a worker say in one line that the tables cannot be used."""
    db = str(tmp_path / "runs.db")
    async with Cluster(db):
        pass
    tables = EngineTables(db)
    tables.run("CREATE TABLE other (version)")
    tables.run("INSERT INTO other VALUES (?)", version)
    tables.run("DROP TABLE dbos_migrations")
    tables.run("ALTER TABLE other RENAME TO dbos_migrations")
    for start in (Cluster(db).__aenter__, Worker({AGENT: agents.loop}, db).run):
        with pytest.raises(AgentLoopError) as caught:
            await asyncio.wait_for(start(), LONGEST)
        assert "\n" not in str(caught.value)
