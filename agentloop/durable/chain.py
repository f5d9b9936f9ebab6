"""The hash chain that binds the records of an execution together, and the checks on it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import pairwise

from attrs import field, frozen

from agentloop.contracts.can_journal import Claim
from agentloop.errors import (
    ClaimLost,
    ContractViolation,
    ExecutionClaimed,
    JournalConflict,
    JournalCorrupt,
    JournalError,
    SchemaTooNew,
)
from agentloop.values.json import format_json
from agentloop.values.records import FIRST_HASH, RECORD_SCHEMA_VERSION, ExecutionHead, JournalRecord, RecordKind
from agentloop.values.value import Value

EMPTY_CHAIN: tuple[int, str] = (0, FIRST_HASH)
"""The record count and the last hash of an execution without records."""


# --- making and verifying records -------------------------------------------------------------------------------------


def chain_record(
    execution_id: str,
    sequence: int,
    kind: RecordKind,
    body: str,
    *,
    at: datetime,
    previous_hash: str,
    schema_version: int = RECORD_SCHEMA_VERSION,
) -> JournalRecord:
    """Return a new record that follows the record with the given hash.

    Args:
        execution_id: the execution.
        sequence: the sequence number of the record, from 1.
        kind: the kind of the record.
        body: the content of the record, a JSON object as text.
        at: the time of the record.
        previous_hash: the hash of the record before it; `FIRST_HASH` for the first record.
        schema_version: the version of the form of the body.
    """
    record = JournalRecord(
        execution_id=execution_id,
        sequence=sequence,
        kind=kind,
        at=at,
        body=body,
        schema_version=schema_version,
        previous_hash=previous_hash,
        hash="",
    )
    object.__setattr__(record, "hash", record_hash(record))  # nobody else has the record yet
    return record


def record_hash(record: JournalRecord) -> str:
    """Return the hash that a record must have: SHA-256 over its other fields, in hexadecimal."""
    front = (
        f"{record.previous_hash}\n{_encode_id(record.execution_id)}\n{record.sequence}\n{record.kind}\n"
        f"{record.at.isoformat()}\n{record.schema_version}\n"
    )
    found = hashlib.sha256(front.encode("utf-8", "surrogatepass"))
    found.update(record.body.encode("utf-8", "surrogatepass"))  # by itself: a long one is not copied once more
    return found.hexdigest()


@lru_cache(maxsize=1_000)
def _encode_id(execution_id: str) -> str:
    # As JSON, an id with a line break cannot imitate the field after it.
    return format_json(execution_id).decode()


def verify_records(records: Iterable[JournalRecord], execution_id: str) -> list[JournalRecord]:
    """Return the records of an execution, from the first one, after checking that they are as they were written.

    Raises:
        JournalCorrupt: a record was changed, dropped, moved or taken from another execution; the error names the first.
        SchemaTooNew: a newer version of agentloop wrote a record.
    """
    checked = list(records)
    previous_hash = FIRST_HASH
    for sequence, record in enumerate(checked, 1):
        problem = _problem_of(record, execution_id, sequence, previous_hash)
        if problem:
            message = f"the journal of execution {execution_id} is damaged: its record {sequence} {problem}"
            raise JournalCorrupt(message, execution_id=execution_id, sequence=sequence)
        # After the hash: a version number that was changed is damage, not a newer version.
        check_schema_version(record.schema_version)
        previous_hash = record.hash
    return checked


def _problem_of(record: JournalRecord, execution_id: str, sequence: int, previous_hash: str) -> str:
    """Return what is wrong with a record at this position of the chain; empty when nothing is."""
    if record.execution_id != execution_id:
        return f"belongs to execution {record.execution_id}"
    if record.sequence != sequence:
        return f"has the number {record.sequence}; a record is missing, duplicated or out of order"
    if record.previous_hash != previous_hash:
        return "does not follow the record before it"
    return "" if record_hash(record) == record.hash else "was changed after it was written"


# --- the rules of appending -------------------------------------------------------------------------------------------


def check_records(head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
    """Check that records belong to each other, to a head and to a claim.

    Raises:
        ContractViolation: they do not.
        JournalError: an id in the head cannot be encoded.
    """
    # Journals store and lock by id; bodies, in contrast, may hold lone surrogates.
    for name in (head.execution_id, head.agent_id, head.parent_agent_id, head.forked_from):
        if name and not name.isascii():
            check_id(name)
    if not records:
        raise ContractViolation("there are no records to append")
    for record, following in pairwise(records):
        if following.sequence != record.sequence + 1 or following.previous_hash != record.hash:
            raise ContractViolation(f"record {following.sequence} is not chained to record {record.sequence} before it")
    if any(record.execution_id != head.execution_id for record in records):
        raise ContractViolation(f"a record does not belong to execution {head.execution_id}")
    if (head.record_count, head.last_hash) != (records[-1].sequence, records[-1].hash):
        raise ContractViolation(f"the head of execution {head.execution_id} does not match the last appended record")
    if claim.execution_id != head.execution_id:
        raise ContractViolation(
            f"the claim on execution {claim.execution_id} does not permit to append to {head.execution_id}"
        )


def check_id(identifier: str) -> None:
    """Check that an id can be encoded as UTF-8.

    Raises:
        JournalError: it contains lone surrogates.
    """
    try:
        identifier.encode()
    except UnicodeEncodeError as error:
        raise JournalError(
            f"the id {identifier!a} cannot be recorded: lone surrogates are not valid in UTF-8"
        ) from error


def check_schema_version(schema_version: int) -> None:
    """Check that this version of agentloop can read a record.

    Raises:
        SchemaTooNew: a newer version of agentloop wrote it.
    """
    if schema_version > RECORD_SCHEMA_VERSION:
        raise SchemaTooNew(schema_version, RECORD_SCHEMA_VERSION)


def check_follows(record: JournalRecord, record_count: int, last_hash: str) -> None:
    """Check that a record follows the last stored record of its execution.

    Args:
        record: the first record to append.
        record_count: the number of stored records.
        last_hash: the hash of the last stored record; before the first record, `*EMPTY_CHAIN` is both arguments.

    Raises:
        JournalConflict: it does not.
    """
    if record.sequence != record_count + 1:
        reason = f"does not follow the last stored record, {record_count}"
    elif record.previous_hash != last_hash:
        reason = (
            f"is not chained to record {record_count}, which another writer appended"
            if record_count
            else "is not the first"
        )
    else:
        return
    raise JournalConflict(
        f"record {record.sequence} of execution {record.execution_id} {reason}: another writer has continued the execution; "
        "read it again"
    )


def number_conflict(head: ExecutionHead) -> JournalConflict:
    """Return the error for an execution that starts with a number which its agent has already used."""
    return JournalConflict(
        f"execution {head.execution_id} cannot be number {head.number} of agent {head.agent_id}: the agent already has an "
        "execution of this number, so its conversation has moved on; continue from its newest state "
        "(`journal.conversation`, `journal.state`), or start a branch with `journal.fork`"
    )


def claim_conflict(execution_id: str, holder: str = "") -> ExecutionClaimed:
    """Return the error for an execution that a live writer has claimed.

    Args:
        execution_id: the execution.
        holder: a description of the writer; empty when it is unknown.
    """
    message = f"execution {execution_id} is claimed by {holder or 'another writer'}, which is still alive"
    return ExecutionClaimed(message, execution_id=execution_id)


def claim_lost(execution_id: str, token: int, reason: str) -> ClaimLost:
    """Return the error for an append with a claim that is not valid any more.

    Args:
        execution_id: the execution.
        token: the token of the claim.
        reason: why it was lost.
    """
    return ClaimLost(
        f"the claim on execution {execution_id} is lost: {reason}. Nothing was written, and another process may drive the "
        "execution; continue it with `loop.recover`",
        execution_id=execution_id,
        token=token,
        reason=reason,
    )


def superseded(execution_id: str, token: int, newest: int) -> ClaimLost:
    """Return the error for an append with a claim that a later one has replaced.

    Args:
        execution_id: the execution.
        token: the token of the claim.
        newest: the token of the later claim.
    """
    return claim_lost(
        execution_id, token, f"another writer has claimed the execution with token {newest}, after {token}"
    )


# --- reports of damage ------------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False)
class JournalFinding(Value):
    """A part of a journal that is not as it was written.

    Attributes:
        execution_id: the execution; empty when the damage does not belong to a known execution.
        sequence: the sequence number of the record; 0 when it is not in a single record.
        problem: what is wrong, in words.
    """

    execution_id: str
    sequence: int
    problem: str


@frozen(eq=False, repr=False)
class VerifiedExecution(Value):
    """The result of verifying the records of one execution.

    Attributes:
        execution_id: the execution; empty for findings about the journal as a whole.
        record_count: the number of records that were checked.
        findings: what is wrong with them; empty when nothing is.
    """

    execution_id: str
    record_count: int
    findings: tuple[JournalFinding, ...] = field(converter=tuple[JournalFinding, ...])


def find_damage(
    execution_id: str, records: Sequence[JournalRecord], before: ExecutionHead | None, after: ExecutionHead | None
) -> Iterator[JournalFinding]:
    """Yield what is wrong with the records of an execution, which may be running or be deleted meanwhile.

    Args:
        execution_id: the execution.
        records: all its stored records.
        before: its head, read before the records.
        after: its head, read after them: a different one when the execution is running, None when it was deleted.
    """
    # It was deleted while it was read: missing records are no damage.
    if before is not None and after is None:
        return
    sequence, previous_hash = 1, FIRST_HASH
    for record in records:
        problem = _problem_of(record, execution_id, sequence, previous_hash)
        if not problem and record.schema_version > RECORD_SCHEMA_VERSION:
            problem = f"was written by a newer agentloop (schema version {record.schema_version})"
        if problem:
            yield JournalFinding(execution_id, record.sequence, f"record {record.sequence} {problem}")
        # Continue from the record itself, so that one missing record is one finding.
        sequence, previous_hash = record.sequence + 1, record.hash
    if records and before is None:
        yield JournalFinding(execution_id, 0, "there are records without a head")
    elif before is not None and (problem := _problem_of_end(records, before, is_running=before != after)):
        yield JournalFinding(execution_id, before.record_count, problem)


def _problem_of_end(records: Sequence[JournalRecord], head: ExecutionHead, *, is_running: bool) -> str:
    """Return what is wrong with the end of a chain, compared with the record count and the last hash in the head."""
    # A running execution may have appended records after its head was read.
    checked = records[: head.record_count] if is_running else records
    if len(checked) != head.record_count:
        return f"there are {len(checked)} records, and {head.record_count} were written"
    last_hash = checked[-1].hash if checked else FIRST_HASH
    return "" if last_hash == head.last_hash else "the last record is not the last one that was written"
