"""Clocks, ids and event loops that a test controls."""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from agentloop._event_loops import run_with, running_loop
from agentloop.values.time_and_ids import Clock, IdSource

T = TypeVar("T")

START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock(Clock):
    """A clock that moves only when `advance` is called.

    Args:
        start: the initial time.
    """

    def __init__(self, start: datetime = START) -> None:
        self._now = start
        self._seconds = 0.0

    def now(self) -> datetime:
        """Return the start time plus all advances."""
        return self._now

    def monotonic(self) -> float:
        """Return the sum of all advances, in seconds."""
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Move both the time of day and the monotonic time forward."""
        self._now += timedelta(seconds=seconds)
        self._seconds += seconds


class LoopClock(Clock):
    """A clock that follows the running event loop, whose time may be virtual."""

    def now(self) -> datetime:
        """Return 2026-01-01 UTC plus the event loop's time."""
        return START + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        """Return the event loop's time in seconds."""
        return asyncio.get_running_loop().time()


class CountingIds(IdSource):
    """Ids that count up for each kind, as in `step_1`, `step_2`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def new_id(self, kind: str) -> str:
        """Return the next id of this kind."""
        self._counts[kind] += 1
        return f"{kind}_{self._counts[kind]}"


def run_in_virtual_time(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to completion in a new event loop with virtual time, and return its result.

    Raises:
        RuntimeError: inside a running event loop.
        Exception: whatever the coroutine raises.
    """
    if running_loop() is not None:
        coroutine.close()
        raise RuntimeError(
            "run_in_virtual_time cannot be used inside a running event loop; call it in a plain function"
        )
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return run_with(runner, coroutine)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as no callback is ready.

    Sleeps and timeouts of any length take no real time and expire in the right order. The loop cannot see work in threads: while
    it waits for a thread, its clock jumps as well. What the package itself computes in threads elsewhere, such as the calls in a long
    text, it computes at once here.

    Attributes:
        computes_at_once: True.
    """

    computes_at_once = True

    def __init__(self) -> None:
        # The base class reads the time in its constructor.
        self._virtual_now = 0.0
        self._passive: list[asyncio.TimerHandle] = []
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual_now

    def call_later_passively(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call the function when this time has passed; the clock does not jump to a time at which nothing else happens."""
        handle = asyncio.TimerHandle(self._virtual_now + delay, callback, (), self)
        heapq.heappush(self._passive, handle)
        return handle

    def jump(self, seconds: float) -> None:
        """Advance the virtual time, but not beyond the next passive timer."""
        target = self._virtual_now + seconds
        while self._passive and self._passive[0].cancelled():
            heapq.heappop(self._passive)
        if self._passive and self._passive[0].when() <= target:
            passed = heapq.heappop(self._passive)
            target = max(self._virtual_now, passed.when())
            self.call_soon(passed._run)  # noqa: SLF001  # as the base class runs its handles
        self._virtual_now = target


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that advances the loop's virtual time where a real one would block."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Without a timeout no timer is scheduled: only real I/O, such as a thread's wake-up, can end the wait.
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None and timeout > 0:
            self._loop.jump(timeout)
        return ready
