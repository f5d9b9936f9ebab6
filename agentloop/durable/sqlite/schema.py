"""The tables of a journal file, their versions, and connections to it."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import TypeAlias

from attrs import frozen

from agentloop.durable.migrations import Migration, check_min_reader, find_migrations
from agentloop.durable.sqlite.files import EndFile, common_path, create_private, file_id
from agentloop.errors import JournalCorrupt, JournalError

SCHEMA_VERSION = 5
"""The version of the tables that this version of agentloop creates."""
MIN_READER = 2
"""The oldest version of the tables whose programs can use the tables of `SCHEMA_VERSION`."""

_COMMANDS = """
CREATE TABLE commands (
    id TEXT NOT NULL PRIMARY KEY,
    execution_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX commands_by_execution ON commands (execution_id, sequence);
"""
_SOURCES = "CREATE INDEX executions_by_source ON executions (forked_from) WHERE forked_from <> ''"
"""Deletions look for the unfinished forks of an execution, of which there are few."""
_AGENT_NAME = "agent_name TEXT NOT NULL DEFAULT ''"
# The shared beginnings of first records; see `prefixes`.
_PREFIXES = """
CREATE TABLE prefixes (
    id INTEGER NOT NULL PRIMARY KEY,
    parent INTEGER,
    length INTEGER NOT NULL,
    digest BLOB NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX prefixes_by_parent ON prefixes (parent);
CREATE INDEX executions_by_prefix ON executions (prefix) WHERE prefix IS NOT NULL;
"""
_ACCOUNTS = "CREATE TABLE accounts (id TEXT NOT NULL PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID"
"""Accounts of money, which belong to no execution."""
_GRANTS = """
CREATE TABLE grants (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    tool TEXT NOT NULL,
    body TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX grants_by_owner ON grants (owner, tool);
"""
"""What people have allowed for later calls; it belongs to no execution."""
# What changed with each version; new files are created with the tables below.
_MIGRATIONS = (
    Migration(
        version=2,
        min_reader=2,
        statements=(
            "ALTER TABLE executions ADD COLUMN token INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE executions ADD COLUMN prefix INTEGER",
            *(_COMMANDS + _PREFIXES).strip().removesuffix(";").split(";"),
            _SOURCES,
        ),
    ),
    Migration(version=3, min_reader=2, statements=(_ACCOUNTS,)),
    Migration(version=4, min_reader=2, statements=(f"ALTER TABLE executions ADD COLUMN {_AGENT_NAME}",)),
    Migration(version=5, min_reader=2, statements=tuple(_GRANTS.strip().removesuffix(";").split(";"))),
)

_TABLES = (
    """
CREATE TABLE meta (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE executions (
    execution_id TEXT NOT NULL PRIMARY KEY,
    agent_id TEXT NOT NULL,
    parent_agent_id TEXT,
    number INTEGER NOT NULL,
    status TEXT NOT NULL,
    step_count INTEGER NOT NULL,
    record_count INTEGER NOT NULL,
    last_hash TEXT NOT NULL,
    input TEXT NOT NULL,
    forked_from TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    seal TEXT NOT NULL,
    token INTEGER NOT NULL DEFAULT 0,
    prefix INTEGER,
    """
    + _AGENT_NAME
    + """
);
CREATE UNIQUE INDEX executions_by_agent ON executions (agent_id, number);
CREATE INDEX executions_by_age ON executions (started_at, number, execution_id);
CREATE INDEX executions_by_status ON executions (status, started_at, number, execution_id);
CREATE TABLE records (
    execution_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    kind TEXT NOT NULL,
    at TEXT NOT NULL,
    schema_version INTEGER NOT NULL,
    body TEXT NOT NULL,
    cuts TEXT NOT NULL,
    previous_hash TEXT NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (execution_id, sequence)
);
CREATE TABLE spills (
    execution_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (execution_id, digest)
);
"""
    + _COMMANDS
    + _PREFIXES
    + _GRANTS
    + _SOURCES
    + ";\n"
    + _ACCOUNTS
)
_PAGE_BYTES = 2048
"""The size of the pages of a new file. A commit writes each page in which it changes something, so small records cost less
with small pages."""
_CHECKPOINT_PAGES = 4000
"""The number of pages in the log from which on a commit copies them into the file."""
_BUSY_SECONDS = 0.05
"""How long a statement waits for other connections; `Worker` repeats what has waited in vain."""

_LOG = logging.getLogger("agentloop.journal")

PRIMARY_CODE_MASK = 0xFF
"""The bits of a SQLite error code without the extended part."""

FileState: TypeAlias = tuple[int, ...]
"""What differs after a change of a file: its device and inode numbers, its size, and its times."""
_NUMBERS = count(1)


class FileChanged(sqlite3.OperationalError):
    """A file that is read without locks was changed meanwhile, so that what was read may be of two states."""

    sqlite_errorcode = sqlite3.SQLITE_BUSY_SNAPSHOT  # what SQLite says where it notices that


class JournalConnection(sqlite3.Connection):
    """A connection that knows which file it opened.

    Attributes:
        number: its number in this process.
        opened: the path, and the device and inode numbers of the file; None while it is being opened.
        snapshot: the state of the file when it was opened, if it is read without locks; SQLite does not notice its changes
            then. None for any other connection.
        ends: the last acknowledged records of executions; None when their file cannot be opened.
    """

    number: int = 0
    opened: tuple[Path, tuple[int, int] | None] | None = None
    snapshot: FileState | None = None
    ends: EndFile | None = None
    _may_wait: bool = True

    @property
    def is_outdated(self) -> bool:
        """Whether the file has changed and SQLite does not notice it; a new connection reads what is there now."""
        return (
            self.snapshot is not None
            and self.opened is not None
            and self.snapshot != _state_without_log(self.opened[0])
        )

    def set_waiting(self, *, allowed: bool) -> None:
        """Set whether a statement may wait: for other connections, and for the disk, as one that copies a long log into the file."""
        if allowed is not self._may_wait:
            self.execute(f"PRAGMA busy_timeout = {round(_BUSY_SECONDS * 1000) if allowed else 0}")
            self.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES if allowed else 0}")
            self._may_wait = allowed

    def close(self) -> None:
        """Close the connection and the file of ends."""
        super().close()
        ends, self.ends = self.ends, None
        if ends is not None:
            ends.close()


@frozen(kw_only=True)
class Connector:
    """Opens connections to the file of a journal.

    Attributes:
        path: the file.
        synchronous: what a commit waits for: `full` or `normal`.
    """

    path: Path
    synchronous: str

    def connect(self) -> JournalConnection:
        """Open the file, and create the tables if it is new. Another thread may use the connection.

        Raises:
            sqlite3.Error: the file cannot be opened.
            OSError: the file cannot be created.
            SchemaTooNew: a newer version of agentloop changed the tables so that this one cannot use them.
            JournalError: the file is a database of something else.
            JournalCorrupt: the version of the tables cannot be read.
        """
        path = common_path(self.path)
        with suppress(OSError):  # SQLite says what is wrong
            create_private(path)
        path = common_path(path)
        is_read_only = path.is_file() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
        # Before the file is opened, so that no change after it is missed.
        snapshot = _settled_state(path) if is_read_only else None
        uri = _read_only_uri(path, snapshot) if is_read_only else ""
        connection = sqlite3.connect(
            uri or path,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=JournalConnection,
            uri=bool(uri),
        )
        connection.number, connection.snapshot = next(_NUMBERS), snapshot
        try:
            self._prepare(connection, path, is_read_only=is_read_only)
            connection.opened = (path, file_id(path))
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: JournalConnection, path: Path, *, is_read_only: bool) -> None:
        version = _read_version(connection)
        with suppress(OSError):  # without it, lost records are not noticed
            connection.ends = EndFile(path.with_name(f"{path.name}-ends"), read_only=is_read_only)
        if version is None:
            version = _create_tables(connection)
        check_min_reader(version, _read_min_reader(connection, version), SCHEMA_VERSION)
        if is_read_only:
            _show_missing_column(connection)
            return
        if version < SCHEMA_VERSION:
            _upgrade_tables(connection, path)
        # A permanent property of the file. It is turned on after the tables are created, which are therefore in the file
        # itself: a file without tables is new, and has not lost its log.
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        # What is deleted, and the text of a delivered message, is overwritten; the default depends on who has built SQLite.
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        # On macOS, a plain fsync leaves data in the cache of the disk; elsewhere this has no effect.
        connection.execute("PRAGMA fullfsync = 1")


# --- files that can only be read --------------------------------------------------------------------------------------

_TICK_SECONDS = 0.02
"""More than a tick of the clock by which file systems date changes."""
_MAX_TICKS = 5
"""How many of them a reader waits for the end of changes."""


def _read_only_uri(path: Path, snapshot: FileState | None) -> str:
    """Return the URI with which to open a file that can only be read."""
    # With a log, SQLite needs the `-shm` file, which a live writer has created. Without one, the file has all records, and
    # `immutable` keeps SQLite from creating both; it neither locks the file nor looks for changes.
    return f"{path.absolute().as_uri()}?mode=ro{'' if snapshot is None else '&immutable=1'}"


def _settled_state(path: Path) -> FileState | None:
    """Return the state of a file without a log, after which each change gives another one; None when it has a log."""
    state = _state_without_log(path)
    for _ in range(_MAX_TICKS):
        # Two changes within one tick have one time.
        if state is None or not 0 <= time.time_ns() - max(state[3:]) < _TICK_SECONDS * 1e9:
            break
        time.sleep(_TICK_SECONDS)
        state = _state_without_log(path)
    return state


def _state_without_log(path: Path) -> FileState | None:
    """Return the state of a file that has all its records itself; None when there is a log, or no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    with suppress(OSError):  # there is no log
        if path.with_name(f"{path.name}-wal").stat().st_size:
            return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _create_tables(connection: JournalConnection) -> int:
    """Create the tables, unless another connection just did; return their version."""
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read again: another process may have created the tables before this one got the lock.
        version = _read_version(connection)
        if version is None:
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            _store_version(connection, SCHEMA_VERSION, MIN_READER)
            if connection.ends is not None:
                connection.ends.clear()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return SCHEMA_VERSION if version is None else version


# --- versions ---------------------------------------------------------------------------------------------------------


def _read_version(connection: sqlite3.Connection) -> int | None:
    """Return the version of the tables; None when the file has no tables."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return None
    if not {"meta", "executions", "records"} <= tables:
        raise JournalError("the file is a database, but not a journal; it was not changed")
    version = _read_number(connection, "schema_version")
    if version is None:
        raise JournalCorrupt("the file is damaged: the version of its tables cannot be read")
    return version


def _read_min_reader(connection: sqlite3.Connection, version: int) -> int:
    """Return the oldest version whose programs can use the tables; that of the tables where none is stored."""
    min_reader = _read_number(connection, "min_reader")
    return version if min_reader is None else min_reader


def _read_number(connection: sqlite3.Connection, name: str) -> int | None:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return int(row[0]) if row is not None and str(row[0]).isdecimal() else None


def _store_version(connection: sqlite3.Connection, version: int, min_reader: int) -> None:
    rows = (("schema_version", str(version)), ("min_reader", str(min_reader)))
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)


def _upgrade_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Upgrade tables of an earlier version, after a backup of the file; other writers wait meanwhile.

    Raises:
        JournalError: the version is unknown; nothing was changed.
        OSError: the backup cannot be written; nothing was changed.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read again: another process may have upgraded the tables before this one got the lock.
        version = _read_version(connection)
        migrations = [] if version is None else find_migrations(_MIGRATIONS, version)
        if migrations:
            backup = _back_up(path, f"{path.name}-v{version}-backup")
            _apply_migrations(connection, migrations)
            message = "upgraded the tables of the journal %s from version %s to %s; %s is a copy from before"
            _LOG.info(message, path, version, SCHEMA_VERSION, backup)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _apply_migrations(connection: sqlite3.Connection, migrations: Iterable[Migration]) -> None:
    for migration in migrations:
        for statement in migration.statements:
            connection.execute(statement)
        _store_version(connection, migration.version, migration.min_reader)


def _back_up(path: Path, name: str) -> Path:
    """Copy a file whose lock the caller holds; return the path of the copy, which is complete or does not exist."""
    backup, unfinished = path.with_name(name), path.with_name(f"{name}-unfinished")
    unfinished.unlink(missing_ok=True)
    create_private(unfinished)
    # A connection of its own reads what is committed, also while the other one is in a transaction.
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(unfinished)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")  # one file, whatever the mode of the original
    return unfinished.replace(backup)


def _show_missing_column(connection: sqlite3.Connection) -> None:
    """Let the tables of an earlier version, which cannot be upgraded in a file that can only be read, be read like current ones."""
    columns = {row[1] for row in connection.execute("PRAGMA table_info(executions)")}
    if "agent_name" not in columns:
        connection.execute("CREATE TEMP VIEW executions AS SELECT *, '' AS agent_name FROM main.executions")


# --- open connections -------------------------------------------------------------------------------------------------


def check_file_in_place(connection: JournalConnection) -> None:
    """Check that the file of a connection is still at its path; what is written to a removed file is lost.

    Raises:
        JournalError: the file was removed or replaced.
    """
    opened = connection.opened
    if opened is not None and file_id(opened[0]) != opened[1]:
        raise JournalError(
            f"the file {opened[0]} was removed or replaced while it was open; nothing was written. Close the journal to "
            "start with the file that is there now"
        )


def error_code(error: BaseException) -> int:
    """Return the code of an error of a database, also of one that Python raises for its damaged texts; 0 without one."""
    code = getattr(error, "sqlite_errorcode", None)
    # A text of the file that is not UTF-8: the error for one in a row has no code, and one in a message of SQLite, such as
    # about a damaged table of contents, is not even an error of SQLite.
    if isinstance(error, UnicodeDecodeError) or (code is None and "decode" in str(error).lower()):
        return sqlite3.SQLITE_CORRUPT
    return code or 0


def is_busy(error: BaseException | None) -> bool:
    """Return whether an error says that another connection held a lock for too long, or that the file was changed meanwhile."""
    if not isinstance(error, sqlite3.Error):
        return False
    return getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE_MASK == sqlite3.SQLITE_BUSY
