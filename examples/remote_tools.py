"""Tools in another process: a child process that reads calls as JSON lines and writes their results."""

from __future__ import annotations

import asyncio
import os
import sys

from attrs import frozen

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.executors import ProgressReport, RemoteCall, RemoteResult, RemoteToolExecutor, run_remote_call
from agentloop.values import from_json, to_json

MODEL = ScriptedInference([ToolCall("1", "weigh", '{"items": ["tin", "lead"]}')], "Together they weigh 18.6 kg.")


@tool(effect="pure")
def weigh(items: list[str]) -> dict[str, float]:
    """Weigh things, in kg.

    Args:
        items: what is weighed.
    """
    return {"kg": {"tin": 7.3, "lead": 11.3}[items[0]] + 11.3, "process": os.getpid()}


@frozen
class ChildProcess(RemoteToolExecutor):
    """Starts a process for each call; it ends with the call."""

    async def call_remotely(self, call: RemoteCall, report: ProgressReport) -> RemoteResult:  # noqa: ARG002  # not streamed
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(sys.executable, __file__, "serve", stdin=pipe, stdout=pipe)
        try:
            answer, _ = await child.communicate(to_json(call))
        finally:
            if child.returncode is None:  # the call was cancelled
                child.kill()
        # A process that has died has written nothing: this raises, and the call is sent again, or is in doubt by its effect.
        return from_json(answer, RemoteResult)


def serve() -> None:
    """Run the call on standard input: what the other process does."""
    call = from_json(sys.stdin.buffer.read(), RemoteCall)
    sys.stdout.buffer.write(to_json(asyncio.run(run_remote_call([weigh], call))))


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        state = AgentLoop.for_model(MODEL, tools=[weigh], executor=ChildProcess()).execute_sync("What do they weigh?")
        execution = state.steps[0].executions[0]
        print(f"{execution.text} was measured by another process than {os.getpid()}")
        print(state.final_text)
