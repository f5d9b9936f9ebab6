"""`agentloop grants`: what people have allowed for later calls, what calls have used of it, how to give one, and how to end it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from agentloop._event_loops import run_in_event_loop
from agentloop.contracts.can_keep_grants import CanKeepGrants, GrantChange
from agentloop.contracts.tool import Tool
from agentloop.durable.journal import Journal
from agentloop.errors import InvalidParameter
from agentloop.errors.hints import suggest
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.unasked import reached_tools
from agentloop.policies.grants import AskUnlessGranted, give_grant
from agentloop.service.cli.configuration import is_given
from agentloop.service.cli.console import as_one_line, create_console
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors
from agentloop.service.cli.journals import as_journal_errors, attach_journal, journal_option, with_journal
from agentloop.service.cli.sources import load_loop
from agentloop.service.cli.tables import Cell, Column, print_table
from agentloop.values.grants import Grant, GrantState, describe_grant
from agentloop.values.time_and_ids import SystemClock


@click.group(invoke_without_command=True, subcommand_metavar="[add ARGUMENTS]")
@journal_option
@click.option("--owner", default=None, help="Only grants of this owner.")
@click.option("--tool", "tool_name", default=None, help="Only grants for the tool of this name.")
@click.option("--all", "has_all", is_flag=True, help="Also grants that no call can use any more.")
@click.option("--revoke", "revoked", multiple=True, metavar="ID", help="End a grant. May be repeated.")
@click.option("--as", "principal", metavar="NAME", default="", help="Who revokes, for the record.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def grants(  # one parameter for each option
    context: click.Context,
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

    A person gives a grant with the approval of a call that an `AskUnlessGranted` has asked about, or beforehand by `agentloop grants
    add`. A revoked grant lets no further call through.
    """
    if context.invoked_subcommand is not None:
        _check_alone(context)
        return
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


def _check_alone(context: click.Context) -> None:
    """Refuse options of the list before a subcommand, which would not have them."""
    written = [name for name in context.params if is_given(context, name)]
    if written:
        raise InvalidUsage(f"write the options of `grants {context.invoked_subcommand}` after it")


_ADD_EPILOG = """\
\b
Examples:
  agentloop grants add support:loop pay "amount <= 50; 10 uses" --owner acme/ada --as boss
  agentloop grants add support.py:loop pay "total amount <= 300; until 2026-12-24" --journal runs.db
"""


@grants.command(epilog=_ADD_EPILOG)
@click.argument("loop_path", metavar="MODULE:LOOP")
@click.argument("tool_name", metavar="TOOL")
@click.argument("limits", default="")
@journal_option
@click.option(
    "--owner",
    default="",
    help="Whose calls may use it: acme/ada for ada of the tenant acme, /ada without a tenant, acme/ where the agent shares grants in a "
    "tenant. By default, executions for which nobody is known to have asked.",
)
@click.option("--as", "principal", metavar="NAME", default="", help="Who gives it, for the record.")
@click.option("--json", "as_json", is_flag=True, help="Print the grant as JSON instead of its id.")
def add(
    *, loop_path: str, tool_name: str, limits: str, journal_file: str | None, owner: str, principal: str, as_json: bool
) -> None:
    """Give a grant for calls of a tool before any of them waits, and print its id.

    MODULE:LOOP is the agent, or a function that returns it; file.py:loop works too. The grant holds for the definition that TOOL has
    now. LIMITS are separated by semicolons, and each is optional: limits on arguments, such as amount <= 50 or to in ["ada", "ben"]; a
    number of uses, such as 10 uses; the sum of an argument over all uses, such as total amount <= 300; and the end, such as until
    2026-12-24. Without limits, it covers every call.
    """
    with as_usage_errors(), as_journal_errors():
        grant = read_grant(limits)
        loop = load_loop(loop_path)
        tool, ensemble = _find_asked(loop, loop_path, tool_name)
        loop = attach_journal(loop, journal_file)
        work = give_grant(loop.journal, tool, grant, ensemble=ensemble, owner=owner, by=principal)
        state = run_in_event_loop(work)
    if as_json:
        click.echo(json.dumps(describe_grant(state, state.given_at), indent=2))
        return
    click.echo(state.id)
    click.echo(as_one_line(f"calls of {tool.name} run without a question: {grant}"), err=True)


def _find_asked(loop: AgentLoop, path: str, name: str) -> tuple[Tool, str]:
    """Return a tool about whose calls an agent asks unless they are granted, and the name of its group."""
    reached = {each.name: each for each in reached_tools(loop) if each.tool is not None}
    found = reached.get(name)
    if found is None or found.tool is None:
        raise InvalidUsage(f"the agent {path} has no tool {as_one_line(name)!r:.100}{suggest(name, reached)}")
    layers = [layer for layer in found.layers if isinstance(layer, AskUnlessGranted)]
    if all(layer.asks_about(found.tool.spec, found.ensemble) is False for layer in layers):
        raise InvalidUsage(
            f"no grant is used for calls of {name}: the agent {path} has no AskUnlessGranted that asks about them"
        )
    return found.tool, found.ensemble


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
