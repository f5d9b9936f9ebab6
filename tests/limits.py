"""What keeps the verdicts of tests apart from the speed of the machine: one limit for what hangs, and a clock that jumps."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")

LONGEST = 120.0
"""Seconds after which what a test waits for is taken to hang; nothing that works takes nearly as long on any machine."""

_JUMPS = 100
_TURNS = 10


def jump(seconds: float) -> None:
    """Let time pass on the clock of the running event loop: what was to happen until then happens now.

    Unlike virtual time, it passes only here, so that processes and threads have all the time that they take.
    """
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]  # the clock of this event loop only


async def turns_of_the_event_loop() -> None:
    """Let whatever is ready run."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def over_time(running: asyncio.Future[T], seconds: float) -> T:
    """Let time pass, this much at once and more than once if need be, until something is over; return its result."""
    for _ in range(_JUMPS):
        await turns_of_the_event_loop()
        if running.done():
            break
        jump(seconds)
    return await asyncio.wait_for(running, LONGEST)
