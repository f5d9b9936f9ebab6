"""`agentloop runs verify`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from agentloop.cli.figures import counted
from agentloop.cli.runs_journal import found, journal_option, with_journal
from agentloop.cli.terminal import console
from agentloop.cli.terminal_text import one_line
from agentloop.cli.waiting import Waiting
from agentloop.journal.journal import Journal
from agentloop.journal.verification import JournalFinding

_EPILOG = """\
\b
Exit codes:
  0  every record is as it was written
  1  something was found
  2  asked for in a wrong way: no such journal or execution
"""


@click.command(epilog=_EPILOG)
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
            async for one in journal.verifying(execution_id):
                count += 1 if one.record_count else 0
                records += one.record_count
                findings += [finding for finding in one.findings if finding not in findings]
                waiting.show(f"{counted(count, 'execution')}, {counted(len(findings), 'finding')}")
    finally:
        waiting.hide()
    return count, records, findings
