"""Records and heads as rows of tables."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from attrs import frozen

from agentloop.errors import ContractViolation, JournalCorrupt
from agentloop.journal.chain import check_readable
from agentloop.values.json import format_json, parse_json
from agentloop.values.records import ExecutionHead, JournalRecord, RecordKind

_LITERAL = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_PART = 8
"""A literal is long when it is longer than such a part of what a body may have in its row."""
_WHOLE = -1
"""The place of the cut that is all the rest."""


@frozen
class Spilled:
    """A body in parts.

    Attributes:
        rest: what stands in the row.
        cuts: what was cut out: places in the rest with digests, as JSON; empty when nothing was.
        spills: what was cut out, by its digest.
    """

    rest: str
    cuts: str
    spills: Mapping[str, str]


def spilled(body: str, most: int) -> Spilled:
    """Cut the long literals out of a body, and the rest too if it still is long.

    Args:
        body: the text of a JSON object; any other text comes back the same as well.
        most: how many characters may stay; a body of no more stays whole.
    """
    if len(body) <= most:
        return Spilled(body, "", {})
    spills: dict[str, str] = {}
    cuts: list[tuple[int, str]] = []
    kept: list[str] = []
    length = end = 0
    for literal in _LITERAL.finditer(body):
        if literal.end() - literal.start() > most // _PART:
            kept.append(body[end : literal.start()])
            length += literal.start() - end
            end = literal.end()
            cuts.append((length, _put(literal[0], spills)))
    rest = "".join([*kept, body[end:]])
    if len(rest) > most:
        cuts.insert(0, (_WHOLE, _put(rest, spills)))
        rest = ""
    return Spilled(rest, format_json(cuts).decode(), spills)


def whole(rest: str, cuts: str, spills: Mapping[str, str]) -> str:
    """Put a body together again.

    Raises:
        KeyError: when a spill is missing.
        ValueError: when the cuts cannot be read or are not those of the rest.
    """
    if not cuts:
        return rest
    parts: list[str] = []
    begin = 0
    for place, digest in parse_json(cuts):
        if place == _WHOLE:
            if rest:
                raise ValueError("there is more than was written")
            rest = spills[digest]
        else:
            parts += (rest[begin:place], spills[digest])
            begin = place
    return "".join([*parts, rest[begin:]])


def digest_of(data: str) -> str:
    """Return the digest that a spill is known by: SHA-256, in hexadecimal."""
    return hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest()


def _put(data: str, spills: dict[str, str]) -> str:
    digest = digest_of(data)
    spills[digest] = data
    return digest


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
