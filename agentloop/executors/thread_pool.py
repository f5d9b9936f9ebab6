"""Threads for plain functions."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any

_JOIN_SECONDS = 1.0


class ThreadAbandoned(Exception):  # not an error of the function, and not one that leaves this room
    """The wait for a function was cancelled while the function ran. The function continues in its thread."""


class ThreadPool:
    """Runs plain functions in daemon threads, as many as there are functions at one time, up to a limit.

    A thread is started when none is idle. At the limit, or if the system refuses to start one, functions wait for a busy thread,
    in order. A thread whose function was abandoned counts until the function ends, and then leaves the pool.

    Args:
        max_threads: the limit.
    """

    # The standard executor is not used: it joins its threads when the interpreter exits, so that one function that never
    # returns would keep the program from ending.

    def __init__(self, max_threads: float = math.inf) -> None:
        self._max_threads = max_threads
        # Taken before a call starts, so that a call does not count as started while it waits for a thread.
        self.slots: AbstractAsyncContextManager[None] = (
            nullcontext() if max_threads == math.inf else asyncio.Semaphore(max(1, int(max_threads)))
        )
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._backlog: deque[_Work] = deque()
        self._lock = threading.Lock()
        self._idle_count = 0
        self._workers: set[_Worker] = set()
        self._is_closed = False

    async def run(self, call: Callable[[], Any], when_late: Callable[[BaseException | None], None]) -> Any:
        """Run a function in a thread, with a copy of the current context variables.

        Args:
            call: the function.
            when_late: called in the event loop with what the function raised, when it has ended after it was abandoned.

        Raises:
            ThreadAbandoned: the task was cancelled while the function ran; raised from the `CancelledError`.
            RuntimeError: the system does not start a single thread.
            BaseException: whatever the function raises.
        """
        work = _Work(call, asyncio.get_running_loop(), when_late)
        self._submit(work)
        try:
            result, error = await work.future
        except asyncio.CancelledError as cancelled:
            with self._lock:
                work.is_abandoned = True
                has_started = work.has_started
            if has_started:
                if work.late is not None:  # it ended before its task learned that it was cancelled
                    work.loop.call_soon(_deliver, work, work.late)
                raise ThreadAbandoned from cancelled
            raise
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the idle threads and wait for them; busy threads end with their functions."""
        with self._lock:
            self._is_closed = True
            idle = [worker for worker in self._workers if not worker.is_busy]
            for _ in range(self._idle_count):
                self._queue.put(None)
            self._idle_count = 0
        for worker in idle:
            worker.join(_JOIN_SECONDS)

    def _submit(self, work: _Work) -> None:
        if (start := getattr(work.loop, "start_thread", None)) is not None:  # a simulation has threads of its own
            start(partial(_begin, work))
            return
        with self._lock:
            if self._hand_to_idle_worker(work):
                return
            if self._workers and len(self._workers) >= self._max_threads:
                self._backlog.append(work)
                return
            worker = _Worker(self, work)
            self._workers.add(worker)
        try:
            worker.start()
        except RuntimeError:
            # The system has no more threads: wait for one of the pool, if it has any.
            with self._lock:
                self._workers.discard(worker)
                if self._hand_to_idle_worker(work):
                    return
                if not self._workers:
                    raise
                self._backlog.append(work)

    def _hand_to_idle_worker(self, work: _Work) -> bool:
        """Queue the work if a thread is idle, and return whether one is. The lock must be held."""
        if not self._idle_count:
            return False
        # The count is lowered here and not by the thread, so that one idle thread is not promised to two functions.
        self._idle_count -= 1
        self._queue.put(work)
        return True

    # --- called by the threads ----------------------------------------------------------------------------------

    def start_work(self, worker: _Worker, work: _Work) -> bool:
        """Mark the work as started, unless it was abandoned before; return whether it has to run."""
        with self._lock:
            worker.is_busy = not work.is_abandoned
            work.has_started = not work.is_abandoned
            return work.has_started

    def next_work(self, worker: _Worker, work: _Work) -> _Work | None:
        """Wait for the next function of a thread; None ends the thread.

        Args:
            worker: the thread.
            work: the function that has ended in it.
        """
        with self._lock:
            if self._backlog and not self._is_closed:
                return self._backlog.popleft()
            if self._is_closed or work.is_abandoned:
                self._workers.discard(worker)
                return None
            self._idle_count += 1
        following = self._queue.get()
        if following is None:
            with self._lock:
                self._workers.discard(worker)
        return following


class _Work:
    """One function, and the future that waits for it."""

    __slots__ = ("call", "context", "future", "has_started", "is_abandoned", "late", "loop", "when_late")

    def __init__(
        self,
        call: Callable[[], Any],
        loop: asyncio.AbstractEventLoop,
        when_late: Callable[[BaseException | None], None],
    ) -> None:
        self.call: Callable[[], Any] = call
        self.loop: asyncio.AbstractEventLoop = loop
        self.future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        self.context: Context = copy_context()
        self.when_late: Callable[[BaseException | None], None] = when_late
        self.late: tuple[Any, BaseException | None] | None = None
        self.has_started: bool = False
        self.is_abandoned: bool = False


class _Worker(threading.Thread):
    """A thread of the pool."""

    def __init__(self, pool: ThreadPool, work: _Work) -> None:
        super().__init__(name="agentloop-tool", daemon=True)
        self.is_busy: bool = True
        self._pool = pool
        self._first_work = work

    def run(self) -> None:
        work: _Work | None = self._first_work
        while work is not None:
            if self._pool.start_work(self, work):
                outcome = _run(work)
                self.is_busy = False
                with contextlib.suppress(RuntimeError):  # the event loop is closed: nothing waits for the result
                    work.loop.call_soon_threadsafe(_deliver, work, outcome)
            work = self._pool.next_work(self, work)


def _begin(work: _Work) -> Callable[[], None] | None:
    """Run a function in the thread of its event loop, unless it was abandoned; return what delivers its outcome."""
    if work.is_abandoned:
        return None
    work.has_started = True
    return partial(_deliver, work, _run(work))


def _run(work: _Work) -> tuple[Any, BaseException | None]:
    try:
        return work.context.run(work.call), None
    except BaseException as error:  # noqa: BLE001  # raised again in the task that waits for it
        return None, error


def _deliver(work: _Work, outcome: tuple[Any, BaseException | None]) -> None:
    if not work.future.done():
        work.future.set_result(outcome)
    elif work.is_abandoned:
        work.when_late(outcome[1])
    else:  # its task was cancelled, and has not run since
        work.late = outcome
