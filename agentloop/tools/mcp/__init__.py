"""Tools of servers that speak the Model Context Protocol; one ensemble per server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.tools.mcp.ensemble import McpEnsemble as McpEnsemble
    from agentloop.tools.mcp.servers import HttpServer as HttpServer
    from agentloop.tools.mcp.servers import StdioServer as StdioServer
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.tools.mcp.ensemble": "McpEnsemble",
            "agentloop.tools.mcp.servers": "HttpServer StdioServer",
        },
    )
