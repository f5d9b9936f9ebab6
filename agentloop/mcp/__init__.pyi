from agentloop.mcp.ensemble import McpEnsemble as McpEnsemble
from agentloop.mcp.servers import HttpServer as HttpServer
from agentloop.mcp.servers import StdioServer as StdioServer
