"""Records and heads as tests need them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from agentloop.contracts.can_journal import CanJournal
from agentloop.journal import chain_record
from agentloop.values.records import FIRST_HASH, ExecutionHead, JournalRecord, RecordKind
from agentloop.values.steps import ExecutionStatus

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def records_of(execution_id: str, *bodies: str, after: Sequence[JournalRecord] = ()) -> list[JournalRecord]:
    """Make records with these bodies that follow others."""
    previous, sequence = (after[-1].hash, after[-1].sequence) if after else (FIRST_HASH, 0)
    records = []
    for number, body in enumerate(bodies, sequence + 1):
        at = BEGIN + timedelta(seconds=number)
        kind = RecordKind.CALL_INTENT if number % 2 else RecordKind.CALL_OUTCOME
        record = chain_record(execution_id, number, kind, body, at=at, previous_hash=previous)
        records.append(record)
        previous = record.hash
    return records


def head_after(
    records: Sequence[JournalRecord],
    *,
    agent_id: str = "",
    number: int = 1,
    status: ExecutionStatus = ExecutionStatus.IN_PROGRESS,
    started_at: datetime = BEGIN,
) -> ExecutionHead:
    """Make the head of an execution after these records; each execution is of an agent of its own unless one is named."""
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


async def appended(
    journal: CanJournal, execution_id: str, *bodies: str, after: Sequence[JournalRecord] = ()
) -> list[JournalRecord]:
    """Append records with these bodies to a journal; return all there are."""
    records = records_of(execution_id, *bodies, after=after)
    await journal.append(head_after(records), records)
    return [*after, *records]
