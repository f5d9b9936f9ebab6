"""A thread with its own database connection that runs jobs for event loops."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeAlias, TypeVar

from attrs import define

T = TypeVar("T")

MAX_BATCH = 256
"""The maximum number of jobs that run together, so that the first one does not wait too long."""


@define(eq=False)
class Job(Generic[T]):
    """An action on a connection, for a caller that waits in an event loop.

    Attributes:
        action: the action.
        loop: the event loop of the caller.
        future: what the caller waits for; only its loop may touch it.
        result: the result of the action.
        error: the exception that the action raised.
        is_last: whether the thread ends after this job; its action does not run.
    """

    action: Callable[[sqlite3.Connection], T]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]
    result: T | None = None
    error: Exception | None = None
    is_last: bool = False

    def run(self, connection: sqlite3.Connection) -> None:
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


Jobs: TypeAlias = Sequence[Job[Any]]
_Queue: TypeAlias = SimpleQueue[Job[Any] | None]


class Worker:
    """Runs jobs in a thread, all waiting ones together; the thread starts with the first job and ends with `aclose`.

    Any number of event loops may use it, in turn or concurrently. Its thread does not keep the program alive.

    Args:
        name: the name of the thread.
        connect: opens a connection; every job that waits gets the exception it raises, and the next job tries again.
        run_jobs: runs jobs on a connection, and leaves a result or an exception in each.
        translate: returns the exception to raise for one that a job left.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], sqlite3.Connection],
        run_jobs: Callable[[sqlite3.Connection, Jobs], None],
        translate: Callable[[Exception], Exception],
    ) -> None:
        self._name = name
        self._work = partial(_work, connect, run_jobs, translate)
        self._lock = Lock()
        self._queue: _Queue = SimpleQueue()
        self._thread: Thread | None = None

    async def run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Run an action in the thread and return its result; cancelling the caller does not stop the action."""
        loop = asyncio.get_running_loop()
        job: Job[T] = Job(action, loop, loop.create_future())
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._work, args=(self._queue,), name=self._name, daemon=True)
                self._thread.start()
            self._queue.put(job)
        return await job.future

    async def aclose(self) -> None:
        """Wait until the thread has run all jobs, closed its connection and ended."""
        loop = asyncio.get_running_loop()
        with self._lock:
            thread = self._thread
            if thread is None:
                return
            last: Job[None] = Job(_no_action, loop, loop.create_future(), is_last=True)
            self._queue.put(last)
            # Jobs after this one start a new thread.
            self._queue, self._thread = SimpleQueue(), None
        await asyncio.shield(last.future)
        thread.join()  # returns at once: the last job is settled at the very end of the thread

    def end_soon(self) -> None:
        """Let the thread end after all jobs, without waiting for it."""
        self._queue.put(None)


def _no_action(_: sqlite3.Connection) -> None:
    """Do nothing."""


def _work(
    connect: Callable[[], sqlite3.Connection],
    run_jobs: Callable[[sqlite3.Connection, Jobs], None],
    translate: Callable[[Exception], Exception],
    queue: _Queue,
) -> None:
    """Run jobs until the last one; the body of the thread."""
    connection: sqlite3.Connection | None = None
    is_open = True
    while is_open:
        batch, is_open = _next_batch(queue)
        jobs = [job for job in batch if not job.is_last]
        try:
            if jobs:
                connection = connection or connect()
                run_jobs(connection, jobs)
        except Exception as error:  # noqa: BLE001  # the callers' futures raise it
            for job in jobs:
                job.error = error
        # Closed before the last job is settled, so that `aclose` returns with the connection closed.
        if not is_open and connection is not None:
            connection.close()
        _settle(batch, translate)
        # While the thread waits for the next batch, results must not be kept alive.
        del batch, jobs


def _next_batch(queue: _Queue) -> tuple[list[Job[Any]], bool]:
    """Wait for a job; return it with the jobs that wait behind it, and whether more may follow."""
    jobs: list[Job[Any]] = []
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
    by_loop: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = defaultdict(list)
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
