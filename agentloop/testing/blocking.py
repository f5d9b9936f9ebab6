"""Notices calls that block an event loop: waits of the operating system in the thread in which the loop runs."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from agentloop.testing.kit import require

P = ParamSpec("P")
T = TypeVar("T")

YIELDING = 45
"""The number of the law."""
_WAITS: dict[object, str] = {
    time.sleep: "time.sleep",
    socket.getaddrinfo: "socket.getaddrinfo",
    socket.gethostbyname: "socket.gethostbyname",
    os.system: "os.system",
}
_PROCESS_WAITS = {
    each.__code__: f"Popen.{each.__name__}" for each in (subprocess.Popen.wait, subprocess.Popen.communicate)
}
"""What `subprocess.run` and its like wait in; asyncio's own processes are waited for elsewhere."""
_SOCKET_WAITS = frozenset({"_accept", "connect", "recv", "recv_into", "recvfrom", "send", "sendall", "sendto"})
_SOCKET: Any = socket.socket.__base__
"""The class of the interpreter whose methods do the waiting."""


def refuse_blocking(check: Callable[P, T]) -> Callable[P, T]:
    """Return a check that fails if an event loop is blocked while it runs (law 45).

    A profile function sees every call in this thread: of `time.sleep`, of a socket with a timeout, of the resolver of names, and of
    what waits for a process. Threads may wait. Computations and files are not seen: how long they take depends on the machine.

    Raises:
        LawViolation: by the returned check; names the function that waits and the lines that called it.
    """

    @wraps(check)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        with _noticing() as found:
            result = check(*args, **kwargs)
        require(YIELDING, not found, f"the event loop is blocked by {' and '.join(dict.fromkeys(found))}")
        return result

    return checked


@contextmanager
def _noticing() -> Iterator[list[str]]:
    found: list[str] = []

    def notice(frame: FrameType, event: str, argument: object) -> None:
        name = _name_of_wait(argument) if event == "c_call" else ""
        if event == "call" and frame.f_code in _PROCESS_WAITS and frame.f_back is not None:
            name, frame = _PROCESS_WAITS[frame.f_code], frame.f_back
        if name and asyncio._get_running_loop() is not None:  # noqa: SLF001  # what get_running_loop calls, without an error
            found.append(f"{name} in {frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})")

    before = sys.getprofile()
    sys.setprofile(notice)
    try:
        yield found
    finally:
        sys.setprofile(before)


def _name_of_wait(function: object) -> str:
    """Return the name of a built-in function that waits; empty for others."""
    try:
        if function in _WAITS:
            return _WAITS[function]
    except TypeError:  # cannot be hashed
        return ""
    name = getattr(function, "__name__", "")
    owner = getattr(function, "__self__", None)
    is_wait = name in _SOCKET_WAITS and isinstance(owner, _SOCKET) and owner.gettimeout() != 0
    return f"socket.{name}" if is_wait else ""
