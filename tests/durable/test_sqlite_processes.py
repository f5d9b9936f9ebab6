"""SQLite journals under several processes, and under processes that are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from agentloop.durable import SqliteJournal, verify_records
from agentloop.durable.sqlite.claims import ClaimFile, ProcessLocks
from agentloop.errors import JournalBusy, JournalConflict
from tests.durable.processes import read_line, send_line, start_process
from tests.durable.records import append_records
from tests.durable.test_sqlite_journal import open_files
from tests.limits import LONGEST


@pytest.mark.parametrize("group_size", [1, 5])
async def test_acknowledged_appends_survive_kill_9(tmp_path: Path, group_size: int) -> None:
    """After kill -9, every acknowledged record is stored, only in complete groups, and the chain is intact."""
    path, chance, journal = tmp_path / "j.db", random.Random(group_size), SqliteJournal(tmp_path / "j.db")
    for _ in range(6):
        with start_process(path, "append", "e", group_size) as child:
            assert read_line(child) == "ready"
            acknowledged = 0
            for _ in range(chance.randint(1, 40)):
                acknowledged = int(read_line(child))
            child.kill()
            for line in iter(lambda: read_line(child), ""):  # acknowledged before the kill
                acknowledged = int(line)
        records = verify_records(await journal.read("e"), "e")
        assert len(records) >= acknowledged
        assert len(records) % group_size == 0
        assert await journal.verify() == ()
    await journal.aclose()


async def test_two_processes_can_append_to_one_execution(tmp_path: Path) -> None:
    """Each position in the chain belongs to exactly one of two writers."""
    path, count = tmp_path / "j.db", 60
    with start_process(path, "race", "e", count, "ada") as ada, start_process(path, "race", "e", count, "bob") as bob:
        for child in (ada, bob):
            assert read_line(child) == "ready"
        for child in (ada, bob):
            send_line(child)
        sequences = {name: list(iter(partial(read_line, child), "")) for name, child in (("ada", ada), ("bob", bob))}
    journal = SqliteJournal(path)
    records = verify_records(await journal.read("e"), "e")
    for name, numbers in sequences.items():
        assert [str(record.sequence) for record in records if f'"{name}"' in record.body] == numbers
    assert len(records) == sum(len(numbers) for numbers in sequences.values()) == count
    await journal.aclose()


async def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    """A claim excludes other processes and the error names its holder; kill -9 of the holder releases it."""
    path, journal = tmp_path / "j.db", SqliteJournal(tmp_path / "j.db")
    await append_records(journal, "e", "{}")
    with start_process(path, "claim", "e") as holder:
        assert read_line(holder) == "claimed"
        with pytest.raises(JournalConflict, match=f"claimed by process {holder.pid}"):
            await journal.claim("e")
        with pytest.raises(JournalConflict):
            await journal.delete("e")
        with start_process(path, "claim", "e") as other:
            assert f"process {holder.pid}" in read_line(other)
        holder.kill()
        holder.wait()
        claim = await journal.claim("e")
    with start_process(path, "claim", "e") as other:
        assert "claimed by process" in read_line(other)
    await claim.release()
    with start_process(path, "claim", "e") as other:
        assert read_line(other) == "claimed"
    await journal.aclose()


async def test_a_locked_file_raises_an_error(tmp_path: Path) -> None:
    """A writer gets JournalBusy after the timeout, can read meanwhile, and can write afterwards."""
    path = tmp_path / "j.db"
    journal = SqliteJournal(path, busy_timeout=0.05)
    records = await append_records(journal, "e", "{}")
    with start_process(path, "lock") as holder:
        assert read_line(holder) == "locked"
        with pytest.raises(JournalBusy, match="busy_timeout"):
            await append_records(journal, "e", "{}", after=records)
        assert list(await journal.read("e")) == records
        send_line(holder)
        holder.wait()
    await append_records(journal, "e", "{}", after=records)
    assert await journal.verify() == ()
    await journal.aclose()


async def test_appends_that_wait_for_a_lock_wait_once(tmp_path: Path) -> None:
    """Appends that wait together fail together, and later appends succeed."""
    path = tmp_path / "j.db"
    journal = SqliteJournal(path, busy_timeout=0.2)
    await append_records(journal, "e", "{}")
    statements: list[str] = []
    await journal._writer.run(lambda connection: connection.set_trace_callback(statements.append))
    statements.clear()
    with start_process(path, "lock") as holder:
        assert read_line(holder) == "locked"
        results = await asyncio.gather(
            *[append_records(journal, f"e{number}", "{}") for number in range(50)], return_exceptions=True
        )
        assert {type(result) for result in results} == {JournalBusy}
        assert 0 < statements.count("BEGIN IMMEDIATE") < 25
        send_line(holder)
        holder.wait()
    await asyncio.gather(*[append_records(journal, f"e{number}", "{}") for number in range(50)])
    assert len(await journal.list()) == 51
    await journal.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has locks that belong to an open file")
async def test_who_reads_the_lock_file_costs_no_claim(tmp_path: Path) -> None:
    """Another part of the program may open and close the file, as a backup does."""
    path, journal = tmp_path / "j.db", SqliteJournal(tmp_path / "j.db")
    claim = await journal.claim("e")
    assert (tmp_path / "j.db-claims").read_bytes()
    with start_process(path, "claim", "e") as other:
        assert "claimed by process" in read_line(other)
    await claim.release()
    await journal.aclose()


# --- forks ------------------------------------------------------------------------------------------------------------


def exit_code_of_fork(work: Callable[[], object]) -> int:
    """Run a function in a forked process; return 0 if its result is true. A process that hangs is ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of forks in a process with threads
        child = os.fork()
    if not child:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)
            code = 0 if work() else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no forks")
@pytest.mark.parametrize("synchronous", ["full", "normal"])
async def test_a_forked_process_uses_the_journal_of_its_parent(
    tmp_path: Path, synchronous: Literal["full", "normal"]
) -> None:
    """It has a thread, connections and claims of its own, and the parent goes on with its own."""
    journal = SqliteJournal(tmp_path / "j.db", synchronous=synchronous)
    claim = await journal.claim("e")
    records = await append_records(journal, "e", "{}", claim=claim)

    async def use() -> bool:
        with pytest.raises(JournalConflict):
            await journal.claim("e")
        await append_records(journal, "of the child", "{}")
        return claim.is_lost and list(await journal.read("e")) == records

    code = await asyncio.to_thread(exit_code_of_fork, lambda: asyncio.new_event_loop().run_until_complete(use()))
    assert code == 0
    async with asyncio.timeout(LONGEST):
        other = await journal.claim("f")
        await append_records(journal, "f", "{}", claim=other)
        await append_records(journal, "e", "{}", after=records, claim=claim)
        assert len(await journal.list()) == 3
    assert not claim.is_lost
    await journal.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists open files")
async def test_a_forked_process_has_no_connection_of_its_parent(tmp_path: Path) -> None:
    """SQLite does not allow to use one, or to close it, in another process than that which opened it."""
    journal = SqliteJournal(tmp_path / "j.db")
    await append_records(journal, "e", "{}")
    await journal.list()
    assert "j.db" in open_files(tmp_path)
    code = await asyncio.to_thread(exit_code_of_fork, lambda: not {"j.db", "j.db-wal"} & set(open_files(tmp_path)))
    assert code == 0
    await journal.aclose()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no forks")
def test_a_fork_while_a_thread_claims_leaves_claims_usable(tmp_path: Path) -> None:
    """With locks of the process, the child has none of the claims of its parent, and can make others."""
    claim_files = [ClaimFile(tmp_path / "j.db", ProcessLocks) for _ in range(2)]
    held = [each.claim(f"e{number}") for number, each in enumerate(claim_files)]

    def use() -> bool:
        return all(claim.is_lost for claim in held) and all(each.claim(f"of {each}") for each in claim_files)

    with ProcessLocks._guard:  # as a thread holds it that claims at this moment
        code = exit_code_of_fork(use)
    assert code == 0
    assert not any(claim.is_lost for claim in held)
    for each in claim_files:
        each.close()
