"""Heads and records as rows of the tables in PostgreSQL."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from agentloop.durable.chain import check_schema_version
from agentloop.durable.spills import join_body
from agentloop.errors import ContractViolation, JournalCorrupt
from agentloop.values.json import format_json, parse_json
from agentloop.values.records import ExecutionHead, JournalRecord, RecordKind
from agentloop.values.time_and_ids import from_microseconds, to_microseconds

Row = Sequence[Any]

# --- ids --------------------------------------------------------------------------------------------------------------

_MAX_ID_BYTES = 900
"""The length from which on an id is stored under a digest: entries of an index have at most 2,700 bytes."""
_MARK = "\x01"


def encode_id(identifier: str) -> str:
    """Return the text under which an id is stored: the id itself, or its beginning and a digest.

    PostgreSQL stores no NUL in a text, and no long text in an index.
    """
    start = common_start(identifier)
    if start == identifier:
        return identifier
    return f"{start}{_MARK}{hashlib.sha256(identifier.encode()).hexdigest()}"


def common_start(identifier: str) -> str:
    """Return with what the stored form of an id starts, and of each id that starts with it."""
    start = identifier.split("\x00", 1)[0].split(_MARK, 1)[0]
    if len(start) * 4 > _MAX_ID_BYTES:
        start = start.encode()[:_MAX_ID_BYTES].decode(errors="ignore")
    return start


# --- heads ------------------------------------------------------------------------------------------------------------

HEAD_NAMES = (
    "execution_id",
    "agent_id",
    "parent_agent_id",
    "number",
    "status",
    "step_count",
    "record_count",
    "last_hash",
    "input",
    "forked_from",
    "started_at",
    "updated_at",
    "long_ids",
    "agent_name",
)
_ID_NAMES = ("execution_id", "agent_id", "parent_agent_id", "forked_from")


def head_values(head: ExecutionHead) -> dict[str, object]:
    """Return the values of a head by the names of their columns, with its seal."""
    ids = {name: value for name in _ID_NAMES if (value := getattr(head, name)) is not None}
    stored = {name: encode_id(value) for name, value in ids.items()}
    long_ids = {name: value for name, value in ids.items() if stored[name] != value}
    values: dict[str, object] = {
        "parent_agent_id": None,
        **stored,
        "number": head.number,
        "status": head.status.value,
        "step_count": head.step_count,
        "record_count": head.record_count,
        "last_hash": encode_hash(head.last_hash),
        "input": encode_text(head.input),
        "started_at": to_microseconds(head.started_at),
        "updated_at": to_microseconds(head.updated_at),
        "long_ids": format_json(long_ids) if long_ids else None,
        "agent_name": encode_text(head.agent_name),
    }
    return {**values, "seal": seal_of([values[name] for name in HEAD_NAMES])}


def seal_of(row: Row) -> bytes:
    """Return the hash over the row of a head without its seal; it reveals changes that no journal made."""
    # Heads that were written before agents had names are sealed without one.
    sealed = tuple(row) if row[-1] else tuple(row)[:-1]
    return hashlib.sha256(repr(sealed).encode()).digest()


def read_head_row(row: Row) -> ExecutionHead:
    """Return the head in a row.

    Raises:
        JournalCorrupt: the row does not hold a head.
    """
    try:
        values = dict(zip(HEAD_NAMES, row, strict=True))
        long_ids = values.pop("long_ids")
        values |= parse_json(long_ids) if long_ids else {}
        values["last_hash"] = values["last_hash"].hex()
        for name in ("input", "agent_name"):
            values[name] = decode_text(values[name])
        for name in ("started_at", "updated_at"):
            values[name] = from_microseconds(values[name])
        return ExecutionHead(**values)
    except (ValueError, TypeError, OverflowError) as error:
        raise JournalCorrupt(
            f"the head of execution {row[0]} cannot be read: {error}", execution_id=str(row[0])
        ) from error


# --- records ----------------------------------------------------------------------------------------------------------

RECORD_COLUMNS = "sequence, kind, at, schema_version, body, cuts, previous_hash, hash"


def read_record_row(execution_id: str, row: Row, spills: Mapping[str, str]) -> JournalRecord:
    """Return the record in a row.

    Args:
        execution_id: the execution.
        row: the row, and what the body shares with others, None if nothing.
        spills: the spilled parts of the execution's records, by digest.

    Raises:
        JournalCorrupt: the row does not hold a record, or a part of its body is missing.
        SchemaTooNew: a newer version of agentloop wrote it.
    """
    sequence, kind, at, schema_version, body, cuts, previous_hash, stored_hash, prefix = row
    check_schema_version(schema_version)
    try:
        return JournalRecord(
            execution_id=execution_id,
            sequence=sequence,
            kind=RecordKind(kind),
            at=datetime.fromisoformat(at),
            schema_version=schema_version,
            body=decode_text(prefix or b"") + join_body(decode_text(body), cuts, spills),
            previous_hash=previous_hash.hex(),
            hash=stored_hash.hex(),
        )
    except KeyError as error:
        raise _unreadable(execution_id, sequence, f"a part of it, {error}, is missing or was changed") from error
    except (ValueError, TypeError) as error:
        raise _unreadable(execution_id, sequence, str(error)) from error


def _unreadable(execution_id: str, sequence: int, reason: str) -> JournalCorrupt:
    return JournalCorrupt(
        f"record {sequence} of execution {execution_id} cannot be read: {reason}",
        execution_id=execution_id,
        sequence=sequence,
    )


# --- texts and hashes -------------------------------------------------------------------------------------------------


def encode_text(text: str) -> bytes:
    """Return a text as bytes, also one with NUL or lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    """Return the text that `encode_text` encoded."""
    return data.decode("utf-8", "surrogatepass")


def encode_hash(text: str) -> bytes:
    """Return a hash in hexadecimal as bytes.

    Raises:
        ContractViolation: the text is not one.
    """
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ContractViolation(f"{text!r} is not a hash in hexadecimal") from error
