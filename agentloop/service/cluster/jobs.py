"""How a worker runs jobs: as tasks, one for each, until it ends, is put back, or the worker leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import TypeAlias

from agentloop._shielding import is_task_cancelled
from agentloop.contracts.can_queue import CanTakeJobs
from agentloop.values.jobs import JobKind, RunningJob
from agentloop.values.json import freeze
from agentloop.values.tool_calls import ErrorInfo

logger: logging.Logger = logging.getLogger("agentloop.cluster")


JobHandler: TypeAlias = Callable[[RunningJob], Awaitable[object]]
"""Runs a job and returns its result, JSON data. An error that it raises ends the job as failed."""


class LastAttempts:
    """Runs jobs that are on their last attempt one at a time: one that kills its worker takes all others there with it.

    A job that waits for its turn does not run: the death of its worker is not counted for it.

    Args:
        spare: tells the engine whether the death of this worker is not counted for a job.
    """

    def __init__(self, spare: Callable[[str, bool], Awaitable[None]]) -> None:
        self._spare = spare
        self._jobs = 0
        self._alone = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, job: RunningJob) -> AsyncIterator[None]:
        """Wait until no other job is on its last attempt in this worker."""
        self._jobs += 1
        try:
            if self._jobs > 1:
                await self._note(job, is_spared=True)
            async with self._alone:
                await self._note(job, is_spared=False)
                yield
        finally:
            self._jobs -= 1

    async def _note(self, job: RunningJob, *, is_spared: bool) -> None:
        try:
            await self._spare(job.id, is_spared)
        except Exception as error:  # noqa: BLE001  # the job goes on; one death too many or too few is counted
            logger.warning("it is not noted whether job %s runs: %s", job.id, type(error).__name__)


# --- taking and running them --------------------------------------------------------------------------------------------

_PUT_BACK_SECONDS = 0.25
"""How long a job that was cancelled by a part of its own waits before it goes back into its queue, in seconds."""
_CLOSE_SECONDS = 5.0
"""How long a worker that must not go on waits for what it has interrupted, in seconds."""
_OUTCOME_SECONDS = 5.0
"""How long a drained worker waits until the ends of its jobs are stored, in seconds."""


class JobRunner:
    """Takes jobs and runs them as tasks of the running event loop.

    Args:
        place: the place of the worker at the queues.
        handlers: what runs a job of each kind.
    """

    def __init__(self, place: CanTakeJobs, handlers: Mapping[JobKind, JobHandler]) -> None:
        self._place = place
        self._handlers = dict(handlers)
        self._jobs: dict[asyncio.Task[None], RunningJob] = {}  # by the tasks that run them
        self._ends: dict[
            asyncio.Task[None], RunningJob
        ] = {}  # by the tasks that store the ends; of jobs that have ended, until that is stored
        self._taking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to take jobs."""
        self._taking = asyncio.create_task(self._take())

    async def failed(self) -> None:
        """Wait until no more jobs can be taken, and raise why."""
        if self._taking is not None:
            await asyncio.wait((self._taking,))
            if not self._taking.cancelled():
                self._taking.result()

    async def _take(self) -> None:
        while True:
            job = await self._place.take()
            task = asyncio.create_task(self._run(job))
            self._jobs[task] = job
            task.add_done_callback(self._jobs.pop)

    async def _run(self, job: RunningJob) -> None:
        """Run a job, and let its end be stored, which nothing interrupts."""
        error, result = None, None
        try:
            result = freeze(await self._handlers[job.kind](job))
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            # It would stay "running" on a worker that lives.
            logger.warning("job %s was cancelled by a part of its own, and goes back into its queue", job.id)
            await self._put_back(job)
            return
        except Exception as problem:  # noqa: BLE001  # it is stored
            error = ErrorInfo.of(problem)
        storing = asyncio.create_task(self._place.end(job, result, error))
        self._ends[storing] = job
        storing.add_done_callback(self._ends.pop)
        await asyncio.shield(storing)

    async def _put_back(self, job: RunningJob) -> None:
        """Put a job back into its queue after a moment, and try until that succeeds or the worker ends."""
        while True:
            await asyncio.sleep(_PUT_BACK_SECONDS)
            try:
                await self._place.put_back([job])
            except Exception as error:  # noqa: BLE001  # the database may be away
                logger.warning("job %s could not be put back: %s", job.id, type(error).__name__)
            else:
                return

    async def hand_over(self, until_idle: Callable[[RunningJob], Awaitable[object]], *, grace: float) -> int:
        """Take no more jobs, interrupt what runs, and put it back into its queues; return how many jobs there were.

        Args:
            until_idle: waits until a job may be interrupted without a grace period.
            grace: how long a job that is not idle may run on, in seconds.
        """
        await self._stop_taking()
        await self._place.stop_taking()
        jobs = dict(self._jobs)
        ended = await asyncio.gather(*[self._interrupt(task, until_idle(job), grace) for task, job in jobs.items()])
        interrupted = [job for job, has_ended in zip(jobs.values(), ended, strict=True) if not has_ended]
        if self._ends:  # what has ended must not run again
            await asyncio.wait(list(self._ends), timeout=_OUTCOME_SECONDS)
        return await self._place.put_back(interrupted) if interrupted else 0

    async def _interrupt(self, task: asyncio.Task[None], until_idle: Awaitable[object], grace: float) -> bool:
        """Interrupt a job as soon as it is idle; return whether it has ended instead."""
        job, idle = self._jobs.get(task), asyncio.ensure_future(until_idle)
        await asyncio.wait((task, idle), timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        await asyncio.wait((task,))
        idle.cancel()
        return not task.cancelled() or any(each is job for each in self._ends.values())

    async def _stop_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait((self._taking,))

    async def close(self) -> None:
        """Interrupt what runs; its jobs are those of a worker that has died, unless it was put back."""
        await self._stop_taking()
        left: Collection[asyncio.Task[None]] = [*self._jobs, *self._ends]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_CLOSE_SECONDS)
