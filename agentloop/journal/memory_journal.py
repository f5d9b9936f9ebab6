"""A journal that ends with its process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from threading import Lock

from agentloop.contracts.can_journal import Claim
from agentloop.journal.chain import (
    NOTHING_THERE,
    already_claimed,
    check_follows,
    check_id,
    check_readable,
    check_records,
    number_taken,
)
from agentloop.journal.journal import HeldClaims, Journal, newest_first
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.secrets import Secret
from agentloop.values.steps import ExecutionStatus


class MemoryJournal(Journal):
    """Keeps records in memory: for tests, and for runs that need an audit trail or a replay but no recovery.

    Args:
        secrets: texts, or keys, that are masked wherever they stand in what is recorded.
        secret_fields: fields that are masked, by their names or dotted paths.

    Raises:
        ConfigurationError: when a secret is shorter than four characters.
    """

    def __init__(self, *, secrets: Iterable[str | Secret] = (), secret_fields: Iterable[str] = ()) -> None:
        super().__init__(secrets=secrets, secret_fields=secret_fields)
        self._heads: dict[str, ExecutionHead] = {}
        self._records: dict[str, list[JournalRecord]] = {}
        self._numbers: dict[tuple[str, int], str] = {}
        self._claimed = HeldClaims()
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"MemoryJournal({len(self._heads)} executions)"

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        """Put records at the end of an execution's chain, all or none."""
        check_records(head, records)
        number = (head.agent_id, head.number)
        with self._lock:
            self._claimed.check(head.execution_id)
            known = self._heads.get(head.execution_id)
            check_follows(records[0], *((known.record_count, known.last_hash) if known else NOTHING_THERE))
            if self._numbers.get(number, head.execution_id) != head.execution_id:
                raise number_taken(head)
            if known is not None:
                del self._numbers[known.agent_id, known.number]
            self._heads[head.execution_id] = head
            self._numbers[number] = head.execution_id
            self._records.setdefault(head.execution_id, []).extend(records)

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        """Return the records of an execution in order."""
        with self._lock:
            records = tuple(self._records.get(execution_id, ())[max(after, 0) :])
        for record in records:
            check_readable(record.schema_version)
        return records

    async def head(self, execution_id: str) -> ExecutionHead | None:
        """Return what is known of an execution."""
        return self._heads.get(execution_id)

    async def list(
        self, *, agent_id: str | None = None, status: ExecutionStatus | None = None, limit: int | None = None
    ) -> Sequence[ExecutionHead]:
        """Return what is known of executions, the newest first."""
        with self._lock:
            heads = tuple(self._heads.values())
        chosen = [head for head in heads if agent_id in {None, head.agent_id} and status in {None, head.status}]
        return newest_first(chosen)[:limit]

    async def claim(self, execution_id: str) -> Claim:
        """Claim an execution, which may not be there yet."""
        check_id(execution_id)
        with self._lock:
            if execution_id in self._claimed:
                raise already_claimed(execution_id, "another writer of this process")
            claim = _MemoryClaim(self._claimed, self._lock, execution_id)
            self._claimed.add(execution_id, claim)
            return claim

    async def delete(self, execution_id: str) -> bool:
        """Delete an execution with all its records."""
        with self._lock:
            if execution_id in self._claimed:
                raise already_claimed(execution_id, "another writer of this process")
            return self._delete(execution_id)

    async def purge(self, before: datetime) -> int:
        """Delete all executions that have ended and were last changed before this moment, but those that are claimed."""
        with self._lock:
            over = [head for head in self._heads.values() if head.status.is_terminal and head.updated_at < before]
            return sum([self._delete(head.execution_id) for head in over if head.execution_id not in self._claimed])

    async def aclose(self) -> None:
        """End the claims; the records stay for as long as this object."""
        with self._lock:
            self._claimed.end()

    def _delete(self, execution_id: str) -> bool:
        head = self._heads.pop(execution_id, None)
        if head is None:
            return False
        del self._numbers[head.agent_id, head.number]
        del self._records[execution_id]
        return True


class _MemoryClaim(Claim):
    """A claim on an execution in memory."""

    def __init__(self, claimed: HeldClaims, lock: Lock, execution_id: str) -> None:
        self._claimed, self._lock, self._execution_id = claimed, lock, execution_id

    async def release(self) -> None:
        """Let others claim the execution; more than once does nothing."""
        with self._lock:
            self._claimed.leave(self._execution_id, self)
