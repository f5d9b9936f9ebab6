"""The contracts of queues: an engine that queues jobs, and the place of one live worker at it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from agentloop.values.jobs import Job, JobKind, JobSchedule, JobState, JobStatus, RunningJob, WorkerNote
from agentloop.values.json import JsonValue
from agentloop.values.tool_calls import ErrorInfo


class CanTakeJobs(ABC):
    """The place of one live worker at the queues. `CanQueue.join` returns it; an object serves one worker, in one event loop."""

    @abstractmethod
    async def take(self) -> RunningJob:
        """Wait for a job that this worker may run, and take it. A call that is cancelled loses no job.

        The worker may run a job if it has the agent of the job, and the version, or the job has none and this worker has the newest
        version of those that live. It never holds more jobs of a kind than its note says, counted until `end` or `put_back`.

        Raises:
            ClusterError: the storage of the queues is damaged.
        """

    @abstractmethod
    async def stop_taking(self) -> None:
        """Take no more jobs; those that were taken for a later `take` go back into their queues. `take` waits for ever then.

        Raises:
            DatabaseUnavailable: the storage is away; a job that was taken for a later `take` is handed over when the worker has left.
        """

    @abstractmethod
    async def end(self, job: RunningJob, result: JsonValue = None, error: ErrorInfo | None = None) -> None:
        """End a job as finished with a result, or as failed with an error.

        The outcome is durable when this returns, unless the job was cancelled or handed to another worker meanwhile: then it is
        dropped. While the storage is away, this waits for it.

        Args:
            job: a job that `take` has returned.
            result: what it returned, JSON data.
            error: why it failed; None if it did not.
        """

    @abstractmethod
    async def put_back(self, jobs: Collection[RunningJob]) -> int:
        """Put jobs that `take` has returned back into their queues, at once and without counting a death; return how many were.

        A job that was cancelled, that has ended, or that another worker has is left alone.

        Raises:
            DatabaseUnavailable: the storage is away; the call can be repeated.
        """

    @abstractmethod
    async def lost(self) -> str:
        """Wait until the worker must not go on, and return why: the storage was away too long, or another worker has its name."""

    @abstractmethod
    async def leave(self) -> None:
        """Give the place up. Idempotent. A job that has neither ended nor was put back counts as one whose worker has died."""


class CanQueue(ABC):
    """Queues jobs for workers, and hands each to one of them at a time.

    The engine decides when a job runs and which worker runs it. It need not know what a job does: an execution continues from its
    journal, so that a job which runs again repeats nothing that is recorded.

    An implementation keeps these laws, which `QueueKit` of `agentloop.testing` checks:

    - Jobs of different ids and kinds never mix, and ids may be any text that `check_storable` accepts (law 9).
    - A `take` or an `enqueue` that is cancelled loses no job, and starts none twice (law 34).
    - Payload, result and error of a job are read as they were written (law 44).
    - A job is queued once by its id, whatever else a second `enqueue` says. One worker at a time has it. It ends once, and its end
      never changes; what a worker says about a job that it no longer has is dropped. No job is lost with its worker: one that has died
      gives its jobs to others, and each death is counted for each of its jobs, unless `spare` says otherwise (law 51).
    - Of two jobs of an agent that may start in one queue, the one with the higher priority starts first, then the one that was queued first.
      No job starts before its delay has passed, and no more start than the limits of the queue have room for (law 52).

    An object is opened once before its other methods are called. Several tasks may call them concurrently, and any number of
    processes use the same queues, each with an object of its own. Every method can be called again after an error. Each raises
    `DatabaseUnavailable` while the storage is away, busy or full for too long, and another `ClusterError` when it is damaged.
    """

    @abstractmethod
    async def open(self) -> None:
        """Open the queues, and create them if needed.

        Raises:
            ConfigurationError: they cannot be used with what is installed.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close files and connections. Idempotent; callers of `wait` are cancelled."""

    # --- jobs ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def enqueue(self, job: Job) -> None:
        """Queue a job, unless there is one of its id. It is durable when this returns.

        Raises:
            InvalidParameter: the id or the name of the queue is empty, a text cannot be stored, or the priority or the delay is out of
                range: `check_job` says so.
        """

    @abstractmethod
    async def limit_queue(
        self, kind: JobKind, queue: str, *, concurrency: int | None = None, rate: tuple[int, float] | None = None
    ) -> None:
        """Set the limits of a queue, which hold for all workers together; None for no limit. Workers obey them within seconds.

        Args:
            kind: the kind of its jobs.
            queue: its name.
            concurrency: how many of its jobs run at a time; 0 pauses the queue: those that run go on, and none starts.
            rate: how many of its jobs start within a number of seconds, as (count, seconds).

        Raises:
            InvalidParameter: the name cannot be stored, or a number is negative, or no job may start within a time.
        """

    @abstractmethod
    async def find(self, job_id: str, kind: JobKind = JobKind.TOOL) -> JobStatus | None:
        """Return how far a job of a kind is; None when there is no job of this id."""

    @abstractmethod
    async def find_all(self, job_ids: Collection[str], kind: JobKind = JobKind.TOOL) -> Sequence[JobStatus]:
        """Return how far jobs of a kind are, those that exist, oldest first."""

    @abstractmethod
    async def payload_of(self, job_id: str, kind: JobKind = JobKind.EXECUTION) -> Any:
        """Return the payload of a job, JSON data; None when there is no job of this id.

        Raises:
            WorkDamaged: the job is not one that this program wrote.
        """

    @abstractmethod
    async def list(
        self, *, kind: JobKind = JobKind.TOOL, prefix: str = "", states: Collection[JobState] | None = None
    ) -> Sequence[JobStatus]:
        """Return jobs of a kind, oldest first.

        Args:
            kind: the kind.
            prefix: only jobs whose ids start with this text.
            states: only jobs that are this far.
        """

    @abstractmethod
    async def list_damaged(self) -> Sequence[str]:
        """Return what is wrong with jobs, schedules and limits that this program has not written."""

    @abstractmethod
    async def wait(self, job_id: str, kind: JobKind = JobKind.TOOL) -> JobStatus:
        """Wait until a job has ended, and return its status. A job that does not exist yet is waited for."""

    @abstractmethod
    async def cancel_waiting(self, job_ids: Collection[str], kind: JobKind = JobKind.TOOL) -> None:
        """End jobs as cancelled that no worker has taken; the others are left alone."""

    @abstractmethod
    async def list_ended(
        self, kind: JobKind, *, prefix: str = "", after: datetime | None = None, before: datetime | None = None
    ) -> Sequence[str]:
        """Return the ids of jobs of a kind that have ended, oldest first.

        Args:
            kind: the kind.
            prefix: only jobs whose ids start with this text.
            after: only those that ended at this time or later.
            before: only those that ended at this time or earlier.
        """

    @abstractmethod
    async def delete_ended(
        self, kind: JobKind, job_ids: Sequence[str], *, states: Collection[JobState] | None = None
    ) -> None:
        """Delete jobs that have ended, with what they were given and returned, in this order.

        Args:
            kind: the kind.
            job_ids: their ids; a job that does not exist or has not ended is left alone.
            states: only those that are this far; None for all that have ended.
        """

    # --- deaths -------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def forget_deaths(self, job_id: str, kind: JobKind = JobKind.EXECUTION) -> None:
        """Count from 0 again how many workers die while they run a job."""

    @abstractmethod
    async def spare(self, kind: JobKind, job_id: str, is_spared: bool) -> None:  # noqa: FBT001  # for `LastAttempts`
        """Say whether the death of its worker is not counted for a job, because the job only waits there."""

    # --- schedules ----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def schedule(self, name: str, cron: str, job: Job) -> None:
        """Queue a copy of a job at each time of a cron expression, as long as a worker lives; replaces the schedule of this name.

        Each time queues one copy, however many workers live. Its id is that of the job, followed by a text that names the schedule and
        the time.

        Args:
            name: the name of the schedule.
            cron: a cron expression of five fields, or six with the seconds first, in UTC.
            job: the job of an execution.

        Raises:
            InvalidParameter: the cron expression is invalid.
        """

    @abstractmethod
    async def unschedule(self, name: str) -> bool:
        """Remove a schedule; return whether it existed."""

    @abstractmethod
    async def schedules(self) -> Sequence[JobSchedule]:
        """Return the schedules."""

    # --- workers ------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def join(self, note: WorkerNote, *, lost_after: float) -> CanTakeJobs:
        """Take a place for a worker, until it leaves or its process dies. What a dead worker of this name had is put back.

        Args:
            note: what the worker tells about itself.
            lost_after: how long the storage may be away before the worker counts as lost, in seconds.

        Raises:
            ConfigurationError: a live worker has the name.
        """

    @abstractmethod
    async def workers(self) -> Sequence[WorkerNote]:
        """Return the notes of the live workers, by name."""
