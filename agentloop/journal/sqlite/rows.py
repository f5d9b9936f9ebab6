"""Heads and records as rows of tables."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from attrs import frozen

from agentloop.errors import ContractViolation, JournalCorrupt
from agentloop.journal.chain import check_schema_version
from agentloop.values.json import format_json, parse_json
from agentloop.values.records import ExecutionHead, JournalRecord, RecordKind

Row: TypeAlias = Sequence[Any]

# --- heads ------------------------------------------------------------------------------------------------------------

HEAD_COLUMNS = (
    "execution_id, agent_id, parent_agent_id, number, status, step_count, record_count, last_hash, input, forked_from, "
    "started_at, updated_at"
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


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
    )
    return (*row, seal_of(row))


def seal_of(row: Row) -> str:
    """Return the hash over the row of a head without its seal; it reveals changes that no journal made."""
    # `repr` distinguishes types: a number that became a text changes the seal.
    return hashlib.sha256(repr(tuple(row)).encode()).hexdigest()


def read_head_row(row: Row) -> ExecutionHead:
    """Return the head in a row.

    Raises:
        JournalCorrupt: the row does not hold a head.
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
            input=decode_text(row[8]),
            forked_from=row[9],
            started_at=_EPOCH + row[10] * _MICROSECOND,
            updated_at=_EPOCH + row[11] * _MICROSECOND,
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise JournalCorrupt(
            f"the head of execution {row[0]} cannot be read: {error}", execution_id=str(row[0])
        ) from error


def to_microseconds(moment: datetime) -> int:
    """Return a time as microseconds since 1970, which SQLite can compare.

    Raises:
        ContractViolation: the time has no time zone.
    """
    if moment.tzinfo is None:
        raise ContractViolation(f"the time {moment} of an execution has no time zone")
    return (moment - _EPOCH) // _MICROSECOND


# --- records ----------------------------------------------------------------------------------------------------------

RECORD_COLUMNS = "execution_id, sequence, kind, at, schema_version, body, cuts, previous_hash, hash"


def record_row(record: JournalRecord, max_length: int) -> tuple[Row, Mapping[str, str]]:
    """Return a record as a row, and the spilled parts of its body by digest.

    Args:
        record: the record.
        max_length: the maximum length of the body in the row, in characters.
    """
    body = split_body(record.body, max_length)
    row = (
        record.execution_id,
        record.sequence,
        record.kind.value,
        record.at.isoformat(),
        record.schema_version,
        encode_text(body.rest),
        body.cuts,
        record.previous_hash,
        record.hash,
    )
    return row, body.spills


def read_record_row(row: Row, spills: Mapping[str, str]) -> JournalRecord:
    """Return the record in a row.

    Args:
        row: the row.
        spills: the spilled parts of the execution's records, by digest.

    Raises:
        JournalCorrupt: the row does not hold a record, or a part of its body is missing.
        SchemaTooNew: a newer version of agentloop wrote it.
    """
    execution_id, sequence, kind, at, schema_version, body, cuts, previous_hash, stored_hash = row
    try:
        # SQLite stores values of any type in any column.
        if not isinstance(sequence, int) or not isinstance(previous_hash, str) or not isinstance(stored_hash, str):
            raise ValueError("a value has the wrong type")  # noqa: TRY301, TRY004  # reported with the other errors below
        check_schema_version(schema_version)
        return JournalRecord(
            execution_id=execution_id,
            sequence=sequence,
            kind=RecordKind(kind),
            at=datetime.fromisoformat(at),
            schema_version=schema_version,
            body=join_body(decode_text(body), cuts, spills),
            previous_hash=previous_hash,
            hash=stored_hash,
        )
    except KeyError as error:
        raise _unreadable(row, f"a part of it, {error}, is missing or was changed") from error
    except (ValueError, TypeError) as error:
        raise _unreadable(row, str(error)) from error


def _unreadable(row: Row, reason: str) -> JournalCorrupt:
    sequence = row[1] if isinstance(row[1], int) else 0
    return JournalCorrupt(
        f"record {row[1]} of execution {row[0]} cannot be read: {reason}", execution_id=str(row[0]), sequence=sequence
    )


# --- bodies that are too long for a row -------------------------------------------------------------------------------

# The possessive quantifiers keep a body with an open string from taking quadratic time.
_STRING = re.compile(r'"[^"\\]*+(?>\\.[^"\\]*+)*+"', re.DOTALL)
_SPILL_FRACTION = 8
"""A string is spilled when it is longer than this fraction of the maximum length of a body."""
_ENTIRE_REST = -1
"""The position of the cut that holds the entire rest of a body."""


@frozen
class SplitBody:
    """The body of a record, with its long strings cut out.

    Attributes:
        rest: the part that is stored in the row.
        cuts: the positions of the cuts in the rest with the digests of their strings, as JSON; empty without cuts.
        spills: the strings that were cut out, by digest.
    """

    rest: str
    cuts: str
    spills: Mapping[str, str]


def split_body(body: str, max_length: int) -> SplitBody:
    """Cut the long strings out of a body, and the rest, too, if it is still too long.

    Args:
        body: a JSON object as text; `join_body` restores any other text as well.
        max_length: the maximum length of the rest, in characters; a body that is no longer is not split.
    """
    if len(body) <= max_length:
        return SplitBody(body, "", {})
    spills: dict[str, str] = {}
    cuts: list[tuple[int, str]] = []
    parts: list[str] = []
    length = end = 0
    for string in _STRING.finditer(body):
        if string.end() - string.start() > max_length // _SPILL_FRACTION:
            parts.append(body[end : string.start()])
            length += string.start() - end
            end = string.end()
            cuts.append((length, _spill(string[0], spills)))
    rest = "".join([*parts, body[end:]])
    if len(rest) > max_length:
        # First, because the positions of the other cuts refer to the rest.
        cuts.insert(0, (_ENTIRE_REST, _spill(rest, spills)))
        rest = ""
    return SplitBody(rest, format_json(cuts).decode(), spills)


def join_body(rest: str, cuts: str, spills: Mapping[str, str]) -> str:
    """Return the body that was split into these parts.

    Raises:
        KeyError: a spill is missing.
        ValueError: the cuts cannot be read or do not match the rest.
    """
    if not cuts:
        return rest
    parts: list[str] = []
    start = 0
    for position, digest in parse_json(cuts):
        if position == _ENTIRE_REST:
            if rest:
                raise ValueError("the row holds more than was written")
            rest = spills[digest]
        else:
            parts += (rest[start:position], spills[digest])
            start = position
    return "".join([*parts, rest[start:]])


def digest_of(data: str) -> str:
    """Return the digest that identifies a spill: SHA-256, in hexadecimal."""
    return hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest()


def _spill(data: str, spills: dict[str, str]) -> str:
    digest = digest_of(data)
    spills[digest] = data
    return digest


# --- text -------------------------------------------------------------------------------------------------------------


def encode_text(text: str) -> str | bytes:
    """Return a text in a form that SQLite can store: bytes when it has lone surrogates, which UTF-8 does not allow."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def decode_text(value: str | bytes) -> str:
    """Return the text that `encode_text` encoded."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value
