"""The contract of journals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.steps import ExecutionStatus


class Claim(ABC):
    """The exclusive right to append to one execution; the operating system ends it when the process dies."""

    @abstractmethod
    async def release(self) -> None:
        """Release the claim, so that another writer can claim the execution. Idempotent."""


class CanJournal(ABC):
    """Stores the records of executions, each execution as an append-only chain.

    An implementation keeps these laws, which `JournalKit` of `agentloop.testing` checks. Each has the number of the law of the
    library that depends on it:

    - When `append` has returned, its records can be read, also after the process was killed. When it has not returned, either
      all of its records are stored or none (law 14).
    - Records are read in the order in which they were appended, unchanged and without gaps (law 15).
    - An append that does not extend the last record is refused and changes nothing; of two concurrent ones, one succeeds
      (law 16).
    - An execution that a live writer has claimed cannot be claimed by another one, nor deleted (law 16).
    - The executions of agents that serve the calls of an execution are deleted with it, all or none, and never without it; an
      execution that an unfinished fork needs is not deleted (law 15). `agentloop.journal.group_trees` returns what belongs
      together.
    - A journal that implements `CanRedactRecords` masks declared secrets and does not show them in its repr (law 18).

    Several tasks may call its methods concurrently. Ids are any text that UTF-8 can encode, also with slashes; bodies of records
    may hold lone surrogates, too. `agentloop.journal.Journal` implements what does not depend on the storage.
    """

    @abstractmethod
    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        """Append records to the chain of an execution, all or none. They are durable when this returns.

        Appending needs no claim: the chain decides which of two writers continues it.

        Args:
            head: the summary of the execution after these records.
            records: one or more records of the execution, chained to each other.

        Raises:
            JournalConflict: the first record does not follow the last stored one; or it starts an execution whose agent already
                has an execution of the same number.
            JournalFull: no space is left.
            JournalBusy: another writer held the lock of the journal for too long.
            JournalCorrupt: the journal is damaged.
            JournalError: `aclose` ended the claim on the execution, and it was not claimed again; or the journal cannot be
                written for another reason.
            ContractViolation: there are no records, they are not chained to each other, or the head does not match them.
        """

    @abstractmethod
    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        """Return the records of an execution in order; empty when there is no such execution.

        Args:
            execution_id: the execution.
            after: skip the records up to this sequence number.

        Raises:
            JournalCorrupt: a record cannot be read.
            SchemaTooNew: a newer version of agentloop wrote a record, or the journal.
        """

    @abstractmethod
    async def head(self, execution_id: str) -> ExecutionHead | None:
        """Return the summary of an execution; None when there is no execution of this id."""

    @abstractmethod
    async def list(
        self, *, agent_id: str | None = None, status: ExecutionStatus | None = None, limit: int | None = None
    ) -> Sequence[ExecutionHead]:
        """Return the summaries of executions, newest first.

        Args:
            agent_id: only executions of this agent.
            status: only executions with this status.
            limit: the maximum number of results.
        """

    @abstractmethod
    async def claim(self, execution_id: str) -> Claim:
        """Claim the right to append to an execution, which may not exist yet.

        Raises:
            JournalConflict: a live writer has claimed it.
        """

    @abstractmethod
    async def delete(self, execution_id: str) -> bool:
        """Delete an execution and all executions below it, with all their records; return whether it existed.

        Raises:
            JournalConflict: a live writer has claimed one of them; or the execution serves a call of another recorded one;
                or a fork that has not ended needs it. Nothing is deleted.
        """

    @abstractmethod
    async def purge(self, before: datetime) -> int:
        """Delete executions that have ended and were last updated before a time; return their number.

        An execution and all executions below it are deleted together: when the topmost one has ended, all of them were last
        updated before the time, none is claimed, and no unfinished fork needs them.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close files and connections, and end the claims made through this object. Idempotent.

        Writers that held such a claim cannot append any more.
        """


class CanRedactRecords(ABC):
    """A journal that masks declared secrets in a record before the record is hashed and stored."""

    @abstractmethod
    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a record, plain JSON data, with secrets masked; the same object when it holds none."""
