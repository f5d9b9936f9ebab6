"""The grants of a journal in PostgreSQL: the statements."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from agentloop.contracts.can_keep_grants import GrantChange
from agentloop.durable.grant_rows import as_column, in_order, read_grant, write_grant
from agentloop.durable.postgres.connections import DatabaseConnection
from agentloop.durable.postgres.statements import RecordAppend
from agentloop.values.grants import GrantState, GrantUse


@define(eq=False)
class RecordAppendUsing(RecordAppend):
    """The action that appends records to a chain and counts uses of grants, in one transaction.

    Attributes:
        uses: the uses.
    """

    uses: Sequence[GrantUse] = field(kw_only=True)

    async def __call__(self, connection: DatabaseConnection) -> None:
        """Append the records, and count the uses.

        Raises:
            ClaimLost: a later claim was made; nothing was written.
            JournalConflict: the records do not follow the last stored one; nothing was written.
            StatementFailed: a statement failed.
        """
        async with connection.transaction():
            await super().__call__(connection)
            # In one order, so that two transactions do not wait for each other.
            for use in sorted(self.uses, key=lambda use: (use.grant_id, use.key)):
                await _change(connection, self.statements.schema, use.grant_id, use.count_in)


async def add_grant(connection: DatabaseConnection, schema: str, state: GrantState) -> None:
    """Store a grant, unless there is one of this id.

    Args:
        connection: the connection.
        schema: the quoted name of the schema.
        state: the grant.
    """
    row = {"id": state.id, "owner": as_column(state.owner), "tool": as_column(state.tool), "body": write_grant(state)}
    await connection.rows(
        f"INSERT INTO {schema}.grants (id, owner, tool, body) VALUES (%(id)s, %(owner)s, %(tool)s, %(body)s) "  # noqa: S608  # constants only
        "ON CONFLICT (id) DO NOTHING",
        row,
    )


async def update_grant(
    connection: DatabaseConnection, schema: str, grant_id: str, change: GrantChange
) -> GrantState | None:
    """Replace the state of a grant by what the change returns, and return it.

    Args:
        connection: the connection.
        schema: the quoted name of the schema.
        grant_id: the grant.
        change: returns the next state.
    """
    async with connection.transaction():
        return await _change(connection, schema, grant_id, change)


async def _change(connection: DatabaseConnection, schema: str, grant_id: str, change: GrantChange) -> GrantState | None:
    """Change a grant inside of a transaction."""
    rows = await connection.rows(
        f"SELECT body FROM {schema}.grants WHERE id = %(id)s FOR UPDATE",  # noqa: S608  # constants only
        {"id": grant_id},
    )
    if not rows:
        return None
    before = read_grant(rows[0][0])
    after = change(before)
    if after != before:
        await connection.rows(
            f"UPDATE {schema}.grants SET body = %(body)s WHERE id = %(id)s",  # noqa: S608  # constants only
            {"id": grant_id, "body": write_grant(after)},
        )
    return after


async def read_grants(
    connection: DatabaseConnection, schema: str, owner: str | None, tool: str | None
) -> Sequence[GrantState]:
    """Return the grants of an owner, or of all, for a tool, or for all, in the order in which they were given.

    Args:
        connection: the connection.
        schema: the quoted name of the schema.
        owner: the owner; None for all.
        tool: the name of the tool; None for all.
    """
    wanted = {"owner": owner, "tool": tool}
    rows = await connection.rows(
        f"SELECT body FROM {schema}.grants WHERE owner = coalesce(%(owner)s::text, owner) "  # noqa: S608  # constants only
        "AND tool = coalesce(%(tool)s::text, tool)",
        {name: None if text is None else as_column(text) for name, text in wanted.items()},
    )
    return in_order([read_grant(body) for (body,) in rows])
