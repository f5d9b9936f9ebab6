"""Audit: one line for each call, also for those that were denied, with secrets masked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentloop import AgentLoop, AgentState, Permissions, ScriptedInference, ToolCall, tool
from agentloop.policies import AuditLog


@tool
def log_in(user: str, password: str) -> dict[str, str]:
    """Log in to the bank."""
    return {"user": user, "token": "tok-4711"}


@tool
def transfer(amount: int) -> str:
    """Transfer money."""
    return f"transferred {amount}"


def write(entry: Mapping[str, Any]) -> None:
    shown = {name: entry[name] for name in ("caller", "tool", "outcome", "success", "arguments", "error")}
    print(json.dumps(shown))


calls = [ToolCall("1", "log_in", '{"user": "ada", "password": "hunter2"}'), ToolCall("2", "transfer", '{"amount": 90}')]
loop = AgentLoop.for_model(
    ScriptedInference(calls, "I am logged in, and may not transfer money."),
    tools=[log_in, transfer],
    interceptors=[AuditLog(write, secrets=["password", "token"]), Permissions(deny=["transfer"])],
)
print(loop.execute_sync(AgentState.start("Transfer 90.", agent_id="clerk")).final_text)
