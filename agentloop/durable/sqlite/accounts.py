"""The accounts of a SQLite journal: the statements."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.contracts.can_keep_accounts import AccountChange, AccountUpdate
from agentloop.durable.sqlite.schema import JournalConnection
from agentloop.values.accounts import AccountKey, AccountState


def update_account(key: AccountKey, change: AccountChange, connection: JournalConnection) -> AccountUpdate:
    """Replace the state of an account by what the change returns.

    Args:
        key: the account.
        change: returns the next state.
        connection: a connection in a transaction that writes.
    """
    row = connection.execute("SELECT body FROM accounts WHERE id = ?", (key.text,)).fetchone()
    before = AccountState.parse("" if row is None else row[0])
    after = change(before)
    if after == before and row is not None:
        return AccountUpdate(before, after)
    connection.execute(
        "INSERT INTO accounts (id, body) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body",
        (key.text, after.to_text()),
    )
    return AccountUpdate(before, after)


def read_accounts(connection: JournalConnection) -> Sequence[tuple[AccountKey, AccountState]]:
    """Return all accounts, ordered by their keys."""
    # A file of an earlier version that cannot be written has no such table, and no accounts.
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'accounts'").fetchone():
        return ()
    rows = connection.execute("SELECT id, body FROM accounts ORDER BY id")
    return tuple([(AccountKey.parse(text), AccountState.parse(body)) for text, body in rows])
