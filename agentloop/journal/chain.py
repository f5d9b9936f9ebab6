"""The chain of hashes that binds the records of an execution together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise

from attrs import evolve, field, frozen

from agentloop.errors import ContractViolation, JournalConflict, JournalCorrupt, JournalError, SchemaTooNew
from agentloop.values.json import format_json
from agentloop.values.records import FIRST_HASH, RECORD_SCHEMA_VERSION, ExecutionHead, JournalRecord, RecordKind
from agentloop.values.value import Value


def chain_record(
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
    return evolve(record, hash=record_hash(record))


def record_hash(record: JournalRecord) -> str:
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


def verify_records(records: Iterable[JournalRecord], execution_id: str) -> list[JournalRecord]:
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
    return "" if record_hash(record) == record.hash else "was changed after it was written"


def check_records(head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
    """Check that records belong to each other and to a head.

    Raises:
        ContractViolation: when they do not.
        JournalError: when an id in the head cannot be written down.
    """
    for name in (head.execution_id, head.agent_id, head.parent_agent_id, head.forked_from):
        check_id(name or "")
    if not records:
        raise ContractViolation("nothing is appended: there are no records")
    for one, other in pairwise(records):
        if other.sequence != one.sequence + 1 or other.previous_hash != one.hash:
            raise ContractViolation(f"record {other.sequence} is not chained to record {one.sequence} before it")
    if any(record.execution_id != head.execution_id for record in records):
        raise ContractViolation(f"a record is not of execution {head.execution_id}")
    if (head.record_count, head.last_hash) != (records[-1].sequence, records[-1].hash):
        raise ContractViolation(
            f"the head of execution {head.execution_id} does not tell the last record that is appended"
        )


def check_id(one: str) -> None:
    """Check that an id can be written down in UTF-8.

    Raises:
        JournalError: when it cannot.
    """
    try:
        one.encode()
    except UnicodeEncodeError as error:
        raise JournalError(f"the id {one!a} cannot be written down: its lone surrogates are no UTF-8") from error


def check_follows(record: JournalRecord, record_count: int, last_hash: str) -> None:
    """Check that a record follows the last that is there.

    Args:
        record: the first that is to be appended.
        record_count: how many are there.
        last_hash: the hash of the last; `FIRST_HASH` when there is none.

    Raises:
        JournalConflict: when it does not.
    """
    if record.sequence == record_count + 1 and record.previous_hash == last_hash:
        return
    if record.sequence == record_count + 1:
        why = (
            f"is not chained to record {record_count}, which somebody else wrote"
            if record_count
            else "is not the first"
        )
    else:
        why = f"does not follow the last that is there, {record_count}"
    raise JournalConflict(
        f"record {record.sequence} of execution {record.execution_id} {why}: somebody else has driven the execution on; "
        "read it again"
    )


def number_taken(head: ExecutionHead) -> JournalConflict:
    """Make the error of an execution that begins with a number that its agent has used."""
    return JournalConflict(
        f"execution {head.execution_id} cannot be number {head.number} of agent {head.agent_id}: there is one already, so the "
        "agent's conversation has gone on; continue from its newest state (`journal.conversation`, `journal.state`), or begin "
        "another line of it with `journal.fork`"
    )


def already_claimed(execution_id: str, holder: str = "") -> JournalConflict:
    """Make the error of an execution that is claimed by somebody alive."""
    return JournalConflict(f"execution {execution_id} is claimed by {holder or 'somebody else'}, who is alive")


def check_readable(schema_version: int) -> None:
    """Check that a record can be read.

    Raises:
        SchemaTooNew: when a newer agentloop wrote it.
    """
    if schema_version > RECORD_SCHEMA_VERSION:
        raise SchemaTooNew(schema_version, RECORD_SCHEMA_VERSION)


NOTHING_THERE: tuple[int, str] = (0, FIRST_HASH)
"""How many records there are of an execution that nobody has begun, and the hash of the last."""


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
    findings: tuple[JournalFinding, ...] = field(converter=tuple[JournalFinding, ...])


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
