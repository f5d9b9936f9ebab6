"""Whatever is changed in the file behind the journal's back is found."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from agentloop.journal import JournalFinding, SqliteJournal
from agentloop.values.steps import ExecutionStatus
from tests.journal.records import head_after, records_of

COUNT = 6
HEAD = (
    "agent_id parent_agent_id number status step_count record_count last_hash input forked_from started_at updated_at"
)
RECORD = "kind at schema_version body cuts previous_hash hash"


async def filled(path: Path) -> None:
    """Write two executions: short records, records with spilled texts, and one that is spilled whole."""
    journal = SqliteJournal(path, spill_bytes=200)
    for number, execution_id in enumerate(("e", "f"), 1):
        long = f'{{"of": "{execution_id}", "text": "{"long " * 100}", "more": "{"é" * 300}"}}'
        wide = f'{{"of": "{execution_id}", "all": [{", ".join(["12345"] * 100)}]}}'
        bodies = [f'{{"of": "{execution_id}", "number": {at}}}' for at in range(COUNT - 3)]
        records = records_of(execution_id, *bodies, long, wide, long)
        head = head_after(records, agent_id="agent", number=number, status=ExecutionStatus.COMPLETED)
        await journal.append(head, records)
    await journal.aclose()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a file with two executions, all well."""
    path = tmp_path_factory.mktemp("journal") / "j.db"
    asyncio.run(filled(path))
    assert findings(path) == ()
    yield path
    assert findings(path) == ()


def findings(path: Path, execution_id: str | None = None) -> tuple[JournalFinding, ...]:
    async def verify() -> tuple[JournalFinding, ...]:
        journal = SqliteJournal(path)
        try:
            return await journal.verify(execution_id)
        finally:
            await journal.aclose()

    return asyncio.run(verify())


def tampered(original: Path, *statements: tuple[str, tuple[object, ...]]) -> tuple[JournalFinding, ...]:
    """Change a copy of the file, require that something did change, and say what is found."""
    path = original.with_name("tampered.db")
    shutil.copy(original, path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        before = "".join(connection.iterdump())
        for statement, given_values in statements:
            connection.execute(statement, given_values)
        assert "".join(connection.iterdump()) != before
    return findings(path)


def otherwise(value: object) -> object:
    """Return another value of the same type."""
    if isinstance(value, int):
        return value + 1
    if value in ExecutionStatus.__members__.values():
        return ExecutionStatus.STOPPED.value
    if isinstance(value, str) and value:
        return f"{value[:-1]}{'x' if value[-1] != 'x' else 'y'}"
    return "x"


def value_of(original: Path, column: str, table: str, where: str) -> object:
    with closing(sqlite3.connect(original)) as connection:
        (value,) = connection.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchone()  # no text from outside
        return value


@given(column=st.sampled_from(RECORD.split()), sequence=st.integers(1, COUNT), execution=st.sampled_from("ef"))
def test_a_changed_record_is_found(original: Path, column: str, sequence: int, execution: str) -> None:
    """Each column of each record is guarded, and the finding names the record."""
    where = f"execution_id = '{execution}' AND sequence = {sequence}"
    value = otherwise(value_of(original, column, "records", where))
    found = tampered(original, (f"UPDATE records SET {column} = ? WHERE {where}", (value,)))
    told = 0 if column == "schema_version" else sequence  # SchemaTooNew does not say which record
    assert (execution, told) in {(one.execution_id, one.sequence) for one in found}


@given(data=st.data(), sequence=st.integers(1, COUNT))
def test_a_changed_character_is_found(original: Path, data: DataObject, sequence: int) -> None:
    """A single character of a body is enough."""
    where = f"execution_id = 'e' AND sequence = {sequence}"
    body = str(value_of(original, "body", "records", where))
    at = data.draw(st.integers(0, len(body)))
    changed = data.draw(st.characters(codec="utf-8").filter(lambda one: body[at : at + 1] != one))
    value = f"{body[:at]}{changed}{body[at + 1 :]}"
    found = tampered(original, (f"UPDATE records SET body = ? WHERE {where}", (value,)))
    assert ("e", sequence) in {(one.execution_id, one.sequence) for one in found}


@given(first=st.integers(1, COUNT), count=st.integers(1, COUNT))
def test_dropped_records_are_found(original: Path, first: int, count: int) -> None:
    """Records that are missing at the beginning, in the middle or at the end are found, also all of them."""
    where = "WHERE execution_id = 'e' AND sequence BETWEEN ? AND ?"
    found = tampered(original, (f"DELETE FROM records {where}", (first, first + count - 1)))
    assert {one.execution_id for one in found} == {"e"}


@given(places=st.lists(st.integers(1, COUNT), min_size=2, max_size=2, unique=True))
def test_swapped_records_are_found(original: Path, places: list[int]) -> None:
    """Two records that changed places are found."""
    move = "UPDATE records SET sequence = ? WHERE execution_id = 'e' AND sequence = ?"
    one, other = places
    found = tampered(original, (move, (0, one)), (move, (one, other)), (move, (other, 0)))
    assert {one, other} <= {finding.sequence for finding in found}


@given(place=st.integers(1, COUNT), source=st.integers(1, COUNT), at_end=st.booleans())
def test_spliced_records_are_found(original: Path, place: int, source: int, *, at_end: bool) -> None:
    """A record of another execution is found, in the place of one or at the end."""
    place = COUNT + 1 if at_end else place
    copy = "INSERT INTO records SELECT 'e', ?, " + ", ".join(RECORD.split())
    found = tampered(
        original,
        ("DELETE FROM records WHERE execution_id = 'e' AND sequence = ?", (place,)),
        (f"{copy} FROM records WHERE execution_id = 'f' AND sequence = ?", (place, source)),
    )
    assert {one.execution_id for one in found} == {"e"}


@given(data=st.data(), dropped=st.booleans())
def test_a_changed_or_missing_spill_is_found(original: Path, data: DataObject, *, dropped: bool) -> None:
    """What stands beside the records is guarded as well."""
    with closing(sqlite3.connect(original)) as connection:
        spills = connection.execute("SELECT execution_id, digest, data FROM spills ORDER BY 1, 2").fetchall()
    execution_id, digest, text = data.draw(st.sampled_from(spills))
    where = "WHERE execution_id = ? AND digest = ?"
    if dropped:
        found = tampered(original, (f"DELETE FROM spills {where}", (execution_id, digest)))
    else:
        at = data.draw(st.integers(0, len(text) - 1))
        changed = f"{text[:at]}#{text[at + 1 :]}"
        found = tampered(original, (f"UPDATE spills SET data = ? {where}", (changed, execution_id, digest)))
    assert {one.execution_id for one in found} == {execution_id}


@given(column=st.sampled_from(HEAD.split()))
def test_a_changed_head_is_found(original: Path, column: str) -> None:
    """Each column of what is known of an execution is guarded."""
    value = otherwise(value_of(original, column, "executions", "execution_id = 'e'"))
    value = value if column != "number" else 7
    found = tampered(original, (f"UPDATE executions SET {column} = ? WHERE execution_id = 'e'", (value,)))
    assert {one.execution_id for one in found} == {"e"}


CHANGES: dict[str, Callable[[], str]] = {
    "a head that is gone": lambda: "DELETE FROM executions WHERE execution_id = 'e'",
    "another execution's records": lambda: "UPDATE records SET execution_id = 'g' WHERE execution_id = 'e'",
    "bytes for a body": lambda: "UPDATE records SET body = x'ff00' WHERE execution_id = 'e'",
    "bytes for a spill": lambda: "UPDATE spills SET data = x'ff00' WHERE execution_id = 'e'",
    "a text for a version": lambda: "UPDATE records SET schema_version = 'one' WHERE execution_id = 'e'",
    "a text for a place": lambda: "UPDATE records SET sequence = 'one' WHERE execution_id = 'e' AND sequence = 3",
    "a number for a time": lambda: "UPDATE executions SET started_at = 1e300 WHERE execution_id = 'e'",
    "bytes for an id": lambda: "UPDATE executions SET agent_id = x'ff' WHERE execution_id = 'e'",
}


@pytest.mark.parametrize("name", CHANGES)
def test_rows_that_are_none_of_ours_are_found(original: Path, name: str) -> None:
    """Whatever stands in a row, the check says so and does not fail."""
    found = tampered(original, (CHANGES[name](), ()))
    assert {one.execution_id for one in found} & {"e", "g"}
    assert "f" not in {one.execution_id for one in found}


def test_one_execution_can_be_looked_at_alone(original: Path) -> None:
    """Damage elsewhere is none of its business."""
    tampered(original, ("DELETE FROM records WHERE execution_id = 'e' AND sequence = 2", ()))
    assert findings(original.with_name("tampered.db"), "f") == ()
    assert {one.execution_id for one in findings(original.with_name("tampered.db"), "e")} == {"e"}
