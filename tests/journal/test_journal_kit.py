"""The law suite of journals: the package's journals pass, and every broken one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from attrs import evolve

from agentloop.contracts.can_journal import CanJournal, Claim
from agentloop.journal import MemoryJournal, SqliteJournal, claim_conflict, group_trees
from agentloop.journal.journal import HeldClaims
from agentloop.testing import JournalKit, LawViolation
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.steps import ExecutionStatus


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a temporary folder on the disk."""
    with TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("law", JournalKit.laws)
def test_memory_journals_keep_the_laws(law: int) -> None:
    """`MemoryJournal` keeps every law of the contract."""
    JournalKit(MemoryJournal).check(law)


@pytest.mark.parametrize("law", JournalKit.laws)
@pytest.mark.parametrize("spill_bytes", [16 * 1024, 8])
def test_sqlite_journals_keep_the_laws(folder: Path, law: int, spill_bytes: int) -> None:
    """`SqliteJournal` keeps every law, also through a second object on the same file, whatever it spills."""
    number = iter(range(10**6))

    def make(**options: Any) -> SqliteJournal:
        return SqliteJournal(folder / f"{next(number)}.db", synchronous="normal", spill_bytes=spill_bytes, **options)

    def reopen(journal: CanJournal) -> SqliteJournal:
        assert isinstance(journal, SqliteJournal)
        return SqliteJournal(journal.path)

    JournalKit(make, reopen=reopen, examples=40).check(law)


class LosesLastRecord(MemoryJournal):
    """Breaks law 14: the last record of a group is lost."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        if len(records) > 1:
            records = records[:-1]
            head = evolve(head, record_count=records[-1].sequence, last_hash=records[-1].hash)
        await super().append(head, records)


class AppendsSeparately(MemoryJournal):
    """Breaks law 14: a cancelled append leaves a part of its records."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        for record in records:
            await super().append(evolve(head, record_count=record.sequence, last_hash=record.hash), [record])
            await asyncio.sleep(0)


class ForgetsRecordCount(MemoryJournal):
    """Breaks law 14: the head has the wrong record count."""

    async def head(self, execution_id: str) -> ExecutionHead | None:
        head = await super().head(execution_id)
        return head and evolve(head, record_count=0)


class ReadsBackwards(MemoryJournal):
    """Breaks law 15: records are read in reverse order."""

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        return (await super().read(execution_id, after=after))[::-1]


class IgnoresAfter(MemoryJournal):
    """Breaks law 15: records up to `after` are read, too."""

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        return await super().read(execution_id)


class StripsBackslashes(MemoryJournal):
    """Breaks law 15: bodies are read in another spelling."""

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        records = await super().read(execution_id, after=after)
        return [evolve(record, body=record.body.replace("\\", "")) for record in records]


class IgnoresStatus(MemoryJournal):
    """Breaks law 15: executions with another status are listed."""

    async def list(
        self, *, agent_id: str | None = None, status: ExecutionStatus | None = None, limit: int | None = None
    ) -> Sequence[ExecutionHead]:
        return await super().list(agent_id=agent_id, limit=limit)


class ListsOldestFirst(MemoryJournal):
    """Breaks law 15: the oldest execution is listed first."""

    async def list(
        self, *, agent_id: str | None = None, status: ExecutionStatus | None = None, limit: int | None = None
    ) -> Sequence[ExecutionHead]:
        return (await super().list(agent_id=agent_id, status=status))[::-1][:limit]


class DeletesNothing(MemoryJournal):
    """Breaks law 15: a deleted execution still exists."""

    async def delete(self, execution_id: str) -> bool:
        return await self.head(execution_id) is not None


class PurgesRunningExecutions(MemoryJournal):
    """Breaks law 15: running executions are purged."""

    async def purge(self, before: datetime) -> int:
        return sum([self._delete(execution_id) for execution_id in tuple(self._heads)])


class DeletesOneExecution(MemoryJournal):
    """Breaks law 15: the executions below a deleted one remain."""

    async def delete(self, execution_id: str) -> bool:
        if execution_id in self._claims:
            raise claim_conflict(execution_id)
        return self._delete(execution_id)


class PurgesExecutionsAlone(MemoryJournal):
    """Breaks law 15: an execution below another one is purged before it."""

    async def purge(self, before: datetime) -> int:
        ended = [head for head in self._heads.values() if head.status.is_terminal and head.updated_at < before]
        return sum([self._delete(head.execution_id) for head in ended if head.execution_id not in self._claims])


class ForgetsForks(MemoryJournal):
    """Breaks law 15: the original of an unfinished fork is purged."""

    async def purge(self, before: datetime) -> int:
        trees = group_trees([evolve(head, forked_from="") for head in self._heads.values()])
        expired = [each for tree in trees if tree.is_expired(before) for each in tree.ids]
        return sum([self._delete(each) for each in expired if each not in self._claims])


class AcceptsEveryAppend(MemoryJournal):
    """Breaks law 16: every append is accepted."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        self._heads[head.execution_id] = head
        self._records.setdefault(head.execution_id, []).extend(records)


class IgnoresPreviousHash(MemoryJournal):
    """Breaks law 16: the hash of the previous record is not checked."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        last = await self.read(head.execution_id)
        previous = last[-1].hash if last else ""
        await super().append(head, [evolve(records[0], previous_hash=previous), *records[1:]])


class AllowsEqualNumbers(MemoryJournal):
    """Breaks law 16: an agent can have two executions of the same number."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        self._ids_by_number.clear()
        self._ids_by_number.update({(item.agent_id, item.number): item.execution_id for item in self._heads.values()})
        self._ids_by_number[head.agent_id, head.number] = head.execution_id
        await super().append(head, records)


class AllowsTwoClaims(MemoryJournal):
    """Breaks law 16: two writers can claim an execution."""

    async def claim(self, execution_id: str) -> Claim:
        self._claims = HeldClaims()
        return await super().claim(execution_id)


class DeletesClaimedExecutions(MemoryJournal):
    """Breaks law 16: a claimed execution can be deleted."""

    async def delete(self, execution_id: str) -> bool:
        return self._delete(execution_id)


class MasksNothing(MemoryJournal):
    """Breaks law 18: secrets are not masked."""

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        return body


class CopiesEveryBody(MemoryJournal):
    """Breaks law 18: a body without secrets is copied."""

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        return dict(super().redact(body))


class ShowsSecrets(MemoryJournal):
    """Breaks law 18: its repr shows the secrets."""

    def __init__(self, *, secrets: Sequence[str] = (), secret_fields: Sequence[str] = ()) -> None:
        super().__init__(secrets=secrets, secret_fields=secret_fields)
        self.secrets = secrets

    def __repr__(self) -> str:
        return f"{self.secrets}"


BROKEN: list[tuple[int, Callable[..., CanJournal]]] = [
    (14, LosesLastRecord),
    (14, AppendsSeparately),
    (14, ForgetsRecordCount),
    (15, ReadsBackwards),
    (15, IgnoresAfter),
    (15, StripsBackslashes),
    (15, IgnoresStatus),
    (15, ListsOldestFirst),
    (15, DeletesNothing),
    (15, PurgesRunningExecutions),
    (15, DeletesOneExecution),
    (15, PurgesExecutionsAlone),
    (15, ForgetsForks),
    (16, AcceptsEveryAppend),
    (16, IgnoresPreviousHash),
    (16, AllowsEqualNumbers),
    (16, AllowsTwoClaims),
    (16, DeletesClaimedExecutions),
    (18, MasksNothing),
    (18, CopiesEveryBody),
    (18, ShowsSecrets),
]


@pytest.mark.parametrize(
    ("law", "make"), BROKEN, ids=[f"{law}-{getattr(make, '__name__', '')}" for law, make in BROKEN]
)
def test_a_broken_journal_fails(law: int, make: Callable[..., CanJournal]) -> None:
    """Every check can fail, and the error names the broken law."""
    with pytest.raises(LawViolation) as caught:
        JournalKit(make).check(law)
    assert caught.value.law == law
