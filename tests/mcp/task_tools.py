"""Tools whose calls tests serve as tasks; the conformance suite expects some of them."""

from __future__ import annotations

import asyncio

from agentloop import tool
from agentloop.contracts import ToolContext


@tool(effect="pure")
def greet(name: str) -> str:
    """Greet; its calls are no tasks."""
    return f"Hello, {name}!"


@tool(effect="pure")
async def slow_compute(seconds: float, label: str) -> str:
    """Compute for a while."""
    await asyncio.sleep(seconds)
    return f"computed {label}"


@tool(effect="pure")
async def failing_job() -> str:
    """Fail."""
    raise ValueError("this job always fails")


@tool
async def hold(path: str, context: ToolContext) -> str:
    """Wait until cancelled, and write notes about it."""
    context.progress({"progress": 1, "total": 2, "message": "holding"})
    _note(path, "started")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        _note(path, "cancelled")
        raise
    return "never"


def _note(path: str, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(f"{text}\n")
