"""The statements of a SQLite journal: reading, writing, and what their errors mean."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from agentloop.errors import AgentLoopError, JournalBusy, JournalCorrupt, JournalError, JournalFull
from agentloop.journal.chain import EMPTY_CHAIN, JournalFinding, check_follows, claim_conflict, number_conflict
from agentloop.journal.sqlite.files import End, EndFile, digest_of_id
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
from agentloop.journal.sqlite.schema import PRIMARY_CODE_MASK, JournalConnection, check_file_in_place, is_busy
from agentloop.journal.sqlite.worker import Jobs
from agentloop.journal.trees import check_deletable, root_of, sources_of_forks
from agentloop.values.records import ExecutionHead, JournalRecord, callers_of
from agentloop.values.steps import ExecutionStatus

_ENDED = frozenset(status.value for status in ExecutionStatus if status.is_terminal)
_TERMINAL = ", ".join([f"'{status}'" for status in sorted(_ENDED)])
_UNFINISHED = ", ".join([f"'{status.value}'" for status in ExecutionStatus if not status.is_terminal])

# --- reading ----------------------------------------------------------------------------------------------------------


def run_reads(connection: JournalConnection, jobs: Jobs) -> None:
    """Run jobs one after the other; each sees a consistent state of the file."""
    for job in jobs:
        connection.execute("BEGIN")
        try:
            job.run(connection)
        finally:
            if connection.in_transaction:
                connection.execute("COMMIT")


def read_records(execution_id: str, after: int, connection: JournalConnection) -> Sequence[JournalRecord]:
    """Return the records of an execution after a sequence number, in order."""
    rows = connection.execute(
        f"SELECT {RECORD_COLUMNS} FROM records WHERE execution_id = ? AND sequence > ? ORDER BY sequence",  # noqa: S608  # constants only
        (execution_id, after),
    ).fetchall()
    spills = _read_spills(execution_id, connection) if any(row[6] for row in rows) else {}
    return tuple([read_record_row(row, spills) for row in rows])


def _read_spills(execution_id: str, connection: JournalConnection) -> dict[str, str]:
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


def read_head(execution_id: str, connection: JournalConnection) -> ExecutionHead | None:
    """Return the summary of an execution; None when there is no execution of this id."""
    row = connection.execute(
        f"SELECT {HEAD_COLUMNS} FROM executions WHERE execution_id = ?",  # noqa: S608  # constants only
        (execution_id,),
    ).fetchone()
    return None if row is None else read_head_row(row)


def list_heads(
    agent_id: str | None, status: ExecutionStatus | None, limit: int | None, connection: JournalConnection
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


def list_execution_ids(connection: JournalConnection) -> Sequence[str]:
    """Return the ids of all executions, newest first; also of those whose heads cannot be read."""
    ids = connection.execute(
        "SELECT execution_id FROM executions ORDER BY started_at DESC, number DESC, execution_id DESC"
    )
    return [execution_id for (execution_id,) in ids]


def list_expired(before: int, connection: JournalConnection) -> Sequence[Sequence[str]]:
    """Return the ids of the executions of each tree that has ended and was last updated before a time, roots first.

    Args:
        before: the time, in microseconds since 1970.
        connection: a connection in a transaction.
    """
    rows = connection.execute(
        f"SELECT execution_id FROM executions WHERE status IN ({_TERMINAL}) AND updated_at < ?",  # noqa: S608  # constants only
        (before,),
    ).fetchall()
    trees = [read_tree(execution_id, connection) for (execution_id,) in rows]
    needed = _read_sources_of_forks(connection)
    return [tree for tree in trees if tree and _is_expired(tree, before, needed, connection)]


def read_tree(execution_id: str, connection: JournalConnection) -> Sequence[str]:
    """Return the ids of an execution and of all executions below it, ordered by id; empty when it is not a recorded root."""
    if read_root(execution_id, connection) != execution_id:
        return ()
    # The characters after the slash: ids below an execution start with its own id and a slash.
    rows = connection.execute(
        "SELECT execution_id FROM executions WHERE execution_id > ? AND execution_id < ? ORDER BY execution_id",
        (f"{execution_id}/", f"{execution_id}0"),
    )
    return (execution_id, *[below for (below,) in rows if execution_id in callers_of(below)])


def read_root(execution_id: str, connection: JournalConnection) -> str:
    """Return the id of the root of an execution's tree; empty when the execution is not recorded."""

    def is_recorded(each: str) -> bool:
        return connection.execute("SELECT 1 FROM executions WHERE execution_id = ?", (each,)).fetchone() is not None

    return root_of(execution_id, is_recorded) if is_recorded(execution_id) else ""


def _read_sources_of_forks(connection: JournalConnection) -> Mapping[str, str]:
    """Return the ids of the executions whose records unfinished forks need, each with the id of such a fork."""
    forks = connection.execute(
        f"SELECT execution_id, forked_from FROM executions WHERE status IN ({_UNFINISHED}) AND forked_from <> ''"  # noqa: S608  # constants only
    ).fetchall()

    def source_of(execution_id: str) -> str:
        row = connection.execute(
            "SELECT forked_from FROM executions WHERE execution_id = ?", (execution_id,)
        ).fetchone()
        return "" if row is None else str(row[0])

    return sources_of_forks(forks, source_of)


def _is_expired(tree: Sequence[str], before: int, needed: Mapping[str, str], connection: JournalConnection) -> bool:
    """Return whether a tree has ended, was last updated before a time, and is needed by no unfinished fork."""
    query = "SELECT status, updated_at FROM executions WHERE execution_id = ?"
    rows = [connection.execute(query, (execution_id,)).fetchone() for execution_id in tree]
    return tree[0] not in needed and rows[0][0] in _ENDED and all(updated_at < before for _, updated_at in rows)


# --- verification -----------------------------------------------------------------------------------------------------

_MAX_FILE_FINDINGS = 100
"""The maximum number of findings about the file itself."""


def check_storage(execution_id: str | None, connection: JournalConnection) -> Sequence[JournalFinding]:
    """Return lost ends and changed heads; without an execution also records without a head, and damage of the file."""
    findings = [*_find_lost_records(execution_id, connection), *_find_changed_heads(execution_id, connection)]
    if execution_id is None:
        findings += [*_find_records_without_head(connection), *_find_file_damage(connection)]
    return tuple(findings)


def _find_lost_records(execution_id: str | None, connection: JournalConnection) -> Iterator[JournalFinding]:
    if connection.ends is None:
        return
    # Read before the executions: an end is written after its records, and removed before them.
    ends = connection.ends.read_all() if execution_id is None else [connection.ends.read(execution_id)]
    known = {end.digest: end for end in ends if end is not None}
    where, values = ("", ()) if execution_id is None else ("WHERE execution_id = ?", (execution_id,))
    rows = connection.execute(f"SELECT execution_id, record_count, last_hash FROM executions {where}", values)  # noqa: S608  # constants only
    stored = {digest_of_id(str(row[0])): row for row in rows}
    for digest, end in known.items():
        found_id, count, last_hash = stored.get(digest, (execution_id or end.name, 0, ""))
        # A value of the wrong type is reported as a changed head.
        is_readable = isinstance(count, int) and isinstance(last_hash, str)
        if is_readable and end.is_missing_from(count, last_hash) and connection.ends.read_slot(digest) == end:
            yield JournalFinding(
                str(found_id), count + 1, f"{_describe_loss(end, count)}. {_describe_remedy(connection.ends)}"
            )


def _describe_loss(end: End, count: int) -> str:
    if count == end.count:
        return f"record {count} of execution {end.name} is not the one that was acknowledged"
    return f"execution {end.name} has {count} records, and {end.count} were acknowledged: the file lost its last ones"


def _describe_remedy(ends: EndFile) -> str:
    return (
        "Restore the `-wal` file that was lost. If this file was restored from a backup on purpose, or the rest is to be continued "
        f"as it is, close the journal everywhere and remove {ends.path}: what the lost records say may then be done again"
    )


def _find_changed_heads(execution_id: str | None, connection: JournalConnection) -> Iterator[JournalFinding]:
    where, values = ("", ()) if execution_id is None else ("WHERE execution_id = ?", (execution_id,))
    for *row, seal in connection.execute(f"SELECT {HEAD_COLUMNS}, seal FROM executions {where}", values):  # noqa: S608  # constants only
        if seal_of(row) != seal:
            yield JournalFinding(str(row[0]), 0, "the head was changed after it was written")


def _find_records_without_head(connection: JournalConnection) -> Iterator[JournalFinding]:
    rows = connection.execute(
        "SELECT DISTINCT execution_id FROM records "
        "WHERE NOT EXISTS (SELECT 1 FROM executions WHERE executions.execution_id = records.execution_id)"
    )
    for (execution_id,) in rows:
        yield JournalFinding(str(execution_id), 0, "there are records without a head")


def _find_file_damage(connection: JournalConnection) -> Iterator[JournalFinding]:
    try:
        for (problem,) in connection.execute(f"PRAGMA integrity_check({_MAX_FILE_FINDINGS})"):
            if problem != "ok":
                yield JournalFinding("", 0, f"the file: {problem}")
    except sqlite3.DatabaseError as error:
        raise JournalCorrupt(f"the file is damaged: {error}") from error


# --- writing ----------------------------------------------------------------------------------------------------------

_HEAD_NAMES = [*HEAD_COLUMNS.split(", "), "seal"]
# Not `INSERT OR REPLACE`, which would also write the pages of all indexes.
_INSERT_HEAD = (
    f"INSERT INTO executions ({', '.join(_HEAD_NAMES)}) VALUES ({', '.join('?' * len(_HEAD_NAMES))}) "  # noqa: S608  # constants only
    f"ON CONFLICT (execution_id) DO UPDATE SET {', '.join([f'{name} = excluded.{name}' for name in _HEAD_NAMES[1:]])}"
)
_INSERT_RECORD = f"INSERT INTO records ({RECORD_COLUMNS}) VALUES ({', '.join('?' * 9)})"  # noqa: S608  # constants only
_INSERT_SPILL = "INSERT OR IGNORE INTO spills (execution_id, digest, data) VALUES (?, ?, ?)"
_SELECT_END = "SELECT record_count, last_hash, agent_id, number FROM executions WHERE execution_id = ?"
_SELECT_NUMBER = "SELECT 1 FROM executions WHERE agent_id = ? AND number = ?"


def run_writes(connection: JournalConnection, jobs: Jobs) -> None:
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
    except Exception as error:
        if is_busy(error):  # for all of them
            raise
        _run_separately(connection, jobs)


def _run_separately(connection: JournalConnection, jobs: Jobs) -> None:
    """Run each job in a transaction of its own."""
    for job in jobs:
        try:
            _run_in_transaction(connection, [job])
        except Exception as error:  # noqa: BLE001  # the caller's future raises it
            job.error = error


def _run_in_transaction(connection: JournalConnection, jobs: Jobs) -> None:
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
    for job in jobs:
        if isinstance(job.action, Append) and job.error is None:
            job.action.mark_end(connection)


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
        """Build the rows; called before the file is locked, which keeps the lock short. Idempotent."""
        if self._head_row or self._problem is not None:
            return
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

    def __call__(self, connection: JournalConnection) -> None:
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

    def mark_end(self, connection: JournalConnection) -> None:
        """Note the end of the execution, after the commit of its records."""
        if connection.ends is not None:
            connection.ends.write(self._head.execution_id, self._head.record_count, self._head.last_hash)

    def _check(self, connection: JournalConnection) -> None:
        head = self._head
        stored = connection.execute(_SELECT_END, (head.execution_id,)).fetchone()
        _check_end(head.execution_id, stored, connection)
        check_follows(self._records[0], *(stored[:2] if stored else EMPTY_CHAIN))
        number = (head.agent_id, head.number)
        # A stored head with this number has passed the check before.
        if (stored is None or stored[2:] != number) and connection.execute(_SELECT_NUMBER, number).fetchone():
            raise number_conflict(head)


def _check_end(execution_id: str, stored: Row | None, connection: JournalConnection) -> None:
    """Check that the database did not lose records of an execution that is to be continued.

    Raises:
        JournalCorrupt: it did; what they record would be done again.
    """
    end = connection.ends.read(execution_id) if connection.ends is not None else None
    count, last_hash = (stored[0], stored[1]) if stored is not None else (0, "")
    if connection.ends is not None and end is not None and end.is_missing_from(count, last_hash):
        raise JournalCorrupt(
            f"{_describe_loss(end, count)}; nothing was written. {_describe_remedy(connection.ends)}",
            execution_id=execution_id,
            sequence=count + 1,
        )


def delete_tree(execution_id: str, claimed: Sequence[str], connection: JournalConnection) -> bool:
    """Delete an execution and all executions below it, with all their records; return whether it existed.

    Args:
        execution_id: the execution.
        claimed: the ids that the caller has claimed.
        connection: a connection in a transaction.

    Raises:
        JournalConflict: it serves a call of another execution, an unfinished fork needs it, or another writer has started
            an execution below it meanwhile; nothing was written.
    """
    root = read_root(execution_id, connection)
    if not root:
        _forget_ends([execution_id], connection)  # its records may have been lost
        return False
    check_deletable(execution_id, root, _read_sources_of_forks(connection).get(root, ""))
    tree = read_tree(execution_id, connection)
    for started in set(tree).difference(claimed):
        raise claim_conflict(started)
    _delete_executions(tree, connection)
    return True


def delete_expired(trees: Iterable[Sequence[str]], before: int, connection: JournalConnection) -> int:
    """Delete those of these trees that `list_expired` would still return; return the number of executions."""
    needed = _read_sources_of_forks(connection)
    count = 0
    for tree in trees:
        if read_tree(tree[0], connection) == tree and _is_expired(tree, before, needed, connection):
            _delete_executions(tree, connection)
            count += len(tree)
    return count


def _delete_executions(execution_ids: Sequence[str], connection: JournalConnection) -> None:
    _forget_ends(execution_ids, connection)
    for table in ("executions", "records", "spills"):
        statement = f"DELETE FROM {table} WHERE execution_id = ?"  # noqa: S608  # constants only
        connection.executemany(statement, [(execution_id,) for execution_id in execution_ids])


def _forget_ends(execution_ids: Iterable[str], connection: JournalConnection) -> None:
    if connection.ends is not None:
        for execution_id in execution_ids:
            connection.ends.remove(execution_id)


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
