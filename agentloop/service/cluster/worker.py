"""A worker: runs executions and queued tool calls of its agents, next to any number of others."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, TypeVar

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
from agentloop.service.cluster.database import ClusterDatabase
from agentloop.service.cluster.dbos_binding import as_engine_errors
from agentloop.service.cluster.deletions import DeletionSweep
from agentloop.service.cluster.engine import Engine, EngineWorker
from agentloop.service.cluster.executions import ExecutionJobs, Retention, StartRequest, execution_of_job, forget_calls
from agentloop.service.cluster.jobs import JobHandler, LastAttempts
from agentloop.service.cluster.liveness import open_locks, open_signal, refuse_second_worker
from agentloop.service.cluster.queued_tools import QueuedToolExecutor, bind_queue, run_tool_job
from agentloop.service.cluster.sessions import keep_queueing, queue_turns
from agentloop.service.cluster.worker_locks import WorkerLocks
from agentloop.values.jobs import Job, JobKind, RunningJob, WorkerNote
from agentloop.values.secrets import Secret
from agentloop.values.time_and_ids import SystemClock

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("agentloop.cluster")

DEFAULT_AGENT = "default"
"""The name of the agent of a worker that has one agent without a name."""
_WATCH_INTERVAL = 1.0
"""How often a worker looks for workers that have died, in seconds."""
_REACH_PAUSE = 0.25
"""The time between attempts of a worker that starts to reach its database, in seconds."""
_GRACE = 5.0
"""How long a worker that was cut off judges nobody, in seconds: its peers may not have connected again yet."""


class Worker:
    """Runs the executions and queued tool calls that are submitted for its agents.

    Any number of workers share a database; each takes what it has a free slot for. A worker holds a lock that ends with its
    process. When it dies, the others continue its executions from the journal within seconds.

    A worker is used once, and a process has one at a time.

    Args:
        agents: an agent, or agents by name. A single agent has the name `default`. Each gets the journal of the database; an
            agent may have it already, or a `MemoryJournal`, which is replaced.
        db: the path of a SQLite file, or a `postgresql://` URL.
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

    Raises:
        InvalidParameter: there is no agent, or a number is out of range.
        ConfigurationError: an agent has a journal of its own that is not that of the database, or a tool needs dependencies that
            nothing makes.
    """

    def __init__(  # noqa: PLR0913  # keywords with defaults
        self,
        agents: AgentLoop | Mapping[str, AgentLoop],
        db: str | os.PathLike[str],
        *,
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
    ) -> None:
        if (
            executions < 1
            or tools < 0
            or max_recoveries < 1
            or not lost_after > 0  # a comparison that NaN fails, too
            or not drain_grace >= 0
            or (retention or 0) < 0
        ):
            raise InvalidParameter(
                "a worker has at least one slot for executions, and its other numbers are not negative"
            )
        self._database = ClusterDatabase.parse(db)
        self._agents = with_dependencies(_named(agents), dependencies, runs_all=tools > 0)
        self._journal_options = {
            "secrets": (*secrets, *secrets_of(*self._agents.values())),
            "secret_fields": tuple(secret_fields),
            "objects": objects,
        }
        self.name: str = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
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
        return f"Worker({', '.join(self._agents)}; name={self.name!r}, db={str(self._database)!r})"

    async def run(self) -> None:
        """Work until `drain` is called, or the task is cancelled.

        Raises:
            ConfigurationError: a live worker has the same name.
            JournalError: the file is no journal, or the database cannot be reached for `lost_after` seconds when the worker starts.
            ClusterError: the file of the queues is damaged or cannot be opened.
            DatabaseLost: the database could not be reached for too long, or another worker took the name meanwhile.
        """
        async with AsyncExitStack() as stack:
            journal = open_journal(self._database.location, **self._journal_options)
            stack.push_async_callback(journal.aclose)
            # The journal says what is wrong with a file or a server; the engine would create its tables beside any file.
            await self._until_reached(partial(journal.list, limit=1))
            engine = await stack.enter_async_context(await self._until_reached(self._open_engine))
            # Locks belong to one thread at a time: this one starts before the watch and ends after it.
            locks = open_locks(self._database)
            has_missed_restart = await self._until_reached(partial(asyncio.to_thread, self._register, locks))
            stack.push_async_callback(asyncio.to_thread, self._unregister, locks)
            # A worker that is started again under its name continues what the process before it ran.
            await engine.release_dead(self.name, counts=not has_missed_restart)
            agents = {name: self._bound(name, loop, journal) for name, loop in self._agents.items()}
            for loop in agents.values():
                await stack.enter_async_context(loop)
            await self._work(engine, locks, agents, journal)
        if self._lost:
            raise DatabaseLost(self._lost)

    async def _open_engine(self) -> Engine:
        engine = Engine(self._database)
        try:
            return await engine.__aenter__()
        except BaseException:
            await engine.aclose()
            raise

    async def _until_reached(self, action: Callable[[], Awaitable[T]]) -> T:
        """Carry out an action of the start, again while the database is away, for as long as a worker that runs would wait for it.

        Raises:
            JournalError: the journal is busy or full for too long.
            DatabaseUnavailable: the database is away for too long.
        """
        deadline, has_told = time.monotonic() + self._lost_after, False
        while True:
            try:
                return await action()
            except (JournalBusy, JournalFull, DatabaseUnavailable) as error:
                if time.monotonic() >= deadline:
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

    # --- the name and the lock ----------------------------------------------------------------------------------------

    @property
    def _note(self) -> WorkerNote:
        return WorkerNote(
            name=self.name,
            version=self._version,
            agents=tuple(self._agents),
            executions=self._slots[JobKind.EXECUTION],
            tools=self._slots[JobKind.TOOL],
            host=socket.gethostname(),
            process=os.getpid(),
            started=time.time(),
        )

    def _register(self, locks: WorkerLocks) -> bool:
        """Take the lock; return whether the server has restarted since a worker of this name wrote its note.

        Raises:
            ConfigurationError: a live worker has the name.
            DatabaseUnavailable: the database is away; the lock is not taken.
        """
        try:
            with as_engine_errors(self._database):
                locks.connect()
                if not locks.take(self.name):
                    raise refuse_second_worker(self.name)  # noqa: TRY301  # the locks are closed as after any error
                has_missed_restart = locks.has_missed_restart(self.name)
                locks.write_note(self._note)
                return has_missed_restart
        except BaseException:
            locks.close()
            raise

    def _unregister(self, locks: WorkerLocks) -> None:
        with suppress(Exception):  # the database may be away, and the lock ends in any case
            locks.erase_note(self.name)
        locks.close()

    def _bound(self, name: str, loop: AgentLoop, journal: Journal) -> AgentLoop:
        """Return an agent with the journal and the queue of the database."""
        return bind_queue(loop.replace(journal=journal), self._database.location, name, self._version)

    # --- working ------------------------------------------------------------------------------------------------------

    async def _work(
        self, engine: Engine, locks: WorkerLocks, agents: Mapping[str, AgentLoop], journal: Journal
    ) -> None:
        executions = self._execution_jobs(engine, agents, journal)

        async def until_idle(job: RunningJob) -> None:
            if job.kind is JobKind.EXECUTION:
                await executions.until_idle(job)
            else:
                await asyncio.Event().wait()  # a call ends with its job

        async def run_execution(job: RunningJob) -> object:
            result = await executions.run(job)
            # Before the job ends: when this worker dies here, the job begins again.
            await queue_turns(engine, journal, agents, self._version or None)
            if isinstance(innermost_executor(agents[job.agent].executor), QueuedToolExecutor):
                await self._forget_calls(engine, journal, execution_of_job(job.id))
            return result

        signal = open_signal(self._database)
        worker = EngineWorker(
            self._database,
            name=self.name,
            version=self._version,
            agents=agents,
            slots=self._slots,
            handlers={
                JobKind.EXECUTION: self._reported(run_execution),
                JobKind.TOOL: self._tool_handler(engine, agents),
            },
            signal=signal,
        )
        watch = Watch(locks, worker, self._note, lost_after=self._lost_after)
        retention = asyncio.create_task(self._retain(engine, journal))
        sessions = asyncio.create_task(keep_queueing(engine, journal, agents, self._version or None))
        try:
            worker.start(partial(self._fire, engine))
            watch.start()
            self._started.set()
            self._progress(f"worker {self.name} runs {', '.join(agents)} on {self._database}")
            await self._until_drained_or_lost(watch)
            if not self._lost:
                self._progress("drains: what runs is interrupted when its tool calls have ended")
                count = await worker.hand_over(engine.client, until_idle, grace=self._drain_grace)
                self._progress(f"drained: {count} handed over to other workers" if count else "drained")
        finally:
            retention.cancel()
            sessions.cancel()
            watch.stop()
            await worker.close()
            signal.close()

    def _execution_jobs(self, engine: Engine, agents: Mapping[str, AgentLoop], journal: Journal) -> ExecutionJobs:
        return ExecutionJobs(
            agents,
            journal,
            max_recoveries=self._max_recoveries,
            forget_deaths=engine.forget_deaths,
            last_attempts=LastAttempts(partial(engine.spare, JobKind.EXECUTION)),
        )

    def _tool_handler(self, engine: Engine, agents: Mapping[str, AgentLoop]) -> JobHandler:
        # Not the turns of executions, which may wait for a call that is on its last attempt, too.
        last_attempts = LastAttempts(partial(engine.spare, JobKind.TOOL))

        async def run_tool(job: RunningJob) -> object:
            return await run_tool_job(agents[job.agent], job, last_attempts)

        return run_tool

    async def _forget_calls(self, engine: Engine, journal: Journal, execution_id: str) -> None:
        try:
            await forget_calls(engine, journal, execution_id)
        except Exception as error:  # noqa: BLE001  # they are deleted after the retention, and the execution must not fail
            logger.warning("queued calls of execution %s are not deleted yet: %s", execution_id, type(error).__name__)

    async def _retain(self, engine: Engine, journal: Journal) -> None:
        sweep = DeletionSweep(engine, journal)
        if self._retention is None:
            await sweep.run()
        else:
            await asyncio.gather(sweep.run(), Retention(engine, journal, SystemClock(), self._retention).run())

    async def _until_drained_or_lost(self, watch: Watch) -> None:
        while not self._drained.is_set():
            if reason := watch.lost_reason():
                self._lost = reason
                logger.error("worker %s gives up: %s", self.name, reason)
                return
            # `asyncio.wait_for` of Python 3.11 loses a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_INTERVAL):
                    await self._drained.wait()

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

    async def _fire(self, engine: Engine, job_id: str, scheduled: Mapping[str, Any]) -> None:
        """Queue the execution of a schedule whose time has come."""
        request = StartRequest(job_id, "")
        payload = {**scheduled["payload"], "execution_id": job_id}
        await engine.enqueue(
            Job(
                id=request.job_id,
                kind=JobKind.EXECUTION,
                agent=scheduled["agent"],
                payload=payload,
                queue=scheduled["queue"],
                version=scheduled["version"],
                priority=scheduled["priority"],
            )
        )


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


class Watch:
    """Checks, in a thread, that this worker holds its lock, and releases the work of workers that have died.

    Args:
        locks: the locks, of which this worker's is held.
        worker: the worker's side of the engine.
        note: what this worker tells about itself.
        lost_after: how long the database may be unreachable, in seconds.
    """

    def __init__(self, locks: WorkerLocks, worker: EngineWorker, note: WorkerNote, *, lost_after: float) -> None:
        self._locks = locks
        self._worker = worker
        self._note = note
        self._lost_after = lost_after
        self._contact = time.monotonic()
        self._quiet_until = 0.0
        self._reason = ""
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agentloop worker watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, unless the database keeps it waiting."""
        self._is_ending.set()
        if self._thread.ident is not None:  # it was not started if the engine could not start
            self._thread.join(_WATCH_INTERVAL)

    def lost_reason(self) -> str:
        """Return why the worker must not go on; empty while it may."""
        away = time.monotonic() - self._contact
        if away > self._lost_after:
            return f"the database could not be reached for {away:.0f} seconds"
        return self._reason

    def _run(self) -> None:
        while not self._is_ending.wait(_WATCH_INTERVAL):
            try:
                self._check()
                self._contact = time.monotonic()
            except Exception as error:  # noqa: BLE001  # whatever it is, the worker goes on until it has lasted too long
                logger.warning("worker %s cannot reach its database: %s", self._note.name, type(error).__name__)

    def _check(self) -> None:
        if self._locks.connect():
            if not self._locks.take(self._note.name):
                self._reason = "another worker took its name while the database was unreachable"
                return
            self._locks.write_note(self._note)
            self._quiet_until = time.monotonic() + _GRACE
        if time.monotonic() >= self._quiet_until:
            self._take_over()
            newest = max(self._locks.live_notes(), key=lambda note: note.started, default=self._note)
            if newest.name == self._note.name:
                self._worker.lead_versions()

    def _take_over(self) -> None:
        for name in self._worker.owners():
            if name == self._note.name or not self._locks.take(name):
                continue
            try:
                count = self._worker.release_dead(name, counts=not self._locks.has_missed_restart(name))
                logger.warning("worker %s has died; %d of its jobs are taken over", name, count)
                self._locks.erase_note(name)
            finally:
                self._locks.drop(name)
