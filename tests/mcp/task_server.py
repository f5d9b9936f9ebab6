"""A server over stdio that runs its calls as tasks, which it keeps in a folder; its behavior is that of the tool."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import INVALID_PARAMS, ListToolsResult, RequestParams

FOLDER = Path(sys.argv[1])
TOOLS = ["work", "fail", "ask", "wait", "crash", "forget", "late", "silent"]
STATES: dict[str, list[dict[str, Any]]] = {
    "work": [
        {"status": "working", "statusMessage": "half"},
        {"status": "completed", "result": {"content": [{"type": "text", "text": "done"}]}},
    ],
    "fail": [{"status": "failed", "error": {"code": -32602, "message": "it broke"}}],
    "ask": [
        {
            "status": "input_required",
            "inputRequests": {"q": {"method": "elicitation/create", "params": {"message": "Sure?", "mode": "form"}}},
        },
        {"status": "completed", "result": {"content": [{"type": "text", "text": "agreed"}]}},
    ],
    "wait": [{"status": "working"}],
    "late": [{"status": "completed", "result": {"content": [{"type": "text", "text": "worth waiting for"}]}}],
    "silent": [{"status": "completed", "result": {"content": [{"type": "text", "text": "never asked"}]}}],
    "crash": [{"status": "completed", "result": {"content": [{"type": "text", "text": "survived"}]}}],
}


class TaskParams(RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


def note(text: str) -> None:
    with (FOLDER / "notes").open("a") as file:
        file.write(f"{text}\n")


async def list_tools(_: Any, __: Any) -> ListToolsResult:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
    return ListToolsResult.model_validate({"tools": tools})


async def call_tool(_: Any, params: Any) -> Any:
    note(f"called {params.name}")
    (FOLDER / params.name).write_text("0")
    if params.name == "silent" and not (FOLDER / "go").exists():
        await asyncio.Event().wait()  # the task exists, and its id is never sent
    times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
    return {
        "resultType": "task",
        "taskId": params.name,
        "status": "working",
        "ttlMs": None,
        "pollIntervalMs": 1,
        **times,
    }


async def get_task(_: Any, params: TaskParams) -> dict[str, Any]:
    name, file = params.task_id, FOLDER / params.task_id
    if not file.exists():
        raise MCPError(INVALID_PARAMS, "there is no such task")
    note(f"asked {name}")
    if name == "late" and not (FOLDER / "go").exists():
        return {"resultType": "complete", "taskId": name, "status": "working"}
    number = int(file.read_text())
    if name in {"crash", "forget"} and number == 0:
        file.write_text("1")
        if name == "forget":
            file.unlink()
        os.kill(os.getpid(), 9)
    states = STATES[name]
    if not (name == "ask" and number == 0):
        file.write_text(str(number + 1))
    return {"resultType": "complete", "taskId": name, **states[min(number, len(states) - 1)]}


async def update_task(_: Any, params: TaskParams) -> dict[str, Any]:
    note(f"answered {json.dumps(params.input_responses)}")
    (FOLDER / params.task_id).write_text("1")
    return {"resultType": "complete"}


async def cancel_task(_: Any, params: TaskParams) -> dict[str, Any]:
    note(f"cancelled {params.task_id}")
    return {"resultType": "complete"}


async def main() -> None:
    server: Server[Any] = Server("tasks", on_list_tools=list_tools, on_call_tool=call_tool)
    server.extensions["io.modelcontextprotocol/tasks"] = {}
    for method, handler in (("get", get_task), ("update", update_task), ("cancel", cancel_task)):
        server.add_request_handler(f"tasks/{method}", TaskParams, handler)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
