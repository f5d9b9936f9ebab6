"""Finishing work in a task that is being cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_shielded(work: Coroutine[Any, Any, None], seconds: float) -> None:
    """Run a coroutine to its end even if this task is cancelled, any number of times, within a time limit.

    Args:
        work: the coroutine.
        seconds: the time limit, after which it is cancelled.

    Raises:
        Exception: any error that the coroutine raises within the limit.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    deadline = loop.time() + seconds
    while not task.done() and loop.time() < deadline:
        try:
            await asyncio.wait((task,), timeout=deadline - loop.time())
        except asyncio.CancelledError:
            continue  # the caller is already handling a cancellation, and raises it again afterwards
    if not task.done():
        task.cancel()
    elif not task.cancelled():
        task.result()
