"""The engine: jobs in queues, which any worker of the database takes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final, Self, TypeVar, cast

from agentloop.contracts.can_queue import CanQueue
from agentloop.errors import ConfigurationError, DatabaseUnavailable, InvalidParameter, WorkDamaged
from agentloop.service.cluster.database import ClusterDatabase
from agentloop.service.cluster.dbos_binding import (
    ClientScheduleInput,
    DBOSClient,
    DBOSException,
    EnqueueOptions,
    JsonSerializer,
    as_engine_errors,
    prepare_tables,
)
from agentloop.service.cluster.engine_worker import EngineWorker, announce_work, engine_version, release_jobs_of_dead
from agentloop.service.cluster.liveness import read_live_notes
from agentloop.service.cluster.protection import forget_strange_versions, refuse_other_formats
from agentloop.service.cluster.rows import (
    APPLICATION,
    DEATHS,
    QUEUES,
    SCHEDULED,
    SPARED,
    WorkRow,
    engine_id,
    function_of,
    is_of_application,
    job_of_schedule,
    list_queue_names,
    names_of,
    read_schedules,
    read_work,
)
from agentloop.values.jobs import (
    MAX_PRIORITY,
    Job,
    JobKind,
    JobSchedule,
    JobState,
    JobStatus,
    WorkerNote,
    check_job,
    check_limits,
    check_storable,
)
from agentloop.values.json import thaw

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("agentloop.cluster")

_AWAY_SECONDS: Final = 10.0
"""How long a use of the queues tries to reach a database that was there before, in seconds."""
_AWAY_PAUSE: Final = 0.25
_RESULT_INTERVAL: Final = 0.02
"""How often the results of waiting callers are looked up, in seconds."""
_ENDED: Final = frozenset({state for state in JobState if state.is_terminal})
_MAX_DAMAGED: Final = 100
"""How many damaged rows are listed."""


class Engine(CanQueue):
    """The queues of a cluster: DBOS, in the tables of its database. Use it as an async context manager, or open and close it.

    Every method raises a `ClusterError` when the SQLite file of the queues is damaged or cannot be opened, and `DatabaseUnavailable`
    when the database is away, busy or full for longer than ten seconds.

    Args:
        database: the database of the cluster.
    """

    def __init__(self, database: ClusterDatabase) -> None:
        self._database = database
        self._client: DBOSClient | None = None
        # Threads of its own: what blocks the threads of the program must not delay the queues.
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="agentloop engine")
        self._queues: set[str] = set()
        self._waiting: dict[tuple[JobKind, str], asyncio.Future[JobStatus]] = {}
        self._lookup: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(self) -> None:
        """Open the tables, and create them if needed.

        Raises:
            ConfigurationError: the installed version of DBOS, or of SQLite, cannot be used.
        """
        await self._in_thread(self._open)

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _open(self) -> None:
        if self._client is None:
            prepare_tables(self._database)
            client = DBOSClient(
                system_database_url=self._database.engine_url,
                serializer=JsonSerializer(),
                application_name=APPLICATION,
                lazy=True,
            )
            try:
                refuse_other_formats(client._sys_db)
                forget_strange_versions(client._sys_db)
            except BaseException:
                client.destroy()
                raise
            self._client = client

    async def aclose(self) -> None:
        """Close connections. Idempotent; callers of `wait` are cancelled."""
        if self._lookup is not None:
            self._lookup.cancel()
            with suppress(asyncio.CancelledError):
                await self._lookup
            self._lookup = None
        client, self._client = self._client, None
        if client is not None:
            await self._in_thread(client.destroy)
        self._threads.shutdown(wait=False)

    @property
    def client(self) -> DBOSClient:
        """The client of DBOS."""
        if self._client is None:
            raise ConfigurationError("the cluster is not open; use `async with`")
        return self._client

    async def _in_thread(self, function: Callable[[], T]) -> T:
        """Run a function in a thread, again while the database is away: it may have been carried out, and has to expect that.

        Raises:
            DatabaseUnavailable: the database is away for too long.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _AWAY_SECONDS
        while True:
            try:
                with as_engine_errors(self._database):
                    return await loop.run_in_executor(self._threads, function)
            except DatabaseUnavailable as error:
                if loop.time() >= deadline or self._client is None:  # while it opens, its caller tries again
                    raise
                logger.debug("the database of the queues is tried again: %s", error)
            await asyncio.sleep(_AWAY_PAUSE)

    # --- jobs ---------------------------------------------------------------------------------------------------------

    async def enqueue(self, job: Job) -> None:
        """Queue a job, unless there is one of its id. It is durable when this returns.

        Raises:
            InvalidParameter: the id or the name of the queue is empty, a text cannot be stored, or the priority or the delay is out of
                range.
        """
        await self._in_thread(partial(self._enqueue, job))

    def _enqueue(self, job: Job) -> None:
        check_job(job)
        options = EnqueueOptions(
            workflow_name=function_of(job.kind),
            queue_name=self._queue(job.kind, job.queue),
            workflow_id=engine_id(job.kind, job.id),
            priority=MAX_PRIORITY - job.priority,
            queue_partition_key=job.agent,
        )
        if job.version is not None:
            options["app_version"] = engine_version(job.version)
        if job.delay > 0:
            options["delay_seconds"] = job.delay
        self.client.enqueue(options, thaw(job.payload))
        announce_work(self._database, self.client)

    def _queue(self, kind: JobKind, queue: str) -> str:
        """Return the name of a queue in the engine, after creating it if needed."""
        name = QUEUES[kind] + queue
        if name not in self._queues:
            self.client.register_queue(name, on_conflict="never_update")
            self._queues.add(name)
        return name

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
        check_storable(queue, "the name of the queue")
        check_limits(concurrency, rate)
        limiter = None if rate is None else {"limit": rate[0], "period": rate[1]}
        register = partial(
            self.client.register_queue,
            QUEUES[kind] + queue,
            global_concurrency=concurrency,
            limiter=cast("Any", limiter),
            on_conflict="always_update",
        )
        await self._in_thread(register)

    async def find(self, job_id: str, kind: JobKind = JobKind.TOOL) -> JobStatus | None:
        """Return how far a job of a kind is; None when there is no job of this id."""
        return next(iter(await self.find_all([job_id], kind)), None)

    async def find_all(self, job_ids: Collection[str], kind: JobKind = JobKind.TOOL) -> Sequence[JobStatus]:
        """Return how far jobs of a kind are, those that exist."""
        ids = [engine_id(kind, job_id) for job_id in job_ids]
        found = await self._read(self._table.c.workflow_uuid.in_(ids), reads_outputs=True) if ids else ()
        return [row.status(kind) for row in found]

    async def payload_of(self, job_id: str, kind: JobKind = JobKind.EXECUTION) -> Any:
        """Return the payload of a job, JSON data; None when there is no job of this id.

        Raises:
            WorkDamaged: the row of the job is not one that this program wrote.
        """
        found = await self._read(self._table.c.workflow_uuid == engine_id(kind, job_id), reads_inputs=True)
        if found and found[0].problem:
            raise WorkDamaged(f"the row of the job {job_id!r} is damaged: {found[0].problem}")
        return thaw(found[0].arguments[0]) if found else None

    async def list(
        self, *, kind: JobKind = JobKind.TOOL, prefix: str = "", states: Collection[JobState] | None = None
    ) -> Sequence[JobStatus]:
        """Return jobs of a kind, oldest first.

        Args:
            kind: the kind.
            prefix: only jobs whose ids start with this text.
            states: only jobs that are this far.
        """
        conditions = [] if states is None else [self._table.c.status.in_(names_of(states))]
        found = [row.status(kind) for row in await self._read_prefix(kind, prefix, *conditions, reads_outputs=True)]
        return found if states is None else [job for job in found if job.state in states]

    async def list_damaged(self) -> Sequence[str]:
        """Return what is wrong with the newest rows of jobs and with schedules that this program has not written."""
        return await self._in_thread(partial(_list_damaged, self.client._sys_db))

    @property
    def _table(self) -> Any:
        return self.client._sys_db.tables.workflow_status

    async def _read(self, *conditions: Any, **what: bool) -> Sequence[WorkRow]:
        return await self._in_thread(partial(read_work, self.client._sys_db, *conditions, **what))

    async def _read_prefix(self, kind: JobKind, prefix: str, *conditions: Any, **what: bool) -> Sequence[WorkRow]:
        """Return the rows of a kind whose jobs have ids that start with a text."""
        start = engine_id(kind, prefix)
        has_prefix = self._table.c.workflow_uuid.startswith(start, autoescape=True)
        found = await self._read(is_of_application(self.client._sys_db), has_prefix, *conditions, **what)
        # Again, and exactly: SQLite ignores the case of ASCII letters.
        return [row for row in found if row.id.startswith(start)]

    async def wait(self, job_id: str, kind: JobKind = JobKind.TOOL) -> JobStatus:
        """Wait until a job has ended, and return its status. A job that does not exist yet is waited for."""
        # One query looks up all jobs that tasks of this process wait for.
        key = (kind, engine_id(kind, job_id))
        future = self._waiting.get(key)
        if future is None:
            future = self._waiting[key] = asyncio.get_running_loop().create_future()
        if self._lookup is None or self._lookup.done():
            self._lookup = asyncio.create_task(self._look_up_results())
        return await asyncio.shield(future)

    async def _look_up_results(self) -> None:
        try:
            while self._waiting:
                kinds = {each: kind for kind, each in self._waiting}
                for row in await self._read(self._table.c.workflow_uuid.in_(list(kinds)), reads_outputs=True):
                    status = row.status(kinds[row.id])
                    if status.state.is_terminal:
                        self._waiting.pop((status.kind, row.id)).set_result(status)
                await asyncio.sleep(_RESULT_INTERVAL)
        except BaseException as error:
            waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                if isinstance(error, Exception):
                    future.set_exception(error)
                else:
                    future.cancel()
            if not isinstance(error, Exception):  # who waits gets the others
                raise

    async def cancel_waiting(self, job_ids: Collection[str], kind: JobKind = JobKind.TOOL) -> None:
        """Take jobs out of their queues, without those that a worker has started."""
        await self._in_thread(partial(self._cancel_waiting, [engine_id(kind, job_id) for job_id in job_ids]))

    def _cancel_waiting(self, engine_ids: Sequence[str]) -> None:
        system = self.client._sys_db
        table = system.tables.workflow_status
        # In one statement: between a look and a cancellation, a worker could start the job.
        with system.engine.begin() as connection:
            connection.execute(
                table.update()
                .where(table.c.workflow_uuid.in_(engine_ids), table.c.status.in_(["ENQUEUED", "DELAYED"]))
                .values(status="CANCELLED", queue_name=None, completed_at=int(time.time() * 1000))
            )

    async def forget_deaths(self, job_id: str, kind: JobKind = JobKind.EXECUTION) -> None:
        """Count from 0 again how many workers die while they run a job."""
        reset = partial(self.client.update_workflow_attributes, engine_id(kind, job_id), {DEATHS: 0}, merge=True)
        await self._in_thread(reset)

    async def spare(self, kind: JobKind, job_id: str, is_spared: bool) -> None:  # noqa: FBT001  # for `LastAttempts`
        """Say whether the death of its worker is not counted for a job, because the job only waits there."""
        note = partial(self.client.update_workflow_attributes, engine_id(kind, job_id), {SPARED: is_spared}, merge=True)
        await self._in_thread(note)

    async def release_dead(self, worker: str, *, counts: bool) -> int:
        """Put the jobs of a worker that has died back into their queues; return how many were. The caller holds its lock.

        Args:
            worker: the name of the worker.
            counts: whether its death is counted for the jobs.
        """
        return await self._in_thread(lambda: release_jobs_of_dead(self.client._sys_db, worker, counts=counts))

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
        conditions = [self._table.c.status.in_(names_of(_ENDED))]
        if after is not None:
            conditions.append(self._table.c.completed_at >= _milliseconds(after))
        if before is not None:
            conditions.append(self._table.c.completed_at <= _milliseconds(before))
        found = await self._read_prefix(kind, prefix, *conditions)
        return [row.id.removeprefix(engine_id(kind, "")) for row in found]

    async def delete_ended(
        self, kind: JobKind, job_ids: Sequence[str], *, states: Collection[JobState] | None = None
    ) -> None:
        """Delete jobs that have ended, with what they were given and returned, in this order.

        Args:
            kind: the kind.
            job_ids: their ids; a job that does not exist or has not ended is left alone.
            states: only those that are this far; None for all that have ended.
        """
        states = _ENDED if states is None else states
        for start in range(0, len(job_ids), _MAX_DELETED):
            engine_ids = [engine_id(kind, job_id) for job_id in job_ids[start : start + _MAX_DELETED]]
            # A job whose result cannot be read has failed.
            reads_outputs = JobState.FINISHED not in states
            found = await self._read(self._table.c.workflow_uuid.in_(engine_ids), reads_outputs=reads_outputs)
            # A deletion by id takes what has ended alone: the state of a job never changes after its end.
            ended = [row.id for row in found if row.status(kind).state in states]
            await self._in_thread(partial(self.client.delete_workflows, ended))

    # --- schedules ----------------------------------------------------------------------------------------------------

    async def schedule(self, name: str, cron: str, job: Job) -> None:
        """Queue a copy of a job at each time of a cron expression; replaces the schedule of this name.

        Args:
            name: the name of the schedule.
            cron: a cron expression of five fields, or six with the seconds first, in UTC.
            job: the job of an execution; the id of each copy is that of the job, `sched-`, the name of the schedule, and the time.

        Raises:
            InvalidParameter: the cron expression is invalid.
        """
        context = {
            "id": job.id,
            "kind": job.kind.value,
            "agent": job.agent,
            "payload": thaw(job.payload),
            "queue": job.queue,
            "version": job.version,
            "priority": job.priority,
        }
        await self._in_thread(partial(self._schedule, name, cron, context))

    def _schedule(self, name: str, cron: str, context: Mapping[str, object]) -> None:
        schedule: ClientScheduleInput = {
            "schedule_name": name,
            "workflow_name": SCHEDULED,
            "schedule": cron,
            "context": dict(context),
        }
        try:
            self.client.apply_schedules([schedule])
        except DBOSException as error:
            raise InvalidParameter(f"{cron!r} is no cron expression, such as '0 9 * * 1-5'") from error

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule; return whether it existed."""
        condition = self.client._sys_db.tables.workflow_schedules.c.schedule_name == name
        existing = await self._in_thread(partial(read_schedules, self.client._sys_db, condition))
        await self._in_thread(partial(self.client.delete_schedule, name))
        return bool(existing)

    async def schedules(self) -> Sequence[JobSchedule]:
        """Return the schedules."""
        found = await self._in_thread(partial(read_schedules, self.client._sys_db))
        return [
            JobSchedule(
                name=row.name,
                cron=row.cron,
                job=job_of_schedule(row.job, "") if row.job else None,
                problem=row.problem,
            )
            for row in found
        ]

    # --- workers ------------------------------------------------------------------------------------------------------

    async def join(self, note: WorkerNote, *, lost_after: float) -> EngineWorker:
        """Take the lock of a worker, put back what a dead one of its name ran, and begin to take jobs.

        Args:
            note: what the worker tells about itself.
            lost_after: how long the database may be away before the worker counts as lost, in seconds.

        Raises:
            ConfigurationError: a live worker has the name.
        """
        worker = EngineWorker(self._database, note, lost_after=lost_after, enqueue=self.enqueue, client=self.client)
        try:
            has_missed_restart = await asyncio.to_thread(worker.register)
            await self.release_dead(note.name, counts=not has_missed_restart)
            worker.start()
        except BaseException:
            await worker.leave()
            raise
        return worker

    async def workers(self) -> Sequence[WorkerNote]:
        """Return the notes of the live workers, by name."""
        return await asyncio.to_thread(read_live_notes, self._database)


_MAX_DELETED: Final = 1000
"""How many jobs are deleted in one transaction."""


def _milliseconds(at: datetime) -> int:
    """Return a time as the engine stores it."""
    return int(at.timestamp() * 1000)


def _list_damaged(system: Any) -> Sequence[str]:
    table = system.tables.workflow_status
    # The errors of work that ran are in a table of their own.
    conditions = (is_of_application(system), table.c.status == "ERROR", table.c.error.is_not(None))
    found = [
        f"{row.id or 'work without an id'}: {row.failure.message}"
        for row in read_work(system, *conditions, reads_outputs=True)
        if row.failure is not None and row.failure.type == WorkDamaged.__name__
    ]
    schedules = [f"schedule {row.name or row.id}: {row.problem}" for row in read_schedules(system) if row.problem]
    queues = [f"queue {name}: its limits cannot be read; set them again" for name in list_queue_names(system)[1]]
    return [*found[-_MAX_DAMAGED:], *schedules, *queues]
