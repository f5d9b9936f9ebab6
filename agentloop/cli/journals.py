"""The journal of a command, its executions, and an account of their calls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from attrs import asdict, define, field, frozen

from agentloop.cli.configuration import config_file, load_configuration
from agentloop.cli.console import as_one_line
from agentloop.cli.errors import InvalidUsage
from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import DecisionError, JournalError, UnknownExecution
from agentloop.journal.fold import FoldedExecution
from agentloop.journal.sqlite.sqlite_journal import SqliteJournal
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.decisions import PendingCall
from agentloop.values.json import parse_json
from agentloop.values.records import ExecutionHead, JournalRecord, RecordKind
from agentloop.values.secrets import Secret
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import Effect, ToolCall, ToolExecution

T = TypeVar("T")
FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)

# --- the journal ----------------------------------------------------------------------------------------------------

JOURNAL_VARIABLE: Final = "AGENTLOOP_JOURNAL"
"""The environment variable that names the journal."""
DEFAULT_JOURNAL: Final = "agentloop.db"
"""The default journal, in the working directory."""

journal_option: Callable[[FC], FC] = click.option(
    "--journal",
    "journal_file",
    type=click.Path(),
    metavar="FILE",
    help=f"The journal, a SQLite file; by default the file that {JOURNAL_VARIABLE} names, or `journal` in the configuration, or "
    f"{DEFAULT_JOURNAL} in the working directory.",
)
"""The option `--journal`, whose value `journal_path` takes."""


def complete_execution(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the id of a recorded execution, the newest first."""
    # Whatever is wrong with the journal is reported when the command runs.
    with suppress(click.ClickException):
        heads = with_journal(context.params.get("journal_file"), lambda journal: journal.list(limit=_MAX_COMPLETED))
        return [head.execution_id for head in heads if head.execution_id.startswith(incomplete)]
    return []


_MAX_COMPLETED = 200


def _check_not_empty(option: str | None) -> None:
    # An unset variable of a script must not decide that nothing is recorded.
    if option is not None and not option.strip():
        raise InvalidUsage("--journal is empty; name a file, or omit it")


def recording_journal(option: str | None) -> str | None:
    """Return the journal in which `run` and `chat` record; None when they record nothing.

    Without `--journal` they record only if the configuration file names a journal; the environment variable then precedes it.

    Args:
        option: the value of `--journal`; None when it was omitted.

    Raises:
        InvalidUsage: the option is empty, or the configuration file has mistakes.
    """
    _check_not_empty(option)
    if option is not None:
        return option
    configured = load_configuration().path("journal")
    return None if configured is None else os.environ.get(JOURNAL_VARIABLE) or configured


_MIN_MASKED_SECRET = 4
"""The minimum length of a secret that is masked: placeholder keys of local servers, such as `-`, would match everywhere."""


class JournalFailure(click.ClickException):
    """The journal is damaged, or refuses an operation. The exit code is 1."""

    exit_code = 1


def journal_path(option: str | None) -> Path:
    """Return the file of the journal.

    Args:
        option: the value of `--journal`; None when it was omitted.

    Raises:
        InvalidUsage: there is no such file.
    """
    _check_not_empty(option)
    configured = load_configuration().path("journal") if not (option or os.environ.get(JOURNAL_VARIABLE)) else None
    name = option or os.environ.get(JOURNAL_VARIABLE) or configured or DEFAULT_JOURNAL
    path = Path(name)
    # SQLite would create a missing file, and an empty journal hides a mistyped name.
    if path.is_file():
        return path
    if option or configured or os.environ.get(JOURNAL_VARIABLE):
        origin = "" if option else f" (from {config_file() if configured else JOURNAL_VARIABLE})"
        raise InvalidUsage(f"there is no journal {name}{origin}; `agentloop run … --journal {name}` creates one")
    raise InvalidUsage(
        f"there is no {DEFAULT_JOURNAL} in this directory; name the journal with --journal FILE or {JOURNAL_VARIABLE}"
    )


def with_journal(option: str | None, work: Callable[[SqliteJournal], Awaitable[T]]) -> T:
    """Open the journal, await `work` with it, and close it.

    Args:
        option: the value of `--journal`; None when it was omitted.
        work: uses the journal.

    Raises:
        InvalidUsage: there is no such journal, or no such execution in it.
        JournalFailure: the journal cannot be read or written.
    """
    journal = SqliteJournal(journal_path(option))
    with as_journal_errors():
        return asyncio.run(_run_and_close(journal, work))


async def _run_and_close(journal: SqliteJournal, work: Callable[[SqliteJournal], Awaitable[T]]) -> T:
    try:
        return await work(journal)
    finally:
        await journal.aclose()


@contextmanager
def as_journal_errors() -> Iterator[None]:
    """Convert errors of a journal into errors of the command.

    Raises:
        InvalidUsage: the execution does not exist, or a decision does not apply.
        JournalFailure: any other error of a journal.
    """
    try:
        yield
    # A wrong id or decision is a mistake of the command line, and not of the journal.
    except (UnknownExecution, DecisionError) as error:
        raise InvalidUsage(str(error)) from error
    except JournalError as error:
        raise JournalFailure(str(error)) from error


def attach_journal(loop: AgentLoop, option: str | None) -> AgentLoop:
    """Return the loop with its own journal if it has one, else with the journal of the command.

    The loop's own journal may mask secrets, so `--journal` never replaces it.

    Args:
        loop: the loop.
        option: the value of `--journal`; None when it was omitted.

    Raises:
        InvalidUsage: the loop has a journal other than the named one, or there is no journal.
    """
    journal = loop.journal
    if journal is None:
        return loop.with_journal(closed_at_end(SqliteJournal(journal_path(option))))
    if option is not None and not is_journal_file(journal, option):
        raise InvalidUsage(f"the loop has a journal of its own, {journal!r}; omit --journal {option}")
    return loop


def open_journal(file: str, secrets: Iterable[Secret]) -> SqliteJournal:
    """Open a journal to record in, which is created if needed, masks these secrets and is closed when the command ends.

    Raises:
        InvalidUsage: there is no folder for it.
        JournalFailure: the file is not a journal, or cannot be read or written.
    """
    if not Path(file).absolute().parent.is_dir():
        raise InvalidUsage(f"--journal {as_one_line(file)}: there is no folder {as_one_line(str(Path(file).parent))}")
    masked = [secret for secret in secrets if len(secret.reveal()) >= _MIN_MASKED_SECRET]
    journal = closed_at_end(SqliteJournal(file, secrets=masked))
    # Read before anything is announced or done: nothing can be recorded in a file that is not a journal.
    with as_journal_errors():
        asyncio.run(journal.list(limit=1))
    return journal


def closed_at_end(journal: SqliteJournal) -> SqliteJournal:
    """Close the journal when the command ends, whatever its outcome, and return it.

    Left to the garbage collector, its files would change after the command.
    """
    click.get_current_context().call_on_close(lambda: asyncio.run(journal.aclose()))
    return journal


def is_journal_file(journal: CanJournal | None, path: str | Path) -> bool:
    """Return whether a journal is stored in this SQLite file."""
    return isinstance(journal, SqliteJournal) and journal.path.resolve() == Path(path).resolve()


# --- executions -----------------------------------------------------------------------------------------------------

INTERRUPTED: Final = "interrupted"
"""The effective status of an execution in progress that no live process runs."""
STATUS_STYLES = {
    "completed": "green",
    "failed": "red",
    INTERRUPTED: "yellow",
    "suspended": "yellow",
    "in_progress": "cyan",
}
_MAX_LISTED_IDS = 5


async def find_execution(journal: CanJournal, prefix: str) -> ExecutionHead:
    """Return the execution with this id, or the only one whose id starts with it.

    The id of a sub-agent's execution starts with that of its caller; such a group counts as one, and its shortest id wins.

    Raises:
        InvalidUsage: no execution matches, or several do.
    """
    exact = await journal.head(prefix)
    if exact is not None:
        return exact
    # An exact id needs one read; a prefix needs the list of all executions.
    heads = {head.execution_id: head for head in await journal.list()}
    matches = sorted([execution_id for execution_id in heads if execution_id.startswith(prefix)], key=len)
    if not matches:
        close = get_close_matches(prefix, heads, n=1)
        hint = f"; did you mean {as_one_line(close[0])}?" if close else "; `agentloop runs list` lists the executions"
        raise InvalidUsage(f"there is no execution {as_one_line(prefix)}{hint}")
    shortest = matches[0]
    others = [match for match in matches if match != shortest and not match.startswith(f"{shortest}/")]
    if others:
        listed = ", ".join(map(as_one_line, [shortest, *others][:_MAX_LISTED_IDS]))
        raise InvalidUsage(
            f"{len(others) + 1} executions start with {as_one_line(prefix)!r}: {listed}; write more of the id"
        )
    return heads[shortest]


async def effective_status(journal: CanJournal, head: ExecutionHead) -> str:
    """Return the status of an execution; `interrupted` instead of `in_progress` when no live process runs it."""
    if head.status is not ExecutionStatus.IN_PROGRESS:
        return head.status.value
    # The lease of a live writer cannot be claimed, and the system releases the lease of a dead one. Without write permission,
    # nothing can be claimed, and it is not known whether there is a writer.
    try:
        claim = await journal.claim(head.execution_id)
    except JournalError:
        return head.status.value
    await claim.release()
    current = await journal.head(head.execution_id)  # it may have ended between the two reads
    if current is None or current.status is ExecutionStatus.IN_PROGRESS:
        return INTERRUPTED
    return current.status.value


def head_as_json(head: ExecutionHead, status: str) -> dict[str, object]:
    """Return the head of an execution as JSON data, with its effective status."""
    data = asdict(
        head, value_serializer=lambda _, __, value: value.isoformat() if isinstance(value, datetime) else value
    )
    return {**data, "status": status}


# --- calls ----------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class CallAccount:
    """What the journal records of one call.

    Attributes:
        key: the idempotency key.
        call: the call.
        effect: the effect that its tool declares; None for a call that never started.
        start_count: how often the journal records that the call started.
        execution: the outcome; None without one.
        pending: the pending call; None if it does not wait.
    """

    key: str
    call: ToolCall
    effect: Effect | None = None
    start_count: int = 0
    execution: ToolExecution | None = None
    pending: PendingCall | None = None

    @property
    def outcome(self) -> str:
        """The outcome in a word or two."""
        if self.execution is None:
            return "waits" if self.pending is not None else "no outcome"
        status = self.execution.status.value.replace("_", " ")
        is_uncertain = self.execution.may_have_run and self.execution.status.value != "in_doubt"
        return f"{status}, may have run" if is_uncertain else status


@define(eq=False)
class _StartedCalls:
    effects: dict[str, Effect] = field(factory=dict)
    counts: dict[str, int] = field(factory=dict)
    calls: dict[str, ToolCall] = field(factory=dict)


def account_for_calls(records: Iterable[JournalRecord]) -> Sequence[CallAccount]:
    """Return an account of each call of an execution: those with an outcome, those that wait, then all others.

    Raises:
        JournalCorrupt: a record cannot be read.
    """
    folded, started = FoldedExecution(), _StartedCalls()
    for record in records:
        folded.apply(record)
        if record.kind is RecordKind.CALL_INTENT:
            key = parse_json(record.body)["intent"]["key"]
            intent = folded.calls[key].intent
            # A repeated call has one intent per start, of which the last one is current.
            started.effects[key], started.calls[key] = intent.effect, intent.call
            started.counts[key] = started.counts.get(key, 0) + 1
    # Calls that were rejected or blocked have no intent: only the steps of the state contain them.
    settled = {key: call.execution for key, call in folded.calls.items() if call.execution is not None}
    pending: dict[str, PendingCall] = {}
    if folded.state is not None:
        settled = {**_executions_in(folded.state), **settled}
        pending = {call.key: call for step in folded.state.steps for call in step.pending if call.key not in settled}
    keys = dict.fromkeys([*settled, *pending, *started.calls])
    return [_account(key, started, settled.get(key), pending.get(key)) for key in keys]


def _executions_in(state: AgentState) -> dict[str, ToolExecution]:
    return {execution.key: execution for step in state.steps for execution in step.executions}


def _account(
    key: str, started: _StartedCalls, execution: ToolExecution | None, pending: PendingCall | None
) -> CallAccount:
    call = execution.call if execution is not None else pending.call if pending is not None else started.calls[key]
    return CallAccount(
        key=key,
        call=call,
        effect=started.effects.get(key),
        start_count=started.counts.get(key, 0),
        execution=execution,
        pending=pending,
    )
