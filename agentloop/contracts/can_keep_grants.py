"""The contracts of grants: a store that keeps them beside the records of executions, and a log whose calls use them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

from agentloop.contracts.can_journal import CanJournal, Claim
from agentloop.values.grants import GrantState, GrantUse
from agentloop.values.records import ExecutionHead, JournalRecord

GrantChange: TypeAlias = Callable[[GrantState], GrantState]
"""A pure function from the stored state of a grant to the next. Calling it again with its result changes nothing more."""


class CanKeepGrants(CanJournal):
    """A journal that keeps grants, for one process or for many. The journals of the package do.

    An implementer keeps the laws 9, 36 and 43, which `GrantKit` checks:

    - Updates of one grant are serialized: each change receives what the previous one returned.
    - What an update returned is there for every later update and list, of any process that uses the journal.
    - The uses of `append_using` are counted if and only if the records are stored.
    - A grant is never deleted.
    """

    @abstractmethod
    async def add_grant(self, state: GrantState) -> None:
        """Store a grant; it is durable when this returns. Nothing happens if there is one of this id.

        Raises:
            JournalError: the journal cannot be written; it is then unknown whether the grant is stored.
        """

    @abstractmethod
    async def update_grant(self, grant_id: str, change: GrantChange) -> GrantState | None:
        """Replace the state of a grant by what the change returns, and return it; None if there is no such grant.

        A journal that other processes write to may call the change more than once.

        Args:
            grant_id: the grant.
            change: returns the next state.

        Raises:
            JournalError: the journal cannot be written; it is then unknown whether the change took effect.
        """

    @abstractmethod
    async def grants(self, *, owner: str | None = None, tool: str | None = None) -> Sequence[GrantState]:
        """Return the grants, also those that no call can use any more, ordered by the time at which they were given.

        Args:
            owner: only those of this owner.
            tool: only those for the tool of this name.

        Raises:
            JournalError: the journal cannot be read.
        """

    @abstractmethod
    async def append_using(
        self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim, uses: Sequence[GrantUse]
    ) -> None:
        """Append records, as `append` does, and count uses of grants in the same transaction: both happen, or neither.

        A use that is no longer held is not counted again: an append may be repeated whose answer was lost.

        Args:
            head: the summary of the execution after these records.
            records: one or more records of the execution, chained to each other.
            claim: the claim on the execution, made by this journal.
            uses: the calls that begin with these records, which `GrantState.hold` has let through.

        Raises:
            ClaimLost: as for `append`.
            JournalConflict: as for `append`.
            JournalError: as for `append`; nothing is stored, and no use is counted.
        """


class CanUseGrants(ABC):
    """A log that counts the use of a grant in the append that stores the intent of its call."""

    @abstractmethod
    def use_grant(self, use: GrantUse) -> None:
        """Let the intent of an announced call name the grant, and count the use when it is stored.

        Args:
            use: the call, which `GrantState.hold` has let through.
        """

    @abstractmethod
    def has_used_grant(self, key: str) -> bool:
        """Return whether the intent of a call is stored, and its use is counted.

        Args:
            key: the idempotency key of the call.
        """


class CanReplayGrants(ABC):
    """A log that knows which calls of a recorded execution ran by a grant; a replay counts no use."""

    @abstractmethod
    def was_granted(self, key: str) -> bool:
        """Return whether a recorded call was let through by a grant, as far as the record tells.

        Args:
            key: the idempotency key of the call.
        """
