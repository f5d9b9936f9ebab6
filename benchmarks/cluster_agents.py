"""The agents that the workers of `cluster.py` load by name."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from journal_runs import CountingModel, loop_of

from agentloop import AgentLoop, ToolCallingDriver, tool
from agentloop.interception import RequireApproval

LEDGER = "BENCHMARK_LEDGER"
"""The environment variable that names the file in which `look_up` of `slow` writes a line per call."""
TURNS = 3
SLOW_TURNS = 2_000

small = loop_of(TURNS, None)


def _note(line: str) -> None:
    with Path(os.environ[LEDGER]).open("a") as ledger:
        ledger.write(line)


@tool(effect="idempotent")
async def look_up(number: int) -> str:
    """Note the process and the time, and take a moment."""
    _note(f"{os.getpid()} {time.time()} {number}\n")
    await asyncio.sleep(0.01)
    return "found"


slow = AgentLoop(ToolCallingDriver(inference=CountingModel(SLOW_TURNS)), [look_up], max_steps=None)
careful = AgentLoop(
    ToolCallingDriver(inference=CountingModel(TURNS)), [look_up], interceptors=[RequireApproval("look_up")]
)
