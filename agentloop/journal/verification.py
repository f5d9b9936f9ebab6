"""Finding every record that is not as it was written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import field, frozen

from agentloop.journal.chain import problem_of
from agentloop.values.journal_record import FIRST_HASH, RECORD_SCHEMA_VERSION, ExecutionHead, JournalRecord
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class JournalFinding(Value):
    """Something in a journal that is not as it was written.

    Attributes:
        execution_id: the execution; empty when the damage is not known to be in one.
        sequence: the record; 0 when it is not one record.
        problem: what is wrong.
    """

    execution_id: str
    sequence: int
    problem: str


def _as_findings(findings: Iterable[JournalFinding]) -> tuple[JournalFinding, ...]:
    return tuple(findings)


@frozen(eq=False, repr=False)
class VerifiedExecution(Value):
    """An execution whose records were looked at.

    Attributes:
        execution_id: the execution; empty for what concerns the journal as a whole.
        record_count: how many records were looked at.
        findings: what is wrong with them; empty when all is well.
    """

    execution_id: str
    record_count: int
    findings: tuple[JournalFinding, ...] = field(converter=_as_findings)


def findings_in(
    execution_id: str, records: Sequence[JournalRecord], before: ExecutionHead | None, after: ExecutionHead | None
) -> Iterator[JournalFinding]:
    """Say of the records of an execution what is wrong with them.

    Args:
        execution_id: the execution.
        records: all that is there of it.
        before: its head, read before the records.
        after: its head, read after them; another one when the execution goes on meanwhile, None when it was deleted.
    """
    if before is not None and after is None:
        return
    place, previous = 1, FIRST_HASH
    for record in records:
        problem = problem_of(record, execution_id, place, previous)
        if not problem and record.schema_version > RECORD_SCHEMA_VERSION:
            problem = f"was written by a newer agentloop (schema version {record.schema_version})"
        if problem:
            yield JournalFinding(execution_id, record.sequence, f"record {record.sequence} {problem}")
        place, previous = record.sequence + 1, record.hash
    if records and before is None:
        yield JournalFinding(execution_id, 0, "there are records, and nothing that says of which execution")
    elif before is not None and (problem := _wrong_end(records, before, grown=before != after)):
        yield JournalFinding(execution_id, before.record_count, problem)


def _wrong_end(records: Sequence[JournalRecord], head: ExecutionHead, *, grown: bool) -> str:
    """Say what is wrong with the end of a chain: the head knows how many records there are, and the last hash."""
    known = records[: head.record_count] if grown else records
    if len(known) != head.record_count:
        return f"there are {len(known)} records, and {head.record_count} were written"
    last = known[-1].hash if known else FIRST_HASH
    return "" if last == head.last_hash else "the last record is not the one that was written last"
