"""A toolkit for one SQLite file: queries, and changes of rows where allowed."""

from __future__ import annotations

import base64
import sqlite3
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypedDict

from attrs import frozen

from agentloop.contracts.tool import Tool
from agentloop.errors import ConfigurationError, ToolFailed
from agentloop.toolkits.ensemble import Ensemble, ensemble_factory
from agentloop.tools.constraints import Range
from agentloop.tools.decorator import tool

Value: TypeAlias = str | int | float | bool | None
Parameters: TypeAlias = Annotated[
    list[Value] | None, "values for the question marks of the statement, in order", Range(max_length=500)
]

_READ_ACTIONS = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_WRITE_ACTIONS = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
_FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "writefile", "readfile", "edit", "fts3_tokenizer"})
_MAX_CELL_CHARACTERS = 10_000
_MAX_VALUE_BYTES = 10_000_000
# Few, since one instruction can take milliseconds: it may compute a value of `_MAX_VALUE_BYTES`.
_INSTRUCTIONS_PER_CHECK = 100
# SQLite declares a virtual table by statements of its own: they check these columns, but change nothing. A statement that
# does change `sqlite_master` is refused by SQLite itself, since `PRAGMA writable_schema` is not allowed.
_DECLARING = frozenset({"type", "name", "tbl_name", "rootpage", "sql"})
_READING_PRAGMAS = frozenset({"data_version", "page_size"})  # those that full-text indexes use
_SPATIAL_TABLES = ("_node", "_rowid", "_parent")


class Rows(TypedDict):
    """The result of a query."""

    columns: list[str]
    rows: list[list[Value]]
    is_cut: bool


@frozen
class Database:
    """The implementation of the tools. Each call opens its own connection, so that calls may run at the same time.

    Attributes:
        path: the file.
        writable: whether rows may be inserted, updated and deleted.
        max_rows: maximum number of rows that a query returns.
        max_instructions: maximum number of instructions of SQLite's virtual machine for a statement.
        max_seconds: maximum processor time of a statement, in seconds.
    """

    path: Path
    writable: bool
    max_rows: int
    max_instructions: int
    max_seconds: float

    def query_database(
        self,
        sql: Annotated[str, "one SELECT statement, with ? for each value", Range(min_length=1, max_length=20_000)],
        parameters: Parameters = None,
    ) -> Rows:
        """Read from the database. Pass values as parameters, never inside of the statement."""
        with closing(self._connect(writable=False)) as connection:
            cursor = self._execute(connection, sql, parameters)
            if cursor.description is None:
                raise ToolFailed("the statement returns no rows: this tool takes SELECT statements")
            # One more row shows that the result is incomplete.
            rows = _fetch(cursor, self.max_rows + 1)
            columns = [column[0] for column in cursor.description]
        return Rows(columns=columns, rows=rows[: self.max_rows], is_cut=len(rows) > self.max_rows)

    def describe_database(self) -> list[str]:
        """Show the statements that created the tables and views, with their columns."""
        with closing(self._connect(writable=False)) as connection:
            sql = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND type IN ('table', 'view') ORDER BY name"
            return [str(row[0]) for row in islice(_iterate(self._execute(connection, sql, None)), self.max_rows)]

    def change_database(
        self,
        sql: Annotated[str, "one INSERT, UPDATE or DELETE statement, with ? for each value", Range(max_length=20_000)],
        parameters: Parameters = None,
    ) -> int:
        """Insert, update or delete rows; return how many. Pass values as parameters, never inside of the statement."""
        with closing(self._connect(writable=True)) as connection:
            cursor = self._execute(connection, sql, parameters)
            deque(_iterate(cursor), maxlen=0)  # a statement with RETURNING is complete when its rows have been read
            return max(0, cursor.rowcount)

    def _connect(self, *, writable: bool) -> sqlite3.Connection:
        mode = "rw" if writable and self.writable else "ro"
        try:
            connection = sqlite3.connect(f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=5, isolation_level=None)
        except sqlite3.Error as error:
            raise ToolFailed(f"the database cannot be opened: {error}") from error
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
        # The read-only mode protects this file; these limits keep a statement from reaching other files.
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        allowed = _READ_ACTIONS | (_WRITE_ACTIONS if mode == "rw" else frozenset())
        connection.set_authorizer(_authorizer(allowed))
        limit = _StatementLimit(self.max_instructions, self.max_seconds)
        connection.set_progress_handler(limit, _INSTRUCTIONS_PER_CHECK)
        return connection

    def _execute(self, connection: sqlite3.Connection, sql: str, parameters: Sequence[Value] | None) -> sqlite3.Cursor:
        try:
            return connection.execute(sql, tuple(parameters or ()))
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
            raise _translate(error) from None


class _StatementLimit:
    """A progress handler that interrupts a statement after a number of instructions or seconds of its thread."""

    def __init__(self, instructions: int, seconds: float) -> None:
        self._remaining = instructions
        # Processor time: on a busy machine a small query has the same limit as on an idle one.
        self._deadline = time.thread_time() + seconds

    def __call__(self) -> int:
        self._remaining -= _INSTRUCTIONS_PER_CHECK
        return int(self._remaining < 0 or time.thread_time() > self._deadline)


def _authorizer(allowed: frozenset[int]) -> Any:
    """Return an authorizer for these actions of SQLite and no others: no ATTACH, no PRAGMA, no change of the schema."""
    is_reading = not allowed & _WRITE_ACTIONS

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        name = (first or "").lower()
        if _is_of_virtual_table(action, name, second, is_reading=is_reading):
            return sqlite3.SQLITE_OK
        if action not in allowed:
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS:
            return sqlite3.SQLITE_DENY
        # The tables of SQLite itself describe the schema; writing to them would change it.
        if action in _WRITE_ACTIONS and name.startswith("sqlite_"):
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    return authorize


def _is_of_virtual_table(action: int, name: str, second: str | None, *, is_reading: bool) -> bool:
    """Return whether SQLite itself takes this action to open a virtual table, such as json_each or a full-text index."""
    if action == sqlite3.SQLITE_UPDATE and name == "sqlite_master":
        return second in _DECLARING
    if action == sqlite3.SQLITE_PRAGMA:
        return name in _READING_PRAGMAS and second is None
    # A spatial index prepares its changes when it is opened; a connection for reading cannot run them.
    return is_reading and action in {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_DELETE} and name.endswith(_SPATIAL_TABLES)


def _translate(error: Exception) -> ToolFailed:
    message = str(error)
    hints: Mapping[str, str] = {
        "not authorized": "this statement is not allowed here: one SELECT, or where rows may be changed one INSERT, UPDATE "
        "or DELETE; no ATTACH, no PRAGMA, no change of tables",
        "interrupted": "the statement takes too long; query less data",
        "one statement": "only one statement is run at a time",
    }
    return ToolFailed(next((hint for part, hint in hints.items() if part in message), f"the database says: {message}"))


def _fetch(cursor: sqlite3.Cursor, max_rows: int) -> list[list[Value]]:
    return [[_cell(value) for value in row] for row in islice(_iterate(cursor), max_rows)]


def _iterate(cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
    """Yield rows; SQLite computes them one by one, so each may fail."""
    try:
        yield from cursor
    except (sqlite3.Error, ValueError) as error:
        raise _translate(error) from None


def _cell(value: Any) -> Value:
    if isinstance(value, bytes):
        value = base64.b64encode(value[:_MAX_CELL_CHARACTERS]).decode()
    if isinstance(value, str) and len(value) > _MAX_CELL_CHARACTERS:
        return f"{value[:_MAX_CELL_CHARACTERS]}… ({len(value)} characters)"
    # JSON has no infinity.
    if isinstance(value, float) and value in {float("inf"), float("-inf")}:
        return str(value)
    return value  # type: ignore[no-any-return]  # SQLite has no other types


@ensemble_factory(in_folder=["path"])
def sqlite(
    path: str,
    *,
    writable: bool = False,
    max_rows: Annotated[int, Range(ge=1, le=100_000)] = 200,
    max_instructions: Annotated[int, Range(ge=1)] = 50_000_000,
    max_seconds: Annotated[float, Range(ge=0.001)] = 0.5,
) -> Ensemble:
    """Create an ensemble for one SQLite file.

    Args:
        path: the file; it has to exist.
        writable: whether rows may be inserted, updated and deleted; tables are never changed.
        max_rows: maximum number of rows that a query returns.
        max_instructions: maximum number of instructions of SQLite's virtual machine for a statement.
        max_seconds: maximum processor time of a statement, in seconds.

    Raises:
        ConfigurationError: when there is no such file.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise ConfigurationError(f"there is no file {file}; create the database first: opening it does not create it")
    database = Database(file, writable, max_rows, max_instructions, max_seconds)
    tools: list[Tool] = [tool(effect="pure")(database.describe_database), tool(effect="pure")(database.query_database)]
    if writable:
        tools.append(tool(effect="effect", sequential=True)(database.change_database))
    return Ensemble("sqlite", tools, description=f"The database {file.name}.")
