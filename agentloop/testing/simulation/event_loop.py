"""The event loop of a simulation: one thread, virtual time, machines that crash and pause, and a seed that decides who runs next."""

from __future__ import annotations

import asyncio
import gc
import heapq
import logging
import sys
import warnings
from asyncio import Handle, Task, TimerHandle
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any, TypeVar

from agentloop.testing.clocks import START
from agentloop.values.time_and_ids import Clock, IdSource

T = TypeVar("T")

_CLOSINGS = 50
_MACHINE: ContextVar[Machine | None] = ContextVar("agentloop simulated machine", default=None)


class Stuck(RuntimeError):
    """The simulation does not end: nothing is left to happen, or too much happens."""


class Machine:
    """A computer of the simulation: a group of tasks that live and die together.

    Args:
        name: its name in the log.
        loop: the event loop that runs it.

    Attributes:
        name: its name.
        is_dead: whether it has crashed: none of its tasks takes another step, and no `finally` of theirs runs.
        places: what its tasks are doing now, by place, such as `journal.append`.
        context: the context variables of its tasks.
    """

    def __init__(self, name: str, loop: SimulatedLoop) -> None:
        self.name = name
        self.is_dead: bool = False
        self.places: Counter[str] = Counter()
        self.context: Context = copy_context()
        self.context.run(_MACHINE.set, self)
        self._loop = loop
        self._is_paused = False
        self._held: list[Handle] = []

    def __repr__(self) -> str:
        return f"Machine({self.name!r})"

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Task[T]:
        """Start a task on this machine."""
        return self._loop.create_task(coroutine, context=self.context)

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Note that a task of the machine is at a place while the block runs."""
        self.places[place] += 1
        try:
            yield
        finally:
            self.places[place] -= 1

    @property
    def place(self) -> str:
        """The place of its tasks that matters most; `idle` when none of them is at one."""
        found = sorted(place for place, count in self.places.items() if count)
        return next((place for place in found if place.startswith("tool")), found[0] if found else "idle")

    def crash(self) -> None:
        """Let the machine die: what its tasks were about to do does not happen."""
        self.is_dead = True

    def pause(self, seconds: float) -> None:
        """Stop all tasks of the machine for some time, as when its process is stopped or swapped out."""
        self._is_paused = True
        self._loop.call_outside(seconds, self._go_on)

    def hold(self, handle: Handle) -> bool:
        """Keep what would run now until the pause ends; return whether the machine pauses."""
        if self._is_paused:
            self._held.append(handle)
        return self._is_paused

    def _go_on(self) -> None:
        held, self._held, self._is_paused = self._held, [], False
        self._loop.run_again(held)


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop without sockets and threads, whose time jumps to the next timer as soon as nothing is ready.

    What one machine has scheduled runs in that order, as asyncio promises; the seed decides which machine runs next.

    Args:
        random: makes the choices.
        max_steps: after how many steps the simulation counts as stuck.

    Attributes:
        computes_at_once: True.
        steps: how many steps have run.
        after_step: called with the machine after each of its steps.
    """

    computes_at_once = True

    def __init__(self, random: Random, *, max_steps: int = 200_000) -> None:
        super().__init__()
        self.steps: int = 0
        self.after_step: Callable[[Machine], None] | None = None
        self._random = random
        self._max_steps = max_steps
        self._virtual_now = 0.0
        self._outside = copy_context()
        # A task that nobody refers to would be closed, and its `finally` would run, when its machine is dead.
        self._all: list[tuple[Task[Any], Context]] = []
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._virtual_now

    def call_outside(self, delay: float, callback: Callable[[], object]) -> TimerHandle:
        """Call a function later, on no machine."""
        return self.call_later(delay, callback, context=self._outside)

    def run_outside(self, function: Callable[[], T]) -> T:
        """Call a function now, on no machine: what it schedules outlives the machine whose step this is."""
        return self._outside.copy().run(function)

    def run_again(self, handles: list[Handle]) -> None:
        """Let handles run that were held."""
        self._ready.extend(handles)

    def start_thread(self, begin: Callable[[], Callable[[], object] | None]) -> None:
        """Run a function as if in a thread: at some later time, at once; what it returns is called again later.

        Args:
            begin: does the work, and returns what passes its result on; None if there is nothing to pass on.
        """

        def work() -> None:
            end = begin()
            if end is not None:
                self.call_later(self._thread_seconds(), end)

        self.call_later(self._thread_seconds(), work)

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # noqa: ARG002  # there are no executors
        """Run a function as if in a thread."""
        future: asyncio.Future[Any] = self.create_future()

        def begin() -> Callable[[], object]:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001  # whoever waits gets it
                return partial(_settle, future, future.set_exception, error)
            return partial(_settle, future, future.set_result, result)

        self.start_thread(begin)
        return future

    def _thread_seconds(self) -> float:
        return self._random.choice((0.0, 0.0, 0.001, 0.05))

    def discard(self) -> None:
        """Throw away all tasks that have not ended; the world must not hear of what their `finally` blocks do."""
        self._ready.clear()
        self._scheduled.clear()
        self._close_all()
        self._ready.clear()
        self._scheduled.clear()

    def _close_all(self) -> None:
        tasks, self._all = self._all, []
        for task, context in tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # it is dropped on purpose
                _close(task, context)

    # --- what asyncio calls -----------------------------------------------------------------------------------------

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Task[Any]:
        context: Context = options.pop("context", None) or copy_context()
        if (machine := _MACHINE.get()) is not None and _MACHINE not in context:
            context.run(_MACHINE.set, machine)  # a task with a fresh context is one of the same process
        task: Task[Any] = Task(coro, loop=loop, context=context, **options)
        self._all.append((task, context))
        return task

    def _write_to_self(self) -> None:
        """Do nothing: there is one thread."""

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there are no sockets."""

    def _run_once(self) -> None:
        self._make_ready()
        while not self._ready:
            if not self._scheduled:
                raise Stuck(f"nothing is left to happen at {self._virtual_now:.1f} s")
            self._virtual_now = max(self._virtual_now, self._scheduled[0].when())
            self._make_ready()
        handle = self._choose()
        machine: Machine | None = _machine_of(handle)
        if handle.cancelled() or (machine is not None and (machine.is_dead or machine.hold(handle))):
            return
        self.steps += 1
        if self.steps > self._max_steps:
            raise Stuck(f"{self._max_steps:,} steps, and no end at {self._virtual_now:.1f} s")
        handle._run()  # noqa: SLF001  # as the base class runs its handles
        if machine is not None and self.after_step is not None and not machine.is_dead:
            self.after_step(machine)

    def _make_ready(self) -> None:
        scheduled = self._scheduled
        while scheduled and (scheduled[0].cancelled() or scheduled[0].when() <= self._virtual_now):
            handle = heapq.heappop(scheduled)
            handle._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001  # as the base class does
            if not handle.cancelled():
                self._ready.append(handle)

    def _choose(self) -> Handle:
        ready: deque[Handle] = self._ready
        if len(ready) == 1:
            return ready.popleft()
        first = dict[Machine | None, int]()
        for index, handle in enumerate(ready):
            first.setdefault(_machine_of(handle), index)
        places = list(first.values())
        index = places[self._random.randrange(len(places))] if len(places) > 1 else 0
        handle = ready[index]
        del ready[index]
        return handle

    _ready: deque[Handle]
    _scheduled: list[TimerHandle]


@contextmanager
def dropping_quietly() -> Iterator[None]:
    """Let what the block leaves behind, such as tasks of dead machines, go without a word at its end.

    Garbage is collected at the end alone: when it is must not depend on what ran before.
    """
    hook, is_enabled, log_level = sys.unraisablehook, gc.isenabled(), logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # the package warns of what goes wrong on purpose
    gc.freeze()  # at the end, only what the block has made is looked at
    gc.disable()
    sys.unraisablehook = _ignore
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
            gc.collect()
    finally:
        sys.unraisablehook = hook
        logging.disable(log_level)
        gc.unfreeze()
        if is_enabled:
            gc.enable()


def _close(task: Task[Any], context: Context) -> None:
    coroutine: Any = task.get_coro()
    for _ in range(_CLOSINGS):  # each `finally` may wait once more
        # Errors of a block that expects an event loop are of no interest: its machine is gone.
        with suppress(BaseException):
            context.run(coroutine.close)
        if coroutine.cr_frame is None:
            return


def _settle(future: asyncio.Future[Any], settle: Callable[[Any], None], outcome: object) -> None:
    if not future.done():
        settle(outcome)


def _ignore(_: object) -> None:
    """Ignore an error of what is thrown away."""


def _machine_of(handle: Handle) -> Machine | None:
    context: Context = handle._context  # type: ignore[attr-defined]  # noqa: SLF001  # there is no other way to know
    return context.get(_MACHINE)


def current_machine() -> Machine | None:
    """Return the machine whose step runs now; None outside of all machines."""
    return _MACHINE.get()


class MachineClock(Clock):
    """The clock of one machine, which may go fast or slow, and be set.

    Args:
        loop: has the true time.
        rate: how many seconds it counts in one second.

    Attributes:
        shift: how far it was set, in seconds.
    """

    def __init__(self, loop: SimulatedLoop, rate: float = 1.0) -> None:
        self._loop, self._rate = loop, rate
        self.shift: float = 0.0

    def now(self) -> datetime:
        """Return the time of day, as the machine knows it."""
        return START + timedelta(seconds=self._loop.time() * self._rate + self.shift)

    def monotonic(self) -> float:
        """Return the seconds that the machine has counted; setting the clock does not change them."""
        return self._loop.time() * self._rate


class SeededIds(IdSource):
    """Ids from a seed.

    Args:
        random: makes them.
    """

    def __init__(self, random: Random) -> None:
        self._random = random

    def new_id(self, kind: str) -> str:
        """Return the kind, an underscore and 16 hexadecimal digits."""
        return f"{kind}_{self._random.getrandbits(64):016x}"
