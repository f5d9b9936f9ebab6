"""Files of other versions of the tables: they are upgraded after a backup, or used as they are, or refused."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
import stat
from contextlib import aclosing, closing
from pathlib import Path
from threading import Thread

import pytest

from agentloop.durable import SqliteJournal
from agentloop.durable.migrations import Migration, find_migrations
from agentloop.durable.sqlite import schema
from agentloop.durable.sqlite.schema import MIN_READER, SCHEMA_VERSION
from agentloop.errors import JournalError, SchemaTooNew
from tests.durable.golden.make import HERE
from tests.durable.records import append_records

FORMER = HERE / "version_1.db"


def copy_former(folder: Path) -> Path:
    """Copy a file with tables of version 1 into a folder."""
    path = folder / "j.db"
    shutil.copy(FORMER, path)
    return path


def names_in(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def read_meta(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT name, value FROM meta"))


def read_tables(path: Path) -> list[tuple[object, ...]]:
    """Return the columns and indexes of all tables, whatever statements created them."""
    query = (
        "SELECT master.name, field.name, field.type, field.'notnull', field.dflt_value, field.pk "
        "FROM sqlite_master AS master, pragma_table_info(master.name) AS field WHERE master.type = 'table' "
        "UNION ALL SELECT master.name, field.name, '', 0, NULL, field.seqno "
        "FROM sqlite_master AS master, pragma_index_info(master.name) AS field WHERE master.type = 'index' ORDER BY 1, 2"
    )
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


async def test_a_file_of_an_earlier_version_is_upgraded_after_a_backup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The tables are then those of a new file, the backup is the file from before, and the log names it."""
    path = copy_former(tmp_path)
    with caplog.at_level(logging.INFO, "agentloop.journal"):
        async with aclosing(SqliteJournal(path)) as journal:
            heads = await journal.list()
            await append_records(journal, "new", "{}")
    async with aclosing(SqliteJournal(tmp_path / "new.db")) as created:
        await created.list()
    backup = tmp_path / "j.db-v1-backup"
    assert read_meta(path) == {"schema_version": str(SCHEMA_VERSION), "min_reader": str(MIN_READER)}
    assert read_tables(path) == read_tables(tmp_path / "new.db")
    assert read_meta(backup) == {"schema_version": "1"}
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert str(backup) in caplog.text
    async with aclosing(SqliteJournal(backup)) as journal:
        assert await journal.list() == heads
    assert not [name for name in names_in(tmp_path) if "unfinished" in name]


async def test_a_file_of_an_earlier_version_is_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads of a time before agents had names are read without one, their seals hold, and the file stays as it is."""
    path = copy_former(tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr("agentloop.durable.sqlite.schema.os.access", lambda _path, mode: mode != os.W_OK)
    async with aclosing(SqliteJournal(path)) as journal:
        heads = await journal.list()
        assert [await journal.head(head.execution_id) for head in heads] == list(heads)
        assert {head.agent_name for head in heads} == {""}
        assert await journal.verify() == ()
    assert path.read_bytes() == before


async def test_a_file_is_upgraded_once(tmp_path: Path) -> None:
    """Several journals that open a file of an earlier version at once upgrade it once, and all can use it."""
    path = copy_former(tmp_path)
    errors: list[BaseException] = []

    def use(number: int) -> None:
        async def append() -> None:
            async with aclosing(SqliteJournal(path)) as journal:
                await append_records(journal, f"new {number}", "{}")

        try:
            asyncio.run(append())
        except BaseException as error:  # noqa: BLE001  # the test shows it
            errors.append(error)

    threads = [Thread(target=use, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    async with aclosing(SqliteJournal(path)) as journal:
        assert len(await journal.list()) == 9
        assert await journal.verify() == ()
    assert read_meta(tmp_path / "j.db-v1-backup") == {"schema_version": "1"}


async def test_a_failed_upgrade_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a statement of a migration fails, the file is as before, and the next attempt upgrades it."""
    path = copy_former(tmp_path)
    broken = Migration(version=2, min_reader=2, statements=("CREATE TABLE extra (a)", "not a statement"))
    with monkeypatch.context() as patch:
        patch.setattr(schema, "_MIGRATIONS", (broken,))
        async with aclosing(SqliteJournal(path)) as journal:
            with pytest.raises(JournalError):
                await journal.list()
    assert read_meta(path) == {"schema_version": "1"}
    async with aclosing(SqliteJournal(path)) as journal:
        assert len(await journal.list()) == 3
    assert read_meta(path)["schema_version"] == str(SCHEMA_VERSION)


async def test_a_file_of_a_later_version_is_used_when_it_allows_that(tmp_path: Path) -> None:
    """A later version that only added something leaves `min_reader`: this version reads, writes and deletes as before."""
    path = tmp_path / "j.db"
    async with aclosing(SqliteJournal(path)) as journal:
        records = await append_records(journal, "old", "{}")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE meta SET value = '{SCHEMA_VERSION + 5}' WHERE name = 'schema_version'")
        for table in ("executions", "records", "commands"):
            connection.execute(f"ALTER TABLE {table} ADD COLUMN later TEXT NOT NULL DEFAULT 'kept'")
        connection.execute("UPDATE executions SET later = 'written'")
        connection.execute("CREATE TABLE later (name TEXT)")
    async with aclosing(SqliteJournal(path)) as journal:
        await append_records(journal, "old", "{}", after=records)
        await append_records(journal, "new", "{}")
        assert await journal.verify() == ()
        assert await journal.delete("new")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT later FROM executions").fetchall() == [("written",)]
    assert read_meta(path)["schema_version"] == str(SCHEMA_VERSION + 5)


async def test_a_file_that_needs_a_later_version_is_refused(tmp_path: Path) -> None:
    """A file whose `min_reader` is later than this version raises SchemaTooNew and is not changed."""
    path = tmp_path / "j.db"
    async with aclosing(SqliteJournal(path)) as journal:
        await journal.list()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE meta SET value = '{SCHEMA_VERSION + 1}'")
    async with aclosing(SqliteJournal(path)) as journal:
        with pytest.raises(SchemaTooNew):
            await append_records(journal, "new", "{}")
    assert set(read_meta(path).values()) == {str(SCHEMA_VERSION + 1)}


def test_migrations_follow_each_other() -> None:
    """Tables get the migrations of all later versions, in order; a version without a way to the next one is refused."""
    migrations = [Migration(version=version, min_reader=1, statements=()) for version in (2, 3, 4)]
    assert [migration.version for migration in find_migrations(migrations, 2)] == [3, 4]
    assert find_migrations(migrations, 4) == find_migrations(migrations, 7) == []
    with pytest.raises(JournalError, match="version 0"):
        find_migrations(migrations, 0)


async def test_a_file_of_an_earlier_version_that_can_only_be_read_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its executions are read as they are in an upgraded file, and nothing is written."""
    upgraded = tmp_path / "upgraded"
    upgraded.mkdir()
    async with aclosing(SqliteJournal(copy_former(upgraded))) as journal:
        heads = await journal.list()
        expected = [await journal.read(head.execution_id) for head in heads]
    path = copy_former(tmp_path)
    monkeypatch.setattr("agentloop.durable.sqlite.schema.os.access", lambda _path, mode: mode != os.W_OK)
    async with aclosing(SqliteJournal(path)) as journal:
        assert await journal.list() == heads
        assert [await journal.read(head.execution_id) for head in heads] == expected
    assert read_meta(path) == {"schema_version": "1"}
