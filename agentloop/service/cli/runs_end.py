"""`agentloop runs stop`, `delete` and `purge`: end and delete recorded executions, one or all that a search finds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

import click
from attrs import evolve

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.commands import request_stop
from agentloop.durable.journal import Journal
from agentloop.durable.searching import ExecutionQuery
from agentloop.durable.sessions import delete_session
from agentloop.durable.trees import INTERRUPTED, ExecutionTree, list_below
from agentloop.errors import JournalConflict, JournalError
from agentloop.service.cli.console import as_one_line
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors
from agentloop.service.cli.execution import can_prompt
from agentloop.service.cli.journals import complete_execution, find_execution, journal_option, with_journal
from agentloop.service.cli.runs_resume import person_option
from agentloop.service.cli.selection import (
    find_all,
    of_session,
    parse_duration,
    print_found,
    print_total,
    query_options,
    session_option,
)
from agentloop.values.reprs import format_count
from agentloop.values.steps import ExecutionStatus

_STOP_EPILOG = """\
\b
Examples:
  agentloop runs stop execution_6f1d --reason "not needed any more"
  agentloop runs stop --status suspended --older-than 30d
  agentloop runs stop --status suspended --older-than 30d --yes
"""
_OPEN = (ExecutionStatus.IN_PROGRESS.value, ExecutionStatus.SUSPENDED.value, INTERRUPTED)


@click.command(epilog=_STOP_EPILOG, short_help="End executions.")
@click.argument("execution", metavar="[ID]", required=False, shell_complete=complete_execution)
@journal_option
@query_options
@session_option
@click.option("--reason", default="stopped by a person", show_default=True, help="The reason, for the record.")
@click.option("--yes", is_flag=True, help="Stop all that the options select. Without it, they are only listed.")
@person_option
def stop(
    *,
    execution: str | None,
    journal_file: str | None,
    query: ExecutionQuery,
    session: str | None,
    reason: str,
    yes: bool,
    principal: str,
) -> None:
    """End an execution as stopped, or all that the options select, with those of their sub-agents. They cannot be resumed afterwards.

    Open calls are settled: a call that waits is cancelled, and an interrupted call with an effect is in doubt. If a live
    process runs the execution, it is asked to stop it. Workers, servers, `run`, `chat` and `runs resume`, `fork` and `recover`
    obey; a program of yours does with a `CommandListener`.
    """
    query = of_session(query, session)
    _check_either(execution, query)

    async def end(journal: Journal, execution_id: str) -> str:
        name = as_one_line(execution_id)
        state = await request_stop(journal, execution_id, reason, principal=principal)
        return (
            f"{name}: a process runs it and was asked to stop it" if state is None else f"{name}: {state.status.value}"
        )

    async def end_one(journal: Journal) -> str:
        return await end(journal, (await find_execution(journal, execution or "")).execution_id)

    async def end_each(journal: Journal) -> None:
        for head, _ in found:
            try:
                click.echo(await end(journal, head.execution_id))
            except JournalError as error:  # it has ended meanwhile, say; the others are stopped all the same
                click.echo(f"{as_one_line(head.execution_id)}: not stopped: {as_one_line(str(error))}", err=True)

    if execution is not None:
        click.echo(with_journal(journal_file, end_one))
        return
    chosen = evolve(query, statuses=query.statuses or _OPEN)
    found = [row for row in with_journal(journal_file, lambda journal: find_all(journal, chosen)) if row[1] in _OPEN]
    if yes:
        with_journal(journal_file, end_each)
    else:
        print_found(found)
        print_total(found, "stops")


def _check_either(execution: str | None, query: ExecutionQuery) -> None:
    if (execution is not None) == query.is_restricted:
        raise click.UsageError("name an execution, or select executions by options such as --status and --older-than")


# --- delete and purge -----------------------------------------------------------------------------------------------


_DELETE_EPILOG = """\
\b
Examples:
  agentloop runs delete execution_6f1d
  agentloop runs delete --session user-7
  agentloop runs delete --asked-by ada --status failed
  agentloop runs delete --asked-by ada --status failed --yes
"""


@click.command(epilog=_DELETE_EPILOG, short_help="Delete executions, or a session.")
@click.argument("execution", metavar="[ID]", required=False, shell_complete=complete_execution)
@click.option("--session", metavar="ID", help="Delete this session: its turns, and the messages that wait in it.")
@query_options
@journal_option
@click.option(
    "--yes", is_flag=True, help="Do not ask; delete all that the options select, which are only listed without it."
)
def delete(
    *, execution: str | None, session: str | None, query: ExecutionQuery, journal_file: str | None, yes: bool
) -> None:
    """Delete an execution, or all that the options select, with those of their sub-agents and all their records.

    An execution that a live process runs is refused, and one that an unfinished fork needs. That of a sub-agent is deleted
    with that of its caller only.
    """
    if session is not None and execution is None and not query.is_restricted:
        _delete_session(session, journal_file, yes=yes)
        return
    query = of_session(query, session)
    if execution is None and not query.is_restricted:
        raise click.UsageError("name an execution, or a session with --session, or select executions by options")
    _check_either(execution, query)
    if execution is None:
        _delete_found(query, journal_file, yes=yes)
    else:
        _delete_one(execution, journal_file, yes=yes)


def _delete_one(prefix: str, journal_file: str | None, *, yes: bool) -> None:
    async def find(journal: Journal) -> tuple[str, int]:
        head = await find_execution(journal, prefix)
        return head.execution_id, 1 + len(await list_below(journal, head.execution_id))

    execution_id, count = with_journal(journal_file, find)
    name = as_one_line(execution_id)
    if can_prompt() and not yes:
        below = f" with {format_count(count - 1, 'execution')} of sub-agents" if count > 1 else ""
        click.confirm(f"Delete {name}{below}?", abort=True, err=True)
    if not with_journal(journal_file, lambda journal: journal.delete(execution_id)):
        raise InvalidUsage(f"there is no execution {name}")
    click.echo(f"deleted {name}: {format_count(count, 'execution')}")


def _delete_found(query: ExecutionQuery, journal_file: str | None, *, yes: bool) -> None:
    async def select(journal: Journal) -> list[ExecutionTree]:
        heads = [head for head, _ in await find_all(journal, query)]
        return [ExecutionTree(root=head, below=tuple(await list_below(journal, head.execution_id))) for head in heads]

    trees = with_journal(journal_file, select)
    _print_trees(with_journal(journal_file, _deletion_of(trees)) if yes else trees, are_deleted=yes)


def _delete_session(session: str, journal_file: str | None, *, yes: bool) -> None:
    name = as_one_line(session)
    if can_prompt() and not yes:
        click.confirm(f"Delete the session {name}?", abort=True, err=True)
    with as_usage_errors():
        count = with_journal(journal_file, lambda journal: delete_session(journal, session))
    if not count:
        raise InvalidUsage(f"there is no session {name}")
    click.echo(f"deleted the session {name}: {format_count(count, 'turn')}")


_ENDED = [status.value for status in ExecutionStatus if status.is_terminal]
_PURGE_EPILOG = """\
\b
Examples:
  agentloop runs purge --older-than 30d
  agentloop runs purge --older-than 12h --status completed --yes
"""


@click.command(epilog=_PURGE_EPILOG, short_help="Delete old executions that have ended.")
@journal_option
@click.option(
    "--older-than",
    "age",
    metavar="DURATION",
    required=True,
    callback=parse_duration,
    help="Only executions that were last updated before: 90s, 45m, 12h, 30d, 8w.",
)
@click.option(
    "--status", "statuses", type=click.Choice(_ENDED), multiple=True, help="Only executions that ended so; repeatable."
)
@click.option("--yes", is_flag=True, help="Delete them. Without it, they are only listed.")
def purge(*, journal_file: str | None, age: timedelta, statuses: Sequence[str], yes: bool) -> None:
    """List the executions that ended long ago, or delete them with --yes.

    Executions of sub-agents are deleted together with that of their caller. Executions that have not ended are retained, and
    so are those that a live process has claimed or an unfinished fork needs.
    """
    try:
        before = datetime.now(UTC) - age
    except OverflowError:
        raise InvalidUsage("--older-than goes back too far") from None

    async def select(journal: Journal) -> list[ExecutionTree]:
        expired = await journal.expired_trees(before)
        return [tree for tree in expired if tree.root.status.value in (statuses or _ENDED)]

    trees = with_journal(journal_file, select)
    if yes:
        trees = with_journal(journal_file, _deletion_of(trees))
    _print_trees(trees, are_deleted=yes)


def _print_trees(trees: Sequence[ExecutionTree], *, are_deleted: bool) -> None:
    for tree in trees:
        updated = tree.root.updated_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        below = f", {format_count(len(tree.below), 'execution')} of sub-agents" if tree.below else ""
        click.echo(f"{as_one_line(tree.root.execution_id)}  {tree.root.status.value}  {updated}{below}")
    heads = [head for tree in trees for head in (tree.root, *tree.below)]
    records = sum([head.record_count for head in heads])
    total = f"{format_count(len(heads), 'execution')} with {format_count(records, 'record')}"
    click.echo(f"deleted {total}" if are_deleted else f"{total}; --yes deletes them" if trees else "nothing to delete")


def _deletion_of(trees: Sequence[ExecutionTree]) -> Callable[[CanJournal], Awaitable[list[ExecutionTree]]]:
    async def delete_all(journal: CanJournal) -> list[ExecutionTree]:
        """Delete the trees, and return those that were deleted: another process may have claimed or forked one."""
        deleted: list[ExecutionTree] = []
        for tree in trees:
            try:
                if await journal.delete(tree.root.execution_id):
                    deleted.append(tree)
            except JournalConflict as conflict:
                click.echo(f"retained: {as_one_line(str(conflict))}", err=True)
        return deleted

    return delete_all
