"""How a worker runs a job: the function that does, and the turns of jobs on their last attempt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from agentloop.values.jobs import RunningJob

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
