"""Waiting for changes of a journal, in any number of event loops."""

from __future__ import annotations

import asyncio
import weakref
from asyncio import AbstractEventLoop, Future, Task
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Lock

from agentloop.errors import JournalError

_POLL_SECONDS = 0.02
"""The time between two looks at a storage that other processes may change."""


class ChangeSignal:
    """Wakes the tasks that wait for changes of a journal. Thread-safe.

    What has changed is decided by marks: values that differ after a change. A caller waits until the mark of an execution
    differs from the one that it has seen last.

    Args:
        read_version: returns a value that differs after every change of the storage, also one by another process. It is polled
            while somebody waits, once for all who wait in an event loop. None if only this object changes the storage.
        poll_seconds: the time between two polls, in seconds.
    """

    def __init__(
        self, read_version: Callable[[], Awaitable[object]] | None = None, poll_seconds: float = _POLL_SECONDS
    ) -> None:
        self._read_version = read_version
        self._poll_seconds = poll_seconds
        self._waiting: dict[Future[None], tuple[AbstractEventLoop, str]] = {}
        self._next_polls: weakref.WeakKeyDictionary[AbstractEventLoop, float] = weakref.WeakKeyDictionary()
        self._counts: weakref.WeakKeyDictionary[AbstractEventLoop, int] = weakref.WeakKeyDictionary()
        self._pollers: weakref.WeakKeyDictionary[AbstractEventLoop, Task[None]] = weakref.WeakKeyDictionary()
        self._seen: weakref.WeakKeyDictionary[object, dict[str, object]] = weakref.WeakKeyDictionary()
        self._lock = Lock()

    def fire(self) -> None:
        """Let all who wait look again, because this object has changed the storage."""
        with self._lock:
            waiting = tuple(self._waiting.items())
        for future, (loop, _) in waiting:
            with suppress(RuntimeError):  # the loop is closed, so its callers are gone
                loop.call_soon_threadsafe(_wake, future)

    def awaited_ids(self) -> frozenset[str]:
        """Return the ids of the executions for whose changes somebody waits now; an empty one stands for any."""
        with self._lock:
            return frozenset([execution_id for _, execution_id in self._waiting.values()])

    async def wait(
        self,
        execution_id: str,
        read_mark: Callable[[str], Awaitable[object]],
        *,
        timeout: float,  # noqa: ASYNC109  # a result, not an error
        caller: object | None,
    ) -> bool:
        """Wait until the mark of an execution differs from the one that the caller has seen last; see `CanWatchExecutions`.

        Args:
            execution_id: the execution; empty for any.
            read_mark: returns the mark of an execution.
            timeout: the maximum time to wait, in seconds.
            caller: who waits; the current task by default.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        with self._lock:
            seen = self._seen.setdefault(asyncio.current_task() if caller is None else caller, {})
        while True:
            # Registered before the mark is read: a change after that is never missed.
            future = self._register(loop, execution_id)
            try:
                mark = await read_mark(execution_id)
                if execution_id not in seen or seen[execution_id] != mark:
                    seen[execution_id] = mark
                    return True
                remaining = deadline - loop.time()
                if remaining <= 0:
                    return False
                await asyncio.wait((future,), timeout=remaining)
            finally:
                self._unregister(future, loop)

    def _register(self, loop: AbstractEventLoop, execution_id: str) -> Future[None]:
        future = loop.create_future()
        with self._lock:
            self._waiting[future] = loop, execution_id
            self._counts[loop] = self._counts.get(loop, 0) + 1
            if self._read_version is not None and loop not in self._pollers:
                self._next_polls.setdefault(loop, loop.time() + self._poll_seconds)
                poll = self._poll(self._read_version)
                self._pollers[loop] = loop.create_task(poll, name="agentloop journal changes")
        return future

    def _unregister(self, future: Future[None], loop: AbstractEventLoop) -> None:
        with self._lock:
            del self._waiting[future]
            self._counts[loop] -= 1
            poller = self._pollers.pop(loop, None) if not self._counts[loop] else None
        if poller is not None:
            poller.cancel()

    async def _poll(self, read_version: Callable[[], Awaitable[object]]) -> None:
        version: object = None
        loop = asyncio.get_running_loop()
        while True:
            # Not with each wait: many short ones would read as often.
            await asyncio.sleep(self._next_polls[loop] - loop.time())
            self._next_polls[loop] = loop.time() + self._poll_seconds
            try:
                newest = await read_version()
            except JournalError:  # those who wait get it when they look
                self.fire()
            else:
                # Also after the first look: what changed between it and the marks of those who wait is in no version.
                if newest != version:
                    version = newest
                    self.fire()


def _wake(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)
