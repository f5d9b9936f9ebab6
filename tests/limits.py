"""What keeps the verdicts of tests apart from the speed of the machine: one limit for what hangs, and a clock that jumps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import TypeVar

T = TypeVar("T")

LONGEST = 120.0
"""Seconds after which what a test waits for is taken to hang; nothing that works takes nearly as long on any machine."""

_ATTEMPTS = 3
_SHORT_SECONDS = 0.1
"""A time that is far from any bound."""
_JUMPS = 100
_TURNS = 10


def jump(seconds: float) -> None:
    """Let time pass on the clock of the running event loop: what was to happen until then happens now.

    Unlike virtual time, it passes only here, so that processes and threads have all the time that they take.
    """
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]  # the clock of this event loop only


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


def processor_seconds(action: Callable[[], object]) -> float:
    """Return the processor time that an action takes; the least of three times, since a busy machine makes some of them longer."""
    least = inf
    for _ in range(_ATTEMPTS):
        started = time.process_time()
        action()
        least = min(least, time.process_time() - started)
        if least < _SHORT_SECONDS:
            break
    return least
