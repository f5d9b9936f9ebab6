"""A thread with its own database connection that runs jobs for event loops.

Short jobs need not wait for the thread: while its connection is unused, they can run on it in the thread of the caller, as long as
they wait neither for a lock nor for the disk.

Neither a thread nor a SQLite connection survives `fork`: SQLite's state in the child would claim locks that the child does not
have. Before a fork, the connections of all threads are therefore closed; parent and child open new ones when they need them.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeAlias, TypeVar

from attrs import define, field

from agentloop._shielding import wait_through
from agentloop.durable.sqlite.schema import FileChanged, JournalConnection, is_busy
from agentloop.errors import JournalError

T = TypeVar("T")

_CLOSE_SECONDS = 5.0
"""How long a caller that is cancelled waits for the end of a thread, in seconds."""
MAX_BATCH = 256
"""The maximum number of jobs that run together, so that the first one does not wait too long."""


@define(eq=False)
class QueuedWork(Generic[T]):
    """An action on a connection, for a caller that waits in an event loop.

    Attributes:
        action: the action.
        loop: the event loop of the caller.
        future: what the caller waits for; only its loop may touch it.
        result: the result of the action.
        error: the exception that the action raised.
        is_last: whether the thread ends after this job; its action does not run.
    """

    action: Callable[[JournalConnection], T]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]
    result: T | None = None
    error: Exception | None = None
    is_last: bool = False

    def run(self, connection: JournalConnection) -> None:
        """Run the action and store its result or its exception; a second run replaces them."""
        self.result, self.error = None, None
        try:
            self.result = self.action(connection)
        except Exception as error:  # noqa: BLE001  # the caller's future raises it
            self.error = error

    def settle(self) -> None:
        """Pass the result to the caller, unless it was cancelled."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]  # an action that ran has set its result


Jobs: TypeAlias = Sequence[QueuedWork[Any]]
_Queue: TypeAlias = SimpleQueue[QueuedWork[Any] | None]


class WorkerThread:
    """Runs jobs in a thread, all waiting ones together; the thread starts with the first job and ends with `aclose`.

    Any number of event loops may use it, in turn or concurrently. Its thread does not keep the program alive.

    Args:
        name: the name of the thread.
        connect: opens a connection; every job that waits gets the exception it raises, and the next job tries again.
        run_jobs: runs jobs on a connection, and leaves a result or an exception in each.
        translate: returns the exception to raise for one that a job left.
        busy_timeout: how long jobs wait for the locks of other connections, in seconds.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], JournalConnection],
        run_jobs: Callable[[JournalConnection, Jobs], None],
        translate: Callable[[Exception], Exception],
        busy_timeout: float,
    ) -> None:
        self._name = name
        self._open_session = partial(_Session, connect, run_jobs, busy_timeout)
        self._translate = translate
        self.forget_thread()
        _WORKERS.add(self)

    def forget_thread(self) -> None:
        """Use a new thread for the next job: in a forked process, the thread of the parent does not exist."""
        self._lock = Lock()
        self._queue: _Queue = SimpleQueue()
        self._thread: Thread | None = None
        self._session: _Session | None = None

    async def run(self, action: Callable[[JournalConnection], T], *, inline_bytes: int = 0) -> T:
        """Run an action in the thread and return its result; cancelling the caller does not stop the action.

        Args:
            action: the action.
            inline_bytes: how much a short action writes, about, that may run in the calling thread: it does if the connection is
                open and nobody else uses it or has locked the file. 0 to use the thread in any case.
        """
        loop = asyncio.get_running_loop()
        job: QueuedWork[T] = QueuedWork(action, loop, loop.create_future())
        session = self._session
        if inline_bytes and session is not None and self._queue.empty() and session.run_inline(job, inline_bytes):
            if job.error is not None:
                raise self._translate(job.error)
            return job.result  # type: ignore[return-value]  # an action that ran has set its result
        if (start := getattr(loop, "start_thread", None)) is not None:  # a simulation has threads of its own
            self._session = self._session or self._open_session()
            start(partial(_begin, self._session, job, self._translate))
            return await job.future
        with self._lock:
            if self._thread is None:
                self._session = self._open_session()
                work = partial(_work, self._session, self._translate, self._queue)
                self._thread = Thread(target=work, name=self._name, daemon=True)
                self._thread.start()
            self._queue.put(job)
        return await job.future

    async def aclose(self) -> None:
        """Wait until the thread has run all jobs, closed its connection and ended."""
        loop = asyncio.get_running_loop()
        with self._lock:
            thread = self._thread
            if thread is None:
                self.cut()
                return
            last: QueuedWork[None] = QueuedWork(_no_action, loop, loop.create_future(), is_last=True)
            self._queue.put(last)
            # Jobs after this one start a new thread.
            self._queue, self._thread, self._session = SimpleQueue(), None, None
        # Also when the caller is cancelled, such as by the loss of a claim that this end has told: no thread stays behind.
        cancelled = await wait_through(last.future, _CLOSE_SECONDS)
        if cancelled is None:
            await asyncio.shield(last.future)
        if last.future.done():
            thread.join()  # returns at once: the last job is settled at the very end of the thread
        if cancelled is not None:
            raise cancelled

    def cut(self) -> None:
        """Close the connection that was used without a thread, as the death of the process does."""
        if self._thread is None and self._session is not None:
            self._session.close()
            self._session = None

    def end_soon(self) -> None:
        """Let the thread end after all jobs, without waiting for it."""
        self._queue.put(None)


def _no_action(_: JournalConnection) -> None:
    """Do nothing."""


# --- threads ----------------------------------------------------------------------------------------------------------

_RETRY_SECONDS = 0.005
"""The time between attempts to get a lock for which SQLite does not wait itself."""
_INLINE_BYTES = 4 * 1024 * 1024
"""How much is written in the threads of event loops, before the thread of the connection copies the log into the file."""
_COMMIT_BYTES = 8 * 1024
"""What a commit writes in addition to the data: the pages that it changes."""


@define(eq=False)
class _Session:
    """The connection of one thread."""

    connect: Callable[[], JournalConnection]
    run_jobs: Callable[[JournalConnection, Jobs], None]
    busy_timeout: float
    connection: JournalConnection | None = None
    lock: Lock = field(factory=Lock, init=False)
    """Held while the connection is used; a process forks between jobs."""
    inline_bytes: int = field(default=0, init=False)
    """How much was written inline since the thread has run jobs."""

    def __attrs_post_init__(self) -> None:
        _SESSIONS.add(self)

    def run(self, jobs: Jobs) -> None:
        """Run jobs. Those that wait for locks wait in short attempts, so that other threads can fork in between."""
        deadline = time.monotonic() + self.busy_timeout
        while jobs:
            self._attempt(jobs)
            jobs = [job for job in jobs if is_busy(job.error)]
            if time.monotonic() >= deadline:
                return
            if jobs:
                time.sleep(_RETRY_SECONDS)

    def run_inline(self, job: QueuedWork[Any], size: int) -> bool:
        """Run a short job in the calling thread, unless that would wait for anything; return whether it has run."""
        if self.inline_bytes > _INLINE_BYTES or not self.lock.acquire(blocking=False):
            return False
        try:
            connection = self.connection
            if connection is None or connection.snapshot is not None or _forks.is_unsafe:
                return False
            self.inline_bytes += size + _COMMIT_BYTES
            try:
                connection.set_waiting(allowed=False)
                self.run_jobs(connection, (job,))
            except Exception as error:  # noqa: BLE001  # the caller raises it
                job.error = error
            return not is_busy(job.error)
        finally:
            self.lock.release()

    def _attempt(self, jobs: Jobs) -> None:
        with self.lock:
            try:
                if _forks.is_unsafe:
                    raise JournalError(_UNSAFE)  # noqa: TRY301  # handled like an error of opening the file
                if self.connection is not None and self.connection.is_outdated:
                    self.close()
                self.connection = self.connection or self.connect()
                self.connection.set_waiting(allowed=True)
                self.run_jobs(self.connection, jobs)
                self.inline_bytes = 0
            except Exception as error:  # noqa: BLE001  # the callers' futures raise it
                for job in jobs:
                    job.error = error
            # Whatever they have read or raised, they run again on a new connection.
            if self.connection is not None and self.connection.is_outdated:
                for job in jobs:
                    job.error = FileChanged("it was changed each time it was read")

    def close(self) -> None:
        """Close the connection; the next job opens a new one."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


def _begin(session: _Session, job: QueuedWork[Any], translate: Callable[[Exception], Exception]) -> Callable[[], None]:
    """Run a job in the thread of its event loop; return what settles it."""
    session.run([job])
    if job.error is not None:
        job.error = translate(job.error)
    return job.settle


def _work(session: _Session, translate: Callable[[Exception], Exception], queue: _Queue) -> None:
    """Run jobs until the last one; the body of the thread."""
    is_open = True
    while is_open:
        batch, is_open = _next_batch(queue)
        session.run([job for job in batch if not job.is_last])
        # Closed before the last job is settled, so that `aclose` returns with the connection closed.
        if not is_open:
            with session.lock:
                session.close()
        _settle(batch, translate)
        # While the thread waits for the next batch, results must not be kept alive.
        del batch


def _next_batch(queue: _Queue) -> tuple[list[QueuedWork[Any]], bool]:
    """Wait for a job; return it with the jobs that wait behind it, and whether more may follow."""
    jobs: list[QueuedWork[Any]] = []
    job = queue.get()
    while job is not None:
        jobs.append(job)
        if job.is_last or len(jobs) == MAX_BATCH:
            return jobs, not job.is_last
        try:
            job = queue.get_nowait()
        except Empty:
            return jobs, True
    return jobs, False


def _settle(jobs: Jobs, translate: Callable[[Exception], Exception]) -> None:
    """Pass the results to all callers, with one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[QueuedWork[Any]]] = defaultdict(list)
    for job in jobs:
        if job.error is not None:
            job.error = translate(job.error)
        by_loop[job.loop].append(job)
    for loop, finished in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle_in_loop, finished)
        except RuntimeError:  # the loop is closed, so its callers are gone
            continue


def _settle_in_loop(jobs: Jobs) -> None:
    for job in jobs:
        job.settle()


# --- forks ------------------------------------------------------------------------------------------------------------

_FORK_SECONDS = 10.0
"""How long a fork waits for the job of a thread, which is a long one only when a large file is verified."""
_UNSAFE = (
    f"this process was forked while a journal was in use for more than {_FORK_SECONDS:g} seconds, and SQLite does not work in it; "
    "start the process in another way than by `fork`, such as `spawn`"
)
_SESSIONS: weakref.WeakSet[_Session] = weakref.WeakSet()
_WORKERS: weakref.WeakSet[WorkerThread] = weakref.WeakSet()


@define(eq=False)
class _Forks:
    """Closes the connections of all threads before this process forks."""

    is_unsafe: bool = False
    """Whether this process was forked while a connection was in use."""
    _is_in_use: bool = False
    _guard: Lock = field(factory=Lock)
    _closed: list[_Session] = field(factory=list)

    def prepare(self) -> None:
        """Close all connections, and keep their threads from opening new ones."""
        self._guard.acquire()
        self._is_in_use = False
        for session in tuple(_SESSIONS):
            if session.lock.acquire(timeout=_FORK_SECONDS):
                self._closed.append(session)
                session.close()
            else:
                self._is_in_use = True

    def continue_parent(self) -> None:
        """Let the threads open connections again."""
        for session in self._closed:
            session.lock.release()
        self._closed.clear()
        self._guard.release()

    def continue_child(self) -> None:
        """Forget the threads and connections of the parent process."""
        self.is_unsafe = self.is_unsafe or self._is_in_use
        self._guard = Lock()
        self._closed.clear()
        _SESSIONS.clear()
        for worker in tuple(_WORKERS):
            worker.forget_thread()


_forks = _Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_forks.prepare, after_in_parent=_forks.continue_parent, after_in_child=_forks.continue_child
    )
