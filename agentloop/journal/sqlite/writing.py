"""What is written, all that waits in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from agentloop.errors import AgentLoopError
from agentloop.journal.appending import NOTHING_THERE, check_follows, number_taken
from agentloop.journal.sqlite.rows import HEAD_COLUMNS, RECORD_COLUMNS, Row, head_row, record_row, storable
from agentloop.journal.sqlite.schema import check_in_place
from agentloop.journal.sqlite.worker import Jobs
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.journal_record import ExecutionHead, JournalRecord

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
