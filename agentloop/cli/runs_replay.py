"""`agentloop runs replay`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import click

from agentloop.cli.bad_usage import BadUsage, told_as_bad_usage
from agentloop.cli.figures import counted
from agentloop.cli.named_loop import loop_of
from agentloop.cli.runs_journal import found, journal_option, journal_path, told_of_journals
from agentloop.cli.terminal import console
from agentloop.cli.terminal_text import one_line, printable
from agentloop.cli.waiting import Waiting
from agentloop.contracts.can_journal import CanJournal
from agentloop.journal.sqlite.sqlite_journal import SqliteJournal
from agentloop.loop.agent_loop import AgentLoop
from agentloop.replay.result import Replay
from agentloop.replay.summary import ReplaySummary, replay_all

_EPILOG = """\
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


@click.command(epilog=_EPILOG)
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
