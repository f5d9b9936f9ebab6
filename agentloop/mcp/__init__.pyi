from agentloop.mcp.authorization import CanKeepTokens as CanKeepTokens
from agentloop.mcp.authorization import ClientCredentials as ClientCredentials
from agentloop.mcp.authorization import OAuth as OAuth
from agentloop.mcp.authorization import SignedCredentials as SignedCredentials
from agentloop.mcp.authorization import TokenFiles as TokenFiles
from agentloop.mcp.ensemble import McpEnsemble as McpEnsemble
from agentloop.mcp.servers import HttpServer as HttpServer
from agentloop.mcp.servers import StdioServer as StdioServer
