"""A client that the conformance suite of the Model Context Protocol runs.

It calls each tool that it is offered, as it is told to or with made-up arguments:

    npm install @modelcontextprotocol/conformance@0.2.0-alpha.12 node@22
    npx conformance client --requirements 2026-07-28 --command "python examples/mcp_conformance_client.py"

Scenarios whose names begin with auth/ fail: there is no OAuth.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from agentloop.contracts import Tool
from agentloop.errors import ToolError
from agentloop.mcp import McpEnsemble
from agentloop.values.json import thaw


async def accept(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a question to the user with what it proposes."""
    properties = request.get("requestedSchema", {}).get("properties", {})
    return {name: schema["default"] for name, schema in properties.items() if "default" in schema}


def made_up(tool: Tool, first: Tool) -> dict[str, Any]:
    """Make arguments up; an object is the schema of the first tool, which some scenario wants to see again."""
    values: dict[str, Any] = {
        "number": 5,
        "integer": 5,
        "string": "x",
        "boolean": True,
        "object": thaw(first.spec.parameters),
    }
    properties = tool.parameters.get("properties", {})
    return {name: values[schema["type"]] for name, schema in properties.items() if schema.get("type") in values}


async def main(url: str) -> None:
    """Call what the scenario names, or everything once."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    async with McpEnsemble.http(url, name="conformance", on_elicitation=accept) as server:
        offered = {tool.name: tool for tool in server.offered}
        calls = [(call["name"], call.get("arguments", {})) for call in context.get("toolCalls", [])]
        made = [(tool.name, made_up(tool, server.offered[0])) for tool in server.offered]
        for name, arguments in calls or made:
            try:
                await offered[name].use(**arguments)
            except ToolError as error:  # some scenarios refuse calls on purpose; the suite judges what it was sent
                sys.stderr.write(f"{name}: {error}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
