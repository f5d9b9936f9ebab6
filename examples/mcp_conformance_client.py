"""A client for the conformance suite of the Model Context Protocol.

It calls the tools that a scenario names, or each offered tool once with sample arguments:

    npm install @modelcontextprotocol/conformance@0.2.0-alpha.12 node@22
    npx conformance client --requirements 2026-07-28 --command "python examples/mcp_conformance_client.py"

Scenarios whose names begin with auth/ fail, since OAuth is not supported.
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
    """Answer an elicitation request with its defaults."""
    properties = request.get("requestedSchema", {}).get("properties", {})
    return {name: schema["default"] for name, schema in properties.items() if "default" in schema}


def sample_arguments(tool: Tool, first: Tool) -> dict[str, Any]:
    """Return arguments for a tool; an object is the schema of the first tool, which one scenario expects back."""
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
    """Make the calls of the scenario, or call each tool once."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    async with McpEnsemble.http(url, name="conformance", on_elicitation=accept) as server:
        offered = {tool.name: tool for tool in server.offered}
        scenario_calls = [(call["name"], call.get("arguments", {})) for call in context.get("toolCalls", [])]
        sample_calls = [(tool.name, sample_arguments(tool, server.offered[0])) for tool in server.offered]
        for name, arguments in scenario_calls or sample_calls:
            try:
                await offered[name].use(**arguments)
            except ToolError as error:  # some scenarios reject calls on purpose; the suite checks what it received
                sys.stderr.write(f"{name}: {error}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
