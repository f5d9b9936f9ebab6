"""The journal of a command, its executions, and an account of their calls."""

from __future__ import annotations

import os
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click
from attrs import asdict, define, evolve, field, frozen

from agentloop._event_loops import run_in_event_loop
from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.chain import verify_records
from agentloop.durable.exits import secrets_of
from agentloop.durable.fold import FoldedExecution
from agentloop.durable.journal import Journal
from agentloop.durable.opening import SQLITE, scheme_of
from agentloop.durable.opening import open_journal as open_journal_at
from agentloop.durable.sessions import session_of
from agentloop.durable.sqlite.sqlite_journal import SqliteJournal
from agentloop.durable.trees import INTERRUPTED
from agentloop.errors import ConfigurationError, DecisionError, JournalCorrupt, JournalError, UnknownExecution
from agentloop.loop.agent_loop import AgentLoop
from agentloop.service.cli.configuration import load_configuration
from agentloop.service.cli.console import as_one_line
from agentloop.service.cli.errors import InvalidUsage
from agentloop.service.cli.folders import config_file
from agentloop.values.decisions import PendingCall
from agentloop.values.records import ExecutionHead, JournalRecord, RecordKind
from agentloop.values.secrets import Secret
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import Effect, ToolCall, ToolExecution

T = TypeVar("T")
FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)

# --- the journal ----------------------------------------------------------------------------------------------------

JOURNAL_VARIABLE: Final = "AGENTLOOP_JOURNAL"
"""The environment variable that names the journal."""
DEFAULT_JOURNAL: Final = "agentloop.db"
"""The default journal, in the working directory."""

DB_VARIABLE: Final = "AGENTLOOP_DB"
"""The environment variable that names the database of a cluster: a file, or a URL. It precedes `JOURNAL_VARIABLE`."""

journal_option: Callable[[FC], FC] = click.option(
    "--journal",
    "--db",
    "journal_file",
    type=click.Path(),
    metavar="FILE|URL",
    help=f"The journal: a SQLite file, or the URL of a PostgreSQL database (postgresql://…); by default what {DB_VARIABLE} or "
    f"{JOURNAL_VARIABLE} names, or `journal` in the configuration, or {DEFAULT_JOURNAL} in the working directory.",
)
"""The option `--journal`, or `--db`, whose value `journal_place` takes."""


db_option: Callable[[FC], FC] = click.option(
    "--db",
    metavar="FILE|URL",
    help=f"The database: a SQLite file, or a postgresql:// URL; by default what {DB_VARIABLE} or {JOURNAL_VARIABLE} names, or `journal` "
    f"in the configuration, or {DEFAULT_JOURNAL} in the working directory. Programs on the machine can see the arguments of a command, "
    f"so put a URL with a password into {DB_VARIABLE}.",
)
"""The option `--db` of commands that create the database if needed; its value goes to `database_place`."""


def database_place(option: str | None) -> str:
    """Return the file or the URL of the database of a cluster, which may not exist yet.

    Args:
        option: the value of `--db`; None when it was omitted.

    Raises:
        InvalidUsage: the option is empty, or the configuration file has mistakes.
    """
    if option is not None and not option.strip():
        raise InvalidUsage("--db is empty; name a file or a URL, or omit it")
    named = option or os.environ.get(DB_VARIABLE) or os.environ.get(JOURNAL_VARIABLE)
    return named or load_configuration().path("journal") or DEFAULT_JOURNAL


def complete_execution(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the id of a recorded execution, the newest first."""
    # Whatever is wrong with the journal is reported when the command runs.
    with suppress(click.ClickException):
        heads = with_journal(context.params.get("journal_file"), lambda journal: journal.list(limit=_MAX_COMPLETED))
        return [head.execution_id for head in heads if head.execution_id.startswith(incomplete)]
    return []


_MAX_COMPLETED = 200


def check_not_empty(option: str | None) -> None:
    """Reject an empty `--journal`.

    Raises:
        InvalidUsage: the option is empty.
    """
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
    check_not_empty(option)
    if option is not None:
        return option
    configured = load_configuration().path("journal")
    return None if configured is None else os.environ.get(JOURNAL_VARIABLE) or configured


_MIN_MASKED_SECRET = 4
"""The minimum length of a secret that is masked: placeholder keys of local servers, such as `-`, would match everywhere."""


class JournalFailure(click.ClickException):
    """The journal is damaged, or refuses an operation. The exit code is 1."""

    exit_code = 1


def without_password(place: str) -> str:
    """Return a file or a URL as it may be printed: a URL without user, password and options."""
    scheme = scheme_of(place)
    if not scheme:
        return as_one_line(place)
    with suppress(ValueError):
        parts = urlsplit(place)
        if parts.netloc or parts.scheme == "sqlite":
            port = f":{parts.port}" if parts.port else ""
            return as_one_line(f"{scheme}://{parts.hostname or ''}{port}{parts.path}")
    return f"{scheme}://…"


def journal_argument(place: str) -> str:
    """Return the option that names a journal for a command that is printed; a URL may hold a password, and is not repeated."""
    return f'--db "${DB_VARIABLE}"' if scheme_of(place) else f"--journal {shlex.quote(place)}"


def journal_place(option: str | None) -> str:
    """Return the file of the journal, or the URL of its database.

    Args:
        option: the value of `--journal`; None when it was omitted.

    Raises:
        InvalidUsage: there is no such file.
    """
    check_not_empty(option)
    variable = DB_VARIABLE if os.environ.get(DB_VARIABLE) else JOURNAL_VARIABLE
    named = option or os.environ.get(variable)
    configured = None if named else load_configuration().path("journal")
    name = named or configured or DEFAULT_JOURNAL
    # SQLite would create a missing file, and an empty journal hides a mistyped name.
    if (scheme_of(name) and not name.startswith(SQLITE)) or Path(name.removeprefix(SQLITE)).is_file():
        return name
    if named or configured:
        origin = "" if option else f" (from {config_file() if configured else variable})"
        raise InvalidUsage(f"there is no journal {name}{origin}; `agentloop run … --journal {name}` creates one")
    raise InvalidUsage(
        f"there is no {DEFAULT_JOURNAL} in this directory; name the journal with --journal FILE or {JOURNAL_VARIABLE}"
    )


def make_journal(place: str, secrets: Iterable[Secret] = ()) -> Journal:
    """Return the journal in a file or a database.

    Raises:
        InvalidUsage: the URL cannot be used.
    """
    try:
        return open_journal_at(place, secrets=tuple(secrets))
    except ConfigurationError as error:
        raise InvalidUsage(f"{without_password(place)}: {error}") from error


def with_journal(option: str | None, work: Callable[[Journal], Awaitable[T]]) -> T:
    """Open the journal, await `work` with it, and close it.

    Args:
        option: the value of `--journal`; None when it was omitted.
        work: uses the journal.

    Raises:
        InvalidUsage: there is no such journal, or no such execution in it.
        JournalFailure: the journal cannot be read or written.
    """
    journal = make_journal(journal_place(option))
    with as_journal_errors():
        return run_in_event_loop(_run_and_close(journal, work))


async def _run_and_close(journal: Journal, work: Callable[[Journal], Awaitable[T]]) -> T:
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


session_option: Callable[[FC], FC] = click.option(
    "--session",
    metavar="ID",
    help="Continue the conversation of this session in the journal, or begin it. Messages that are sent at once are answered in order.",
)


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
        return loop.replace(journal=closed_at_end(make_journal(journal_place(option), secrets_of(loop))))
    if option is not None and not is_journal_file(journal, option):
        raise InvalidUsage(f"the loop has a journal of its own, {journal!r}; omit --journal {without_password(option)}")
    return loop


def open_journal(file: str, secrets: Iterable[Secret]) -> Journal:
    """Open a journal to record in, which is created if needed, masks these secrets and is closed when the command ends.

    Raises:
        InvalidUsage: there is no folder for it.
        JournalFailure: the file is not a journal, or cannot be read or written.
    """
    if not scheme_of(file) and not Path(file).absolute().parent.is_dir():
        raise InvalidUsage(f"--journal {as_one_line(file)}: there is no folder {as_one_line(str(Path(file).parent))}")
    masked = [secret for secret in secrets if len(secret.reveal()) >= _MIN_MASKED_SECRET]
    journal = closed_at_end(make_journal(file, masked))
    # Read before anything is announced or done: nothing can be recorded in a file that is not a journal.
    with as_journal_errors():
        run_in_event_loop(journal.list(limit=1))
    return journal


def closed_at_end(journal: Journal) -> Journal:
    """Close the journal when the command ends, whatever its outcome, and return it.

    Left to the garbage collector, its files would change after the command.
    """
    click.get_current_context().call_on_close(lambda: run_in_event_loop(journal.aclose()))
    return journal


def is_journal_file(journal: CanJournal | None, path: str | Path) -> bool:
    """Return whether a journal is stored in this SQLite file."""
    return isinstance(journal, SqliteJournal) and journal.path.resolve() == Path(path).resolve()


# --- executions -----------------------------------------------------------------------------------------------------

STATUS_STYLES = {
    "completed": "green",
    "failed": "red",
    INTERRUPTED: "yellow",
    "suspended": "yellow",
    "in_progress": "cyan",
}
_MAX_LISTED_IDS = 5


def check_execution_named(prefix: str) -> None:
    """Reject an empty id, which would be a prefix of every id.

    Raises:
        InvalidUsage: the id is empty or blank.
    """
    # An unset variable of a script must not decide which execution is meant.
    if not prefix.strip():
        raise InvalidUsage("the id of the execution is empty; `agentloop runs list` lists the executions")


async def find_execution(journal: CanJournal, prefix: str) -> ExecutionHead:
    """Return the execution with this id, or the only one whose id starts with it.

    The id of a sub-agent's execution starts with that of its caller; such a group counts as one, and its shortest id wins.

    Raises:
        InvalidUsage: the id is empty, no execution matches, or several do.
    """
    check_execution_named(prefix)
    exact = await journal.head(prefix)
    if exact is not None:
        return exact
    # Usually few ids start with a prefix; when there are many, all of them are needed to find the shortest.
    found = await journal.list(prefix=prefix, limit=_MAX_COMPLETED)
    if len(found) == _MAX_COMPLETED:
        found = await journal.list(prefix=prefix)
    heads = {head.execution_id: head for head in found}
    matches = sorted(heads, key=len)
    if not matches:
        newest = [head.execution_id for head in await journal.list(limit=_MAX_COMPLETED)]
        close = get_close_matches(prefix, newest, n=1)
        lists = f"agentloop runs list {_argument_of(journal)}".strip()
        hint = f"; did you mean {as_one_line(close[0])}?" if close else f"; `{lists}` lists the executions"
        raise InvalidUsage(f"there is no execution {as_one_line(prefix)}{hint}")
    shortest = matches[0]
    others = [match for match in matches if not is_within(match, shortest)]
    if others:
        listed = ", ".join(map(as_one_line, [shortest, *others][:_MAX_LISTED_IDS]))
        raise InvalidUsage(
            f"{len(others) + 1} executions start with {as_one_line(prefix)!r}: {listed}; write more of the id"
        )
    return heads[shortest]


def _argument_of(journal: CanJournal) -> str:
    """Return the option that names a journal, if it is one of a file."""
    path = journal.path if isinstance(journal, SqliteJournal) else None
    return "" if path is None else journal_argument(os.path.relpath(path))


async def short_ids(journal: CanJournal, ids: Sequence[str]) -> Mapping[str, str]:
    """Return for each id the shortest text that `find_execution` takes for it, of a length that is easy to recognize."""
    ordered = ["", *sorted(ids), ""]
    neighbors = zip(ordered, ordered[1:], ordered[2:], strict=False)
    return {each: await _shorten(journal, each, [before, after]) for before, each, after in neighbors}


async def _shorten(journal: CanJournal, execution_id: str, others: Sequence[str]) -> str:
    # Other executions of the journal may have ids that are closer than the neighbors in the list.
    while True:
        length = max(_SHORTEST_ID, *[_count_shared(execution_id, other) + 1 for other in others])
        if length >= len(execution_id):
            return execution_id
        found = await journal.list(prefix=execution_id[:length], limit=_MAX_COMPLETED)
        others = [head.execution_id for head in found if not is_within(head.execution_id, execution_id)]
        if len(found) == _MAX_COMPLETED:
            return execution_id
        if not others:
            return execution_id[:length]


def _count_shared(first: str, second: str) -> int:
    """Return how many characters two texts have in common at their start."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(first), len(second)))


def is_within(other: str, execution_id: str) -> bool:
    """Return whether an id is that of an execution or of one of its sub-agents."""
    return other == execution_id or other.startswith(f"{execution_id}/")


_SHORTEST_ID = len("execution_") + 6


def report_damage(records: Sequence[JournalRecord], execution_id: str) -> None:
    """Print to stderr if records are not as they were written; what can be read of them is shown all the same."""
    try:
        verify_records(records, execution_id)
    except JournalCorrupt as error:
        click.echo(f"{as_one_line(str(error))}; `agentloop runs verify` lists all problems", err=True)


def head_as_json(head: ExecutionHead, status: str) -> dict[str, object]:
    """Return the head of an execution as JSON data, with its effective status."""
    data = asdict(
        head, value_serializer=lambda _, __, value: value.isoformat() if isinstance(value, datetime) else value
    )
    return {**data, "status": status, "cursor": head.cursor, "session": session_of(head.agent_id)}


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
        is_interrupted: whether the process that ran the execution has ended, so that a call without an outcome does not run.
    """

    key: str
    call: ToolCall
    effect: Effect | None = None
    start_count: int = 0
    execution: ToolExecution | None = None
    pending: PendingCall | None = None
    is_interrupted: bool = False

    @property
    def outcome(self) -> str:
        """The outcome in a word or two."""
        if self.execution is None:
            return "waits" if self.pending is not None else self._standing
        status = self.execution.status.value.replace("_", " ")
        is_uncertain = self.execution.may_have_run and self.execution.status.value != "in_doubt"
        return f"{status}, may have run" if is_uncertain else status

    @property
    def _standing(self) -> str:
        if not self.is_interrupted:
            return "no outcome"
        return f"no outcome: interrupted{'' if self.effect is Effect.PURE else ', may have run'}"


@define(eq=False)
class _StartedCalls:
    effects: dict[str, Effect] = field(factory=dict)
    counts: dict[str, int] = field(factory=dict)
    calls: dict[str, ToolCall] = field(factory=dict)


def account_for_calls(records: Iterable[JournalRecord], *, is_interrupted: bool = False) -> Sequence[CallAccount]:
    """Return an account of each call of an execution: those with an outcome, those that wait, then all others.

    Args:
        records: the records of the execution.
        is_interrupted: whether no process runs it although it has not ended.

    Raises:
        JournalCorrupt: a record cannot be read.
    """
    folded, started = FoldedExecution(), _StartedCalls()
    for record in records:
        call = folded.apply(record).call
        if call is not None and record.kind is RecordKind.CALL_INTENT:
            key, intent = call.intent.key, call.intent
            # A repeated call has one intent per start, of which the last one is current.
            started.effects[key], started.calls[key] = intent.effect, intent.call
            started.counts[key] = started.counts.get(key, 0) + 1
    # Calls that were rejected or blocked have no intent: only the steps of the state contain them.
    settled = {key: call.execution for key, call in folded.calls.items() if call.execution is not None}
    pending: dict[str, PendingCall] = {}
    if folded.state is not None:
        settled = {**_executions_in(folded.state), **settled}
        # A call that was decided and has started again waits no more, although the newest state says so.
        resumed = {key for key, call in folded.calls.items() if call.execution is None and call.pending is None}
        waiting = [call for step in folded.state.steps for call in step.pending]
        pending = {call.key: call for call in waiting if call.key not in settled and call.key not in resumed}
    keys = dict.fromkeys([*settled, *pending, *started.calls])
    accounts = [_account(key, started, settled.get(key), pending.get(key)) for key in keys]
    return [evolve(account, is_interrupted=is_interrupted) for account in accounts]


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
