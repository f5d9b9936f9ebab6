"""What sandboxes share: the environment of a command, its bounded output, and the limit that ended it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Self

from attrs import define, field, frozen

from agentloop.contracts.can_sandbox import LimitName, SandboxLimits

ENVIRONMENT: Mapping[str, str] = {
    "HOME": "/tmp",  # noqa: S108  # in the sandbox, where it is a folder of its own
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TMPDIR": "/tmp",  # noqa: S108  # the same
}
"""All environment variables of a command."""


KILLED = 137
"""The exit code of what SIGKILL has ended."""

_TIMED_OUT = (124, 143, KILLED)  # of the program timeout, that of GNU and that of BusyBox
# A program that writes this many times as much as is returned finds its output closed.
_FLOOD_FACTOR = 64
_CUT = b"\n[... %d bytes ...]\n"


@define(eq=False)
class OutputCapture(asyncio.Protocol):
    """Reads a pipe to its end, and keeps a bounded number of bytes: the first and the last ones.

    Attributes:
        max_bytes: the number of bytes to keep.
        max_read: the number of bytes after which the pipe is closed.
        total: the number of bytes that were read.
    """

    max_bytes: int
    max_read: int
    total: int = 0
    _head: bytearray = field(factory=bytearray)
    _tail: bytearray = field(factory=bytearray)
    _transport: asyncio.BaseTransport | None = None
    _begun: asyncio.Event = field(factory=asyncio.Event)
    _ended: asyncio.Event = field(factory=asyncio.Event)

    @classmethod
    def of_output(cls, limits: SandboxLimits) -> Self:
        """Return a capture for the standard output or error of a command."""
        return cls(limits.max_output, limits.max_output * _FLOOD_FACTOR)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the pipe, in order to close it."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Keep some of the data, or close the pipe when there was too much."""
        self._begun.set()
        self.total += len(data)
        half = self.max_bytes // 2
        space = max(0, half - len(self._head))
        self._head += data[:space]
        self._tail += data[space:]
        if len(self._tail) > 2 * self.max_bytes:
            del self._tail[: -(self.max_bytes - half)]
        if self.total > self.max_read:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # a broken pipe has ended as well
        """Note the end."""
        self._begun.set()
        self._ended.set()

    @property
    def is_flooded(self) -> bool:
        """Whether the pipe was closed because too much came."""
        return self.total > self.max_read

    @property
    def data(self) -> bytes:
        """What was kept, with a mark where something was left out."""
        tail_bytes = self.max_bytes - self.max_bytes // 2
        dropped = self.total - len(self._head) - min(len(self._tail), tail_bytes)
        if not dropped:
            return bytes(self._head + self._tail)
        return bytes(self._head) + _CUT % dropped + bytes(self._tail[-tail_bytes:])

    async def wait_for_data(self) -> None:
        """Wait for the first data, or for the end of the pipe."""
        await self._begun.wait()

    async def wait(self) -> None:
        """Wait for the end of the pipe."""
        await self._ended.wait()

    def close(self) -> None:
        """Close the pipe: whoever writes to it gets an error."""
        if self._transport is not None:
            self._transport.close()


def name_exceeded_limit(
    limits: SandboxLimits, exit_code: int, seconds: float, *, is_out_of_memory: bool, is_flooded: bool
) -> LimitName:
    """Return the limit that ended a command or cut its output; empty for none.

    Args:
        limits: its limits.
        exit_code: its exit code.
        seconds: how long it took, with its start.
        is_out_of_memory: whether the system has ended a process of it because the memory was used up.
        is_flooded: whether it wrote too much.
    """
    if is_out_of_memory:
        return "memory"
    if seconds >= limits.max_seconds and exit_code in _TIMED_OUT:
        return "time"
    return "output" if is_flooded else ""


@frozen
class Pipes:
    """The ends of pipes that a child process gets, which are closed here when it has them."""

    ends: list[int] = field(factory=list)

    async def read_into(self, capture: asyncio.Protocol) -> int:
        """Return the end of a new pipe for the child to write to; what it writes is captured."""
        theirs, copy = await self.read_unbroken(capture)
        self.ends.remove(copy)
        os.close(copy)
        return theirs

    async def read_unbroken(self, capture: asyncio.Protocol) -> tuple[int, int]:
        """Return both ends of a pipe: a child that has them can write to it after this process was killed."""
        ours, theirs = os.pipe()
        copy = os.dup(ours)
        self.ends.extend((theirs, copy))
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: capture, os.fdopen(ours, "rb", buffering=0))
        return theirs, copy

    async def write_from(self, data: bytes) -> int:
        """Return the end of a new pipe for the child to read this data from."""
        theirs, ours = os.pipe()
        self.ends.append(theirs)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(ours, "wb", buffering=0))
        transport.write(data)
        transport.close()  # after the data is written
        return theirs

    def close(self) -> None:
        """Close the ends: a pipe has an end when the child has closed its copy."""
        while self.ends:
            os.close(self.ends.pop())
