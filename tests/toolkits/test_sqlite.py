"""The SQLite toolkit."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentloop.errors import ConfigurationError
from agentloop.toolkits.sqlite import sqlite
from agentloop.values import Effect, ToolStatus
from tests.toolkits.running import executions, run_call, run_calls


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a database with two customers and many numbers; another database is in the same folder."""
    for name in ("shop.db", "other.db"):
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            connection.executescript(
                "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, photo BLOB);"
                "INSERT INTO customers VALUES (1, 'Ada', x'00ff'), (2, 'Bob', NULL);"
                "CREATE TABLE numbers (n INTEGER);"
                "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 1000) INSERT INTO numbers SELECT n FROM r;"
                "CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, a); INSERT INTO counted (a) VALUES (1);"
                "CREATE INDEX by_n ON numbers (n);"
                "CREATE VIEW names AS SELECT name FROM customers;"
            )
    return tmp_path / "shop.db"


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


async def test_a_model_reads_the_database(path: Path) -> None:
    """Tables are described; parameters, joins, functions and recursion work."""
    state = await run_calls(
        [sqlite(str(path))],
        ("describe_database", {}),
        (
            "query_database",
            {"sql": "SELECT id, upper(name) AS name FROM customers WHERE name = ?", "parameters": ["Ada"]},
        ),
        ("query_database", {"sql": "SELECT count(*), max(n) FROM numbers JOIN customers ON id = 1"}),
        (
            "query_database",
            {"sql": "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 5) SELECT * FROM r"},
        ),
        ("query_database", {"sql": "SELECT photo, 1e999, NULL FROM customers WHERE id = 1"}),
        ("query_database", {"sql": "SELECT * FROM names"}),
    )
    tables, *results = [execution.value for execution in executions(state)]
    assert "CREATE TABLE numbers (n INTEGER)" in tables  # type: ignore[operator]  # a list
    rows = [result["rows"] for result in results]  # type: ignore[index,call-overload]  # objects
    assert rows[0] == ((1, "ADA"),)
    assert rows[1] == ((1000, 1000),)
    assert [row[0] for row in rows[2]] == [1, 2, 3, 4, 5]
    assert rows[3] == (("AP8=", "inf", None),)
    assert rows[4] == (("Ada",), ("Bob",))
    assert results[0]["columns"] == ("id", "name")  # type: ignore[index,call-overload]  # an object


INJECTIONS = [
    "' OR '1'='1",
    "Ada'; DROP TABLE customers; --",
    '" OR 1=1 --',
    "%",
    "Ada' UNION SELECT sql FROM sqlite_master --",
]


@pytest.mark.parametrize("value", INJECTIONS)
async def test_a_parameter_is_never_part_of_the_statement(path: Path, value: str) -> None:
    """A parameter is compared as a value and never executed, whatever its text is."""
    before = dump(path)
    sql = "SELECT * FROM customers WHERE name = ?"
    execution = await run_call([sqlite(str(path), writable=True)], "query_database", sql=sql, parameters=[value])
    assert execution.value["rows"] == ()  # type: ignore[index,call-overload]  # an object
    assert dump(path) == before


FORBIDDEN = [
    "ATTACH DATABASE '{other}' AS other",
    "ATTACH ':memory:' AS other",
    "DETACH DATABASE main",
    "PRAGMA writable_schema = 1",
    "PRAGMA user_version = 7",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA query_only = 0",
    "PRAGMA table_info(customers)",
    "SELECT * FROM pragma_table_info('customers')",
    "VACUUM",
    "VACUUM INTO '{other}.copy'",
    "REINDEX",
    "ANALYZE",
    "DROP TABLE customers",
    "DROP VIEW names",
    "ALTER TABLE customers ADD COLUMN x",
    "CREATE TABLE x (a)",
    "CREATE TEMP TABLE x (a)",
    "CREATE INDEX i ON customers (name)",
    "CREATE TRIGGER t AFTER INSERT ON customers BEGIN DELETE FROM customers; END",
    "CREATE VIRTUAL TABLE v USING fts5(x)",
    "SELECT load_extension('x')",
    "BEGIN",
    "SAVEPOINT x",
    "UPDATE sqlite_master SET sql = 'x'",
    "INSERT INTO sqlite_master VALUES (1, 2, 3, 4, 5)",
    "UPDATE sqlite_sequence SET seq = 9",
    "DELETE FROM SQLITE_SEQUENCE",
    "SELECT 1; DROP TABLE customers",
    "DELETE FROM customers; DELETE FROM numbers",
]
CHANGES = [
    "INSERT INTO customers VALUES (3, 'Eve', NULL)",
    "UPDATE customers SET name = 'Eve'",
    "DELETE FROM customers",
    "REPLACE INTO customers VALUES (1, 'Eve', NULL)",
    "INSERT INTO customers VALUES (3, 'Eve', NULL) RETURNING *",
    "WITH x AS (SELECT 1) DELETE FROM customers",
]


@pytest.mark.parametrize("sql", [*FORBIDDEN, *CHANGES])
async def test_queries_change_nothing(path: Path, sql: str) -> None:
    """The query tool never writes, attaches or configures anything, not even in a writable ensemble."""
    before = dump(path), dump(path.with_name("other.db")), sorted(path.parent.iterdir())
    sql = sql.format(other=path.with_name("other.db"))
    for group in (sqlite(str(path)), sqlite(str(path), writable=True)):
        execution = await run_call([group], "query_database", sql=sql)
        assert execution.status is ToolStatus.FAILED
    assert (dump(path), dump(path.with_name("other.db")), sorted(path.parent.iterdir())) == before


@pytest.mark.parametrize("sql", FORBIDDEN)
async def test_changes_are_limited_to_rows(path: Path, sql: str) -> None:
    """A writable ensemble cannot change tables, settings or other files."""
    before = dump(path), dump(path.with_name("other.db")), sorted(path.parent.iterdir())
    sql = sql.format(other=path.with_name("other.db"))
    execution = await run_call([sqlite(str(path), writable=True)], "change_database", sql=sql)
    assert execution.status is ToolStatus.FAILED
    assert (dump(path), dump(path.with_name("other.db")), sorted(path.parent.iterdir())) == before


async def test_rows_are_changed(path: Path) -> None:
    """Each change is committed and returns the number of rows."""
    state = await run_calls(
        [sqlite(str(path), writable=True)],
        ("change_database", {"sql": "INSERT INTO customers (name) VALUES (?)", "parameters": ["Eve'); --"]}),
        ("change_database", {"sql": "UPDATE customers SET name = upper(name) WHERE id < ?", "parameters": [3]}),
        ("change_database", {"sql": "DELETE FROM numbers"}),
        ("change_database", {"sql": "UPDATE customers SET photo = NULL RETURNING id"}),
        ("change_database", {"sql": "INSERT INTO counted (a) VALUES (2), (3)"}),
        ("query_database", {"sql": "SELECT name FROM customers ORDER BY id"}),
    )
    outcomes = executions(state)
    assert [outcome.value for outcome in outcomes[:5]] == [1, 2, 1000, 3, 2]
    assert outcomes[5].value["rows"] == (("ADA",), ("BOB",), ("Eve'); --",))  # type: ignore[index,call-overload]  # an object


async def test_rows_and_cells_are_capped(path: Path) -> None:
    """A result with fewer rows than the query has `is_cut`, and long cells are shortened."""
    group = sqlite(str(path), max_rows=10)
    cut = (await run_call([group], "query_database", sql="SELECT n FROM numbers ORDER BY n")).value
    assert (len(cut["rows"]), cut["is_cut"]) == (10, True)  # type: ignore[index,call-overload]  # an object
    whole = (await run_call([group], "query_database", sql="SELECT n FROM numbers LIMIT 10")).value
    assert (len(whole["rows"]), whole["is_cut"]) == (10, False)  # type: ignore[index,call-overload]  # an object
    long = (await run_call([group], "query_database", sql="SELECT printf('%20000d', 1)")).value
    assert len(long["rows"][0][0]) < 10_100  # type: ignore[index,call-overload]  # an object


@pytest.mark.parametrize(
    ("sql", "parameters", "message"),
    [
        (
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r",
            None,
            "takes too long",
        ),
        ("SELECT count(*) FROM numbers a, numbers b, numbers c, numbers d", None, "takes too long"),
        ("SELECT zeroblob(1000000000)", None, "too big"),
        ("SELECT * FROM custmers", None, "no such table: custmers"),
        ("SELEC 1", None, "syntax error"),
        ("SELECT ?", None, "binding"),
        ("SELECT ?", [1, 2], "binding"),
        ("SELECT ?", [2**70], "too large"),
        ("SELECT 'a\x00b'", None, ""),
        ("-- nothing", None, "returns no rows"),
    ],
)
async def test_failed_queries_have_a_reason(path: Path, sql: str, parameters: list[Any] | None, message: str) -> None:
    """Mistakes, endless statements and huge values fail with a reason."""
    group = sqlite(str(path), max_instructions=1_000_000)
    execution = await run_call([group], "query_database", sql=sql, parameters=parameters)
    assert execution.status is ToolStatus.FAILED
    assert message in execution.error_message


def test_the_tools_declare_their_effects(path: Path) -> None:
    """Queries are pure; changes are an effect, and offered only in a writable ensemble."""
    assert {tool.name: tool.effect for tool in sqlite(str(path)).offered} == {
        "describe_database": Effect.PURE,
        "query_database": Effect.PURE,
    }
    assert {tool.name: tool.effect for tool in sqlite(str(path), writable=True).offered}[
        "change_database"
    ] is Effect.EFFECT


def test_the_file_has_to_exist(path: Path) -> None:
    """A missing file is an error at construction; one that is removed or no database later fails the call."""
    with pytest.raises(ConfigurationError, match="there is no file"):
        sqlite(str(path.with_name("none.db")))
    group = sqlite(str(path))
    path.write_text("no database " * 100)
    assert "not a database" in asyncio.run(run_call([group], "describe_database")).error_message
    path.unlink()
    assert "cannot be opened" in asyncio.run(run_call([group], "describe_database")).error_message
    assert not path.exists()


async def test_file_names_with_special_characters_work(tmp_path: Path) -> None:
    """Characters with a meaning in URIs have none in the name of the file."""
    odd = tmp_path / "a?mode=rwc&x#y%41.db"
    with closing(sqlite3.connect(odd)) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.commit()
    assert (await run_call([sqlite(str(odd))], "describe_database")).value == ("CREATE TABLE t (a)",)
