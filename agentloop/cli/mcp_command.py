"""`agentloop mcp`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

import click

from agentloop.cli.bad_usage import BadUsage, told_as_bad_usage
from agentloop.cli.mcp_offers import offer_of_agent, offers_of
from agentloop.cli.mcp_servers import mcp_option, servers_from
from agentloop.cli.named_loop import loop_of
from agentloop.cli.tool_files import tools_from
from agentloop.contracts.tools import Tools
from agentloop.errors import ConfigurationError
from agentloop.loop.agent_loop import AgentLoop

_DESCRIPTION = "Let an agent do a task; returns its answer."
_EPILOG = """\
\b
Examples:
  agentloop mcp serve tools.toml
  agentloop mcp serve shop.py --http --port 8000
  agentloop mcp serve --agent support:loop --description "Answers questions about orders."
"""


@click.group()
def mcp() -> None:
    """Offer tools, or an agent, as a server of the Model Context Protocol."""


@mcp.command(epilog=_EPILOG)
@click.argument("places", nargs=-1, metavar="[FILE[:NAME]]...")
@click.option(
    "--agent",
    metavar="MODULE:LOOP",
    help="A loop, or a function that makes one, to offer as one tool, which takes a task.",
)
@click.option(
    "--description", default=_DESCRIPTION, show_default=True, help="What the agent does, for those who call it."
)
@mcp_option
@click.option("--allow", multiple=True, metavar="MODULE", help="A module that a TOML file may name. May be repeated.")
@click.option("--name", default="agentloop", show_default=True, help="What the server calls itself.")
@click.option("--http", is_flag=True, help="Serve streamable HTTP at /mcp instead of standard input and output.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on, with --http.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="The port to listen on, with --http; 0 for any that is free.",
)
def serve(  # an option each
    *,
    places: Sequence[str],
    agent: str | None,
    description: str,
    mcp: Sequence[str],
    allow: Sequence[str],
    name: str,
    http: bool,
    host: str,
    port: int,
) -> None:
    """Offer the tools of FILEs, Python or TOML, until the client goes away or Ctrl-C."""
    with told_as_bad_usage():
        tools = tools_from(places, allow).plus(*servers_from(mcp))
        loop = None if agent is None else loop_of(agent)
        if loop is None and not len(tools) and not tools.groups:
            raise BadUsage("there is nothing to offer: name files of tools, or an agent with --agent")
        agent_name = "" if agent is None else agent.rpartition(":")[2]
        asyncio.run(_served(tools, loop, (agent_name, description), name, (host, port) if http else None))


async def _served(
    tools: Tools, loop: AgentLoop | None, told: tuple[str, str], name: str, address: tuple[str, int] | None
) -> None:
    try:
        from agentloop.tools.mcp.sdk.serving import serve_http, serve_stdio  # noqa: PLC0415  # the extra
    except ModuleNotFoundError as error:
        raise ConfigurationError("serving needs the extra `mcp`: pip install 'agentloop[mcp]'") from error
    async with AsyncExitStack() as stack:
        offers = await stack.enter_async_context(offers_of(tools))
        if loop is not None:
            offers.append(await stack.enter_async_context(offer_of_agent(loop, *told)))
        if address is None:
            await serve_stdio(name, offers)
        else:
            await serve_http(name, offers, *address, ready=lambda url: click.echo(f"serving at {url}", err=True))
