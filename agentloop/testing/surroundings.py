"""What has to be as before after something has run: tasks, threads and sockets; and texts that no other run may show."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import Self

from attrs import frozen

from agentloop.testing.kit import LawViolation, require

_JOIN_SECONDS = 5.0
"""How long the threads together may take to end, on a busy machine."""
_TICKS = 3
"""How often the event loop runs before a task that was cancelled has to have ended."""
_LOOKS = 100
_SECONDS_BETWEEN_LOOKS = 0.01
_DESCRIPTORS = Path("/dev/fd")
"""A folder with the open files of this process, on every Unix."""


@frozen
class Surroundings:
    """The threads, the tasks and the sockets of one moment.

    Attributes:
        threads: the threads of the process.
        tasks: the tasks of the running event loop; none outside of one.
        sockets: the number of open sockets of the process; 0 on systems that do not list them.
    """

    threads: frozenset[threading.Thread]
    tasks: frozenset[asyncio.Task[object]]
    sockets: int

    @classmethod
    def now(cls) -> Self:
        """Return those of this moment."""
        return cls(frozenset(threading.enumerate()), _tasks(), _count_sockets())

    def require_threads(self) -> None:
        """Check that no thread was started since then that is still running a moment later (law 19).

        Raises:
            LawViolation: names the threads.
        """
        leaked = [thread for thread in threading.enumerate() if thread not in self.threads]
        deadline = monotonic() + _JOIN_SECONDS
        for thread in leaked:
            if thread is not threading.current_thread():
                thread.join(max(deadline - monotonic(), 0))
        alive = [thread.name for thread in leaked if thread.is_alive()]
        if alive:
            raise LawViolation(19, f"threads are still running: {', '.join(alive)}", took_time=True)

    async def require_tasks_and_sockets(self) -> None:
        """Check that no task was started since then that is still running, and that no more sockets are open (law 19).

        Idle connections of models are closed before: they are kept on purpose, but nothing else is.

        Raises:
            LawViolation: names the coroutines of the tasks, or tells the number of sockets.
        """
        for _ in range(_TICKS):
            await asyncio.sleep(0)
        leaked = [task for task in _tasks() if task not in self.tasks and not task.done()]
        require(19, not leaked, f"tasks are still running: {', '.join(str(task.get_coro()) for task in leaked)}")
        await self._require_sockets()

    async def _require_sockets(self) -> None:
        if _count_sockets() <= self.sockets:
            return
        # Loads the HTTP stack, which what has opened no socket does not need.
        from agentloop.models.connections import close_idle_connections  # noqa: PLC0415

        await close_idle_connections()
        # The other end of a connection may be in another thread, and closes its socket when it runs.
        for _ in range(_LOOKS):
            if _count_sockets() <= self.sockets:
                return
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
        more = _count_sockets() - self.sockets
        require(19, more <= 0, f"{more} more sockets are open than before")


def require_no_trace(law: int, texts: Iterable[str], names: Iterable[str], *, of: str) -> None:
    """Check that no text of one run has a name that only another run knows.

    Args:
        law: the law.
        texts: what the run left.
        names: the names.
        of: what the texts are of, for the message.

    Raises:
        LawViolation: one has; it names both runs.
    """
    known = list(names)
    for text in texts:
        found = [name for name in known if name in text]
        require(law, not found, f"{of} has a trace of {', '.join(found)}")


def _tasks() -> frozenset[asyncio.Task[object]]:
    try:
        return frozenset(asyncio.all_tasks())
    except RuntimeError:  # outside of an event loop
        return frozenset()


def open_files() -> list[int]:
    """Return the descriptors of all open files of the process; none on systems that do not list them, such as Windows."""
    try:
        names = [entry.name for entry in _DESCRIPTORS.iterdir()]
    except OSError:
        return []
    return [int(name) for name in names if name.isdecimal()]


def _count_sockets() -> int:
    return sum(map(_is_socket, open_files()))


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:  # closed in the meantime, as that of the folder itself is
        return False
