"""Everything that a database holds after a chaos run: every value of data parses as JSON, and nothing is a pickle."""

from __future__ import annotations

import base64
import binascii
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from tests.postgres import run_sql

_JSON_COLUMNS = frozenset({"inputs", "output", "error", "message", "value", "body", "payload", "context", "note"})
"""The columns that hold data, in the tables of the journal and of the engine."""
_DIGEST_COLUMNS = frozenset({"hash", "previous_hash", "last_hash", "digest"})
"""Columns of random bytes, which can begin like anything."""
_PICKLES = (b"\x80\x03", b"\x80\x04", b"\x80\x05")


def find_foreign_values(database: str) -> Iterator[str]:
    """Yield a description of each value that is no JSON, or is a pickle.

    Args:
        database: the path of a SQLite file, with those beside it; or the URL of a PostgreSQL database.
    """
    values = _postgres_values(database) if "://" in database else _sqlite_values(Path(database))
    for place, column, value in values:
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        if column not in _DIGEST_COLUMNS and _is_pickle(data):
            yield f"{place}.{column} holds a pickle: {data[:60]!r}"
        elif column in _JSON_COLUMNS and data and not _is_json(data):
            yield f"{place}.{column} holds no JSON: {data[:60]!r}"


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def _is_pickle(data: bytes) -> bool:
    if data.startswith(_PICKLES):
        return True
    try:
        return base64.b64decode(data, validate=True).startswith(_PICKLES)
    except (binascii.Error, ValueError):
        return False


def _sqlite_values(path: Path) -> Iterator[tuple[str, str, object]]:
    for file in sorted(path.parent.glob(f"{path.name}*")):
        if not file.is_file() or not file.read_bytes().startswith(b"SQLite format 3"):
            continue
        with closing(sqlite3.connect(file)) as connection:
            connection.text_factory = bytes
            tables = [
                row[0].decode() for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
            for table in tables:
                cursor = connection.execute(f'SELECT * FROM "{table}"')
                columns = [entry[0] for entry in cursor.description]
                for row in cursor:
                    yield from _texts(f"{file.name}: {table}", columns, row)


def _postgres_values(url: str) -> Iterator[tuple[str, str, object]]:
    tables = run_sql(
        url, "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    )
    for schema, table in tables:
        columns = [
            str(row[0])
            for row in run_sql(
                url,
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped "
                "ORDER BY attnum",
                f'"{schema}"."{table}"',
            )
        ]
        for row in run_sql(url, f'SELECT * FROM "{schema}"."{table}"'):
            yield from _texts(f"{schema}.{table}", columns, row)


def _texts(place: str, columns: list[str], row: tuple[object, ...]) -> Iterator[tuple[str, str, object]]:
    for column, value in zip(columns, row, strict=True):
        if isinstance(value, str | bytes):
            yield place, column, value
        elif isinstance(value, memoryview):
            yield place, column, bytes(value)
