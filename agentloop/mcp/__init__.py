"""Tools of servers that speak the Model Context Protocol; one ensemble per server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.mcp.ensemble import McpEnsemble as McpEnsemble
    from agentloop.mcp.servers import HttpServer as HttpServer
    from agentloop.mcp.servers import StdioServer as StdioServer
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.mcp.ensemble": "McpEnsemble",
            "agentloop.mcp.servers": "HttpServer StdioServer",
        },
    )
