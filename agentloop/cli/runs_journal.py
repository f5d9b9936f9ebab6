"""The journal that a command speaks of, and the executions in it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from agentloop.cli.bad_usage import BadUsage
from agentloop.cli.terminal_text import one_line
from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import DecisionError, JournalConflict, JournalError, UnknownExecution
from agentloop.journal.sqlite.sqlite_journal import SqliteJournal
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.journal_record import ExecutionHead

T = TypeVar("T")
FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)

VARIABLE: Final = "AGENTLOOP_JOURNAL"
"""The environment variable that names the journal."""
DEFAULT_FILE: Final = "agentloop.db"
"""The journal in the working directory that is taken when none is named."""
INTERRUPTED: Final = "interrupted"
"""What an execution in progress is called when nobody alive drives it."""
_SHOWN_IDS = 5

journal_option: Callable[[FC], FC] = click.option(
    "--journal",
    "journal_file",
    metavar="FILE",
    help=f"The journal, a SQLite file; when left out, the one that {VARIABLE} names, or {DEFAULT_FILE} in this directory.",
)
"""`--journal`, which `journal_path` understands."""


class JournalTrouble(click.ClickException):
    """The journal does not let something be done, or is damaged. Ends with exit code 1."""

    exit_code = 1


def journal_path(given: str | None) -> Path:
    """Return the file of the journal.

    Args:
        given: what the option says; None when it was left out.

    Raises:
        BadUsage: when there is no such file.
    """
    named = given or os.environ.get(VARIABLE) or DEFAULT_FILE
    path = Path(named)
    if path.is_file():
        return path
    if given or os.environ.get(VARIABLE):
        origin = "" if given else f", which {VARIABLE} names"
        raise BadUsage(f"there is no journal {named}{origin}; `agentloop run … --journal {named}` begins one")
    raise BadUsage(
        f"there is no {DEFAULT_FILE} in this directory; name the journal with --journal FILE, or in {VARIABLE}"
    )


def with_journal(given: str | None, work: Callable[[SqliteJournal], Awaitable[T]]) -> T:
    """Open the journal, do something with it and close it.

    Raises:
        BadUsage: when there is none, or no such execution in it.
        JournalTrouble: when it cannot be read or written.
    """
    journal = SqliteJournal(journal_path(given))
    with told_of_journals():
        return asyncio.run(_closing(journal, work))


async def _closing(journal: SqliteJournal, work: Callable[[SqliteJournal], Awaitable[T]]) -> T:
    try:
        return await work(journal)
    finally:
        await journal.aclose()


@contextmanager
def told_of_journals() -> Iterator[None]:
    """Tell what a journal refuses, as the error of a command.

    Raises:
        BadUsage: when something was asked for that is not there, or cannot be decided.
        JournalTrouble: for any other error of a journal.
    """
    try:
        yield
    except (UnknownExecution, DecisionError) as error:
        raise BadUsage(str(error)) from error
    except JournalError as error:
        raise JournalTrouble(str(error)) from error


async def found(journal: CanJournal, beginning: str) -> ExecutionHead:
    """Return the execution with this id, or the one whose id begins like this.

    An execution is told from those of its sub-agents: of ids that begin with each other, the shortest is meant.

    Raises:
        BadUsage: when there is none, or more than one.
    """
    exact = await journal.head(beginning)
    if exact is not None:
        return exact
    heads = {head.execution_id: head for head in await journal.list()}
    likely = sorted([name for name in heads if name.startswith(beginning)], key=len)
    if not likely:
        close = get_close_matches(beginning, heads, n=1)
        hint = f", did you mean {one_line(close[0])}?" if close else "; `agentloop runs list` shows those that are"
        raise BadUsage(f"there is no execution {one_line(beginning)}{hint}")
    others = [name for name in likely if name != likely[0] and not name.startswith(f"{likely[0]}/")]
    if others:
        shown = ", ".join(map(one_line, [likely[0], *others][:_SHOWN_IDS]))
        raise BadUsage(f"{len(others) + 1} executions begin with {one_line(beginning)!r}: {shown}; give more of the id")
    return heads[likely[0]]


async def standing(journal: CanJournal, head: ExecutionHead) -> str:
    """Return the status of an execution, told apart when nobody alive drives it: `interrupted`."""
    if head.status is not ExecutionStatus.IN_PROGRESS:
        return head.status.value
    try:
        claim = await journal.claim(head.execution_id)
    except JournalConflict:
        return head.status.value
    await claim.release()
    now = await journal.head(head.execution_id)  # it may have ended meanwhile
    return INTERRUPTED if now is None or now.status is ExecutionStatus.IN_PROGRESS else now.status.value
