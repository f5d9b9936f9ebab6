"""Makes the golden files of a journal: run once for each version of its tables or records, and never again for an old one.

python -m tests.journal.golden.make
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import attrs

from agentloop.journal import SqliteJournal, chain_record
from agentloop.values.records import ExecutionHead, JournalRecord, RecordKind
from agentloop.values.steps import ExecutionStatus
from tests.journal.records import BEGIN, head_after

HERE = Path(__file__).parent
GOLDEN_VERSION = 2
"""The newest golden file, whose number is that of the version of its records."""
SPILL_CHARACTERS = 300


def records_of(execution_id: str, schema_version: int) -> list[JournalRecord]:
    """Make a record of each kind: short ones, some with long texts, one that is long without a long text."""
    records: list[JournalRecord] = []
    for sequence, kind in enumerate(RecordKind, 1):
        body: dict[str, object] = {"of": execution_id, "kind": kind.value, "text": 'é " \\ \n 😀'}
        if sequence % 4 == 0:
            body |= {"result": "a long result " * 30, "again": "a long result " * 30, "number": sequence}
        if sequence == len(RecordKind):
            body["values"] = list(range(200))
        record = chain_record(
            execution_id,
            sequence,
            kind,
            json.dumps(body, ensure_ascii=sequence % 2 == 0),
            at=BEGIN + timedelta(seconds=sequence, microseconds=sequence % 3),
            previous_hash=records[-1].hash if records else "",
            schema_version=schema_version,
        )
        records.append(record)
    return records


def executions(schema_version: int = GOLDEN_VERSION) -> list[tuple[ExecutionHead, list[JournalRecord]]]:
    """Return two executions of one agent, and one of an agent that was called by it."""
    made = []
    for number, (execution_id, agent_id) in enumerate((("first", "ada"), ("second", "ada"), ("called", "bob")), 1):
        records = records_of(execution_id, schema_version)
        head = head_after(
            records,
            agent_id=agent_id,
            number=1 if agent_id == "bob" else number,
            status=ExecutionStatus.COMPLETED if number == 1 else ExecutionStatus.IN_PROGRESS,
            started_at=BEGIN + timedelta(minutes=number),
        )
        parent, source = ("ada", "") if agent_id == "bob" else (None, "first" if number == 2 else "")
        made.append((attrs.evolve(head, parent_agent_id=parent, forked_from=source, step_count=number), records))
    return made


def as_json(value: ExecutionHead | JournalRecord) -> dict[str, object]:
    """Return a record or a head as JSON data."""
    plain = attrs.asdict(value)
    return {name: one.isoformat() if hasattr(one, "isoformat") else one for name, one in plain.items()}


async def make(path: Path) -> None:
    """Write the database and, beside it, the JSON of what is in it."""
    journal = SqliteJournal(path, spill_bytes=SPILL_CHARACTERS)
    told = []
    for head, records in executions():
        await journal.append(head, records)
        told.append({"head": as_json(head), "records": [as_json(record) for record in records]})
    await journal.aclose()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
        connection.execute("VACUUM")
    path.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    target = HERE / f"version_{GOLDEN_VERSION}.db"
    if target.exists():
        raise SystemExit(f"{target} is there; a file of an earlier version is never written anew")
    asyncio.run(make(target))
