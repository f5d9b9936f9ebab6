"""Journals of earlier versions stay readable."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentloop.durable import SqliteJournal, verify_records
from tests.durable.golden.make import GOLDEN_VERSION, HERE, make_executions, to_json_data, write_golden_files

VERSIONS = range(1, GOLDEN_VERSION + 1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_journal_of_an_earlier_version_can_be_read(tmp_path: Path, version: int) -> None:
    """All heads and records are read as they were written, byte for byte, and the chain is intact."""
    path = tmp_path / "j.db"
    shutil.copy(HERE / f"version_{version}.db", path)
    journal = SqliteJournal(path)
    expected = json.loads((HERE / f"version_{version}.json").read_text())
    for execution in expected:
        execution_id = execution["head"]["execution_id"]
        head = await journal.head(execution_id)
        assert head is not None
        assert to_json_data(head) == {"agent_name": "", **execution["head"]}  # earlier versions have no names
        records = verify_records(await journal.read(execution_id), execution_id)
        assert [to_json_data(record) for record in records] == execution["records"]
    ids = {execution["head"]["execution_id"] for execution in expected}
    assert {head.execution_id for head in await journal.list()} == ids
    assert await journal.verify() == ()
    await journal.aclose()


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


async def test_the_golden_file_is_what_this_version_writes(tmp_path: Path) -> None:
    """A change of the stored form needs a new schema version and a golden file of that version."""
    await write_golden_files(tmp_path / "j.db")
    golden = HERE / f"version_{GOLDEN_VERSION}.db"
    assert dump(tmp_path / "j.db") == dump(golden)
    assert (tmp_path / "j.json").read_text() == golden.with_suffix(".json").read_text()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_journal_of_an_earlier_version_can_be_changed(tmp_path: Path, version: int) -> None:
    """Its executions can be read, deleted, purged and verified."""
    path = tmp_path / "j.db"
    shutil.copy(HERE / f"version_{version}.db", path)
    journal = SqliteJournal(path)
    head, records = make_executions(version)[0]
    assert list(await journal.read(head.execution_id)) == records
    assert await journal.delete("second")
    assert await journal.purge(head.updated_at) == 0
    assert await journal.verify() == ()
    await journal.aclose()
