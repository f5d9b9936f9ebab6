"""`agentloop mcp`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import click

from agentloop.cli.console import shortcoming
from agentloop.cli.errors import BadUsage, told_as_bad_usage
from agentloop.cli.inventory import mcp_option, servers_from
from agentloop.cli.sources import loop_of, tools_from
from agentloop.contracts.tool import CanDiscoverTools, Tool
from agentloop.contracts.tools import Tools
from agentloop.drivers.scripted import ScenarioStep, ScriptedDriver
from agentloop.errors import ConfigurationError, ToolFailed
from agentloop.events.execution import AgentStepStarted
from agentloop.events.tool_calls import ToolCallProgressed, ToolCallStarted
from agentloop.loop.agent_loop import AgentLoop
from agentloop.mcp.session import ProgressCallback, ServedTool
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import Effect, ToolResult

_TASK = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "What the agent has to do, with all that it needs to know."}
    },
    "required": ["task"],
}


@asynccontextmanager
async def offers_of(tools: Tools) -> AsyncIterator[list[ServedTool]]:
    """Hold the groups of tools, and return an offer for each tool."""
    async with AgentLoop(ScriptedDriver(), tools, max_steps=1) as loop:
        asked = [group for group in tools.groups if isinstance(group, CanDiscoverTools)]
        found = await asyncio.gather(*[group.discover() for group in asked])
        known = tools.with_discovered(zip(asked, found, strict=True))
        yield [_of_tool(loop, tool) for tool in known]


@asynccontextmanager
async def offer_of_agent(loop: AgentLoop, name: str, description: str) -> AsyncIterator[ServedTool]:
    """Enter a loop, and return an offer to let it do a task."""
    async with loop:
        yield ServedTool(name, description, _TASK, Effect.EFFECT, partial(_done, loop))


def _of_tool(loop: AgentLoop, tool: Tool) -> ServedTool:
    spec = tool.spec
    return ServedTool(spec.name, spec.description, spec.parameters, spec.effect, partial(_called, loop, spec.name))


async def _called(loop: AgentLoop, name: str, arguments: Mapping[str, Any], report: ProgressCallback) -> ToolResult:
    """Call one tool, through all that stands around it in a loop."""
    tell = _counting(report)
    scripted = loop.with_driver(ScriptedDriver(ScenarioStep.tool_call(name, arguments)))
    async with scripted.stream(f"call {name}") as events:
        async for event in events:
            if isinstance(event, ToolCallProgressed):
                tell(event.update)
    state = events.state
    step = None if state is None else state.last_step
    if state is None or step is None or not step.executions:
        raise ToolFailed(
            "the call waits for a decision that nobody can make here" if step else "the call came to nothing"
        )
    execution = step.executions[0]
    if execution.error is not None:
        raise ToolFailed(f"{execution.error.type}: {execution.error.message}", path=execution.error.path)
    return ToolResult(execution.value, execution.content)


async def _done(loop: AgentLoop, arguments: Mapping[str, Any], report: ProgressCallback) -> ToolResult:
    """Have an agent do a task; its steps and calls are the progress."""
    task = arguments.get("task")
    if not isinstance(task, str) or not task.strip():
        raise ToolFailed("the argument task is missing: a text that says what to do")
    tell = _counting(report)
    async with loop.stream(task) as events:
        async for event in events:
            if isinstance(event, AgentStepStarted):
                tell("thinks")
            elif isinstance(event, ToolCallStarted):
                tell(f"calls {event.call.name}")
    state = events.state
    if state is None or state.status is not ExecutionStatus.COMPLETED:
        raise ToolFailed("the agent was cut off" if state is None else shortcoming(state) or str(state.status))
    return ToolResult(state.final_text)


def _counting(report: ProgressCallback) -> Callable[[object], None]:
    """Return what tells updates of any form: those of the protocol's as they are, others as messages that are counted."""
    told = 0

    def tell(update: object) -> None:
        nonlocal told
        told += 1
        match update:
            case {"progress": int() | float()}:
                assert isinstance(update, Mapping)  # noqa: S101  # as matched
                report(update)
            case bool():
                report({"progress": told, "message": str(update)})
            case int() | float():
                report({"progress": update})
            case _:
                report({"progress": told, "message": str(update)})

    return tell


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
    """ServedTool tools, or an agent, as a server of the Model Context Protocol."""


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
    """ServedTool the tools of FILEs, Python or TOML, until the client goes away or Ctrl-C."""
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
        from agentloop.mcp.sdk.server import serve_http, serve_stdio
    except ModuleNotFoundError as error:
        raise ConfigurationError("serving needs the extra `mcp`: pip install 'agentloop[mcp]'") from error
    async with AsyncExitStack() as stack:
        offers = await stack.enter_async_context(offers_of(tools))
        if loop is not None:
            offers.append(await stack.enter_async_context(offer_of_agent(loop, *told)))
        if address is None:
            await serve_stdio(name, offers)
        else:
            await serve_http(name, offers, *address, on_ready=lambda url: click.echo(f"serving at {url}", err=True))
