"""Finishing work while being cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_shielded(work: Coroutine[Any, Any, None], seconds: float) -> None:
    """Do the work although this task is being cancelled, however often, but no longer than this.

    Args:
        work: what is left to do.
        seconds: after which it is cancelled.

    Raises:
        Exception: whatever the work raises in time.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    deadline = loop.time() + seconds
    while not task.done() and loop.time() < deadline:
        try:
            await asyncio.wait((task,), timeout=deadline - loop.time())
        except asyncio.CancelledError:
            continue  # the caller is on its way out already, and raises it again when this is done
    if not task.done():
        task.cancel()
    elif not task.cancelled():
        task.result()
