"""The tables of a journal, and opening the file that holds them."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from attrs import frozen

from agentloop.errors import JournalCorrupt, JournalError, SchemaTooNew

SCHEMA_VERSION = 1
"""The version of the tables that are made now."""

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
_PAUSE = 0.005


class JournalConnection(sqlite3.Connection):
    """A connection that knows which file it has opened.

    Attributes:
        opened: the path, and what the system knows the file by.
    """

    opened: tuple[Path, tuple[int, int] | None] | None = None


@frozen(kw_only=True)
class Opening:
    """How the file of a journal is opened.

    Attributes:
        path: the file.
        synchronous: what a commit waits for: `full` or `normal`.
        busy_timeout: how many seconds to wait for others.
    """

    path: Path
    synchronous: str
    busy_timeout: float

    def open(self) -> sqlite3.Connection:
        """Open the file, in this thread or for another; make the tables if it is new.

        Raises:
            sqlite3.Error: when it cannot be opened.
            SchemaTooNew: when a newer agentloop made the tables.
            JournalError: when it is a database of something else.
        JournalCorrupt: when nothing tells the version of the tables.
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
            connection.opened = (self.path, _identity(self.path))
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = _schema_version(connection)
        if version is None:
            version = self._made(connection)
        if version > SCHEMA_VERSION:
            raise SchemaTooNew(version, SCHEMA_VERSION)
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        connection.execute("PRAGMA fullfsync = 1")  # on macOS, a disk is only asked to keep what it has with this

    def _made(self, connection: sqlite3.Connection) -> int:
        """Make the tables, unless somebody else just did; return the version of those that are there."""
        self._write_ahead(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = _schema_version(connection)
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

    def _write_ahead(self, connection: sqlite3.Connection) -> None:
        """Turn the write-ahead log on, which the file then remembers; SQLite itself does not wait for others here."""
        until = time.monotonic() + self.busy_timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
                time.sleep(_PAUSE)
            else:
                return


def _schema_version(connection: sqlite3.Connection) -> int | None:
    """Return the version of the tables; None when there are none at all."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return None
    if not {"meta", "executions", "records"} <= tables:
        raise JournalError("the file is a database of something else than a journal; nothing in it was changed")
    found = connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone()
    if found is None or not str(found[0]).isdecimal():
        raise JournalCorrupt("the file is damaged: the version of its tables cannot be read")
    return int(found[0])


def check_in_place(connection: sqlite3.Connection) -> None:
    """Check that the file that a connection writes is still where it was: what goes into a file without a name is lost.

    Raises:
        JournalError: when it was removed or replaced.
    """
    opened = connection.opened if isinstance(connection, JournalConnection) else None
    if opened is not None and _identity(opened[0]) != opened[1]:
        raise JournalError(
            f"the file {opened[0]} was removed or replaced while it was open; nothing was written. Close the journal to "
            "begin with the file that is there now"
        )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
