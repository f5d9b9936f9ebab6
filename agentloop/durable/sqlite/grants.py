"""The grants of a SQLite journal: the statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentloop.contracts.can_keep_grants import GrantChange
from agentloop.durable.grant_rows import as_column, in_order, read_grant, write_grant
from agentloop.durable.sqlite.schema import JournalConnection
from agentloop.durable.sqlite.statements import Append
from agentloop.values.grants import GrantState, GrantUse
from agentloop.values.records import ExecutionHead, JournalRecord


class AppendUsing(Append):
    """The action that appends records to a chain and counts uses of grants.

    Args:
        head: the summary of the execution after the records.
        records: one or more records of the execution, chained to each other.
        max_length: the maximum length of a body in its row, in characters.
        token: the token of the claim.
        references: the data of the spills that are stored as objects, by digest.
        uses: the uses.
    """

    __slots__ = ("_uses",)

    def __init__(
        self,
        head: ExecutionHead,
        records: Sequence[JournalRecord],
        max_length: int,
        token: int,
        references: Mapping[str, bytes],
        *,
        uses: Sequence[GrantUse],
    ) -> None:
        super().__init__(head, records, max_length, token, references)
        self._uses = uses

    def __call__(self, connection: JournalConnection) -> None:
        """Write the rows, and count the uses.

        Raises:
            ClaimLost: a later claim has appended to the execution; nothing was written.
            JournalConflict: they do not follow the last stored record; nothing was written.
        """
        super().__call__(connection)
        for use in self._uses:
            update_grant(use.grant_id, use.count_in, connection)


def add_grant(state: GrantState, connection: JournalConnection) -> None:
    """Store a grant, unless there is one of this id."""
    row = (state.id, as_column(state.owner), as_column(state.tool), write_grant(state))
    connection.execute("INSERT INTO grants (id, owner, tool, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", row)


def update_grant(grant_id: str, change: GrantChange, connection: JournalConnection) -> GrantState | None:
    """Replace the state of a grant by what the change returns, and return it.

    Args:
        grant_id: the grant.
        change: returns the next state.
        connection: a connection in a transaction that writes.
    """
    row = connection.execute("SELECT body FROM grants WHERE id = ?", (grant_id,)).fetchone()
    if row is None:
        return None
    before = read_grant(row[0])
    after = change(before)
    if after != before:
        connection.execute("UPDATE grants SET body = ? WHERE id = ?", (write_grant(after), grant_id))
    return after


def read_grants(owner: str | None, tool: str | None, connection: JournalConnection) -> Sequence[GrantState]:
    """Return the grants of an owner, or of all, for a tool, or for all, in the order in which they were given."""
    # A file of an earlier version that cannot be written has no such table, and no grants.
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'grants'").fetchone():
        return ()
    wanted = [None if text is None else as_column(text) for text in (owner, tool)]
    rows = connection.execute(
        "SELECT body FROM grants WHERE owner = coalesce(?1, owner) AND tool = coalesce(?2, tool)", wanted
    )
    return in_order([read_grant(body) for (body,) in rows])
