"""`agentloop serve`: serve an agent over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import click

from agentloop._event_loops import run_in_event_loop
from agentloop.durable.exits import secrets_of
from agentloop.durable.opening import open_journal
from agentloop.errors import ConfigurationError
from agentloop.errors.hints import install_hint
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.dependencies import with_dependencies
from agentloop.service.cli.agent_options import print_lines, unasked_lines
from agentloop.service.cli.console import mask_log_records
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors
from agentloop.service.cli.journals import DB_VARIABLE, DEFAULT_JOURNAL, FC, JOURNAL_VARIABLE, as_journal_errors
from agentloop.service.cli.sources import dependencies_option, load_dependencies, load_loop
from agentloop.service.server.access import Authenticate, Scope, TokenFile, WebOrigins
from agentloop.service.server.executions import CanRunExecutions, LocalExecutions
from agentloop.service.server.operations import ServerLimits

_EPILOG = """\
\b
Examples:
  agentloop serve support:loop
  agentloop serve support:loop --db runs.db --port 8080
  agentloop serve --tokens tokens.json --add-token ada --scope start --scope read
  agentloop serve support:loop --tokens tokens.json --host 0.0.0.0 --public-host agents.example.com
"""


host_option: Callable[[FC], FC] = click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on."
)
tokens_option: Callable[[FC], FC] = click.option(
    "--tokens",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The file with the hashes of tokens. Required beyond this machine.",
)
public_host_option: Callable[[FC], FC] = click.option(
    "--public-host", "hosts", multiple=True, metavar="NAME", help="A name of the server. May be repeated."
)


@click.command(epilog=_EPILOG, short_help="Serve an agent over HTTP.")
@click.argument("loops", nargs=-1, metavar="[NAME=]MODULE:LOOP...")
@click.option(
    "--db",
    metavar="FILE|URL",
    envvar=[DB_VARIABLE, JOURNAL_VARIABLE],
    show_envvar=True,
    help=f"Where executions are recorded; by default the journal of the loop, or {DEFAULT_JOURNAL} in the working directory.",
)
@click.option(
    "--cluster",
    is_flag=True,
    help="Let the workers of the database run the executions (`agentloop worker`), instead of this process.",
)
@dependencies_option
@click.option(
    "--keep-header",
    "kept_headers",
    multiple=True,
    metavar="NAME",
    help="A header of requests to record with the execution, and to pass to the function of --dependencies. May be repeated.",
)
@host_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=8000,
    show_default=True,
    help="The port to listen on; 0 for any free port.",
)
@tokens_option
@public_host_option
@click.option(
    "--connections",
    type=click.IntRange(1),
    metavar="N",
    default=ServerLimits().connections,
    show_default=True,
    help="The most connections that are open at once.",
)
@click.option(
    "--connections-per-address",
    type=click.IntRange(1),
    metavar="N",
    help="The most of them from one address; half of all by default. Behind a proxy, give the number of --connections.",
)
@click.option("--origin", "origins", multiple=True, metavar="URL", help="An origin of web pages. May be repeated.")
@click.option("--add-token", metavar="PRINCIPAL", help="Add a token to the file of --tokens, print it, and end.")
@click.option("--tenant", default="", metavar="NAME", help="The tenant of the new token, whose sessions it shares.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([scope.value for scope in Scope]),
    help="What the new token allows; by default `start`, `read`, `decide` and `stop`. May be repeated.",
)
def serve(  # noqa: PLR0913  # one parameter for each option
    *,
    loops: Sequence[str],
    db: str | None,
    cluster: bool,
    dependencies: str | None,
    kept_headers: Sequence[str],
    host: str,
    port: int,
    tokens: str | None,
    hosts: Sequence[str],
    connections: int,
    connections_per_address: int | None,
    origins: Sequence[str],
    add_token: str | None,
    tenant: str,
    scopes: Sequence[str],
) -> None:
    """Serve agents over HTTP until Ctrl-C or SIGTERM: start executions, follow their events, decide, send, stop.

    MODULE:LOOP names a loop, or a function that returns one; with several, each has a NAME by which clients start it.
    """
    with as_usage_errors(), as_journal_errors():
        if add_token is not None:
            _add_token(tokens, add_token, scopes, tenant)
            return
        if not loops:
            raise InvalidUsage("name the loop to serve, such as support:loop")
        if db is not None and not db.strip():
            raise InvalidUsage("--db is empty; name a file or a URL, or omit it")
        authenticate = None if tokens is None else TokenFile(tokens)
        web = WebOrigins(hosts=[*WebOrigins().hosts, *hosts], origins=origins)
        agents = load_agents(loops, by_path=cluster)
        per_address = connections_per_address or max(1, connections // 2)
        limits = ServerLimits(connections=connections, connections_per_address=per_address)
        if not cluster:
            agents = with_dependencies(agents, load_dependencies(dependencies))
        elif dependencies is not None:
            raise InvalidUsage("the workers run the executions: give --dependencies to `agentloop worker`")
        mask_log_records(loop.redaction for loop in agents.values())
        run_in_event_loop(
            _serve(
                agents,
                db,
                (host, port),
                authenticate,
                web,
                limits=limits,
                kept_headers=kept_headers,
                in_cluster=cluster,
            )
        )


def _add_token(tokens: str | None, name: str, scopes: Sequence[str], tenant: str) -> None:
    if tokens is None:
        raise InvalidUsage("--add-token needs --tokens FILE, the file to add it to")
    given = scopes or [scope for scope in Scope if scope not in {Scope.DELETE, Scope.ALL}]
    click.echo(TokenFile.add(tokens, name, given, tenant=tenant))


def load_agents(places: Sequence[str], *, by_path: bool) -> dict[str, AgentLoop]:
    """Return the loops by name. Without a name, a single one is `default`, or known by its path as workers know it."""
    agents: dict[str, AgentLoop] = {}
    for place in places:
        name, _, path = place.rpartition("=")
        name = name or (path if by_path else "default")
        if name == "default" and len(places) > 1:
            raise InvalidUsage(f"with several loops, each needs a name: NAME={path}")
        if name in agents:
            raise InvalidUsage(f"two loops have the name {name}")
        agents[name] = load_loop(path)
    return agents


async def _serve(
    agents: dict[str, AgentLoop],
    db: str | None,
    address: tuple[str, int],
    authenticate: Authenticate | None,
    web: WebOrigins,
    *,
    limits: ServerLimits,
    kept_headers: Sequence[str],
    in_cluster: bool,
) -> None:
    async with AsyncExitStack() as stack:
        executions = await _executions(agents, db, stack, in_cluster=in_cluster)
        report = partial(_report, authenticate=authenticate, unasked=unasked_lines(agents))
        await serve_executions(executions, address, authenticate, web, report, limits=limits, kept_headers=kept_headers)


async def serve_executions(
    executions: CanRunExecutions,
    address: tuple[str, int],
    authenticate: Authenticate | None,
    web: WebOrigins,
    on_ready: Callable[[str], None],
    *,
    limits: ServerLimits | None = None,
    kept_headers: Sequence[str] = (),
) -> None:
    """Serve executions until the process is told to end.

    Args:
        executions: runs them.
        address: the host and the port to listen on.
        authenticate: returns the principal of a token; None without tokens.
        web: the hosts and origins of requests.
        on_ready: called with the URL of the server.
        limits: the limits on clients.
        kept_headers: the headers of requests that are recorded with the executions that they start.

    Raises:
        ConfigurationError: the extra `serve` is missing, or the server cannot listen there.
    """
    # Both packages are extras, and importing them takes longer than all else here.
    try:
        from agentloop.service.server.serving import serve
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"serving needs the extra `serve`: {install_hint('serve')}") from error
    host, port = address
    await serve(
        executions,
        host=host,
        port=port,
        authenticate=authenticate,
        web=web,
        limits=limits,
        kept_headers=kept_headers,
        on_ready=on_ready,
    )


async def _executions(
    agents: dict[str, AgentLoop], db: str | None, stack: AsyncExitStack, *, in_cluster: bool
) -> CanRunExecutions:
    if in_cluster:
        from agentloop.service.cluster import Cluster
        from agentloop.service.server.cluster_executions import ClusterExecutions

        cluster = await stack.enter_async_context(Cluster(db or DEFAULT_JOURNAL, secrets=secrets_of(*agents.values())))
        return ClusterExecutions(cluster, agents)
    if db is None and all(loop.journal is not None for loop in agents.values()):
        return LocalExecutions(agents)
    journal = open_journal(db or DEFAULT_JOURNAL, secrets=secrets_of(*agents.values()))
    stack.push_async_callback(journal.aclose)
    # A file that is no journal, or a server that is away, is reported now, and not to the first client.
    await journal.list(limit=1)
    return LocalExecutions(agents, journal)


def _report(url: str, authenticate: Authenticate | None, unasked: Sequence[str]) -> None:
    who = "" if authenticate is not None else "; everyone on this machine may use it, since it has no tokens"
    # First, since programs read the address from this line.
    print_lines([f"serving at {url}{who}", *unasked])
