"""The tools of the child process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentloop import AgentState, AgentStop, Tool, ToolContext, tool
from agentloop.contracts import CanReconcileCall, ToolLike
from agentloop.errors import CallSuspended, ToolUnavailable
from agentloop.testing import Ledger, toy_tools
from agentloop.values import Image, Reconciliation, cannot_tell, did_not_happen, happened


class _Reporting(list[tuple[str, dict[str, Any]]]):
    """A list that reports what is added."""

    def __init__(self, report: Callable[[str, dict[str, Any]], None]) -> None:
        super().__init__()
        self._report = report

    def append(self, call: tuple[str, dict[str, Any]], /) -> None:
        """Add a call, and report it."""
        self._report(*call)
        super().append(call)


class StrangeError(Exception):
    """An error whose class the other process does not know."""


@tool(effect="pure")
def process_id() -> int:
    """Return the id of the process."""
    return os.getpid()


@tool(effect="pure")
def place(ctx: ToolContext[dict[str, str]]) -> dict[str, Any]:
    """Return what the context says."""
    return {
        "place": ctx.dependencies["place"],
        "key": ctx.idempotency_key,
        "attempt": ctx.attempt,
        "token": ctx.claim_token,
        "execution": ctx.execution_id,
        "agent": ctx.agent_id,
        "new id": ctx.ids().new_id("thing"),
    }


@tool(effect="pure")
def history(state: AgentState) -> list[str]:
    """Return the texts of the conversation."""
    return [message.text for message in state.messages]


@tool(effect="pure")
def strange() -> str:
    """Raise an unknown error."""
    raise StrangeError("something odd")


@tool(effect="pure")
def picture() -> Image:
    """Return a picture."""
    return Image(data=b"png", media_type="image/png")


@tool(effect="pure")
def long_text(size: int) -> str:
    """Return a text."""
    return "x" * size


@tool(effect="pure")
def count_up(to: int) -> Iterator[int]:
    """Count, with progress."""
    yield from range(1, to)
    yield to


@tool
async def sleep(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "awake"


@tool
def ask(question: str, ctx: ToolContext[Any]) -> str:
    """Wait for a person."""
    if ctx.resumed is None:
        raise CallSuspended(question, progress={"asked": question})
    return f"{ctx.resumed.progress['asked']} {ctx.resumed.decision}"  # type: ignore[index,call-overload]


@tool
def give_up() -> str:
    """Stop the execution."""
    raise AgentStop("enough")


def _append(path: str, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{text}\n")


def _exists(path: str) -> bool:
    return Path(path).exists()


@tool
def write_then_die(path: str) -> str:
    """Have an effect, and then kill the process."""
    _append(path, "written")
    os._exit(9)


@tool(effect="idempotent")
def die_once(path: str, ctx: ToolContext[Any]) -> str:
    """Kill the process with the first call."""
    first = not Path(path).exists()
    _append(path, ctx.idempotency_key)
    if first:
        os._exit(9)
    return "done"


@tool(effect="pure")
def always_die(path: str) -> str:
    """Kill the process with each call."""
    _append(path, "died")
    os._exit(9)


@tool
def write_slowly(path: str, seconds: float) -> str:
    """Have an effect after a while."""
    time.sleep(seconds)
    _append(path, "written")
    return "written"


class Transfer(Tool, CanReconcileCall):
    """Has an effect and kills its process before or after it; it can find out which."""

    name = "transfer"
    description = "Transfer."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "die": {"enum": ["before", "after", "lost"]}},
        "required": ["path", "die"],
    }

    async def use(self, *_: Any, path: str, die: str) -> str:
        """Append a line, and die around it at the first time."""
        first = not _exists(f"{path}.started")
        _append(f"{path}.started", "started")
        if die == "before" and first:
            os._exit(9)
        _append(path, "written")
        if first:
            os._exit(9)
        return "transferred"

    async def reconcile(self, **arguments: Any) -> Reconciliation:
        """Look for the line."""
        if arguments["die"] == "lost":
            return cannot_tell("the books are lost")
        return happened("found in the books") if _exists(arguments["path"]) else did_not_happen()


@tool(effect="pure")
def closed() -> str:
    """Raise an error that the package defines."""
    raise ToolUnavailable("closed on Sundays")


TOOLS: list[ToolLike] = [
    process_id,
    place,
    history,
    strange,
    closed,
    picture,
    long_text,
    count_up,
    sleep,
    ask,
    give_up,
    write_then_die,
    die_once,
    always_die,
    write_slowly,
    Transfer(),
]


def make_tools(report: Callable[[str, dict[str, Any]], None]) -> list[ToolLike]:
    """Return all tools; the toys report each of their calls."""
    return [*TOOLS, *toy_tools(Ledger(_Reporting(report)))]
