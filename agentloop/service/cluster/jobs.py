"""Jobs: what the engine queues and hands to workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from attrs import field, frozen

from agentloop.errors import InvalidParameter, WorkDamaged
from agentloop.values.json import JsonValue, freeze
from agentloop.values.tool_calls import ErrorInfo
from agentloop.values.value import Value

logger: logging.Logger = logging.getLogger("agentloop.cluster")


class JobKind(StrEnum):
    """What a job does; the kinds have slots of their own on each worker, so that callers cannot starve what they wait for."""

    EXECUTION = "execution"
    TOOL = "tool"


class JobState(StrEnum):
    """How far a job is."""

    DELAYED = "delayed"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended."""
        return self in {JobState.FINISHED, JobState.FAILED, JobState.CANCELLED}


@frozen(eq=False, repr=False, kw_only=True)
class Job(Value):
    """Work for any worker that knows the agent.

    Attributes:
        id: its id; a job with an id that exists is no second job.
        kind: what it does.
        agent: the name of the agent whose workers take it.
        payload: its input, JSON data.
        queue: the queue in which it waits.
        version: the version of the program that takes it; None for the newest that has a live worker.
        priority: of two jobs of an agent in one queue, the one with the higher priority starts first.
        delay: how long it waits before it can start, in seconds.
    """

    id: str
    kind: JobKind = field(converter=JobKind)
    agent: str
    payload: JsonValue = field(default=None, converter=freeze)
    queue: str = "default"
    version: str | None = None
    priority: int = 0
    delay: float = 0.0


@frozen(eq=False, repr=False, kw_only=True)
class JobStatus(Value):
    """How far a job is.

    Attributes:
        id: its id.
        kind: what it does.
        agent: its agent.
        queue: its queue.
        version: the version of the program that runs it; None while no worker has taken it and any may.
        state: how far it is.
        worker: the name of the worker that runs it, or ran it last; empty before that.
        attempts: how often a worker has started it; more than 1 after a worker died, was drained or lost its database.
        result: what it returned, JSON data.
        error: why it failed.
        created_at: when it was queued.
        started_at: when it started last; None before that.
    """

    id: str
    kind: JobKind = field(converter=JobKind)
    agent: str
    queue: str
    version: str | None
    state: JobState = field(converter=JobState)
    worker: str = ""
    attempts: int = 0
    result: JsonValue = field(default=None, converter=freeze)
    error: ErrorInfo | None = None
    created_at: datetime
    started_at: datetime | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether its row in the database is not one that agentloop wrote; its state is failed then, and `error` says why."""
        return self.error is not None and self.error.type == WorkDamaged.__name__


@frozen(eq=False, repr=False, kw_only=True)
class RunningJob(Value):
    """A job that this process has started.

    Attributes:
        id: its id.
        kind: what it does.
        agent: its agent.
        payload: its input, JSON data.
        attempt: the 1-based number of this attempt to run it.
        deaths: how many workers have died while they ran it, since `Engine.forget_deaths`. Drains and outages of the database do not
            count.
        queue_seconds: how long it waited in the queue, without its delay, by the clocks of this machine and of the one that queued
            it; None if this is not the first attempt.
    """

    id: str
    kind: JobKind = field(converter=JobKind)
    agent: str
    payload: JsonValue = field(default=None, converter=freeze)
    attempt: int = 1
    deaths: int = 0
    queue_seconds: float | None = None


def check_storable(text: str, what: str) -> None:
    """Check that every database can store an id or a name.

    Args:
        text: the id or the name.
        what: what it is, for the error.

    Raises:
        InvalidParameter: it holds a null character or a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = f"at character {error.start + 1:,}"
        raise InvalidParameter(
            f"{what} is not text: it has bytes that are not UTF-8, or half a character, {place}"
        ) from None
    if "\0" in text:
        raise InvalidParameter(f"{what} is a text without null characters")


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
