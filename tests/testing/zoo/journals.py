"""Journals that break one law each."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count
from typing import Any

from attrs import evolve

from agentloop.contracts.can_journal import CanJournal, Claim
from agentloop.durable import MemoryJournal
from agentloop.durable.chain import claim_conflict
from agentloop.durable.held_claims import HeldClaim, HeldClaims
from agentloop.durable.trees import group_trees
from agentloop.errors import ClaimLost, JournalConflict
from agentloop.testing import JournalKit
from agentloop.values.commands import ExecutionCommand
from agentloop.values.records import ExecutionHead, JournalRecord
from tests.testing.zoo.zoo import Member


class LosesLastRecord(MemoryJournal):
    """Breaks law 14: the last record of a group is lost."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        if len(records) > 1:
            records = records[:-1]
            head = evolve(head, record_count=records[-1].sequence, last_hash=records[-1].hash)
        await super().append(head, records, claim)


class AppendsSeparately(MemoryJournal):
    """Breaks law 14: a cancelled append leaves a part of its records."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        for record in records:
            await super().append(evolve(head, record_count=record.sequence, last_hash=record.hash), [record], claim)
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

    async def list(self, **options: Any) -> Sequence[ExecutionHead]:
        return await super().list(**options | {"status": None})


class ListsOldestFirst(MemoryJournal):
    """Breaks law 15: the oldest execution is listed first."""

    async def list(self, *, limit: int | None = None, **options: Any) -> Sequence[ExecutionHead]:
        return (await super().list(**options))[::-1][:limit]


class RepeatsPages(MemoryJournal):
    """Breaks law 15: each page is the first one."""

    async def list(self, **options: Any) -> Sequence[ExecutionHead]:
        return await super().list(**options | {"after": ""})


class IgnoresPrefix(MemoryJournal):
    """Breaks law 15: executions with other ids are listed."""

    async def list(self, **options: Any) -> Sequence[ExecutionHead]:
        return await super().list(**options | {"prefix": ""})


class ListsClaimedExecutions(MemoryJournal):
    """Breaks law 15: claimed executions are listed as unclaimed."""

    async def list(self, **options: Any) -> Sequence[ExecutionHead]:
        return await super().list(**options | {"unclaimed": False})


class CarriesCommandsBackwards(MemoryJournal):
    """Breaks law 14: the last command comes first."""

    async def commands(self, execution_ids: Collection[str]) -> Sequence[ExecutionCommand]:
        return (await super().commands(execution_ids))[::-1]


class ForgetsFinishedCommands(MemoryJournal):
    """Breaks law 14: a finished command that is posted again is carried again."""

    async def finish(self, command_ids: Collection[str], *, forget: bool = False) -> None:
        for each in command_ids:
            self._commands.pop(each, None)


class RemembersForgottenCommands(MemoryJournal):
    """Breaks law 14: a command that was finished to be forgotten is remembered."""

    async def finish(self, command_ids: Collection[str], *, forget: bool = False) -> None:
        await super().finish(command_ids)


class FindsAllCommands(MemoryJournal):
    """Breaks law 14: the commands for ids that start with a text are those for any id."""

    async def unfinished(self, prefix: str) -> Sequence[ExecutionCommand]:
        return await super().unfinished("")


class FinishesNothing(MemoryJournal):
    """Breaks law 14: finished commands are carried on."""

    async def finish(self, command_ids: Collection[str], *, forget: bool = False) -> None:
        """Do nothing."""


class WakesNobody(MemoryJournal):
    """Breaks law 14: nobody is woken by a change."""

    async def wait_for_change(self, execution_id: str = "", *, timeout: float, caller: object | None = None) -> bool:  # noqa: ASYNC109  # of the contract
        return False


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

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        self._heads[head.execution_id] = head
        self._records.setdefault(head.execution_id, []).extend(records)


class IgnoresPreviousHash(MemoryJournal):
    """Breaks law 16: the hash of the previous record is not checked."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        last = await self.read(head.execution_id)
        previous = last[-1].hash if last else ""
        await super().append(head, [evolve(records[0], previous_hash=previous), *records[1:]], claim)


class AllowsEqualNumbers(MemoryJournal):
    """Breaks law 16: an agent can have two executions of the same number."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        self._ids_by_number.clear()
        self._ids_by_number.update({(item.agent_id, item.number): item.execution_id for item in self._heads.values()})
        self._ids_by_number[head.agent_id, head.number] = head.execution_id
        await super().append(head, records, claim)


class AllowsTwoClaims(MemoryJournal):
    """Breaks law 16: two writers can claim an execution."""

    async def claim(self, execution_id: str) -> Claim:
        self._claims = HeldClaims()
        return await super().claim(execution_id)


class DeletesClaimedExecutions(MemoryJournal):
    """Breaks law 16: a claimed execution can be deleted."""

    async def delete(self, execution_id: str) -> bool:
        return self._delete(execution_id)


class AcceptsEndedClaims(MemoryJournal):
    """Breaks law 28: an append with a claim that was released or lost is accepted."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        held = self._claims
        self._claims = HeldClaims()
        try:
            await super().append(head, records, await self._any_claim(claim))
        finally:
            self._claims = held

    async def _any_claim(self, claim: Claim) -> Claim:
        return await super().claim(claim.execution_id)


class HidesRefusals(MemoryJournal):
    """Breaks law 14: a driver that has lost its claim believes that its intents are stored."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        with suppress(ClaimLost):
            await super().append(head, records, claim)


class GivesOneToken(MemoryJournal):
    """Breaks law 28: all claims have the same token."""

    async def claim(self, execution_id: str) -> Claim:
        self._tokens = count(1)
        return await super().claim(execution_id)


class AcceptsForeignClaims(MemoryJournal):
    """Breaks law 28: a claim permits to append to any execution."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        if claim.execution_id == head.execution_id:
            await super().append(head, records, claim)


class HidesLosses(MemoryJournal):
    """Breaks law 28: nobody is told that a claim was lost with its journal."""

    async def aclose(self) -> None:
        self._claims = HeldClaims()


class ReportsReleases(MemoryJournal):
    """Breaks law 28: a claim that was released is reported as lost."""

    async def claim(self, execution_id: str) -> Claim:
        claim = await super().claim(execution_id)
        assert isinstance(claim, HeldClaim)
        release = claim.release

        async def release_and_lose() -> None:
            await release()
            claim.lose("released")

        claim.release = release_and_lose  # type: ignore[method-assign]
        return claim


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


class KeepsLock(MemoryJournal):
    """Breaks law 14: an append that is cancelled keeps the lock."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lock = asyncio.Lock()

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        await self.lock.acquire()
        try:
            await asyncio.sleep(0)
            await super().append(head, records, claim)
        except Exception:
            self.lock.release()
            raise
        self.lock.release()


class KeepsLockOfRefused(MemoryJournal):
    """Breaks law 16: an append that is refused keeps the lock."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lock = asyncio.Lock()

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        await self.lock.acquire()
        await super().append(head, records, claim)
        self.lock.release()


class CutsBodies(MemoryJournal):
    """Breaks law 15: an item of the storage has at most 400,000 characters."""

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        return [evolve(each, body=each.body[:400_000]) for each in await super().read(execution_id, after=after)]


class FoldsCase(MemoryJournal):
    """Breaks law 15: ids are compared without their case."""

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        known = [
            head.execution_id for head in await super().list() if head.execution_id.lower() == execution_id.lower()
        ]
        return await super().read(known[0] if known else execution_id, after=after)


class MatchesPatterns(MemoryJournal):
    """Breaks law 15: in a prefix, an underscore is any character."""

    async def list(self, *, prefix: str = "", **options: Any) -> Sequence[ExecutionHead]:
        pattern = re.compile(re.escape(prefix).replace("_", "."))
        limit, heads = options.pop("limit", None), await super().list(**options)
        return [head for head in heads if pattern.match(head.execution_id)][: None if limit is None else max(limit, 0)]


class CutsInputs(MemoryJournal):
    """Breaks law 15: the input of a head has 64 characters."""

    async def head(self, execution_id: str) -> ExecutionHead | None:
        head = await super().head(execution_id)
        return head and evolve(head, input=head.input[:64])


class ReturnsItsOwnList(MemoryJournal):
    """Breaks law 15: a caller that changes the list it got changes the journal."""

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        return self._records.get(execution_id, []) if after <= 0 else await super().read(execution_id, after=after)


class LeavesClaims(MemoryJournal):
    """Breaks law 28: a call that is cancelled leaves a claim that nobody has."""

    async def claim(self, execution_id: str) -> Claim:
        claim = await super().claim(execution_id)
        await asyncio.sleep(0)
        return claim


class WaitsForClaims(MemoryJournal):
    """Breaks law 16: a claim waits until another writer has released its own."""

    async def claim(self, execution_id: str) -> Claim:
        while True:
            with suppress(JournalConflict):
                return await super().claim(execution_id)
            await asyncio.sleep(0.01)


class TakesNoLimitForAny(MemoryJournal):
    """Breaks law 15: a limit of no results is taken for none."""

    async def list(self, *, limit: int | None = None, **filters: Any) -> Sequence[ExecutionHead]:
        return await super().list(limit=limit or None, **filters)


class AppendsWithABlockingClient(MemoryJournal):
    """Breaks law 45: the event loop waits for the database."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        time.sleep(0.0001)  # noqa: ASYNC251  # the fault
        await super().append(head, records, claim)


def _member(law: int, journal: Callable[..., CanJournal]) -> Member:
    return Member(journal, law, lambda examples: JournalKit(journal, examples=max(1, examples // 3)))


JOURNALS: tuple[Member, ...] = (
    _member(14, LosesLastRecord),
    _member(14, AppendsSeparately),
    _member(14, ForgetsRecordCount),
    _member(15, ReadsBackwards),
    _member(15, IgnoresAfter),
    _member(15, StripsBackslashes),
    _member(15, IgnoresStatus),
    _member(15, ListsOldestFirst),
    _member(15, RepeatsPages),
    _member(15, IgnoresPrefix),
    _member(15, ListsClaimedExecutions),
    _member(14, CarriesCommandsBackwards),
    _member(14, ForgetsFinishedCommands),
    _member(14, FinishesNothing),
    _member(14, RemembersForgottenCommands),
    _member(14, FindsAllCommands),
    _member(14, WakesNobody),
    _member(15, DeletesNothing),
    _member(15, PurgesRunningExecutions),
    _member(15, DeletesOneExecution),
    _member(15, PurgesExecutionsAlone),
    _member(15, ForgetsForks),
    _member(16, AcceptsEveryAppend),
    _member(16, IgnoresPreviousHash),
    _member(16, AllowsEqualNumbers),
    _member(16, AllowsTwoClaims),
    _member(16, DeletesClaimedExecutions),
    _member(28, AcceptsEndedClaims),
    _member(14, HidesRefusals),
    _member(28, GivesOneToken),
    _member(28, AcceptsForeignClaims),
    _member(28, HidesLosses),
    _member(28, ReportsReleases),
    _member(14, KeepsLock),
    _member(15, CutsBodies),
    _member(15, FoldsCase),
    _member(15, MatchesPatterns),
    _member(15, CutsInputs),
    _member(15, ReturnsItsOwnList),
    _member(16, KeepsLockOfRefused),
    _member(16, WaitsForClaims),
    _member(15, TakesNoLimitForAny),
    _member(28, LeavesClaims),
    _member(18, MasksNothing),
    _member(18, CopiesEveryBody),
    _member(18, ShowsSecrets),
    _member(45, AppendsWithABlockingClient),
)
