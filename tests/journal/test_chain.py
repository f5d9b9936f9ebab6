"""The chain of hashes that binds records together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import JournalCorrupt, SchemaTooNew
from agentloop.journal import chain_record, record_hash, verify_records
from agentloop.values.records import FIRST_HASH, RECORD_SCHEMA_VERSION, JournalRecord, RecordKind
from tests.journal.records import records_of

TEXTS = st.text(max_size=20)
CHANGES = st.sampled_from(["execution_id", "sequence", "kind", "at", "schema_version", "body", "previous_hash"])


def changed(record: JournalRecord, name: str) -> JournalRecord:
    """Change one field of a record, and leave its hash."""
    value: Any = getattr(record, name)
    if isinstance(value, RecordKind):
        other: Any = RecordKind.STEP_COMPLETED
    elif isinstance(value, datetime):
        other = value + timedelta(microseconds=1)
    else:
        other = value + 1 if isinstance(value, int) else f"{value}x"
    return evolve(record, **{name: other})


@given(name=CHANGES, at=st.integers(0, 4))
def test_a_changed_field_is_found(name: str, at: int) -> None:
    """Every field goes into the hash, and the error names the record."""
    records = records_of("e", *["{}"] * 5)
    records[at] = changed(records[at], name)
    assert record_hash(records[at]) != records[at].hash
    with pytest.raises(JournalCorrupt) as caught:
        verify_records(records, "e")
    assert (caught.value.execution_id, caught.value.sequence) == ("e", at + 1)


@given(at=st.integers(0, 3))
def test_a_record_that_is_missing_or_elsewhere_is_found(at: int) -> None:
    """What was dropped before the end, doubled, swapped or taken from elsewhere is found."""
    records, others = records_of("e", *["{}"] * 5), records_of("f", *["{}"] * 5)
    for wrong in (
        records[:at] + records[at + 1 :],
        records[: at + 1] + records[at:],
        [*records[:at], records[at + 1], records[at], *records[at + 2 :]],
        [*records[:at], others[at], *records[at + 1 :]],
    ):
        with pytest.raises(JournalCorrupt):
            verify_records(wrong, "e")


def test_a_record_of_a_newer_agentloop_is_refused() -> None:
    """A record whose hash is right and whose form is not known is SchemaTooNew."""
    (record,) = records_of("e", "{}")
    newer = evolve(record, schema_version=RECORD_SCHEMA_VERSION + 1)
    with pytest.raises(SchemaTooNew):
        verify_records([evolve(newer, hash=record_hash(newer))], "e")


def test_the_hash_is_what_it_always_was() -> None:
    """A hash that changes with the version of agentloop would make every journal look damaged."""
    at = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone(timedelta(hours=2)))
    first = chain_record(
        "é\n", 1, RecordKind.CALL_INTENT, '{"text":"\ud800"}', at=at, previous_hash=FIRST_HASH, schema_version=1
    )
    second = chain_record(
        "é\n", 2, RecordKind.CALL_OUTCOME, "{}", at=at.astimezone(UTC), previous_hash=first.hash, schema_version=1
    )
    assert [record.hash for record in (first, second)] == [
        "6810793867f82cf0c02a02100e270f46b589d420eac15a862cf4ad48aae2ea34",
        "e60044c07e6b5286c2b06915f582a57c04e3d7b31a0050376cd2b699d98459e5",
    ]
