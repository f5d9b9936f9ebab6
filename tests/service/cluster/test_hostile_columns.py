"""Every column of every table holds what somebody else wrote: nothing of it runs, every failure is typed, and nothing hangs.

The columns come from the catalogs of the databases, so that new ones are covered. Each row of a table gets one hostile value in one column.
Where a row concerns all others, such as the version of the tables, each value has a database of its own.
"""

from __future__ import annotations

import asyncio
import io
import json
import pickle
import shutil
import sqlite3
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import psycopg
import pytest
from attrs import define, field, frozen

from agentloop import AgentLoop, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.durable import open_journal
from agentloop.errors import AgentLoopError
from agentloop.service.cli.main import main
from agentloop.service.cluster import Cluster, Worker
from agentloop.service.server import LocalExecutions
from agentloop.values import InferenceRequest, InferenceResponse, Message
from tests.limits import LONGEST
from tests.postgres import new_database, run_sql, url_of_database
from tests.service.cluster import hostile
from tests.service.cluster.workers import AGENT, working
from tests.service.server.front import serving

_EXECUTIONS, _JOBS = 64, 130
"""How many executions and how many waiting jobs a database has: at least as many as columns of their tables get values."""
_PARTS, _PARTS_ALONE = 6, 17
"""In how many parts hostile values are written."""
_SECONDS = 60.0
"""How long one step may take before it counts as hanging."""
_SCHEMAS = ("agentloop", "agentloop_cluster", "dbos")
_KEYS = {"main.meta": "name", "main.accounts": "id", "main.grants": "id"}
"""The columns that find the rows of the tables without row numbers, in SQLite."""
_ALONE = ("meta", "dbos_migrations", "executions", "workers")
"""Tables whose rows are damaged one by one: one that cannot be read keeps all others from being listed, or from being used at all."""


# --- what is written ------------------------------------------------------------------------------------------------------------


def _hostile_values(folder: Path) -> Mapping[str, Any]:
    module = hostile.MODULE
    return {
        "a pickle": hostile.pickled(folder),
        "a pickle in Base64": hostile.encoded(folder),
        "JSON that is a pickle": hostile.polyglot(folder),
        "a format": "py_pickle",
        "no JSON": "not json",
        "a long text": "x" * 1_000_000,
        "a null character": "a\0b",
        "deep JSON": "[" * 5000 + "]" * 5000,
        "JSON that names a class": f'{{"__class__": "{module}.Run", "py/object": "{module}.Run", "!!python/name": "{module}.Run"}}',
        "an expression": f"__import__('{module}')",
        "a path of Python": f"{module}:Run",
        "HTML and signs for terminals": "<script>alert(1)</script>\x1b[31m\u202e\r\n",
        "nothing": None,
        "a negative number": -1,
        "a large number": 2**62,
        "a fraction": 1.5,
        "no UTF-8": b"\xff\xfe",
    }


@define
class _Audit:
    """Notes what Python reports of code that data could have reached."""

    is_on: bool = False
    found: list[str] = field(factory=list)

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note an event of the interpreter."""
        if not self.is_on:
            return
        if event in {"pickle.find_class", "shelve.open", "os.system", "os.exec"}:
            self.found.append(f"{event} {arguments!r:.100}")
        if event in {"import", "compile"} and hostile.MODULE in str(arguments[0])[:10_000]:
            self.found.append(f"{event} {arguments!r:.100}")


_AUDIT = _Audit()
sys.addaudithook(_AUDIT.note)


# --- databases ------------------------------------------------------------------------------------------------------------------


@frozen
class _Place:
    """A database whose tables somebody with all rights can see and change."""

    db: str

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file with the file of the engine beside it."""
        return not self.db.startswith("postgresql")

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        if not self.is_sqlite:
            with psycopg.connect(self.db, autocommit=True) as connection:
                yield connection
            return
        with closing(sqlite3.connect(self.db, isolation_level=None, timeout=30)) as connection:
            connection.execute("ATTACH ? AS engine", (f"{self.db}-engine",))
            yield connection

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement with `?` for its values."""
        with self._connected() as connection:
            cursor = connection.execute(statement if self.is_sqlite else statement.replace("?", "%s"), values)
            return list(cursor.fetchall()) if cursor.description is not None else []

    def columns(self) -> Mapping[str, Mapping[str, str]]:
        """Return all columns by their tables, from the catalog, with their types."""
        if self.is_sqlite:
            query = "SELECT name FROM {}.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            tables = [f"{schema}.{name}" for schema in ("main", "engine") for (name,) in self.run(query.format(schema))]
            return {
                table: {row[1]: row[2].lower() for row in self.run(f"PRAGMA {table.replace('.', '.table_info(')})")}
                for table in tables
            }
        found: dict[str, dict[str, str]] = {}
        query = (
            "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = ANY(?) "
            "ORDER BY 1, 2, ordinal_position"
        )
        for schema, table, column, kind in self.run(query, list(_SCHEMAS)):
            found.setdefault(f"{schema}.{table}", {})[column] = kind
        return found

    def rows(self, table: str) -> list[Any]:
        """Return what finds each row of a table."""
        return [row for (row,) in self.run(f"SELECT {self.key(table)} FROM {table}")]

    def key(self, table: str) -> str:
        """Return the column that finds a row of a table."""
        return _KEYS.get(table, "rowid") if self.is_sqlite else "ctid"

    def write(self, table: str, row: Any, column: str, value: object) -> bool:
        """Write a value; return whether the database takes it."""
        if not self.is_sqlite and isinstance(value, str):
            value = value.replace("\0", "")
        kinds = [value] if self.is_sqlite or not isinstance(value, str) else [value, value.encode()]
        for each in kinds:
            with suppress(sqlite3.Error, psycopg.Error):
                self.run(f"UPDATE {table} SET {column} = ? WHERE {self.key(table)} = ?", each, row)
                return True
        return False

    def remove_guards(self) -> None:
        """Remove what lets the database refuse data of another format, and references."""
        if self.is_sqlite:
            for (name,) in self.run("SELECT name FROM engine.sqlite_master WHERE type = 'trigger'"):
                self.run(f"DROP TRIGGER engine.{name}")
            return
        query = "SELECT conrelid::regclass, conname FROM pg_constraint WHERE contype IN ('c', 'f') AND connamespace = ANY(?::regnamespace[])"
        for table, name in self.run(query, list(_SCHEMAS)):
            self.run(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')


@frozen
class _Base:
    """A database with everything in it, of which each test gets a copy."""

    place: _Place
    server: str = ""

    @contextmanager
    def copied(self, folder: Path) -> Iterator[_Place]:
        """Yield a copy."""
        if self.place.is_sqlite:
            folder.mkdir()
            for file in Path(self.place.db).parent.glob(f"{Path(self.place.db).name}*"):
                if file.is_file():
                    shutil.copy(file, folder / file.name)
            yield _Place(str(folder / Path(self.place.db).name))
            return
        name = f"copy_{folder.name}".lower().replace("-", "_")[:50]
        original = self.place.db.rpartition("?")[0].rpartition("/")[2]
        run_sql(self.server, f'CREATE DATABASE "{name}" TEMPLATE "{original}" STRATEGY FILE_COPY')
        try:
            yield _Place(url_of_database(self.server, name))
        finally:
            run_sql(self.server, f'DROP DATABASE "{name}" WITH (FORCE)')


# --- what is in the databases -----------------------------------------------------------------------------------------------------


@tool(effect="pure")
def look(text: str) -> str:
    """Look something up, and return a long text."""
    return text * 5000


@tool
def pay(cents: int) -> str:
    """Pay an amount."""
    return f"paid {cents}"


def _respond(request: InferenceRequest) -> InferenceResponse | str:
    asked = [message.text for message in request.messages if message.role == "user" and message.text][-1]
    done = sum(len(message.exchanges) for message in request.messages)
    if done == 0:
        return InferenceResponse((ToolCall("1", "look", '{"text": "lamp "}'),))
    if done == 1 and "pay" in asked:
        return InferenceResponse((ToolCall("2", "pay", '{"cents": 5}'),))
    return "Done."


LOOP = AgentLoop.for_model(
    ScriptedInference(*[_respond] * 1000), tools=[look, pay], interceptors=[RequireApproval("pay")]
)


async def _fill(db: str, executions: int, jobs: int) -> None:
    """Fill a database: executions that have ended or wait, with messages that wait for them, and jobs that wait for a worker."""
    async with Cluster(db) as cluster:
        async with working(db, LOOP):
            await cluster.result(await cluster.submit(AGENT, "look", execution_id="submitted"), timeout=LONGEST)
        await cluster.schedule("nightly", "0 0 1 1 *", AGENT, "look")
        await cluster.limit_queue("slow", concurrency=2, rate=(5, 60.0))
        loop = LOOP.replace(journal=cluster.journal)
        for number in range(executions):
            state = await loop.execute("pay it" if number % 2 else "look", execution_id=f"e{number}")
            if number % 2:
                await cluster.send(f"e{number}", "Be quick.")
            elif number % 4 == 0:
                await loop.execute(state.with_message(Message.user("And now?")), execution_id=f"turn{number}")
        for number in range(jobs):
            await cluster.submit(AGENT, "look", execution_id=f"job{number}")
        for number in range(70):
            await cluster.limit_queue(f"queue{number}", concurrency=2)
            await cluster.schedule(f"schedule{number}", "0 0 1 1 *", AGENT, "look")


def _fill_empty_tables(place: _Place) -> None:
    """Insert rows into the tables that agentloop does not use, and more into those that it uses seldom."""
    for table, columns in place.columns().items():
        wanted = 1 if table.partition(".")[2] in _ALONE else 70
        for number in range(wanted - len(place.rows(table))):
            named = {
                "workflow_uuid": f"execution:start:job{number}",
                "destination_uuid": "execution:start:submitted",
                "serialization": "agentloop_json",
                "parent": None,
            }
            made = {
                name: named[name] if name in named else _plain_value(kind, number) for name, kind in columns.items()
            }
            given = {name: value for name, value in made.items() if value is not None}
            names, marks = ", ".join(f'"{name}"' for name in given), ", ".join("?" * len(given))
            with suppress(sqlite3.Error, psycopg.Error):
                place.run(f"INSERT INTO {table} ({names}) VALUES ({marks})", *given.values())


def _plain_value(kind: str, number: int) -> object:
    if "int" in kind or "numeric" in kind:
        return number + 1
    if "bool" in kind:
        return False
    if "json" in kind:
        return "{}"
    return None if any(part in kind for part in ("real", "double", "time")) else f"row-{number}"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Base]:
    """A database of each kind with everything in it."""
    folder = tmp_path_factory.mktemp("hostile")
    if request.param == "sqlite":
        place = _Place(str(folder / "runs.db"))
        asyncio.run(_fill(place.db, _EXECUTIONS, _JOBS))
        _fill_empty_tables(place)
        yield _Base(place)
        return
    server = str(request.getfixturevalue("postgres_server"))
    with new_database(server) as url:
        asyncio.run(_fill(url, _EXECUTIONS, _JOBS))
        _fill_empty_tables(_Place(url))
        yield _Base(_Place(url), server)


# --- who reads them ---------------------------------------------------------------------------------------------------------------


@define
class _Readers:
    """Everything that reads a database, with what was not as it should be."""

    place: _Place
    problems: list[str] = field(factory=list)
    waits: bool = True

    def _check(self, step: str, error: BaseException) -> None:
        text = str(error)
        if not isinstance(error, AgentLoopError):
            place = traceback.extract_tb(error.__traceback__)[-1]
            self.problems.append(f"{step}: {type(error).__name__}: {text[:200]!r} at {place.filename}:{place.lineno}")
        elif len(text) > 2000 or any(character in text for character in "\x1b\u202e\0"):
            self.problems.append(f"{step}: the text of the error is not one that a person reads: {text[:200]!r}")

    async def _step(self, step: str, work: Any) -> Any:
        try:
            return await asyncio.wait_for(work, _SECONDS)
        except BaseException as error:  # noqa: BLE001  # each is judged
            self._check(step, error)
            return None

    async def work(self, executions: Sequence[str]) -> None:
        """Run a worker, and a client that submits and asks."""
        cluster = Cluster(self.place.db)
        opened = await self._step("open the cluster", cluster.__aenter__())
        worker = Worker({AGENT: LOOP}, self.place.db, name="hostile")
        running = asyncio.create_task(worker.run())
        started = asyncio.create_task(worker.started())
        await asyncio.wait((running, started), return_when=asyncio.FIRST_COMPLETED, timeout=_SECONDS)
        if opened is not None and started.done():
            submitted = await self._step(
                "submit", cluster.submit(AGENT, "look", execution_id="fresh", priority=999_000)
            )
            if (
                submitted is not None
                and await self._step("result", cluster.result("fresh", timeout=_SECONDS - 5)) is None
            ):
                self.problems.append("the work that was submitted afterwards did not end")
        if opened is not None:
            if self.waits:
                await self._until_jobs_have_ended()
            await self._step("status", cluster.status())
            await self._step("schedules", cluster.schedules())
            for execution_id in executions:
                with suppress(TimeoutError):
                    await self._step(f"unrecorded {execution_id}", cluster.unrecorded_state(execution_id))
            await self._step("close the cluster", cluster.aclose())
        started.cancel()
        await worker.drain()
        await self._step("worker", running)

    async def _until_jobs_have_ended(self) -> None:
        """Wait until no job of this agent and of a version that any worker has is left, whatever its row holds."""
        table = "engine.workflow_status" if self.place.is_sqlite else "dbos.workflow_status"
        query = (
            f"SELECT workflow_uuid, status, queue_name, application_version FROM {table} WHERE queue_partition_key = ? "
            "AND status NOT IN ('SUCCESS', 'ERROR', 'CANCELLED') AND (application_version IS NULL "
            "OR substr(application_version, 1, 10) <> 'agentloop-' OR application_version = 'agentloop-1:')"
        )
        if not self.place.is_sqlite:  # the rows of other programs are theirs
            query += " AND (application_name IS NULL OR application_name = 'agentloop')"
        for _ in range(600):
            left = self.place.run(query, AGENT)
            if not left:
                return
            await asyncio.sleep(0.1)
        self.problems += [f"a job has not ended: {row!r:.500}" for row in left]

    async def serve(self, executions: Sequence[str]) -> None:
        """Serve the journal, and fetch everything of executions."""
        journal = open_journal(self.place.db)
        try:
            async with serving(LocalExecutions(LOOP, journal), authenticate=None) as client:
                await self._get(client, "/executions")
                for execution_id in executions:
                    for part in (
                        "",
                        "/state",
                        "/trace",
                        "/events?format=ag-ui",
                        f"/trace/comparison?with={execution_id}",
                    ):
                        await self._get(client, f"/executions/{execution_id}{part}")
        except BaseException as error:  # noqa: BLE001  # judged
            self._check("serve", error)
        finally:
            await journal.aclose()

    async def _get(self, client: httpx.AsyncClient, path: str) -> None:
        if "/events" in path:
            with suppress(
                httpx.RemoteProtocolError, TimeoutError
            ):  # an answer that is not complete, or one that waits for more
                async with asyncio.timeout(0.5), client.stream("GET", path) as response:
                    if response.status_code >= 500:
                        self._check_answer(path, await response.aread())
                    async for _ in response.aiter_bytes():
                        pass
            return
        response = await client.get(path, timeout=_SECONDS)
        if response.status_code >= 500:
            self._check_answer(path, response.content)

    def _check_answer(self, path: str, body: bytes) -> None:
        if json.loads(body)["code"] != "damaged":
            self.problems.append(f"GET {path}: {body[:200]!r}")

    def command(self, *arguments: str) -> None:
        """Run a command, which ends with an exit code and, if it fails, one line for a person."""
        out, err = io.StringIO(), io.StringIO()
        name = " ".join(arguments)
        with mock.patch.dict("os.environ", {"AGENTLOOP_DB": self.place.db}), redirect_stdout(out), redirect_stderr(err):
            try:
                main(arguments)
            except SystemExit as ended:
                code = ended.code
            except BaseException as error:  # noqa: BLE001  # judged
                self._check(name, error)
                return
        if code not in {0, 1, 2}:
            self.problems.append(f"{name}: exit code {code}")
        if "Traceback" in err.getvalue():
            self.problems.append(f"{name}: {err.getvalue()[-300:]!r}")
        for text in (out.getvalue(), err.getvalue()):
            if found := [character for character in "\x1b\u202e\0" if character in text]:
                self.problems.append(f"{name}: it prints {found!r}")


@contextmanager
def _watched(folder: Path) -> Iterator[None]:
    """Check that nothing of what is in a database runs."""
    _AUDIT.found.clear()
    _AUDIT.is_on = True
    try:
        yield
    finally:
        _AUDIT.is_on = False
    assert _AUDIT.found == []
    assert not hostile.has_run(folder)
    assert hostile.MODULE not in sys.modules


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the marker, with a module that nothing but hostile data names."""
    hostile.write_module(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _pairs(
    columns: Mapping[str, Mapping[str, str]], tables: Sequence[str], values: Mapping[str, object], part: int, parts: int
) -> list[tuple[str, str, str]]:
    """Return tables, columns and names of values: each column with a part of the values, other ones for other columns."""
    places = enumerate((table, column) for table in tables for column in columns[table])
    return [
        (table, column, name)
        for number, (table, column) in places
        for index, name in enumerate(values)
        if (number * 7 + index) % parts == part
    ]


def _read_all(readers: _Readers, folder: Path, executions: Sequence[str], jobs: Sequence[str]) -> None:
    """Let everything read a database: worker, client, commands and server."""
    asyncio.run(readers.work(jobs))
    for arguments in (("runs", "list"), ("cluster", "status"), ("cluster", "schedules"), ("runs", "verify")):
        readers.command(*arguments)
    for execution_id in executions:
        readers.command("runs", "show", execution_id)
        readers.command("trace", "view", execution_id, "-o", str(folder / "page.html"), "--no-open")
    asyncio.run(readers.serve(executions))


@pytest.mark.parametrize("part", [0, *[pytest.param(part, marks=pytest.mark.heavy) for part in range(1, _PARTS)]])
def test_no_row_of_a_table_runs_or_hangs(base: _Base, folder: Path, part: int) -> None:
    """Each column of each table with rows of their own: the jobs of all rows end, and who reads them goes on."""
    values, columns = _hostile_values(folder), base.place.columns()
    tables = [table for table in columns if table.partition(".")[2] not in _ALONE]
    with base.copied(folder / f"rows{part}") as place, _watched(folder):
        place.remove_guards()
        rows, written = {table: place.rows(table) for table in tables}, Counter[str]()
        for table, column, name in _pairs(columns, tables, values, part, _PARTS):
            written[table] += bool(rows[table]) and place.write(table, rows[table].pop(), column, values[name])
        # PostgreSQL takes fewer, as columns have types.
        assert all(written[table] for table in tables), written
        readers = _Readers(place)
        executions = ["submitted", *[f"e{number}" for number in range(0, _EXECUTIONS, 9)]]
        _read_all(readers, folder, executions, [f"job{number}" for number in range(0, _JOBS, 20)])
        assert readers.problems == []


@pytest.mark.parametrize("part", [0, *[pytest.param(part, marks=pytest.mark.heavy) for part in range(1, _PARTS_ALONE)]])
@pytest.mark.unmonitored  # the executions of one copy run again in the next one
def test_no_row_that_concerns_all_others_runs_or_hangs(base: _Base, folder: Path, part: int) -> None:
    """Each column of the summaries of executions, of the settings and versions of tables, and of the notes of workers, one by one."""
    values, columns = _hostile_values(folder), base.place.columns()
    tables = [table for table in columns if table.partition(".")[2] in _ALONE]
    problems = []
    for number, (table, column, name) in enumerate(_pairs(columns, tables, values, part, _PARTS_ALONE)):
        with base.copied(folder / f"alone{part}_{number}") as place, _watched(folder):
            place.remove_guards()
            if not place.write(table, place.rows(table)[-1], column, values[name]):
                continue
            readers = _Readers(place)
            readers.waits = False
            _read_all(readers, folder, ["submitted"], ["job0"])
            problems += [f"{table}.{column} = {name}: {problem}" for problem in readers.problems]
    assert problems == []


def test_the_check_finds_what_runs(folder: Path) -> None:
    """A reader that unpickles, imports or evaluates what it finds is noticed."""
    values = _hostile_values(folder)
    for run in (
        lambda: pickle.loads(values["a pickle"]),  # what must be noticed
        lambda: import_module(hostile.MODULE),
        lambda: eval(str(values["an expression"])),  # the same
    ):
        with pytest.raises(AssertionError), _watched(folder):
            run()
        (folder / hostile.MARKER).unlink(missing_ok=True)
        sys.modules.pop(hostile.MODULE, None)
