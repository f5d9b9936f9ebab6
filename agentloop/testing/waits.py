"""What the tasks of an event loop wait for, as text."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from inspect import isasyncgen
from pathlib import Path
from types import FrameType
from typing import Any

_MAX_TASKS = 20
_MAX_FRAMES = 12


def describe_waits(loop: asyncio.AbstractEventLoop) -> str:
    """Return a line for each task of a loop that has not ended: its name, and where it waits, innermost place first."""
    tasks = sorted([task for task in asyncio.all_tasks(loop) if not task.done()], key=lambda task: task.get_name())
    lines = [f"  {task.get_name()}: {_describe(task)}" for task in tasks[:_MAX_TASKS]]
    more = len(tasks) - len(lines)
    return "\n".join([*lines, *([f"  and {more} more"] if more else [])])


def _describe(task: asyncio.Task[Any]) -> str:
    places = [
        f"{frame.f_code.co_qualname} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
        for frame in _frames(task)
    ]
    return " < ".join(places[::-1][:_MAX_FRAMES]) or "nothing is known"


def _frames(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """Yield the frames of a task that waits, outermost first: `Task.get_stack` has the outermost one alone."""
    waits: Any = task.get_coro()
    while waits is not None:
        frame = next((found for name in _FRAMES if (found := getattr(waits, name, None)) is not None), None)
        if frame is not None:
            yield frame
        following = next((found for name in _NEXT if (found := getattr(waits, name, None)) is not None), None)
        if following is None and frame is None:
            # What `anext` of an async generator returns does not tell which generator it is of.
            following = next(filter(isasyncgen, gc.get_referents(waits)), None)
        waits = following


_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_NEXT = ("cr_await", "ag_await", "gi_yieldfrom")
