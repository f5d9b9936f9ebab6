"""Threads for plain functions."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any

_JOIN_SECONDS = 1.0


class _Work:
    """One function to run, and who waits for it."""

    __slots__ = ("begun", "call", "context", "dropped", "future", "loop")

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.call: Callable[[], Any] = call
        self.loop: asyncio.AbstractEventLoop = loop
        self.future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        self.context: Context = copy_context()
        self.begun: bool = False
        self.dropped: bool = False


class ThreadAbandoned(Exception):  # it is not an error of the function
    """The wait for a function was cancelled while the function was running; it goes on in its thread."""


class ThreadPool:
    """Runs plain functions in daemon threads of its own, as many as there are functions at one time.

    A thread is made when none is idle. Where the system gives no more of them, functions wait for a busy one. A thread whose
    function is no longer waited for leaves the pool when the function ends.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._backlog: deque[_Work] = deque()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads: set[_Worker] = set()
        self._closed = False

    async def run(self, call: Callable[[], Any]) -> Any:
        """Run a function in a thread, with a copy of the current context variables.

        Raises:
            ThreadAbandoned: when this is cancelled while the function runs, chained to the `CancelledError`.
            RuntimeError: when the system does not give a single thread.
            BaseException: whatever the function raises.
        """
        work = _Work(call, asyncio.get_running_loop())
        self._submit(work)
        try:
            result, error = await work.future
        except asyncio.CancelledError as cancelled:
            with self._lock:
                work.dropped = True
                begun = work.begun
            if begun:
                raise ThreadAbandoned from cancelled
            raise
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Let idle threads end, and wait until they have; busy ones end with their function."""
        with self._lock:
            self._closed = True
            ending = [thread for thread in self._threads if not thread.busy]
            for _ in range(self._idle):
                self._queue.put(None)
            self._idle = 0
        for thread in ending:
            thread.join(_JOIN_SECONDS)

    def _submit(self, work: _Work) -> None:
        with self._lock:
            if self._given_to_idle(work):
                return
            thread = _Worker(self, work)
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._threads.discard(thread)
                if self._given_to_idle(work):
                    return
                if not self._threads:
                    raise
                self._backlog.append(work)

    def _given_to_idle(self, work: _Work) -> bool:
        """Give a function to an idle thread, if there is one."""
        if not self._idle:
            return False
        self._idle -= 1
        self._queue.put(work)
        return True

    def worker_began(self, thread: _Worker, work: _Work) -> bool:
        """Note that a thread begins a function; False when nobody waits for it any more."""
        with self._lock:
            thread.busy = not work.dropped
            work.begun = not work.dropped
            return work.begun

    def worker_idles(self, thread: _Worker, work: _Work) -> _Work | None:
        """Note that a thread has nothing to do, and give it its next function; None lets it end."""
        with self._lock:
            if self._backlog and not self._closed:
                return self._backlog.popleft()
            if self._closed or work.dropped:
                self._threads.discard(thread)
                return None
            self._idle += 1
        following = self._queue.get()
        if following is None:
            with self._lock:
                self._threads.discard(thread)
        return following


class _Worker(threading.Thread):
    """A thread of the pool."""

    def __init__(self, pool: ThreadPool, first: _Work) -> None:
        super().__init__(name="agentloop-tool", daemon=True)
        self.busy: bool = True
        self._pool = pool
        self._first = first

    def run(self) -> None:
        work: _Work | None = self._first
        while work is not None:
            if self._pool.worker_began(self, work):
                outcome = _outcome(work)
                self.busy = False
                with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody can be told
                    work.loop.call_soon_threadsafe(_deliver, work, outcome)
            work = self._pool.worker_idles(self, work)


def _outcome(work: _Work) -> tuple[Any, BaseException | None]:
    try:
        return work.context.run(work.call), None
    except BaseException as error:  # noqa: BLE001  # raised again where it is waited for
        return None, error


def _deliver(work: _Work, outcome: tuple[Any, BaseException | None]) -> None:
    if not work.future.done():
        work.future.set_result(outcome)
