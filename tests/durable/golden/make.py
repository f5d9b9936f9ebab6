"""Writes the golden files of a journal; run once for each version of its tables or records, never for an earlier version.

python -m tests.durable.golden.make
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import attrs

from agentloop.durable import SqliteJournal
from agentloop.durable.chain import chain_record
from agentloop.testing.journal_bench import append_claimed
from agentloop.values.records import ExecutionHead, JournalRecord, RecordKind
from agentloop.values.steps import ExecutionStatus
from tests.durable.records import START, make_head

HERE = Path(__file__).parent
GOLDEN_VERSION = 4
"""The number of the newest golden file, which is the schema version of its records."""
FIRST_VERSIONS = {RecordKind.CALL_ATTACHED: 3}
"""The version of the records with which a kind came, if not with the first."""
SPILL_CHARACTERS = 300


def make_all_kinds(execution_id: str, schema_version: int) -> list[JournalRecord]:
    """Return a record of each kind: short ones, some with long texts, and a long one without a long text."""
    records: list[JournalRecord] = []
    kinds = [kind for kind in RecordKind if FIRST_VERSIONS.get(kind, 1) <= schema_version]
    for sequence, kind in enumerate(kinds, 1):
        body: dict[str, object] = {"of": execution_id, "kind": kind.value, "text": 'é " \\ \n 😀'}
        if sequence % 4 == 0:
            body |= {"result": "a long result " * 30, "again": "a long result " * 30, "number": sequence}
        if sequence == len(kinds):
            body["values"] = list(range(200))
        record = chain_record(
            execution_id,
            sequence,
            kind,
            json.dumps(body, ensure_ascii=sequence % 2 == 0),
            at=START + timedelta(seconds=sequence, microseconds=sequence % 3),
            previous_hash=records[-1].hash if records else "",
            schema_version=schema_version,
        )
        records.append(record)
    return records


def make_executions(schema_version: int = GOLDEN_VERSION) -> list[tuple[ExecutionHead, list[JournalRecord]]]:
    """Return two executions of an agent, and one of an agent that it called."""
    executions = []
    for number, (execution_id, agent_id) in enumerate((("first", "ada"), ("second", "ada"), ("called", "bob")), 1):
        records = make_all_kinds(execution_id, schema_version)
        head = make_head(
            records,
            agent_id=agent_id,
            number=1 if agent_id == "bob" else number,
            status=ExecutionStatus.COMPLETED if number == 1 else ExecutionStatus.IN_PROGRESS,
            started_at=START + timedelta(minutes=number),
        )
        parent, source = ("ada", "") if agent_id == "bob" else (None, "first" if number == 2 else "")
        executions.append((attrs.evolve(head, parent_agent_id=parent, forked_from=source, step_count=number), records))
    return executions


def to_json_data(value: ExecutionHead | JournalRecord) -> dict[str, object]:
    """Return a record or a head as JSON data."""
    plain = attrs.asdict(value)
    return {name: item.isoformat() if hasattr(item, "isoformat") else item for name, item in plain.items()}


async def write_golden_files(path: Path) -> None:
    """Write a database and, next to it, its content as JSON."""
    journal = SqliteJournal(path, spill_bytes=SPILL_CHARACTERS)
    content = []
    for head, records in make_executions():
        await append_claimed(journal, head, records)
        content.append({"head": to_json_data(head), "records": [to_json_data(record) for record in records]})
    await journal.aclose()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE executions SET token = rowid")  # tokens grow with time
        connection.execute("PRAGMA journal_mode = DELETE")  # a single file, without a write-ahead log
        connection.execute("VACUUM")
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    target = HERE / f"version_{GOLDEN_VERSION}.db"
    if target.exists():
        raise SystemExit(f"{target} exists; golden files of earlier versions are never replaced")
    asyncio.run(write_golden_files(target))
