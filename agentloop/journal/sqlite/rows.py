"""Records and heads as rows of tables."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from agentloop.errors import ContractViolation, JournalCorrupt
from agentloop.journal.appending import check_readable
from agentloop.journal.sqlite.spilling import spilled, whole
from agentloop.values.journal_record import ExecutionHead, JournalRecord, RecordKind

Row: TypeAlias = Sequence[Any]

HEAD_COLUMNS = (
    "execution_id, agent_id, parent_agent_id, number, status, step_count, record_count, last_hash, input, forked_from, "
    "started_at, updated_at"
)
RECORD_COLUMNS = "execution_id, sequence, kind, at, schema_version, body, cuts, previous_hash, hash"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    """Return a moment as microseconds since 1970.

    Raises:
        ContractViolation: when it has no time zone.
    """
    if moment.tzinfo is None:
        raise ContractViolation(f"the time {moment} of an execution has no time zone")
    return (moment - _EPOCH) // _MICROSECOND


def head_row(head: ExecutionHead) -> Row:
    """Write a head as a row, its seal last."""
    row = (
        head.execution_id,
        head.agent_id,
        head.parent_agent_id,
        head.number,
        head.status.value,
        head.step_count,
        head.record_count,
        head.last_hash,
        storable(head.input),
        head.forked_from,
        microseconds(head.started_at),
        microseconds(head.updated_at),
    )
    return (*row, seal_of(row))


def seal_of(row: Row) -> str:
    """Return the hash over a row without its seal; it tells when a head was changed by somebody else."""
    return hashlib.sha256(repr(tuple(row)).encode()).hexdigest()


def head_in(row: Row) -> ExecutionHead:
    """Read a head.

    Raises:
        JournalCorrupt: when the row is not one of a head.
    """
    try:
        return ExecutionHead(
            execution_id=row[0],
            agent_id=row[1],
            parent_agent_id=row[2],
            number=row[3],
            status=row[4],
            step_count=row[5],
            record_count=row[6],
            last_hash=row[7],
            input=stored(row[8]),
            forked_from=row[9],
            started_at=_EPOCH + row[10] * _MICROSECOND,
            updated_at=_EPOCH + row[11] * _MICROSECOND,
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise JournalCorrupt(
            f"what is known of execution {row[0]} cannot be read: {error}", execution_id=str(row[0])
        ) from error


def record_row(record: JournalRecord, most: int) -> tuple[Row, Mapping[str, str]]:
    """Write a record as a row, and give what of its body has to be kept beside it."""
    parts = spilled(record.body, most)
    row = (
        record.execution_id,
        record.sequence,
        record.kind.value,
        record.at.isoformat(),
        record.schema_version,
        storable(parts.rest),
        parts.cuts,
        record.previous_hash,
        record.hash,
    )
    return row, parts.spills


def record_in(row: Row, spills: Mapping[str, str]) -> JournalRecord:
    """Read a record.

    Raises:
        JournalCorrupt: when the row is not one of a record, or a part of it is missing.
        SchemaTooNew: when a newer agentloop wrote it.
    """
    execution_id, sequence, kind, at, schema_version, body, cuts, previous_hash, hashed = row
    try:
        if not isinstance(sequence, int) or not isinstance(previous_hash, str) or not isinstance(hashed, str):
            raise ValueError("a value is not of its type")  # noqa: TRY301, TRY004  # it is told with the other mistakes below
        check_readable(schema_version)
        return JournalRecord(
            execution_id=execution_id,
            sequence=sequence,
            kind=RecordKind(kind),
            at=datetime.fromisoformat(at),
            schema_version=schema_version,
            body=whole(stored(body), cuts, spills),
            previous_hash=previous_hash,
            hash=hashed,
        )
    except KeyError as error:
        raise _unreadable(row, f"a part of it, {error}, is missing or was changed") from error
    except (ValueError, TypeError) as error:
        raise _unreadable(row, str(error)) from error


def storable(text: str) -> str | bytes:
    """Return a text as SQLite can hold it: lone surrogates are no UTF-8, so a text with them is kept as bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def stored(value: str | bytes) -> str:
    """Return the text that was kept."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def _unreadable(row: Row, why: str) -> JournalCorrupt:
    place = row[1] if isinstance(row[1], int) else 0
    return JournalCorrupt(
        f"record {row[1]} of execution {row[0]} cannot be read: {why}", execution_id=str(row[0]), sequence=place
    )
