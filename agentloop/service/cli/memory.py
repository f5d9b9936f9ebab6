"""`agentloop memory`: list, export and forget what agents remember."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from agentloop.errors import ToolFailed
from agentloop.service.cli.console import as_one_line
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors
from agentloop.toolkits.memory import Memory, MemoryFile, MemoryScope

F = TypeVar("F", bound=Callable[..., object])

_EPILOG = """\
\b
Exit codes:
  0  done
  2  usage error, such as a file of something else, or an unknown id
"""


@click.group()
def memory() -> None:
    """List, export or forget what agents remember.

    Example: `agentloop memory list memory.db --user ada`.

    FILE is the file of the ensemble `memory`. The scope names whose memories are meant, in the same way as the program does: a part
    that it leaves out is left out here, too.
    """


def _scope_options(command: F) -> F:
    """Add the file and the parts of a scope."""
    for name in ("tenant", "session", "agent", "user"):
        command = click.option(f"--{name}", default="", metavar="ID", help=f"The {name} whose memories are meant.")(
            command
        )
    return click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))(command)


@memory.command(name="list", epilog=_EPILOG, short_help="List memories, the newest first.")
@_scope_options
@click.option("--query", default="", metavar="WORDS", help="Only memories with these words, the best match first.")
def list_memories(*, file: Path, user: str, agent: str, session: str, tenant: str, query: str) -> None:
    """List the memories of a scope: id, time and text.

    Example: `agentloop memory list memory.db --user ada`.
    """
    for entry in _find(file, (user, agent, session, tenant), query):
        click.echo(f"{entry.id}  {entry.written_at.isoformat(timespec='seconds')}  {as_one_line(entry.text)}")


@memory.command(epilog=_EPILOG, short_help="Write memories as JSON, one per line.")
@_scope_options
def export(*, file: Path, user: str, agent: str, session: str, tenant: str) -> None:
    """Write the memories of a scope as lines of JSON, each with the execution and the call that wrote it.

    Example: `agentloop memory export memory.db --user ada`.
    """
    for entry in _find(file, (user, agent, session, tenant), ""):
        click.echo(
            json.dumps(
                {
                    "id": entry.id,
                    "text": entry.text,
                    "written_at": entry.written_at.isoformat(),
                    "execution_id": entry.execution_id,
                    "call_key": entry.call_key,
                }
            )
        )


@memory.command(epilog=_EPILOG, short_help="Delete memories for good.")
@_scope_options
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "all_of_scope", is_flag=True, help="Delete all memories of the scope.")
def forget(
    *, file: Path, user: str, agent: str, session: str, tenant: str, ids: Sequence[str], all_of_scope: bool
) -> None:
    """Delete memories of a scope, by their ids or all of them; nothing of their text is left in the file.

    Example: `agentloop memory forget memory.db --user ada --all`.
    """
    if bool(ids) is all_of_scope:
        raise click.UsageError("name the ids of the memories to delete, or --all")
    scope = _scope((user, agent, session, tenant))
    try:
        count = MemoryFile(file).forget(scope, None if all_of_scope else list(dict.fromkeys(ids)))
    except ToolFailed as error:
        raise InvalidUsage(str(error)) from error
    click.echo(f"forgotten: {count}")


def _find(file: Path, parts: tuple[str, str, str, str], query: str) -> list[Memory]:
    scope = _scope(parts)
    try:
        return MemoryFile(file).recall(scope, query, -1)
    except ToolFailed as error:
        raise InvalidUsage(str(error)) from error


def _scope(parts: tuple[str, str, str, str]) -> MemoryScope:
    if not any(parts):
        raise click.UsageError(
            "Missing option '--user', '--agent', '--session' or '--tenant': whose memories are meant"
        )
    user, agent, session, tenant = parts
    with as_usage_errors():
        return MemoryScope(user=user, agent=agent, session=session, tenant=tenant)
