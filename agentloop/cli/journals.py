"""The journal that a command speaks of, and the executions in it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from attrs import asdict, define, field, frozen

from agentloop.cli.console import one_line
from agentloop.cli.errors import BadUsage
from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import DecisionError, JournalConflict, JournalError, UnknownExecution
from agentloop.journal.fold import FoldedExecution
from agentloop.journal.sqlite.sqlite_journal import SqliteJournal
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.decisions import PendingCall
from agentloop.values.json import parse_json
from agentloop.values.records import ExecutionHead, JournalRecord, RecordKind
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import Effect, ToolCall, ToolExecution

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


def journaled(loop: AgentLoop, given: str | None) -> AgentLoop:
    """Return a loop with the journal that the command speaks of: its own where it has one, else the named one.

    Its own may keep secrets out of what is written; so it is never replaced.

    Args:
        loop: the loop.
        given: what `--journal` says; None when it was left out.

    Raises:
        BadUsage: when it has another journal than the one that is named, or there is none.
    """
    own = loop.journal
    if own is None:
        return loop.with_journal(SqliteJournal(journal_path(given)))
    if given is not None and not (isinstance(own, SqliteJournal) and own.path.resolve() == Path(given).resolve()):
        raise BadUsage(f"the loop has a journal of its own, {own!r}, and --journal names {given}; leave --journal out")
    return loop


@frozen(kw_only=True)
class CallAccount:
    """One call.

    Attributes:
        key: its idempotency key.
        call: the call.
        effect: what it does to the world, as its tool said; None for a call that never began.
        begun: how often it was written down that it begins.
        execution: its outcome; None when there is none.
        pending: how it waits; None when it does not.
    """

    key: str
    call: ToolCall
    effect: Effect | None = None
    begun: int = 0
    execution: ToolExecution | None = None
    pending: PendingCall | None = None

    @property
    def told(self) -> str:
        """What the journal says of its end, in a word or two."""
        if self.execution is not None:
            doubt = (
                ", may have run" if self.execution.may_have_run and self.execution.status.value != "in_doubt" else ""
            )
            return self.execution.status.value.replace("_", " ") + doubt
        return "waits" if self.pending is not None else "no outcome"


@define(eq=False)
class _Begun:
    effects: dict[str, Effect] = field(factory=dict)
    counts: dict[str, int] = field(factory=dict)
    calls: dict[str, ToolCall] = field(factory=dict)


def calls_in(records: Iterable[JournalRecord]) -> Sequence[CallAccount]:
    """Return the calls of an execution in the order of their steps.

    Raises:
        JournalCorrupt: when a record cannot be read.
    """
    known, begun = FoldedExecution(), _Begun()
    for record in records:
        known.apply(record)
        if record.kind is RecordKind.CALL_INTENT:
            key = parse_json(record.body)["intent"]["key"]
            intent = known.calls[key].intent
            begun.effects[key], begun.calls[key] = intent.effect, intent.call
            begun.counts[key] = begun.counts.get(key, 0) + 1
    settled = {key: call.execution for key, call in known.calls.items() if call.execution is not None}
    waiting: dict[str, PendingCall] = {}
    if known.state is not None:
        settled = {**_settled(known.state), **settled}
        waiting = {call.key: call for step in known.state.steps for call in step.pending if call.key not in settled}
    accounts = []
    for key in dict.fromkeys([*settled, *waiting, *begun.calls]):
        execution, pending = settled.get(key), waiting.get(key)
        call = execution.call if execution is not None else pending.call if pending is not None else begun.calls[key]
        accounts.append(
            CallAccount(
                key=key,
                call=call,
                effect=begun.effects.get(key),
                begun=begun.counts.get(key, 0),
                execution=execution,
                pending=pending,
            )
        )
    return accounts


def _settled(state: AgentState) -> dict[str, ToolExecution]:
    return {execution.key: execution for step in state.steps for execution in step.executions}


def as_data(head: ExecutionHead, status: str) -> dict[str, object]:
    """Return what is known of an execution as JSON data."""
    told = asdict(
        head, value_serializer=lambda _, __, value: value.isoformat() if isinstance(value, datetime) else value
    )
    return {**told, "status": status}


STYLES = {"completed": "green", "failed": "red", INTERRUPTED: "yellow", "suspended": "yellow", "in_progress": "cyan"}
