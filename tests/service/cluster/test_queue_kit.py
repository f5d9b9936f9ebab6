"""The queues of a cluster keep their laws: DBOS on SQLite and on PostgreSQL, and those in memory of the simulation."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import psycopg
import pytest

from agentloop.service.cluster import ClusterDatabase
from agentloop.service.cluster.dbos_binding import prepare_tables
from agentloop.service.cluster.engine import Engine
from agentloop.testing import QueueKit
from agentloop.testing.simulation.memory_queue import MemoryQueue
from tests.generated import examples

pytestmark = pytest.mark.unmonitored  # there are no executions
SETTLE = 1.0
"""Longer than the time in which a worker of the engine looks for work of which nothing has told it."""


def on_sqlite(folder: Path) -> Callable[[], Engine]:
    """Return a function that makes queues in a file of their own; tables are made once."""
    template, numbers = ClusterDatabase.parse(folder / "template.db"), count()
    prepare_tables(template)

    def create() -> Engine:
        database = ClusterDatabase.parse(folder / f"cluster-{next(numbers)}.db")
        shutil.copy(template.engine_path, database.engine_path)
        return Engine(database)

    return create


def on_postgres(url: str) -> Callable[[], Engine]:
    """Return a function that empties the queues of a database."""
    database = ClusterDatabase.parse(url)
    prepare_tables(database)

    def create() -> Engine:
        with psycopg.connect(url, autocommit=True) as connection:
            found = connection.execute(
                "SELECT string_agg(format('%I.%I', schemaname, tablename), ', ') FROM pg_tables "
                "WHERE schemaname = 'dbos' AND tablename <> 'dbos_migrations'"
            ).fetchone()
            assert found is not None
            connection.execute(f"TRUNCATE {found[0]} CASCADE".encode())
        return Engine(database)

    return create


@pytest.mark.parametrize("law", QueueKit.laws)
def test_queues_on_sqlite_keep_the_laws(tmp_path: Path, law: int) -> None:
    """DBOS, on a file."""
    QueueKit(on_sqlite(tmp_path), places=1, settle=SETTLE, examples=2).check(law)


@pytest.mark.parametrize("law", QueueKit.laws)
def test_queues_on_postgres_keep_the_laws(postgres_url: str, law: int) -> None:
    """DBOS, on a server."""
    QueueKit(on_postgres(postgres_url), places=1, settle=SETTLE, examples=2).check(law)


@pytest.mark.parametrize("law", QueueKit.laws)
def test_queues_in_memory_keep_the_laws(law: int) -> None:
    """Those of the simulation, with several workers at once."""
    QueueKit(MemoryQueue, examples=examples(30)).check(law)
