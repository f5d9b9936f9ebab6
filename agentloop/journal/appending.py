"""What may be put at the end of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from agentloop.errors import ContractViolation, JournalConflict, JournalError, SchemaTooNew
from agentloop.values.journal_record import FIRST_HASH, RECORD_SCHEMA_VERSION, ExecutionHead, JournalRecord


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
