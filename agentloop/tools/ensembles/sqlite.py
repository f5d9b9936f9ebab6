"""Queries on one SQLite file."""

from __future__ import annotations

import base64
import sqlite3
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypedDict

from attrs import frozen

from agentloop.contracts.tool import Tool
from agentloop.errors import ConfigurationError, ToolFailed
from agentloop.tools.decorator import tool
from agentloop.tools.ensembles.ensemble import Ensemble, makes_ensemble
from agentloop.tools.schema import Bounds

Value: TypeAlias = str | int | float | bool | None
Parameters: TypeAlias = Annotated[
    list[Value] | None, "values for the question marks of the statement, in order", Bounds(max_length=500)
]

_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_WRITING = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
_REFUSED_FUNCTIONS = frozenset({"load_extension", "writefile", "readfile", "edit", "fts3_tokenizer"})
_MOST_CELL_CHARACTERS = 10_000
_LONGEST_VALUE = 10_000_000
_INSTRUCTIONS_BETWEEN_LOOKS = 10_000


class Rows(TypedDict):
    """What a query returned."""

    columns: list[str]
    rows: list[list[Value]]
    is_cut: bool


@frozen
class Database:
    """The work of the tools. Each call opens the file for itself, so that calls may run at the same time.

    Attributes:
        path: the file.
        writable: whether rows may be inserted, updated and deleted.
        max_rows: the most rows that a query returns.
        max_instructions: the most steps of SQLite's machine that a statement may take.
    """

    path: Path
    writable: bool
    max_rows: int
    max_instructions: int

    def query_database(
        self,
        sql: Annotated[str, "one SELECT statement, with ? for each value", Bounds(min_length=1, max_length=20_000)],
        parameters: Parameters = None,
    ) -> Rows:
        """Read from the database. Give values as parameters, never inside of the statement."""
        with closing(self._opened(writable=False)) as connection:
            cursor = self._executed(connection, sql, parameters)
            if cursor.description is None:
                raise ToolFailed("the statement returns no rows: this tool takes SELECT statements")
            rows = _fetched(cursor, self.max_rows + 1)
            columns = [column[0] for column in cursor.description]
        return Rows(columns=columns, rows=rows[: self.max_rows], is_cut=len(rows) > self.max_rows)

    def describe_database(self) -> list[str]:
        """Show the statements that made the tables and views, which tell their columns."""
        with closing(self._opened(writable=False)) as connection:
            sql = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND type IN ('table', 'view') ORDER BY name"
            return [str(row[0]) for row in islice(_rows_of(self._executed(connection, sql, None)), self.max_rows)]

    def change_database(
        self,
        sql: Annotated[str, "one INSERT, UPDATE or DELETE statement, with ? for each value", Bounds(max_length=20_000)],
        parameters: Parameters = None,
    ) -> int:
        """Insert, update or delete rows; return how many. Give values as parameters, never inside of the statement."""
        with closing(self._opened(writable=True)) as connection:
            cursor = self._executed(connection, sql, parameters)
            deque(_rows_of(cursor), maxlen=0)  # a statement that returns rows is done when they have been read
            return max(0, cursor.rowcount)

    def _opened(self, *, writable: bool) -> sqlite3.Connection:
        mode = "rw" if writable and self.writable else "ro"
        try:
            connection = sqlite3.connect(f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=5, isolation_level=None)
        except sqlite3.Error as error:
            raise ToolFailed(f"the database cannot be opened: {error}") from error
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        allowed = _READING | (_WRITING if mode == "rw" else frozenset())
        connection.set_authorizer(_authorizer(allowed))
        connection.set_progress_handler(_Budget(self.max_instructions), _INSTRUCTIONS_BETWEEN_LOOKS)
        return connection

    def _executed(self, connection: sqlite3.Connection, sql: str, parameters: Sequence[Value] | None) -> sqlite3.Cursor:
        try:
            return connection.execute(sql, tuple(parameters or ()))
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
            raise _told(error) from None


class _Budget:
    """Lets a statement run for so many instructions."""

    def __init__(self, instructions: int) -> None:
        self._left = instructions

    def __call__(self) -> int:
        self._left -= _INSTRUCTIONS_BETWEEN_LOOKS
        return int(self._left < 0)


def _authorizer(allowed: frozenset[int]) -> Any:
    """Allow these actions of SQLite's and no others: no ATTACH, no PRAGMA, no change of the schema."""

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action not in allowed:
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _REFUSED_FUNCTIONS:
            return sqlite3.SQLITE_DENY
        if action in _WRITING and (first or "").lower().startswith("sqlite_"):
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    return authorize


def _told(error: Exception) -> ToolFailed:
    told = str(error)
    hints: Mapping[str, str] = {
        "not authorized": "this statement is not allowed here: one SELECT, or where rows may be changed one INSERT, UPDATE "
        "or DELETE; no ATTACH, no PRAGMA, no change of tables",
        "interrupted": "the statement takes too long; ask for less",
        "one statement": "only one statement is run at a time",
    }
    return ToolFailed(next((hint for part, hint in hints.items() if part in told), f"the database says: {told}"))


def _fetched(cursor: sqlite3.Cursor, most: int) -> list[list[Value]]:
    return [[_cell(value) for value in row] for row in islice(_rows_of(cursor), most)]


def _rows_of(cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
    """Yield rows; computing one may be what fails."""
    try:
        yield from cursor
    except (sqlite3.Error, ValueError) as error:
        raise _told(error) from None


def _cell(value: Any) -> Value:
    if isinstance(value, bytes):
        value = base64.b64encode(value[:_MOST_CELL_CHARACTERS]).decode()
    if isinstance(value, str) and len(value) > _MOST_CELL_CHARACTERS:
        return f"{value[:_MOST_CELL_CHARACTERS]}… ({len(value)} characters)"
    if isinstance(value, float) and value in {float("inf"), float("-inf")}:
        return str(value)
    return value  # type: ignore[no-any-return]  # SQLite has no other types


@makes_ensemble
def sqlite(
    path: str,
    *,
    writable: bool = False,
    max_rows: Annotated[int, Bounds(ge=1, le=100_000)] = 200,
    max_instructions: Annotated[int, Bounds(ge=1)] = 50_000_000,
) -> Ensemble:
    """Make the ensemble of one SQLite file.

    Args:
        path: the file; it has to be there.
        writable: whether rows may be inserted, updated and deleted; tables are never changed.
        max_rows: the most rows that a query returns.
        max_instructions: the most steps of SQLite's machine that a statement may take.

    Raises:
        ConfigurationError: when there is no such file.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise ConfigurationError(f"there is no file {file}; make the database first, it is not made by opening it")
    work = Database(file, writable, max_rows, max_instructions)
    tools: list[Tool] = [tool(effect="pure")(work.describe_database), tool(effect="pure")(work.query_database)]
    if writable:
        tools.append(tool(effect="effect", sequential=True)(work.change_database))
    return Ensemble("sqlite", tools, description=f"The database {file.name}.")
