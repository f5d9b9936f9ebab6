"""`agentloop worker`, `submit` and `cluster`: run executions on many processes and machines."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import click

from agentloop._event_loops import run_in_event_loop
from agentloop.errors import ClusterError, DatabaseLost, WorkRefused
from agentloop.service.cli.agent_options import print_lines, unasked_lines
from agentloop.service.cli.attachments import read_stdin
from agentloop.service.cli.console import as_one_line, create_console, mask_log_records
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors, require_text
from agentloop.service.cli.journals import as_journal_errors, database_place, db_option
from agentloop.service.cli.principals import principal_option
from agentloop.service.cli.sources import check_named_here, dependencies_option, load_dependencies, load_loop
from agentloop.service.cli.tables import Column, Fit, print_table
from agentloop.service.cluster.cluster import Cluster, ClusterStatus
from agentloop.service.cluster.database import ClusterDatabase
from agentloop.service.cluster.worker import Worker
from agentloop.values.jobs import check_limits
from agentloop.values.run_requests import Identity
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

LOST: Final = 75
"""The exit code of a worker that lost its database: a temporary failure, after which a supervisor starts it again."""
_KILLED: Final = 143

_version_option: Callable[[F], F] = click.option(
    "--version", "version", default="", metavar="TEXT", help="The version of the program, such as that of a release."
)


# --- worker -----------------------------------------------------------------------------------------------------------


_WORKER_EPILOG = """\
\b
Exit codes:
  0   drained
  1   the database is not one of agentloop, or cannot be reached at the start
  2   usage error, or a worker of this name is running
  75  the database could not be reached for too long, or another worker took the name meanwhile
  143 ended by a second SIGTERM
"""


@click.command(epilog=_WORKER_EPILOG, short_help="Run submitted executions, beside other workers.")
@click.argument("loops", nargs=-1, required=True, metavar="MODULE:LOOP...")
@db_option
@click.option("--name", default=None, metavar="TEXT", help="The name of the worker, unique among those that run.")
@_version_option
@click.option("--executions", default=8, show_default=True, type=click.IntRange(1), help="Executions at a time.")
@click.option("--tools", default=16, show_default=True, type=click.IntRange(0), help="Queued tool calls at a time.")
@click.option(
    "--max-recoveries",
    default=3,
    show_default=True,
    type=click.IntRange(1),
    help="How often an execution is recovered without progress between, before it ends as failed.",
)
@click.option(
    "--drain-grace",
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(0),
    help="How long tool calls that run may go on after the first SIGTERM.",
)
@click.option(
    "--lost-after",
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    help="How long the database may be unreachable before the worker gives up.",
)
@dependencies_option
@click.option("--quiet", is_flag=True, help="Print warnings and errors only.")
def worker(
    *,
    loops: Sequence[str],
    db: str | None,
    name: str | None,
    dependencies: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Run the executions that are submitted for these agents, until SIGTERM or Ctrl-C.

    Example: `agentloop worker shop:agent --db postgresql://host/agents`.

    MODULE:LOOP names an `AgentLoop`, or a function that returns one. Executions are submitted under the same name. Start any
    number of workers, on one machine with a SQLite file or on any with PostgreSQL; when one dies, the others continue what it
    ran. The first SIGTERM lets tool calls that run end, hands over what is not finished and ends the worker; the second one ends it at
    once.
    """
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s")
    with as_usage_errors(), as_journal_errors():
        agents = {path: load_loop(path) for path in loops}
        mask_log_records(loop.redaction for loop in agents.values())
        if not quiet:
            print_lines(unasked_lines(agents))
        running = Worker(
            agents,
            database_place(db),
            name=name,
            dependencies=load_dependencies(dependencies),
            progress=None if quiet else _print_progress,
            **options,
        )
        try:
            run_in_event_loop(_run_worker(running))
        except DatabaseLost as error:
            click.echo(f"Error: {as_one_line(str(error))}", err=True)
            _leave(LOST)
        except ClusterError as error:
            raise click.ClickException(as_one_line(str(error))) from error
    # Tools that block a thread would keep the process; what they do is recorded as not finished.
    _leave(0)


def _print_progress(line: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')}  {as_one_line(line)}", err=True)


async def _run_worker(running: Worker) -> None:
    loop = asyncio.get_running_loop()
    drains: list[asyncio.Task[None]] = []

    def end() -> None:
        if drains:
            _leave(_KILLED)
        drains.append(loop.create_task(running.drain()))

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, end)
    try:
        await running.run()
    finally:  # uvloop keeps the handlers of an event loop that is closed
        for number in numbers:
            loop.remove_signal_handler(number)


def _leave(code: int) -> None:
    """End the process at once, whatever its threads do."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# --- submit -----------------------------------------------------------------------------------------------------------


_SUBMIT_EPILOG = """\
\b
Exit codes:
  0  queued; with --wait, completed
  1  with --wait, the execution failed, was stopped or is suspended
  2  usage error; with --needs-worker, no worker can run it
"""


@click.command(epilog=_SUBMIT_EPILOG, short_help="Queue an execution for the workers.")
@click.argument("agent", metavar="MODULE:LOOP")
@click.argument("text", required=False)
@db_option
@click.option(
    "--id",
    "execution_id",
    default=None,
    metavar="ID",
    help="The id of the execution; the same id again is the same one.",
)
@click.option(
    "--session", metavar="ID", help="The session whose conversation it continues, after the messages before it."
)
@click.option("--queue", default="default", show_default=True, help="The queue in which it waits.")
@click.option("--priority", default=0, show_default=True, help="Higher ones start first.")
@click.option(
    "--delay", default=0.0, metavar="SECONDS", type=click.FloatRange(0), help="How long it waits before it can start."
)
@principal_option
@_version_option
@click.option("--needs-worker", is_flag=True, help="Fail if no live worker can run it.")
@click.option("--wait", is_flag=True, help="Wait for its end, and print its answer.")
def submit(*, agent: str, text: str | None, db: str | None, version: str, wait: bool, **options: Any) -> None:
    """Queue an execution, and print its id.

    Example: `agentloop submit shop:agent "Order a lamp." --id order-42`.

    MODULE:LOOP is the name under which workers know the agent; if this machine has the module, the loop has to be in it. Without TEXT, the text is read from stdin.
    """
    with as_usage_errors():
        check_named_here(agent)
    prompt = require_text(text, "the input") if text is not None else read_stdin(takes_files=False)

    async def work(cluster: Cluster) -> AgentState | str:
        execution_id = await cluster.submit(agent, prompt, **options)
        return await cluster.result(execution_id) if wait else execution_id

    result = _with_cluster(db, work, version=version)
    if isinstance(result, str):
        click.echo(as_one_line(result))
        return
    click.echo(result.final_text or result.status.value)
    if result.status is not ExecutionStatus.COMPLETED:
        click.get_current_context().exit(1)


def _with_cluster(
    db: str | None, work: Callable[[Cluster], Coroutine[Any, Any, T]], version: str = "", *, creates: bool = True
) -> T:
    async def run() -> T:
        async with Cluster(place, version=version) as cluster:
            return await work(cluster)

    with as_usage_errors(), as_journal_errors():
        place = database_place(db)
        database = ClusterDatabase.parse(place)
        # SQLite would create a missing file, and an empty database hides a mistyped name.
        is_missing = database.path is not None and not (database.path.exists() or database.engine_path.exists())
        if is_missing and not creates:
            raise InvalidUsage(f"there is no database {database}; `agentloop worker` and `agentloop submit` create one")
        try:
            return run_in_event_loop(run())
        except WorkRefused as error:
            raise InvalidUsage(str(error)) from error
        except ClusterError as error:
            raise click.ClickException(as_one_line(str(error))) from error


# --- cluster ----------------------------------------------------------------------------------------------------------


@click.group()
def cluster() -> None:
    """Show what the workers of a database do, and manage its queues and schedules.

    Example: `agentloop cluster status --db postgresql://host/agents`.
    """


@cluster.command(short_help="Show workers, queues and calls in doubt.")
@db_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(*, db: str | None, as_json: bool) -> None:
    """Show the live workers, the queues with their oldest waiting work, the calls in doubt, and damaged rows that were put aside.

    Example: `agentloop cluster status --db postgresql://host/agents`.
    """
    found = _with_cluster(db, lambda cluster: cluster.status(), creates=False)
    if as_json:
        click.echo(json.dumps(_status_data(found), indent=2))
    else:
        _print_status(found)


def _status_data(found: ClusterStatus) -> dict[str, object]:
    return {
        "workers": [json.loads(note.to_text()) for note in found.workers],
        "queues": [
            {
                "kind": queue.kind,
                "name": queue.name,
                "waiting": queue.waiting,
                "running": queue.running,
                "oldest_waiting": queue.oldest_waiting,
            }
            for queue in found.queues
        ],
        "unserved": list(found.unserved),
        "doubts": [{"execution_id": item.execution_id, "key": item.key, "tool": item.tool} for item in found.doubts],
        "damaged": list(found.damaged),
    }


def _print_status(found: ClusterStatus) -> None:
    workers = [
        (
            note.name,
            note.version or "-",
            ", ".join(note.agents),
            f"{note.executions} + {note.tools}",
            note.host,
            note.process,
        )
        for note in found.workers
    ]
    queues = [
        (queue.name, queue.kind, queue.waiting, queue.running, f"{queue.oldest_waiting:.1f} s")
        for queue in found.queues
    ]
    doubts = [(item.execution_id, item.key, item.tool) for item in found.doubts]
    _print_table(("WORKER", "VERSION", "AGENTS", "SLOTS", "HOST", "PROCESS"), workers, "No worker is running.")
    _print_table(("QUEUE", "KIND", "WAITING", "RUNNING", "OLDEST WAITING"), queues, "The queues are empty.")
    _print_table(("EXECUTION", "CALL", "TOOL"), doubts, "No call of an unfinished execution is in doubt.")
    for name in found.unserved:
        click.echo(f"Work waits for a worker that runs {as_one_line(name)}.")
    for damage in found.damaged:
        click.echo(f"Put aside: {as_one_line(damage)}")


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    if not rows:
        click.echo(empty)
        return
    columns = [Column(title, Fit.WRAPPED if title in _TEXTS else Fit.WHOLE) for title in titles]
    print_table(create_console(), columns, [[str(cell) for cell in row] for row in rows])


_TEXTS = frozenset({"AGENTS", "TEXT"})
"""The columns that wrap; identifiers are copied into commands."""


_LIMIT_EPILOG = """\
\b
Examples:
  agentloop cluster limit default --pause
  agentloop cluster limit mails --concurrency 2 --rate 100/60
  agentloop cluster limit default
"""


def _parse_rate(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, float] | None:
    if value is None:
        return None
    count, _, seconds = value.partition("/")
    try:
        return int(count), float(seconds)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not COUNT/SECONDS, such as 100/60") from None


@cluster.command(epilog=_LIMIT_EPILOG, short_help="Limit a queue, or pause it.")
@click.argument("queue")
@click.option("--concurrency", type=click.IntRange(0), metavar="N", help="How many of its executions run at a time.")
@click.option(
    "--rate", metavar="COUNT/SECONDS", callback=_parse_rate, help="How many of its executions start within a time."
)
@click.option("--pause", is_flag=True, help="Start none until the next `limit`; those that run go on.")
@db_option
def limit(*, queue: str, concurrency: int | None, rate: tuple[int, float] | None, pause: bool, db: str | None) -> None:
    """Set the limits of a queue of executions, for all workers together. Without an option, it has none any more."""
    if pause and concurrency is not None:
        raise InvalidUsage("--pause and --concurrency contradict each other; omit one of them")
    if not queue.strip():
        raise InvalidUsage("the name of the queue is empty; `agentloop cluster status` lists queues with work")
    running = 0 if pause else concurrency
    with as_usage_errors():
        check_limits(running, rate)
    _with_cluster(db, lambda cluster: cluster.limit_queue(queue, concurrency=running, rate=rate), creates=False)
    limits = [
        *([] if running is None else ["paused" if running == 0 else f"{running} at a time"]),
        *([] if rate is None else [f"{rate[0]} in {rate[1]:g} s"]),
    ]
    click.echo(f"{as_one_line(queue)}: {', '.join(limits) or 'no limits'}")


@cluster.command(short_help="Start an execution at the times of a cron expression.")
@click.argument("name")
@click.argument("cron")
@click.argument("agent", metavar="MODULE:LOOP")
@click.argument("text")
@db_option
@principal_option
def schedule(*, name: str, cron: str, agent: str, text: str, db: str | None, principal: Identity | None) -> None:
    """Start an execution at each time of a cron expression, in UTC.

    Example: `agentloop cluster schedule report "0 9 * * 1-5" shop:agent "Write the report."`.
    """
    require_text(text, "the input")
    _with_cluster(db, lambda cluster: cluster.schedule(name, cron, agent, text, principal=principal))


@cluster.command(short_help="Remove a schedule.")
@click.argument("name")
@db_option
def unschedule(*, name: str, db: str | None) -> None:
    """Remove a schedule; executions that it has started go on.

    Example: `agentloop cluster unschedule report`.
    """
    if not _with_cluster(db, lambda cluster: cluster.unschedule(name), creates=False):
        raise InvalidUsage(f"there is no schedule {as_one_line(name)}; `agentloop cluster schedules` lists them")


@cluster.command(short_help="List schedules.")
@db_option
def schedules(*, db: str | None) -> None:
    """List the schedules: name, cron expression, agent, who asks, and text, or why one starts nothing.

    Example: `agentloop cluster schedules --db postgresql://host/agents`.
    """
    rows = [
        (item.name, item.cron, item.agent, item.principal or "-", item.problem or item.input)
        for item in _with_cluster(db, lambda cluster: cluster.schedules(), creates=False)
    ]
    _print_table(("NAME", "CRON", "AGENT", "PRINCIPAL", "TEXT"), rows, "There are no schedules.")
