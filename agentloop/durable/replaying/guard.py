"""Blocks side effects during a replay: no sockets, no processes, no files opened for writing."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from typing import Any, Final
from weakref import WeakKeyDictionary

from attrs import define, field, frozen

from agentloop.errors import JournalError
from agentloop.values.value import Value

_EVENTS: Final = frozenset(
    {
        "socket.__new__",
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyaddr",
        "socket.gethostbyname",
        "socket.getnameinfo",
        "socket.sendmsg",
        "socket.sendto",
        "subprocess.Popen",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.startfile",
        "os.system",
        "os.chmod",
        "os.chown",
        "os.kill",
        "os.link",
        "os.mkdir",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.symlink",
        "os.truncate",
        "os.utime",
        "open",
        "sqlite3.connect",
        "pty.spawn",
    }
)
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_THREAD_STARTS: Final = frozenset({"_thread.start_new_thread", "_thread.start_joinable_thread"})
_MAX_DETAILS = 120


class SideEffectBlocked(JournalError):
    """Code under replay was about to have a side effect.

    Attributes:
        operation: what it was about to do.
    """

    def __init__(self, operation: BlockedOperation) -> None:
        super().__init__(f"a replay has no side effects, and this was about to have one: {operation}")
        self.operation = operation


@frozen(eq=False, repr=False)
class BlockedOperation(Value):
    """An operation with a side effect that a replay did not let happen.

    Attributes:
        event: the name of Python's audit event, such as `socket.connect`.
        details: its arguments, shortened.
        interceptor: the name of the interceptor that was running; empty when none was.
        point: the point at which it was running.
    """

    event: str
    details: str
    interceptor: str = ""
    point: str = ""

    def __str__(self) -> str:
        return f"{self.event} {self.details}".strip()


@define(eq=False)
class Guard:
    """Blocks side effects of the tasks and threads of one replay.

    Attributes:
        blocked: the operations that were blocked, in order.
        interceptor: the name of the interceptor that is running, and its point.
        is_over: whether the replay has ended; threads that it started are free from then on.
    """

    blocked: list[BlockedOperation] = field(factory=list)
    interceptor: tuple[str, str] = ("", "")
    is_over: bool = False

    def check(self, event: str, args: tuple[Any, ...]) -> None:
        """Block an audit event that announces a side effect.

        Raises:
            SideEffectBlocked: in the code that has the side effect.
        """
        if _is_harmless(event, args):
            return
        operation = BlockedOperation(event, _details(args), *self.interceptor)
        self.blocked.append(operation)
        raise SideEffectBlocked(operation)


_GUARD: ContextVar[Guard | None] = ContextVar("agentloop_replay_guard", default=None)
_thread_guards: WeakKeyDictionary[threading.Thread, Guard] = WeakKeyDictionary()
_patched_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
_hook_installed: list[bool] = []


@contextmanager
def guarded(guard: Guard) -> Iterator[None]:
    """Guard the code inside, the tasks and threads that it starts, and the functions that it runs in executor threads.

    Threads that exist already and take work from a queue of their own are not guarded.
    """
    if not _hook_installed:  # audit hooks cannot be removed: one serves all replays
        _hook_installed.append(True)
        sys.addaudithook(_audit)
    token = _GUARD.set(guard)
    try:
        with _guarded_executors(asyncio.get_running_loop()), _guarded_threads():
            yield
    finally:
        guard.is_over = True
        _GUARD.reset(token)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event in _THREAD_STARTS:
        _inherit(getattr(args[0], "__self__", None))
    elif event in _EVENTS:
        guard = _current_guard()
        if guard is not None:
            guard.check(event, args)


def _current_guard() -> Guard | None:
    guard = _GUARD.get()
    if guard is not None:
        return guard
    if not _thread_guards:
        return None
    guard = _thread_guards.get(threading.current_thread())
    return None if guard is None or guard.is_over else guard


def _inherit(thread: object) -> None:
    """Guard a thread that guarded code starts: a new thread does not inherit the context of its starter."""
    guard = _current_guard()
    if guard is not None and isinstance(thread, threading.Thread):
        _thread_guards[thread] = guard


if sys.version_info >= (3, 12):

    def _guarded_threads() -> AbstractContextManager[None]:
        return nullcontext()  # the audit hook sees each start of a thread
else:
    _lock = threading.Lock()
    _replays: list[bool] = []
    _plain_start = threading.Thread.start

    def _guarded_start(thread: threading.Thread) -> None:
        _inherit(thread)
        _plain_start(thread)

    @contextmanager
    def _guarded_threads() -> Iterator[None]:
        """Replace `Thread.start` while replays run: this Python has no audit event for the start of a thread."""
        with _lock:
            _replays.append(True)
            threading.Thread.start = _guarded_start  # type: ignore[assignment,method-assign]  # undone below
        try:
            yield
        finally:
            with _lock:
                _replays.pop()
                if not _replays:
                    threading.Thread.start = _plain_start  # type: ignore[method-assign]  # as it was


@contextmanager
def _guarded_executors(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Run functions of `run_in_executor` in the context, and so under the guard, of their caller."""
    _patched_loops[loop] = _patched_loops.get(loop, 0) + 1
    if _patched_loops[loop] == 1:
        plain = loop.run_in_executor

        def run_in_executor(executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
            context = copy_context()
            token = _GUARD.set(None)  # a thread that the pool starts now outlives the replay
            try:
                return plain(executor, lambda: context.run(function, *args))
            finally:
                _GUARD.reset(token)

        loop.run_in_executor = run_in_executor  # type: ignore[assignment,method-assign]  # undone below
    try:
        yield
    finally:
        _patched_loops[loop] -= 1
        if not _patched_loops[loop]:
            del loop.run_in_executor


def _is_harmless(event: str, args: tuple[Any, ...]) -> bool:
    subject = args[0] if args else None
    if event == "sqlite3.connect":
        return subject == ":memory:"
    if event == "open":
        return not _writes(args) or subject == os.devnull or "__pycache__" in str(subject)
    return event in {"os.mkdir", "os.rename", "os.remove"} and "__pycache__" in str(subject)


def _writes(args: tuple[Any, ...]) -> bool:
    _, mode, flags = (*args, None, None, None)[:3]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITING)


def _details(args: tuple[Any, ...]) -> str:
    texts = [str(arg) for arg in args if isinstance(arg, str | int | tuple | list | os.PathLike)]
    return ", ".join(texts)[:_MAX_DETAILS]
