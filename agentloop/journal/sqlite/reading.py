"""What is read, beside those who write."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from agentloop.errors import JournalCorrupt
from agentloop.journal.sqlite.rows import HEAD_COLUMNS, RECORD_COLUMNS, head_in, record_in, seal_of, stored
from agentloop.journal.sqlite.spilling import digest_of
from agentloop.journal.sqlite.worker import Jobs
from agentloop.journal.verification import JournalFinding
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.journal_record import ExecutionHead, JournalRecord

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
