"""`agentloop runs`: list recorded executions, replay, verify and export them; the group of all commands about them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import redirect_stdout

import click
from attrs import evolve
from rich.text import Text

from agentloop._event_loops import run_in_event_loop
from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.chain import JournalFinding, verify_records
from agentloop.durable.exits import secrets_of
from agentloop.durable.export import pytest_source
from agentloop.durable.journal import Journal
from agentloop.durable.record_check import check_each
from agentloop.durable.replaying.replays import Replay, ReplaySummary, replay_all
from agentloop.durable.searching import ExecutionQuery, search_executions
from agentloop.durable.sessions import session_of
from agentloop.errors import ConfigurationError
from agentloop.loop.agent_loop import AgentLoop
from agentloop.service.cli.console import Spinner, as_one_line, create_console
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors, write_new
from agentloop.service.cli.journals import (
    STATUS_STYLES,
    as_journal_errors,
    complete_execution,
    find_execution,
    head_as_json,
    is_journal_file,
    journal_option,
    journal_place,
    make_journal,
    short_ids,
    with_journal,
)
from agentloop.service.cli.runs_end import delete, purge, stop
from agentloop.service.cli.runs_resume import fork, recover, resume, send
from agentloop.service.cli.runs_show import show
from agentloop.service.cli.selection import of_session, query_options, session_option
from agentloop.service.cli.sources import load_loop
from agentloop.service.cli.tables import Cell, Column, Fit, print_table
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.reprs import format_count
from agentloop.values.serialization import to_json
from agentloop.values.visible_text import escape_invisible


@click.group()
def runs() -> None:
    """Inspect, resume, verify and delete the executions of a journal.

    Example: `agentloop runs list --journal runs.db`.

    `agentloop run --journal FILE` and `AgentLoop(journal=SqliteJournal(FILE))` record them. ID is the id of an execution, or
    an unambiguous prefix of it. MODULE:LOOP is a loop in a module, or a function that returns one; file.py:loop works too.
    """


for _command in (show, resume, fork, recover, send, stop, delete, purge):
    runs.add_command(_command)


# --- list -----------------------------------------------------------------------------------------------------------

_MAX_LIMIT = 1_000_000
"""The longest list, which is held in memory; a database could not even be asked for one of any length."""


@runs.command(name="list", short_help="List executions.")
@journal_option
@query_options
@session_option
@click.option(
    "--limit",
    type=click.IntRange(1, _MAX_LIMIT),
    metavar="N",
    default=20,
    show_default=True,
    help="The maximum number of executions.",
)
@click.option(
    "--after",
    metavar="CURSOR",
    default="",
    help="Continue behind the last execution of another list, which prints its cursor.",
)
@click.option(
    "--all",
    "includes_sub_agents",
    is_flag=True,
    help="Include sub-agents, which `runs show` shows inside their callers.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_runs(
    *,
    journal_file: str | None,
    query: ExecutionQuery,
    session: str | None,
    after: str,
    limit: int,
    includes_sub_agents: bool,
    as_json: bool,
) -> None:
    """List the executions of a journal, the newest first.

    Example: `agentloop runs list --status interrupted`.

    An execution in progress whose process has died is listed as interrupted; `agentloop runs resume` resumes it. The table
    has as much of each id as the other commands need to find the execution; --json has the whole id.
    """
    query = of_session(query, session)
    # An agent that is named may be a sub-agent.
    query = evolve(query, includes_sub_agents=includes_sub_agents or query.agent_id is not None)
    try:
        rows, has_more, names = with_journal(journal_file, lambda journal: _select(journal, query, after, limit))
    except ConfigurationError as error:
        raise InvalidUsage(f"--after: {error}") from error
    if as_json:
        click.echo(json.dumps([head_as_json(head, status) for head, status in rows], indent=2))
        return
    if rows:
        _print_heads(rows, names)
    else:
        click.echo("no matching executions" if query.is_restricted or after else "no executions", err=True)
    if has_more:
        cursor = shlex.quote(as_one_line(rows[-1][0].cursor))
        longer = f"; --limit {limit * 5} lists them" if limit * 5 <= _MAX_LIMIT else ""
        click.echo(f"There are more{longer}. The next ones: --after {cursor}", err=True)


async def _select(
    journal: CanJournal, query: ExecutionQuery, after: str, limit: int
) -> tuple[list[tuple[ExecutionHead, str]], bool, Mapping[str, str]]:
    """Return the executions with their effective status, whether there are more, and their short ids."""
    rows = list[tuple[ExecutionHead, str]]()
    async for row in search_executions(journal, query, after=after):
        if len(rows) == limit:
            return rows, True, await _short_ids(journal, rows)
        rows.append(row)
    return rows, False, await _short_ids(journal, rows)


async def _short_ids(journal: CanJournal, rows: Sequence[tuple[ExecutionHead, str]]) -> Mapping[str, str]:
    return await short_ids(journal, [head.execution_id for head, _ in rows])


def _print_heads(rows: Sequence[tuple[ExecutionHead, str]], names: Mapping[str, str]) -> None:
    has_agents = any(head.agent_name for head, _ in rows)
    has_sessions = any(session_of(head.agent_id) for head, _ in rows)
    columns = [
        Column("id"),
        *([Column("agent")] if has_agents else []),
        Column("status"),
        Column("steps", is_number=True),
        Column("updated"),
        *([Column("session")] if has_sessions else []),
        Column("input", Fit.CUT),
    ]
    cells = list[list[Cell]]()
    for head, status in rows:
        ids = [names[head.execution_id], *([head.agent_name] if has_agents else [])]
        shown = Text(status, STATUS_STYLES.get(status, ""))
        updated = head.updated_at.astimezone().strftime("%Y-%m-%d %H:%M")
        session = [session_of(head.agent_id)] if has_sessions else []
        cells.append([*ids, shown, str(head.step_count), updated, *session, head.input])
    print_table(create_console(), columns, cells)


# --- replay ---------------------------------------------------------------------------------------------------------

_REPLAY_EPILOG = """\
\b
Examples:
  agentloop runs replay execution_6f1d support:loop
  agentloop runs replay --all support:loop

\b
Exit codes:
  0  no differences
  1  an execution differs, or could not be replayed
  2  usage error
"""


@runs.command(epilog=_REPLAY_EPILOG, short_help="Compare the current code with recorded executions.")
@click.argument("executions", metavar="[ID]...", nargs=-1, shell_complete=complete_execution)
@click.argument("loop_path", metavar="MODULE:LOOP")
@journal_option
@click.option("--all", "replays_all", is_flag=True, help="Replay all executions of the journal except sub-agents.")
@click.pass_context
def replay(
    context: click.Context, *, executions: Sequence[str], loop_path: str, journal_file: str | None, replays_all: bool
) -> None:
    """Run the current code against recorded executions, and show where it first behaves differently.

    Models and tools are not called: each request and each call gets its recorded outcome. A changed prompt, rule or tool
    is thus compared with everything that has happened.
    """
    if bool(executions) == replays_all:
        raise click.UsageError("name executions, or all of them with --all")
    # Output of tools and modules must not mix with the report.
    with as_usage_errors(), as_journal_errors(), redirect_stdout(sys.stderr):
        loop = load_loop(loop_path)
        journal = _open_journal(loop, journal_file)
        summary = run_in_event_loop(_replay(journal, loop, executions))
    _print_summary(summary)
    context.exit(1 if summary.diverged or summary.not_replayed else 0)


def _open_journal(loop: AgentLoop, option: str | None) -> CanJournal:
    """Return the loop's own journal, which knows its secrets, unless the command names another one."""
    journal = loop.journal
    if journal is not None and option is None:
        return journal
    place = journal_place(option)
    if journal is not None and is_journal_file(journal, place):
        return journal
    # Data of the replay is compared with what was masked when it was recorded.
    return make_journal(place, secrets_of(loop))


async def _replay(journal: CanJournal, loop: AgentLoop, prefixes: Sequence[str]) -> ReplaySummary:
    spinner, different = Spinner(create_console(stderr=True)), 0

    def show_progress(done: int, total: int, replayed: Replay | None) -> None:
        nonlocal different
        different += replayed is not None and not replayed.is_equal
        spinner.show(f"{done:,} of {format_count(total, 'execution')}, {different:,} differ")

    try:
        ids = [(await find_execution(journal, prefix)).execution_id for prefix in prefixes]
        return await replay_all(
            journal, loop, executions=ids or await _top_level_ids(journal), on_progress=show_progress
        )
    finally:
        spinner.hide()
        await journal.aclose()


async def _top_level_ids(journal: CanJournal) -> Sequence[str]:
    """Return the ids of the executions that no other agent called, the oldest first."""
    ids = [head.execution_id for head in await journal.list() if head.parent_agent_id is None]
    if not ids:
        raise InvalidUsage("the journal has no executions")
    # The list has the newest first; a replay reads better in the order of events.
    return ids[::-1]


def _print_summary(summary: ReplaySummary) -> None:
    for result in summary.replays:
        # Of several executions, those that are equal are counted only.
        if not result.is_equal or len(summary.replays) == 1:
            click.echo(escape_invisible(result.explain()))
    for execution_id, reason in summary.not_replayed.items():
        click.echo(f"{as_one_line(execution_id)}: not replayed: {as_one_line(reason)}")
    total = len(summary.replays) + len(summary.not_replayed)
    if total > 1:
        different = f"{len(summary.diverged):,} differ"
        places = ", ".join([f"{count:,} at {place}" for place, count in summary.places.items()])
        parts = [f"{len(summary.equal):,} equal", f"{different} ({places})" if places else different]
        parts += [f"{len(summary.not_replayed):,} not replayed"] if summary.not_replayed else []
        click.echo(f"{format_count(total, 'execution')}: {', '.join(parts)}")


# --- verify ---------------------------------------------------------------------------------------------------------

_VERIFY_EPILOG = """\
\b
Exit codes:
  0  all records are intact
  1  problems were found
  2  usage error, such as an unknown journal or execution
"""


@runs.command(epilog=_VERIFY_EPILOG, short_help="Verify that records are intact.")
@click.argument("executions", metavar="[ID]...", nargs=-1, shell_complete=complete_execution)
@journal_option
@click.option(
    "--model",
    "uses_model",
    is_flag=True,
    help="Also check what the records say against a model of what they may say, such as that each decision is used once.",
)
@click.pass_context
def verify(context: click.Context, *, executions: Sequence[str], journal_file: str | None, uses_model: bool) -> None:
    """Verify that no record of an execution was changed, removed, added or moved.

    Example: `agentloop runs verify --model --journal runs.db`.

    Without an ID, verify all executions and the file itself.
    """

    def check(journal: Journal) -> Awaitable[tuple[int, int, list[JournalFinding]]]:
        return _verify(journal, executions, uses_model=uses_model)

    count, records, findings = with_journal(journal_file, check)
    for finding in findings:
        click.echo(f"{as_one_line(finding.execution_id) or 'the journal'}: {as_one_line(finding.problem)}")
    scope = f"{format_count(count, 'execution')}, {format_count(records, 'record')}"
    click.echo(f"{scope}: {format_count(len(findings), 'problem') if findings else 'all intact'}")
    context.exit(1 if findings else 0)


async def _verify(
    journal: Journal, prefixes: Sequence[str], *, uses_model: bool
) -> tuple[int, int, list[JournalFinding]]:
    """Return the number of verified executions and records, and the problems."""
    ids: list[str | None] = [(await find_execution(journal, prefix)).execution_id for prefix in prefixes] or [None]
    count, records, findings = 0, 0, list[JournalFinding]()
    spinner = Spinner(create_console(stderr=True))
    try:
        for execution_id in ids:
            async for report in journal.verify_each(execution_id):
                count += 1 if report.record_count else 0
                records += report.record_count
                # Problems of the file are reported with every execution.
                findings += [finding for finding in report.findings if finding not in findings]
                spinner.show(f"{format_count(count, 'execution')}, {format_count(len(findings), 'problem')}")
            # Damaged records say nothing that a model could judge.
            if uses_model and not findings:
                findings += [finding async for finding in check_each(journal, execution_id)]
    finally:
        spinner.hide()
    return count, records, findings


# --- export ---------------------------------------------------------------------------------------------------------

_EXPORT_EPILOG = """\
\b
Examples:
  agentloop runs export execution_6f1d > records.jsonl
  agentloop runs export execution_6f1d --pytest -o tests/test_refund.py
"""


@runs.command(epilog=_EXPORT_EPILOG, short_help="Export an execution as records or as a test.")
@click.argument("execution", metavar="ID", shell_complete=complete_execution)
@journal_option
@click.option(
    "--json", "as_json", is_flag=True, help="Export the records, one JSON document per line. This is the default."
)
@click.option(
    "--pytest",
    "as_test",
    is_flag=True,
    help="Export a test: the responses of the model as a script, stand-ins for the tools that return the recorded results, and "
    "the outcome as assertions. It needs neither the journal, nor a network, nor your code.",
)
@click.option(
    "--loop",
    "loop_path",
    metavar="MODULE:LOOP",
    help="With --pytest: use the tool definitions and the interceptors of this loop. The tools still return the recorded "
    "results.",
)
@click.option("-o", "--output", metavar="FILE", help="Write to a new file instead of stdout.")
def export(
    execution: str, *, journal_file: str | None, as_json: bool, as_test: bool, loop_path: str | None, output: str | None
) -> None:
    """Export an execution as records, or as a test that reproduces its outcome.

    A failing execution becomes a test that reproduces the failure. Masked secrets stay masked.
    """
    if as_json and as_test:
        raise InvalidUsage("--json and --pytest contradict each other; omit one of them")
    if loop_path is not None and not as_test:
        raise InvalidUsage("--loop requires --pytest")
    if loop_path is not None:
        _check_loop(loop_path)
    records = with_journal(journal_file, lambda journal: _read_verified(journal, execution))
    if as_test:
        text = pytest_source(records, records[0].execution_id, loop=loop_path or "")
    else:
        text = "".join([f"{to_json(record).decode()}\n" for record in records])
    write_new(text, output)


def _check_loop(path: str) -> None:
    # An exported test runs elsewhere, where only modules can be imported.
    if ".py:" in path:
        raise InvalidUsage(f"the test imports the loop, so --loop takes module:loop, not the file in {path!r}")
    with as_usage_errors():
        load_loop(path)


async def _read_verified(journal: CanJournal, prefix: str) -> Sequence[JournalRecord]:
    head = await find_execution(journal, prefix)
    return verify_records(await journal.read(head.execution_id), head.execution_id)
