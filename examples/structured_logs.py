"""Structured logs: one JSON line per event that matters, and one per tool call in an audit log without secrets."""

from __future__ import annotations

import json
import logging
import sys

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.events import ExecutionEnded, InferenceResponseReceived, ToolCallSettled
from agentloop.policies import AuditLog
from agentloop.values import Event

logger = logging.getLogger("shop.agent")


def log(event: Event) -> None:
    entry: dict[str, object] = {"event": type(event).__name__, "run": event.execution_id, "step": event.step_number}
    match event:
        case InferenceResponseReceived():
            entry |= {"model": event.response.model, "tokens": event.response.usage.total_tokens}
        case ToolCallSettled():
            entry |= {"tool": event.execution.name, "status": event.execution.status}
        case ExecutionEnded():
            entry |= {"steps": event.step_count, "tokens": event.usage.total_tokens}
        case _:
            return
    logger.info(json.dumps(entry))


@tool(effect="pure")
def log_in(user: str, password: str) -> str:
    """Log a user in."""
    return f"{user} is logged in" if password else "a password is needed"


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(name)s %(message)s", force=True)
    model = ScriptedInference(ToolCall("1", "log_in", '{"user": "ada", "password": "hunter2"}'), "You are logged in.")
    loop = AgentLoop.for_model(model, tools=[log_in], interceptors=[AuditLog(secrets=["password"])])
    loop.wiretap(log)
    loop.run_sync("Log me in.")
