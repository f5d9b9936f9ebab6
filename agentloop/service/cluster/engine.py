"""The engine: jobs in queues, which any worker of the database takes."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final, Self, TypeVar, cast

from agentloop._shielding import is_task_cancelled
from agentloop.errors import ConfigurationError, DatabaseUnavailable, InvalidParameter, WorkDamaged
from agentloop.service.cluster.database import ClusterDatabase
from agentloop.service.cluster.dbos_binding import (
    DBOS,
    ClientScheduleInput,
    DBOSClient,
    DBOSConfig,
    DBOSException,
    EnqueueOptions,
    JsonSerializer,
    Queue,
    as_engine_errors,
    execute_dequeued_workflow,
    generate_uuid,
    prepare_tables,
    retry_lost_connections,
    sqlalchemy,
)
from agentloop.service.cluster.jobs import JobHandler
from agentloop.service.cluster.liveness import wake_workers
from agentloop.service.cluster.protection import (
    Transact,
    as_dbos_status,
    forget_strange_versions,
    list_sound_queues,
    put_aside,
    put_aside_open,
    put_aside_stuck,
    read_claimed,
    refuse_other_formats,
)
from agentloop.service.cluster.rows import (
    APPLICATION,
    DEATHS,
    QUEUES,
    SCHEDULED,
    SPARED,
    VERSION_PREFIX,
    ScheduleRow,
    WorkRow,
    engine_id,
    function_of,
    is_of_application,
    list_owners,
    list_queue_names,
    names_of,
    read_schedules,
    read_work,
    scheduled_job,
    time_of,
)
from agentloop.service.cluster.worker_locks import WORK_CHANNEL, WorkSignal
from agentloop.values.jobs import Job, JobKind, JobState, JobStatus, RunningJob, check_storable
from agentloop.values.json import thaw
from agentloop.values.time_and_ids import SystemClock

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("agentloop.cluster")

_MIDDLE_PRIORITY: Final = 1_000_000
_MAX_DELAY: Final = 10 * 365 * 86_400
"""The longest delay of a job, in seconds: about ten years."""
_AWAY_SECONDS: Final = 10.0
"""How long a use of the queues tries to reach a database that was there before, in seconds."""
_AWAY_PAUSE: Final = 0.25
_RESULT_INTERVAL: Final = 0.02
"""How often the results of waiting callers are looked up, in seconds."""
_ENDED: Final = frozenset({state for state in JobState if state.is_terminal})
_MAX_DAMAGED: Final = 100
"""How many damaged rows are listed."""


class Engine:
    """Queues jobs and finds them again, from any process. Use it as an async context manager.

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
        await self._in_thread(self._open)
        return self

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
        if abs(job.priority) >= _MIDDLE_PRIORITY:
            raise InvalidParameter(f"a priority is between -{_MIDDLE_PRIORITY - 1:,} and {_MIDDLE_PRIORITY - 1:,}")
        options = EnqueueOptions(
            workflow_name=function_of(job.kind),
            queue_name=self._queue(job.kind, job.queue),
            workflow_id=engine_id(job.kind, job.id),
            priority=_MIDDLE_PRIORITY - job.priority,
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
        """Set the limits of a queue, which hold for all workers together; None for no limit.

        Args:
            kind: the kind of its jobs.
            queue: its name.
            concurrency: how many of its jobs run at a time.
            rate: how many of its jobs start within a number of seconds, as (count, seconds).

        Raises:
            InvalidParameter: the name cannot be stored.
        """
        check_storable(queue, "the name of the queue")
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

    async def cancel(self, job_ids: Collection[str], kind: JobKind = JobKind.TOOL) -> None:
        """Take jobs out of their queues. A job that runs is not interrupted, but its result is dropped."""
        await self._in_thread(partial(self.client.cancel_workflows, [engine_id(kind, job_id) for job_id in job_ids]))

    async def cancel_waiting(self, job_ids: Iterable[str], kind: JobKind = JobKind.TOOL) -> None:
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
        self, kind: JobKind, job_ids: Sequence[str], *, states: Collection[JobState] = _ENDED
    ) -> None:
        """Delete jobs that have ended, with what they were given and returned, in this order.

        Args:
            kind: the kind.
            job_ids: their ids; a job that does not exist or has not ended is left alone.
            states: only those that are this far.
        """
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
            job: the job; the id of each copy is the name of the schedule with the time.

        Raises:
            InvalidParameter: the cron expression is invalid.
        """
        context = {
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

    async def schedules(self) -> Sequence[ScheduleRow]:
        """Return the schedules."""
        return await self._in_thread(partial(read_schedules, self.client._sys_db))


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


def engine_version(version: str) -> str:
    """Return a version of a program as the engine stores it."""
    return VERSION_PREFIX + version


def announce_work(database: ClusterDatabase, client: DBOSClient) -> None:
    """Tell the workers that the queues have changed."""
    if database.path is not None:
        wake_workers(database)
    else:
        with client._sys_db.engine.begin() as connection:
            connection.exec_driver_sql(f"NOTIFY {WORK_CHANNEL}")


def _queue_seconds(row: WorkRow) -> float | None:
    """Return how long a job waited until now, when its first attempt starts; None for a later one."""
    if (row.attempts or 1) > 1 or not row.created_at:
        return None
    return max((SystemClock().now() - time_of(max(row.created_at, row.delay_until))).total_seconds(), 0.0)


# --- the side of a worker ---------------------------------------------------------------------------------------------

_IDLE_INTERVAL: Final = 1.0
"""How often a worker looks for work of which nothing has told it, in seconds, such as delayed jobs."""
_QUEUES_INTERVAL: Final = 1.0
_SWEEP_INTERVAL: Final = 10.0
"""How often a worker looks for rows that no worker can take, in seconds."""


class EngineWorker:
    """Takes jobs out of the queues and runs them as tasks of the event loop in which it is started.

    There is one per process, because DBOS has one instance per process.

    Args:
        database: the database of the cluster, whose tables exist.
        name: the name of the worker, which no other live worker has.
        version: the version of the program; it takes jobs of this version.
        agents: the names of the agents; it takes jobs of these.
        slots: how many jobs of each kind run at a time.
        handlers: what runs a job of each kind.
        signal: wakes it when the queues have changed.
    """

    def __init__(
        self,
        database: ClusterDatabase,
        *,
        name: str,
        version: str,
        agents: Iterable[str],
        slots: Mapping[JobKind, int],
        handlers: Mapping[JobKind, JobHandler],
        signal: WorkSignal,
    ) -> None:
        self._database = database
        self._name = name
        self._version = engine_version(version)
        self._agents = tuple(agents)
        self._slots = dict(slots)
        self._handlers = dict(handlers)
        self._signal = signal
        self._lock = threading.Lock()
        self._claimed: dict[str, RunningJob] = {}  # by their ids in the engine
        self._tasks: dict[str, asyncio.Task[object]] = {}
        self._queues: Sequence[Queue] = ()
        self._damaged: set[str] = set()
        self._is_latest = False
        self._taking: dict[str, tuple[JobKind, str, float]] = {}
        self._queues_read = 0.0
        self._swept = self._healed = -_SWEEP_INTERVAL
        self._is_ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._dbos: DBOS | None = None

    def start(self, schedule_fired: Callable[[str, Mapping[str, Any]], Any]) -> None:
        """Start taking jobs, in the running event loop.

        Args:
            schedule_fired: an async function that queues the job of a schedule, from the id of the job and the schedule's data.
        """
        config = DBOSConfig(
            name=APPLICATION,
            system_database_url=self._database.engine_url,
            application_version=self._version,
            executor_id=self._name,
            serializer=JsonSerializer(),
            enable_otlp=False,
            use_listen_notify=False,  # its own listener needs a session, which poolers do not give; nothing here uses it
            run_migrations=False,
            scheduler_polling_interval_sec=1.0,
            max_executor_threads=8,
            log_level="CRITICAL",
        )
        with as_engine_errors(self._database):
            self._launch(config, schedule_fired)
        self._thread = threading.Thread(target=self._take_jobs, name="agentloop worker queues", daemon=True)
        self._thread.start()

    def _launch(self, config: DBOSConfig, schedule_fired: Callable[[str, Mapping[str, Any]], Any]) -> None:
        self._dbos = Transact(config=config)
        for kind in self._handlers:
            DBOS.workflow(name=function_of(kind), max_recovery_attempts=None)(self._body(kind))

        async def fire(_: str, context: dict[str, Any]) -> None:
            await schedule_fired(f"{DBOS.workflow_id}", scheduled_job(context))

        DBOS.workflow(name=SCHEDULED, max_recovery_attempts=None)(fire)
        DBOS.listen_queues(
            []
        )  # this object takes the jobs itself: by slots of this worker, and as soon as there are any
        DBOS.launch()
        retry_lost_connections(self._system.engine)
        self.lead_versions()

    @property
    def _system(self) -> Any:
        return cast("DBOS", self._dbos)._sys_db

    def _body(self, kind: JobKind) -> Callable[[Any], Any]:
        async def body(_: Any) -> object:  # the payload is that of the claimed job
            return await self._run(f"{DBOS.workflow_id}", kind)

        return body

    async def _run(self, job_id: str, kind: JobKind) -> object:
        job = self._claimed[job_id]
        if self._is_ending.is_set():
            raise asyncio.CancelledError  # it stays claimed, and is put back with the others
        task = self._tasks[job_id] = asyncio.ensure_future(self._handlers[kind](job))
        is_cancelled_by_a_part = False
        try:
            return await task
        except asyncio.CancelledError:
            is_cancelled_by_a_part = not is_task_cancelled() and not self._is_ending.is_set()
            raise
        finally:
            task.cancel()
            self._tasks.pop(job_id, None)
            self._release(job_id)
            if (
                is_cancelled_by_a_part
            ):  # the engine stores no end of it, and it would stay "running" on a worker that lives
                await self._put_back(job_id)

    async def _put_back(self, job_id: str) -> None:
        """Put a job back into its queue after a moment, and try until that succeeds or the worker ends."""
        logger.warning("job %s was cancelled by a part of its own, and goes back into its queue", job_id)
        while self._dbos is not None:
            await asyncio.sleep(_PUT_BACK_SECONDS)
            try:
                await asyncio.to_thread(self._system.reenqueue_for_recovery, job_id, [self._name], _LOST_QUEUE)
            except Exception as error:  # noqa: BLE001  # the database may be away
                logger.warning("job %s could not be put back: %s", job_id, type(error).__name__)
            else:
                self._signal.wake()
                return

    def _release(self, job_id: str) -> None:
        with self._lock:
            self._claimed.pop(job_id, None)
        self._signal.wake()

    @property
    def running(self) -> Sequence[RunningJob]:
        """The jobs that run now."""
        with self._lock:
            return tuple(self._claimed.values())

    # --- taking jobs, in a thread -------------------------------------------------------------------------------------

    def _take_jobs(self) -> None:
        while not self._is_ending.is_set():
            try:
                self._look()
            except Exception:
                # The database is away, or another worker takes from the same queue; the locks decide when to give up.
                logger.debug("the queues could not be read", exc_info=True)
                self._heal()
            self._signal.wait(_IDLE_INTERVAL)

    def _look(self) -> None:
        """Take jobs from the queues that are known, and read once per second which there are, with their limits."""
        if self._taking:
            self._take_again()
        known = self._queues
        self._take_from_all(known)
        # Behind the jobs, which do not wait for it.
        if not known or time.monotonic() - self._queues_read >= _QUEUES_INTERVAL:
            self._read_queues()
            names = {queue.name for queue in known}
            self._take_from_all([queue for queue in self._queues if queue.name not in names])
        if time.monotonic() - self._swept >= _SWEEP_INTERVAL:
            self._swept = time.monotonic()
            put_aside_stuck(self._system)

    def _heal(self) -> None:
        """Put aside what may be why a query of the engine fails as a whole."""
        if self._database.path is None or time.monotonic() - self._healed < _SWEEP_INTERVAL:
            return
        self._healed = time.monotonic()
        try:
            put_aside_open(self._system)
            forget_strange_versions(self._system)
        except Exception:
            logger.debug("the tables of the queues could not be read", exc_info=True)

    def _read_queues(self) -> None:
        """Read the queues, and whether this version of the program takes jobs of any."""
        self._queues, damaged = list_sound_queues(self._system)
        for name in set(damaged) - self._damaged:
            logger.warning("the queue %.200r is damaged, and no work is taken from it; set its limits again", name)
        self._damaged = set(damaged)
        was_latest = self._is_latest
        self._is_latest = self._system.get_latest_application_version()["version_name"] == self._version
        self._queues_read = time.monotonic()
        if self._is_latest and not was_latest:
            self._signal.wake()

    def _take_from_all(self, queues: Iterable[Queue]) -> None:
        """Take jobs from queues; one that fails does not hold up the others."""
        failures = []
        for queue in queues:
            try:
                self._take_from(queue)
            except Exception as error:  # noqa: BLE001  # raised again
                failures.append(error)
        if failures:
            raise failures[0]

    def _take_from(self, queue: Queue) -> None:
        kind = next((kind for kind, prefix in QUEUES.items() if queue.name.startswith(prefix)), None)
        if kind not in self._handlers:
            return
        # The engine stores one number of slots per queue; each worker has its own.
        queue._worker_concurrency = self._slots[kind]
        for agent in self._agents:
            with self._lock:
                running = sum(job.kind is kind for job in self._claimed.values())
            if running >= self._slots[kind] or self._is_ending.is_set():
                return
            self._take_of_agent(queue, kind, agent, running)

    def _take_of_agent(self, queue: Queue, kind: JobKind, agent: str, running: int) -> None:
        owner = generate_uuid()
        self._taking[owner] = (kind, agent, time.monotonic() + _TAKING_SECONDS)
        job_ids, _ = self._system.start_queued_workflows(
            queue, self._name, self._version, agent, running, owner_xid=owner, is_latest_version=self._is_latest
        )
        self._start_all(job_ids, kind, agent, owner)

    def _take_again(self) -> None:
        """Start the jobs that this worker has taken without knowing it, as the connection was lost before the answer came."""
        table = self._system.tables.workflow_status
        query = sqlalchemy.select(table.c.owner_xid, table.c.workflow_uuid).where(
            table.c.executor_id == self._name, table.c.status == "PENDING", table.c.owner_xid.in_(list(self._taking))
        )
        with self._system.engine.begin() as connection:
            found = connection.execute(query).all()
        for owner, (kind, agent, until) in tuple(self._taking.items()):
            job_ids = [job_id for its_owner, job_id in found if its_owner == owner]
            if job_ids or time.monotonic() > until:
                self._start_all(job_ids, kind, agent, owner)

    def _start_all(self, job_ids: Sequence[str], kind: JobKind, agent: str, owner: str) -> None:
        rows = read_claimed(self._system, job_ids)
        del self._taking[owner]  # all of them were taken in one transaction
        for row in rows:
            if row.kind is kind and row.state is JobState.RUNNING:
                self._start(row, kind, agent, owner)

    def _start(self, row: WorkRow, kind: JobKind, agent: str, owner: str) -> None:
        job = RunningJob(
            id=row.job_id,
            kind=kind,
            agent=agent,
            payload=row.arguments[0],
            attempt=row.attempts or 1,
            deaths=row.deaths,
            queue_seconds=_queue_seconds(row),
        )
        with self._lock:
            self._claimed[row.id] = job
        try:
            execute_dequeued_workflow(cast("DBOS", self._dbos), cast("Any", as_dbos_status(row)), owner)
        except Exception as error:
            self._release(row.id)
            if not self._is_ending.is_set():
                logger.exception("job %s could not be started", row.id)
                put_aside(self._system, row, f"it could not be started: {type(error).__name__}")

    # --- hand-over ----------------------------------------------------------------------------------------------------

    def lead_versions(self) -> None:
        """Make the version of this worker the one that takes jobs of any version, and that fires schedules."""
        latest = self._system.get_latest_application_version()
        if latest["version_name"] != self._version:
            self._system.update_application_version_timestamp(self._version, int(time.time() * 1000))
            self._queues_read = 0.0

    def owners(self) -> Sequence[str]:
        """Return the names of the workers that run jobs, also of those that have died."""
        names, has_strange = list_owners(self._system)
        if has_strange:
            put_aside_open(self._system)
        return names

    def release_dead(self, worker: str, *, counts: bool) -> int:
        """Put the jobs of a worker that has died back into their queues; return how many were.

        Args:
            worker: the name of the worker.
            counts: whether its death is counted for the jobs.
        """
        count = release_jobs_of_dead(self._system, worker, counts=counts)
        if count:
            self._signal.wake()
        return count

    # --- the end ------------------------------------------------------------------------------------------------------

    def stop_taking(self) -> None:
        """Take no more jobs; those that run go on."""
        self._is_ending.set()
        self._signal.wake()

    async def hand_over(
        self, client: DBOSClient, until_idle: Callable[[RunningJob], Awaitable[object]], *, grace: float
    ) -> int:
        """Interrupt what runs and put it back into its queues; return how many jobs there were.

        Args:
            client: the client of the engine.
            until_idle: waits until a job may be interrupted without a grace period.
            grace: how long a job that is not idle may run on, in seconds.
        """
        self.stop_taking()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        with self._lock:
            jobs = dict(self._claimed)
        ended = await asyncio.gather(*[self._interrupt(job_id, until_idle(job), grace) for job_id, job in jobs.items()])
        interrupted = [job_id for job_id, has_ended in zip(jobs, ended, strict=True) if not has_ended]
        await self._until_stored(set(interrupted))
        return await asyncio.to_thread(self._give_back, interrupted, client)

    async def _until_stored(self, interrupted: Collection[str]) -> None:
        """Wait until the engine has stored the ends of all jobs that have ended: they must not run again."""
        end = time.monotonic() + _OUTCOME_SECONDS
        while time.monotonic() < end:
            running = await asyncio.to_thread(_list_running, self._system, self._name)
            if all(row.id in interrupted for row in running):
                return
            await asyncio.sleep(_RESULT_INTERVAL)

    async def _interrupt(self, job_id: str, until_idle: Awaitable[object], grace: float) -> bool:
        """Interrupt a job as soon as it is idle; return whether it has ended instead."""
        idle = asyncio.ensure_future(until_idle)
        task = self._tasks.get(job_id)
        if task is not None:
            await asyncio.wait((task, idle), timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            task.cancel()
            await asyncio.wait((task,))
        idle.cancel()
        return task is not None and not task.cancelled()

    def _give_back(self, job_ids: Iterable[str], client: DBOSClient) -> int:
        count = sum(self._system.reenqueue_for_recovery(job_id, [self._name], _LOST_QUEUE) for job_id in job_ids)
        announce_work(self._database, client)
        return int(count)

    async def close(self) -> None:
        """Stop the threads of the engine. What still runs is interrupted."""
        self.stop_taking()
        for task in list(self._tasks.values()):
            task.cancel()
        if self._dbos is not None:
            self._dbos = None
            await asyncio.to_thread(DBOS.destroy, destroy_registry=True)


_LOST_QUEUE: Final = "agentloop.executions.default"
"""The queue of a job that has lost its own; jobs of workers always have one."""
_PUT_BACK_SECONDS: Final = 0.25
"""How long a job that was cancelled by a part of its own waits before it goes back into its queue, in seconds."""
_OUTCOME_SECONDS: Final = 5.0
"""How long a drained worker waits until the ends of its jobs are stored, in seconds."""
_TAKING_SECONDS: Final = 60.0
"""How long the server may still be carrying out a statement whose connection was lost, in seconds."""


def _list_running(system: Any, worker: str) -> Sequence[WorkRow]:
    table = system.tables.workflow_status
    return read_work(system, is_of_application(system), table.c.status == "PENDING", table.c.executor_id == worker)


def release_jobs_of_dead(system: Any, worker: str, *, counts: bool) -> int:
    """Put the jobs of a worker that has died back into their queues; return how many were.

    The caller holds the lock of the worker, so no other process does the same.

    Args:
        system: DBOS's access to its tables.
        worker: the name of the worker.
        counts: whether its death is counted for the jobs. Not if the server has restarted since the worker last reached it: it may
            have left because of that.
    """
    count = 0
    for row in _list_running(system, worker):
        if row.problem:
            put_aside(system, row)
            continue
        if counts and not row.is_spared:
            system.update_workflow_attributes(row.id, {DEATHS: row.deaths + 1}, merge=True)
        count += system.reenqueue_for_recovery(row.id, [worker], _LOST_QUEUE)
    return count
