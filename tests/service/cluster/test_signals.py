"""How a worker that waits hears of work, and what it reads while there is none."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from sqlalchemy import Engine as DatabaseEngine
from sqlalchemy import event

from agentloop.service.cluster import Cluster, ClusterDatabase, liveness
from agentloop.service.cluster.dbos_binding import prepare_tables
from agentloop.service.cluster.liveness import FileSignal, wake_workers
from tests.limits import LONGEST
from tests.service.cluster.workers import AGENT, eventually, working


@pytest.fixture
def database(tmp_path: Path) -> ClusterDatabase:
    """A SQLite file with the tables of the engine."""
    found = ClusterDatabase.parse(tmp_path / "cluster.db")
    prepare_tables(found)
    return found


@pytest.fixture
def signal(database: ClusterDatabase) -> Iterator[FileSignal]:
    """The signal of a worker that has seen the file."""
    with closing(FileSignal(database)) as opened:
        opened.wait(0)
        yield opened


def woken_by(signal: FileSignal, act: Callable[[], object]) -> bool:
    """Return whether a wait ends because of what a function does while it lasts."""
    ended = Event()

    def wait() -> None:
        signal.wait(LONGEST)
        ended.set()

    thread = Thread(target=wait)
    thread.start()
    act()
    has_ended = ended.wait(LONGEST / 2)
    signal.wake()
    thread.join()
    return has_ended


def write(database: ClusterDatabase) -> None:
    """Write to the file of the engine, as a program that tells nobody."""
    with closing(sqlite3.connect(database.engine_path)) as connection, connection:
        connection.execute("CREATE TABLE another (n)")


def test_a_worker_hears_of_work_without_a_look_at_the_file(
    database: ClusterDatabase, signal: FileSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal.wait(0)
    monkeypatch.setattr(signal, "_interval", LONGEST)

    assert woken_by(signal, lambda: wake_workers(database))


def test_a_worker_notices_work_of_which_nobody_told(database: ClusterDatabase, signal: FileSignal) -> None:
    assert woken_by(signal, lambda: write(database))


def test_a_worker_looks_at_the_file_where_there_are_no_pipes_with_names(
    database: ClusterDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not on this drive")

    monkeypatch.setattr(os, "mkfifo", refuse)
    with closing(FileSignal(database)) as signal:
        signal.wait(0)
        assert woken_by(signal, lambda: write(database))
        assert woken_by(signal, signal.wake)


def test_a_wake_before_the_wait_is_not_lost(signal: FileSignal) -> None:
    signal.wake()
    begin = time.monotonic()
    signal.wait(LONGEST)

    assert time.monotonic() - begin < LONGEST / 2


def test_the_pipe_of_a_worker_that_has_died_is_removed(database: ClusterDatabase, signal: FileSignal) -> None:
    left = database.workers_path / f"left{liveness._PIPE_SUFFIX}"
    os.mkfifo(left)
    wake_workers(database)

    assert not left.exists()
    assert len(list(database.workers_path.iterdir())) == 1, "that of the live one"


def test_a_closed_signal_leaves_nothing(database: ClusterDatabase) -> None:
    FileSignal(database).close()

    assert not list(database.workers_path.iterdir())


async def test_a_worker_without_work_reads_no_jobs_that_have_ended(tmp_path: Path) -> None:
    db = str(tmp_path / "cluster.db")
    statements: dict[str, Any] = {}

    def note(_: object, __: object, statement: str, values: Any, *___: object) -> None:
        statements[statement] = values

    async with Cluster(db) as cluster, working(db):
        await cluster.result(await cluster.submit(AGENT, "mark a"))
        event.listen(DatabaseEngine, "before_cursor_execute", note)
        try:
            # Each thread of the worker looks once per second.
            await eventually(lambda: any("DISTINCT" in each for each in statements) and len(statements) >= _LOOKS)
        finally:
            event.remove(DatabaseEngine, "before_cursor_execute", note)

    with closing(sqlite3.connect(ClusterDatabase.parse(db).engine_path)) as connection:
        plans = {
            each: [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {each}", values)]
            for each, values in statements.items()
        }
    steps = {each: step for each, plan in plans.items() for step in plan if "SCAN main.workflow_status" in step}
    # The index of running jobs holds these alone.
    assert {step.rpartition(" ")[2] for step in steps.values()} == {"idx_workflow_status_pending"}, steps


_LOOKS = 7
"""How many different statements an idle worker repeats: for queues, versions, jobs, delays, deadlines, schedules, and the dead."""
