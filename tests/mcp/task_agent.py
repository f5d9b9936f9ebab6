"""An agent that calls one tool of the server of tasks once, and is recorded; as a program, it runs until it is killed."""

from __future__ import annotations

import sys
from pathlib import Path

from agentloop import AgentLoop, ScriptedInference, ToolCall
from agentloop.durable import SqliteJournal
from agentloop.values import InDoubt, InferenceRequest, InferenceResponse
from tests.mcp.running import on_sdk

SERVER = str(Path(__file__).parent / "task_server.py")
RUN = "run"


def task_agent(folder: Path, tool: str, effect: str, in_doubt: str = "tell") -> AgentLoop:
    """Return the agent.

    Args:
        folder: where the journal is, and the tasks of the server.
        tool: the tool that it calls.
        effect: the effect of the tool.
        in_doubt: what happens to a call in doubt.
    """

    def answer(request: InferenceRequest) -> InferenceResponse | str:
        asked = any(message.exchanges for message in request.messages)
        return "Done." if asked else InferenceResponse((ToolCall("1", tool, "{}"),))

    server = on_sdk(SERVER, str(folder), name="tasks", effects={tool: effect})
    return AgentLoop.for_model(
        ScriptedInference(answer, answer),
        tools=[server],
        journal=SqliteJournal(str(folder / "runs.db")),
        in_doubt=InDoubt(in_doubt),
    )


if __name__ == "__main__":
    # Arguments: those of `task_agent`, and how to run it: `execute` or `recover`.
    *arguments, command = sys.argv[1:]
    agent = task_agent(Path(arguments[0]), *arguments[1:])
    if command == "execute":
        agent.execute_sync("Call it.", execution_id=RUN)
    else:
        agent.recover_sync(RUN)
