"""The hash chain that binds records together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop.durable import MemoryJournal, verify_records
from agentloop.durable.chain import chain_record, check_follows, record_hash
from agentloop.errors import ContractViolation, JournalConflict, JournalCorrupt, SchemaTooNew
from agentloop.values.records import FIRST_HASH, RECORD_SCHEMA_VERSION, JournalRecord, RecordKind
from tests.durable.records import append_records, make_head, make_records

CHANGES = st.sampled_from(["execution_id", "sequence", "kind", "at", "schema_version", "body", "previous_hash"])


def change_field(record: JournalRecord, name: str) -> JournalRecord:
    """Return a record with another value of one field and the same hash."""
    value: Any = getattr(record, name)
    if isinstance(value, RecordKind):
        other: Any = RecordKind.STEP_COMPLETED
    elif isinstance(value, datetime):
        other = value + timedelta(microseconds=1)
    else:
        other = value + 1 if isinstance(value, int) else f"{value}x"
    return evolve(record, **{name: other})


@given(name=CHANGES, index=st.integers(0, 4))
def test_a_changed_field_is_detected(name: str, index: int) -> None:
    """The hash covers every field, and the error names the record."""
    records = make_records("e", *["{}"] * 5)
    records[index] = change_field(records[index], name)
    assert record_hash(records[index]) != records[index].hash
    with pytest.raises(JournalCorrupt) as caught:
        verify_records(records, "e")
    assert (caught.value.execution_id, caught.value.sequence) == ("e", index + 1)


@given(index=st.integers(0, 3))
def test_a_missing_or_moved_record_is_detected(index: int) -> None:
    """Verification fails for a record that was dropped, duplicated, swapped or taken from another execution."""
    records, others = make_records("e", *["{}"] * 5), make_records("f", *["{}"] * 5)
    for wrong in (
        records[:index] + records[index + 1 :],
        records[: index + 1] + records[index:],
        [*records[:index], records[index + 1], records[index], *records[index + 2 :]],
        [*records[:index], others[index], *records[index + 1 :]],
    ):
        with pytest.raises(JournalCorrupt):
            verify_records(wrong, "e")


def test_a_record_of_a_newer_version_is_refused() -> None:
    """A record with a correct hash and an unknown schema version raises SchemaTooNew."""
    (record,) = make_records("e", "{}")
    newer = evolve(record, schema_version=RECORD_SCHEMA_VERSION + 1)
    with pytest.raises(SchemaTooNew):
        verify_records([evolve(newer, hash=record_hash(newer))], "e")


def test_the_hash_is_stable_across_versions() -> None:
    """The hash of a record does not depend on the version of agentloop, or every journal would look damaged."""
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


@pytest.mark.parametrize("name", ["sequence", "previous_hash"])
async def test_records_that_do_not_follow_each_other_are_not_appended(name: str) -> None:
    """Neither a gap in the numbers nor a foreign hash is stored."""
    journal = MemoryJournal()
    records = make_records("e", "{}", "{}")
    records[1] = change_field(records[1], name)
    with pytest.raises(ContractViolation, match="is not chained to record 1 before it"):
        await journal.append(make_head(records), records, await journal.claim("e"))
    assert await journal.read("e") == ()


async def test_a_conflict_tells_what_the_record_does_not_follow() -> None:
    """It is a number, a record of another writer, or the beginning of the chain."""
    journal = MemoryJournal()
    await append_records(journal, "e", '{"by":"ada"}')
    others = make_records("e", '{"by":"bob"}', "{}", "{}")
    with pytest.raises(JournalConflict, match="record 3 of execution e does not follow the last stored record, 1:"):
        await append_records(journal, "e", "{}", after=others[:2])
    with pytest.raises(JournalConflict, match="is not chained to record 1, which another writer appended:"):
        await append_records(journal, "e", "{}", after=others[:1])
    with pytest.raises(JournalConflict, match="record 1 of execution e is not the first:"):
        check_follows(evolve(others[0], previous_hash=others[1].hash), 0, FIRST_HASH)
