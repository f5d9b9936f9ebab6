"""The contract of journals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from agentloop.values.commands import ExecutionCommand
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.steps import ExecutionStatus
from agentloop.values.value import Value


class Claim(ABC):
    """The exclusive right to append to one execution, until it is released or lost.

    It ends with the process that holds it. It is lost when the storage gives it to another process, because this one could
    not be reached for too long, or when the journal is closed. A process that lost a claim may not know it yet: `append`
    compares tokens, so that a late append of the old holder is refused.
    """

    @property
    @abstractmethod
    def execution_id(self) -> str:
        """The claimed execution."""

    @property
    @abstractmethod
    def token(self) -> int:
        """The fencing token: larger than that of every earlier claim on the execution.

        A service that stores the largest token it has seen can refuse calls of a process that lost its claim.
        """

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Whether the claim is lost, as far as this process knows. A claim that was released is not lost."""

    @abstractmethod
    async def lost(self) -> str:
        """Wait until the claim is lost, and return the reason. Never returns for a claim that was released before."""

    @abstractmethod
    async def release(self) -> None:
        """Release the claim, so that another writer can claim the execution. Idempotent, also for a lost claim.

        The claim permits no append from the moment of the call. A call that is cancelled, or that raises, gives the claim back all
        the same: the journal releases it in the storage as soon as the storage can be reached, at the latest when the process ends.
        Other processes are refused until then. The journal object that made the claim is not: it can claim the execution again.

        Raises:
            JournalError: the storage cannot be reached; the journal tries again by itself.
        """


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
    - The token of a claim is larger than those of all earlier claims on the execution, and an append with a claim that was
      released or lost, or that a later claim replaced, is refused and changes nothing (law 28).
    - A claim does not outlive those who wait for it: one whose `claim` was cancelled or raised, and one whose `release` was
      cancelled or raised, is given back by the journal, as soon as the storage can be reached. The same journal object can claim
      the execution at once, whatever became of its earlier calls, as long as it holds no other claim on it (law 28).
    - The executions of agents that serve the calls of an execution are deleted with it, all or none, and never without it; an
      execution that an unfinished fork needs is not deleted (law 15). `agentloop.durable.trees.group_trees` returns what belongs
      together.
    - A journal that implements `CanRedactRecords` masks declared secrets and does not show them in its repr (law 18).

    Several tasks may call its methods concurrently. Ids are any text that UTF-8 can encode, also with slashes; bodies of records
    may hold lone surrogates, too. `agentloop.durable.Journal` implements what does not depend on the storage.
    """

    @abstractmethod
    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        """Append records to the chain of an execution, all or none. They are durable when this returns.

        The token of the claim is checked in the transaction that stores the records.

        Args:
            head: the summary of the execution after these records.
            records: one or more records of the execution, chained to each other.
            claim: the claim on the execution, made by this journal.

        Raises:
            ClaimLost: the claim was released or lost, or a later claim has appended; nothing is stored. A journal that stores the
                token of a claim when it is made refuses an earlier claim from then on.
            JournalConflict: the first record does not follow the last stored one; or it starts an execution whose agent already
                has an execution of the same number.
            JournalFull: no space is left.
            JournalBusy: another writer held the lock of the journal for too long.
            JournalCorrupt: the journal is damaged.
            JournalError: the journal cannot be written for another reason.
            ContractViolation: there are no records, they are not chained to each other, or the head or the claim does not
                match them.
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
        self,
        *,
        agent_id: str | None = None,
        status: ExecutionStatus | Collection[ExecutionStatus] | None = None,
        prefix: str = "",
        unclaimed: bool = False,
        after: str = "",
        limit: int | None = None,
    ) -> Sequence[ExecutionHead]:
        """Return the summaries of executions, newest first.

        Executions that start while pages are read are on no later page; each of the others is on exactly one.

        Args:
            agent_id: only executions of this agent.
            status: only executions with this status, or one of these.
            prefix: only executions whose ids start with this text.
            unclaimed: only executions that no live writer has claimed. With the status `in_progress`, these are the interrupted
                ones, which `AgentLoop.recover` continues.
            after: only executions behind this position: the `cursor` of the last summary of the page before.
            limit: the maximum number of results; a negative one is 0.

        Raises:
            ConfigurationError: `after` is not a cursor.
        """

    @abstractmethod
    async def claim(self, execution_id: str) -> Claim:
        """Claim the right to append to an execution, which may not exist yet.

        A call that is cancelled, or that raises, leaves no claim. What it had already stored is given back: at once when the storage
        can be reached, else as soon as it can be. The next call for this execution through the same object waits for that where it
        has to; it does not raise `JournalConflict` because of the earlier call.

        Raises:
            JournalConflict: a live writer has claimed it.
            JournalError: the storage cannot be used.
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
        """Close files and connections, and end the claims made through this object, which are lost. Idempotent.

        Writers that held such a claim cannot append any more: `append` raises `ClaimLost`, and `Claim.release` does nothing. Every
        other method of a closed journal may open the storage again, or raise `JournalError`.
        """


class CanWatchExecutions(ABC):
    """A journal that wakes those who wait for changes of executions."""

    @abstractmethod
    async def wait_for_change(self, execution_id: str = "", *, timeout: float, caller: object | None = None) -> bool:  # noqa: ASYNC109  # a result, not an error
        """Wait until an execution has changed since the previous wait of the same caller.

        An execution changes when records are appended to it, when it is deleted, and when a command is posted to it. The first
        wait of a caller returns at once, so that what it has read before is not outdated: read, wait, and read again.

        Args:
            execution_id: the execution, which may not exist yet; empty for any.
            timeout: the maximum time to wait, in seconds.
            caller: who waits, by identity; the current task by default. Where each wait runs in a task of its own, as with
                `asyncio.create_task` or `asyncio.wait_for`, pass the same object every time.

        Returns:
            True after a change, and sometimes without one; False after `timeout` seconds.

        Raises:
            JournalError: the journal cannot be read.
        """


class CanCommandExecutions(ABC):
    """A journal that carries commands to the process which runs an execution."""

    @abstractmethod
    async def post(self, command: ExecutionCommand) -> None:
        """Store a command; it is durable when this returns. Nothing happens if one of this id was posted before.

        It is stored as it is, also by a journal that masks secrets in records: a model reads the message.

        The execution may not exist yet: the command waits for it.

        Raises:
            JournalError: the journal cannot be written.
        """

    @abstractmethod
    async def commands(self, execution_ids: Collection[str]) -> Sequence[ExecutionCommand]:
        """Return the commands for these executions that are not finished, in the order in which they were posted.

        The order is the same for all readers: no command comes before one of the same execution that was returned earlier.

        Raises:
            JournalCorrupt: one of them cannot be read.
            SchemaTooNew: a newer version of agentloop wrote one of them.
            JournalError: the journal cannot be read.
        """

    @abstractmethod
    async def unfinished(self, prefix: str) -> Sequence[ExecutionCommand]:
        """Return the commands that are not finished, for all ids of executions that start with a text, in the order of posting.

        Raises:
            JournalCorrupt: one of them cannot be read.
            SchemaTooNew: a newer version of agentloop wrote one of them.
            JournalError: the journal cannot be read.
        """

    @abstractmethod
    async def finish(self, command_ids: Collection[str], *, forget: bool = False) -> None:
        """Mark commands as finished; `commands` does not return them any more. Idempotent; unknown ids are ignored.

        The ids are remembered as long as the execution, so that a command which is posted again is not obeyed again. Deleting
        an execution deletes its commands.

        Args:
            command_ids: the commands.
            forget: whether they are deleted, since nobody posts them again.
        """


class CanRedactRecords(ABC):
    """Masks declared secrets, as a journal does in a record before the record is hashed and stored."""

    @abstractmethod
    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return an object, such as the body of a record, as plain JSON data with secrets masked; the same object when it holds none."""


def is_equal_after_masking(value: Value | None, recorded: Value | None, journal: CanJournal) -> bool:
    """Return whether a value equals the recorded one, or would after its secrets were masked."""
    if value == recorded:
        return True
    if not isinstance(journal, CanRedactRecords):
        return False
    # Loaded late: a program that only defines agents does not need cattrs.
    from agentloop.values.serialization import to_plain

    plain: dict[str, Any] = {"value": to_plain(value)}
    return journal.redact(plain) == {"value": to_plain(recorded)}
