"""What proves that a replay touches nothing: no socket, no program, no file that is written."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
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
_SHOWN = 120


class WorldTouched(JournalError):
    """Something in a replay was about to touch the world, and was kept from it.

    Attributes:
        touch: what it was.
    """

    def __init__(self, touch: Touch) -> None:
        super().__init__(f"a replay touches nothing, and this was about to: {touch}")
        self.touch = touch


@frozen(eq=False, repr=False)
class Touch(Value):
    """Something that would have touched the world.

    Attributes:
        what: the name of Python's audit event, such as `socket.connect`.
        details: what it was about.
        interceptor: the interceptor that did it; empty when none did.
        point: the point at which it did.
    """

    what: str
    details: str
    interceptor: str = ""
    point: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.details}".strip()


@define(eq=False)
class Guard:
    """Keeps the tasks and threads of one replay from touching the world.

    Attributes:
        touches: what was about to.
        interceptor: the interceptor that is at work, and the point.
        is_over: whether the replay has ended; threads that it has started may do what they like then.
    """

    touches: list[Touch] = field(factory=list)
    interceptor: tuple[str, str] = ("", "")
    is_over: bool = False

    def check(self, event: str, args: tuple[Any, ...]) -> None:
        """Refuse what touches the world.

        Raises:
            WorldTouched: in the code that does it.
        """
        if _is_harmless(event, args):
            return
        touch = Touch(event, _details(args), *self.interceptor)
        self.touches.append(touch)
        raise WorldTouched(touch)


_GUARD: ContextVar[Guard | None] = ContextVar("agentloop_replay_guard", default=None)
_IN_THREAD: ContextVar[bool] = ContextVar("agentloop_replay_thread", default=False)
_installed: list[bool] = []
_patched: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()


@contextmanager
def guarded(guard: Guard) -> Iterator[None]:
    """Guard what runs inside, with the tasks and the threads that it starts, and the functions that the event loop has run in others.

    Threads that are there already, and do what they are told by a queue of their own, are not seen.
    """
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_audit)
    token = _GUARD.set(guard)
    try:
        with _executors_guarded(asyncio.get_running_loop()), _threads_guarded():
            yield
    finally:
        guard.is_over = True
        _GUARD.reset(token)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event not in _EVENTS:
        return
    guard = _GUARD.get()
    if guard is not None and not (guard.is_over and _IN_THREAD.get()):
        guard.check(event, args)


@contextmanager
def _executors_guarded(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let functions that the event loop has run in threads keep the context, and so the guard, of who has them run."""
    _patched[loop] = _patched.get(loop, 0) + 1
    if _patched[loop] == 1:
        plain = loop.run_in_executor

        def run_in_executor(executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
            context = copy_context()
            token = _GUARD.set(None)  # a thread that is started for it lives on
            try:
                return plain(executor, lambda: context.run(function, *args))
            finally:
                _GUARD.reset(token)

        loop.run_in_executor = run_in_executor  # type: ignore[assignment,method-assign]  # undone below
    try:
        yield
    finally:
        _patched[loop] -= 1
        if not _patched[loop]:
            del loop.run_in_executor


@contextmanager
def _threads_guarded() -> Iterator[None]:
    """Let threads keep the context, and so the guard, of who starts them, as long as a replay is under way."""
    with _lock:
        _replays.append(True)
        if len(_replays) == 1:
            threading.Thread.start = _start  # type: ignore[assignment,method-assign]  # undone below
    try:
        yield
    finally:
        with _lock:
            _replays.pop()
            if not _replays:
                threading.Thread.start = _plain_start  # type: ignore[method-assign]  # what it was


_lock = threading.Lock()
_replays: list[bool] = []
_plain_start = threading.Thread.start


def _start(thread: threading.Thread) -> None:
    if _GUARD.get() is not None:
        context = copy_context()
        context.run(_IN_THREAD.set, True)  # noqa: FBT003  # a variable is set to it
        thread.run = partial(context.run, thread.run)  # type: ignore[method-assign]  # of this thread alone
    _plain_start(thread)


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
    told = [str(one) for one in args if isinstance(one, str | int | tuple | list | os.PathLike) and one is not None]
    return ", ".join(told)[:_SHOWN]
