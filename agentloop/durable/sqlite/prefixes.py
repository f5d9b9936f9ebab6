"""The table of the beginnings that first records share; see `agentloop.durable.prefixes`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from agentloop.durable.prefixes import SharedBody, StoredPart, share_body
from agentloop.durable.sqlite.rows import decode_text, encode_text
from agentloop.errors import JournalCorrupt
from agentloop.values.records import ExecutionHead

_SELECT_PREVIOUS = (
    "SELECT executions.execution_id, prefix, body, cuts FROM executions JOIN records USING (execution_id) "
    "WHERE agent_id = ? AND number = ? AND sequence = 1"
)
_SELECT_PART = "SELECT id, parent, length, digest FROM prefixes WHERE id = ?"
_INSERT_PART = "INSERT INTO prefixes (parent, length, digest, data) VALUES (?, ?, ?, ?)"
# A part is newer than the one before it, so the recursion ends whatever the table holds.
_SELECT_CHAIN = (
    "WITH RECURSIVE chain (id, parent, length, data) AS ("
    "SELECT id, parent, length, data FROM prefixes WHERE id = ? UNION ALL "
    "SELECT prefixes.id, prefixes.parent, prefixes.length, prefixes.data FROM prefixes JOIN chain "
    "ON prefixes.id = chain.parent WHERE prefixes.id < chain.id) SELECT data FROM chain ORDER BY length"
)


def share_prefix(head: ExecutionHead, body: str, connection: sqlite3.Connection) -> tuple[int | None, str]:
    """Store what the body of an execution's first record shares with that of the agent's execution before it.

    Args:
        head: the summary of the execution.
        body: the body.
        connection: a connection in a transaction that writes.

    Returns:
        The id of the last part of the beginning, None when nothing is shared, and the rest of the body.
    """
    shared = find_shared(head, body, connection)
    if not shared.part:
        return shared.prefix, shared.rest
    row = (shared.prefix, shared.length, shared.digest, encode_text(shared.part))
    return connection.execute(_INSERT_PART, row).lastrowid, shared.rest


def find_shared(head: ExecutionHead, body: str, connection: sqlite3.Connection) -> SharedBody:
    """Return what the body of an execution's first record shares with that of the agent's execution before it."""
    previous = connection.execute(_SELECT_PREVIOUS, (head.agent_id, head.number - 1)).fetchone()
    if previous is None:
        return SharedBody(None, "", body, 0, b"")
    _, last, rest, cuts = previous
    try:
        # A rest with long strings cut out is not compared.
        return share_body(body, _read_parts(last, connection), None if cuts else decode_text(rest))
    except (ValueError, TypeError):
        return SharedBody(None, "", body, 0, b"")  # nothing is shared with a damaged record


def _read_parts(last: int | None, connection: sqlite3.Connection) -> Iterator[StoredPart]:
    """Yield the parts of a beginning, from the last one back."""
    each = last
    while each is not None:
        row = connection.execute(_SELECT_PART, (each,)).fetchone()
        if row is None:
            return
        part, each, length, digest = row
        yield StoredPart(part, length, digest)


def read_prefix(execution_id: str, connection: sqlite3.Connection) -> str:
    """Return the shared beginning of the body of an execution's first record; empty when it shares none.

    Raises:
        JournalCorrupt: a part of it is damaged.
    """
    try:
        row = connection.execute("SELECT prefix FROM executions WHERE execution_id = ?", (execution_id,)).fetchone()
    except sqlite3.OperationalError:
        return ""  # tables of the first version, in a file that can only be read
    if row is None or row[0] is None:
        return ""
    try:
        return "".join([decode_text(data) for (data,) in connection.execute(_SELECT_CHAIN, (row[0],))])
    except ValueError as error:
        message = f"record 1 of execution {execution_id} cannot be read: {error}"
        raise JournalCorrupt(message, execution_id=execution_id, sequence=1) from error


def delete_heads(execution_ids: Iterable[str], connection: sqlite3.Connection) -> None:
    """Delete the heads of executions, and the parts that no other execution needs.

    Args:
        execution_ids: the executions.
        connection: a connection in a transaction that writes.
    """
    for execution_id in execution_ids:
        row = connection.execute("SELECT prefix FROM executions WHERE execution_id = ?", (execution_id,)).fetchone()
        connection.execute("DELETE FROM executions WHERE execution_id = ?", (execution_id,))
        part = None if row is None else row[0]
        while part is not None and not _is_needed(part, connection):
            parent = connection.execute("SELECT parent FROM prefixes WHERE id = ?", (part,)).fetchone()
            connection.execute("DELETE FROM prefixes WHERE id = ?", (part,))
            part = None if parent is None else parent[0]


def _is_needed(part: int, connection: sqlite3.Connection) -> bool:
    query = (
        "SELECT EXISTS (SELECT 1 FROM executions WHERE prefix = ?) OR EXISTS (SELECT 1 FROM prefixes WHERE parent = ?)"
    )
    return bool(connection.execute(query, (part, part)).fetchone()[0])
