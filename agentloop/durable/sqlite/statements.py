"""The statements of a SQLite journal: reading, writing, and what their errors mean."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter

from attrs import frozen

from agentloop.durable.bodies import read_command
from agentloop.durable.chain import (
    EMPTY_CHAIN,
    JournalFinding,
    check_follows,
    claim_conflict,
    number_conflict,
    superseded,
)
from agentloop.durable.spills import Deletion, collect_spills, read_reference, split_body
from agentloop.durable.sqlite.files import End, EndFile, digest_of_id, is_full
from agentloop.durable.sqlite.prefixes import delete_heads, find_shared, read_prefix, share_prefix
from agentloop.durable.sqlite.rows import (
    HEAD_COLUMNS,
    RECORD_COLUMNS,
    Row,
    encode_text,
    head_row,
    read_head_row,
    read_id,
    read_record_rows,
    record_row,
    seal_of,
)
from agentloop.durable.sqlite.schema import (
    PRIMARY_CODE_MASK,
    JournalConnection,
    check_file_in_place,
    error_code,
    is_busy,
)
from agentloop.durable.sqlite.worker import Jobs
from agentloop.durable.trees import ExecutionTree, check_deletable, root_of, sources_of_forks
from agentloop.errors import AgentLoopError, JournalBusy, JournalCorrupt, JournalError, JournalFull
from agentloop.values.commands import ExecutionCommand
from agentloop.values.records import ExecutionHead, JournalRecord, callers_of
from agentloop.values.serialization import to_json
from agentloop.values.steps import ExecutionStatus

_ENDED = frozenset(status.value for status in ExecutionStatus if status.is_terminal)
_TERMINAL = ", ".join([f"'{status}'" for status in sorted(_ENDED)])
_UNFINISHED = ", ".join([f"'{status.value}'" for status in ExecutionStatus if not status.is_terminal])

_MAX_SEQUENCE = 2**63 - 1
"""The largest number that SQLite stores."""

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


def read_records(
    execution_id: str, after: int, objects: Mapping[str, str], connection: JournalConnection
) -> Sequence[JournalRecord]:
    """Return the records of an execution after a sequence number, in order.

    Args:
        execution_id: the execution.
        after: the sequence number.
        objects: the texts of objects that were fetched, by digest.
        connection: a connection in a transaction.

    Raises:
        ObjectsNeeded: the texts of other objects are needed.
    """
    rows = connection.execute(
        # With the row before the first one, which has the hash that the first record follows.
        f"SELECT {RECORD_COLUMNS} FROM records WHERE execution_id = ? AND sequence >= ? ORDER BY sequence",  # noqa: S608  # constants only
        (execution_id, min(after, _MAX_SEQUENCE)),
    ).fetchall()
    # The parts of that row are not needed.
    rows = [(*row[:5], "", "", *row[7:]) if row[1] == after else row for row in rows]
    cuts = [str(row[6]) for row in rows]
    spills = collect_spills(_read_spills(execution_id, connection), cuts, objects) if any(cuts) else {}
    prefix = read_prefix(execution_id, connection) if after < 1 else ""
    return tuple([record for record in read_record_rows(rows, spills, prefix) if record.sequence > after])


def _read_spills(execution_id: str, connection: JournalConnection) -> list[tuple[str, object]]:
    return connection.execute("SELECT digest, data FROM spills WHERE execution_id = ?", (execution_id,)).fetchall()


def find_new_spills(
    head: ExecutionHead, records: Sequence[JournalRecord], max_length: int, connection: JournalConnection
) -> Mapping[str, str]:
    """Return the parts of records that an append will spill, by digest, without those that are stored.

    It may differ from what the append finds when other executions of the agent are deleted meanwhile.
    """
    spills: dict[str, str] = {}
    for record in records:
        text = find_shared(head, record.body, connection).rest if record.sequence == 1 else record.body
        spills.update(split_body(text, max_length).spills)
    rows = connection.execute("SELECT digest FROM spills WHERE execution_id = ?", (head.execution_id,))
    return {digest: spills[digest] for digest in spills.keys() - {digest for (digest,) in rows}}


def read_head(execution_id: str, connection: JournalConnection) -> ExecutionHead | None:
    """Return the summary of an execution; None when there is no execution of this id."""
    row = connection.execute(
        f"SELECT {HEAD_COLUMNS} FROM executions WHERE execution_id = ?",  # noqa: S608  # constants only
        (execution_id,),
    ).fetchone()
    return None if row is None else read_head_row(row)


def read_token(execution_id: str, connection: JournalConnection) -> int:
    """Return the largest token of a claim that has appended to an execution; 0 when there is no execution of this id.

    Raises:
        JournalCorrupt: the row holds no token.
    """
    row = connection.execute("SELECT token FROM executions WHERE execution_id = ?", (execution_id,)).fetchone()
    if row is not None and not isinstance(row[0], int):
        raise JournalCorrupt("the token of an execution is no number", execution_id=execution_id)
    return 0 if row is None else row[0]


@frozen(kw_only=True)
class HeadFilter:
    """Which executions to list, newest first.

    Attributes:
        agent_id: only executions of this agent.
        statuses: only executions with one of these statuses; None for all.
        prefix: only executions whose ids start with this text.
        after: only executions behind this position; None for all.
        limit: the maximum number of results.
        is_claimed: returns whether a live writer has claimed an execution, to leave those out; None to include them.
    """

    agent_id: str | None = None
    statuses: frozenset[ExecutionStatus] | None = None
    prefix: str = ""
    after: tuple[int, int, str] | None = None
    limit: int | None = None
    is_claimed: Callable[[str], bool] | None = None


def list_heads(selection: HeadFilter, connection: JournalConnection) -> Sequence[ExecutionHead]:
    """Return the summaries of executions, newest first."""
    statuses: Iterable[ExecutionStatus | None] = (None,) if selection.statuses is None else sorted(selection.statuses)
    # One ordered query for each status, so that each follows its index and reads no more rows than are needed.
    queries = [_select_heads(selection, status, connection) for status in statuses]
    rows = queries[0] if len(queries) == 1 else merge(*queries, key=_position_of, reverse=True)
    is_claimed = selection.is_claimed
    heads = (read_head_row(row) for row in rows if is_claimed is None or not is_claimed(row[0]))
    # `islice` refuses other numbers.
    return tuple(islice(heads, None if selection.limit is None else max(0, min(selection.limit, sys.maxsize))))


def _select_heads(
    selection: HeadFilter, status: ExecutionStatus | None, connection: JournalConnection
) -> Iterator[Row]:
    conditions, values = list[str](), list[object]()
    for name, value in (("agent_id", selection.agent_id), ("status", status)):
        if value is not None:
            conditions.append(f"{name} = ?")
            values.append(str(value))
    if selection.after is not None:
        conditions.append("(started_at, number, execution_id) < (?, ?, ?)")
        values += selection.after
    if selection.prefix:
        conditions.append("execution_id >= ? AND execution_id < ?")
        values += [selection.prefix, _end_of_prefix(selection.prefix)]
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    # The unary plus keeps SQLite from following the order of the age through all executions instead of the ids.
    started_at = "+started_at" if selection.prefix else "started_at"
    # Rows are read one after the other; with a limit and a filter, their number is not known before.
    return connection.execute(
        f"SELECT {HEAD_COLUMNS} FROM executions {where} ORDER BY {started_at} DESC, number DESC, execution_id DESC",  # noqa: S608  # constants only
        values,
    )


def _end_of_prefix(prefix: str) -> str | bytes:
    """Return the first value behind all texts that start with a prefix, in the order of SQLite."""
    shortened = prefix.rstrip(chr(sys.maxunicode))
    if not shortened:
        return b""  # any blob is behind all texts
    following = ord(shortened[-1]) + 1
    return shortened[:-1] + chr(_AFTER_SURROGATES if following == _FIRST_SURROGATE else following)


_FIRST_SURROGATE, _AFTER_SURROGATES = 0xD800, 0xE000
"""Characters that UTF-8 cannot encode, and the first one behind them."""


def _position_of(row: Row) -> tuple[object, ...]:
    return row[10], row[3], row[0]


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
    trees = [read_tree(read_id(execution_id), connection) for (execution_id,) in rows]
    needed = _read_sources_of_forks(connection)
    return [tree for tree in trees if tree and _is_expired(tree, before, needed, connection)]


def read_expired_trees(before: int, connection: JournalConnection) -> Sequence[ExecutionTree]:
    """Return the trees that `list_expired` names."""

    def read(execution_id: str) -> ExecutionHead:
        head = read_head(execution_id, connection)
        assert head is not None  # noqa: S101  # read in the same transaction
        return head

    trees = list_expired(before, connection)
    return [ExecutionTree(root=read(root), below=[read(each) for each in below]) for root, *below in trees]


def read_tree(execution_id: str, connection: JournalConnection) -> Sequence[str]:
    """Return the ids of an execution and of all executions below it, ordered by id; empty when it is not a recorded root."""
    if read_root(execution_id, connection) != execution_id:
        return ()
    # The characters after the slash: ids below an execution start with its own id and a slash.
    rows = connection.execute(
        "SELECT execution_id FROM executions WHERE execution_id > ? AND execution_id < ? ORDER BY execution_id",
        (f"{execution_id}/", f"{execution_id}0"),
    )
    return (execution_id, *[below for (below,) in rows if execution_id in callers_of(read_id(below))])


def read_root(execution_id: str, connection: JournalConnection) -> str:
    """Return the id of the root of an execution's tree; empty when the execution is not recorded."""

    def is_recorded(each: str) -> bool:
        return connection.execute("SELECT 1 FROM executions WHERE execution_id = ?", (each,)).fetchone() is not None

    return root_of(execution_id, is_recorded) if is_recorded(execution_id) else ""


def _read_sources_of_forks(connection: JournalConnection) -> Mapping[str, str]:
    """Return the ids of the executions whose records unfinished forks need, each with the id of such a fork."""
    # The unary plus makes SQLite follow the index of the few forks, not that of all unfinished executions.
    rows = connection.execute(
        f"SELECT execution_id, forked_from FROM executions WHERE +status IN ({_UNFINISHED}) AND forked_from <> ''"  # noqa: S608  # constants only
    ).fetchall()

    def source_of(execution_id: str) -> str:
        row = connection.execute(
            "SELECT forked_from FROM executions WHERE execution_id = ?", (execution_id,)
        ).fetchone()
        return "" if row is None else str(row[0])

    return sources_of_forks([(read_id(fork), read_id(source)) for fork, source in rows], source_of)


def _is_expired(tree: Sequence[str], before: int, needed: Mapping[str, str], connection: JournalConnection) -> bool:
    """Return whether a tree has ended, was last updated before a time, and is needed by no unfinished fork."""
    query = "SELECT status, updated_at FROM executions WHERE execution_id = ?"
    rows = [connection.execute(query, (execution_id,)).fetchone() for execution_id in tree]
    return (
        tree[0] not in needed
        and rows[0][0] in _ENDED
        and all(isinstance(updated_at, int) and updated_at < before for _, updated_at in rows)
    )


# --- changes and commands ---------------------------------------------------------------------------------------------


def read_version(connection: JournalConnection) -> tuple[int, int]:
    """Return a value that differs after each commit of another connection; another connection has other values."""
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return connection.number, version


def read_mark(execution_id: str, connection: JournalConnection) -> object:
    """Return a value that differs after each change of an execution; that of any execution when the id is empty."""
    if not execution_id:
        return read_version(connection)
    head = connection.execute(
        "SELECT record_count, last_hash FROM executions WHERE execution_id = ?", (execution_id,)
    ).fetchone()
    return head, connection.execute(_SELECT_LAST_COMMAND, (execution_id,)).fetchone()


def read_commands(execution_ids: Iterable[str], connection: JournalConnection) -> Sequence[ExecutionCommand]:
    """Return the commands for executions that are not finished, in the order in which they were posted."""
    query = "SELECT sequence, body, execution_id FROM commands WHERE execution_id = ? AND body <> ''"
    rows = [row for execution_id in execution_ids for row in connection.execute(query, (execution_id,))]
    return tuple([read_command(body, each) for _, body, each in sorted(rows, key=itemgetter(0))])


def post_command(command: ExecutionCommand, connection: JournalConnection) -> None:
    """Store a command, unless one of this id was posted before."""
    body = encode_text(to_json(command).decode())
    connection.execute(_INSERT_COMMAND, (command.id, command.execution_id, body))


def finish_commands(command_ids: Iterable[str], connection: JournalConnection) -> None:
    """Mark commands as finished, and remember their ids."""
    connection.executemany("UPDATE commands SET body = '' WHERE id = ?", [(each,) for each in command_ids])


def forget_commands(command_ids: Iterable[str], connection: JournalConnection) -> None:
    """Delete commands, whose ids nobody posts again."""
    connection.executemany("DELETE FROM commands WHERE id = ?", [(each,) for each in command_ids])


def read_unfinished(prefix: str, connection: JournalConnection) -> Sequence[ExecutionCommand]:
    """Return the commands that are not finished, for all ids that start with a text, in the order in which they were posted."""
    query = (
        "SELECT sequence, body, execution_id FROM commands WHERE execution_id >= ? AND execution_id < ? AND body <> ''"
    )
    rows = connection.execute(query, (prefix, _end_of_prefix(prefix)))
    return tuple([read_command(body, each) for _, body, each in sorted(rows, key=itemgetter(0))])


_SELECT_LAST_COMMAND = "SELECT max(sequence) FROM commands WHERE execution_id = ?"
_INSERT_COMMAND = (
    "INSERT INTO commands (id, execution_id, sequence, body) "
    "VALUES (?, ?, (SELECT coalesce(max(sequence), 0) + 1 FROM commands), ?) ON CONFLICT (id) DO NOTHING"
)

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

_HEAD_NAMES = [*HEAD_COLUMNS.split(", "), "seal", "token"]
# Not `INSERT OR REPLACE`, which would also write the pages of all indexes.
_INSERT_HEAD = (
    f"INSERT INTO executions ({', '.join(_HEAD_NAMES)}) VALUES ({', '.join('?' * len(_HEAD_NAMES))}) "  # noqa: S608  # constants only
    f"ON CONFLICT (execution_id) DO UPDATE SET {', '.join([f'{name} = excluded.{name}' for name in _HEAD_NAMES[1:]])}"
)
# The usual append: to an execution whose head differs from the stored one in these columns alone. The conditions are the checks of
# `Append`, in the same statement; as no index has one of the columns, none is written.
_GROWING = ("step_count", "record_count", "last_hash", "updated_at", "seal", "token")
_CONSTANT = tuple([name for name in _HEAD_NAMES if name not in {*_GROWING, "agent_name"}])
_UPDATE_HEAD = (
    f"UPDATE executions SET {', '.join([f'{name} = ?' for name in _GROWING])} "  # noqa: S608  # constants only
    f"WHERE {' AND '.join([f'{name} IS ?' for name in _CONSTANT])} AND record_count = ? AND last_hash = ? AND token <= ?"
)
_get_growing, _get_constant = (itemgetter(*map(_HEAD_NAMES.index, names)) for names in (_GROWING, _CONSTANT))
_INSERT_RECORD = f"INSERT INTO records ({RECORD_COLUMNS}) VALUES ({', '.join('?' * 9)})"  # noqa: S608  # constants only
_INSERT_SPILL = "INSERT OR IGNORE INTO spills (execution_id, digest, data) VALUES (?, ?, ?)"
_SET_PREFIX = "UPDATE executions SET prefix = ? WHERE execution_id = ?"
_SELECT_END = "SELECT record_count, last_hash, agent_id, number, token FROM executions WHERE execution_id = ?"
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
        token: the token of the claim.
        references: the data of the spills that are stored as objects, by digest.
    """

    __slots__ = (
        "_head",
        "_head_row",
        "_max_length",
        "_problem",
        "_record_rows",
        "_records",
        "_references",
        "_spill_rows",
        "_token",
    )

    def __init__(
        self,
        head: ExecutionHead,
        records: Sequence[JournalRecord],
        max_length: int,
        token: int,
        references: Mapping[str, bytes],
    ) -> None:
        self._head, self._records, self._max_length, self._token = head, records, max_length, token
        self._references = references
        self._head_row: Row = ()
        self._record_rows: list[Row] = []
        self._spill_rows: list[Row] = []
        self._problem: Exception | None = None

    def prepare(self) -> None:
        """Build the rows; called before the file is locked, which keeps the lock short. Idempotent."""
        if self._head_row or self._problem is not None:
            return
        try:
            self._head_row = (*head_row(self._head), self._token)
            for record in self._records:
                # The first record of an execution is built in the transaction, which knows what it shares.
                if record.sequence > 1:
                    row, spills = self._rows_of(record, record.body)
                    self._record_rows.append(row)
                    self._spill_rows += spills
        except Exception as error:  # noqa: BLE001  # the action raises it
            self._problem = error

    def __call__(self, connection: JournalConnection) -> None:
        """Write the rows.

        Raises:
            ClaimLost: a later claim has appended to the execution; nothing was written.
            JournalConflict: they do not follow the last stored record; nothing was written.
        """
        if self._problem is not None:
            raise self._problem
        if not self._update_head(connection):
            self._check(connection)
            if self._records[0].sequence == 1:
                self._insert_first(self._records[0], connection)
            else:
                connection.execute(_INSERT_HEAD, self._head_row)
        connection.executemany(_INSERT_RECORD, self._record_rows)
        if self._spill_rows:
            connection.executemany(_INSERT_SPILL, self._spill_rows)

    def _update_head(self, connection: JournalConnection) -> bool:
        """Update the stored head if all checks permit it and only few columns change; return whether it was updated."""
        record, row, ends = self._records[0], self._head_row, connection.ends
        count, last_hash = record.sequence - 1, record.previous_hash
        if count == 0 or (ends is not None and not ends.has(record.execution_id, count, last_hash)):
            return False
        values = (*_get_growing(row), *_get_constant(row), count, last_hash, self._token)
        return connection.execute(_UPDATE_HEAD, values).rowcount == 1

    def _insert_first(self, record: JournalRecord, connection: JournalConnection) -> None:
        """Insert the first record of an execution, without what it shares with the execution before it, and the head."""
        prefix, rest = share_prefix(self._head, record.body, connection)
        row, spills = self._rows_of(record, rest)
        connection.execute(_INSERT_HEAD, self._head_row)
        if prefix is not None:
            connection.execute(_SET_PREFIX, (prefix, self._head.execution_id))
        connection.execute(_INSERT_RECORD, row)
        connection.executemany(_INSERT_SPILL, spills)

    def _rows_of(self, record: JournalRecord, text: str) -> tuple[Row, list[Row]]:
        """Return the row of a record and the rows of its spills; `text` is its body without what it shares."""
        row, spills = record_row(record, text, self._max_length)
        references = self._references
        return row, [
            (record.execution_id, digest, references.get(digest) or encode_text(data))
            for digest, data in spills.items()
        ]

    def mark_end(self, connection: JournalConnection) -> None:
        """Note the end of the execution, after the commit of its records."""
        if connection.ends is not None:
            connection.ends.write(self._head.execution_id, self._head.record_count, self._head.last_hash)

    def _check(self, connection: JournalConnection) -> None:
        head = self._head
        stored = connection.execute(_SELECT_END, (head.execution_id,)).fetchone()
        if stored and stored[4] > self._token:
            raise superseded(head.execution_id, self._token, stored[4])
        _check_end(head.execution_id, stored, connection)
        check_follows(self._records[0], *(stored[:2] if stored else EMPTY_CHAIN))
        number = (head.agent_id, head.number)
        # A stored head with this number has passed the check before.
        if (stored is None or stored[2:4] != number) and connection.execute(_SELECT_NUMBER, number).fetchone():
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


def delete_tree(execution_id: str, claimed: Sequence[str], connection: JournalConnection) -> Deletion:
    """Delete an execution and all executions below it, with all their records; return what was deleted.

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
        return Deletion()
    check_deletable(execution_id, root, _read_sources_of_forks(connection).get(root, ""))
    tree = read_tree(execution_id, connection)
    for started in set(tree).difference(claimed):
        raise claim_conflict(started)
    return Deletion(tree, _delete_executions(tree, connection))


def delete_expired(trees: Iterable[Sequence[str]], before: int, connection: JournalConnection) -> Deletion:
    """Delete those of these trees that `list_expired` would still return; return what was deleted."""
    needed = _read_sources_of_forks(connection)
    deleted, keys = list[str](), list[str]()
    for tree in trees:
        if read_tree(tree[0], connection) == tree and _is_expired(tree, before, needed, connection):
            keys += _delete_executions(tree, connection)
            deleted += tree
    return Deletion(deleted, keys)


def _delete_executions(execution_ids: Sequence[str], connection: JournalConnection) -> Sequence[str]:
    """Delete executions; return the keys of the objects to which their records referred."""
    references = [row for each in execution_ids for row in connection.execute(_SELECT_REFERENCES, (each,))]
    _forget_ends(execution_ids, connection)
    delete_heads(execution_ids, connection)
    for table in ("records", "spills", "commands"):
        statement = f"DELETE FROM {table} WHERE execution_id = ?"  # noqa: S608  # constants only
        connection.executemany(statement, [(execution_id,) for execution_id in execution_ids])
    return [key for (data,) in references if (key := read_reference(data))]


_SELECT_REFERENCES = "SELECT data FROM spills WHERE execution_id = ? AND data >= x'ff'"
"""Texts are less than any bytes, and only those of references begin with this one."""


def _forget_ends(execution_ids: Iterable[str], connection: JournalConnection) -> None:
    if connection.ends is not None:
        for execution_id in execution_ids:
            connection.ends.remove(execution_id)


# --- errors -----------------------------------------------------------------------------------------------------------

_MEANINGS: Mapping[int, tuple[Callable[[str], JournalError], str]] = {
    sqlite3.SQLITE_BUSY: (JournalBusy, "another process held the lock for longer than busy_timeout"),
    sqlite3.SQLITE_BUSY_SNAPSHOT: (JournalBusy, "other processes changed the file for longer than busy_timeout"),
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
    if isinstance(error, AgentLoopError) or not isinstance(error, sqlite3.Error | OSError | UnicodeDecodeError):
        return error
    code = sqlite3.SQLITE_FULL if is_full(error) else error_code(error)
    kind, meaning = (
        _MEANINGS.get(code) or _MEANINGS.get(code & PRIMARY_CODE_MASK) or (JournalError, "it cannot be used")
    )
    raised = kind(f"the journal {path}: {meaning} ({error})")
    raised.__cause__ = error
    return raised
