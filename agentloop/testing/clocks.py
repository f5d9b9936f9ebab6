"""Clocks, ids and event loops that a test controls."""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from agentloop.values.time_and_ids import Clock, IdSource

T = TypeVar("T")

_START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock(Clock):
    """A clock that stands still until it is told to go on."""

    def __init__(self, start: datetime = _START) -> None:
        self._now = start
        self._seconds = 0.0

    def now(self) -> datetime:
        """Return the time it was set to."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds that it was told to go on."""
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Go on by this many seconds."""
        self._now += timedelta(seconds=seconds)
        self._seconds += seconds


class LoopClock(Clock):
    """A clock that shows the time of the running event loop, which may be virtual."""

    def now(self) -> datetime:
        """Return the beginning of 2026 plus the seconds that the event loop counts."""
        return _START + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        """Return the seconds that the event loop counts."""
        return asyncio.get_running_loop().time()


class CountingIds(IdSource):
    """Ids that count up, as in `step_1`, `step_2`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def new_id(self, kind: str) -> str:
        """Return the next number of this kind."""
        self._counts[kind] += 1
        return f"{kind}_{self._counts[kind]}"


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still while anything can run, and jumps when nothing can.

    Sleeps and timeouts of any length take no time and end in the right order. Work in threads is not seen: a loop that waits
    for a thread jumps too.
    """

    def __init__(self) -> None:
        self._virtual_now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual_now

    def jump(self, seconds: float) -> None:
        """Let virtual time pass."""
        self._virtual_now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    """Lets time jump where a real selector would wait."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None and timeout > 0:
            self._loop.jump(timeout)
        return ready


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop with virtual time, to its end."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
