"""The options by which commands select recorded executions, and the list of those that they select."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

import click
from attrs import evolve

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.searching import ExecutionQuery, search_executions
from agentloop.durable.sessions import agent_of_session
from agentloop.durable.trees import INTERRUPTED
from agentloop.service.cli.console import Spinner, as_one_line, create_console
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors
from agentloop.values.records import ExecutionHead
from agentloop.values.reprs import format_count
from agentloop.values.steps import ExecutionStatus

STATUSES = [*[status.value for status in ExecutionStatus if status is not ExecutionStatus.PENDING], INTERRUPTED]
_DURATION = re.compile(r"(\d+)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_duration(_context: click.Context, _parameter: click.Parameter, value: str) -> timedelta:
    """Read a duration such as `30d`.

    Raises:
        click.BadParameter: it is none.
    """
    match = _DURATION.fullmatch(value)
    with suppress(OverflowError):  # reported below, as any other value that is no duration
        if match is not None:
            return timedelta(**{_UNITS[match[2]]: int(match[1])})
    raise click.BadParameter(f"{value!r} is not a duration such as 90s, 45m, 12h, 30d or 8w")


def _parse_time(context: click.Context, parameter: click.Parameter, value: str | None) -> datetime | None:
    """Read a duration before now, or a date with or without a time."""
    if value is None:
        return None
    with suppress(ValueError):
        return datetime.fromisoformat(value).astimezone()
    with suppress(click.BadParameter, OverflowError):
        return datetime.now(UTC) - parse_duration(context, parameter, value)
    raise click.BadParameter(f"{value!r} is neither a duration such as 45m, 12h or 30d, nor a date such as 2026-05-31")


def _parse_tags(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> list[tuple[str, str]]:
    tags = [(name, value) for name, _, value in (text.partition("=") for text in values)]
    if any(not name for name, _ in tags):
        raise click.BadParameter("a tag is NAME or NAME=VALUE")
    return tags


_OPTIONS = (
    click.option("--agent", "agent_id", metavar="ID", help="Only the executions of this agent."),
    click.option("--agent-name", metavar="NAME", default="", help="Only those of agents with this name."),
    click.option(
        "--status",
        "statuses",
        type=click.Choice(STATUSES),
        multiple=True,
        help="Only those with this status; repeatable.",
    ),
    click.option("--unclaimed", "is_unclaimed", is_flag=True, help="Only those that no live process has claimed."),
    click.option(
        "--since", metavar="TIME", callback=_parse_time, help="Only those updated since: 45m, 12h, 30d, or a date."
    ),
    click.option(
        "--older-than",
        "before",
        metavar="TIME",
        callback=_parse_time,
        help="Only those last updated before: 30d, or a date.",
    ),
    click.option(
        "--text", metavar="TEXT", default="", help="Only those in which this text occurs: asked, answered or called."
    ),
    click.option("--asked-by", "asker", metavar="NAME", default="", help="Only those that this person asked for."),
    click.option("--tenant", metavar="NAME", default="", help="Only those that this tenant asked for."),
    click.option(
        "--tag",
        "tags",
        metavar="NAME[=VALUE]",
        multiple=True,
        callback=_parse_tags,
        help="Only those with this in their metadata; repeatable.",
    ),
    click.option("--doubts", "has_doubts", is_flag=True, help="Only those with a call in doubt."),
)


session_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--session", metavar="ID", help="Only the turns of this session."
)


def query_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select executions, and pass them as `query`."""

    @wraps(command)
    def with_query(**options: Any) -> Any:
        values = {name: options.pop(name) for name in _NAMES}
        tags, asker = tuple(values.pop("tags")), values.pop("asker")
        return command(query=ExecutionQuery(**values, tags=tags, principal=asker), **options)

    for option in reversed(_OPTIONS):
        with_query = option(with_query)
    return with_query


_NAMES = (
    "agent_id",
    "agent_name",
    "statuses",
    "is_unclaimed",
    "since",
    "before",
    "text",
    "asker",
    "tenant",
    "tags",
    "has_doubts",
)


def of_session(query: ExecutionQuery, session: str | None) -> ExecutionQuery:
    """Return a query for the turns of a session; the same one for None.

    Raises:
        InvalidUsage: the id is that of no session, or an agent is named, too.
    """
    if session is None:
        return query
    if query.agent_id is not None:
        raise InvalidUsage("--agent and --session contradict each other; omit one of them")
    with as_usage_errors():
        return evolve(query, agent_id=agent_of_session(session))


async def find_all(journal: CanJournal, query: ExecutionQuery) -> list[tuple[ExecutionHead, str]]:
    """Return all executions that a query is for, the newest first, each with its effective status."""
    spinner, found = Spinner(create_console(stderr=True)), list[tuple[ExecutionHead, str]]()
    try:
        async for each in search_executions(journal, query):
            found.append(each)
            spinner.show(f"{format_count(len(found), 'execution')} found")
    finally:
        spinner.hide()
    return found


def print_found(found: Sequence[tuple[ExecutionHead, str]]) -> None:
    """Print a line for each execution."""
    for head, status in found:
        updated = head.updated_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        click.echo(f"{as_one_line(head.execution_id)}  {status}  {updated}  {as_one_line(head.input)}")


def print_total(found: Sequence[object], verb: str) -> None:
    """Print how many executions were listed, and what `--yes` does to them."""
    click.echo(
        f"{format_count(len(found), 'execution')}; --yes {verb} them" if found else f"no execution that it {verb}"
    )
