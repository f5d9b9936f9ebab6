"""What a cluster needs to be installed, and what it says when that is missing or does not fit."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from agentloop.errors import ClusterError, ConfigurationError
from agentloop.service.cluster import ClusterDatabase, Worker, dbos_binding
from agentloop.service.cluster.engine_worker import EngineWorker
from tests.limits import LONGEST
from tests.service.cluster import agents
from tests.service.cluster.workers import AGENT

_ROOT = Path(__file__).parents[3]
_BLOCKED = """
import sys
sys.modules["{package}"] = None
from agentloop.errors import ConfigurationError
from agentloop.service.cluster import Cluster
try:
    Cluster("agentloop.db")
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.parametrize("package", ["dbos", "psycopg"])
def test_without_the_packages_of_the_extra_the_error_says_what_to_install(package: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _BLOCKED.format(package=package)], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    assert "a cluster needs the extra `cluster`: pip install" in run.stdout


def test_what_agentloop_adds_for_sqlite_loads_no_driver_of_postgresql(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["psycopg"] = None
from agentloop.service.cluster.database import ClusterDatabase
from agentloop.service.cluster.liveness import open_locks, open_signal
from agentloop.errors import ConfigurationError
database = ClusterDatabase.parse({str(tmp_path / "agentloop.db")!r})
locks = open_locks(database)
assert locks.connect() and locks.take("one")
locks.close()
for opened in (open_locks, open_signal):
    try:
        opened(ClusterDatabase.parse("postgresql://host/agents"))
    except ConfigurationError as error:
        print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.count("a cluster on PostgreSQL needs the extra `postgres`: pip install") == 2


def test_the_installed_dbos_has_what_is_used_of_it() -> None:
    assert dbos_binding.find_differences(dbos_binding.SystemDatabase) == []


def test_a_dbos_that_differs_is_refused_with_the_version_that_was_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Renamed(dbos_binding.SystemDatabase):
        def reenqueue_for_recovery(self, workflow: str) -> bool:  # type: ignore[override]  # as another version may have it
            return bool(workflow)

    monkeypatch.setattr(dbos_binding, "SystemDatabase", Renamed)
    dbos_binding.check_dbos.cache_clear()
    with pytest.raises(ConfigurationError, match=r"lacks reenqueue_for_recovery, .* tried with 3\.4"):
        dbos_binding.prepare_tables(ClusterDatabase.parse(tmp_path / "agentloop.db"))
    dbos_binding.check_dbos.cache_clear()


@pytest.mark.parametrize(
    ("python", "sqlite", "fits"),
    [((3, 11), (3, 40), True), ((3, 12), (3, 42), True), ((3, 13), (3, 41), False), ((3, 14), (3, 50), True)],
)
def test_a_sqlite_without_what_dbos_needs_is_refused(
    python: tuple[int, int], sqlite: tuple[int, int], *, fits: bool
) -> None:
    """Its tables would refuse every queue, since their times would be NULL."""
    if fits:
        dbos_binding.check_sqlite(python, sqlite)
        return
    with pytest.raises(
        ConfigurationError, match=r"needs SQLite 3\.42 or newer under this version of Python, which has 3\.41"
    ):
        dbos_binding.check_sqlite(python, sqlite)


async def test_a_worker_whose_engine_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What ends with it does not hide the error."""

    def fail(*_: object) -> None:
        raise ClusterError("the engine cannot start")

    monkeypatch.setattr(EngineWorker, "start", fail)
    with pytest.raises(ClusterError, match="the engine cannot start"):
        await Worker({AGENT: agents.loop}, str(tmp_path / "agentloop.db")).run()


def test_processes_that_open_a_new_database_at_once_create_its_tables_once(postgres_url: str) -> None:
    """Workers and clusters that meet in an empty PostgreSQL database all find its tables, and none fails."""
    database, barrier, count = ClusterDatabase.parse(postgres_url), Barrier(6), 6

    def prepare(_: int) -> None:
        barrier.wait(LONGEST)
        dbos_binding.prepare_tables(database)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(prepare, range(count)))  # raises what one raised
