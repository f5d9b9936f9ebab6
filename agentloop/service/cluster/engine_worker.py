"""The side of a worker at the engine: its lock, the jobs that it takes, and the watch over workers that have died."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final, cast

from attrs import define, field

from agentloop.contracts.can_queue import CanTakeJobs
from agentloop.service.cluster.database import ClusterDatabase
from agentloop.service.cluster.dbos_binding import (
    DBOS,
    DBOSClient,
    DBOSConfig,
    JsonSerializer,
    Queue,
    StoredFailure,
    as_engine_errors,
    execute_dequeued_workflow,
    generate_uuid,
    retry_lost_connections,
    sqlalchemy,
)
from agentloop.service.cluster.liveness import open_locks, open_signal, refuse_second_worker, wake_workers
from agentloop.service.cluster.protection import (
    Transact,
    as_dbos_status,
    forget_strange_versions,
    list_sound_queues,
    put_aside,
    put_aside_open,
    put_aside_stuck,
    read_claimed,
)
from agentloop.service.cluster.rows import (
    APPLICATION,
    DEATHS,
    QUEUES,
    SCHEDULED,
    VERSION_PREFIX,
    WorkRow,
    engine_id,
    function_of,
    is_of_application,
    job_of_schedule,
    list_owners,
    read_work,
    scheduled_job,
    time_of,
)
from agentloop.service.cluster.worker_locks import WORK_CHANNEL, WorkerLocks
from agentloop.values.jobs import Job, JobKind, JobState, RunningJob, WorkerNote
from agentloop.values.json import JsonValue, thaw
from agentloop.values.time_and_ids import SystemClock
from agentloop.values.tool_calls import ErrorInfo

logger: logging.Logger = logging.getLogger("agentloop.cluster")

_IDLE_INTERVAL: Final = 1.0
"""How often a worker looks for work of which nothing has told it, in seconds, such as delayed jobs."""
_QUEUES_INTERVAL: Final = 1.0
_SWEEP_INTERVAL: Final = 10.0
"""How often a worker looks for rows that no worker can take, in seconds."""
_LOST_QUEUE: Final = "agentloop.executions.default"
"""The queue of a job that has lost its own; jobs of workers always have one."""
_TAKING_SECONDS: Final = 60.0
"""How long the server may still be carrying out a statement whose connection was lost, in seconds."""
_WATCH_INTERVAL: Final = 1.0
"""How often a worker looks for workers that have died, in seconds."""
_GRACE: Final = 5.0
"""How long a worker that was cut off judges nobody, in seconds: its peers may not have connected again yet."""


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


@define(eq=False)
class _Taken:
    """A job that this worker has taken.

    Attributes:
        id: its id in the engine.
        job: the job.
        outcome: what the worker says about it; cancelled when it has put the job back.
        stored: set when the engine has stored the outcome, or knows that the job is that of another worker.
        is_handed: whether `take` has returned it.
    """

    id: str
    job: RunningJob
    outcome: Future[Any] = field(factory=Future)
    stored: asyncio.Event = field(factory=asyncio.Event)
    is_handed: bool = False

    def settle(self, error: ErrorInfo | None, result: JsonValue) -> None:
        """Say how the job has ended, unless it was put back."""
        with suppress(InvalidStateError):
            if error is None:
                self.outcome.set_result(thaw(result))
            else:
                self.outcome.set_exception(StoredFailure(error))


class EngineWorker(CanTakeJobs):
    """Takes jobs out of the queues of a database.

    There is one per process, because DBOS has one instance per process.

    Args:
        database: the database of the cluster, whose tables exist.
        note: what the worker tells about itself: it takes jobs of its version and its agents, as many as it has slots for.
        lost_after: how long the database may be unreachable, in seconds.
        enqueue: queues the job of a schedule.
        client: the client of the engine.
    """

    def __init__(
        self,
        database: ClusterDatabase,
        note: WorkerNote,
        *,
        lost_after: float,
        enqueue: Callable[[Job], Awaitable[None]],
        client: DBOSClient,
    ) -> None:
        self._database = database
        self._note = note
        self._name = note.name
        self._version = engine_version(note.version)
        self._slots = {JobKind.EXECUTION: note.executions, JobKind.TOOL: note.tools}
        self._enqueue = enqueue
        self._client = client
        self._locks = open_locks(database)
        self._signal = open_signal(database)
        self._watch = Watch(self._locks, self, note, lost_after=lost_after)
        self._lock = threading.Lock()
        self._claimed: dict[str, _Taken] = {}  # by their ids in the engine
        self._ready: asyncio.Queue[_Taken] = asyncio.Queue()
        self._queues: Sequence[Queue] = ()
        self._damaged: set[str] = set()
        self._is_latest = False
        self._taking: dict[str, tuple[JobKind, str, float]] = {}
        self._queues_read = 0.0
        self._swept = self._healed = -_SWEEP_INTERVAL
        self._is_ending = threading.Event()
        self._has_left = False
        self._thread: threading.Thread | None = None
        self._dbos: DBOS | None = None

    # --- the name and the lock ----------------------------------------------------------------------------------------

    def register(self) -> bool:
        """Take the lock; return whether the server has restarted since a worker of this name wrote its note.

        Raises:
            ConfigurationError: a live worker has the name.
            DatabaseUnavailable: the database is away; the lock is not taken.
        """
        with as_engine_errors(self._database):
            self._locks.connect()
            if not self._locks.take(self._name):
                raise refuse_second_worker(self._name)
            has_missed_restart = self._locks.has_missed_restart(self._name)
            self._locks.write_note(self._note)
            return has_missed_restart

    def _unregister(self) -> None:
        with suppress(Exception):  # the database may be away, and the lock ends in any case
            self._locks.erase_note(self._name)
        self._locks.close()

    async def lost(self) -> str:
        """Wait until the lock is lost, or the database was away for too long."""
        while not (reason := self._watch.lost_reason()):  # noqa: ASYNC110  # a thread finds it
            await asyncio.sleep(_WATCH_INTERVAL)
        return reason

    # --- running ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start taking jobs, in the running event loop."""
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
            self._launch(config)
        self._thread = threading.Thread(target=self._take_jobs, name="agentloop worker queues", daemon=True)
        self._thread.start()
        self._watch.start()

    def _launch(self, config: DBOSConfig) -> None:
        self._dbos = Transact(config=config)
        for kind in JobKind:
            DBOS.workflow(name=function_of(kind), max_recovery_attempts=None)(self._body())

        async def fire(_: str, context: dict[str, Any]) -> None:
            await self._enqueue(job_of_schedule(scheduled_job(context), f"{DBOS.workflow_id}"))

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

    def _body(self) -> Callable[[Any], Awaitable[object]]:
        async def body(_: Any) -> object:  # the payload is that of the taken job
            taken = self._claimed.get(f"{DBOS.workflow_id}")
            if taken is None or self._is_ending.is_set():
                raise asyncio.CancelledError  # it was put back, or will be
            task = cast("asyncio.Task[Any]", asyncio.current_task())
            task.add_done_callback(lambda _: taken.stored.set())  # the engine stores the outcome in this task
            self._ready.put_nowait(taken)
            try:
                return await asyncio.wrap_future(taken.outcome)
            finally:
                self._release(taken)

        return body

    def _release(self, taken: _Taken) -> None:
        with self._lock:
            if self._claimed.get(taken.id) is taken:
                del self._claimed[taken.id]
        self._signal.wake()

    def _taken(self, job: RunningJob) -> _Taken | None:
        found = self._claimed.get(engine_id(job.kind, job.id))
        return found if found is not None and found.job is job else None

    async def take(self) -> RunningJob:
        """Wait for a job that the thread has taken."""
        while True:
            taken = await self._ready.get()
            if not self._is_ending.is_set():
                taken.is_handed = True
                return taken.job

    async def end(self, job: RunningJob, result: JsonValue = None, error: ErrorInfo | None = None) -> None:
        """Let the engine store how a job has ended, and wait until it has."""
        taken = self._taken(job)
        if taken is not None:
            taken.settle(error, result)
            await taken.stored.wait()

    async def put_back(self, jobs: Collection[RunningJob]) -> int:
        """Put jobs back into their queues; return how many were."""
        taken = [each for each in map(self._taken, jobs) if each is not None]
        for each in taken:
            each.outcome.cancel()
        ids = [engine_id(job.kind, job.id) for job in jobs]
        count = await asyncio.to_thread(self._give_back, ids)
        for each in taken:
            self._release(each)
        return count

    def _give_back(self, job_ids: Iterable[str]) -> int:
        with as_engine_errors(self._database):
            count = sum(self._system.reenqueue_for_recovery(job_id, [self._name], _LOST_QUEUE) for job_id in job_ids)
            announce_work(self._database, self._client)
        return int(count)

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
        if kind is None or queue._concurrency == 0:  # paused
            return
        # The engine stores one number of slots per queue; each worker has its own.
        queue._worker_concurrency = self._slots[kind]
        for agent in self._note.agents:
            with self._lock:
                running = sum(taken.job.kind is kind for taken in self._claimed.values())
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
        taken = _Taken(row.id, job)
        with self._lock:
            self._claimed[row.id] = taken
        try:
            execute_dequeued_workflow(cast("DBOS", self._dbos), cast("Any", as_dbos_status(row)), owner)
        except Exception as error:
            self._release(taken)
            if not self._is_ending.is_set():
                logger.exception("job %s could not be started", row.id)
                put_aside(self._system, row, f"it could not be started: {type(error).__name__}")

    # --- the others ---------------------------------------------------------------------------------------------------

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

    async def stop_taking(self) -> None:
        """Take no more jobs, and put those back that nobody has got."""
        self._is_ending.set()
        self._signal.wake()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        waiting = [taken.job for taken in self._claimed.values() if not taken.is_handed]
        if waiting:
            await self.put_back(waiting)

    async def leave(self) -> None:
        """Stop the threads of the engine, and release the lock."""
        if self._has_left:
            return
        self._has_left = True
        self._is_ending.set()
        self._signal.wake()
        self._watch.stop()
        for taken in list(self._claimed.values()):
            taken.outcome.cancel()
        if self._dbos is not None:
            await asyncio.to_thread(DBOS.destroy, destroy_registry=True)
            self._dbos = None
        self._signal.close()
        await asyncio.to_thread(self._unregister)


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
