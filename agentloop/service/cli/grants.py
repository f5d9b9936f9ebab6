"""`agentloop grants`: what people have allowed for later calls, what calls have used of it, and how to end it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from agentloop.contracts.can_keep_grants import CanKeepGrants, GrantChange
from agentloop.durable.journal import Journal
from agentloop.errors import InvalidParameter
from agentloop.service.cli.console import as_one_line, create_console
from agentloop.service.cli.errors import InvalidUsage
from agentloop.service.cli.journals import journal_option, with_journal
from agentloop.service.cli.tables import Cell, Column, print_table
from agentloop.values.grants import Grant, GrantState, describe_grant
from agentloop.values.time_and_ids import SystemClock


@click.command()
@journal_option
@click.option("--owner", default=None, help="Only grants of this owner.")
@click.option("--tool", "tool_name", default=None, help="Only grants for the tool of this name.")
@click.option("--all", "has_all", is_flag=True, help="Also grants that no call can use any more.")
@click.option("--revoke", "revoked", multiple=True, metavar="ID", help="End a grant. May be repeated.")
@click.option("--as", "principal", metavar="NAME", default="", help="Who revokes, for the record.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def grants(
    *,
    journal_file: str | None,
    owner: str | None,
    tool_name: str | None,
    has_all: bool,
    revoked: Sequence[str],
    principal: str,
    as_json: bool,
) -> None:
    """List the grants of a journal: what people have allowed for later calls of tools, and what calls have used.

    Examples: `agentloop grants --journal runs.db`, `agentloop grants --revoke grant_5f0e3a91c2d47b68 --as ada`.

    A person gives a grant with the approval of a call that an `AskUnlessGranted` has asked about. A revoked grant lets no further call
    through.
    """
    now = SystemClock().now()

    async def change_and_read(journal: Journal) -> Sequence[GrantState]:
        if not isinstance(journal, CanKeepGrants):
            raise InvalidUsage(f"{journal!r} keeps no grants")
        await _change(journal, revoked, lambda state: state.revoke(now, principal))
        return await journal.grants(owner=owner, tool=tool_name)

    states = with_journal(journal_file, change_and_read)
    shown = [state for state in states if has_all or state.id in revoked or state.status(now) == "active"]
    if as_json:
        click.echo(json.dumps([describe_grant(state, now) for state in shown], indent=2))
    elif shown:
        _print(shown, now)
    else:
        click.echo("no grants that a call can use" if states else "no grants", err=True)


async def _change(journal: CanKeepGrants, ids: Sequence[str], change: GrantChange) -> None:
    """Change grants, or none of them if one does not exist."""
    known = {state.id for state in await journal.grants()} if ids else set()
    for unknown in [grant_id for grant_id in ids if grant_id not in known]:
        raise InvalidUsage(f"there is no grant {as_one_line(unknown)}; `agentloop grants --all` lists all of them")
    for grant_id in ids:
        await journal.update_grant(grant_id, change)


def read_grant(text: str) -> Grant:
    """Return a grant as a person writes it: limits on arguments, `10 uses`, `total amount <= 300`, `until 2026-12-24`, with semicolons between them.

    Raises:
        InvalidParameter: a part cannot be read.
    """
    arguments, terms = list[str](), dict[str, Any]()
    for part in filter(None, map(str.strip, text.split(";"))):
        first, _, rest = part.partition(" ")
        if first.isdecimal() and rest.strip() in {"use", "uses"}:
            terms["uses"] = int(first)
        elif first == "total":
            terms["total"] = rest
        elif first == "until":
            terms["until"] = _read_time(rest.strip())
        else:
            arguments.append(part)
    return Grant(arguments=arguments, **terms)


def _read_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError as error:
        raise InvalidParameter(
            f"{text!r:.100} is not a time; write it as in until 2026-12-24 or until 2026-12-24T18:00"
        ) from error


def _print(states: Sequence[GrantState], now: datetime) -> None:
    columns = [Column(name) for name in ("grant", "tool", "limits", "owner", "given by")]
    columns += [Column("used", is_number=True), Column("spent", is_number=True), Column("status")]
    rows = list[list[Cell]]()
    for state in states:
        texts = [as_one_line(text) for text in (state.id, state.tool, str(state.grant), state.owner, state.by)]
        held = f" + {len(state.holds)}" if state.holds else ""
        spent = state.spent if state.grant.total else ""
        rows.append([*texts, f"{state.used:,}{held}", spent, state.status(now)])
    print_table(create_console(), columns, rows)
