"""The chain of hashes that binds the records of an execution together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime

from attrs import evolve

from agentloop.errors import JournalCorrupt, SchemaTooNew
from agentloop.values.journal_record import FIRST_HASH, RECORD_SCHEMA_VERSION, JournalRecord, RecordKind
from agentloop.values.json_text import format_json


def chained(
    execution_id: str, sequence: int, kind: RecordKind, body: str, *, at: datetime, previous_hash: str
) -> JournalRecord:
    """Make the record that follows the one with this hash.

    Args:
        execution_id: the execution.
        sequence: its place, from 1.
        kind: what it tells.
        body: what it tells, as the text of a JSON object.
        at: when it is made.
        previous_hash: the hash of the record before it; `FIRST_HASH` for the first.
    """
    record = JournalRecord(
        execution_id=execution_id,
        sequence=sequence,
        kind=kind,
        at=at,
        body=body,
        previous_hash=previous_hash,
        hash="",
    )
    return evolve(record, hash=hash_of(record))


def hash_of(record: JournalRecord) -> str:
    """Return the hash that a record has to have: SHA-256 over its other fields, in hexadecimal."""
    told = (
        record.previous_hash,
        format_json(record.execution_id).decode(),
        str(record.sequence),
        record.kind.value,
        record.at.isoformat(),
        str(record.schema_version),
        record.body,
    )
    return hashlib.sha256("\n".join(told).encode("utf-8", "surrogatepass")).hexdigest()


def verified(records: Iterable[JournalRecord], execution_id: str) -> list[JournalRecord]:
    """Return the records of an execution, all of them from the first, if they are as they were written.

    Raises:
        JournalCorrupt: when one was changed, dropped, put elsewhere or comes from another execution; it names the first.
        SchemaTooNew: when a newer agentloop wrote one.
    """
    known = list(records)
    previous = FIRST_HASH
    for place, record in enumerate(known, 1):
        problem = problem_of(record, execution_id, place, previous)
        if problem:
            message = f"the journal of execution {execution_id} is damaged: its record {place} {problem}"
            raise JournalCorrupt(message, execution_id=execution_id, sequence=place)
        if record.schema_version > RECORD_SCHEMA_VERSION:
            raise SchemaTooNew(record.schema_version, RECORD_SCHEMA_VERSION)
        previous = record.hash
    return known


def problem_of(record: JournalRecord, execution_id: str, place: int, previous: str) -> str:
    """Say what is wrong with a record; empty when it is the one that was written at this place after the one of this hash."""
    if record.execution_id != execution_id:
        return f"is one of execution {record.execution_id}"
    if record.sequence != place:
        return f"has the number {record.sequence}; a record is missing, or stands twice or elsewhere"
    if record.previous_hash != previous:
        return "does not follow the record before it"
    return "" if hash_of(record) == record.hash else "was changed after it was written"
