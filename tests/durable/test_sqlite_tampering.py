"""Verification detects every change of a journal file that no journal made."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, closing, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count, product
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from agentloop import AgentLoop, ScriptedInference
from agentloop.durable import SqliteJournal
from agentloop.durable.chain import JournalFinding
from agentloop.durable.sqlite.schema import JournalConnection
from agentloop.errors import JournalBusy, JournalCorrupt, JournalError
from agentloop.service.trace.reader import build_trace
from agentloop.testing.journal_bench import append_claimed
from agentloop.values import Message
from agentloop.values.commands import ExecutionCommand
from agentloop.values.steps import ExecutionStatus
from tests.durable.records import append_records, make_head, make_records
from tests.generated import part_of
from tests.limits import LONGEST

COUNT = 6
HEAD = (
    "agent_id parent_agent_id number status step_count record_count last_hash input forked_from started_at updated_at"
)
RECORD = "kind at schema_version body cuts previous_hash hash"


async def write_executions(path: Path) -> None:
    """Write two executions with short records, records with spilled strings, and one with an entirely spilled body."""
    journal = SqliteJournal(path, spill_bytes=200)
    for number, execution_id in enumerate(("e", "f"), 1):
        long = f'{{"of": "{execution_id}", "text": "{"long " * 100}", "more": "{"é" * 300}"}}'
        wide = f'{{"of": "{execution_id}", "all": [{", ".join(["12345"] * 100)}]}}'
        bodies = [f'{{"of": "{execution_id}", "number": {index}}}' for index in range(COUNT - 3)]
        records = make_records(execution_id, *bodies, long, wide, long)
        head = make_head(records, agent_id="agent", number=number, status=ExecutionStatus.COMPLETED)
        await append_claimed(journal, head, records)
    await journal.aclose()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return an intact file with two executions."""
    path = tmp_path_factory.mktemp("journal") / "j.db"
    asyncio.run(write_executions(path))
    assert verify(path) == ()
    yield path
    assert verify(path) == ()


def verify(path: Path, execution_id: str | None = None) -> tuple[JournalFinding, ...]:
    async def run() -> tuple[JournalFinding, ...]:
        journal = SqliteJournal(path)
        try:
            return await journal.verify(execution_id)
        finally:
            await journal.aclose()

    return asyncio.run(run())


def tamper(original: Path, *statements: tuple[str, tuple[object, ...]]) -> tuple[JournalFinding, ...]:
    """Change a copy of the file and return the findings; fail when nothing was changed."""
    path = original.with_name("tampered.db")
    shutil.copy(original, path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        before = "".join(connection.iterdump())
        for statement, values in statements:
            connection.execute(statement, values)
        assert "".join(connection.iterdump()) != before
    return verify(path)


def other_value(value: object) -> object:
    """Return another value of the same type."""
    if isinstance(value, int):
        return value + 1
    if value in ExecutionStatus.__members__.values():
        return ExecutionStatus.STOPPED.value
    if isinstance(value, str) and value:
        return f"{value[:-1]}{'x' if value[-1] != 'x' else 'y'}"
    return "x"


def read_value(original: Path, column: str, table: str, where: str) -> object:
    with closing(sqlite3.connect(original)) as connection:
        (value,) = connection.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchone()  # constants only
        return value


@given(column=st.sampled_from(RECORD.split()), sequence=st.integers(1, COUNT), execution=st.sampled_from("ef"))
def test_a_changed_record_is_detected(original: Path, column: str, sequence: int, execution: str) -> None:
    """A change of any column is detected, and the finding names the record."""
    where = f"execution_id = '{execution}' AND sequence = {sequence}"
    value = other_value(read_value(original, column, "records", where))
    findings = tamper(original, (f"UPDATE records SET {column} = ? WHERE {where}", (value,)))
    expected = 0 if column == "schema_version" else sequence  # SchemaTooNew does not name the record
    assert (execution, expected) in {(finding.execution_id, finding.sequence) for finding in findings}


@given(data=st.data(), sequence=st.integers(1, COUNT))
def test_a_changed_character_is_detected(original: Path, data: DataObject, sequence: int) -> None:
    """A change of a single character of a body is detected."""
    where = f"execution_id = 'e' AND sequence = {sequence}"
    body = str(read_value(original, "body", "records", where))
    index = data.draw(st.integers(0, len(body)))
    changed = data.draw(st.characters(codec="utf-8").filter(lambda character: body[index : index + 1] != character))
    value = f"{body[:index]}{changed}{body[index + 1 :]}"
    findings = tamper(original, (f"UPDATE records SET body = ? WHERE {where}", (value,)))
    assert ("e", sequence) in {(finding.execution_id, finding.sequence) for finding in findings}


@given(first=st.integers(1, COUNT), count=st.integers(1, COUNT))
def test_dropped_records_are_detected(original: Path, first: int, count: int) -> None:
    """Missing records are detected at the beginning, in the middle and at the end, also when all are missing."""
    where = "WHERE execution_id = 'e' AND sequence BETWEEN ? AND ?"
    findings = tamper(original, (f"DELETE FROM records {where}", (first, first + count - 1)))
    assert {finding.execution_id for finding in findings} == {"e"}


@given(positions=st.lists(st.integers(1, COUNT), min_size=2, max_size=2, unique=True))
def test_swapped_records_are_detected(original: Path, positions: list[int]) -> None:
    """A swap of two records is detected at both positions."""
    move = "UPDATE records SET sequence = ? WHERE execution_id = 'e' AND sequence = ?"
    first, second = positions
    findings = tamper(original, (move, (0, first)), (move, (first, second)), (move, (second, 0)))
    assert {first, second} <= {finding.sequence for finding in findings}


@given(position=st.integers(1, COUNT), source=st.integers(1, COUNT), at_end=st.booleans())
def test_spliced_records_are_detected(original: Path, position: int, source: int, *, at_end: bool) -> None:
    """A record of another execution is detected, in the middle and at the end."""
    position = COUNT + 1 if at_end else position
    copy = "INSERT INTO records SELECT 'e', ?, " + ", ".join(RECORD.split())
    findings = tamper(
        original,
        ("DELETE FROM records WHERE execution_id = 'e' AND sequence = ?", (position,)),
        (f"{copy} FROM records WHERE execution_id = 'f' AND sequence = ?", (position, source)),
    )
    assert {finding.execution_id for finding in findings} == {"e"}


@given(data=st.data(), dropped=st.booleans())
def test_a_changed_or_missing_spill_is_detected(original: Path, data: DataObject, *, dropped: bool) -> None:
    """Changes of spilled strings are detected."""
    with closing(sqlite3.connect(original)) as connection:
        spills = connection.execute("SELECT execution_id, digest, data FROM spills ORDER BY 1, 2").fetchall()
    execution_id, digest, text = data.draw(st.sampled_from(spills))
    where = "WHERE execution_id = ? AND digest = ?"
    if dropped:
        findings = tamper(original, (f"DELETE FROM spills {where}", (execution_id, digest)))
    else:
        index = data.draw(st.integers(0, len(text) - 1))
        changed = f"{text[:index]}#{text[index + 1 :]}"
        findings = tamper(original, (f"UPDATE spills SET data = ? {where}", (changed, execution_id, digest)))
    assert {finding.execution_id for finding in findings} == {execution_id}


@given(column=st.sampled_from(HEAD.split()))
def test_a_changed_head_is_detected(original: Path, column: str) -> None:
    """A change of any column of a head is detected."""
    value = other_value(read_value(original, column, "executions", "execution_id = 'e'"))
    value = value if column != "number" else 7
    findings = tamper(original, (f"UPDATE executions SET {column} = ? WHERE execution_id = 'e'", (value,)))
    assert {finding.execution_id for finding in findings} == {"e"}


CHANGES: dict[str, Callable[[], str]] = {
    "a missing head": lambda: "DELETE FROM executions WHERE execution_id = 'e'",
    "records of another execution": lambda: "UPDATE records SET execution_id = 'g' WHERE execution_id = 'e'",
    "bytes as a body": lambda: "UPDATE records SET body = x'ff00' WHERE execution_id = 'e'",
    "bytes as a spill": lambda: "UPDATE spills SET data = x'ff00' WHERE execution_id = 'e'",
    "a text as a version": lambda: "UPDATE records SET schema_version = 'one' WHERE execution_id = 'e'",
    "a text as a sequence number": lambda: (
        "UPDATE records SET sequence = 'one' WHERE execution_id = 'e' AND sequence = 3"
    ),
    "a number as a time": lambda: "UPDATE executions SET started_at = 1e300 WHERE execution_id = 'e'",
    "bytes as an id": lambda: "UPDATE executions SET agent_id = x'ff' WHERE execution_id = 'e'",
}


@pytest.mark.parametrize("name", CHANGES)
def test_rows_of_wrong_types_are_detected(original: Path, name: str) -> None:
    """Verification reports any content of a row as a finding and does not fail."""
    findings = tamper(original, (CHANGES[name](), ()))
    assert {finding.execution_id for finding in findings} & {"e", "g"}
    assert "f" not in {finding.execution_id for finding in findings}


def test_a_single_execution_can_be_verified(original: Path) -> None:
    """The verification of one execution ignores damage of others."""
    tamper(original, ("DELETE FROM records WHERE execution_id = 'e' AND sequence = 2", ()))
    assert verify(original.with_name("tampered.db"), "f") == ()
    assert {finding.execution_id for finding in verify(original.with_name("tampered.db"), "e")} == {"e"}


def test_a_journal_that_is_meant_to_be_older_can_be_continued(original: Path, tmp_path: Path) -> None:
    """When a backup was restored without its `-ends`, verification says which file to remove; then the journal is continued."""
    file = tmp_path / "j.db"
    shutil.copy(original, file)
    ends = tmp_path / "j.db-ends"

    async def append() -> None:
        journal = SqliteJournal(file)
        try:
            more = make_records("e", '{"more": 1}', after=await journal.read("e"))
            await append_claimed(journal, make_head(more, agent_id="agent", number=1), more)
        finally:
            await journal.aclose()

    asyncio.run(append())
    shutil.copy(original, file)
    (finding,) = verify(file)
    assert f"remove {ends}" in finding.problem
    with pytest.raises(JournalCorrupt, match=f"remove {ends}"):
        asyncio.run(append())
    ends.unlink()
    assert verify(file) == ()
    asyncio.run(append())
    assert verify(file) == ()


def test_lost_records_are_noticed_in_a_read_only_folder(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ends are read where nothing can be written."""
    file = tmp_path / "j.db"
    for path in (original, original.with_name("j.db-ends")):
        shutil.copy(path, tmp_path)
    with closing(sqlite3.connect(file)) as connection, connection:
        for table in ("executions", "records", "spills"):
            connection.execute(f"DELETE FROM {table} WHERE execution_id = 'f'")
    monkeypatch.setattr("agentloop.durable.sqlite.schema.os.access", lambda _path, mode: mode != os.W_OK)
    (finding,) = verify(file)
    assert finding.problem.startswith(f"execution f has 0 records, and {COUNT} were acknowledged")


def damaged(original: Path, *changes: tuple[int, int]) -> list[JournalError | None]:
    """Change bytes of a copy of the file; return what opening, reading and verifying it raise."""
    content = bytearray(original.read_bytes())
    for position, byte in changes:
        content[position] = byte
    file = original.with_name("damaged.db")
    file.write_bytes(content)

    async def run() -> list[JournalError | None]:
        raised = list[JournalError | None]()
        async with aclosing(SqliteJournal(file, busy_timeout=0.5)) as journal:
            for action in (journal.list(), journal.read("e"), journal.verify(), journal.commands(["e"])):
                try:
                    await action
                    raised.append(None)
                except JournalError as error:
                    raised.append(error)
        return raised

    try:
        return asyncio.run(run())
    finally:
        for path in original.parent.glob("damaged.db*"):
            path.unlink()


FREE_PAGES = 36
"""The position of the number of free pages in an SQLite file, which has 4 bytes."""


def test_damage_of_the_file_is_a_finding_about_no_execution(original: Path, tmp_path: Path) -> None:
    """It has neither an id nor the number of a record, and the executions beside it are intact."""
    content = bytearray(original.read_bytes())
    content[FREE_PAGES + 3] += 1
    file = tmp_path / "j.db"
    file.write_bytes(content)
    (finding,) = verify(file)
    assert finding == JournalFinding("", 0, finding.problem)
    assert finding.problem.startswith("the file: ")
    assert verify(file, "e") == ()


def test_a_table_of_contents_that_is_no_text_is_damage(original: Path) -> None:
    """SQLite names the damaged table in an error, whose text cannot be decoded."""
    content = original.read_bytes()
    name, statement = content.index(b"tableexecutions") + len(b"table"), content.index(b"CREATE TABLE executions")
    raised = damaged(original, (name, 0x9B), (statement, ord("X")))
    assert [type(error) for error in raised] == [JournalCorrupt] * 4


@given(changes=st.lists(st.tuples(st.integers(0, 2047), st.integers(0, 255)), min_size=1, max_size=5))
@settings(max_examples=25)
def test_a_damaged_table_of_contents_raises_no_other_error(original: Path, changes: list[tuple[int, int]]) -> None:
    """Whatever bytes of the first page are wrong: the journal is read, or the error is one of a journal."""
    damaged(original, *changes)


OTHER_USER = "agentloop journal reader of another user"


@pytest.fixture
def other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads of this name have no permission to write, as a process of another user."""

    def access(_: Path, mode: int) -> bool:
        return mode != os.W_OK or current_thread().name != OTHER_USER

    monkeypatch.setattr("agentloop.durable.sqlite.schema.os.access", access)


def journal_of_other_user(file: Path, **options: Any) -> SqliteJournal:
    """Return a journal that reads in such a thread."""
    journal = SqliteJournal(file, **options)
    journal._reader._name = OTHER_USER
    return journal


@pytest.mark.usefixtures("other_user")
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(st.sampled_from(["append", "delete", "close"]), max_size=6))
def test_a_reader_without_write_permission_sees_every_change(
    actions: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whether a writer has the file open or closed it: what a reader lists, reads and verifies is what is there."""
    file = tmp_path_factory.mktemp("journal") / "j.db"

    async def run() -> None:
        writer, reader, names = SqliteJournal(file), journal_of_other_user(file), list[str]()
        for number, action in enumerate(["append", "append", "close", "append", "close", *actions]):
            if action == "append":
                names.append(f"e{number}")
                await append_records(writer, names[-1], json.dumps("x" * 3000))
            elif action == "delete" and names:
                await writer.delete(names.pop(0))
            else:
                await writer.aclose()
            assert action == "close" or await reader.wait_for_change(timeout=LONGEST)
            assert {head.execution_id for head in await reader.list()} == set(names)
            assert not names or len(await reader.read(names[-1])) == 1
            assert await reader.verify() == ()
        await writer.aclose()
        await reader.aclose()

    asyncio.run(run())


@pytest.mark.usefixtures("other_user")
@pytest.mark.parametrize("changes", [1, 10**6])
async def test_what_is_read_during_a_change_is_read_again(original: Path, tmp_path: Path, changes: int) -> None:
    """The file is read without locks, so that a job may have read two states of it; it fails when the changes do not end."""
    file, reads = Path(shutil.copy(original, tmp_path / "j.db")), count(1)

    def read(connection: JournalConnection) -> int:
        number = next(reads)
        if number <= changes:
            os.utime(file)
        return number

    async with aclosing(journal_of_other_user(file, busy_timeout=0.3)) as journal:
        if changes == 1:
            assert await journal._reader.run(read) == 2
        else:
            with pytest.raises(JournalBusy, match="other processes changed the file"):
                await journal._reader.run(read)


@pytest.mark.parametrize("content", [b"", b"\xff" * 150_000])
def test_damaged_ends_prevent_nothing(original: Path, tmp_path: Path, content: bytes) -> None:
    """A journal whose `-ends` file is empty or damaged is intact."""
    file = tmp_path / "j.db"
    shutil.copy(original, file)
    (tmp_path / "j.db-ends").write_bytes(content)
    assert verify(file) == ()


@pytest.mark.parametrize(
    "damage",
    ["status = 'nonsense'", "started_at = 'x'", f"updated_at = {2**62}", "number = 'x'", "record_count = 'x'"],
)
def test_a_head_that_cannot_be_read_is_named(original: Path, tmp_path: Path, damage: str) -> None:
    """The error has the id of the execution, whatever is wrong with its head."""
    file = tmp_path / "j.db"
    shutil.copy(original, file)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(f"UPDATE executions SET {damage} WHERE execution_id = 'e'")

    async def read() -> None:
        async with aclosing(SqliteJournal(file)) as journal:
            await journal.head("e")

    with pytest.raises(JournalCorrupt, match="the head of execution e cannot be read") as raised:
        asyncio.run(read())
    assert raised.value.execution_id == "e"


def test_a_record_that_cannot_be_read_is_named(original: Path, tmp_path: Path) -> None:
    """The error has the id of the execution and the number of the record."""
    file = tmp_path / "j.db"
    shutil.copy(original, file)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE records SET kind = 'nonsense' WHERE execution_id = 'e' AND sequence = 2")

    async def read() -> None:
        async with aclosing(SqliteJournal(file)) as journal:
            await journal.read("e")

    with pytest.raises(JournalCorrupt, match="record 2 of execution e cannot be read") as raised:
        asyncio.run(read())
    assert (raised.value.execution_id, raised.value.sequence) == ("e", 2)


def test_an_execution_whose_ends_were_removed_is_continued(tmp_path: Path) -> None:
    """Without the file, lost records are not noticed, and the others are continued."""
    file = tmp_path / "j.db"

    async def append(*bodies: str) -> None:
        async with aclosing(SqliteJournal(file)) as journal:
            await append_records(journal, "e", *bodies, after=await journal.read("e"))

    asyncio.run(append("{}"))
    file.with_name("j.db-ends").unlink()
    asyncio.run(append("{}"))
    assert verify(file) == ()


# --- values of other types --------------------------------------------------------------------------------------------

STRANGE = (b"\x80\xff", "no json", "a\0b", "[" * 5000, -1, 2**62, 1.5, None)


async def write_everything(path: Path) -> None:
    """Write turns that share their beginning, with long texts, a fork of one, and an execution for which a command waits."""
    journal = SqliteJournal(path, spill_bytes=2000)
    loop = AgentLoop.for_model(ScriptedInference(*["Yes."] * 9), journal=journal)
    await loop.execute("long " * 1000, execution_id="first")
    state = await loop.execute("short " * 50, execution_id="turn")
    await loop.execute(state.with_message(Message.user("And now?")), execution_id="next turn")
    await journal.fork("first", 0, fork_id="fork")
    message, now = Message.user("Be quick."), datetime(2026, 1, 1, tzinfo=UTC)
    await journal.post(ExecutionCommand(id="c", execution_id="first", kind="message", message=message, posted_at=now))
    await journal.aclose()


async def use_everything(path: Path) -> list[BaseException]:
    """Read and continue everything in a file; return the errors that are of no journal."""
    journal, errors = SqliteJournal(path), list[BaseException]()
    loop = AgentLoop.for_model(ScriptedInference(*["Yes."] * 9), journal=journal)

    async def continue_turn() -> None:
        state = await journal.state("next turn")
        await loop.execute(state.with_message(Message.user("And then?")), execution_id="last turn")

    steps: list[Callable[[], Awaitable[object]]] = [
        journal.conversations,
        journal.trees,
        journal.verify,
        partial(journal.commands, ["first"]),
        *[
            partial(read, each)
            for each in ("first", "next turn", "fork")
            for read in (journal.state, partial(build_trace, journal))
        ],
        continue_turn,
        partial(loop.recover, "fork"),
        partial(journal.delete, "first"),
        partial(journal.expired_trees, datetime.now(UTC)),
        partial(journal.purge, datetime.now(UTC)),
    ]
    for step in steps:
        try:
            await asyncio.wait_for(step(), LONGEST)
        except JournalError:
            pass
        except BaseException as error:  # noqa: BLE001  # judged by the test
            errors.append(error)
    await journal.aclose()
    return errors


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a row in each table."""
    path = tmp_path_factory.mktemp("everything") / "j.db"
    asyncio.run(write_everything(path))
    return path


@pytest.mark.unmonitored  # the executions of one copy run again in the next one
@pytest.mark.parametrize("table", ["executions", "records", "spills", "prefixes", "commands", "meta"])
def test_a_column_that_holds_anything_raises_errors_of_journals_only(everything: Path, table: str) -> None:
    """Reading, continuing and deleting end, each with a result or with an error of journals."""
    with closing(sqlite3.connect(everything)) as connection:
        columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    for column, value in part_of([*product(columns, STRANGE)]):
        copied = everything.with_name("copied.db")
        for file in everything.parent.glob(f"{everything.name}*"):
            shutil.copy(file, copied.with_name(file.name.replace(everything.name, copied.name)))
        with closing(sqlite3.connect(copied, isolation_level=None)) as connection, suppress(sqlite3.Error):
            connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
        assert asyncio.run(use_everything(copied)) == [], (column, value)
