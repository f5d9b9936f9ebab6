"""`agentloop runs list`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

import click
from attrs import asdict, frozen
from rich.table import Table
from rich.text import Text

from agentloop.cli.runs_journal import INTERRUPTED, journal_option, standing, with_journal
from agentloop.cli.terminal import console
from agentloop.cli.terminal_text import one_line
from agentloop.contracts.can_journal import CanJournal
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.journal_record import ExecutionHead

_STATUSES = [*[status.value for status in ExecutionStatus if status is not ExecutionStatus.PENDING], INTERRUPTED]
STYLES = {"completed": "green", "failed": "red", INTERRUPTED: "yellow", "suspended": "yellow", "in_progress": "cyan"}
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


def as_data(head: ExecutionHead, status: str) -> dict[str, object]:
    """Return what is known of an execution as JSON data."""
    told = asdict(
        head, value_serializer=lambda _, __, value: value.isoformat() if isinstance(value, datetime) else value
    )
    return {**told, "status": status}


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
