"""A worker with tools that write what they do to a folder. Its arguments are the database, the folder and the name.

`python -m tests.service.cluster.tool_worker DB FOLDER NAME`
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolContext, ToolExecutor, tool
from agentloop.contracts import CanExecuteToolCalls, Tool
from agentloop.service.cluster import QueuedToolExecutor, Worker
from agentloop.values import Reconciliation, cannot_tell, did_not_happen, happened


def note(folder: Path, what: str, key: str) -> None:
    """Write a line; one write of a short line to a file is not torn."""
    with (folder / "ledger").open("a") as file:
        file.write(json.dumps({"what": what, "key": key, "process": os.getpid()}) + "\n")


def wait_for(path: Path) -> None:
    """Wait until a file exists, as another process creates it."""
    while not path.exists():
        time.sleep(0.01)


def make_tools(folder: Path) -> list[Tool]:
    """Return the tools."""

    def act(ctx: ToolContext[Any], gate: str) -> str:
        note(folder, "begins", ctx.idempotency_key)
        if gate:
            wait_for(folder / gate)
        note(folder, "effect", ctx.idempotency_key)
        return f"done by {os.getpid()}"

    @tool
    def effect(ctx: ToolContext[Any], gate: str = "") -> str:
        """Have an effect, after a file with the name of the gate exists."""
        return act(ctx, gate)

    @tool(effect="idempotent")
    def keyed(ctx: ToolContext[Any], gate: str = "") -> str:
        """Have an effect by its key."""
        return act(ctx, gate)

    @tool(timeout=0.5)
    def hasty(ctx: ToolContext[Any], gate: str = "") -> str:
        """Have an effect within half a second."""
        return act(ctx, gate)

    def look(ctx: ToolContext[Any], gate: str = "") -> Reconciliation:  # the parameters of the tool
        lines = (folder / "ledger").read_text().splitlines()
        done = any(
            json.loads(line)["what"] == "effect" and json.loads(line)["key"] == ctx.idempotency_key for line in lines
        )
        if (folder / "books").exists():
            return happened("in the books") if done else did_not_happen()
        return cannot_tell("there are no books")

    @tool(reconcile=look)
    def booked(ctx: ToolContext[Any], gate: str = "") -> str:
        """Have an effect that is in the books."""
        return act(ctx, gate)

    @tool(effect="pure")
    def broken() -> str:
        """Raise an error."""
        raise LookupError("nothing here")

    return [effect, keyed, hasty, booked, broken]


def make_loop(folder: Path, executor: CanExecuteToolCalls | None = None, *calls: ToolCall) -> AgentLoop[str]:
    """Return an agent that makes the calls in one step, and answers."""
    model = ScriptedInference(list(calls) or "nothing to do", "answered")
    return AgentLoop.for_model(model, tools=make_tools(folder), executor=executor or ToolExecutor())


if __name__ == "__main__":
    db, place, name = sys.argv[1:]
    asyncio.run(Worker(make_loop(Path(place), QueuedToolExecutor()), db, name=name, tools=4).run())
