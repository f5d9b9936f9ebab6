"""Clocks, ids and event loops that a test controls."""

from __future__ import annotations

import asyncio
import gc
import heapq
import selectors
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from inspect import isasyncgen
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from attrs import define

from agentloop._event_loops import run_with, running_loop
from agentloop.values.time_and_ids import Clock, IdSource

T = TypeVar("T")

START = datetime(2026, 1, 1, tzinfo=UTC)
_PATIENCE = 10.0
"""How many real seconds a thread or a socket of the program may take before it wakes the event loop."""
_GRACE = 1.0
"""The same for threads that are older than the event loop, which have hardly anything to do with it."""
_COUNTED = 0.5
"""How many real seconds a wait takes that counts."""
_BOUNDS: ContextVar[RunBounds | None] = ContextVar("_BOUNDS", default=None)


class Deadlock(AssertionError):
    """A program in virtual time cannot go on, or does not come to an end. The message lists the tasks and what they wait for.

    Attributes:
        took_time: whether it took real seconds to find out, as where a thread might have woken the program.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, problem: str, *, took_time: bool) -> None:
        super().__init__(f"{problem}:\n{_describe_waits(loop)}")
        self.took_time = took_time


class RealTime(AssertionError):
    """Programs in virtual time have waited for threads or sockets for longer than they may.

    Attributes:
        took_time: True, as `Deadlock` has it.
    """

    took_time = True


@define(eq=False)
class RunBounds:
    """What programs in virtual time may take.

    Attributes:
        turns: how many turns of the event loop one program may take; None for any number.
        real_seconds: how long they may wait for threads and sockets, all together. Waits shorter than half a second do not count: a
            busy machine takes as long to run a thread that does nothing.
    """

    turns: int | None = None
    real_seconds: float = inf


@contextmanager
def bounded_runs(bounds: RunBounds) -> Iterator[None]:
    """End each program in virtual time that takes more than this, as long as the context is open."""
    token = _BOUNDS.set(bounds)
    try:
        yield
    finally:
        _BOUNDS.reset(token)


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
        Deadlock: nothing can happen any more, and the coroutine has not ended.
        RuntimeError: inside a running event loop.
        Exception: whatever the coroutine raises.
    """
    if running_loop() is not None:
        coroutine.close()
        raise RuntimeError(
            "run_in_virtual_time cannot be used inside a running event loop; call it in a plain function"
        )
    with virtual_time_runner(VirtualTimeLoop) as runner:
        return run_with(runner, coroutine)


def run_in_real_time(coroutine: Coroutine[Any, Any, T], *, seconds: float) -> T:
    """Run a coroutine to completion in a new event loop of asyncio, which has this many seconds.

    Raises:
        Deadlock: the seconds have passed.
        Exception: whatever the coroutine raises.
    """

    async def run() -> T:
        task = asyncio.ensure_future(coroutine)
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            problem = f"the program has not ended after {seconds:g} seconds"
            raise Deadlock(asyncio.get_running_loop(), problem, took_time=True)
        return task.result()

    return asyncio.run(run())


@contextmanager
def virtual_time_runner(loop_factory: Callable[[], VirtualTimeLoop]) -> Iterator[asyncio.Runner]:
    """Yield a runner for a program in virtual time. The tasks of a program that cannot go on are dropped, not awaited."""
    runner = asyncio.Runner(loop_factory=loop_factory)
    try:
        yield runner
    except BaseException:
        # What has stopped the program may stop the cancellation of its tasks as well, and is to be told once.
        with suppress(Deadlock, RealTime):
            runner.close()
        raise
    else:
        runner.close()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as no callback is ready.

    Sleeps and timeouts of any length take no real time and expire in the right order. The loop cannot see work in threads: while
    it waits for a thread, its clock jumps as well. What the package itself computes in threads elsewhere, such as the calls in a long
    text, it computes at once here.

    A program that waits for what cannot happen ends with a `Deadlock`: no task is ready, no timer is set, and there is no thread or
    socket that could wake it, or none does within seconds.

    Attributes:
        computes_at_once: True.
    """

    computes_at_once = True

    def __init__(self) -> None:
        # The base class reads the time in its constructor.
        self._virtual_now = 0.0
        self._passive: list[asyncio.TimerHandle] = []
        self._bounds = _BOUNDS.get() or RunBounds()
        self._turns, self._max_turns = 0, self._bounds.turns
        self._threads = frozenset(threading.enumerate())
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual_now

    def call_later_passively(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call the function when this time has passed; the clock does not jump to a time at which nothing else happens."""
        handle = asyncio.TimerHandle(self._virtual_now + delay, callback, (), self)
        heapq.heappush(self._passive, handle)
        return handle

    def count_turn(self) -> None:
        """Count a turn of the loop.

        Raises:
            Deadlock: it is one too many.
        """
        self._turns += 1
        if self._max_turns is not None and self._turns > self._max_turns:
            limit, self._max_turns = self._max_turns, None
            raise Deadlock(self, f"the program has not ended after {limit:,} turns of the event loop", took_time=True)

    def count_wait(self, seconds: float) -> None:
        """Count a wait for a thread or a socket.

        Raises:
            RealTime: the programs have waited for too long.
        """
        if seconds >= _COUNTED:
            self._bounds.real_seconds -= seconds
        if self._bounds.real_seconds < 0:
            raise RealTime("threads or sockets take longer than a program in virtual time waits for them")

    def patience(self) -> float:
        """Return for how many real seconds a loop without a timer has to wait for threads; 0 if there are none."""
        present = threading.enumerate()
        is_own = any(thread not in self._threads for thread in present)
        return _PATIENCE if is_own else _GRACE if len(present) > 1 else 0.0

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
        self._loop.count_turn()
        if timeout is None:
            return self._wait()
        ready = super().select(0)
        if not ready and timeout > 0:
            self._loop.jump(timeout)
        return ready

    def _wait(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for real I/O, such as the wake-up by a thread: no timer is set, so that nothing else can end the wait.

        Raises:
            Deadlock: nothing can, or nothing does.
        """
        # The loop's own socket, by which threads wake it, is always there.
        seconds = _PATIENCE if len(self.get_map()) > 1 else self._loop.patience()
        began = time.monotonic()
        deadline = began + seconds
        while not (ready := super().select(max(deadline - time.monotonic(), 0))):
            if time.monotonic() >= deadline:
                problem = "no timer is set, and nothing can wake the tasks that wait"
                raise Deadlock(self._loop, problem, took_time=seconds > 0)
        self._loop.count_wait(time.monotonic() - began)
        return ready


# --- what waits -------------------------------------------------------------------------------------------------------

_MAX_TASKS = 20
_MAX_FRAMES = 12


def _describe_waits(loop: asyncio.AbstractEventLoop) -> str:
    """Return a line for each task of a loop that has not ended: its name, and where it waits, innermost place first."""
    tasks = sorted([task for task in asyncio.all_tasks(loop) if not task.done()], key=lambda task: task.get_name())
    lines = [f"  {task.get_name()}: {_describe(task)}" for task in tasks[:_MAX_TASKS]]
    more = len(tasks) - len(lines)
    return "\n".join([*lines, *([f"  and {more} more"] if more else [])])


def _describe(task: asyncio.Task[Any]) -> str:
    places = [
        f"{frame.f_code.co_qualname} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
        for frame in _frames(task)
    ]
    return " < ".join(places[::-1][:_MAX_FRAMES]) or "nothing is known"


def _frames(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """Yield the frames of a task that waits, outermost first: `Task.get_stack` has the outermost one alone."""
    waits: Any = task.get_coro()
    while waits is not None:
        frame = next((found for name in _FRAMES if (found := getattr(waits, name, None)) is not None), None)
        if frame is not None:
            yield frame
        following = next((found for name in _NEXT if (found := getattr(waits, name, None)) is not None), None)
        if following is None and frame is None:
            # What `anext` of an async generator returns does not tell which generator it is of.
            following = next(filter(isasyncgen, gc.get_referents(waits)), None)
        waits = following


_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_NEXT = ("cr_await", "ag_await", "gi_yieldfrom")
