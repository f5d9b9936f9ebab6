"""MCP servers that a command line names, and what they offer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import click

from agentloop.cli.tool_inventory import Inventory, Problem, Row
from agentloop.errors import ConfigurationError
from agentloop.tools.mcp.ensemble import McpEnsemble

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)

mcp_option: Callable[[FC], FC] = click.option(
    "--mcp",
    multiple=True,
    metavar="CONFIG",
    help='A JSON file with "mcpServers", whose tools are added. May be repeated.',
)
"""`--mcp`, which `servers_from` understands."""


def servers_from(paths: Iterable[str]) -> list[McpEnsemble]:
    """Return the servers that files name.

    Raises:
        ConfigurationError: when a file has mistakes, or cannot be read.
    """
    return [server for path in paths for server in _servers_of(path)]


def mcp_inventory(paths: Iterable[str]) -> Inventory:
    """Start the servers that files name, or connect with them, and look at their tools.

    Raises:
        ConfigurationError: when a file has mistakes, or cannot be read.
    """
    return asyncio.run(_looked_at([(path, server) for path in paths for server in _servers_of(path)]))


def _servers_of(path: str) -> list[McpEnsemble]:
    try:
        return McpEnsemble.from_config(path)
    except OSError as error:
        raise ConfigurationError(f"--mcp {path} cannot be read: {error.strerror or error}") from error


async def _looked_at(servers: list[tuple[str, McpEnsemble]]) -> Inventory:
    found = Inventory()
    async with AsyncExitStack() as stack:
        for _, server in servers:
            await server.hold()
            stack.push_async_callback(server.release)
        await asyncio.gather(*[server.discover() for _, server in servers])
        for path, server in servers:
            problem = server.problem()
            if problem:
                found.problems.append(Problem(path, f"mcpServers.{server.name}", 0, problem))
            found.rows.extend(Row.of(tool, server.name) for tool in server.offered)
    return found
