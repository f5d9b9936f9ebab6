"""`agentloop mcp`: serve tools, or an agent, over the Model Context Protocol, and log in to servers."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stdout, suppress
from functools import partial
from typing import Any

import click
from attrs import evolve

from agentloop._event_loops import run_in_event_loop
from agentloop.contracts.can_intercept import uses_labels
from agentloop.contracts.tool import CanDiscoverTools, Tool
from agentloop.contracts.tools import Tools
from agentloop.drivers.scripted import ScenarioStep, ScriptedDriver
from agentloop.durable.exits import Exit
from agentloop.errors import ConfigurationError, DecisionError, DependenciesFailed, InvalidParameter, ToolFailed
from agentloop.errors.hints import install_hint, suggest
from agentloop.events.execution import AgentStepStarted
from agentloop.events.tool_calls import ToolCallProgressed, ToolCallStarted
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.dependencies import check_dependencies
from agentloop.loop.event_stream import EventStream
from agentloop.mcp.authorization import OAuth, open_in_browser
from agentloop.mcp.ensemble import McpEnsemble
from agentloop.mcp.offers import Offers, Prompt, Resource, ServedFolder, ServedTool
from agentloop.mcp.servers import HttpServer, forget_tokens
from agentloop.mcp.session import ProgressCallback, ToolHandler
from agentloop.service.cli.console import describe_problem, mask_log_records
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors
from agentloop.service.cli.inventory import EVERY_FILE, load_servers, mcp_option, trust_of, trust_option
from agentloop.service.cli.principals import principal_option
from agentloop.service.cli.sources import dependencies_option, load_dependencies, load_loop, load_served
from agentloop.values.labels import foreign
from agentloop.values.messages import Message, origin_of
from agentloop.values.run_requests import Identity
from agentloop.values.serialization import from_plain, to_plain
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import Effect, ToolResult

logger: logging.Logger = logging.getLogger("agentloop.mcp.server")
_REMEDY = "or name them with --dependencies MODULE:NAME"
_DESCRIPTION = "Let an agent do a task; returns its answer."
_EPILOG = """\
\b
Examples:
  agentloop mcp serve tools.toml
  agentloop mcp serve shop.py --http --port 8000
  agentloop mcp serve --agent support:loop --description "Answers questions about orders."
  agentloop mcp serve shop.py --files manuals
  agentloop mcp serve reports.py --task 'build_*'
"""


@click.group()
def mcp() -> None:
    """Serve tools, or an agent, over the Model Context Protocol, and log in to servers.

    Example: `agentloop mcp serve shop.py`.
    """


@mcp.command(epilog=_EPILOG, short_help="Serve tools, or an agent, as an MCP server.")
@click.argument("places", nargs=-1, metavar="[FILE[:NAME]]...")
@click.option(
    "--agent",
    metavar="MODULE:LOOP",
    help="A loop, or a function that returns one, to serve as one tool that takes a task.",
)
@click.option("--description", default=_DESCRIPTION, show_default=True, help="The description of the agent's tool.")
@dependencies_option
@principal_option
@mcp_option
@click.option("--allow", multiple=True, metavar="MODULE", help="A module that a TOML file may name. May be repeated.")
@trust_option
@click.option(
    "--files",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="A folder whose files to serve as resources. May be repeated.",
)
@click.option(
    "--task",
    "tasks",
    multiple=True,
    metavar="PATTERN",
    help="Tools whose calls run as tasks for clients that know the extension; `*` for all. May be repeated.",
)
@click.option("--name", default="agentloop", show_default=True, help="The name of the server.")
@click.option("--http", is_flag=True, help="Serve streamable HTTP at /mcp instead of standard input and output.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on, with --http.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=8000,
    show_default=True,
    help="The port to listen on, with --http; 0 for any free port.",
)
@click.option(
    "--token",
    envvar="AGENTLOOP_MCP_TOKEN",
    show_envvar=True,
    default="",
    help="The bearer token that clients need, with --http. Required beyond this machine.",
)
def serve(  # noqa: PLR0913  # one parameter for each option
    *,
    places: Sequence[str],
    agent: str | None,
    description: str,
    dependencies: str | None,
    principal: Identity | None,
    mcp: Sequence[str],
    allow: Sequence[str],
    trust: Sequence[str],
    files: Sequence[str],
    tasks: Sequence[str],
    name: str,
    http: bool,
    host: str,
    port: int,
    token: str,
) -> None:
    """Serve the tools, resources and prompts of FILEs, Python or TOML, until the client disconnects or Ctrl-C is pressed."""
    with as_usage_errors():
        # stdout has the messages of the protocol alone, whatever modules print.
        with redirect_stdout(sys.stderr):
            trusted = trust_of(trust)
            own, others = load_served(places, allow, (Resource, Prompt), trusted)
            tools = own.plus(*load_servers(mcp, trusted))
            loop = None if agent is None else load_loop(agent)
            mask_log_records([] if loop is None else [loop.redaction])
        if loop is None and not (len(tools) or tools.groups or others or files):
            raise InvalidUsage("there is nothing to serve: name files of tools, or an agent with --agent")
        resources = [value for value in others if isinstance(value, Resource)]
        prompts = [value for value in others if isinstance(value, Prompt)]
        offers = Offers(name, (), resources, prompts, [ServedFolder(folder) for folder in files], tasks)
        agent_name = "" if agent is None or loop is None else _tool_name(loop.name) or agent.rpartition(":")[2]
        address = (host, port, token) if http else None
        made = load_dependencies(dependencies)
        if loop is not None and made is not None:
            loop = loop.replace(dependencies=made)
        run_in_event_loop(
            _serve(tools, loop, (agent_name, description), offers, address, dependencies=made, principal=principal)
        )


def _tool_name(name: str) -> str:
    """Return the name of an agent as the name of a tool, which has letters, digits, `_` and `-` only: each other character becomes `_`."""
    return re.sub("[^A-Za-z0-9_-]", "_", name)[:64] if re.search("[A-Za-z0-9]", name) else ""


async def _serve(  # all that is served, and where
    tools: Tools,
    loop: AgentLoop | None,
    agent: tuple[str, str],
    offers: Offers,
    address: tuple[str, int, str] | None,
    *,
    dependencies: Any,
    principal: Identity | None,
) -> None:
    """Serve the tools with the other offers, and the loop under the name and the description in `agent`."""
    # The SDK is an extra, and importing it takes longer than all else here.
    try:
        from agentloop.mcp.sdk.server import serve_http, serve_stdio
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"serving needs the extra `mcp`: {install_hint('mcp')}") from error
    async with AsyncExitStack() as stack:
        with redirect_stdout(sys.stderr):  # what groups of tools print when they start
            served = await stack.enter_async_context(open_tools(tools, dependencies, principal))
            if loop is not None:
                served.append(await stack.enter_async_context(open_agent(loop, *agent, principal)))
        offers = evolve(offers, tools=served)
        if address is None:
            await serve_stdio(offers)
        else:
            host, port, token = address
            await serve_http(
                offers,
                host,
                port,
                token=token,
                on_ready=lambda url: click.echo(f"serving at {url}", err=True),
            )


# --- authorization --------------------------------------------------------------------------------------------------

_LOGIN_EPILOG = """\
\b
Examples:
  agentloop mcp login https://docs.example.com/mcp
  agentloop mcp login docs --mcp mcp.json
"""


@mcp.command(epilog=_LOGIN_EPILOG, short_help="Authorize this program at a server, in a browser.")
@click.argument("server", metavar="URL|NAME")
@mcp_option
@click.option("--scope", "scopes", multiple=True, metavar="SCOPE", help="A scope to ask for. May be repeated.")
@click.option("--client-id", default="", metavar="ID", help="The id of a client that was registered before.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port to which the browser returns.")
@click.option(
    "--allow-private",
    multiple=True,
    metavar="HOST",
    help="A host of the authorization in a private network or on this machine, such as localhost:9000. May be repeated.",
)
def login(
    *,
    server: str,
    mcp: Sequence[str],
    scopes: Sequence[str],
    client_id: str,
    port: int,
    allow_private: Sequence[str],
) -> None:
    """Ask a person for authorization at a server over HTTP, and keep the tokens for later runs.

    The server is a URL, or the name of a server in a file of --mcp, with the authorization written there.
    """
    with as_usage_errors():
        auth = OAuth(scopes, client_id=client_id, redirect_port=port, allow_private=allow_private)
        ensemble = _login_target(server, load_servers(mcp, EVERY_FILE), auth)
        problem, tools = run_in_event_loop(_log_in(ensemble))
    if problem:
        raise click.ClickException(f"the MCP server {ensemble.name} is not available: {problem}")
    click.echo(f"logged in to {ensemble.name}; its tools: {', '.join(tools) or 'none'}", err=True)


@mcp.command(short_help="Remove the tokens of a server.")
@click.argument("server", metavar="URL|NAME")
@mcp_option
@click.option("--client-id", default="", metavar="ID", help="The id of the client at the login.")
def logout(*, server: str, mcp: Sequence[str], client_id: str) -> None:
    """Remove what `agentloop mcp login` has kept; the authorization server may honor the tokens until they expire.

    Example: `agentloop mcp logout https://mcp.example.com/mcp`.
    """
    with as_usage_errors():
        target = _login_target(server, load_servers(mcp, EVERY_FILE), OAuth(client_id=client_id)).server
        assert isinstance(target, HttpServer)  # noqa: S101  # as `_login_target` has checked
        forget_tokens(target)
    click.echo("logged out", err=True)


def _login_target(server: str, known: Sequence[McpEnsemble], auth: OAuth) -> McpEnsemble:
    """Return the server to log in to.

    Raises:
        InvalidUsage: when no person can log in there.
    """
    if "://" in server:
        return McpEnsemble.http(server, auth=auth, required=False)
    ensemble = next((ensemble for ensemble in known if ensemble.name == server), None)
    if ensemble is None:
        names = [ensemble.name for ensemble in known]
        raise InvalidUsage(f"{server!r} is neither a URL nor a server in a file of --mcp{suggest(server, names)}")
    target = ensemble.server
    if not isinstance(target, HttpServer) or not isinstance(target.auth or auth, OAuth):
        raise InvalidUsage(f"the server {server!r} needs no login")
    return evolve(ensemble, server=evolve(target, auth=target.auth or auth))


async def _log_in(ensemble: McpEnsemble) -> tuple[str, list[str]]:
    """Connect to a server while a person is asked for authorization; return the problem, if any, and the names of tools."""
    target = ensemble.server
    assert isinstance(target, HttpServer)  # noqa: S101  # as `_login_target` has checked
    assert isinstance(target.auth, OAuth)  # noqa: S101  # the same
    auth = evolve(target.auth, open_browser=_show_page)
    async with evolve(ensemble, server=evolve(target, auth=auth)) as running:
        return running.diagnose(), [tool.name for tool in running.offered]


async def _show_page(url: str) -> None:
    click.echo(f"Agree to the authorization on this page:\n{url}", err=True)
    # Where there is no browser, a person can open the page elsewhere on this machine.
    with suppress(ConfigurationError):
        await open_in_browser(url)


# --- tools ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_tools(
    tools: Tools, dependencies: Any = None, principal: Identity | None = None
) -> AsyncIterator[list[ServedTool]]:
    """Hold the groups of tools open, and return each tool to serve.

    Args:
        tools: the tools.
        dependencies: as for `AgentLoop`; each call is a run.
        principal: who asks for the calls; None for nobody.

    Raises:
        InvalidDependencies: a tool needs dependencies, and nothing makes them.
    """
    # A loop without a model starts and stops the groups, and runs their interceptors around each call.
    async with AgentLoop(ScriptedDriver(), tools, max_steps=1, dependencies=dependencies) as loop:
        check_dependencies(loop, remedy=_REMEDY)
        groups = [group for group in tools.groups if isinstance(group, CanDiscoverTools)]
        discovered = await asyncio.gather(*[group.discover() for group in groups])
        all_tools = tools.with_discovered(zip(groups, discovered, strict=True))
        way_out = Exit.of(None, [loop])
        yield [_served_tool(loop, tool, way_out, principal) for tool in all_tools]


def _served_tool(loop: AgentLoop, tool: Tool, way_out: Exit, principal: Identity | None) -> ServedTool:
    spec = tool.spec
    call = _masking(way_out, partial(_call_tool, loop, principal, spec.name))
    return ServedTool(spec.name, spec.description, spec.parameters, spec.effect, call)


def _masking(way_out: Exit, call: ToolHandler) -> ToolHandler:
    """Return a call that hands no secret of its parts on to the client."""

    async def masked_call(arguments: Mapping[str, Any], report: ProgressCallback) -> ToolResult:
        try:
            result = await call(arguments, lambda update: report(way_out.mask_document(update)))
        except DependenciesFailed:
            logger.exception("a call has not begun")
            raise ToolFailed(
                "the dependencies of the call could not be made; the log of the server has the reason"
            ) from None
        except ToolFailed as error:
            raise ToolFailed(way_out.mask_text(str(error)), path=error.path) from None
        if way_out.is_open:
            return result
        plain = to_plain(result)
        masked = way_out.mask_document(plain)
        return result if masked is plain else from_plain(masked, ToolResult)

    return masked_call


async def _call_tool(  # the last two are those of a `ToolHandler`
    loop: AgentLoop,
    principal: Identity | None,
    name: str,
    arguments: Mapping[str, Any],
    report: ProgressCallback,
) -> ToolResult:
    """Call one tool inside a loop, so that its interceptors, timeout and policies apply."""
    report_update = _numbered(report)
    # Each call is an execution of one scripted step.
    scripted = loop.replace(driver=ScriptedDriver(ScenarioStep.tool_call(name, arguments)))
    async with scripted.stream(f"call {name}", principal=principal) as events:
        async for event in events:
            if isinstance(event, ToolCallProgressed):
                report_update(event.update)
    state = events.state
    step = None if state is None else state.last_step
    # A client cannot approve, so a suspended call is an error for it.
    if state is None or step is None or not step.executions:
        raise ToolFailed(
            "the call waits for a decision, which cannot be made here" if step else "the call has no outcome"
        )
    execution = step.executions[0]
    if execution.error is not None:
        raise ToolFailed(f"{execution.error.type}: {execution.error.message}", path=execution.error.path)
    return ToolResult(execution.value, execution.content)


# --- an agent -------------------------------------------------------------------------------------------------------

CLIENT = foreign("the client of the server")
"""The label of a task for which nobody is known to ask."""
_TASK_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "What the agent has to do, with everything that it needs to know."}
    },
    "required": ["task"],
}
_SESSION_SCHEMA = {
    "type": "string",
    "description": "A name of your choice for a conversation with the agent: it remembers earlier tasks of the same name.",
}


def _task_schema(loop: AgentLoop) -> Mapping[str, Any]:
    """Return the parameters of an agent's tool; conversations are kept where the agent has a journal."""
    if loop.journal is None:
        return _TASK_SCHEMA
    return {**_TASK_SCHEMA, "properties": {**_TASK_SCHEMA["properties"], "session": _SESSION_SCHEMA}}


@asynccontextmanager
async def open_agent(
    loop: AgentLoop, name: str, description: str, principal: Identity | None = None
) -> AsyncIterator[ServedTool]:
    """Hold a loop open, and return it as one tool that takes a task, for which a principal asks if one is given.

    Raises:
        InvalidDependencies: a tool needs dependencies, and nothing makes them.
    """
    check_dependencies(loop, remedy=_REMEDY)
    async with loop:
        call = _masking(Exit.of(loop.journal, [loop]), partial(_do_task, loop, principal))
        yield ServedTool(name, description, _task_schema(loop), Effect.EFFECT, call)


@asynccontextmanager
async def _refusing(stream: EventStream[Any]) -> AsyncIterator[EventStream[Any]]:
    """Hold a stream open; that its session waits for a decision is an answer to the client."""
    try:
        async with stream:
            yield stream
    except DecisionError as error:
        raise ToolFailed(str(error)) from None


async def _do_task(
    loop: AgentLoop, principal: Identity | None, arguments: Mapping[str, Any], report: ProgressCallback
) -> ToolResult:
    """Let an agent do a task, and report its steps and calls as progress."""
    task = arguments.get("task")
    if not isinstance(task, str) or not task.strip():
        raise ToolFailed("the argument `task` is missing: a text that says what to do")
    report_update = _numbered(report)
    session = arguments.get("session")
    if session is not None and loop.journal is None:
        raise ToolFailed("the argument `session` is given, and this agent keeps no conversations")
    # Whoever writes the text of a task is the user if the server was started for somebody.
    asks = None if principal is not None or not uses_labels(loop.interceptors) else CLIENT
    try:
        stream = loop.stream(Message.user(task, label=asks), session=session, principal=principal)
    except InvalidParameter as error:
        raise ToolFailed(f"the argument `session`: {error}") from None
    async with _refusing(stream) as events:
        async for event in events:
            if isinstance(event, AgentStepStarted):
                report_update("thinks")
            elif isinstance(event, ToolCallStarted):
                report_update(f"calls {event.call.name}")
    state = events.state
    if state is None or state.status is not ExecutionStatus.COMPLETED:
        raise ToolFailed("the agent was interrupted" if state is None else describe_problem(state) or str(state.status))
    return ToolResult(
        state.final_text or "", label=origin_of(state.messages) if uses_labels(loop.interceptors) else None
    )


def _numbered(report: ProgressCallback) -> Callable[[object], None]:
    """Return a function that reports updates of any form.

    Updates in the protocol's form pass unchanged, and numbers become progress values. Anything else becomes a message whose
    progress value is the number of updates so far, because the protocol requires values that increase.
    """
    count = 0

    def report_update(update: object) -> None:
        nonlocal count
        count += 1
        match update:
            case {"progress": int() | float()}:
                assert isinstance(update, Mapping)  # noqa: S101  # as matched
                report(update)
            # bool is an int, so this case must come first.
            case bool():
                report({"progress": count, "message": str(update)})
            case int() | float():
                report({"progress": update})
            case _:
                report({"progress": count, "message": str(update)})

    return report_update
