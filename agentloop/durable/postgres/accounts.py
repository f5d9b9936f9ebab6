"""The accounts of a journal in PostgreSQL: the statements."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.contracts.can_keep_accounts import AccountChange, AccountUpdate
from agentloop.durable.postgres.connections import DatabaseConnection
from agentloop.values.accounts import AccountKey, AccountState


async def update_account(
    connection: DatabaseConnection, schema: str, key: AccountKey, change: AccountChange
) -> AccountUpdate:
    """Replace the state of an account by what the change returns.

    Args:
        connection: the connection.
        schema: the quoted name of the schema.
        key: the account.
        change: returns the next state.
    """
    values: dict[str, object] = {"id": key.text}
    async with connection.transaction():
        # The row is there before it is locked, so that two processes with a new account wait for each other, too.
        await connection.rows(
            f"INSERT INTO {schema}.accounts (id, body) VALUES (%(id)s, '') ON CONFLICT (id) DO NOTHING",  # noqa: S608  # constants only
            values,
        )
        rows = await connection.rows(
            f"SELECT body FROM {schema}.accounts WHERE id = %(id)s FOR UPDATE",  # noqa: S608  # constants only
            values,
        )
        before = AccountState.parse(rows[0][0])
        after = change(before)
        if after != before:
            await connection.rows(
                f"UPDATE {schema}.accounts SET body = %(body)s WHERE id = %(id)s",  # noqa: S608  # constants only
                {**values, "body": after.to_text()},
            )
    return AccountUpdate(before, after)


async def read_accounts(connection: DatabaseConnection, schema: str) -> Sequence[tuple[AccountKey, AccountState]]:
    """Return all accounts, ordered by their keys.

    Args:
        connection: the connection.
        schema: the quoted name of the schema.
    """
    rows = await connection.rows(f"SELECT id, body FROM {schema}.accounts ORDER BY id")  # noqa: S608  # constants only
    return tuple([(AccountKey.parse(text), AccountState.parse(body)) for text, body in rows])
