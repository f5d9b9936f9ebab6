"""The standard input of a server, line by line, in a way that does not keep the process from ending."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from threading import Thread

_CHUNK = 1 << 16
_MOST_WAITING = 100


@contextmanager
def input_lines() -> Iterator[AsyncIterator[str]]:
    """Give the lines of the standard input; meanwhile everybody else finds it empty.

    They are read by a thread that ends with the process: one that somebody waits for would keep the process from ending by
    Ctrl-C until the next line comes.
    """
    ours = os.dup(0)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    waiting: asyncio.Queue[str] = asyncio.Queue(_MOST_WAITING)
    reading = (ours, waiting, asyncio.get_running_loop())
    Thread(target=_read, args=reading, name="standard input", daemon=True).start()
    try:
        yield _lines(waiting)
    finally:
        os.dup2(ours, 0)


async def _lines(waiting: asyncio.Queue[str]) -> AsyncIterator[str]:
    while line := await waiting.get():
        yield line


def _read(descriptor: int, waiting: asyncio.Queue[str], loop: asyncio.AbstractEventLoop) -> None:
    """Put lines with their ends into a queue, and an empty one at the end."""
    begun = bytearray()
    try:
        while chunk := os.read(descriptor, _CHUNK):
            *whole, rest = chunk.split(b"\n")
            for line in whole:
                begun += line + b"\n"
                _put(begun.decode(errors="replace"), waiting, loop)
                begun.clear()
            begun += rest
        if begun:
            _put(begun.decode(errors="replace"), waiting, loop)
        _put("", waiting, loop)
    except (OSError, RuntimeError):
        return  # nobody listens any more: the event loop is closed


def _put(line: str, waiting: asyncio.Queue[str], loop: asyncio.AbstractEventLoop) -> None:
    if loop.is_closed():
        raise RuntimeError("the event loop is closed")
    asyncio.run_coroutine_threadsafe(waiting.put(line), loop).result()
