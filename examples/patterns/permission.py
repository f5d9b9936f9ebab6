"""Permission: rules allow and deny calls by tool, arguments and user, and a person approves what is left open."""

from __future__ import annotations

import asyncio

from agentloop import AgentLoop, AgentState, Permissions, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.interception import Rule
from agentloop.values import Decision, approve, deny


@tool(effect="pure")
def read_file(path: str) -> str:
    """Read a file."""
    return f"the text of {path}"


@tool
def delete_file(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


rules = Permissions(
    allow=["read_*", Rule("delete_file", metadata={"role": "editor"})],
    deny=[
        Rule(
            when=lambda point: str(point.arguments["path"]).startswith("/etc"),
            reason="the system's files are not yours",
        )
    ],
)
calls = [
    ToolCall("1", "read_file", '{"path": "notes.txt"}'),
    ToolCall("2", "read_file", '{"path": "/etc/passwd"}'),
    ToolCall("3", "delete_file", '{"path": "old.txt"}'),
    ToolCall("4", "delete_file", '{"path": "new.txt"}'),
]
for role in ("guest", "editor"):
    model = ScriptedInference(calls, "I did what I may.")
    loop = AgentLoop.for_model(
        model, tools=[read_file, delete_file], interceptors=[rules, RequireApproval(["delete_*"])]
    )
    state = loop.execute_sync(AgentState.start("Tidy up.").with_metadata(role=role))
    if state.pending:
        keep, drop = state.pending[1], state.pending[0]
        print(f"{role} asks about", *[call.call.arguments["path"] for call in state.pending])
        decisions: dict[str, Decision] = {drop.key: approve(drop.digest), keep.key: deny("it is needed")}
        state = asyncio.run(loop.resume(state, decisions))
    for execution in state.steps[0].executions:
        print(f"{role}: {execution.name} {execution.status}: {execution.text}")
