"""Accounts in memory, for the executions of one process."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from agentloop.contracts.can_keep_accounts import AccountChange, AccountUpdate, CanKeepAccounts
from agentloop.values.accounts import AccountKey, AccountState


class MemoryAccounts(CanKeepAccounts):
    """Keeps accounts in memory, for all executions and threads that share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._states: dict[AccountKey, AccountState] = {}

    def __repr__(self) -> str:
        return f"MemoryAccounts({len(self._states)} accounts)"

    async def update_account(self, key: AccountKey, change: AccountChange) -> AccountUpdate:
        """Replace the state of an account by what the change returns."""
        with self._lock:
            before = self._states.get(key, AccountState())
            after = self._states[key] = change(before)
        return AccountUpdate(before, after)

    async def accounts(self) -> Sequence[tuple[AccountKey, AccountState]]:
        """Return all accounts, ordered by their keys."""
        with self._lock:
            return sorted(self._states.items(), key=lambda item: item[0].text)
