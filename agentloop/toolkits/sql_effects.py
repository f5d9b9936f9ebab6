"""Effects in a database of the program: each call changes it exactly once, whatever crashes.

The change and the key of the call are committed in one transaction. A call that runs again, in whatever process, finds its key and
returns the recorded result.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypedDict, TypeVar, Unpack

from attrs import define, field, frozen

from agentloop.contracts.tool import OrderingKey, ToolContext
from agentloop.errors import ConfigurationError, ToolFailed, ToolInDoubt
from agentloop.toolkits.keyed_functions import CALL, CONTEXT, KeyedFunction
from agentloop.tools.decorator import tool
from agentloop.tools.function_tool import FunctionTool, Show
from agentloop.tools.presentation import Presenter, presenter
from agentloop.values.json import canonical_json
from agentloop.values.policies import CircuitPolicy, RateLimit, RetryPolicy
from agentloop.values.serialization import from_json, to_json
from agentloop.values.tool_calls import EgressLike, NamesLike, ToolCall, ToolResult

P = ParamSpec("P")
R = TypeVar("R")

EFFECTS_TABLE: Final = """CREATE TABLE IF NOT EXISTS agentloop_effects (
    effect_key TEXT PRIMARY KEY,
    tool TEXT NOT NULL,
    arguments TEXT NOT NULL,
    claim_token BIGINT,
    result TEXT NOT NULL
)"""
"""The table of the calls that have had their effect; the statement is for SQLite and for PostgreSQL.

`effect_key` is the idempotency key of the call, `arguments` the SHA-256 of its arguments as hexadecimal digits, `claim_token` the fencing
token of the process that made the change, and `result` a `ToolResult` as JSON.
"""

_MARKS: Mapping[str, str] = {"qmark": "?", "format": "%s", "pyformat": "%s"}
_CONFLICTS = frozenset({"40001", "40P01"})  # a serialization failure, a deadlock
_UNKNOWN = ("08", "53", "57", "58", "XX")  # the classes of errors that do not say whether the transaction was committed
_WAITS = (0.0, 0.05, 0.2, 0.8, 3.2)
"""How long to wait before each attempt, in seconds: a database that fails over takes a while."""
_logger = logging.getLogger("agentloop.tools")


class SqlCursor(Protocol):
    """A cursor of a Python driver for databases (PEP 249)."""

    @property
    def rowcount(self) -> int:
        """The number of rows that the last statement changed."""

    def execute(self, operation: str, parameters: Any = ..., /) -> object:
        """Execute a statement."""

    def fetchone(self) -> Any:
        """Return the next row; None behind the last one."""


class SqlConnection(Protocol):
    """A connection of a Python driver for databases (PEP 249), such as those of `sqlite3` and `psycopg`."""

    def cursor(self) -> SqlCursor:
        """Return a new cursor."""

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Roll the transaction back."""

    def close(self) -> None:
        """Close the connection."""


C = TypeVar("C", bound=SqlConnection)


class EffectOptions(TypedDict, total=False):
    """Options of a tool with an effect; those of `@tool` with the same names."""

    name: str | None
    description: str | None
    timeout: float | None
    sequential: bool
    strict: bool
    key: OrderingKey | None
    show: Show | None
    retry: RetryPolicy | None
    rate_limit: RateLimit | None
    circuit: CircuitPolicy | None
    deadline: float | None
    egress: EgressLike
    own: NamesLike
    identifiers: NamesLike
    decides: NamesLike


def sql_effect(
    connect: Callable[[], C], *, creates_table: bool = True, **options: Unpack[EffectOptions]
) -> Callable[[Callable[Concatenate[C, P], R]], FunctionTool[P, R]]:
    """Turn a function that changes a database into a tool whose calls change it exactly once.

    The function takes a connection as its first parameter, which the model does not see. It runs in a thread, in a transaction that
    is committed when it returns, together with the key of the call; it must not commit itself. If it raises, if its result does not
    match its return type, or if the call has timed out or was cancelled meanwhile, the transaction is rolled back. A call that runs
    again, because of a crash, a retry or a lost answer of the database, returns the recorded result.

        @sql_effect(lambda: sqlite3.connect("shop.db"))
        def pay(connection: sqlite3.Connection, order: int, cents: int) -> dict[str, int]:
            \"\"\"Pay an order.\"\"\"
            connection.execute("INSERT INTO payments VALUES (?, ?)", (order, cents))
            return {"order": order, "paid": cents}

    Args:
        connect: returns a new connection to a SQLite or PostgreSQL database, which is closed after the call.
        creates_table: whether the table `agentloop_effects` is created where it is missing; `EFFECTS_TABLE` is its statement.
        options: the options of `@tool` that apply.

    Raises:
        ToolDefinitionError: when the function is decorated: it is async or a method, or something that a model needs is missing.
    """
    effects = _Effects(connect, creates_table)

    def decorate(function: Callable[Concatenate[C, P], R]) -> FunctionTool[P, R]:
        keyed = KeyedFunction.of(function, sql_effect.__name__, is_async=False)
        present = presenter(keyed.hints.get("return", Any), testifies=False)

        def run(**arguments: Any) -> ToolResult:
            context, call = arguments.pop(CONTEXT), arguments.pop(CALL)
            return effects.apply(_Change(keyed, arguments, context, call, present))

        made: FunctionTool[P, R] = tool(effect="idempotent", **options)(keyed.expose(run))
        return made

    return decorate


@frozen
class _Change:
    """One run of a call.

    Attributes:
        keyed: the function.
        arguments: its arguments.
        context: the context of the call.
        call: the call.
        present: checks the result.
    """

    keyed: KeyedFunction
    arguments: Mapping[str, Any]
    context: ToolContext
    call: ToolCall
    present: Presenter

    @property
    def key(self) -> str:
        """The key of the call."""
        return self.context.idempotency_key

    @property
    def digest(self) -> str:
        """What identifies the arguments."""
        return hashlib.sha256(canonical_json(self.call.arguments).encode("utf-8", "surrogatepass")).hexdigest()

    def make(self, connection: SqlConnection) -> ToolResult:
        """Call the function.

        Raises:
            ToolFailed: its result is of another type than declared, or the call is closed.
        """
        returned = self.keyed.function(**{self.keyed.resource: connection}, **self.arguments)
        try:
            result = self.present(returned)
        except ToolFailed as error:
            raise ToolFailed(f"nothing was changed, since the result is not what the tool declares: {error}") from error
        if self.context.is_closed:  # looked at last: a change that nobody waits for any more is not made
            raise ToolFailed("nothing was changed, since the call has ended before")
        return result


@define
class _Effects:
    """The effects of a tool in its database.

    Attributes:
        connect: returns a new connection.
        creates_table: whether a missing table is created.
        mark: how the driver writes parameters; empty before the first connection.
    """

    connect: Callable[[], SqlConnection]
    creates_table: bool
    mark: str = field(default="", init=False)

    def apply(self, change: _Change) -> ToolResult:
        """Make a change, or return the result of the call that has made it.

        Raises:
            ToolFailed: nothing was changed.
            ToolInDoubt: the database gave no answer to the commit, and none to several further attempts.
            Exception: any error of the function, or of the driver before the commit.
        """
        doubt: Exception | None = None
        for attempt, seconds in enumerate(_WAITS):
            if attempt and not change.context.is_closed:
                time.sleep(seconds)
            try:
                return self._attempt(change)
            except _CommitFailed as failed:
                # The commit may have happened. The next attempt waits for it at the key, and then finds it or does it.
                doubt = failed.error
            except Exception as error:
                is_conflict = getattr(error, "sqlstate", None) in _CONFLICTS and attempt < len(_WAITS) - 1
                if doubt is None and not is_conflict:
                    raise
        raise ToolInDoubt(f"the database did not say whether the change of {change.key} was made: {doubt}") from doubt

    def _attempt(self, change: _Change) -> ToolResult:
        with closing(self._open()) as connection:
            with _rolled_back(connection):
                recorded = self._take(connection, change)
                if recorded is not None:
                    return recorded
                connection.cursor().execute("SAVEPOINT agentloop_call")
                result = change.make(connection)
                self._require_same_transaction(connection, change)
                connection.cursor().execute(
                    f"UPDATE agentloop_effects SET result = {self.mark} WHERE effect_key = {self.mark}",  # noqa: S608  # a mark of the driver
                    (to_json(result).decode(), change.key),
                )
                try:
                    connection.commit()
                except Exception as error:
                    if _is_rolled_back(connection, error):
                        raise
                    raise _CommitFailed(error) from error
            return result

    def _require_same_transaction(self, connection: SqlConnection, change: _Change) -> None:
        try:
            connection.cursor().execute("RELEASE SAVEPOINT agentloop_call")
        except Exception as error:
            raise ConfigurationError(
                f"{change.keyed.function.__qualname__}() has ended the transaction of its call: leave commit and rollback to @sql_effect"
            ) from error

    def _open(self) -> SqlConnection:
        connection = self.connect()
        if isinstance(connection, sqlite3.Connection):
            connection.isolation_level = None
        elif getattr(connection, "autocommit", False):
            connection.autocommit = False  # type: ignore[attr-defined]  # of PEP 249's later drafts, and of psycopg
        if not self.mark:
            with _closed_on_error(connection):
                mark = _mark_of(connection)
                self._require_table(connection)
                self.mark = mark  # set last: other threads then find the table
        if isinstance(connection, sqlite3.Connection):
            with _closed_on_error(connection):
                # The lock for writing comes first: a transaction that reads before could not get it any more.
                connection.execute("BEGIN IMMEDIATE")
        return connection

    def _require_table(self, connection: SqlConnection) -> None:
        for seconds in _WAITS:
            time.sleep(seconds)
            try:
                connection.cursor().execute("SELECT 1 FROM agentloop_effects WHERE 1 = 0")
            except Exception as error:
                connection.rollback()
                if not self.creates_table:
                    raise ConfigurationError(
                        f"the database has no table agentloop_effects ({error}): create it by agentloop.toolkits.EFFECTS_TABLE"
                    ) from error
                try:
                    connection.cursor().execute(EFFECTS_TABLE)
                    connection.commit()
                except Exception:  # another process may have created it just now
                    connection.rollback()
                    if seconds == _WAITS[-1]:
                        raise
            else:
                connection.rollback()
                return

    def _take(self, connection: SqlConnection, change: _Change) -> ToolResult | None:
        """Take the key of a call; return the recorded result if it is taken. Waits for a transaction that has just taken it."""
        cursor, marks = connection.cursor(), ", ".join([self.mark] * 5)
        row = (change.key, change.call.name, change.digest, change.context.claim_token, "")
        cursor.execute(f"INSERT INTO agentloop_effects VALUES ({marks}) ON CONFLICT DO NOTHING", row)  # noqa: S608  # as above
        if cursor.rowcount == 1:
            return None
        cursor.execute(
            f"SELECT tool, arguments, result FROM agentloop_effects WHERE effect_key = {self.mark}",  # noqa: S608  # as above
            (change.key,),
        )
        name, digest, text = cursor.fetchone()
        if (name, digest) != (change.call.name, change.digest):
            raise ToolFailed(f"nothing was changed: the key {change.key} was used before, for another call of {name!r}")
        if not text:
            raise ToolInDoubt(f"the function committed a part of the change of {change.key} itself, and did not end")
        _logger.info(
            "the call %s of %s has changed the database before; its recorded result is returned", change.key, name
        )
        return from_json(text, ToolResult)


class _CommitFailed(Exception):
    """The driver raised an error at the commit, so that it is not known whether the transaction was committed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _is_rolled_back(connection: SqlConnection, error: Exception) -> bool:
    """Return whether an error at the commit says that nothing was committed."""
    if isinstance(connection, sqlite3.Connection):
        return connection.in_transaction
    state = getattr(error, "sqlstate", None)
    return bool(state) and not str(state).startswith(_UNKNOWN)


def _mark_of(connection: SqlConnection) -> str:
    """Return how the driver of a connection writes parameters (PEP 249, `paramstyle`)."""
    packages = [sys.modules.get(each.__module__.partition(".")[0]) for each in type(connection).__mro__]
    style = next((found for package in packages if (found := getattr(package, "paramstyle", ""))), "")
    if style not in _MARKS:
        raise ConfigurationError(
            f"connect of sql_effect returns a connection of a driver such as sqlite3 or psycopg, not a {type(connection).__qualname__}"
        )
    return _MARKS[style]


@contextmanager
def _rolled_back(connection: SqlConnection) -> Iterator[None]:
    """Roll back if an error is raised."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # a connection that is lost has been rolled back
            connection.rollback()
        raise


@contextmanager
def _closed_on_error(connection: SqlConnection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise
