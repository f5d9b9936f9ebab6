"""The law suite of journals: ours pass, and each broken one is caught."""

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
from agentloop.journal import MemoryJournal, SqliteJournal
from agentloop.journal.journal import HeldClaims
from agentloop.testing import JournalKit, LawBroken
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.steps import ExecutionStatus


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder on the disk that is gone afterwards."""
    with TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("law", JournalKit.laws)
def test_the_journal_in_memory_keeps_the_laws(law: int) -> None:
    """The reference keeps every law of the contract."""
    JournalKit(MemoryJournal).check(law)


@pytest.mark.parametrize("law", JournalKit.laws)
@pytest.mark.parametrize("spill_bytes", [16 * 1024, 8])
def test_the_journal_in_sqlite_keeps_the_laws(folder: Path, law: int, spill_bytes: int) -> None:
    """The journal in a file keeps every law, also seen by another journal on the same file, whatever is spilled."""
    number = iter(range(10**6))

    def make(**options: Any) -> SqliteJournal:
        return SqliteJournal(folder / f"{next(number)}.db", synchronous="normal", spill_bytes=spill_bytes, **options)

    def again(journal: CanJournal) -> SqliteJournal:
        assert isinstance(journal, SqliteJournal)
        return SqliteJournal(journal.path)

    JournalKit(make, again=again, examples=40).check(law)


class LosesTheLast(MemoryJournal):
    """Breaks law 14: of records appended together, the last is not kept."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        if len(records) > 1:
            records = records[:-1]
            head = evolve(head, record_count=records[-1].sequence, last_hash=records[-1].hash)
        await super().append(head, records)


class WritesOneByOne(MemoryJournal):
    """Breaks law 14: an append that is given up in the middle leaves a part."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        for record in records:
            await super().append(evolve(head, record_count=record.sequence, last_hash=record.hash), [record])
            await asyncio.sleep(0)


class ForgetsItsEnd(MemoryJournal):
    """Breaks law 14: the head does not tell how many records there are."""

    async def head(self, execution_id: str) -> ExecutionHead | None:
        head = await super().head(execution_id)
        return head and evolve(head, record_count=0)


class ReadsBackwards(MemoryJournal):
    """Breaks law 15: the last record comes first."""

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        return (await super().read(execution_id, after=after))[::-1]


class ReadsAll(MemoryJournal):
    """Breaks law 15: records that were asked to be left out are read."""

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        return await super().read(execution_id)


class StripsBodies(MemoryJournal):
    """Breaks law 15: bodies come back in another spelling."""

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        read = await super().read(execution_id, after=after)
        return [evolve(one, body=one.body.replace("\\", "")) for one in read]


class ListsAll(MemoryJournal):
    """Breaks law 15: executions that stand otherwise are listed."""

    async def list(
        self, *, agent_id: str | None = None, status: ExecutionStatus | None = None, limit: int | None = None
    ) -> Sequence[ExecutionHead]:
        return await super().list(agent_id=agent_id, limit=limit)


class OldestFirst(MemoryJournal):
    """Breaks law 15: the oldest execution is listed first."""

    async def list(
        self, *, agent_id: str | None = None, status: ExecutionStatus | None = None, limit: int | None = None
    ) -> Sequence[ExecutionHead]:
        return (await super().list(agent_id=agent_id, status=status))[::-1][:limit]


class DeletesNothing(MemoryJournal):
    """Breaks law 15: what was deleted is still there."""

    async def delete(self, execution_id: str) -> bool:
        return await self.head(execution_id) is not None


class PurgesAll(MemoryJournal):
    """Breaks law 15: executions that go on are purged."""

    async def purge(self, before: datetime) -> int:
        return sum([self._delete(one) for one in tuple(self._heads)])


class TakesEverything(MemoryJournal):
    """Breaks law 16: whatever is appended is kept."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        self._heads[head.execution_id] = head
        self._records.setdefault(head.execution_id, []).extend(records)


class LooksAtNumbersOnly(MemoryJournal):
    """Breaks law 16: the hash of the record before is not looked at."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        last = await self.read(head.execution_id)
        previous = last[-1].hash if last else ""
        await super().append(head, [evolve(records[0], previous_hash=previous), *records[1:]])


class SharesNumbers(MemoryJournal):
    """Breaks law 16: an agent has two executions of one number."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        self._ids_by_number.clear()
        self._ids_by_number.update({(one.agent_id, one.number): one.execution_id for one in self._heads.values()})
        self._ids_by_number[head.agent_id, head.number] = head.execution_id
        await super().append(head, records)


class ClaimsTwice(MemoryJournal):
    """Breaks law 16: two writers have a claim."""

    async def claim(self, execution_id: str) -> Claim:
        self._claims = HeldClaims()
        return await super().claim(execution_id)


class DeletesWhatIsClaimed(MemoryJournal):
    """Breaks law 16: an execution is deleted while somebody drives it."""

    async def delete(self, execution_id: str) -> bool:
        return self._delete(execution_id)


class MasksNothing(MemoryJournal):
    """Breaks law 18: bodies stay as they are."""

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        return body


class CopiesAll(MemoryJournal):
    """Breaks law 18: what holds no secret is copied."""

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        return dict(super().redact(body))


class ShowsItsSecrets(MemoryJournal):
    """Breaks law 18: its repr shows what must not be shown."""

    def __init__(self, *, secrets: Sequence[str] = (), secret_fields: Sequence[str] = ()) -> None:
        super().__init__(secrets=secrets, secret_fields=secret_fields)
        self.shown = secrets

    def __repr__(self) -> str:
        return f"{self.shown}"


BROKEN: list[tuple[int, Callable[..., CanJournal]]] = [
    (14, LosesTheLast),
    (14, WritesOneByOne),
    (14, ForgetsItsEnd),
    (15, ReadsBackwards),
    (15, ReadsAll),
    (15, StripsBodies),
    (15, ListsAll),
    (15, OldestFirst),
    (15, DeletesNothing),
    (15, PurgesAll),
    (16, TakesEverything),
    (16, LooksAtNumbersOnly),
    (16, SharesNumbers),
    (16, ClaimsTwice),
    (16, DeletesWhatIsClaimed),
    (18, MasksNothing),
    (18, CopiesAll),
    (18, ShowsItsSecrets),
]


@pytest.mark.parametrize(
    ("law", "make"), BROKEN, ids=[f"{law}-{getattr(make, '__name__', '')}" for law, make in BROKEN]
)
def test_a_broken_journal_is_caught(law: int, make: Callable[..., CanJournal]) -> None:
    """Each law can fail, and the kit says which one."""
    with pytest.raises(LawBroken) as caught:
        JournalKit(make).check(law)
    assert caught.value.law == law
