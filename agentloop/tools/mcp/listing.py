"""Asking a server for all of its tools."""

from __future__ import annotations

import logging

from agentloop.errors import ToolDefinitionError
from agentloop.tools.mcp.lost import ConnectionLost
from agentloop.tools.mcp.offers import OfferedTool
from agentloop.tools.mcp.server_session import ServerSession
from agentloop.tools.validation import SchemaValidator

_LOG = logging.getLogger("agentloop.tools.mcp")
_MOST_PAGES = 1_000
_MOST_TOOLS = 10_000


async def listed(session: ServerSession, server: str) -> tuple[OfferedTool, ...]:
    """Return the tools of all pages; those that cannot be called are logged and left out.

    Args:
        session: with whom.
        server: the name of the server, for messages.

    Raises:
        ConnectionLost: when it is lost, or its pages do not end.
        ToolFailed: when it refuses, or answers in a way that is not of the protocol.
    """
    found: dict[str, OfferedTool] = {}
    cursor: str | None = None
    asked: set[str] = set()
    while True:
        page, cursor = await session.tools(cursor)
        for tool in page:
            problem = "there is another of this name" if tool.name in found else _problem(tool)
            if problem:
                _LOG.warning("the tool %r of the MCP server %s is left out: %s", tool.name, server, problem)
            else:
                found[tool.name] = tool
        if not cursor:
            return tuple(found.values())
        if cursor in asked or len(asked) >= _MOST_PAGES or len(found) > _MOST_TOOLS:
            raise ConnectionLost(f"its list of tools does not end: {len(asked) + 1} pages, {len(found)} tools")
        asked.add(cursor)


def _problem(tool: OfferedTool) -> str:
    """Say why a tool cannot be called; empty when it can."""
    if not tool.name:
        return "it has no name"
    if tool.parameters.get("type", "object") != "object":
        return "its parameters are no object"
    try:
        SchemaValidator(tool.parameters, "its schema")
    except ToolDefinitionError as error:
        return str(error)
    return ""
