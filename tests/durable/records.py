"""Records and heads for tests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from attrs import evolve

from agentloop.contracts.can_journal import CanJournal, Claim
from agentloop.durable.chain import chain_record
from agentloop.testing.journal_bench import append_claimed
from agentloop.values.records import FIRST_HASH, ExecutionHead, JournalRecord, RecordKind
from agentloop.values.steps import ExecutionStatus

START = datetime(2026, 1, 1, tzinfo=UTC)


def make_records(execution_id: str, *bodies: str, after: Sequence[JournalRecord] = ()) -> list[JournalRecord]:
    """Return records with these bodies, which follow other records."""
    previous, sequence = (after[-1].hash, after[-1].sequence) if after else (FIRST_HASH, 0)
    records = []
    for number, body in enumerate(bodies, sequence + 1):
        at = START + timedelta(seconds=number)
        kind = RecordKind.CALL_INTENT if number % 2 else RecordKind.CALL_OUTCOME
        record = chain_record(execution_id, number, kind, body, at=at, previous_hash=previous)
        records.append(record)
        previous = record.hash
    return records


def make_head(
    records: Sequence[JournalRecord],
    *,
    agent_id: str = "",
    number: int = 1,
    status: ExecutionStatus = ExecutionStatus.IN_PROGRESS,
    started_at: datetime = START,
) -> ExecutionHead:
    """Return the head of an execution after these records; by default, each execution has an agent of its own."""
    last = records[-1]
    return ExecutionHead(
        execution_id=last.execution_id,
        agent_id=agent_id or f"agent of {last.execution_id}",
        number=number,
        status=status,
        record_count=last.sequence,
        last_hash=last.hash,
        input="What is it?",
        started_at=started_at,
        updated_at=last.at,
    )


async def append_records(
    journal: CanJournal,
    execution_id: str,
    *bodies: str,
    after: Sequence[JournalRecord] = (),
    claim: Claim | None = None,
) -> list[JournalRecord]:
    """Append records with these bodies, under a claim or one of their own; return all records of the execution."""
    records = make_records(execution_id, *bodies, after=after)
    if claim is None:
        await append_claimed(journal, make_head(records), records)
    else:
        await journal.append(make_head(records), records, claim)
    return [*after, *records]


async def append_head(
    journal: CanJournal,
    execution_id: str,
    *,
    agent_id: str = "",
    number: int = 1,
    status: ExecutionStatus = ExecutionStatus.IN_PROGRESS,
    started_at: datetime = START,
    forked_from: str = "",
) -> ExecutionHead:
    """Append one record to a new execution whose head has these values; return the head."""
    records = make_records(execution_id, "{}")
    head = make_head(records, agent_id=agent_id, number=number, status=status, started_at=started_at)
    head = evolve(head, forked_from=forked_from)
    await append_claimed(journal, head, records)
    return head
