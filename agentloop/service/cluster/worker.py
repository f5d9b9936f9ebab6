"""A worker: runs executions and queued tool calls of its agents, next to any number of others."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar

from agentloop.contracts.can_queue import CanQueue, CanTakeJobs
from agentloop.contracts.can_store_objects import CanStoreObjects
from agentloop.durable.exits import secrets_of
from agentloop.durable.journal import Journal
from agentloop.durable.memory_journal import MemoryJournal
from agentloop.durable.opening import open_journal
from agentloop.errors import (
    ConfigurationError,
    DatabaseLost,
    DatabaseUnavailable,
    InvalidParameter,
    JournalBusy,
    JournalFull,
)
from agentloop.executors.forwarding import innermost_executor
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.dependencies import with_dependencies
from agentloop.service.cluster.deletions import DeletionSweep
from agentloop.service.cluster.executions import ExecutionJobs, Retention, execution_of_job, forget_calls
from agentloop.service.cluster.jobs import JobHandler, JobRunner, LastAttempts
from agentloop.service.cluster.opening import make_queues, place_of
from agentloop.service.cluster.queued_tools import QueuedToolExecutor, bind_queue, run_tool_job
from agentloop.service.cluster.sessions import keep_queueing, queue_turns
from agentloop.values.jobs import JobKind, RunningJob, WorkerNote
from agentloop.values.secrets import Secret
from agentloop.values.time_and_ids import Clock, IdSource, RandomIds, SystemClock

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("agentloop.cluster")

DEFAULT_AGENT = "default"
"""The name of the agent of a worker that has one agent without a name."""
_REACH_PAUSE = 0.25
"""The time between attempts of a worker that starts to reach its database, in seconds."""


class Worker:
    """Runs the executions and queued tool calls that are submitted for its agents.

    Any number of workers share a database; each takes what it has a free slot for. A worker holds a lock that ends with its
    process. When it dies, the others continue its executions from the journal within seconds.

    A worker is used once, and a process has one at a time.

    Args:
        agents: an agent, or agents by name. A single agent has the name `default`. Each gets the journal of the database; an
            agent may have it already, or a `MemoryJournal`, which is replaced.
        db: the path of a SQLite file, or a `postgresql://` URL; not needed with `journal` and `queues`.
        journal: the journal of the executions, which the worker closes; by default that of the database.
        queues: the queues, which the worker opens and closes; by default those of the database.
        name: the name of the worker, unique among the live workers of the database; by default made of the host and the process.
        version: the version of the program. A worker takes work that was submitted for its version.
        executions: how many executions it runs at a time.
        tools: how many queued tool calls it runs at a time.
        max_recoveries: how often an execution is recovered without progress between, before it ends as failed.
        lost_after: how long the database may be unreachable before the worker gives up, in seconds.
        drain_grace: how long tool calls that run may go on when the worker is drained, in seconds, before they are interrupted.
        retention: how long jobs that have ended stay in the queues' tables, in seconds; None for ever. Executions stay in the journal.
        secrets: texts, or keys, that are masked wherever they occur in records, besides the keys that the agents have.
        secret_fields: fields that are masked, by names or dotted paths, as in `SqliteJournal`.
        objects: stores long strings of records outside of the database, as in `SqliteJournal`; each worker and cluster gets the same.
        dependencies: replaces the `dependencies` of the agents: a value, or a function that makes them for each run from a `RunRequest`.
        progress: called in the event loop with a short text whenever something begins or ends.
        clock: the source of times.
        ids: the source of the worker's name.

    Raises:
        InvalidParameter: there is no agent, or a number is out of range.
        ConfigurationError: an agent has a journal of its own that is not that of the database, or a tool needs dependencies that
            nothing makes.
    """

    def __init__(  # noqa: PLR0913  # keywords with defaults
        self,
        agents: AgentLoop | Mapping[str, AgentLoop],
        db: str | os.PathLike[str] = "",
        *,
        journal: Journal | None = None,
        queues: CanQueue | None = None,
        name: str | None = None,
        version: str = "",
        executions: int = 8,
        tools: int = 16,
        max_recoveries: int = 3,
        lost_after: float = 30.0,
        drain_grace: float = 10.0,
        retention: float | None = 7 * 86_400.0,
        secrets: Iterable[str | Secret] = (),
        secret_fields: Iterable[str] = (),
        objects: CanStoreObjects | None = None,
        dependencies: Any = None,
        progress: Callable[[str], None] | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        _check_numbers(executions, tools, max_recoveries, (lost_after, drain_grace, retention))
        self._clock, ids = clock or SystemClock(), ids or RandomIds()
        self._location, self._place = place_of(db, journal, queues)
        self._journal = journal
        self._has_own_queues = queues is not None
        self._queues: CanQueue = queues or make_queues(self._location)
        self._agents = with_dependencies(_named(agents), dependencies, runs_all=tools > 0)
        self._journal_options = {
            "secrets": (*secrets, *secrets_of(*self._agents.values())),
            "secret_fields": tuple(secret_fields),
            "objects": objects,
        }
        self.name: str = name or f"{socket.gethostname()}-{os.getpid()}-{ids.new_id('worker')[-6:]}"
        self._version = version
        self._slots = {JobKind.EXECUTION: executions, JobKind.TOOL: tools}
        self._max_recoveries = max_recoveries
        self._lost_after = lost_after
        self._drain_grace = drain_grace
        self._retention = retention
        self._progress = progress or (lambda _: None)
        self._started = asyncio.Event()
        self._drained = asyncio.Event()
        self._lost = ""

    def __repr__(self) -> str:
        return f"Worker({', '.join(self._agents)}; name={self.name!r}, db={self._place!r})"

    async def run(self) -> None:
        """Work until `drain` is called, or the task is cancelled.

        Raises:
            ConfigurationError: a live worker has the same name.
            JournalError: the file is no journal, or the database cannot be reached for `lost_after` seconds when the worker starts.
            ClusterError: the file of the queues is damaged or cannot be opened.
            DatabaseLost: the database could not be reached for too long, or another worker took the name meanwhile.
        """
        async with AsyncExitStack() as stack:
            journal = self._journal or open_journal(self._location, **self._journal_options)
            stack.push_async_callback(journal.aclose)
            # The journal says what is wrong with a file or a server; the engine would create its tables beside any file.
            await self._until_reached(partial(journal.list, limit=1))
            stack.push_async_callback(self._queues.aclose)
            await self._until_reached(self._queues.open)
            agents = {name: self._bound(name, loop, journal) for name, loop in self._agents.items()}
            for loop in agents.values():
                await stack.enter_async_context(loop)
            place = await self._until_reached(lambda: self._queues.join(self._note(), lost_after=self._lost_after))
            stack.push_async_callback(place.leave)
            await self._work(place, agents, journal)
        if self._lost:
            raise DatabaseLost(self._lost)

    async def _until_reached(self, action: Callable[[], Awaitable[T]]) -> T:
        """Carry out an action of the start, again while the database is away, for as long as a worker that runs would wait for it.

        Raises:
            JournalError: the journal is busy or full for too long.
            DatabaseUnavailable: the database is away for too long.
        """
        deadline, has_told = self._clock.monotonic() + self._lost_after, False
        while True:
            try:
                return await action()
            except (JournalBusy, JournalFull, DatabaseUnavailable) as error:
                if self._clock.monotonic() >= deadline:
                    raise
                if not has_told:
                    has_told = True
                    logger.warning("worker %s waits for its database: %s: %s", self.name, type(error).__name__, error)
            await asyncio.sleep(_REACH_PAUSE)

    async def started(self) -> None:
        """Wait until the worker takes work."""
        await self._started.wait()

    async def drain(self) -> None:
        """Take no more work, interrupt what runs so that other workers continue it at once, and let `run` return."""
        self._drained.set()

    def _note(self) -> WorkerNote:
        return WorkerNote(
            name=self.name,
            version=self._version,
            agents=tuple(self._agents),
            executions=self._slots[JobKind.EXECUTION],
            tools=self._slots[JobKind.TOOL],
            host=socket.gethostname(),
            process=os.getpid(),
            started=self._clock.now().timestamp(),
        )

    def _bound(self, name: str, loop: AgentLoop, journal: Journal) -> AgentLoop:
        """Return an agent with the journal and the queues of the database."""
        queues = self._queues if self._has_own_queues else None
        return bind_queue(loop.replace(journal=journal), self._location, name, self._version, queues)

    # --- working ------------------------------------------------------------------------------------------------------

    async def _work(self, place: CanTakeJobs, agents: Mapping[str, AgentLoop], journal: Journal) -> None:
        executions = self._execution_jobs(agents, journal)

        async def until_idle(job: RunningJob) -> None:
            if job.kind is JobKind.EXECUTION:
                await executions.until_idle(job)
            else:
                await asyncio.Event().wait()  # a call ends with its job

        async def run_execution(job: RunningJob) -> object:
            result = await executions.run(job)
            # Before the job ends: when this worker dies here, the job begins again.
            await queue_turns(self._queues, journal, agents, self._version or None)
            if isinstance(innermost_executor(agents[job.agent].executor), QueuedToolExecutor):
                await self._forget_calls(journal, execution_of_job(job.id))
            return result

        handlers = {JobKind.EXECUTION: self._reported(run_execution), JobKind.TOOL: self._tool_handler(agents)}
        runner = JobRunner(place, handlers)
        retention = asyncio.create_task(self._retain(journal))
        sessions = asyncio.create_task(keep_queueing(self._queues, journal, agents, self._version or None))
        try:
            runner.start()
            self._started.set()
            self._progress(f"worker {self.name} runs {', '.join(agents)} on {self._place}")
            await self._until_drained_or_lost(place, runner)
            if not self._lost:
                self._progress("drains: what runs is interrupted when its tool calls have ended")
                count = await runner.hand_over(until_idle, grace=self._drain_grace)
                self._progress(f"drained: {count} handed over to other workers" if count else "drained")
        finally:
            retention.cancel()
            sessions.cancel()
            await runner.close()

    def _execution_jobs(self, agents: Mapping[str, AgentLoop], journal: Journal) -> ExecutionJobs:
        return ExecutionJobs(
            agents,
            journal,
            max_recoveries=self._max_recoveries,
            forget_deaths=self._queues.forget_deaths,
            last_attempts=LastAttempts(partial(self._queues.spare, JobKind.EXECUTION)),
        )

    def _tool_handler(self, agents: Mapping[str, AgentLoop]) -> JobHandler:
        # Not the turns of executions, which may wait for a call that is on its last attempt, too.
        last_attempts = LastAttempts(partial(self._queues.spare, JobKind.TOOL))

        async def run_tool(job: RunningJob) -> object:
            return await run_tool_job(agents[job.agent], job, last_attempts)

        return run_tool

    async def _forget_calls(self, journal: Journal, execution_id: str) -> None:
        try:
            await forget_calls(self._queues, journal, execution_id)
        except Exception as error:  # noqa: BLE001  # they are deleted after the retention, and the execution must not fail
            logger.warning("queued calls of execution %s are not deleted yet: %s", execution_id, type(error).__name__)

    async def _retain(self, journal: Journal) -> None:
        sweep = DeletionSweep(self._queues, journal)
        if self._retention is None:
            await sweep.run()
        else:
            await asyncio.gather(sweep.run(), Retention(self._queues, journal, self._clock, self._retention).run())

    async def _until_drained_or_lost(self, place: CanTakeJobs, runner: JobRunner) -> None:
        lost, drained = asyncio.create_task(place.lost()), asyncio.create_task(self._drained.wait())
        failed = asyncio.create_task(runner.failed())
        try:
            await asyncio.wait((lost, drained, failed), return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
            if lost.done() and not drained.done():
                self._lost = lost.result()
                logger.error("worker %s gives up: %s", self.name, self._lost)
        finally:
            for task in (lost, drained, failed):
                task.cancel()

    def _reported(self, handler: JobHandler) -> JobHandler:
        async def run(job: RunningJob) -> object:
            again = f" (attempt {job.attempt})" if job.attempt > 1 else ""
            self._progress(f"{job.agent}: {job.id} begins{again}")
            try:
                result = await handler(job)
            except asyncio.CancelledError:
                self._progress(f"{job.agent}: {job.id} is interrupted")
                raise
            except Exception as error:
                logger.warning(
                    "job %s of %s was not carried out: %s: %s", job.id, job.agent, type(error).__name__, error
                )
                raise
            self._progress(f"{job.agent}: {job.id} ends")
            return result

        return run


def _named(agents: AgentLoop | Mapping[str, AgentLoop]) -> dict[str, AgentLoop]:
    named = {DEFAULT_AGENT: agents} if isinstance(agents, AgentLoop) else dict(agents)
    if not named:
        raise InvalidParameter("a worker needs at least one agent")
    for name, loop in named.items():
        if isinstance(loop.journal, MemoryJournal) and loop.journal.masks_secrets:
            raise ConfigurationError(
                f"the journal of the agent {name!r} masks secrets, and the worker replaces it; pass them to the worker: "
                "Worker(…, secrets=…, secret_fields=…)"
            )
        if loop.journal is not None and not isinstance(loop.journal, MemoryJournal):
            raise ConfigurationError(
                f"the agent {name!r} has a journal of its own, {loop.journal!r}; the executions of a cluster are recorded in its "
                "database, so define the agent without a journal"
            )
    return named


def _check_numbers(
    executions: int, tools: int, max_recoveries: int, seconds: tuple[float, float, float | None]
) -> None:
    lost_after, drain_grace, retention = seconds
    if (
        executions < 1
        or tools < 0
        or max_recoveries < 1
        or not lost_after > 0  # a comparison that NaN fails, too
        or not drain_grace >= 0
        or (retention or 0) < 0
    ):
        raise InvalidParameter("a worker has at least one slot for executions, and its other numbers are not negative")
