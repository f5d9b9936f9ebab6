"""Jobs: what queues hold and hand to workers, and what a worker tells about itself."""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum
from typing import Final

from attrs import field, frozen

from agentloop.errors.kinds import InvalidParameter, WorkDamaged
from agentloop.values.json import JsonValue, freeze, parse_json
from agentloop.values.tool_calls import ErrorInfo
from agentloop.values.value import Value

MAX_PRIORITY: Final = 1_000_000
"""The number below which the priority of a job is, and above the negative of which."""
_MAX_DELAY: Final = 10 * 365 * 86_400
"""The longest delay of a job, in seconds: about ten years."""


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
        deaths: how many workers have died while they ran it, since `CanQueue.forget_deaths`. Drains and outages of the database do not
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


@frozen(eq=False, repr=False, kw_only=True)
class JobSchedule(Value):
    """A job of which a copy is queued at the times of a cron expression.

    Attributes:
        name: the name of the schedule.
        cron: the cron expression, in UTC.
        job: the job; None for one that cannot be read.
        problem: why it queues nothing; empty for one that does.
    """

    name: str
    cron: str
    job: Job | None
    problem: str = ""


@frozen(eq=False, repr=False, kw_only=True)
class WorkerNote(Value):
    """What a worker tells about itself.

    Attributes:
        name: its name, which no other live worker of the database has.
        version: the version of the program that it runs.
        agents: the names of the agents that it runs.
        executions: how many executions it runs at a time.
        tools: how many queued tool calls it runs at a time.
        host: the machine.
        process: the id of its process.
        started: when it started, in seconds since 1970.
        server: which start of the database's server it has seen, as that server names it; empty without a server.
    """

    name: str
    version: str = ""
    agents: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    executions: int = 0
    tools: int = 0
    host: str = ""
    process: int = 0
    started: float = 0.0
    server: str = ""

    def to_text(self) -> str:
        """Return the note as a JSON object."""
        names = ("name", "version", "agents", "executions", "tools", "host", "process", "started", "server")
        return json.dumps({name: getattr(self, name) for name in names})

    @classmethod
    def from_text(cls, text: str) -> WorkerNote | None:
        """Return the note that `to_text` wrote; None for a text that it did not write."""
        try:
            match parse_json(text):
                case {
                    "name": str(name),
                    "version": str(version),
                    "agents": list(agents),
                    "executions": int(executions),
                    "tools": int(tools),
                    "host": str(host),
                    "process": int(process),
                    "started": int() | float() as started,
                    "server": str(server),
                } if all(isinstance(agent, str) for agent in agents):
                    return cls(
                        name=name,
                        version=version,
                        agents=tuple(agents),
                        executions=executions,
                        tools=tools,
                        host=host,
                        process=process,
                        started=started,
                        server=server,
                    )
        except ValueError:  # no JSON
            pass
        return None


def check_limits(concurrency: int | None, rate: tuple[int, float] | None) -> None:
    """Check the limits of a queue: how many of its jobs run at a time, and how many start within a number of seconds.

    Raises:
        InvalidParameter: one is negative, or no job may start within a time.
    """
    if concurrency is not None and concurrency < 0:
        raise InvalidParameter(f"the concurrency of a queue is 0, which pauses it, or more, not {concurrency}")
    if rate is not None and (rate[0] < 1 or not 0 < rate[1] <= _MAX_DELAY):
        raise InvalidParameter(
            f"the rate of a queue is a number of jobs in a number of seconds, as in (5, 60.0), not {rate}"
        )


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


def check_job(job: Job) -> None:
    """Check that a job can be queued.

    Raises:
        InvalidParameter: the id or the name of the queue is empty, a text cannot be stored, or the priority or the delay is out of range.
    """
    if not job.id.strip():
        raise InvalidParameter("the id of a job is empty")
    if not 0 <= job.delay <= _MAX_DELAY:
        raise InvalidParameter(f"a delay is a number of seconds from 0 to {_MAX_DELAY:,}, not {job.delay}")
    if not job.queue.strip():
        raise InvalidParameter("the name of the queue is empty")
    check_storable(job.id, "the id of the job")
    check_storable(job.agent, "the name of the agent")
    check_storable(job.queue, "the name of the queue")
    check_storable(job.version or "", "the version")
    if abs(job.priority) >= MAX_PRIORITY:
        raise InvalidParameter(f"a priority is between -{MAX_PRIORITY - 1:,} and {MAX_PRIORITY - 1:,}")
