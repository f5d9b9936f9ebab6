"""The statements of a SQLite journal: reading, writing, and what their errors mean."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from agentloop.errors import AgentLoopError, JournalBusy, JournalCorrupt, JournalError, JournalFull
from agentloop.journal.chain import EMPTY_CHAIN, JournalFinding, check_follows, number_conflict
from agentloop.journal.sqlite.rows import (
    HEAD_COLUMNS,
    RECORD_COLUMNS,
    Row,
    decode_text,
    digest_of,
    encode_text,
    head_row,
    read_head_row,
    read_record_row,
    record_row,
    seal_of,
)
from agentloop.journal.sqlite.schema import PRIMARY_CODE_MASK, check_file_in_place
from agentloop.journal.sqlite.worker import Jobs
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.steps import ExecutionStatus

_TERMINAL_STATUSES = tuple([status.value for status in ExecutionStatus if status.is_terminal])

# --- reading ----------------------------------------------------------------------------------------------------------


def run_reads(connection: sqlite3.Connection, jobs: Jobs) -> None:
    """Run jobs one after the other; each sees a consistent state of the file."""
    for job in jobs:
        connection.execute("BEGIN")
        try:
            job.run(connection)
        finally:
            if connection.in_transaction:
                connection.execute("COMMIT")


def read_records(execution_id: str, after: int, connection: sqlite3.Connection) -> Sequence[JournalRecord]:
    """Return the records of an execution after a sequence number, in order."""
    rows = connection.execute(
        f"SELECT {RECORD_COLUMNS} FROM records WHERE execution_id = ? AND sequence > ? ORDER BY sequence",  # noqa: S608  # constants only
        (execution_id, after),
    ).fetchall()
    spills = _read_spills(execution_id, connection) if any(row[6] for row in rows) else {}
    return tuple([read_record_row(row, spills) for row in rows])


def _read_spills(execution_id: str, connection: sqlite3.Connection) -> dict[str, str]:
    """Return the spilled parts of an execution's records, without those that were changed."""
    spills = {}
    for digest, data in connection.execute("SELECT digest, data FROM spills WHERE execution_id = ?", (execution_id,)):
        try:
            text = decode_text(data)
        except UnicodeDecodeError:
            continue
        # A changed spill counts as missing, so that its records are reported as damaged.
        if digest_of(text) == digest:
            spills[digest] = text
    return spills


def read_head(execution_id: str, connection: sqlite3.Connection) -> ExecutionHead | None:
    """Return the summary of an execution; None when there is no execution of this id."""
    row = connection.execute(
        f"SELECT {HEAD_COLUMNS} FROM executions WHERE execution_id = ?",  # noqa: S608  # constants only
        (execution_id,),
    ).fetchone()
    return None if row is None else read_head_row(row)


def list_heads(
    agent_id: str | None, status: ExecutionStatus | None, limit: int | None, connection: sqlite3.Connection
) -> Sequence[ExecutionHead]:
    """Return the summaries of executions, newest first."""
    filters = {"agent_id": agent_id, "status": None if status is None else ExecutionStatus(status).value}
    used = {name: value for name, value in filters.items() if value is not None}
    where = f"WHERE {' AND '.join([f'{name} = ?' for name in used])}" if used else ""
    rows = connection.execute(
        f"SELECT {HEAD_COLUMNS} FROM executions {where} "  # noqa: S608  # constants only
        "ORDER BY started_at DESC, number DESC, execution_id DESC LIMIT ?",
        # A negative limit is no limit.
        (*used.values(), -1 if limit is None else limit),
    )
    return tuple([read_head_row(row) for row in rows])


def list_execution_ids(connection: sqlite3.Connection) -> Sequence[str]:
    """Return the ids of all executions, newest first; also of those whose heads cannot be read."""
    ids = connection.execute(
        "SELECT execution_id FROM executions ORDER BY started_at DESC, number DESC, execution_id DESC"
    )
    return [execution_id for (execution_id,) in ids]


def list_ended(before: int, connection: sqlite3.Connection) -> Sequence[str]:
    """Return the ids of the executions that have ended and were last updated before a time, in microseconds."""
    marks = ", ".join("?" * len(_TERMINAL_STATUSES))
    ids = connection.execute(
        f"SELECT execution_id FROM executions WHERE status IN ({marks}) AND updated_at < ?",  # noqa: S608  # constants only
        (*_TERMINAL_STATUSES, before),
    )
    return [execution_id for (execution_id,) in ids]


# --- verification -----------------------------------------------------------------------------------------------------

_MAX_FILE_FINDINGS = 100
"""The maximum number of findings about the file itself."""


def check_storage(execution_id: str | None, connection: sqlite3.Connection) -> Sequence[JournalFinding]:
    """Return changed heads; without an execution also records without a head, and damage of the file."""
    findings = [*_find_changed_heads(execution_id, connection)]
    if execution_id is None:
        findings += [*_find_records_without_head(connection), *_find_file_damage(connection)]
    return tuple(findings)


def _find_changed_heads(execution_id: str | None, connection: sqlite3.Connection) -> Iterator[JournalFinding]:
    where, values = ("", ()) if execution_id is None else ("WHERE execution_id = ?", (execution_id,))
    for *row, seal in connection.execute(f"SELECT {HEAD_COLUMNS}, seal FROM executions {where}", values):  # noqa: S608  # constants only
        if seal_of(row) != seal:
            yield JournalFinding(str(row[0]), 0, "the head was changed after it was written")


def _find_records_without_head(connection: sqlite3.Connection) -> Iterator[JournalFinding]:
    rows = connection.execute(
        "SELECT DISTINCT execution_id FROM records "
        "WHERE NOT EXISTS (SELECT 1 FROM executions WHERE executions.execution_id = records.execution_id)"
    )
    for (execution_id,) in rows:
        yield JournalFinding(str(execution_id), 0, "there are records without a head")


def _find_file_damage(connection: sqlite3.Connection) -> Iterator[JournalFinding]:
    try:
        for (problem,) in connection.execute(f"PRAGMA integrity_check({_MAX_FILE_FINDINGS})"):
            if problem != "ok":
                yield JournalFinding("", 0, f"the file: {problem}")
    except sqlite3.DatabaseError as error:
        raise JournalCorrupt(f"the file is damaged: {error}") from error


# --- writing ----------------------------------------------------------------------------------------------------------

_INSERT_HEAD = f"INSERT OR REPLACE INTO executions ({HEAD_COLUMNS}, seal) VALUES ({', '.join('?' * 13)})"  # noqa: S608  # constants only
_INSERT_RECORD = f"INSERT INTO records ({RECORD_COLUMNS}) VALUES ({', '.join('?' * 9)})"  # noqa: S608  # constants only
_INSERT_SPILL = "INSERT OR IGNORE INTO spills (execution_id, digest, data) VALUES (?, ?, ?)"
_SELECT_END = "SELECT record_count, last_hash, agent_id, number FROM executions WHERE execution_id = ?"
_SELECT_NUMBER = "SELECT 1 FROM executions WHERE agent_id = ? AND number = ?"


def run_writes(connection: sqlite3.Connection, jobs: Jobs) -> None:
    """Run jobs in one transaction; when it fails, run each in its own, so that only the jobs at fault fail.

    A job that raises an `AgentLoopError` has not written anything, so it does not abort the transaction.

    Raises:
        JournalError: the file was removed or replaced.
    """
    check_file_in_place(connection)
    for job in jobs:
        if isinstance(job.action, Append):
            job.action.prepare()
    try:
        _run_in_transaction(connection, jobs)
    except Exception as error:  # noqa: BLE001  # the single transactions below raise what is wrong
        _run_separately(connection, jobs, error)


def _run_separately(connection: sqlite3.Connection, jobs: Jobs, cause: Exception) -> None:
    """Run each job in a transaction of its own.

    When one has waited for the lock in vain, the others fail with it: waiting again for each would take too long.
    """
    busy_error = cause if _is_busy(cause) else None
    for job in jobs:
        try:
            if busy_error is not None:
                raise busy_error  # noqa: TRY301  # handled like an error of this job
            _run_in_transaction(connection, [job])
        except Exception as error:  # noqa: BLE001  # the caller's future raises it
            job.error = error
            busy_error = error if _is_busy(error) else None


def _is_busy(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(error, sqlite3.Error) and code & PRIMARY_CODE_MASK == sqlite3.SQLITE_BUSY


def _run_in_transaction(connection: sqlite3.Connection, jobs: Jobs) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for job in jobs:
            job.run(connection)
            if job.error is not None and not isinstance(job.error, AgentLoopError):
                raise job.error  # noqa: TRY301  # it is rolled back like any other error
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some errors end the transaction
            connection.execute("ROLLBACK")
        raise


class Append:
    """The action that appends records to a chain.

    Args:
        head: the summary of the execution after the records.
        records: one or more records of the execution, chained to each other.
        max_length: the maximum length of a body in its row, in characters.
    """

    __slots__ = ("_head", "_head_row", "_max_length", "_problem", "_record_rows", "_records", "_spill_rows")

    def __init__(self, head: ExecutionHead, records: Sequence[JournalRecord], max_length: int) -> None:
        self._head, self._records, self._max_length = head, records, max_length
        self._head_row: Row = ()
        self._record_rows: list[Row] = []
        self._spill_rows: list[Row] = []
        self._problem: Exception | None = None

    def prepare(self) -> None:
        """Build the rows; called before the file is locked, which keeps the lock short."""
        try:
            self._head_row = head_row(self._head)
            for record in self._records:
                row, spills = record_row(record, self._max_length)
                self._record_rows.append(row)
                self._spill_rows += [
                    (record.execution_id, digest, encode_text(data)) for digest, data in spills.items()
                ]
        except Exception as error:  # noqa: BLE001  # the action raises it
            self._problem = error

    def __call__(self, connection: sqlite3.Connection) -> None:
        """Write the rows.

        Raises:
            JournalConflict: they do not follow the last stored record; nothing was written.
        """
        if self._problem is not None:
            raise self._problem
        self._check(connection)
        connection.executemany(_INSERT_RECORD, self._record_rows)
        if self._spill_rows:
            connection.executemany(_INSERT_SPILL, self._spill_rows)
        connection.execute(_INSERT_HEAD, self._head_row)

    def _check(self, connection: sqlite3.Connection) -> None:
        head = self._head
        stored = connection.execute(_SELECT_END, (head.execution_id,)).fetchone()
        check_follows(self._records[0], *(stored[:2] if stored else EMPTY_CHAIN))
        number = (head.agent_id, head.number)
        # A stored head with this number has passed the check before.
        if (stored is None or stored[2:] != number) and connection.execute(_SELECT_NUMBER, number).fetchone():
            raise number_conflict(head)


def delete(execution_id: str, connection: sqlite3.Connection) -> bool:
    """Delete an execution with all its records; return whether it existed."""
    existed = connection.execute("DELETE FROM executions WHERE execution_id = ?", (execution_id,)).rowcount > 0
    connection.execute("DELETE FROM records WHERE execution_id = ?", (execution_id,))
    connection.execute("DELETE FROM spills WHERE execution_id = ?", (execution_id,))
    return existed


def delete_ended(execution_ids: Iterable[str], before: int, connection: sqlite3.Connection) -> int:
    """Delete those of these executions that `list_ended` would still return; return their number."""
    return sum([_delete_ended(execution_id, before, connection) for execution_id in execution_ids])


def _delete_ended(execution_id: str, before: int, connection: sqlite3.Connection) -> bool:
    rows = connection.execute("SELECT status, updated_at FROM executions WHERE execution_id = ?", (execution_id,))
    row = rows.fetchone()
    has_ended = row is not None and row[0] in _TERMINAL_STATUSES and row[1] < before
    return has_ended and delete(execution_id, connection)


# --- errors -----------------------------------------------------------------------------------------------------------

_MEANINGS: Mapping[int, tuple[Callable[[str], JournalError], str]] = {
    sqlite3.SQLITE_BUSY: (JournalBusy, "another process held the lock for longer than busy_timeout"),
    sqlite3.SQLITE_LOCKED: (JournalBusy, "another connection held the lock"),
    sqlite3.SQLITE_FULL: (JournalFull, "no space is left; nothing of this was written, free some space and try again"),
    sqlite3.SQLITE_IOERR_SHMSIZE: (JournalFull, "no space is left to open it; free some space and try again"),
    sqlite3.SQLITE_CORRUPT: (
        JournalCorrupt,
        "the file is damaged; copy it before anything else, then run `verify`",
    ),
    sqlite3.SQLITE_NOTADB: (JournalCorrupt, "the file is not a SQLite database, or its beginning is damaged"),
    sqlite3.SQLITE_CANTOPEN: (
        JournalError,
        "the file cannot be opened; check that its folder exists and can be written",
    ),
    sqlite3.SQLITE_READONLY: (JournalError, "the file or its folder is read-only"),
    sqlite3.SQLITE_PERM: (JournalError, "reading or writing the file is not permitted"),
    sqlite3.SQLITE_IOERR: (JournalError, "the operating system could not read or write the file"),
}


def translate_error(error: Exception, path: str) -> Exception:
    """Return the error to raise for one that a job raised, with the original error as its cause.

    Args:
        error: the original error.
        path: the path of the file, for the message.
    """
    if isinstance(error, UnicodeEncodeError):
        unwritable = JournalError(
            f"the journal {path}: {error.object!a} cannot be recorded: lone surrogates are not valid in UTF-8"
        )
        unwritable.__cause__ = error
        return unwritable
    if isinstance(error, AgentLoopError) or not isinstance(error, sqlite3.Error | OSError):
        return error
    code = getattr(error, "sqlite_errorcode", None)
    if code is None and "decode" in str(error).lower():  # the error for a text that is not UTF-8 has no code
        code = sqlite3.SQLITE_CORRUPT
    code = code or 0
    kind, meaning = (
        _MEANINGS.get(code) or _MEANINGS.get(code & PRIMARY_CODE_MASK) or (JournalError, "it cannot be used")
    )
    raised = kind(f"the journal {path}: {meaning} ({error})")
    raised.__cause__ = error
    return raised
