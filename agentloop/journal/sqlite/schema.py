"""The tables of a journal file, and connections to it."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from attrs import frozen

from agentloop.errors import JournalCorrupt, JournalError, SchemaTooNew

SCHEMA_VERSION = 1
"""The version of the tables that this version of agentloop creates."""

_TABLES = """
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
    seal TEXT NOT NULL
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
_RETRY_INTERVAL = 0.005
"""The time between attempts to turn on the write-ahead log, in seconds."""

PRIMARY_CODE_MASK = 0xFF
"""The bits of a SQLite error code without the extended part."""


class JournalConnection(sqlite3.Connection):
    """A connection that knows which file it opened.

    Attributes:
        opened: the path, and the device and inode numbers of the file; None while it is being opened.
    """

    opened: tuple[Path, tuple[int, int] | None] | None = None


@frozen(kw_only=True)
class Connector:
    """Opens connections to the file of a journal.

    Attributes:
        path: the file.
        synchronous: what a commit waits for: `full` or `normal`.
        busy_timeout: how long to wait for other connections, in seconds.
    """

    path: Path
    synchronous: str
    busy_timeout: float

    def connect(self) -> sqlite3.Connection:
        """Open the file, and create the tables if it is new. Another thread may use the connection.

        Raises:
            sqlite3.Error: the file cannot be opened.
            SchemaTooNew: a newer version of agentloop created the tables.
            JournalError: the file is a database of something else.
            JournalCorrupt: the version of the tables cannot be read.
        """
        connection = sqlite3.connect(
            self.path,
            timeout=self.busy_timeout,
            isolation_level=None,
            check_same_thread=False,
            factory=JournalConnection,
        )
        try:
            self._prepare(connection)
            connection.opened = (self.path, _file_id(self.path))
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = _read_schema_version(connection)
        if version is None:
            version = self._create_tables(connection)
        if version > SCHEMA_VERSION:
            raise SchemaTooNew(version, SCHEMA_VERSION)
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        # On macOS, a plain fsync leaves data in the cache of the disk; elsewhere this has no effect.
        connection.execute("PRAGMA fullfsync = 1")

    def _create_tables(self, connection: sqlite3.Connection) -> int:
        """Create the tables, unless another connection just did; return their version."""
        self._enable_write_ahead_log(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Read again: another process may have created the tables before this one got the lock.
            version = _read_schema_version(connection)
            if version is None:
                for statement in _TABLES.split(";"):
                    connection.execute(statement)
                connection.execute("INSERT INTO meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return SCHEMA_VERSION if version is None else version

    def _enable_write_ahead_log(self, connection: sqlite3.Connection) -> None:
        """Turn on the write-ahead log, a permanent property of the file.

        SQLite does not apply its busy timeout to this statement, so this retries it.
        """
        deadline = time.monotonic() + self.busy_timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & PRIMARY_CODE_MASK == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_INTERVAL)
            else:
                return


def _read_schema_version(connection: sqlite3.Connection) -> int | None:
    """Return the version of the tables; None when the file has no tables."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return None
    if not {"meta", "executions", "records"} <= tables:
        raise JournalError("the file is a database, but not a journal; it was not changed")
    row = connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone()
    if row is None or not str(row[0]).isdecimal():
        raise JournalCorrupt("the file is damaged: the version of its tables cannot be read")
    return int(row[0])


def check_file_in_place(connection: sqlite3.Connection) -> None:
    """Check that the file of a connection is still at its path; what is written to a removed file is lost.

    Raises:
        JournalError: the file was removed or replaced.
    """
    opened = connection.opened if isinstance(connection, JournalConnection) else None
    if opened is not None and _file_id(opened[0]) != opened[1]:
        raise JournalError(
            f"the file {opened[0]} was removed or replaced while it was open; nothing was written. Close the journal to "
            "start with the file that is there now"
        )


def _file_id(path: Path) -> tuple[int, int] | None:
    """Return the device and inode numbers of a file; None when it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
