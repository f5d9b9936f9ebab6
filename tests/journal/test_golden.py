"""Journals that an earlier agentloop wrote are read today."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentloop.journal import SqliteJournal, verify_records
from tests.journal.golden.make import GOLDEN_VERSION, HERE, as_json, executions, make

VERSIONS = range(1, GOLDEN_VERSION + 1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_journal_of_an_earlier_version_is_read(tmp_path: Path, version: int) -> None:
    """All heads and records are what was written then, byte for byte, and the chain is sound."""
    path = tmp_path / "j.db"
    shutil.copy(HERE / f"version_{version}.db", path)
    journal = SqliteJournal(path)
    told = json.loads((HERE / f"version_{version}.json").read_text())
    for one in told:
        execution_id = one["head"]["execution_id"]
        head = await journal.head(execution_id)
        assert head is not None
        assert as_json(head) == one["head"]
        assert [as_json(record) for record in verify_records(await journal.read(execution_id), execution_id)] == one[
            "records"
        ]
    assert {head.execution_id for head in await journal.list()} == {one["head"]["execution_id"] for one in told}
    assert await journal.verify() == ()
    await journal.aclose()


def statements(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


async def test_the_golden_file_is_what_is_written_today(tmp_path: Path) -> None:
    """Whoever changes what is written has to count the version up, and to make a file of the new one."""
    await make(tmp_path / "j.db")
    golden = HERE / f"version_{GOLDEN_VERSION}.db"
    assert statements(tmp_path / "j.db") == statements(golden)
    assert (tmp_path / "j.json").read_text() == golden.with_suffix(".json").read_text()


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_execution_of_an_earlier_version_goes_on(tmp_path: Path, version: int) -> None:
    """Today's records follow those of then."""
    path = tmp_path / "j.db"
    shutil.copy(HERE / f"version_{version}.db", path)
    journal = SqliteJournal(path)
    head, records = executions(version)[0]
    assert list(await journal.read(head.execution_id)) == records
    assert await journal.delete("second")
    assert await journal.purge(head.updated_at) == 0
    assert await journal.verify() == ()
    await journal.aclose()
