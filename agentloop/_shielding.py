"""Cancellation: whether the current task is being cancelled, and finishing work in a task that is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def is_task_cancelled() -> bool:
    """Return whether the current task is being cancelled.

    A `CancelledError` in a task that is not comes from something that it awaited and that another task cancelled.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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
