"""The journal in a file under several processes, and under processes that are killed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from agentloop.errors import JournalBusy, JournalConflict
from agentloop.journal import SqliteJournal, verify_records
from tests.journal.processes import line, process, tell
from tests.journal.records import appended


@pytest.mark.parametrize("group", [1, 5])
async def test_what_was_appended_survives_kill_9(tmp_path: Path, group: int) -> None:
    """Whatever a process was told to be appended is there after it was killed, whole groups only, and the chain is sound."""
    path, chance, journal = tmp_path / "j.db", random.Random(group), SqliteJournal(tmp_path / "j.db")
    for _ in range(6):
        with process(path, "append", "e", group) as child:
            assert line(child) == "ready"
            acknowledged = 0
            for _ in range(chance.randint(1, 40)):
                acknowledged = int(line(child))
            child.kill()
            for told in iter(lambda: line(child), ""):  # it is read out before the next one starts
                acknowledged = int(told)
        records = verify_records(await journal.read("e"), "e")
        assert len(records) >= acknowledged
        assert len(records) % group == 0
        assert await journal.verify() == ()
    await journal.aclose()


async def test_two_processes_append_to_one_execution(tmp_path: Path) -> None:
    """Each place in the chain goes to exactly one of two writers."""
    path, count = tmp_path / "j.db", 60
    with process(path, "race", "e", count, "ada") as ada, process(path, "race", "e", count, "bob") as bob:
        for child in (ada, bob):
            assert line(child) == "ready"
        for child in (ada, bob):
            tell(child)
        told = {name: list(iter(lambda one=child: line(one), "")) for name, child in (("ada", ada), ("bob", bob))}  # type: ignore[misc]  # the default binds it
    journal = SqliteJournal(path)
    records = verify_records(await journal.read("e"), "e")
    for name, places in told.items():
        assert [str(record.sequence) for record in records if f'"{name}"' in record.body] == places
    assert len(records) == sum(len(places) for places in told.values()) == count
    await journal.aclose()


async def test_a_claim_dies_with_its_process(tmp_path: Path) -> None:
    """A claim keeps other processes out and says who has it; after kill -9 of its holder it is free."""
    path, journal = tmp_path / "j.db", SqliteJournal(tmp_path / "j.db")
    await appended(journal, "e", "{}")
    with process(path, "claim", "e") as holder:
        assert line(holder) == "claimed"
        with pytest.raises(JournalConflict, match=f"claimed by process {holder.pid}"):
            await journal.claim("e")
        with pytest.raises(JournalConflict):
            await journal.delete("e")
        with process(path, "claim", "e") as other:
            assert f"process {holder.pid}" in line(other)
        holder.kill()
        holder.wait()
        claim = await journal.claim("e")
    with process(path, "claim", "e") as other:
        assert "claimed by process" in line(other)
    await claim.release()
    with process(path, "claim", "e") as other:
        assert line(other) == "claimed"
    await journal.aclose()


async def test_a_locked_file_is_busy(tmp_path: Path) -> None:
    """Who cannot write within the time gets JournalBusy, can read meanwhile, and can write afterwards."""
    path = tmp_path / "j.db"
    journal = SqliteJournal(path, busy_timeout=0.05)
    records = await appended(journal, "e", "{}")
    with process(path, "lock") as holder:
        assert line(holder) == "locked"
        with pytest.raises(JournalBusy, match="busy_timeout"):
            await appended(journal, "e", "{}", after=records)
        assert list(await journal.read("e")) == records
        tell(holder)
        holder.wait()
    await appended(journal, "e", "{}", after=records)
    assert await journal.verify() == ()
    await journal.aclose()


async def test_many_that_find_it_locked_wait_once(tmp_path: Path) -> None:
    """Appends that wait together give up together, and those that come later can still be written."""
    path = tmp_path / "j.db"
    journal = SqliteJournal(path, busy_timeout=0.2)
    await appended(journal, "e", "{}")
    begun: list[str] = []
    await journal._writer.run(lambda connection: connection.set_trace_callback(begun.append))
    begun.clear()
    with process(path, "lock") as holder:
        assert line(holder) == "locked"
        results = await asyncio.gather(
            *[appended(journal, f"e{number}", "{}") for number in range(50)], return_exceptions=True
        )
        assert {type(one) for one in results} == {JournalBusy}
        assert 0 < begun.count("BEGIN IMMEDIATE") < 25
        tell(holder)
        holder.wait()
    await asyncio.gather(*[appended(journal, f"e{number}", "{}") for number in range(50)])
    assert len(await journal.list()) == 51
    await journal.aclose()
