"""`agentloop evals upgrade`: what becomes of unfinished executions with new code, before it is deployed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import click

from agentloop._event_loops import run_in_event_loop
from agentloop.durable.exits import secrets_of
from agentloop.loop.agent_loop import AgentLoop
from agentloop.service.cli.console import create_console
from agentloop.service.cli.errors import as_usage_errors
from agentloop.service.cli.journals import (
    as_journal_errors,
    closed_at_end,
    journal_option,
    journal_place,
    make_journal,
)
from agentloop.service.cli.sources import dependencies_option, load_dependencies, load_loop
from agentloop.service.cli.tables import Column, Fit, print_table
from agentloop.values.reprs import format_count

if TYPE_CHECKING:
    from agentloop.evals.upgrade import UpgradeCheck
    from agentloop.values.records import ExecutionHead

_EPILOG = """\
\b
Examples:
  agentloop evals upgrade support:loop --journal runs.db
  agentloop evals upgrade support.py:loop --agent support --json

\b
Exit codes:
  0  every unfinished execution goes on as recorded
  1  one differs, or cannot go on
  2  usage error
"""


@click.command(epilog=_EPILOG, short_help="Check unfinished executions against new code.")
@click.argument("loop_path", metavar="MODULE:LOOP")
@journal_option
@click.option(
    "--agent", "agents", metavar="NAME", multiple=True, help="Check the executions of this agent only; repeatable."
)
@dependencies_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def upgrade(
    context: click.Context,
    *,
    loop_path: str,
    journal_file: str | None,
    agents: Sequence[str],
    dependencies: str | None,
    as_json: bool,
) -> None:
    """Replay each execution that waits or runs against the code of MODULE:LOOP, without side effects, before a deploy.

    Each one continues equal, diverges at a step, or cannot continue, such as one that waits with a call of a tool that is gone.
    """
    from agentloop.evals.upgrade import Outlook, check_upgrade

    def concerns(head: ExecutionHead) -> bool:
        return not agents or head.agent_name in agents

    # Output of tools and modules must not mix with the report.
    with as_usage_errors(), as_journal_errors(), redirect_stdout(sys.stderr):
        loop: AgentLoop = load_loop(loop_path)
        given = load_dependencies(dependencies)
        journal = closed_at_end(make_journal(journal_place(journal_file), secrets_of(loop)))
        report = run_in_event_loop(check_upgrade(loop, journal, where=concerns, dependencies=given))
    if as_json:
        click.echo(json.dumps([_plain(check) for check in report.checks], indent=2))
    else:
        _print(report.checks)
        counts = ", ".join([f"{len(report.of(outlook)):,} {outlook.value}" for outlook in Outlook])
        click.echo(f"{format_count(len(report.checks), 'unfinished execution')}: {counts}")
    context.exit(0 if report.is_safe else 1)


def _plain(check: UpgradeCheck) -> dict[str, object]:
    return {
        "execution": check.execution_id,
        "status": check.status.value,
        "outlook": check.outlook.value,
        "step": check.step,
        "place": check.place,
        "why": check.why,
    }


def _print(checks: Sequence[UpgradeCheck]) -> None:
    rows = [
        [check.execution_id, check.status.value, check.outlook.value, str(check.step or ""), check.why]
        for check in checks
        if check.outlook.value != "continues equal"
    ]
    if rows:
        columns = [Column("id"), Column("status"), Column("outlook"), Column("step", is_number=True)]
        print_table(create_console(), [*columns, Column("why", Fit.WRAPPED)], rows)
