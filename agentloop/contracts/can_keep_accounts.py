"""The contract of stores for accounts that live longer than an execution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

from attrs import frozen

from agentloop.values.accounts import AccountKey, AccountState
from agentloop.values.value import Value

AccountChange: TypeAlias = Callable[[AccountState], AccountState]
"""A pure function from the stored state of an account, or a new one, to the next. Calling it again changes nothing more."""


@frozen(eq=False, repr=False)
class AccountUpdate(Value):
    """A change of an account that took effect.

    Attributes:
        before: the state before.
        after: the state after.
    """

    before: AccountState
    after: AccountState


class CanKeepAccounts(ABC):
    """Keeps accounts of money and tokens, for one process or for many. The journals of the package do.

    An implementer keeps the laws 9 and 36, which `AccountKit` checks:

    - Updates of one account are serialized: each change receives what the previous one returned.
    - What an update returned is there for every later update and list, of any process that uses the store.
    - An account is never deleted by itself.
    """

    @abstractmethod
    async def update_account(self, key: AccountKey, change: AccountChange) -> AccountUpdate:
        """Replace the state of an account by what the change returns; a new account starts with `AccountState()`.

        A store that other processes write to may call the change more than once.

        Args:
            key: the account.
            change: returns the next state.

        Raises:
            JournalError: the store cannot be used; it is then unknown whether the change took effect.
        """

    @abstractmethod
    async def accounts(self) -> Sequence[tuple[AccountKey, AccountState]]:
        """Return all accounts, ordered by their keys.

        Raises:
            JournalError: the store cannot be read.
        """
