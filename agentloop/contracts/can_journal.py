"""The contract of journals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.steps import ExecutionStatus


class Claim(ABC):
    """The right of one process, of one writer in it, to append to an execution; it dies with the process."""

    @abstractmethod
    async def release(self) -> None:
        """Let others claim the execution; more than once does nothing."""


class CanJournal(ABC):
    """Keeps the records of executions, each an append-only chain.

    An implementer keeps these laws:

    - What `append` has returned for is read again, also after the process was killed; of an append that was not returned
      from, all records are there or none (law 14).
    - Records are read as they were appended, in order, without gaps (law 15).
    - An append that does not extend the last record is refused and changes nothing; of two at once, one is (law 16).
    - An execution that somebody alive has claimed is not claimed by anybody else.

    Its methods may be used from several tasks at once.
    """

    @abstractmethod
    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        """Put records at the end of an execution's chain, all or none; they last when this returns.

        Args:
            head: what a list shows of the execution after these records.
            records: one or more, of the one execution, chained to each other.

        Raises:
            JournalConflict: when the first does not follow the last record that is there, or when it is the first of an
                execution whose agent has one of the same number already.
            JournalFull: when there is no room.
            JournalBusy: when somebody else kept the journal locked for too long.
            JournalCorrupt: when the journal is damaged.
            JournalError: when the claim on the execution was ended by `aclose` and it was not claimed again, and when it cannot
                be written for another reason.
            ContractViolation: when there are no records, when they are not chained to each other, or when the head does not
                match them.
        """

    @abstractmethod
    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        """Return the records of an execution in order; none when there is no such execution.

        Args:
            execution_id: the execution.
            after: leave out records up to this sequence number.

        Raises:
            JournalCorrupt: when a record cannot be read.
            SchemaTooNew: when a newer agentloop wrote one, or the journal.
        """

    @abstractmethod
    async def head(self, execution_id: str) -> ExecutionHead | None:
        """Return what is known of an execution; None when there is none of this id."""

    @abstractmethod
    async def list(
        self, *, agent_id: str | None = None, status: ExecutionStatus | None = None, limit: int | None = None
    ) -> Sequence[ExecutionHead]:
        """Return what is known of executions, the newest first.

        Args:
            agent_id: only those of this agent.
            status: only those that stand like this.
            limit: no more than so many.
        """

    @abstractmethod
    async def claim(self, execution_id: str) -> Claim:
        """Claim an execution, which may not be there yet.

        Raises:
            JournalConflict: when somebody alive has claimed it.
        """

    @abstractmethod
    async def delete(self, execution_id: str) -> bool:
        """Delete an execution with all its records; say whether there was one.

        Raises:
            JournalConflict: when somebody alive has claimed it.
        """

    @abstractmethod
    async def purge(self, before: datetime) -> int:
        """Delete all executions that have ended and were last changed before this moment, but those that are claimed; return how many."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of files and connections, and end the claims made through this journal; more than once does nothing.

        Who had such a claim appends no more: it is refused.
        """


class CanRedactRecords(ABC):
    """A journal that secrets are declared to; what they stand in is masked before it is hashed and kept."""

    @abstractmethod
    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a record, plain JSON data, with what is secret masked; the same object when nothing is."""
