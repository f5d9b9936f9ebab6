"""What is read, beside those who write."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from agentloop.errors import AgentLoopError, JournalBusy, JournalCorrupt, JournalError, JournalFull
from agentloop.journal.chain import NOTHING_THERE, JournalFinding, check_follows, number_taken
from agentloop.journal.sqlite.rows import (
    HEAD_COLUMNS,
    RECORD_COLUMNS,
    Row,
    digest_of,
    head_in,
    head_row,
    record_in,
    record_row,
    seal_of,
    storable,
    stored,
)
from agentloop.journal.sqlite.schema import check_in_place
from agentloop.journal.sqlite.worker import Jobs
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.steps import ExecutionStatus

_MOST_DAMAGE = 100
"""How many damages of the file itself are told."""


def read_all(connection: sqlite3.Connection, jobs: Jobs) -> None:
    """Do jobs one after the other, each seeing one state of the file."""
    for job in jobs:
        connection.execute("BEGIN")
        try:
            job.do(connection)
        finally:
            if connection.in_transaction:
                connection.execute("COMMIT")


def read(execution_id: str, after: int, connection: sqlite3.Connection) -> Sequence[JournalRecord]:
    """Return the records of an execution in order."""
    rows = connection.execute(
        f"SELECT {RECORD_COLUMNS} FROM records WHERE execution_id = ? AND sequence > ? ORDER BY sequence",  # noqa: S608  # no text from outside
        (execution_id, after),
    ).fetchall()
    spills = _spills(execution_id, connection) if any(row[6] for row in rows) else {}
    return tuple([record_in(row, spills) for row in rows])


def _spills(execution_id: str, connection: sqlite3.Connection) -> dict[str, str]:
    """Return what was cut out of the records of an execution, as far as it is what it was."""
    spills = {}
    for digest, data in connection.execute("SELECT digest, data FROM spills WHERE execution_id = ?", (execution_id,)):
        try:
            text = stored(data)
        except UnicodeDecodeError:
            continue
        if digest_of(text) == digest:
            spills[digest] = text
    return spills


def head(execution_id: str, connection: sqlite3.Connection) -> ExecutionHead | None:
    """Return what is known of an execution."""
    row = connection.execute(
        f"SELECT {HEAD_COLUMNS} FROM executions WHERE execution_id = ?",  # noqa: S608  # no text from outside
        (execution_id,),
    ).fetchone()
    return None if row is None else head_in(row)


def heads(
    agent_id: str | None, status: ExecutionStatus | None, limit: int | None, connection: sqlite3.Connection
) -> Sequence[ExecutionHead]:
    """Return what is known of executions, the newest first."""
    chosen = {"agent_id": agent_id, "status": None if status is None else ExecutionStatus(status).value}
    given = {name: value for name, value in chosen.items() if value is not None}
    where = f"WHERE {' AND '.join([f'{name} = ?' for name in given])}" if given else ""
    rows = connection.execute(
        f"SELECT {HEAD_COLUMNS} FROM executions {where} "  # noqa: S608  # no text from outside
        "ORDER BY started_at DESC, number DESC, execution_id DESC LIMIT ?",
        (*given.values(), -1 if limit is None else limit),
    )
    return tuple([head_in(row) for row in rows])


def execution_ids(connection: sqlite3.Connection) -> Sequence[str]:
    """Return the ids of all executions, the newest first."""
    ids = connection.execute(
        "SELECT execution_id FROM executions ORDER BY started_at DESC, number DESC, execution_id DESC"
    )
    return [execution_id for (execution_id,) in ids]


def findings_beside(execution_id: str | None, connection: sqlite3.Connection) -> Sequence[JournalFinding]:
    """Find heads that were changed, records without a head, and, when no execution is named, damage of the file itself."""
    found = [*_changed_heads(execution_id, connection)]
    if execution_id is None:
        found += [*_without_heads(connection), *_damage(connection)]
    return tuple(found)


def _changed_heads(execution_id: str | None, connection: sqlite3.Connection) -> Iterator[JournalFinding]:
    where, given = ("", ()) if execution_id is None else ("WHERE execution_id = ?", (execution_id,))
    for *row, seal in connection.execute(f"SELECT {HEAD_COLUMNS}, seal FROM executions {where}", given):  # noqa: S608  # no text from outside
        if seal_of(row) != seal:
            yield JournalFinding(str(row[0]), 0, "what is known of the execution was changed by somebody else")


def _without_heads(connection: sqlite3.Connection) -> Iterator[JournalFinding]:
    rows = connection.execute(
        "SELECT DISTINCT execution_id FROM records "
        "WHERE NOT EXISTS (SELECT 1 FROM executions WHERE executions.execution_id = records.execution_id)"
    )
    for (execution_id,) in rows:
        yield JournalFinding(str(execution_id), 0, "there are records, and nothing that says of which execution")


def _damage(connection: sqlite3.Connection) -> Iterator[JournalFinding]:
    try:
        for (problem,) in connection.execute(f"PRAGMA integrity_check({_MOST_DAMAGE})"):
            if problem != "ok":
                yield JournalFinding("", 0, f"the file: {problem}")
    except sqlite3.DatabaseError as error:
        raise JournalCorrupt(f"the file is damaged: {error}") from error


_HEAD = f"INSERT OR REPLACE INTO executions ({HEAD_COLUMNS}, seal) VALUES ({', '.join('?' * 13)})"  # noqa: S608  # no text from outside
_RECORD = f"INSERT INTO records ({RECORD_COLUMNS}) VALUES ({', '.join('?' * 9)})"  # noqa: S608  # no text from outside
_SPILL = "INSERT OR IGNORE INTO spills (execution_id, digest, data) VALUES (?, ?, ?)"
_KNOWN = "SELECT record_count, last_hash, agent_id, number FROM executions WHERE execution_id = ?"
_TAKEN = "SELECT 1 FROM executions WHERE agent_id = ? AND number = ?"
_OVER = tuple([status.value for status in ExecutionStatus if status.is_terminal])


def write(connection: sqlite3.Connection, jobs: Jobs) -> None:
    """Do jobs in one transaction; when that fails, each in one of its own, so that only those fail that have to.

    A job that raises an error of ours has not written anything before, so the others go on.

    Raises:
        JournalError: when the file is no longer where it was.
    """
    check_in_place(connection)
    for job in jobs:
        if isinstance(job.action, Append):
            job.action.prepare()
    try:
        _in_transaction(connection, jobs)
    except Exception as error:  # noqa: BLE001  # what was wrong is found out below
        _each_alone(connection, jobs, error)


def _each_alone(connection: sqlite3.Connection, jobs: Jobs, why: Exception) -> None:
    """Do each job in a transaction of its own; who waited for others in vain does not wait for them again."""
    kept_out = why if _is_busy(why) else None
    for job in jobs:
        try:
            if kept_out is not None:
                raise kept_out  # noqa: TRY301  # it is this job's error, too
            _in_transaction(connection, [job])
        except Exception as error:  # noqa: BLE001  # it is raised where it is waited for
            job.error = error
            kept_out = error if _is_busy(error) else None


def _is_busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _in_transaction(connection: sqlite3.Connection, jobs: Jobs) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for job in jobs:
            job.do(connection)
            _require_none_or_ours(job.error)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some errors have ended it already
            connection.execute("ROLLBACK")
        raise


def _require_none_or_ours(error: Exception | None) -> None:
    if error is not None and not isinstance(error, AgentLoopError):
        raise error


class Append:
    """Puts records at the end of a chain.

    Args:
        head: what is known of the execution after it.
        records: one or more, of the one execution, chained to each other.
        most: how many characters of a body stay in its row.
    """

    __slots__ = ("_head", "_most", "_of_head", "_of_records", "_of_spills", "_problem", "_records")

    def __init__(self, head: ExecutionHead, records: Sequence[JournalRecord], most: int) -> None:
        self._head, self._records, self._most = head, records, most
        self._of_head: Row = ()
        self._of_records: list[Row] = []
        self._of_spills: list[Row] = []
        self._problem: Exception | None = None

    def prepare(self) -> None:
        """Make the rows, before anything is locked."""
        try:
            self._of_head = head_row(self._head)
            for record in self._records:
                row, spills = record_row(record, self._most)
                self._of_records.append(row)
                self._of_spills += [(record.execution_id, digest, storable(data)) for digest, data in spills.items()]
        except Exception as error:  # noqa: BLE001  # it is raised when it is this one's turn
            self._problem = error

    def __call__(self, connection: sqlite3.Connection) -> None:
        """Write the rows.

        Raises:
            JournalConflict: when they do not follow the last record that is there; then nothing was written.
        """
        if self._problem is not None:
            raise self._problem
        self._check(connection)
        connection.executemany(_RECORD, self._of_records)
        if self._of_spills:
            connection.executemany(_SPILL, self._of_spills)
        connection.execute(_HEAD, self._of_head)

    def _check(self, connection: sqlite3.Connection) -> None:
        head = self._head
        known = connection.execute(_KNOWN, (head.execution_id,)).fetchone()
        check_follows(self._records[0], *(known[:2] if known else NOTHING_THERE))
        number = (head.agent_id, head.number)
        if (known is None or known[2:] != number) and connection.execute(_TAKEN, number).fetchone():
            raise number_taken(head)


def delete(execution_id: str, connection: sqlite3.Connection) -> bool:
    """Delete an execution with all its records; say whether there was one."""
    there = connection.execute("DELETE FROM executions WHERE execution_id = ?", (execution_id,)).rowcount > 0
    connection.execute("DELETE FROM records WHERE execution_id = ?", (execution_id,))
    connection.execute("DELETE FROM spills WHERE execution_id = ?", (execution_id,))
    return there


def over(before: int, connection: sqlite3.Connection) -> Sequence[str]:
    """Return the executions that have ended and were last changed before this moment, in microseconds."""
    marks = ", ".join("?" * len(_OVER))
    found = connection.execute(
        f"SELECT execution_id FROM executions WHERE status IN ({marks}) AND updated_at < ?",  # noqa: S608  # no text from outside
        (*_OVER, before),
    )
    return [execution_id for (execution_id,) in found]


def delete_over(execution_ids: Iterable[str], before: int, connection: sqlite3.Connection) -> int:
    """Delete those of these executions that are still over and unchanged since; return how many."""
    return sum([_delete_over(execution_id, before, connection) for execution_id in execution_ids])


def _delete_over(execution_id: str, before: int, connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT status, updated_at FROM executions WHERE execution_id = ?", (execution_id,))
    row = found.fetchone()
    return row is not None and row[0] in _OVER and row[1] < before and delete(execution_id, connection)


_PRIMARY = 0xFF
"""The part of an error code that is not about details."""

_MEANINGS: Mapping[int, tuple[Callable[[str], JournalError], str]] = {
    sqlite3.SQLITE_BUSY: (JournalBusy, "somebody else kept it locked for longer than busy_timeout"),
    sqlite3.SQLITE_LOCKED: (JournalBusy, "somebody else kept it locked"),
    sqlite3.SQLITE_FULL: (JournalFull, "there is no room to write; nothing of this was written, make room and go on"),
    sqlite3.SQLITE_IOERR_SHMSIZE: (JournalFull, "there is no room to open it; make room and go on"),
    sqlite3.SQLITE_CORRUPT: (
        JournalCorrupt,
        "the file is damaged; copy it before anything else, then look at `verify`",
    ),
    sqlite3.SQLITE_NOTADB: (JournalCorrupt, "the file is not a SQLite database, or its beginning is damaged"),
    sqlite3.SQLITE_CANTOPEN: (JournalError, "the file cannot be opened; is its folder there, and may it be written?"),
    sqlite3.SQLITE_READONLY: (JournalError, "the file or its folder may not be written"),
    sqlite3.SQLITE_PERM: (JournalError, "the file may not be read or written"),
    sqlite3.SQLITE_IOERR: (JournalError, "the system could not read or write the file"),
}


def translated(error: Exception, path: str) -> Exception:
    """Return the error that the caller of a journal gets; its cause is the one that was raised.

    Args:
        error: what was raised.
        path: the file, for the message.
    """
    if isinstance(error, UnicodeEncodeError):
        unwritable = JournalError(
            f"the journal {path}: {error.object!a} cannot be written down: its lone surrogates are no UTF-8"
        )
        unwritable.__cause__ = error
        return unwritable
    if isinstance(error, AgentLoopError) or not isinstance(error, sqlite3.Error | OSError):
        return error
    code = getattr(error, "sqlite_errorcode", None)
    if code is None and "decode" in str(error).lower():  # a text that is no longer UTF-8 has no code of its own
        code = sqlite3.SQLITE_CORRUPT
    code = code or 0
    kind, meaning = _MEANINGS.get(code) or _MEANINGS.get(code & _PRIMARY) or (JournalError, "it cannot be used")
    raised = kind(f"the journal {path}: {meaning} ({error})")
    raised.__cause__ = error
    return raised
