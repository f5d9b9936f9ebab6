"""SQLite journals when something is wrong with the file: errors, and what is stored afterwards."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agentloop.durable import SqliteJournal
from agentloop.durable.sqlite.schema import SCHEMA_VERSION
from agentloop.durable.sqlite.statements import translate_error
from agentloop.errors import (
    ConfigurationError,
    ContractViolation,
    JournalBusy,
    JournalConflict,
    JournalCorrupt,
    JournalError,
    JournalFull,
    SchemaTooNew,
)
from agentloop.testing.journal_bench import append_claimed
from agentloop.values.records import RECORD_SCHEMA_VERSION
from tests.durable.records import append_records, make_head, make_records


def sql(path: Path, *statements: str) -> None:
    """Change a file without its journal."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


async def execute_in_writer(journal: SqliteJournal, statement: str) -> None:
    """Execute a statement on the connection of the writer."""
    await journal._writer.run(lambda connection: connection.execute(statement).fetchall())


async def test_a_full_disk_fails_only_the_append_at_fault(tmp_path: Path) -> None:
    """Without space an append fails as a whole with JournalFull and concurrent ones succeed; with space, it succeeds."""
    journal = SqliteJournal(tmp_path / "j.db")
    records = await append_records(journal, "e", "{}")
    await execute_in_writer(journal, "PRAGMA max_page_count = 60")
    more = make_records("e", *[f'{{"text": "{"x" * 10_000}"}}'] * 100, after=records)
    others = [asyncio.ensure_future(append_records(journal, f"other {number}", "{}")) for number in range(5)]
    with pytest.raises(JournalFull, match="free some space"):
        await append_claimed(journal, make_head(more), more)
    await asyncio.gather(*others)
    assert list(await journal.read("e")) == records
    assert await journal.verify() == ()
    await execute_in_writer(journal, "PRAGMA max_page_count = 100000")
    await append_claimed(journal, make_head(more), more)
    assert list(await journal.read("e")) == [*records, *more]
    assert await journal.verify() == ()
    await journal.aclose()


async def test_only_the_appends_at_fault_fail(tmp_path: Path) -> None:
    """An append that conflicts or cannot be written does not fail the others in its transaction."""
    journal = SqliteJournal(tmp_path / "j.db")
    stored = await append_records(journal, "e", "{}")
    naive = make_records("naive", "{}")
    naive_head = make_head(naive)
    object.__setattr__(naive_head, "started_at", naive[0].at.replace(tzinfo=None))
    unwritable = make_records("unwritable", "{}")
    claims = {name: await journal.claim(name) for name in ("e", "f", "g", "naive", "unwritable")}
    results = await asyncio.gather(
        append_records(journal, "f", "{}", claim=claims["f"]),
        append_records(journal, "e", '{"conflict": 1}', claim=claims["e"]),
        journal.append(naive_head, naive, claims["naive"]),
        journal.append(make_head(unwritable, number=1 << 70), unwritable, claims["unwritable"]),
        append_records(journal, "e", "{}", after=stored, claim=claims["e"]),
        append_records(journal, "g", "{}", claim=claims["g"]),
        return_exceptions=True,
    )
    kinds = [type(result) for result in results]
    assert kinds == [list, JournalConflict, ContractViolation, OverflowError, list, list]
    assert [head.execution_id for head in await journal.list()] == ["g", "f", "e"]
    assert await journal.verify() == ()
    await journal.aclose()


async def test_records_that_do_not_form_a_chain_are_refused(tmp_path: Path) -> None:
    """An append without records, out of order, or with the head of another execution raises ContractViolation."""
    journal = SqliteJournal(tmp_path / "j.db")
    records = make_records("e", "{}", "{}", "{}")
    with pytest.raises(ContractViolation, match="no records"):
        await append_claimed(journal, make_head(records), [])
    with pytest.raises(ContractViolation, match="not chained"):
        await append_claimed(journal, make_head(records), [records[0], records[2]])
    with pytest.raises(ContractViolation, match="does not belong to execution"):
        await append_claimed(journal, make_head(make_records("f", "{}", "{}", "{}")), records)
    with pytest.raises(ContractViolation, match="the last appended record"):
        await append_claimed(journal, make_head(records[:2]), records)
    assert not await journal.list()
    await journal.aclose()


def flip_bytes(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for index in range(5000, len(data), 7):
        data[index] ^= 0x55
    path.write_bytes(data)


def overwrite_beginning(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[:200] = b"\xff" * 200
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 100)


def replace_by_text(path: Path) -> None:
    path.write_text("this is a text and not a database\n" * 100)


@pytest.mark.parametrize("damage", [flip_bytes, overwrite_beginning, truncate, replace_by_text])
async def test_a_damaged_file_raises_an_error(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """A file with flipped bytes, with a lost beginning or end, or that is not a database raises JournalCorrupt."""
    journal = SqliteJournal(tmp_path / "j.db")
    records = await append_records(journal, "e", *[f'{{"text": "{"x" * 3000}"}}'] * 50)
    await journal.aclose()
    damage(journal.path)
    with pytest.raises(JournalCorrupt):
        await journal.read("e")
    with pytest.raises(JournalCorrupt):
        await append_records(journal, "e", *["{}"] * 50, after=records)
    await journal.aclose()


def log_size(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


def copy_with_torn_log(path: Path, intact: int, *, truncated: bool) -> Path:
    """Copy a database and damage its write-ahead log after a number of intact bytes."""
    copy, log = path.with_name("copy.db"), bytearray(Path(f"{path}-wal").read_bytes())
    copy.write_bytes(path.read_bytes())
    if truncated:
        del log[intact + (len(log) - intact) // 2 :]
    else:
        log[intact + 500] ^= 1
    Path(f"{copy}-wal").write_bytes(log)
    return copy


@pytest.mark.parametrize("truncated", [True, False])
async def test_a_torn_write_ahead_log_ends_with_the_last_intact_append(tmp_path: Path, *, truncated: bool) -> None:
    """After a loss of power in the middle of an append, the records before it can be read."""
    journal = SqliteJournal(tmp_path / "j.db")
    await execute_in_writer(journal, "PRAGMA wal_autocheckpoint = 0")
    records = await append_records(journal, "e", *["{}"] * 3)
    intact = log_size(journal.path)
    await append_records(journal, "e", *[f'{{"text": "{"x" * 3000}"}}'] * 5, after=records)
    copy = copy_with_torn_log(journal.path, intact, truncated=truncated)
    await journal.aclose()
    damaged = SqliteJournal(copy)
    assert list(await damaged.read("e")) == records
    assert await damaged.verify() == ()
    await append_records(damaged, "e", "{}", after=records)
    await damaged.aclose()


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """Tables or a record of a newer version raise SchemaTooNew instead of being read in part."""
    journal = SqliteJournal(tmp_path / "j.db")
    await append_records(journal, "e", "{}", "{}")
    newer = RECORD_SCHEMA_VERSION + 1
    sql(journal.path, f"UPDATE records SET schema_version = {newer}, kind = 'something_new' WHERE sequence = 2")
    with pytest.raises(SchemaTooNew) as caught:
        await journal.read("e")
    assert (caught.value.document_version, caught.value.supported) == (newer, RECORD_SCHEMA_VERSION)
    (finding,) = await journal.verify("e")
    assert f"schema version {newer}" in finding.problem
    await journal.aclose()
    sql(journal.path, f"UPDATE meta SET value = '{SCHEMA_VERSION + 1}'")
    for operation in (journal.list(), append_records(journal, "f", "{}"), journal.delete("e")):
        with pytest.raises(SchemaTooNew):
            await operation
    await journal.aclose()


async def test_a_claim_that_cannot_be_compared_with_the_file_is_not_held(tmp_path: Path) -> None:
    """The execution can be claimed as soon as the file can be read."""
    journal = SqliteJournal(tmp_path / "j.db")
    await append_records(journal, "e", "{}")
    await journal.aclose()
    sql(journal.path, f"UPDATE meta SET value = '{SCHEMA_VERSION + 1}'")
    with pytest.raises(SchemaTooNew):
        await journal.claim("e")
    sql(journal.path, f"UPDATE meta SET value = '{SCHEMA_VERSION}'")
    claim = await journal.claim("e")
    await claim.release()
    await journal.aclose()


async def test_another_kind_of_database_is_refused(tmp_path: Path) -> None:
    """A database that is not a journal raises JournalError and is not changed."""
    path = tmp_path / "other.db"
    sql(path, "CREATE TABLE customers (name TEXT)")
    before = path.read_bytes()
    journal = SqliteJournal(path)
    with pytest.raises(JournalError, match="not a journal"):
        await append_records(journal, "e", "{}")
    await journal.aclose()
    assert path.read_bytes() == before


async def test_a_missing_folder_raises_an_error(tmp_path: Path) -> None:
    """Appends and claims name the missing folder; once it exists, the same journal works."""
    journal = SqliteJournal(tmp_path / "missing" / "j.db")
    with pytest.raises(JournalError, match="its folder"):
        await append_records(journal, "e", "{}")
    with pytest.raises(JournalError, match="missing"):
        await journal.claim("e")
    journal.path.parent.mkdir()
    await append_records(journal, "e", "{}")
    await (await journal.claim("e")).release()
    await journal.aclose()


async def test_a_read_only_file_raises_an_error(tmp_path: Path) -> None:
    """An append to a read-only database raises JournalError."""
    journal = SqliteJournal(tmp_path / "j.db")
    await append_records(journal, "e", "{}")
    await execute_in_writer(journal, "PRAGMA query_only = 1")
    with pytest.raises(JournalError, match="read-only"):
        await append_records(journal, "f", "{}")
    await journal.aclose()


async def test_a_relative_path_survives_a_change_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is relative to the working directory in which the journal was constructed."""
    monkeypatch.chdir(tmp_path)
    journal = SqliteJournal("j.db")
    monkeypatch.chdir("/")
    records = await append_records(journal, "e", "{}")
    await (await journal.claim("e")).release()
    await journal.aclose()
    assert list(await journal.read("e")) == records
    assert journal.path == tmp_path / "j.db"
    await journal.aclose()


def remove_files(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize("replaced", [False, True])
async def test_an_append_to_a_removed_file_is_refused(tmp_path: Path, *, replaced: bool) -> None:
    """An append to a file that was removed or replaced raises JournalError, because the records would be lost."""
    journal = SqliteJournal(tmp_path / "j.db")
    records = await append_records(journal, "e", "{}")
    journal.path.unlink()
    if replaced:
        journal.path.write_bytes(b"")
    with pytest.raises(JournalError, match="removed or replaced"):
        await append_records(journal, "e", "{}", after=records)
    await journal.aclose()
    remove_files(tmp_path)
    await append_records(journal, "e", "{}")
    assert len(await journal.read("e")) == 1
    await journal.aclose()


def test_invalid_options_are_refused(tmp_path: Path) -> None:
    """Construction raises ConfigurationError for invalid options and touches no file."""
    with pytest.raises(ConfigurationError, match="synchronous"):
        SqliteJournal(tmp_path / "j.db", synchronous="off")  # type: ignore[arg-type]  # an invalid value
    with pytest.raises(ConfigurationError, match="busy_timeout"):
        SqliteJournal(tmp_path / "j.db", busy_timeout=-1)
    with pytest.raises(ConfigurationError, match="spill_bytes"):
        SqliteJournal(tmp_path / "j.db", spill_bytes=0)
    for path in ("", ":memory:"):
        with pytest.raises(ConfigurationError, match="MemoryJournal"):
            SqliteJournal(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, JournalFull),
        (sqlite3.SQLITE_IOERR_SHMSIZE, JournalFull),
        (sqlite3.SQLITE_IOERR_WRITE, JournalError),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, JournalBusy),
        (sqlite3.SQLITE_CORRUPT_INDEX, JournalCorrupt),
        (sqlite3.SQLITE_CANTOPEN_ISDIR, JournalError),
        (sqlite3.SQLITE_TOOBIG, JournalError),
    ],
)
def test_sqlite_errors_are_translated(code: int, kind: type[JournalError]) -> None:
    """Extended codes have the meaning of their primary code or one of their own; the error names the file and its cause."""
    error = sqlite3.OperationalError("why")
    error.sqlite_errorcode = code
    raised = translate_error(error, "runs.db")
    assert type(raised) is kind
    assert "runs.db" in str(raised)
    assert "why" in str(raised)
    assert raised.__cause__ is error
