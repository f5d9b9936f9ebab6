"""What the journal in a file says when something is wrong with the file, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

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
from agentloop.journal import SqliteJournal
from agentloop.journal.sqlite.schema import SCHEMA_VERSION
from agentloop.journal.sqlite.statements import translate_error
from agentloop.values.records import RECORD_SCHEMA_VERSION
from tests.journal.records import appended, head_after, records_of


def sql(path: Path, *statements: str) -> None:
    """Change a file behind the journal's back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


async def in_writer(journal: SqliteJournal, statement: str) -> None:
    """Set an option on the connection that writes."""
    await journal._writer.run(lambda connection: connection.execute(statement).fetchall())


async def test_a_full_disk(tmp_path: Path) -> None:
    """Without room, an append fails whole as JournalFull, another one that waits with it does not, and with room it goes on."""
    journal = SqliteJournal(tmp_path / "j.db")
    records = await appended(journal, "e", "{}")
    await in_writer(journal, "PRAGMA max_page_count = 60")
    more = records_of("e", *[f'{{"text": "{"x" * 10_000}"}}'] * 100, after=records)
    others = [asyncio.ensure_future(appended(journal, f"other {number}", "{}")) for number in range(5)]
    with pytest.raises(JournalFull, match="free some space"):
        await journal.append(head_after(more), more)
    await asyncio.gather(*others)
    assert list(await journal.read("e")) == records
    assert await journal.verify() == ()
    await in_writer(journal, "PRAGMA max_page_count = 100000")
    await journal.append(head_after(more), more)
    assert list(await journal.read("e")) == [*records, *more]
    assert await journal.verify() == ()
    await journal.aclose()


async def test_of_appends_that_wait_together_those_fail_that_have_to(tmp_path: Path) -> None:
    """An append that conflicts, or cannot be written, does not take those with it that are written in the same transaction."""
    journal = SqliteJournal(tmp_path / "j.db")
    begun = await appended(journal, "e", "{}")
    naive = records_of("naive", "{}")
    unsound = head_after(naive)
    object.__setattr__(unsound, "started_at", naive[0].at.replace(tzinfo=None))
    unwritable = records_of("unwritable", "{}")
    results = await asyncio.gather(
        appended(journal, "f", "{}"),
        appended(journal, "e", '{"conflict": 1}'),
        journal.append(unsound, naive),
        journal.append(head_after(unwritable, number=1 << 70), unwritable),
        appended(journal, "e", "{}", after=begun),
        appended(journal, "g", "{}"),
        return_exceptions=True,
    )
    kinds = [type(one) for one in results]
    assert kinds == [list, JournalConflict, ContractViolation, OverflowError, list, list]
    assert [head.execution_id for head in await journal.list()] == ["g", "f", "e"]
    assert await journal.verify() == ()
    await journal.aclose()


async def test_records_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    """An append of nothing, of records out of order, or under a head of something else is a mistake of the caller."""
    journal = SqliteJournal(tmp_path / "j.db")
    records = records_of("e", "{}", "{}", "{}")
    with pytest.raises(ContractViolation, match="no records"):
        await journal.append(head_after(records), [])
    with pytest.raises(ContractViolation, match="not chained"):
        await journal.append(head_after(records), [records[0], records[2]])
    with pytest.raises(ContractViolation, match="does not belong to execution"):
        await journal.append(head_after(records_of("f", "{}", "{}", "{}")), records)
    with pytest.raises(ContractViolation, match="the last appended record"):
        await journal.append(head_after(records[:2]), records)
    assert not await journal.list()
    await journal.aclose()


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(5000, len(data), 7):
        data[at] ^= 0x55
    path.write_bytes(data)


def beheaded(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[:200] = b"\xff" * 200
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 100)


def replaced(path: Path) -> None:
    path.write_text("this is a text and no database\n" * 100)


@pytest.mark.parametrize("damage", [flipped, beheaded, cut, replaced])
async def test_a_damaged_file(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """A file with flipped bytes, a lost beginning or end, or one that is no database, is JournalCorrupt."""
    journal = SqliteJournal(tmp_path / "j.db")
    records = await appended(journal, "e", *[f'{{"text": "{"x" * 3000}"}}'] * 50)
    await journal.aclose()
    damage(journal.path)
    with pytest.raises(JournalCorrupt):
        await journal.read("e")
    with pytest.raises(JournalCorrupt):
        await appended(journal, "e", *["{}"] * 50, after=records)
    await journal.aclose()


def log_size(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


def torn_copy(path: Path, whole: int, *, cut_off: bool) -> Path:
    """Copy a file with a log that is not whole any more after so many bytes."""
    copy, log = path.with_name("copy.db"), bytearray(Path(f"{path}-wal").read_bytes())
    copy.write_bytes(path.read_bytes())
    if cut_off:
        del log[whole + (len(log) - whole) // 2 :]
    else:
        log[whole + 500] ^= 1
    Path(f"{copy}-wal").write_bytes(log)
    return copy


@pytest.mark.parametrize("torn", ["cut", "flipped"])
async def test_a_torn_end_of_the_log(tmp_path: Path, torn: str) -> None:
    """Of a write-ahead log that was cut off, as by a loss of power, the last whole append is what is read."""
    journal = SqliteJournal(tmp_path / "j.db")
    await in_writer(journal, "PRAGMA wal_autocheckpoint = 0")
    records = await appended(journal, "e", *["{}"] * 3)
    whole = log_size(journal.path)
    await appended(journal, "e", *[f'{{"text": "{"x" * 3000}"}}'] * 5, after=records)
    copy = torn_copy(journal.path, whole, cut_off=torn == "cut")
    await journal.aclose()
    found = SqliteJournal(copy)
    assert list(await found.read("e")) == records
    assert await found.verify() == ()
    await appended(found, "e", "{}", after=records)
    await found.aclose()


async def test_a_newer_schema(tmp_path: Path) -> None:
    """Tables, or a record, that a newer agentloop wrote are refused, not read in part."""
    journal = SqliteJournal(tmp_path / "j.db")
    await appended(journal, "e", "{}", "{}")
    newer = RECORD_SCHEMA_VERSION + 1
    sql(journal.path, f"UPDATE records SET schema_version = {newer}, kind = 'something_new' WHERE sequence = 2")
    with pytest.raises(SchemaTooNew) as of_record:
        await journal.read("e")
    assert (of_record.value.found, of_record.value.supported) == (newer, RECORD_SCHEMA_VERSION)
    (finding,) = await journal.verify("e")
    assert f"schema version {newer}" in finding.problem
    await journal.aclose()
    sql(journal.path, f"UPDATE meta SET value = '{SCHEMA_VERSION + 1}' WHERE name = 'schema_version'")
    for ask in (journal.list(), appended(journal, "f", "{}"), journal.delete("e")):
        with pytest.raises(SchemaTooNew):
            await ask
    await journal.aclose()


async def test_a_database_of_something_else(tmp_path: Path) -> None:
    """A database that is no journal is refused and stays as it is."""
    path = tmp_path / "other.db"
    sql(path, "CREATE TABLE customers (name TEXT)")
    before = path.read_bytes()
    journal = SqliteJournal(path)
    with pytest.raises(JournalError, match="not a journal"):
        await appended(journal, "e", "{}")
    await journal.aclose()
    assert path.read_bytes() == before


async def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    """A folder that is not there is told, for the records as for the claims; when it is there, the same journal works."""
    journal = SqliteJournal(tmp_path / "missing" / "j.db")
    with pytest.raises(JournalError, match="its folder"):
        await appended(journal, "e", "{}")
    with pytest.raises(JournalError, match="missing"):
        await journal.claim("e")
    journal.path.parent.mkdir()
    await appended(journal, "e", "{}")
    await (await journal.claim("e")).release()
    await journal.aclose()


async def test_a_file_that_may_not_be_written(tmp_path: Path) -> None:
    """A database that the system lets nobody write is told as such."""
    journal = SqliteJournal(tmp_path / "j.db")
    await appended(journal, "e", "{}")
    await in_writer(journal, "PRAGMA query_only = 1")
    with pytest.raises(JournalError, match="read-only"):
        await appended(journal, "f", "{}")
    await journal.aclose()


async def test_a_program_that_goes_to_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is one of the folder in which the journal was made."""
    monkeypatch.chdir(tmp_path)
    journal = SqliteJournal("j.db")
    monkeypatch.chdir("/")
    records = await appended(journal, "e", "{}")
    await (await journal.claim("e")).release()
    await journal.aclose()
    assert list(await journal.read("e")) == records
    assert journal.path == tmp_path / "j.db"
    await journal.aclose()


def take_all_away(folder: Path) -> None:
    for left in folder.iterdir():
        left.unlink()


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_file_that_is_taken_away(tmp_path: Path, how: str) -> None:
    """What is appended to a file that was removed or replaced meanwhile is refused, for it would be lost."""
    journal = SqliteJournal(tmp_path / "j.db")
    records = await appended(journal, "e", "{}")
    journal.path.unlink()
    if how == "replaced":
        journal.path.write_bytes(b"")
    with pytest.raises(JournalError, match="removed or replaced"):
        await appended(journal, "e", "{}", after=records)
    await journal.aclose()
    take_all_away(tmp_path)
    await appended(journal, "e", "{}")
    assert len(await journal.read("e")) == 1
    await journal.aclose()


def test_options_without_meaning(tmp_path: Path) -> None:
    """Options are looked at when the journal is made, not when it is used."""
    with pytest.raises(ConfigurationError, match="synchronous"):
        SqliteJournal(tmp_path / "j.db", synchronous="off")  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(ConfigurationError, match="busy_timeout"):
        SqliteJournal(tmp_path / "j.db", busy_timeout=-1)
    with pytest.raises(ConfigurationError, match="spill_bytes"):
        SqliteJournal(tmp_path / "j.db", spill_bytes=0)
    for nowhere in ("", ":memory:"):
        with pytest.raises(ConfigurationError, match="MemoryJournal"):
            SqliteJournal(nowhere)
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
def test_every_error_of_sqlite_has_a_meaning(code: int, kind: type[JournalError]) -> None:
    """Codes with details mean what their kind means, unless they mean more; the cause and the file are told."""
    error = sqlite3.OperationalError("why")
    error.sqlite_errorcode = code
    raised = translate_error(error, "runs.db")
    assert type(raised) is kind
    assert "runs.db" in str(raised)
    assert "why" in str(raised)
    assert raised.__cause__ is error
