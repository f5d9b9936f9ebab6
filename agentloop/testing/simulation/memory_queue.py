"""Queues in memory, which serve simulations only, and the rules with which a simulation compares each of their moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from attrs import define, evolve, field, frozen

from agentloop.contracts.can_queue import CanQueue, CanTakeJobs
from agentloop.errors import ConfigurationError, InvalidParameter
from agentloop.values.jobs import (
    Job,
    JobKind,
    JobSchedule,
    JobState,
    JobStatus,
    RunningJob,
    WorkerNote,
    check_job,
    check_limits,
    check_storable,
)
from agentloop.values.json import JsonValue, freeze, thaw
from agentloop.values.time_and_ids import Clock, SystemClock
from agentloop.values.tool_calls import ErrorInfo

Key: TypeAlias = tuple[JobKind, str]

_OPEN = frozenset({JobState.DELAYED, JobState.WAITING})


@define
class StoredJob:
    """A job as the queues keep it.

    Attributes:
        job: the job.
        number: how many were queued before it.
        created_at: when it was queued.
        state: how far it is.
        worker: the worker that has it, or had it last.
        request: what names the `take` that got it, so that one whose answer was lost can be asked again.
        attempts: how often it has started.
        deaths: how many workers have died of it.
        is_spared: whether the death of its worker is not counted.
        result: what it returned.
        error: why it failed.
        started_at: when it started last.
        ended_at: when it ended.
    """

    job: Job
    number: int
    created_at: datetime
    state: JobState
    worker: str = ""
    request: str = ""
    attempts: int = 0
    deaths: int = 0
    is_spared: bool = False
    result: JsonValue = None
    error: ErrorInfo | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def due(self) -> datetime:
        """When it may start."""
        return self.created_at + timedelta(seconds=self.job.delay)

    def status(self) -> JobStatus:
        """Return how far it is."""
        return JobStatus(
            id=self.job.id,
            kind=self.job.kind,
            agent=self.job.agent,
            queue=self.job.queue,
            version=self.job.version,
            state=self.state,
            worker=self.worker,
            attempts=self.attempts,
            result=self.result,
            error=self.error,
            created_at=self.created_at,
            started_at=self.started_at,
        )

    def running(self) -> RunningJob:
        """Return it as its worker gets it."""
        waited = self.started_at - self.due if self.started_at is not None and self.attempts == 1 else None
        return RunningJob(
            id=self.job.id,
            kind=self.job.kind,
            agent=self.job.agent,
            payload=self.job.payload,
            attempt=self.attempts,
            deaths=self.deaths,
            queue_seconds=None if waited is None else max(waited.total_seconds(), 0.0),
        )


@frozen
class _Limits:
    concurrency: int | None = None
    rate: tuple[int, float] | None = None


class MemoryQueue(CanQueue):
    """Queues that are an object: the tasks of one event loop share it, each worker as if in a process of its own.

    What it does at once, it does whole: no method that changes something waits for anything in the middle.

    Args:
        clock: the source of times.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._jobs: dict[Key, StoredJob] = {}
        self._count = 0
        self._limits: dict[tuple[JobKind, str], _Limits] = {}
        self._starts: dict[tuple[JobKind, str], list[datetime]] = {}
        self._schedules: dict[str, tuple[JobSchedule, CronTimes, datetime]] = {}
        self._places: dict[str, WorkerNote] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def open(self) -> None:
        """Do nothing: they are open."""

    async def aclose(self) -> None:
        """Do nothing: others use them, too."""

    # --- jobs ---------------------------------------------------------------------------------------------------------

    async def enqueue(self, job: Job) -> None:
        """Queue a job, unless there is one of its id."""
        check_job(job)
        key = (job.kind, job.id)
        if key not in self._jobs:
            self._count += 1
            state = JobState.DELAYED if job.delay else JobState.WAITING
            self._jobs[key] = StoredJob(job, self._count, self._clock.now(), state)
            self._changed()

    async def limit_queue(
        self, kind: JobKind, queue: str, *, concurrency: int | None = None, rate: tuple[int, float] | None = None
    ) -> None:
        """Set the limits of a queue."""
        check_storable(queue, "the name of the queue")
        check_limits(concurrency, rate)
        self._limits[kind, queue] = _Limits(concurrency, rate)
        self._changed()

    async def find(self, job_id: str, kind: JobKind = JobKind.TOOL) -> JobStatus | None:
        """Return how far a job is."""
        return next(iter(await self.find_all([job_id], kind)), None)

    async def find_all(self, job_ids: Collection[str], kind: JobKind = JobKind.TOOL) -> Sequence[JobStatus]:
        """Return how far jobs are."""
        return [each.status() for each in self._all(kind) if each.job.id in job_ids]

    async def payload_of(self, job_id: str, kind: JobKind = JobKind.EXECUTION) -> Any:
        """Return the payload of a job."""
        found = self._jobs.get((kind, job_id))
        return None if found is None else thaw(found.job.payload)

    async def list(
        self, *, kind: JobKind = JobKind.TOOL, prefix: str = "", states: Collection[JobState] | None = None
    ) -> Sequence[JobStatus]:
        """Return jobs of a kind."""
        return [each.status() for each in self._all(kind, prefix) if states is None or each.state in states]

    async def list_damaged(self) -> Sequence[str]:
        """Return nothing: nobody else writes here."""
        return ()

    async def wait(self, job_id: str, kind: JobKind = JobKind.TOOL) -> JobStatus:
        """Wait until a job has ended."""
        while True:
            found = self._jobs.get((kind, job_id))
            if found is not None and found.state.is_terminal:
                return found.status()
            await self.wait_for_change()

    async def cancel_waiting(self, job_ids: Collection[str], kind: JobKind = JobKind.TOOL) -> None:
        """End jobs as cancelled that no worker has."""
        for job_id in job_ids:
            found = self._jobs.get((kind, job_id))
            if found is not None and found.state in _OPEN:
                self._end(found, JobState.CANCELLED)

    async def list_ended(
        self, kind: JobKind, *, prefix: str = "", after: datetime | None = None, before: datetime | None = None
    ) -> Sequence[str]:
        """Return the ids of jobs that have ended."""
        return [
            each.job.id
            for each in self._all(kind, prefix)
            if each.ended_at is not None
            and (after is None or each.ended_at >= after)
            and (before is None or each.ended_at <= before)
        ]

    async def delete_ended(
        self, kind: JobKind, job_ids: Sequence[str], *, states: Collection[JobState] | None = None
    ) -> None:
        """Delete jobs that have ended."""
        for job_id in job_ids:
            found = self._jobs.get((kind, job_id))
            if found is not None and found.state.is_terminal and (states is None or found.state in states):
                del self._jobs[kind, job_id]

    def _all(self, kind: JobKind, prefix: str = "") -> Iterator[StoredJob]:
        self._let_due_wait()
        return (each for each in self._jobs.values() if each.job.kind is kind and each.job.id.startswith(prefix))

    # --- deaths -------------------------------------------------------------------------------------------------------

    async def forget_deaths(self, job_id: str, kind: JobKind = JobKind.EXECUTION) -> None:
        """Count deaths from 0 again."""
        if (found := self._jobs.get((kind, job_id))) is not None:
            found.deaths = 0

    async def spare(self, kind: JobKind, job_id: str, is_spared: bool) -> None:  # noqa: FBT001  # of the contract
        """Say whether a death is not counted."""
        if (found := self._jobs.get((kind, job_id))) is not None:
            found.is_spared = is_spared

    # --- schedules ----------------------------------------------------------------------------------------------------

    async def schedule(self, name: str, cron: str, job: Job) -> None:
        """Queue a copy of a job at times."""
        times = CronTimes(cron)
        self._schedules[name] = (JobSchedule(name=name, cron=cron, job=job), times, times.after(self._clock.now()))
        self._changed()

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule."""
        return self._schedules.pop(name, None) is not None

    async def schedules(self) -> Sequence[JobSchedule]:
        """Return the schedules."""
        return [schedule for schedule, _, _ in self._schedules.values()]

    async def _fire(self) -> None:
        now = self._clock.now()
        for name, (schedule, times, at) in list(self._schedules.items()):
            if at <= now and schedule.job is not None:
                self._schedules[name] = (schedule, times, times.after(now))
                await self.enqueue(evolve(schedule.job, id=f"{schedule.job.id}sched-{name}-{at.isoformat()}"))

    # --- workers ------------------------------------------------------------------------------------------------------

    async def join(self, note: WorkerNote, *, lost_after: float) -> CanTakeJobs:  # noqa: ARG002  # it is never away
        """Take a place for a worker."""
        self.enter(note)
        return _Place(self, note.name)

    async def workers(self) -> Sequence[WorkerNote]:
        """Return the notes of the live workers."""
        return [self._places[name] for name in sorted(self._places)]

    def enter(self, note: WorkerNote) -> None:
        """Take a place for a worker.

        Raises:
            ConfigurationError: a live worker has the name.
        """
        if note.name in self._places:
            raise ConfigurationError(f"a worker named {note.name!r} is running on these queues; choose another name")
        self._places[note.name] = note
        self._changed()

    def leave(self, worker: str) -> None:
        """End the place of a worker that gives it up."""
        self.bury(worker)

    def is_live(self, worker: str) -> bool:
        """Return whether a worker has a place."""
        return worker in self._places

    def bury(self, worker: str) -> None:
        """End the place of a worker: what it has goes back into its queues, and its death is counted."""
        if self._places.pop(worker, None) is None:
            return
        for each in self._of(worker):
            each.deaths += not each.is_spared
            each.state = JobState.WAITING
        self._changed()

    def _of(self, worker: str) -> Iterable[StoredJob]:
        return [each for each in self._jobs.values() if each.state is JobState.RUNNING and each.worker == worker]

    async def take_now(self, worker: str, request: str = "") -> RunningJob | None:
        """Take a job for a worker; None if there is none that it may run now.

        Args:
            worker: the worker.
            request: names this request; the same name again gets the same job, as long as the worker has it.
        """
        if worker not in self._places:
            return None
        if (
            request
            and (known := next((each for each in self._of(worker) if each.request == request), None)) is not None
        ):
            return known.running()
        await self._fire()
        self._let_due_wait()
        found = min(self._startable(worker), key=lambda each: (-each.job.priority, each.number), default=None)
        if found is None:
            return None
        found.state, found.worker, found.request = JobState.RUNNING, worker, request
        found.attempts, found.started_at = found.attempts + 1, self._clock.now()
        self._starts.setdefault((found.job.kind, found.job.queue), []).append(found.started_at)
        return found.running()

    def _startable(self, worker: str) -> Iterator[StoredJob]:
        note = self._places[worker]
        newest = max(self._places.values(), key=lambda each: (each.started, each.name)).version
        versions = {note.version, None} if note.version == newest else {note.version}
        held = Counter(each.job.kind for each in self._of(worker))
        free = {JobKind.EXECUTION: note.executions, JobKind.TOOL: note.tools}
        for each in self._jobs.values():
            job = each.job
            if (
                each.state is JobState.WAITING
                and held[job.kind] < free[job.kind]
                and job.agent in note.agents
                and job.version in versions
                and self._has_room(job.kind, job.queue)
            ):
                yield each

    def _has_room(self, kind: JobKind, queue: str) -> bool:
        limits = self._limits.get((kind, queue), _Limits())
        if limits.concurrency is not None:
            running = sum(
                each.state is JobState.RUNNING and (each.job.kind, each.job.queue) == (kind, queue)
                for each in self._jobs.values()
            )
            if running >= limits.concurrency:
                return False
        if limits.rate is None:
            return True
        since = self._clock.now() - timedelta(seconds=limits.rate[1])
        return sum(at > since for at in self._starts.get((kind, queue), ())) < limits.rate[0]

    def _let_due_wait(self) -> None:
        now = self._clock.now()
        for each in self._jobs.values():
            if each.state is JobState.DELAYED and each.due <= now:
                each.state = JobState.WAITING

    async def end(self, worker: str, job: RunningJob, result: JsonValue, error: ErrorInfo | None) -> None:
        """End a job that a worker has; what one says about another job is dropped."""
        found = self._held(worker, job)
        if found is not None:
            found.result, found.error = (freeze(result), None) if error is None else (None, error)
            self._end(found, JobState.FINISHED if error is None else JobState.FAILED)

    async def put_back(self, worker: str, jobs: Collection[RunningJob]) -> int:
        """Put jobs that a worker has back into their queues; return how many were."""
        found = [each for each in (self._held(worker, job) for job in jobs) if each is not None]
        for each in found:
            each.state = JobState.WAITING
        self._changed()
        return len(found)

    async def give_back(self, worker: str, request: str) -> None:
        """Put the job of a `take` back whose answer has not arrived."""
        for each in self._of(worker):
            if each.request == request:
                each.state = JobState.WAITING
        self._changed()

    def _held(self, worker: str, job: RunningJob) -> StoredJob | None:
        found = self._jobs.get((job.kind, job.id))
        is_held = found is not None and (found.state, found.worker, found.attempts) == (
            JobState.RUNNING,
            worker,
            job.attempt,
        )
        return found if is_held else None

    def _end(self, found: StoredJob, state: JobState) -> None:
        found.state, found.ended_at = state, self._clock.now()
        self._changed()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait_for_change(self, timeout: float = 3600.0) -> None:  # noqa: ASYNC109  # no error
        """Wait until a job may be taken that could not be before, or for some seconds."""
        now = self._clock.now()
        dues = [each.due for each in self._jobs.values() if each.state is JobState.DELAYED]
        dues += [at for _, _, at in self._schedules.values()]
        for limits, starts in ((limits, self._starts.get(queue, ())) for queue, limits in self._limits.items()):
            if limits.rate is not None:
                dues += [at + timedelta(seconds=limits.rate[1]) for at in starts]
        seconds = min([timeout, *[max((due - now).total_seconds(), 0.001) for due in dues if due > now]])
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await future


class _Place(CanTakeJobs):
    """The place of a worker that shares an event loop with the queues."""

    def __init__(self, queue: MemoryQueue, name: str) -> None:
        self._queue, self._name = queue, name
        self._is_taking = True

    async def take(self) -> RunningJob:
        while True:
            if self._is_taking and (job := await self._queue.take_now(self._name)) is not None:
                return job
            await self._queue.wait_for_change()

    async def stop_taking(self) -> None:
        self._is_taking = False

    async def end(self, job: RunningJob, result: JsonValue = None, error: ErrorInfo | None = None) -> None:
        await self._queue.end(self._name, job, result, error)

    async def put_back(self, jobs: Collection[RunningJob]) -> int:
        return await self._queue.put_back(self._name, jobs)

    async def lost(self) -> str:
        while self._queue.is_live(self._name):
            await self._queue.wait_for_change()
        return "the place of this worker is gone"

    async def leave(self) -> None:
        self._queue.leave(self._name)


# --- cron -------------------------------------------------------------------------------------------------------------

_BOUNDS = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_FEWEST = 5
_DAYS = 4 * 366


class CronTimes:
    """The times of a cron expression of numbers, lists, ranges and steps.

    Args:
        text: five fields, or six with the seconds first.

    Raises:
        InvalidParameter: it is none.
    """

    def __init__(self, text: str) -> None:
        fields = text.split()
        fields = ["0", *fields] if len(fields) == _FEWEST else fields
        try:
            if len(fields) != len(_BOUNDS):
                raise ValueError  # noqa: TRY301  # one message for all
            self._sets = [_numbers(each, *bounds) for each, bounds in zip(fields, _BOUNDS, strict=True)]
        except ValueError:
            raise InvalidParameter(f"{text!r} is no cron expression, such as '0 9 * * 1-5'") from None
        self._is_any_day = (fields[3] == "*", fields[5] == "*")

    def after(self, moment: datetime) -> datetime:
        """Return the first time behind a moment; the end of all times if there is none within four years."""
        seconds, minutes, hours, _, _, _ = self._sets
        day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        for number in range(_DAYS):
            at = day + timedelta(days=number)
            if self._is_on(at):
                found = (
                    at.replace(hour=hour, minute=minute, second=second)
                    for hour in sorted(hours)
                    for minute in sorted(minutes)
                    for second in sorted(seconds)
                )
                if (first := next((each for each in found if each > moment), None)) is not None:
                    return first
        return datetime.max.replace(tzinfo=moment.tzinfo)

    def _is_on(self, day: datetime) -> bool:
        _, _, _, days, months, weekdays = self._sets
        is_day, is_weekday = day.day in days, bool({day.isoweekday(), day.isoweekday() % 7} & weekdays)
        both: Callable[[tuple[bool, bool]], bool] = all if any(self._is_any_day) else any
        return day.month in months and both((is_day, is_weekday))


def _numbers(text: str, lowest: int, highest: int) -> set[int]:
    found = set[int]()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        start, end = (lowest, highest) if span == "*" else (int(first), int(last if dash else first))
        if not lowest <= start <= end <= highest:
            raise ValueError(part)
        found |= set(range(start, end + 1, int(step or 1)))
    return found


# --- rules that know none of the code above ---------------------------------------------------------------------------


@define
class _Watched:
    """A job as the rules know it.

    Attributes:
        job: the job.
        number: how many were queued before it.
        starts_after: when its delay has passed.
        holder: the worker that has it; empty while none has.
        ends: how often it has ended.
        deaths: how many workers have died of it.
        is_spared: whether the death of its worker is not counted.
    """

    job: Job
    number: int
    starts_after: datetime
    holder: str = ""
    ends: int = 0
    deaths: int = 0
    is_spared: bool = False


@define(eq=False)
class QueueRules:
    """What jobs may do: wait, be had by one worker, and end once.

    Attributes:
        problems: the moves that were against the rules.
        jobs: the jobs.
        limits: how many jobs of a queue may run at a time.
        notes: the notes of the workers that have a place.
        count: how many jobs were queued.
        kept: the jobs that workers had when they gave their places up.
        losses: how many workers have lost a job with their place, by its id.
    """

    problems: list[str] = field(factory=list)
    jobs: dict[Key, _Watched] = field(factory=dict)
    limits: dict[tuple[JobKind, str], int | None] = field(factory=dict)
    notes: dict[str, WorkerNote] = field(factory=dict)
    count: int = 0
    kept: dict[str, list[str]] = field(factory=dict)
    losses: Counter[str] = field(factory=Counter)

    def _require(self, is_right: bool, problem: str) -> None:  # noqa: FBT001  # what is checked
        if not is_right:
            self.problems.append(problem)

    def queued(self, job: Job, now: datetime) -> None:
        """Note that a job was queued, or queued again."""
        key = (job.kind, job.id)
        if key not in self.jobs:
            self.count += 1
            self.jobs[key] = _Watched(job, self.count, now + timedelta(seconds=job.delay))

    def taken(self, worker: str, job: RunningJob, now: datetime) -> None:
        """Note that a worker got a job."""
        watched = self.jobs.get((job.kind, job.id))
        if watched is None:
            self.problems.append(f"the job {job.id} was never queued, and {worker} got it")
            return
        self._require(not watched.ends, f"the job {job.id} has ended, and {worker} got it")
        self._require(watched.holder in {"", worker}, f"{watched.holder} has the job {job.id}, and {worker} got it")
        self._require(job.payload == watched.job.payload, f"{worker} got the job {job.id} with another payload")
        self._require(
            job.deaths == watched.deaths, f"of {watched.deaths} deaths, {worker} is told {job.deaths} of {job.id}"
        )
        self._require(watched.starts_after <= now, f"{worker} got the job {job.id} before its delay had passed")
        is_new = not watched.holder
        watched.holder = worker
        if is_new:
            self._check_turn(worker, watched, now)

    def _check_turn(self, worker: str, taken: _Watched, now: datetime) -> None:
        job, note = taken.job, self.notes.get(worker)
        held = Counter(each.job.kind for each in self.jobs.values() if each.holder == worker and not each.ends)
        slots = {} if note is None else {JobKind.EXECUTION: note.executions, JobKind.TOOL: note.tools}
        self._require(held[job.kind] <= slots.get(job.kind, 0), f"{worker} got the job {job.id} without a free slot")
        queue = [
            each
            for each in self.jobs.values()
            if (each.job.kind, each.job.queue) == (job.kind, job.queue) and not each.ends
        ]
        limit = self.limits.get((job.kind, job.queue))
        running = sum(bool(each.holder) for each in queue)
        self._require(
            limit is None or running <= limit, f"{running} jobs of the queue {job.queue} run, and {limit} may"
        )
        before = [
            each
            for each in queue
            if not each.holder
            and each.starts_after <= now
            and (each.job.agent, each.job.version) == (job.agent, job.version)
            and (-each.job.priority, each.number) < (-job.priority, taken.number)
        ]
        self._require(not before, f"the job {job.id} started before {before[0].job.id if before else ''}")

    def given_back(self, worker: str, key: Key) -> None:
        """Note that a worker put a job back."""
        watched = self.jobs.get(key)
        if watched is not None and watched.holder == worker and not watched.ends:
            watched.holder = ""

    def ended(self, key: Key, holder: str) -> None:
        """Note that a job ended; `holder` is the worker that says so, empty for a cancellation."""
        watched = self.jobs.get(key)
        if watched is not None:
            watched.ends += 1
            self._require(watched.ends == 1, f"the job {key[1]} has ended {watched.ends} times")
            self._require(watched.holder == holder, f"{holder or 'nobody'} ended the job {key[1]} of {watched.holder}")

    def died(self, worker: str) -> None:
        """Note that a worker lost its place."""
        self.notes.pop(worker, None)
        for watched in self.jobs.values():
            if watched.holder == worker and not watched.ends:
                watched.holder, watched.deaths = "", watched.deaths + (not watched.is_spared)
                self.losses[watched.job.id] += 1

    def left(self, worker: str) -> None:
        """Note that a worker gives its place up."""
        held = [each.job.id for each in self.jobs.values() if each.holder == worker and not each.ends]
        if held:
            self.kept[worker] = held

    def open_jobs(self) -> list[str]:
        """Return the ids of the jobs that have not ended."""
        return [job_id for (_, job_id), watched in self.jobs.items() if not watched.ends]


class WatchedQueue(MemoryQueue):
    """Queues in memory that tell the rules what they do.

    Args:
        clock: the source of times.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.rules: QueueRules = QueueRules()

    async def enqueue(self, job: Job) -> None:
        """Queue a job."""
        await super().enqueue(job)
        self.rules.queued(job, self._clock.now())

    async def limit_queue(
        self, kind: JobKind, queue: str, *, concurrency: int | None = None, rate: tuple[int, float] | None = None
    ) -> None:
        """Set the limits of a queue."""
        await super().limit_queue(kind, queue, concurrency=concurrency, rate=rate)
        self.rules.limits[kind, queue] = concurrency

    def enter(self, note: WorkerNote) -> None:
        """Take a place for a worker."""
        super().enter(note)
        self.rules.notes[note.name] = note

    async def take_now(self, worker: str, request: str = "") -> RunningJob | None:
        """Take a job for a worker."""
        job = await super().take_now(worker, request)
        if job is not None:
            self.rules.taken(worker, job, self._clock.now())
        return job

    async def end(self, worker: str, job: RunningJob, result: JsonValue, error: ErrorInfo | None) -> None:
        """End a job."""
        key = (job.kind, job.id)
        before = self._state(key)
        await super().end(worker, job, result, error)
        if before is JobState.RUNNING and self._state(key) is not JobState.RUNNING:
            self.rules.ended(key, worker)

    async def cancel_waiting(self, job_ids: Collection[str], kind: JobKind = JobKind.TOOL) -> None:
        """End jobs that no worker has."""
        waiting = [job_id for job_id in job_ids if not self._has_ended((kind, job_id))]
        await super().cancel_waiting(job_ids, kind)
        for job_id in waiting:
            if self._has_ended((kind, job_id)):
                self.rules.ended((kind, job_id), "")

    async def put_back(self, worker: str, jobs: Collection[RunningJob]) -> int:
        """Put jobs back."""
        for job in jobs:
            if self._held(worker, job) is not None:
                self.rules.given_back(worker, (job.kind, job.id))
        return await super().put_back(worker, jobs)

    async def give_back(self, worker: str, request: str) -> None:
        """Put back the job of a request."""
        for each in self._of(worker):
            if each.request == request:
                self.rules.given_back(worker, (each.job.kind, each.job.id))
        await super().give_back(worker, request)

    async def spare(self, kind: JobKind, job_id: str, is_spared: bool) -> None:  # noqa: FBT001  # of the contract
        """Say whether a death is not counted."""
        await super().spare(kind, job_id, is_spared)
        if (watched := self.rules.jobs.get((kind, job_id))) is not None:
            watched.is_spared = is_spared

    async def forget_deaths(self, job_id: str, kind: JobKind = JobKind.EXECUTION) -> None:
        """Count deaths from 0 again."""
        await super().forget_deaths(job_id, kind)
        if (watched := self.rules.jobs.get((kind, job_id))) is not None:
            watched.deaths = 0

    def bury(self, worker: str) -> None:
        """End the place of a worker."""
        super().bury(worker)
        self.rules.died(worker)

    def leave(self, worker: str) -> None:
        """End the place of a worker that gives it up."""
        self.rules.left(worker)
        super().leave(worker)

    async def delete_ended(
        self, kind: JobKind, job_ids: Collection[str], *, states: Collection[JobState] | None = None
    ) -> None:
        """Delete jobs that have ended."""
        await super().delete_ended(kind, list(job_ids), states=states)
        for job_id in job_ids:
            if self._state((kind, job_id)) is None:
                self.rules.jobs.pop((kind, job_id), None)

    def _state(self, key: Key) -> JobState | None:
        found = self._jobs.get(key)
        return None if found is None else found.state

    def _has_ended(self, key: Key) -> bool:
        state = self._state(key)
        return state is None or state.is_terminal
