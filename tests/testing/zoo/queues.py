"""Queues that break one law each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from typing import Any

from attrs import evolve

from agentloop.contracts import CanQueue, CanTakeJobs
from agentloop.testing import QueueKit
from agentloop.testing.simulation.memory_queue import MemoryQueue, StoredJob
from agentloop.values.jobs import Job, JobKind, JobState, JobStatus, RunningJob, WorkerNote
from agentloop.values.json import JsonValue
from agentloop.values.tool_calls import ErrorInfo
from tests.testing.zoo.zoo import Member


class MixesKinds(MemoryQueue):
    """Breaks law 9: a job of one kind hides a job of the other kind that has its id."""

    async def enqueue(self, job: Job) -> None:
        if not any(job_id == job.id for _, job_id in self._jobs):
            await super().enqueue(job)


class FoldsCase(MemoryQueue):
    """Breaks law 9: ids that differ in their case alone are one prefix, as with `LIKE` in SQLite."""

    async def list(
        self, *, kind: JobKind = JobKind.TOOL, prefix: str = "", states: Collection[JobState] | None = None
    ) -> Sequence[JobStatus]:
        found = await super().list(kind=kind, states=states)
        return [each for each in found if each.id.lower().startswith(prefix.lower())]


class LosesOnCancellation(MemoryQueue):
    """Breaks law 34: a job is taken, and a `take` that is cancelled on the way back drops it."""

    async def take_now(self, worker: str, request: str = "") -> RunningJob | None:
        job = await super().take_now(worker, request)
        await asyncio.sleep(0)
        return job


class StoresText(MemoryQueue):
    """Breaks law 44: a result is stored as its text."""

    async def end(self, worker: str, job: RunningJob, result: JsonValue, error: ErrorInfo | None) -> None:
        await super().end(worker, job, None if result is None else str(result), error)


class ShortensErrors(MemoryQueue):
    """Breaks law 44: only the first word of an error is stored."""

    async def end(self, worker: str, job: RunningJob, result: JsonValue, error: ErrorInfo | None) -> None:
        short = None if error is None else ErrorInfo(error.type, error.message.split()[0])
        await super().end(worker, job, result, short)


class TakesTwice(MemoryQueue):
    """Breaks law 51: two workers that ask at the same time get the same job."""

    async def take_now(self, worker: str, request: str = "") -> RunningJob | None:
        held = {key for key, each in self._jobs.items() if each.state is JobState.RUNNING and each.worker != worker}
        for key in held:
            self._jobs[key].state = JobState.WAITING
        return await super().take_now(worker, request)


class LosesWhatIsPutBack(MemoryQueue):
    """Breaks law 51: a job that is put back stays with its worker."""

    async def put_back(self, worker: str, jobs: Collection[RunningJob]) -> int:
        return len(jobs)


class LosesWorkOfTheDead(MemoryQueue):
    """Breaks law 51: nobody gets what a dead worker had."""

    def bury(self, worker: str) -> None:
        self._places.pop(worker, None)


class CountsNoDeaths(MemoryQueue):
    """Breaks law 51: a job that kills its workers goes on for ever."""

    def bury(self, worker: str) -> None:
        before = {key: each.deaths for key, each in self._jobs.items()}
        super().bury(worker)
        for key, deaths in before.items():
            self._jobs[key].deaths = deaths


class SparesNobody(MemoryQueue):
    """Breaks law 51: a death counts for a job that only waited."""

    async def spare(self, kind: JobKind, job_id: str, is_spared: bool) -> None:  # noqa: FBT001  # of the contract
        """Do nothing."""


class ReplacesPayloads(MemoryQueue):
    """Breaks law 51: the last `enqueue` of an id counts."""

    async def enqueue(self, job: Job) -> None:
        await super().enqueue(job)
        self._jobs[job.kind, job.id].job = job


class BelievesEverybody(MemoryQueue):
    """Breaks law 51: a worker that has died ends a job that another one has."""

    def _held(self, worker: str, job: RunningJob) -> StoredJob | None:
        return self._jobs.get((job.kind, job.id))


class CancelsNothing(MemoryQueue):
    """Breaks law 51: a job that is cancelled starts all the same."""

    async def cancel_waiting(self, job_ids: Collection[str], kind: JobKind = JobKind.TOOL) -> None:
        """Do nothing."""


class SharesNames(MemoryQueue):
    """Breaks law 51: two live workers have one name."""

    def enter(self, note: WorkerNote) -> None:
        self._places[note.name] = note


class FiresOnce(MemoryQueue):
    """Breaks law 51: all copies of a schedule have the same id."""

    async def enqueue(self, job: Job) -> None:
        await super().enqueue(evolve(job, id=job.id.partition("sched-")[0] + "sched"[: 5 * ("sched-" in job.id)]))


class DeletesWhatRuns(MemoryQueue):
    """Breaks law 51: a deletion takes jobs that have not ended."""

    async def delete_ended(
        self, kind: JobKind, job_ids: Sequence[str], *, states: Collection[JobState] | None = None
    ) -> None:
        for job_id in job_ids:
            self._jobs.pop((kind, job_id), None)


class ListsNewestFirst(MemoryQueue):
    """Breaks law 51: of jobs that have ended, the newest comes first, so that deletions leave holes."""

    async def list_ended(
        self, kind: JobKind, *, prefix: str = "", after: datetime | None = None, before: datetime | None = None
    ) -> Sequence[str]:
        return (await super().list_ended(kind, prefix=prefix, after=after, before=before))[::-1]


class IgnoresPriorities(MemoryQueue):
    """Breaks law 52: the oldest job starts first, whatever its priority."""

    async def enqueue(self, job: Job) -> None:
        await super().enqueue(evolve(job, priority=0))


class TakesNewestFirst(MemoryQueue):
    """Breaks law 52: of jobs with the same priority, the newest starts first."""

    def _startable(self, worker: str) -> Iterator[StoredJob]:
        found = list(super()._startable(worker))
        return iter(found[-1:])


class IgnoresLimits(MemoryQueue):
    """Breaks law 52: a queue has no limits."""

    def _has_room(self, kind: JobKind, queue: str) -> bool:
        return True


class LimitsEachWorker(MemoryQueue):
    """Breaks law 52: a worker takes more than it has slots for."""

    async def join(self, note: WorkerNote, *, lost_after: float) -> CanTakeJobs:
        return await super().join(evolve(note, executions=99, tools=99), lost_after=lost_after)


class StartsAtOnce(MemoryQueue):
    """Breaks law 52: a delay is forgotten."""

    async def enqueue(self, job: Job) -> None:
        await super().enqueue(evolve(job, delay=min(job.delay, 0.0)))


class IgnoresVersions(MemoryQueue):
    """Breaks law 52: a worker takes jobs of other versions."""

    async def enqueue(self, job: Job) -> None:
        await super().enqueue(evolve(job, version=None))


class PausesNothing(MemoryQueue):
    """Breaks law 52: a concurrency of zero counts as no limit, as it does where a number is tested by its truth."""

    async def limit_queue(
        self, kind: JobKind, queue: str, *, concurrency: int | None = None, rate: tuple[int, float] | None = None
    ) -> None:
        if concurrency != 0:
            await super().limit_queue(kind, queue, concurrency=concurrency, rate=rate)
            return
        await super().limit_queue(kind, queue, rate=rate)


def _queue(law: int, queues: Callable[[], CanQueue]) -> Member:
    def make(examples: int) -> Any:
        return QueueKit(queues, settle=0.02, patience=1.2, examples=examples)

    return Member(queues, law, make)


QUEUES: tuple[Member, ...] = (
    _queue(9, MixesKinds),
    _queue(9, FoldsCase),
    _queue(34, LosesOnCancellation),
    _queue(44, StoresText),
    _queue(44, ShortensErrors),
    _queue(51, TakesTwice),
    _queue(51, LosesWhatIsPutBack),
    _queue(51, LosesWorkOfTheDead),
    _queue(51, CountsNoDeaths),
    _queue(51, SparesNobody),
    _queue(51, ReplacesPayloads),
    _queue(51, BelievesEverybody),
    _queue(51, CancelsNothing),
    _queue(51, SharesNames),
    _queue(51, FiresOnce),
    _queue(51, DeletesWhatRuns),
    _queue(51, ListsNewestFirst),
    _queue(52, IgnoresPriorities),
    _queue(52, TakesNewestFirst),
    _queue(52, IgnoresLimits),
    _queue(52, LimitsEachWorker),
    _queue(52, StartsAtOnce),
    _queue(52, IgnoresVersions),
    _queue(52, PausesNothing),
)
