"""`agentloop trace`: look at executions in the browser."""

from __future__ import annotations

import re
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import mkdtemp

import click

from agentloop._event_loops import run_in_event_loop
from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.journal import Journal
from agentloop.loop.agent_loop import AgentLoop
from agentloop.service.cli.console import as_one_line
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors, describe_file_error
from agentloop.service.cli.journals import (
    as_journal_errors,
    complete_execution,
    find_execution,
    journal_option,
    journal_place,
    make_journal,
    report_damage,
    with_journal,
)
from agentloop.service.cli.serve import host_option, load_agents, public_host_option, serve_executions, tokens_option
from agentloop.service.server.access import TokenFile, WebOrigins
from agentloop.service.server.executions import CanRunExecutions, LocalExecutions, RecordedExecutions
from agentloop.service.trace.comparison import compare_traces
from agentloop.service.trace.document import Trace, TraceComparison
from agentloop.service.trace.page import load_viewer, write_trace_page
from agentloop.service.trace.reader import build_trace
from agentloop.values.json import format_json
from agentloop.values.visible_text import escape_invisible

_DEFAULT_PORT = 8001
"""Not the port of `agentloop serve`, which may run beside it."""

_VIEW_EPILOG = """\
\b
Examples:
  agentloop trace view order-7
  agentloop trace view order-7 --compare order-8
  agentloop trace view order-7 -o order-7.html --no-open
  agentloop trace view order-7 --json | jq .executions[0].usage
"""
_SERVE_EPILOG = """\
\b
Examples:
  agentloop trace serve
  agentloop trace serve --db runs.db --port 8080
  agentloop trace serve support:loop --db runs.db
"""

_no_open_option = click.option(
    "--no-open", is_flag=True, help="Do not open the browser, which is done on a terminal only."
)


@click.group()
def trace() -> None:
    """Look at recorded executions in the browser: steps, calls, texts, tokens, and what was changed on the way.

    Example: `agentloop trace view order-7`.
    """


# --- view -----------------------------------------------------------------------------------------------------------


@trace.command(epilog=_VIEW_EPILOG, short_help="Write a page about an execution, and open it.")
@click.argument("execution", metavar="ID", shell_complete=complete_execution)
@journal_option
@click.option(
    "--compare", "other", metavar="ID", shell_complete=complete_execution, help="A second execution to show beside it."
)
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False), metavar="FILE", help="The page; by default a temporary file."
)
@_no_open_option
@click.option("--json", "as_json", is_flag=True, help="Print what the page shows as JSON, and write no page.")
def view(
    execution: str, *, journal_file: str | None, other: str | None, output: str | None, no_open: bool, as_json: bool
) -> None:
    """Write a page about an execution to one HTML file, which needs no network, and open it in the browser.

    ID is the id of an execution, or a prefix of it. The file has everything that is recorded of the execution and of the
    agents that served its calls; only its owner can read it.
    """
    with as_usage_errors():
        viewer = "" if as_json else load_viewer()
        left, compared = with_journal(journal_file, lambda journal: _read(journal, execution, other))
    if as_json:
        sys.stdout.buffer.write(format_json(left if compared is None else compared) + b"\n")
        sys.stdout.buffer.flush()
        return
    with as_usage_errors():
        if output is not None and not Path(output).absolute().parent.is_dir():
            raise InvalidUsage(
                f"--output {as_one_line(output)}: there is no folder {as_one_line(str(Path(output).parent))}"
            )
        path = Path(mkdtemp(prefix="agentloop-trace-")) / _file_name(left["id"]) if output is None else Path(output)
        try:
            write_trace_page(path, left, compared, viewer)
        except OSError as error:
            raise InvalidUsage(f"{as_one_line(str(path))}: {describe_file_error(error)}") from error
    click.echo(escape_invisible(str(path)))
    if not no_open:
        _open(path.absolute().as_uri())


async def _read(journal: CanJournal, execution: str, other: str | None) -> tuple[Trace, TraceComparison | None]:
    left = await _build(journal, execution)
    return left, None if other is None else compare_traces(left, await _build(journal, other))


async def _build(journal: CanJournal, prefix: str) -> Trace:
    execution_id = (await find_execution(journal, prefix)).execution_id
    report_damage(await journal.read(execution_id), execution_id)
    return await build_trace(journal, execution_id)


def _file_name(execution_id: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', execution_id)[:100]}.html"


def _open(address: str) -> None:
    """Open an address in the browser, if a person sits at a terminal."""
    if sys.stdout.isatty() and not webbrowser.open(address):
        click.echo("there is no browser here; open the page in one", err=True)


# --- serve ----------------------------------------------------------------------------------------------------------


@trace.command(epilog=_SERVE_EPILOG, short_help="Follow executions in the browser while they run.")
@click.argument("loops", nargs=-1, metavar="[[NAME=]MODULE:LOOP...]")
@journal_option
@host_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=_DEFAULT_PORT,
    show_default=True,
    help="The port to listen on; 0 for any free port.",
)
@tokens_option
@public_host_option
@_no_open_option
def serve(
    *,
    loops: Sequence[str],
    journal_file: str | None,
    host: str,
    port: int,
    tokens: str | None,
    hosts: Sequence[str],
    no_open: bool,
) -> None:
    """Show the executions of a journal in the browser until Ctrl-C, and follow those that run.

    Executions can be forked, sent to and stopped from the page. With MODULE:LOOP, a loop or a function that returns one, pending calls
    can be approved, denied, edited and answered, and this process continues the execution. Tokens are those of `agentloop serve`, which
    shows the same pages at /trace.
    """
    with as_usage_errors(), as_journal_errors():
        load_viewer()
        place = journal_place(journal_file)
        authenticate = None if tokens is None else TokenFile(tokens)
        web = WebOrigins(hosts=[*WebOrigins().hosts, *hosts])
        agents = load_agents(loops, by_path=False)

        async def run() -> None:
            async with AsyncExitStack() as stack:
                journal = make_journal(place)
                stack.push_async_callback(journal.aclose)
                executions = await _executions(journal, agents)
                await serve_executions(executions, (host, port), authenticate, web, lambda url: _report(url, no_open))

        run_in_event_loop(run())


async def _executions(journal: Journal, agents: dict[str, AgentLoop]) -> CanRunExecutions:
    # A file that is no journal, or a server that is away, is reported now, and not on the page.
    await journal.list(limit=1)
    return LocalExecutions(agents, journal) if agents else RecordedExecutions(journal)


def _report(url: str, no_open: bool) -> None:  # noqa: FBT001  # an option
    click.echo(f"{url}/trace")
    if not no_open:
        _open(f"{url}/trace")
