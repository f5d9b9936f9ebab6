"""An agent with the tools of an MCP server, here one that this file serves itself as a child process.

Needs the extra `mcp`: `pip install 'agentloop-kernel[mcp]'`.
"""

from __future__ import annotations

import asyncio
import sys

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.mcp import McpEnsemble


@tool(effect="pure")
def weather(place: str) -> str:
    """Tell the weather of a place."""
    return f"{place} has 21 degrees"


MODEL = ScriptedInference(ToolCall("1", "sky_weather", '{"place": "Lisbon"}'), "It is 21 degrees in Lisbon.")


async def main() -> None:
    # Any other server is started the same way: McpEnsemble.stdio("uvx", ["mcp-server-time"]).
    sky = McpEnsemble.stdio(
        sys.executable, ["-m", "agentloop.service.cli.main", "mcp", "serve", __file__], name="sky", prefix="sky_"
    )
    # Entering the loop starts the server once for all executions.
    async with AgentLoop.for_model(MODEL, tools=[sky]) as loop:
        state = await loop.execute("How warm is it in Lisbon?")
    for execution in state.steps[0].executions:
        print(f"{execution.name}: {execution.text}")
    print(state.final_text)


if __name__ == "__main__":
    asyncio.run(main())
