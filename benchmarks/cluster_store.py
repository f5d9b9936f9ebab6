"""The databases of `cluster.py`: how large they are, who serves them, and many copies of a suspended execution in them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from cluster_peers import QUEUE
from dbos import DBOSClient

from tests.postgres import run_sql

_SERIES = {
    "postgresql": "generate_series(1, {count}) AS n(n)",
    "sqlite": "(WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count}) SELECT n FROM n) AS n",
}


def bytes_of(location: str) -> int:
    """Return the bytes of a database on disk, without free pages of SQLite's log."""
    if location.startswith("postgresql://"):
        run_sql(location, "CHECKPOINT")
        return int(str(run_sql(location, "SELECT pg_database_size(current_database())")[0][0]))
    for path in Path(location).parent.glob("*.db*"):
        if path.name.endswith(".db"):
            with closing(sqlite3.connect(path, timeout=30)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return sum(path.stat().st_size for path in Path(location).parent.glob("*.db*") if path.is_file())


def processes_of(location: str, server_url: str) -> list[int]:
    """Return the processes of the server that serve a PostgreSQL database; none for SQLite."""
    if not location.startswith("postgresql://"):
        return []
    name = run_sql(location, "SELECT current_database()")[0][0]
    rows = run_sql(server_url, "SELECT pid FROM pg_stat_activity WHERE datname = %s", name)
    return [int(str(pid)) for (pid,) in rows]


def run_all(url: str, runs: int, turns: int) -> float:
    """Queue workflows of DBOS alone; return how many end in a second, from the first start to the last end."""
    client = DBOSClient(system_database_url=url)
    try:
        for _ in range(runs):
            client.enqueue({"workflow_name": "run", "queue_name": QUEUE, "app_version": "1"}, turns)
        while True:
            found = client.list_workflows(load_input=False, load_output=False, limit=runs)
            if len(found) == runs and all(each.status == "SUCCESS" for each in found):
                break
            time.sleep(0.25)
        begin = min(each.dequeued_at or 0 for each in found)
        end = max(each.updated_at or 0 for each in found)
        return runs / ((end - begin) / 1000)
    finally:
        client.destroy()


# --- copies of a suspended execution --------------------------------------------------------------------------------------


def copy_suspended(location: str, execution_id: str, count: int) -> None:
    """Add copies of an execution and of the job that started it."""
    if location.startswith("postgresql://"):
        _copy_in_postgres(location, execution_id, count)
    else:
        _copy_in_sqlite(location, execution_id, count)


def _copy(dialect: str, table: str, columns: Sequence[str], changed: dict[str, str], *, where: str, count: int) -> str:
    values = ", ".join(changed.get(column, f"t.{column}") for column in columns)
    series = _SERIES[dialect].format(count=count)
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table} AS t, {series} WHERE {where}"


def _copy_in_postgres(url: str, execution_id: str, count: int) -> None:
    new_key = "(SELECT key FROM agentloop.executions AS e WHERE e.execution_id = 'copy ' || n.n)"
    old_key = f"t.key = (SELECT key FROM agentloop.executions WHERE execution_id = '{execution_id}')"
    named = f"t.execution_id = '{execution_id}'"
    new_id = {"execution_id": "'copy ' || n.n"}
    for table, changed, where in (
        ("agentloop.executions", {**new_id, "agent_id": "'agent ' || n.n"}, named),
        ("agentloop.records", {"key": new_key}, old_key),
        ("agentloop.claims", new_id, named),
        ("dbos.workflow_status", {"workflow_uuid": "'execution:start:copy ' || n.n"}, "true"),
    ):
        schema, name = table.split(".")
        rows = run_sql(
            url,
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
            "AND is_identity = 'NO' AND is_generated = 'NEVER' ORDER BY ordinal_position",
            schema,
            name,
        )
        run_sql(url, _copy("postgresql", table, [str(column) for (column,) in rows], changed, where=where, count=count))
    run_sql(url, "VACUUM ANALYZE")


def _copy_in_sqlite(path: str, execution_id: str, count: int) -> None:
    named = f"t.execution_id = '{execution_id}'"
    new_id = {"execution_id": "'copy ' || n.n"}
    for file, table, changed, where in (
        (path, "executions", {**new_id, "agent_id": "'agent ' || n.n"}, named),
        (path, "records", new_id, named),
        (f"{path}-engine", "workflow_status", {"workflow_uuid": "'execution:start:copy ' || n.n"}, "true"),
    ):
        with closing(sqlite3.connect(file, timeout=30)) as connection:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            connection.execute(_copy("sqlite", table, columns, changed, where=where, count=count))
            connection.commit()
