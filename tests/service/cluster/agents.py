"""Agents that workers load by name: their models do what the text of the user says."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolContext, tool
from agentloop.interception import RequireApproval
from agentloop.values import InferenceRequest, InferenceResponse

FOLDER = "AGENTLOOP_TEST_FOLDER"
"""The environment variable that names the folder in which the tools leave their traces."""


DEATH = 9
"""The exit code of a process that a tool has ended."""


def folder() -> Path:
    """Return the folder in which the tools leave their traces."""
    return Path(os.environ[FOLDER])


def write_line(line: str) -> None:
    """Add a line to the ledger of effects, in one write that other processes cannot break."""
    descriptor = os.open(folder() / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def ledger() -> list[str]:
    """Return the lines of the ledger."""
    path = folder() / "ledger"
    return path.read_text().split() if path.exists() else []


@tool(effect="idempotent")
async def mark(text: str, context: ToolContext) -> str:
    """Write a line."""
    write_line(f"{context.idempotency_key}:{text}")
    return "written"


@tool(effect="idempotent")
async def pause(text: str, context: ToolContext) -> str:
    """Write a line, and wait until a file of this name exists."""
    write_line(f"{context.idempotency_key}:{text}")
    while not (folder() / text).exists():  # noqa: ASYNC110  # another process creates it
        await asyncio.sleep(0.01)
    return "over"


@tool(effect="pure")
async def die(text: str) -> str:
    """End the process that runs it."""
    write_line("died")
    os._exit(DEATH)


@tool
async def pay(text: str, context: ToolContext) -> str:
    """Pay, which somebody has to approve."""
    write_line(f"{context.idempotency_key}:paid")
    return "paid"


def model(request: InferenceRequest) -> InferenceResponse | str:
    """Call the tools that the first message names, as in `mark a, pause b`, one per step, and then answer."""
    said = [message.text for message in request.messages if message.role == "user" and message.text]
    plan = [part.split() for part in said[0].split(",") if len(part.split()) > 1]
    done = sum(len(message.exchanges) for message in request.messages)
    if done < len(plan):
        name, text = plan[done]
        return InferenceResponse((ToolCall(f"call_{done}", name, f'{{"text": "{text}"}}'),))
    return f"done: {said[-1]}"


loop = AgentLoop.for_model(
    ScriptedInference(*[model] * 1000), tools=[mark, pause, die, pay], interceptors=[RequireApproval("pay")]
)
