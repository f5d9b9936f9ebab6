"""Heads and records as rows of tables."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from attrs import evolve

from agentloop.durable.chain import check_schema_version
from agentloop.durable.spills import join_body, split_body
from agentloop.errors import JournalCorrupt
from agentloop.values.records import FIRST_HASH, ExecutionHead, JournalRecord, RecordKind
from agentloop.values.time_and_ids import from_microseconds, to_microseconds

Row: TypeAlias = Sequence[Any]

# --- heads ------------------------------------------------------------------------------------------------------------

HEAD_COLUMNS = (
    "execution_id, agent_id, parent_agent_id, number, status, step_count, record_count, last_hash, input, forked_from, "
    "started_at, updated_at, agent_name"
)


def head_row(head: ExecutionHead) -> Row:
    """Return a head as a row, its seal last."""
    row = (
        head.execution_id,
        head.agent_id,
        head.parent_agent_id,
        head.number,
        head.status.value,
        head.step_count,
        head.record_count,
        head.last_hash,
        encode_text(head.input),
        head.forked_from,
        to_microseconds(head.started_at),
        to_microseconds(head.updated_at),
        encode_text(head.agent_name),
    )
    return (*row, seal_of(row))


def seal_of(row: Row) -> str:
    """Return the hash over the row of a head without its seal; it reveals changes that no journal made."""
    # Heads that were written before agents had names are sealed without one.
    sealed = tuple(row) if row[-1] else tuple(row)[:-1]
    # `repr` distinguishes types: a number that became a text changes the seal.
    return hashlib.sha256(repr(sealed).encode()).hexdigest()


def read_head_row(row: Row) -> ExecutionHead:
    """Return the head in a row.

    Raises:
        JournalCorrupt: the row does not hold a head.
    """
    try:
        if not all(map(isinstance, row, _TYPES)):
            raise ValueError("a value has the wrong type")  # noqa: TRY301  # reported with the other errors below
        return ExecutionHead(
            execution_id=row[0],
            agent_id=row[1],
            parent_agent_id=row[2],
            number=row[3],
            status=row[4],
            step_count=row[5],
            record_count=row[6],
            last_hash=row[7],
            input=decode_text(row[8]),
            forked_from=row[9],
            started_at=from_microseconds(row[10]),
            updated_at=from_microseconds(row[11]),
            agent_name=decode_text(row[12]),
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise JournalCorrupt(
            f"the head of execution {row[0]!s:.200} cannot be read: {error}", execution_id=str(row[0])
        ) from error


# SQLite stores values of any type in any column.
_TYPES = (str, str, str | None, int, str, int, int, str, str | bytes, str, int, int, str | bytes)


def read_id(value: object) -> str:
    """Return an id from a row.

    Raises:
        JournalCorrupt: it is no text.
    """
    if not isinstance(value, str):
        raise JournalCorrupt(f"the head of execution {value!s:.200} cannot be read: its id is no text")
    return value


# --- records ----------------------------------------------------------------------------------------------------------

RECORD_COLUMNS = "execution_id, sequence, kind, at, schema_version, body, cuts, previous_hash, hash"


DERIVED_HASH = ""
"""The stored `previous_hash` of a record whose previous hash is the hash in the row before it."""


def encode_hash(value: str) -> str | bytes:
    """Return a hash as its bytes, which take half the space; any other text unchanged."""
    return bytes.fromhex(value) if _HASH.fullmatch(value) else value


_HASH = re.compile("[0-9a-f]{64}")


def decode_hash(value: str | bytes) -> str:
    """Return the hash that `encode_hash` encoded."""
    return value.hex() if isinstance(value, bytes) else value


def encode_time(moment: datetime) -> str:
    """Return a time as microseconds since 1970, which take half the space; of another time zone than UTC in ISO 8601."""
    return str(to_microseconds(moment)) if moment.tzinfo is UTC else moment.isoformat()


def decode_time(value: str) -> datetime:
    """Return the time that `encode_time` encoded, or that an earlier version stored in ISO 8601.

    Raises:
        ValueError: it is not a time.
        OverflowError: it is out of range.
    """
    # Times before 1970 are negative.
    return from_microseconds(int(value)) if value.removeprefix("-").isdecimal() else datetime.fromisoformat(value)


def record_row(record: JournalRecord, text: str, max_length: int) -> tuple[Row, Mapping[str, str]]:
    """Return a record as a row, and the spilled parts of its body by digest.

    Args:
        record: the record.
        text: its body, without the beginning that it shares with other records.
        max_length: the maximum length of the body in the row, in characters.
    """
    body = split_body(text, max_length)
    row = (
        record.execution_id,
        record.sequence,
        record.kind.value,
        encode_time(record.at),
        record.schema_version,
        encode_text(body.rest),
        body.cuts,
        DERIVED_HASH,
        encode_hash(record.hash),
    )
    return row, body.spills


def read_record_rows(rows: Sequence[Row], spills: Mapping[str, str], prefix: str = "") -> list[JournalRecord]:
    """Return the records in the rows of an execution, ordered by sequence; the arguments and errors are those of `read_record_row`."""
    records: list[JournalRecord] = []
    previous_hash = FIRST_HASH
    for row in rows:
        records.append(read_record_row(row, previous_hash, spills))
        previous_hash = records[-1].hash
    if prefix and records and records[0].sequence == 1:
        records[0] = evolve(records[0], body=prefix + records[0].body)
    return records


def read_record_row(row: Row, before: str, spills: Mapping[str, str]) -> JournalRecord:
    """Return the record in a row.

    Args:
        row: the row.
        before: the hash of the record in the row before it; empty for the first row.
        spills: the spilled parts of the execution's records, by digest.

    Raises:
        JournalCorrupt: the row does not hold a record, or a part of its body is missing.
        SchemaTooNew: a newer version of agentloop wrote it.
    """
    execution_id, sequence, kind, at, schema_version, body, cuts, previous_hash, stored_hash = row
    try:
        # SQLite stores values of any type in any column.
        if (
            not isinstance(sequence, int)
            or not isinstance(at, str)
            or not isinstance(previous_hash, str)
            or not isinstance(stored_hash, str | bytes)
        ):
            raise ValueError("a value has the wrong type")  # noqa: TRY301, TRY004  # reported with the other errors below
        check_schema_version(schema_version)
        return JournalRecord(
            execution_id=execution_id,
            sequence=sequence,
            kind=RecordKind(kind),
            at=decode_time(at),
            schema_version=schema_version,
            body=join_body(decode_text(body), cuts, spills),
            previous_hash=before if previous_hash == DERIVED_HASH else previous_hash,
            hash=decode_hash(stored_hash),
        )
    except KeyError as error:
        raise _unreadable(row, f"a part of it, {error}, is missing or was changed") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise _unreadable(row, str(error)) from error


def _unreadable(row: Row, reason: str) -> JournalCorrupt:
    sequence = row[1] if isinstance(row[1], int) else 0
    return JournalCorrupt(
        f"record {row[1]} of execution {row[0]} cannot be read: {reason}", execution_id=str(row[0]), sequence=sequence
    )


# --- text -------------------------------------------------------------------------------------------------------------


def encode_text(text: str) -> str | bytes:
    """Return a text in a form that SQLite can store: bytes when it has lone surrogates, which UTF-8 does not allow."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def decode_text(value: object) -> str:
    """Return the text that `encode_text` encoded.

    Raises:
        ValueError: it is no text.
    """
    if not isinstance(value, str | bytes):
        raise ValueError("a text is stored as a value of another type")  # noqa: TRY004  # read as what is damaged
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value
