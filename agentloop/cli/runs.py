"""`agentloop runs`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import click
from attrs import frozen
from rich.table import Table
from rich.text import Text

from agentloop.cli.console import Waiting, console, counted, one_line, printable
from agentloop.cli.errors import BadUsage, told_as_bad_usage
from agentloop.cli.journals import (
    INTERRUPTED,
    STYLES,
    as_data,
    found,
    journal_option,
    journal_path,
    standing,
    told_of_journals,
    with_journal,
)
from agentloop.cli.runs_resume import fork, resume
from agentloop.cli.runs_show import show
from agentloop.cli.sources import loop_of
from agentloop.contracts.can_journal import CanJournal
from agentloop.journal.chain import JournalFinding, verify_records
from agentloop.journal.export import pytest_source
from agentloop.journal.journal import Journal
from agentloop.journal.sqlite.sqlite_journal import SqliteJournal
from agentloop.loop.agent_loop import AgentLoop
from agentloop.replay.replays import Replay, ReplaySummary, replay_all
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.serialization import to_json
from agentloop.values.steps import ExecutionStatus

_EPILOG = """\
\b
Examples:
  agentloop runs export execution_6f1d > records.jsonl
  agentloop runs export execution_6f1d --pytest -o tests/test_refund.py
"""


@click.command(epilog=_EPILOG)
@click.argument("execution", metavar="ID")
@journal_option
@click.option(
    "--json", "as_json", is_flag=True, help="Write the records, one JSON document a line; so it is without options."
)
@click.option(
    "--pytest",
    "as_test",
    is_flag=True,
    help="Write a test: the answers of the model as a script, the tools as stand-ins that return what was recorded, and what "
    "came of it as expectations. It needs neither the journal, nor the network, nor your code.",
)
@click.option(
    "--loop",
    "loop_path",
    metavar="MODULE:LOOP",
    help="With --pytest: use the tools of this loop, as the model sees them, and its interceptors. What the tools return stays "
    "as it was recorded.",
)
@click.option(
    "-o", "--output", metavar="FILE", help="Write to this file, which must not be there yet, instead of stdout."
)
def export(
    execution: str, *, journal_file: str | None, as_json: bool, as_test: bool, loop_path: str | None, output: str | None
) -> None:
    """Write an execution down for others: as its records, or as a test that comes to what it came to.

    A failing execution becomes a test that reproduces the failure. What was kept out of the journal is not in it either.
    """
    if as_json and as_test:
        raise BadUsage("--json and --pytest are two forms; leave one of them out")
    if loop_path is not None and not as_test:
        raise BadUsage("--loop belongs to --pytest")
    if loop_path is not None:
        _check_loop(loop_path)
    records = with_journal(journal_file, lambda journal: _read(journal, execution))
    if as_test:
        text = pytest_source(records, records[0].execution_id, loop=loop_path or "")
    else:
        text = "".join([f"{to_json(record).decode()}\n" for record in records])
    _write(text, output)


def _check_loop(path: str) -> None:
    if ".py:" in path:
        raise BadUsage(f"the test imports the loop, so --loop takes module:loop, not the file in {path!r}")
    with told_as_bad_usage():
        loop_of(path)


async def _read(journal: CanJournal, beginning: str) -> Sequence[JournalRecord]:
    head = await found(journal, beginning)
    return verify_records(await journal.read(head.execution_id), head.execution_id)


def _write(text: str, output: str | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    try:
        with Path(output).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise BadUsage(f"there is a file {output} already; name another one with -o") from error
    except OSError as error:
        raise BadUsage(f"{output} cannot be written: {error.strerror or error}") from error


_STATUSES = [*[status.value for status in ExecutionStatus if status is not ExecutionStatus.PENDING], INTERRUPTED]
_SHOWN_INPUT = 60
_SHOWN_ID = 44


@frozen(kw_only=True)
class Wanted:
    """Which executions are listed.

    Attributes:
        agent_id: those of this agent; None for all.
        status: those that stand like this; None for all.
        limit: no more than so many.
        inner: whether those of sub-agents are listed too.
    """

    agent_id: str | None
    status: str | None
    limit: int
    inner: bool


@click.command(name="list")
@journal_option
@click.option("--agent", "agent_id", metavar="ID", help="Only the executions of this agent.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only those that stand like this.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="No more than so many.")
@click.option(
    "--all", "inner", is_flag=True, help="Those of sub-agents too, which `runs show` shows within their callers."
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON instead of a table.")
def list_runs(
    *, journal_file: str | None, agent_id: str | None, status: str | None, limit: int, inner: bool, as_json: bool
) -> None:
    """List the executions of a journal, the newest first.

    One in progress whose process has died is shown as interrupted; `agentloop runs resume` goes on with it.
    """
    wanted = Wanted(agent_id=agent_id, status=status, limit=limit, inner=inner or agent_id is not None)
    rows, more = with_journal(journal_file, lambda journal: _chosen(journal, wanted))
    if as_json:
        click.echo(json.dumps([as_data(head, told) for head, told in rows], indent=2))
        return
    if rows:
        console().print(_table(rows))
    else:
        click.echo("no such executions" if status or agent_id else "no executions", err=True)
    if more:
        click.echo(f"There are more; --limit {limit * 5} shows them.", err=True)


async def _chosen(journal: CanJournal, wanted: Wanted) -> tuple[list[tuple[ExecutionHead, str]], bool]:
    """Return the executions with how they stand, and whether there are more."""
    kept = None if wanted.status is None else _kept_status(wanted.status)
    most, rows = wanted.limit + 1, list[tuple[ExecutionHead, str]]()
    while True:
        heads = await journal.list(agent_id=wanted.agent_id, status=kept, limit=most)
        rows = []
        for head in heads:
            if head.parent_agent_id is not None and not wanted.inner:
                continue
            told = await standing(journal, head)
            if wanted.status in {None, told}:
                rows.append((head, told))
            if len(rows) > wanted.limit:
                return rows[: wanted.limit], True
        if len(heads) < most:
            return rows, False
        most *= 4


def _kept_status(status: str) -> ExecutionStatus:
    return ExecutionStatus.IN_PROGRESS if status == INTERRUPTED else ExecutionStatus(status)


def _table(rows: Sequence[tuple[ExecutionHead, str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    longest = max([len(head.execution_id) for head, _ in rows])
    table.add_column("id", overflow="fold", min_width=min(longest, _SHOWN_ID))
    for column in ("status", "steps", "last change"):
        table.add_column(column, no_wrap=True, justify="right" if column == "steps" else "left")
    table.add_column("input", overflow="ellipsis", no_wrap=True)
    for head, told in rows:
        status = Text(told, STYLES.get(told, ""))
        when = head.updated_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(
            one_line(head.execution_id), status, str(head.step_count), when, one_line(head.input)[:_SHOWN_INPUT]
        )
    return table


_REPLAY_EPILOG = """\
\b
Examples:
  agentloop runs replay execution_6f1d support:loop
  agentloop runs replay --all support:loop

\b
Exit codes:
  0  nothing differs
  1  something differs, or could not be replayed
  2  asked for in a wrong way
"""


@click.command(epilog=_REPLAY_EPILOG)
@click.argument("executions", metavar="[ID]...", nargs=-1)
@click.argument("loop_path", metavar="MODULE:LOOP")
@journal_option
@click.option("--all", "every", is_flag=True, help="All executions of the journal but those of sub-agents.")
@click.pass_context
def replay(
    context: click.Context, *, executions: Sequence[str], loop_path: str, journal_file: str | None, every: bool
) -> None:
    """Run today's code against recorded executions, and tell the first place where it does something else.

    Nothing is touched: models and tools are not used, each inference and each call gets what came of the recorded one. So a
    change of a prompt, a rule or a tool is held against everything that has happened.
    """
    if bool(executions) == every:
        raise click.UsageError("name executions, or all of them with --all")
    with told_as_bad_usage(), told_of_journals(), redirect_stdout(sys.stderr):
        loop = loop_of(loop_path)
        journal = _journal(loop, journal_file)
        summary = asyncio.run(_replayed(journal, loop, executions))
    _tell(summary)
    context.exit(1 if summary.diverged or summary.not_replayed else 0)


def _journal(loop: AgentLoop, given: str | None) -> CanJournal:
    """Return the journal that is named; the loop's own, which knows what it masks, when it is the same or none is named."""
    own = loop.journal
    if own is not None and given is None:
        return own
    path = journal_path(given)
    if isinstance(own, SqliteJournal) and own.path.resolve() == Path(path).resolve():
        return own
    return SqliteJournal(path)


async def _replayed(journal: CanJournal, loop: AgentLoop, beginnings: Sequence[str]) -> ReplaySummary:
    waiting, differing = Waiting(console(stderr=True)), 0

    def show(done: int, total: int, made: Replay | None) -> None:
        nonlocal differing
        differing += made is not None and not made.is_equal
        waiting.show(f"{done:,} of {counted(total, 'execution')}, {differing:,} differ")

    try:
        chosen = [(await found(journal, one)).execution_id for one in beginnings] or await _own(journal)
        return await replay_all(journal, loop, executions=chosen, on_progress=show)
    finally:
        waiting.hide()
        await journal.aclose()


async def _own(journal: CanJournal) -> Sequence[str]:
    """Return the executions that are nobody's sub-agent, the oldest first."""
    ids = [head.execution_id for head in await journal.list() if head.parent_agent_id is None]
    if not ids:
        raise BadUsage("the journal holds no executions")
    return ids[::-1]


def _tell(summary: ReplaySummary) -> None:
    for one in summary.replays:
        if not one.is_equal or len(summary.replays) == 1:
            click.echo(printable(one.explain()))
    for execution_id, why in summary.not_replayed.items():
        click.echo(f"{one_line(execution_id)}: not replayed: {one_line(why)}")
    total = len(summary.replays) + len(summary.not_replayed)
    if total > 1:
        differing = f"{len(summary.diverged):,} differ"
        places = ", ".join([f"{count:,} at {place}" for place, count in summary.places.items()])
        parts = [f"{len(summary.equal):,} equal", f"{differing} ({places})" if places else differing]
        parts += [f"{len(summary.not_replayed):,} not replayed"] if summary.not_replayed else []
        click.echo(f"{counted(total, 'execution')}: {', '.join(parts)}")


_VERIFY_EPILOG = """\
\b
Exit codes:
  0  every record is as it was written
  1  something was found
  2  asked for in a wrong way: no such journal or execution
"""


@click.command(epilog=_VERIFY_EPILOG)
@click.argument("executions", metavar="[ID]...", nargs=-1)
@journal_option
@click.pass_context
def verify(context: click.Context, *, executions: Sequence[str], journal_file: str | None) -> None:
    """Check that the records of executions are as they were written: none changed, dropped, added or put elsewhere.

    Without an ID, all executions and the file itself are looked at.
    """
    count, records, findings = with_journal(journal_file, lambda journal: _verified(journal, executions))
    for one in findings:
        click.echo(f"{one_line(one.execution_id) or 'the journal'}: {one_line(one.problem)}")
    looked_at = f"{counted(count, 'execution')}, {counted(records, 'record')}"
    said = counted(len(findings), "finding") if findings else "all as they were written"
    click.echo(f"{looked_at}: {said}")
    context.exit(1 if findings else 0)


async def _verified(journal: Journal, beginnings: Sequence[str]) -> tuple[int, int, list[JournalFinding]]:
    """Return how many executions and records were looked at, and what is wrong."""
    chosen: list[str | None] = [(await found(journal, one)).execution_id for one in beginnings] or [None]
    count, records, findings = 0, 0, list[JournalFinding]()
    waiting = Waiting(console(stderr=True))
    try:
        for execution_id in chosen:
            async for one in journal.verify_each(execution_id):
                count += 1 if one.record_count else 0
                records += one.record_count
                findings += [finding for finding in one.findings if finding not in findings]
                waiting.show(f"{counted(count, 'execution')}, {counted(len(findings), 'finding')}")
    finally:
        waiting.hide()
    return count, records, findings


@click.group()
def runs() -> None:
    """Look at the executions of a journal, go on with them, and check them.

    `agentloop run --journal FILE` and `AgentLoop(journal=SqliteJournal(FILE))` write them down. An ID is the id of an
    execution, or its beginning; MODULE:LOOP is a loop in a module, or a function that makes one.
    """


for _command in (list_runs, show, resume, replay, fork, verify, export):
    runs.add_command(_command)
