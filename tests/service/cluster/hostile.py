"""What somebody who can write to a database puts into it, and whether any of it ran."""

from __future__ import annotations

import base64
import json
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.postgres import run_sql

MARKER = "ran-from-a-row"
"""The file that hostile data creates when it runs."""


class _Runs:
    """Creates a file when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self._folder / MARKER,)


def pickled(folder: Path) -> bytes:
    """Return a pickle that creates the marker in a folder when it is read."""
    return pickle.dumps(_Runs(folder))


def encoded(folder: Path) -> str:
    """Return the pickle in Base64, as DBOS would store it."""
    return base64.b64encode(pickled(folder)).decode()


def polyglot(folder: Path) -> str:
    """Return a text that is the input of a job for a reader of JSON, and the pickle for a reader of Base64, which skips other signs."""
    raw = pickled(folder)
    raw += b"." * (-len(raw) % 3)
    text = json.dumps({base64.b64encode(raw).decode(): 0, "args": [{"x": "Z"}], "kwargs": {}})
    signs = sum(character.isalnum() or character in "+/" for character in text)
    return text.replace('"Z"', '"' + "Z" * (1 + -signs % 4) + '"')


MODULE = "agentloop_hostile_module"
"""A module that nothing but hostile data names."""


def write_module(folder: Path) -> None:
    """Write the module into a folder; it creates the marker there when it is imported."""
    (folder / f"{MODULE}.py").write_text(f"import pathlib; pathlib.Path({str(folder / MARKER)!r}).touch()\n")


def has_run(folder: Path) -> bool:
    """Return whether any of it ran."""
    return (folder / MARKER).exists()


class EngineTables:
    """The tables of the engine, as somebody sees them who has the rights to change anything.

    Args:
        db: the database of the cluster.
    """

    def __init__(self, db: str) -> None:
        self.is_sqlite = not db.startswith("postgresql")
        self._db = db
        self._file = f"{db}-engine"

    def run(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Run a statement with `?` for its values; tables are named without a schema."""
        if self.is_sqlite:
            with closing(sqlite3.connect(self._file, timeout=60, isolation_level=None)) as connection:
                return connection.execute(statement, values).fetchall()
        url = f"{self._db}{'&' if '?' in self._db else '?'}options=-csearch_path%3Ddbos"
        return run_sql(url, statement.replace("?", "%s"), *values)

    def remove_guards(self) -> None:
        """Remove what lets the database refuse data of another format."""
        if self.is_sqlite:
            for (name,) in self.run("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
                self.run(f"DROP TRIGGER {name}")
        else:
            self.run("ALTER TABLE workflow_status DROP CONSTRAINT IF EXISTS agentloop_format")

    def columns(self) -> list[tuple[str, str]]:
        """Return the tables and columns, all of them, from the catalog."""
        if self.is_sqlite:
            tables = [str(name) for (name,) in self.run("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return [(table, str(row[1])) for table in tables for row in self.run(f"PRAGMA table_info({table})")]
        found = run_sql(
            self._db,
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'dbos' ORDER BY 1, ordinal_position",
        )
        return [(str(table), str(column)) for table, column in found]
