"""A thread with an event loop, in which the connections of a journal live."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from typing import Any, TypeVar

from attrs import define, field

from agentloop._shielding import wait_through
from agentloop.errors import JournalError

_CLOSE_SECONDS = 5.0
"""How long a caller that is cancelled waits for the end of the thread, in seconds."""

T = TypeVar("T")


@define(eq=False)
class BackgroundLoop:
    """Runs coroutines in a thread, which starts with the first one and does not keep the program alive.

    Any number of event loops may use it, in turn or concurrently. What runs in the thread goes on while an event loop of a user
    is blocked, so that a claim is not lost because a tool computes for a minute.

    Attributes:
        name: the name of the thread.
        forget: called in a forked process, where the thread of the parent does not exist.
    """

    name: str
    forget: Callable[[], None]
    _guard: Lock = field(factory=Lock, init=False)
    _running: _RunningLoop | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        _LOOPS.add(self)

    async def run(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run an action in the thread and return its result; cancelling the caller does not stop the action."""
        caller = asyncio.get_running_loop()
        future: asyncio.Future[T] = caller.create_future()
        with self._guard:
            if self._running is None:
                # A simulation has threads of its own.
                is_simulated = hasattr(caller, "start_thread")
                self._running = _SimulatedThread(caller) if is_simulated else _RunningLoop(self.name)
            self._running.start_soon(partial(_run_for, action, caller, future))
        return await future

    def start_soon(self, action: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run an action in the thread without waiting for it; nothing happens when the thread has ended."""
        with self._guard:
            if self._running is not None:
                self._running.start_soon(action)

    async def aclose(self, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Wait for what runs in the thread, run a last action, and end the thread; a later `run` starts a new one.

        Args:
            close: the action; it closes what belongs to the event loop.
        """
        with self._guard:
            running, self._running = self._running, None
        if running is None:
            return
        ended = running.call_at_end(asyncio.get_running_loop())
        running.start_soon(partial(running.end, close))
        # Also when the caller is cancelled, such as by the loss of a claim that this end has told: no thread stays behind.
        cancelled = await wait_through(ended, _CLOSE_SECONDS)
        if cancelled is None:
            await asyncio.shield(ended)
        if ended.done():
            running.join()  # returns at once: the future is settled at the very end of the thread
        if cancelled is not None:
            raise cancelled

    def end_soon(self, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a last action in the thread and end the thread, without waiting for it.

        Args:
            close: the action; it closes what belongs to the event loop.
        """
        with self._guard:
            running, self._running = self._running, None
        if running is not None:
            running.start_soon(partial(running.end, close))

    def forget_thread(self) -> None:
        """Use a new thread for the next action: in a forked process, the thread of the parent does not exist."""
        self._guard, self._running = Lock(), None
        self.forget()


class _RunningLoop:
    """One event loop with its thread."""

    def __init__(self, name: str) -> None:
        # The loop of this kind works with the files of sockets on every system.
        self._loop: asyncio.AbstractEventLoop = asyncio.SelectorEventLoop()
        self._tasks: set[asyncio.Task[object]] = set()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def start_soon(self, action: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start an action as a task."""
        self._loop.call_soon_threadsafe(self._start, action)

    async def end(self, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Wait until all other actions have ended, run a last one, and stop the loop."""
        try:
            while others := self._tasks - {asyncio.current_task()}:
                await asyncio.wait(others)
            await close()
        finally:
            self._loop.stop()

    def call_at_end(self, caller: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future of another event loop that is settled when the thread ends."""
        future: asyncio.Future[None] = caller.create_future()
        self._waiting.append((caller, future))
        return future

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _start(self, action: Callable[[], Coroutine[Any, Any, object]]) -> None:
        task = self._loop.create_task(action())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self._loop.close()
            for caller, future in self._waiting:
                with suppress(RuntimeError):  # the loop of the caller is closed, so nobody waits
                    caller.call_soon_threadsafe(_settle, future, None, None)


class _SimulatedThread(_RunningLoop):
    """Runs actions as tasks of the event loop of a simulation, whose machines are all in one thread."""

    def __init__(self, loop: Any) -> None:
        self._loop, self._start_thread = loop, loop.start_thread
        self._tasks = set()
        self._waiting = []

    def start_soon(self, action: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start an action as a task."""
        with suppress(RuntimeError):  # the simulation is over
            self._start_thread(partial(self._start, action))

    async def end(self, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Wait until all other actions have ended, and run a last one."""
        while others := self._tasks - {asyncio.current_task()}:
            await asyncio.wait(others)
        await close()
        for _, future in self._waiting:
            _settle(future, None, None)

    def join(self) -> None:
        """Do nothing: there is no thread."""


async def _run_for(
    action: Callable[[], Coroutine[Any, Any, T]], caller: asyncio.AbstractEventLoop, future: asyncio.Future[T]
) -> None:
    """Run an action, and pass its result or its exception to a future of another event loop."""
    result: T | None = None
    failure: BaseException | None = None
    try:
        result = await action()
    except BaseException as error:  # noqa: BLE001  # the caller's future raises it
        failure = error
    try:
        caller.call_soon_threadsafe(_settle, future, result, failure)
    except RuntimeError:  # the loop of the caller is closed, so nobody waits
        return


def _settle(future: asyncio.Future[T], result: T | None, failure: BaseException | None) -> None:
    if future.done():  # the caller was cancelled
        return
    if failure is None:
        future.set_result(result)  # type: ignore[arg-type]  # an action that did not fail has returned its result
    elif isinstance(failure, asyncio.CancelledError):
        # The caller was not cancelled: what it asked for was, with the thread.
        future.set_exception(JournalError("the journal was closed while it was used"))
    else:
        future.set_exception(failure)


# --- forks ------------------------------------------------------------------------------------------------------------

_LOOPS: weakref.WeakSet[BackgroundLoop] = weakref.WeakSet()


def _continue_child() -> None:
    for loop in tuple(_LOOPS):
        loop.forget_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_continue_child)
