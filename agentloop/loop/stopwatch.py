"""A stopwatch for event loops: names the code that keeps one from going on, while it does.

One thread of the process looks at the watched event loops. It asks each of them, through `call_soon_threadsafe`, to tell that it goes
on. While an answer is missing, the thread compares the stacks of the event loop's thread: the frames that all of them have in common
are those of the code that blocks. Nothing runs in the event loop for that but the answers, four per limit, and only while it is watched.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from inspect import CO_COROUTINE
from pathlib import Path
from types import FrameType
from typing import Final

from attrs import define, evolve, field, frozen

from agentloop.events.bus import emit_soon
from agentloop.events.execution import EventLoopBlocked
from agentloop.events.operations import operation_in
from agentloop.loop.ending import Endable
from agentloop.values.event import Operation

_LOG = logging.getLogger("agentloop.loop")

_LOOKS: Final = 4
"""How often the thread looks in the time of a limit."""
_IDLE_SECONDS: Final = 5.0
"""How long the thread waits for another event loop before it ends."""
_MAX_FRAMES: Final = 10
_ASYNCIO: Final = str(Path(asyncio.__file__).parent) + os.sep
_RUNNING: Final = frozenset(
    {"Handle._run", "Runner.run", "BaseEventLoop.run_forever", "BaseEventLoop.run_until_complete"}
)
"""The functions of asyncio in which everything that an event loop runs is called. The event loops of uvloop have no frames."""


@frozen
class BlockingCode:
    """Code that has kept an event loop from going on.

    Attributes:
        seconds: how long, as far as it has been seen; times in which the thread waited for a processor do not count.
        file: the file of the innermost function that has not returned and is not one of asyncio.
        line: the 1-based line of this function that runs.
        function: the qualified name of this function.
        stack: the functions from the one that the event loop called to this one, as `file:line in function`; at most 10.
        operation: the operation of an execution in which the code runs, such as a tool call; None if it is not known.
    """

    seconds: float
    file: str
    line: int
    function: str
    stack: tuple[str, ...]
    operation: Operation | None

    @property
    def place(self) -> str:
        """The code, and the operation in which it runs, as text."""
        text, operation = f"{self.file}:{self.line} in {self.function}", self.operation
        if operation is None:
            return text
        what = operation.kind.value if operation.call is None else f"tool call {operation.key} of {operation.call.name}"
        return f"{text} ({what}, execution {operation.execution_id})"


# --- what the system tells about threads --------------------------------------------------------------------------


@frozen
class _Times:
    """The times of a thread in seconds.

    Attributes:
        used: its processor time; None if the system does not tell.
        waited: how long it was ready and had no processor; 0 if the system does not tell.
    """

    used: float | None = None
    waited: float = 0.0

    @classmethod
    def of(cls, thread: int) -> _Times:
        """Return the times of the thread of this process with this native id."""
        with suppress(OSError, ValueError):  # only Linux tells
            text = Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii")
            used, waited, _ = (int(each) / 1e9 for each in text.split())
            return cls(used, waited)
        return cls()


# --- what is seen of a thread --------------------------------------------------------------------------------------


def _frames_of(thread: int) -> list[FrameType]:
    """Return the frames of the thread with this identifier, outermost first."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)  # noqa: SLF001  # the function that the documentation has for debuggers
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _is_of_asyncio(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_ASYNCIO)


def _called_by_loop(frames: Sequence[FrameType]) -> Sequence[FrameType]:
    """Return the frames inside of the function that the event loop has called, without those of asyncio at their end."""
    start = len(frames)
    for index, frame in enumerate(frames):
        if _is_of_asyncio(frame) and frame.f_code.co_qualname in _RUNNING:
            start = index + 1
    if start == len(frames):  # run by uvloop itself: a coroutine is called by nothing else
        start = next((at for at, frame in enumerate(frames) if frame.f_code.co_flags & CO_COROUTINE), start)
    return _without_asyncio(frames[start:])


def _loop_in(frames: Sequence[FrameType]) -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in a thread, from the frames of asyncio that run it; None without one."""
    for frame in reversed(frames):
        if _is_of_asyncio(frame) and frame.f_code.co_qualname in _RUNNING:
            owner = frame.f_locals.get("self")
            loop = owner if isinstance(owner, asyncio.AbstractEventLoop) else getattr(owner, "_loop", None)
            if isinstance(loop, asyncio.AbstractEventLoop):
                return loop
    return None


def _operation_of(loop: asyncio.AbstractEventLoop) -> Operation | None:
    """Return the operation in which the current task of an event loop is; called by another thread."""
    task = asyncio.current_task(loop)
    if task is None:
        return None
    if sys.version_info >= (3, 12):
        return operation_in(task.get_context())
    contexts = [each for each in gc.get_referents(task) if isinstance(each, Context)]
    return next(filter(None, map(operation_in, contexts)), None)


def _without_asyncio(frames: Sequence[FrameType]) -> Sequence[FrameType]:
    """Return the frames without those of asyncio at their end."""
    end = len(frames)
    while end and _is_of_asyncio(frames[end - 1]):
        end -= 1
    return frames[:end]


def _common(frames: Sequence[FrameType], others: Sequence[FrameType]) -> Sequence[FrameType]:
    """Return the outermost frames that are the same calls in both."""
    same = 0
    for frame, other in zip(frames, others, strict=False):
        if frame is not other:
            break
        same += 1
    return _without_asyncio(frames[:same])


def _describe(frames: Sequence[FrameType], seconds: float, loop: asyncio.AbstractEventLoop) -> BlockingCode:
    innermost = frames[-1]
    stack = [f"{each.f_code.co_filename}:{each.f_lineno} in {each.f_code.co_qualname}" for each in frames]
    return BlockingCode(
        seconds=seconds,
        file=innermost.f_code.co_filename,
        line=innermost.f_lineno or 0,
        function=innermost.f_code.co_qualname,
        stack=tuple(stack[-_MAX_FRAMES:]),
        operation=_operation_of(loop),
    )


# --- one event loop ------------------------------------------------------------------------------------------------


@define(eq=False, repr=False)
class _Watched:
    """What is known of one thread in which an event loop runs.

    Attributes:
        thread: the identifier of the thread.
        native: its native id.
        loop: the event loop; None to look for it, as the thread can run one after the other.
        watches: those who are told.
    """

    thread: int
    native: int
    loop: asyncio.AbstractEventLoop | None
    watches: list[LoopWatch] = field(factory=list, init=False)

    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _seen: Sequence[FrameType] = field(default=(), init=False)
    _asked: asyncio.AbstractEventLoop | None = field(default=None, init=False)  # None when it has answered
    _frames: Sequence[FrameType] = field(default=(), init=False)
    _blocked: float = field(default=0.0, init=False)
    _times: _Times | None = field(default=None, init=False)
    _found: BlockingCode | None = field(default=None, init=False)

    @property
    def seconds(self) -> float:
        """The lowest limit."""
        return min((each.seconds for each in self.watches), default=float("inf"))

    def hold(self) -> None:
        """Take the frames of the thread, and keep its event loop from an answer and its watches from leaving until `look`."""
        self._lock.acquire()
        self._seen = _frames_of(self.thread)

    def look(self, passed: float, *, is_late: bool) -> None:
        """Look at the thread, which is held, and log what blocks it.

        Args:
            passed: seconds since the last look.
            is_late: whether the watching thread could not look in time although it had a processor: some function held the lock of the
                interpreter, or the process was stopped.
        """
        try:
            times, before = _Times.of(self.native), self._times
            self._times, frames, self._seen = times, self._seen, ()
            loop = self.loop or _loop_in(frames)
            if before is None or loop is None or not loop.is_running() or self._asked not in {None, loop}:
                self._asked, self._frames = None, ()
            had_found = self._found is not None
            if before is not None and loop is not None and loop.is_running():
                used = 0.0 if times.used is None or before.used is None else min(passed, times.used - before.used)
                credit = used if is_late else max(passed - (times.waited - before.waited), 0.0)
                # Where a function in C has held the lock, nothing else has run since the last look, also if the loop had answered then.
                is_held = is_late and used >= self.seconds
                if self._asked is not None or is_held:
                    self._compare(_called_by_loop(frames), credit, loop, is_held=is_late)
                if self._asked is None:
                    self._ask(_called_by_loop(frames), loop)
            found = None if had_found else self._found
        finally:
            self._lock.release()
        if found is not None:
            stack = "".join(f"\n  {each}" for each in found.stack)
            _LOG.warning("the event loop has been blocked for %.1f s by %s%s", found.seconds, found.place, stack)

    def unlock(self) -> None:
        """Let go of the thread, in a fork in which it is held for ever."""
        self._lock = threading.Lock()

    def answer(self) -> None:
        """Tell in the event loop, which goes on, what has blocked it; keep no frame."""
        with self._lock:
            self._asked, self._frames, found, self._found = None, (), self._found, None
            watches = [*self.watches]
        if found is not None:
            for watch in watches:
                watch.tell(found)

    def leave(self, watch: LoopWatch) -> None:
        """Stop watching for somebody; tell what is known already."""
        with self._lock:
            if watch in self.watches:
                self.watches.remove(watch)
            found = self._found
            if not self.watches:
                self._frames, self._found = (), None
        if found is not None:
            watch.tell(found)

    def _ask(self, inner: Sequence[FrameType], loop: asyncio.AbstractEventLoop) -> None:
        if not self._frames:
            self._frames, self._blocked = inner, 0.0
        self._asked = loop
        try:
            loop.call_soon_threadsafe(self.answer)
        except RuntimeError:  # it was closed just now
            self._asked, self._frames = None, ()

    def _compare(
        self, inner: Sequence[FrameType], seconds: float, loop: asyncio.AbstractEventLoop, *, is_held: bool
    ) -> None:
        """Count a time for the code that has run since the last look, if some code has."""
        common = _common(self._frames, inner)
        if common:
            self._frames, self._blocked = common, self._blocked + seconds
        else:  # other code of the same turn of the event loop
            self._frames, self._blocked = inner, seconds if is_held else 0.0
        if self._frames and self._blocked >= self.seconds:
            found = self._found
            if found is None:
                self._found = _describe(self._frames, self._blocked, loop)
            else:
                self._found = evolve(found, seconds=max(found.seconds, self._blocked))


class LoopWatch:
    """One who is told what blocks an event loop.

    Args:
        seconds: the limit: code that runs for as long is told.
        report: called with the code, in the event loop, when it goes on.
    """

    def __init__(self, seconds: float, report: Callable[[BlockingCode], None]) -> None:
        self.seconds = seconds
        self._report = report
        self._watched: _Watched | None = None
        self._told: BlockingCode | None = None

    def begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Watch an event loop of the current thread.

        Args:
            loop: the event loop; None for all that run in the thread from now on.
        """
        self._watched = _STOPWATCH.add(self, loop)

    def close(self) -> None:
        """End; report what is known already. May be called again."""
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.leave(self)

    def tell(self, found: BlockingCode) -> None:
        """Report code if it has run for the limit of this one."""
        if found.seconds >= self.seconds:
            self._report(found)


def watch_run(run: Endable) -> LoopWatch:
    """Report the code that blocks the event loop of a run, as events of its execution, until the watch is closed."""

    def report(code: BlockingCode) -> None:
        place = (code.seconds, code.file, code.line, code.function, code.stack, code.operation)
        emit_soon(run.events, EventLoopBlocked, run.state, run.step_number, *place)

    watch = LoopWatch(run.scope.bounds.blocked_seconds, report)
    watch.begin(asyncio.get_running_loop())
    run.scope.local_resources.open(
        LoopWatch, lambda: watch, LoopWatch.close
    )  # for a run that is left between two steps
    return watch


# --- the thread ----------------------------------------------------------------------------------------------------


class _Stopwatch:
    """The thread of the process, which runs while an event loop is watched and some seconds longer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[tuple[int, asyncio.AbstractEventLoop | None], _Watched] = {}
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()

    def add(self, watch: LoopWatch, loop: asyncio.AbstractEventLoop | None) -> _Watched:
        thread = threading.get_ident()
        with self._lock:
            watched = self._watched.get((thread, loop))
            if watched is None:
                watched = self._watched[thread, loop] = _Watched(thread, threading.get_native_id(), loop)
            watched.watches.append(watch)
            if self._thread is None:
                # A daemon: it must not keep a program from ending.
                self._thread = threading.Thread(target=self._run, name="agentloop-stopwatch", daemon=True)
                self._thread.start()
        self._woken.set()
        return watched

    def _run(self) -> None:
        own, last = threading.get_native_id(), time.monotonic()
        waited = _Times.of(own).waited
        while True:
            watched = self._current()
            if not watched:
                if not self._woken.wait(_IDLE_SECONDS) and self._ends():
                    return
                self._woken.clear()
                last, waited = time.monotonic(), _Times.of(own).waited
                continue
            pause = min(min(each.seconds for each in watched) / _LOOKS, _IDLE_SECONDS)
            time.sleep(pause)  # in a thread that does nothing else
            # First of all: when a function in C lets go of the lock of the interpreter, a run may end while a file is read here.
            for each in watched:
                each.hold()
            now, waited_now = time.monotonic(), _Times.of(own).waited
            is_late = now - last - (waited_now - waited) > 2 * pause
            for each in watched:
                self._look(each, now - last, is_late=is_late)
            last, waited = now, waited_now

    def watched(self) -> list[_Watched]:
        """Return what is watched; in a fork, where nothing else runs."""
        return [*self._watched.values()]

    def _current(self) -> list[_Watched]:
        with self._lock:
            for key, each in [*self._watched.items()]:
                if not each.watches:
                    del self._watched[key]
            return [*self._watched.values()]

    def _ends(self) -> bool:
        with self._lock:
            if self._watched:
                return False
            self._thread = None
            return True

    def _look(self, watched: _Watched, passed: float, *, is_late: bool) -> None:
        try:
            watched.look(passed, is_late=is_late)
        except Exception:  # noqa: BLE001  # the thread goes on, for other event loops
            _LOG.exception("the stopwatch could not look at an event loop")


_STOPWATCH = _Stopwatch()


def _restart() -> None:
    """Begin anew in a fork, where the thread does not run and lets go of no lock."""
    for each in _STOPWATCH.watched():
        each.unlock()
    globals()["_STOPWATCH"] = _Stopwatch()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart)
