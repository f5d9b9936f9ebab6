"""A thread with a connection of its own, that does what event loops ask for."""

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


@define(eq=False)
class Job(Generic[T]):
    """Something to do with a connection, for somebody who waits in an event loop.

    Attributes:
        action: what to do.
        loop: the event loop of who waits.
        future: what is waited for; it is touched in its loop only.
        result: what came of it.
        error: what was raised instead.
        last: whether the thread ends after it; then it does nothing.
    """

    action: Callable[[sqlite3.Connection], T]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]
    result: T | None = None
    error: Exception | None = None
    last: bool = False

    def settle(self) -> None:
        """Tell who waits, unless that one has given up."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]  # an action that ran has set its result

    def do(self, connection: sqlite3.Connection) -> None:
        """Run the action; what it raises is kept for who waits."""
        self.result, self.error = None, None
        try:
            self.result = self.action(connection)
        except Exception as error:  # noqa: BLE001  # it is raised where it is waited for
            self.error = error


Jobs: TypeAlias = Sequence[Job[Any]]
_Queue: TypeAlias = SimpleQueue[Job[Any] | None]

MOST_AT_ONCE = 256
"""How many jobs are done together at most, so that the first does not wait for too long."""


class Worker:
    """Runs jobs in a thread, all that wait together; the thread begins with the first job and ends with `aclose`.

    Any number of event loops, at once or one after the other, may ask. The thread does not keep a program from ending.

    Args:
        name: the name of the thread.
        connect: opens a connection; what it raises is raised for every job that waits then, and the next tries again.
        run: does jobs with a connection, and leaves in each what came of it.
        translate: makes the error that is raised out of one that a job left.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], sqlite3.Connection],
        run: Callable[[sqlite3.Connection, Jobs], None],
        translate: Callable[[Exception], Exception],
    ) -> None:
        self._name = name
        self._act = partial(_act, connect, run, translate)
        self._lock = Lock()
        self._queue: _Queue = SimpleQueue()
        self._thread: Thread | None = None

    async def do(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Run an action in the thread and return what it returns; a caller that gives up does not stop it."""
        loop = asyncio.get_running_loop()
        job: Job[T] = Job(action, loop, loop.create_future())
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._act, args=(self._queue,), name=self._name, daemon=True)
                self._thread.start()
            self._queue.put(job)
        return await job.future

    async def aclose(self) -> None:
        """Let the thread do what waits, close its connection and end."""
        loop = asyncio.get_running_loop()
        with self._lock:
            thread = self._thread
            if thread is None:
                return
            last: Job[None] = Job(_nothing, loop, loop.create_future(), last=True)
            self._queue.put(last)
            self._queue, self._thread = SimpleQueue(), None
        await asyncio.shield(last.future)
        thread.join()  # it has nothing more to do

    def forget(self) -> None:
        """Let the thread end when it has done what waits, without waiting for it."""
        self._queue.put(None)


def _nothing(_: sqlite3.Connection) -> None:
    """Do nothing: who waits for this waits for all before it."""


def _act(
    connect: Callable[[], sqlite3.Connection],
    run: Callable[[sqlite3.Connection, Jobs], None],
    translate: Callable[[Exception], Exception],
    queue: _Queue,
) -> None:
    """Be the thread."""
    connection: sqlite3.Connection | None = None
    going_on = True
    while going_on:
        taken, going_on = _taken(queue)
        jobs = [job for job in taken if not job.last]
        try:
            if jobs:
                connection = connection or connect()
                run(connection, jobs)
        except Exception as error:  # noqa: BLE001  # it is raised where it is waited for
            for job in jobs:
                job.error = error
        if not going_on and connection is not None:
            connection.close()
        _settle(taken, translate)
        del taken, jobs


def _taken(queue: _Queue) -> tuple[list[Job[Any]], bool]:
    """Wait for a job and take those that wait with it; say whether there may be more after them."""
    jobs: list[Job[Any]] = []
    job = queue.get()
    while job is not None:
        jobs.append(job)
        if job.last or len(jobs) == MOST_AT_ONCE:
            return jobs, not job.last
        try:
            job = queue.get_nowait()
        except Empty:
            return jobs, True
    return jobs, False


def _settle(jobs: Jobs, translate: Callable[[Exception], Exception]) -> None:
    """Tell all who wait, each event loop once."""
    of_loop: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = defaultdict(list)
    for job in jobs:
        if job.error is not None:
            job.error = translate(job.error)
        of_loop[job.loop].append(job)
    for loop, settled in of_loop.items():
        try:
            loop.call_soon_threadsafe(_settle_in_loop, settled)
        except RuntimeError:  # the loop was closed: nobody waits any more
            continue


def _settle_in_loop(jobs: Jobs) -> None:
    for job in jobs:
        job.settle()
