"""SQLite journals: split bodies, threads, event loops, listing, purging and locks."""

from __future__ import annotations

import asyncio
import errno
import gc
import hashlib
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import aclosing, closing, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentloop.durable import SqliteJournal
from agentloop.durable.changes import ChangeSignal
from agentloop.durable.spills import join_body, split_body
from agentloop.durable.sqlite.claims import ByteLocks, ClaimFile, OpenFileLocks, ProcessLocks
from agentloop.durable.sqlite.statements import delete_expired
from agentloop.errors import ClaimLost, JournalBusy, JournalConflict, JournalError
from agentloop.testing import ManualClock, run_in_virtual_time
from agentloop.testing.journal_bench import append_claimed
from agentloop.values.commands import CommandKind, ExecutionCommand
from agentloop.values.json import format_json
from agentloop.values.messages import Message
from agentloop.values.records import JournalRecord
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import to_microseconds
from tests.durable.processes import ROOT
from tests.durable.records import START, append_head, append_records, make_head, make_records
from tests.limits import LONGEST

PIECES = st.sampled_from(['"', "\\", '\\"', "x" * 50, "é" * 30, "{", "}", ",", "\ud800", "\x00", ' "" ', "1"])
TEXTS = st.lists(PIECES, max_size=40).map("".join)


@given(
    body=TEXTS | st.dictionaries(TEXTS, TEXTS, max_size=4).map(lambda data: format_json(data).decode()),
    max_length=st.integers(1, 200),
)
def test_a_split_body_can_be_joined(body: str, max_length: int) -> None:
    """Joining restores any text, and the rest in the row is no longer than the maximum."""
    parts = split_body(body, max_length)
    assert join_body(parts.rest, parts.cuts, parts.spills) == body
    assert len(parts.rest) <= max_length
    for digest, data in parts.spills.items():
        assert hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest() == digest


@given(bodies=st.lists(TEXTS, min_size=1, max_size=3))
async def test_any_text_can_be_stored(bodies: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """A body is read back byte for byte, also with lone surrogates."""
    journal = SqliteJournal(tmp_path_factory.mktemp("journal") / "j.db", spill_bytes=64, synchronous="normal")
    records = await append_records(journal, "e", *bodies)
    assert list(await journal.read("e")) == records
    assert await journal.verify() == ()
    await journal.aclose()


@given(messages=st.lists(st.tuples(st.integers(1, 5_000), st.sampled_from(["wait", "finish", "delete"])), max_size=12))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_what_is_finished_or_deleted_is_not_in_the_file(
    messages: list[tuple[int, str]], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands are stored with secrets until they are finished, and then overwritten, whatever SQLite does by default."""
    connect = sqlite3.connect

    def connect_as_elsewhere(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_as_elsewhere)
    file = tmp_path_factory.mktemp("journal") / "j.db"
    journal = SqliteJournal(file, secrets=["secret"])
    texts = {f"c{number:03}": f"secret of c{number:03} " * length for number, (length, _) in enumerate(messages)}
    for command_id, text in texts.items():
        await append_records(journal, command_id, "{}")
        message = Message.user(text)
        command = ExecutionCommand(
            id=command_id, execution_id=command_id, kind=CommandKind.MESSAGE, message=message, posted_at=START
        )
        await journal.post(command)
    fates = dict(zip(texts, [fate for _, fate in messages], strict=True))
    await journal.finish([each for each, fate in fates.items() if fate == "finish"])
    for each in [each for each, fate in fates.items() if fate == "delete"]:
        await journal.delete(each)
    waiting = {each for each, fate in fates.items() if fate == "wait"}
    assert {each.id: each.message and each.message.text for each in await journal.commands(list(texts))} == {
        each: texts[each] for each in waiting
    }
    await journal.aclose()
    content = file.read_bytes()
    # A page that ends inside of a long text leaves most of its repetitions whole.
    assert {each for each in texts if f"secret of {each}".encode() in content} == waiting


def list_files(folder: Path) -> list[tuple[str, int]]:
    return [(path.name, path.stat().st_size) for path in folder.iterdir()]


async def test_a_long_value_is_stored_once_per_execution(tmp_path: Path) -> None:
    """A long text in many records takes the space of one, and is deleted with its execution."""
    journal = SqliteJournal(tmp_path / "j.db")
    text = "".join(hashlib.sha256(bytes([number])).hexdigest() for number in range(256)) * 10
    for execution_id in ("e", "f"):
        await append_records(
            journal, execution_id, *[format_json({"number": number, "result": text}).decode() for number in range(20)]
        )
    assert sum(size for _, size in list_files(tmp_path)) < 4 * len(text)
    with closing(sqlite3.connect(journal.path)) as connection:
        assert connection.execute("SELECT count(*) FROM spills").fetchone() == (2,)
        await journal.delete("e")
        assert connection.execute("SELECT DISTINCT execution_id FROM spills").fetchall() == [("f",)]
    assert len(await journal.read("f")) == 20
    await journal.aclose()


@pytest.mark.parametrize(("length", "count"), [(16 * 1024, 0), (16 * 1024 + 1, 1)])
async def test_a_body_of_more_than_16_kib_is_split(tmp_path: Path, length: int, count: int) -> None:
    """By default; a shorter one is stored in its row."""
    journal = SqliteJournal(tmp_path / "j.db")
    body = format_json({"a": "x" * (length - len('{"a":""}'))}).decode()
    assert len(body) == length
    await append_records(journal, "e", body)
    with closing(sqlite3.connect(journal.path)) as connection:
        assert connection.execute("SELECT count(*) FROM spills").fetchone() == (count,)
    await journal.aclose()


async def test_aclose_ends_the_threads(tmp_path: Path) -> None:
    """`aclose` ends both threads, and the journal can be used again."""
    before = set(threading.enumerate())
    journal = SqliteJournal(tmp_path / "j.db")
    assert set(threading.enumerate()) == before
    assert not list_files(tmp_path)
    for number in range(3):
        await append_records(journal, f"e{number}", "{}")
        assert len(await journal.list()) == number + 1
        assert {thread.name for thread in set(threading.enumerate()) - before} == {
            "agentloop journal writer",
            "agentloop journal reader",
        }
        await journal.aclose()
        assert set(threading.enumerate()) == before
        await journal.aclose()


def open_files(folder: Path) -> list[str]:
    """Return the names of the files of a folder that this process has open, once for each time."""
    names = list[Path]()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that with which the links are listed
            names.append(link.readlink())
    return sorted(name.name for name in names if name.parent == folder)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists open files")
@pytest.mark.parametrize("statement", ["DROP TABLE meta", "DELETE FROM meta", "UPDATE meta SET value = '99'"])
async def test_a_journal_that_is_not_used_has_no_file_open(tmp_path: Path, statement: str) -> None:
    """Neither after its use, nor after an attempt to use the file of another program: a service would run out of files."""
    journal = SqliteJournal(tmp_path / "j.db")
    claim = await journal.claim("e")
    await append_records(journal, "e", "{}", claim=claim)
    assert {"j.db", "j.db-claims", "j.db-ends"} <= set(open_files(tmp_path))
    await journal.aclose()
    assert open_files(tmp_path) == []
    with closing(sqlite3.connect(tmp_path / "j.db")) as connection, connection:
        connection.execute(statement)
    for use in (journal.list(), journal.verify(), append_records(journal, "f", "{}")):
        with pytest.raises(JournalError):
            await use
        assert not {"j.db", "j.db-ends"} & set(open_files(tmp_path))
    await journal.aclose()
    assert open_files(tmp_path) == []


def test_a_journal_serves_several_event_loops(tmp_path: Path) -> None:
    """A journal serves a new event loop per call, and event loops in several threads."""
    journal = SqliteJournal(tmp_path / "j.db")
    records = asyncio.run(append_records(journal, "e", "{}"))
    assert asyncio.run(append_records(journal, "e", "{}", after=records))
    assert asyncio.run(_count(journal, "e")) == 2

    def work(name: str) -> None:
        for number in range(20):
            asyncio.run(append_records(journal, f"{name} {number}", "{}", "{}"))

    threads = [threading.Thread(target=work, args=(name,)) for name in ("ada", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asyncio.run(journal.verify()) == ()
    assert len(asyncio.run(_list_ids(journal))) == 41
    asyncio.run(journal.aclose())


async def _count(journal: SqliteJournal, execution_id: str) -> int:
    return len(await journal.read(execution_id))


async def _list_ids(journal: SqliteJournal) -> list[str]:
    return [head.execution_id for head in await journal.list()]


async def test_a_collected_journal_ends_its_threads(tmp_path: Path) -> None:
    """Without `aclose`, the threads end when the journal is garbage-collected."""
    journal = SqliteJournal(tmp_path / "j.db")
    before = set(threading.enumerate())
    await append_records(journal, "e", "{}")
    threads = set(threading.enumerate()) - before
    assert threads
    del journal
    gc.collect()
    for thread in threads:
        thread.join(LONGEST)
        assert not thread.is_alive()


def test_a_program_without_aclose_ends(tmp_path: Path) -> None:
    """The threads do not keep a program alive, and its records are stored."""
    program = (
        "import asyncio, sys\nfrom agentloop.durable import SqliteJournal\nfrom tests.durable.records import append_records\n"
        "journal = SqliteJournal(sys.argv[1])\nasyncio.run(append_records(journal, 'e', '{}'))\n"
    )
    path = tmp_path / "j.db"
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, cwd=ROOT, timeout=LONGEST)
    journal = SqliteJournal(path)
    assert asyncio.run(_count(journal, "e")) == 1
    asyncio.run(journal.aclose())


LEVELS: list[Literal["full", "normal"]] = ["full", "normal"]


@pytest.mark.parametrize("synchronous", LEVELS)
async def test_a_waiting_append_does_not_block_the_event_loop(
    tmp_path: Path, synchronous: Literal["full", "normal"]
) -> None:
    """While an append waits for another writer, the event loop runs and reads succeed."""
    journal = SqliteJournal(tmp_path / "j.db", synchronous=synchronous, busy_timeout=LONGEST)
    records = await append_records(journal, "e", "{}")
    with closing(sqlite3.connect(journal.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(append_records(journal, "e", "{}", after=records))
        for _ in range(50):
            assert len(await journal.read("e")) == 1
        assert not waiting.done()
        other.execute("ROLLBACK")
        await waiting
    assert len(await journal.read("e")) == 2
    await journal.aclose()


async def _append_and_name_threads(journal: SqliteJournal, body: str) -> list[str]:
    """Append to a new execution and to it again; return the names of the threads in which the connection ran statements."""
    names: list[str] = []

    def note(_: str) -> None:
        names.append(threading.current_thread().name)

    await journal._writer.run(lambda connection: connection.set_trace_callback(note))
    names.clear()
    await append_records(journal, "e", body, after=await append_records(journal, "e", body))
    return names


async def test_a_short_append_that_waits_for_no_disk_needs_no_thread(tmp_path: Path) -> None:
    """With `normal`, it runs in the thread of the event loop; with `full`, or when it is long, in that of the journal."""
    loop_thread, writer = threading.current_thread().name, "agentloop journal writer"
    for synchronous, body, expected in (
        ("normal", "{}", loop_thread),
        ("normal", f'{{"text": "{"x" * 100_000}"}}', writer),
        ("full", "{}", writer),
    ):
        journal = SqliteJournal(tmp_path / f"{synchronous}{len(body)}.db", synchronous=synchronous)  # type: ignore[arg-type]
        assert set(await _append_and_name_threads(journal, body)) == {expected}
        assert await journal.verify() == ()
        await journal.aclose()


async def test_the_log_does_not_grow_with_appends_that_need_no_thread(tmp_path: Path) -> None:
    """The thread of the journal copies the log into the file in between."""
    journal = SqliteJournal(tmp_path / "j.db", synchronous="normal")
    claim, records = await journal.claim("e"), list[JournalRecord]()
    for _ in range(600):
        records = (
            await append_records(journal, "e", f'{{"text": "{"x" * 10_000}"}}', after=records[-1:], claim=claim)
        )[-1:]
    sizes = {Path(name).name: size for name, size in list_files(tmp_path)}
    assert sizes["j.db-wal"] < 16 * 1024 * 1024
    assert sizes["j.db"] > 2 * 1024 * 1024
    await claim.release()
    assert await journal.verify() == ()
    await journal.aclose()


async def test_waiting_appends_share_a_transaction(tmp_path: Path) -> None:
    """A hundred concurrent appends take a few transactions."""
    journal = SqliteJournal(tmp_path / "j.db")
    commits: list[str] = []
    await journal._writer.run(lambda connection: connection.set_trace_callback(commits.append))
    await asyncio.gather(*[append_records(journal, f"e{number}", "{}") for number in range(100)])
    assert commits.count("COMMIT") < 10
    assert len(await journal.list()) == 100
    await journal.aclose()


async def test_listing_uses_an_index(tmp_path: Path) -> None:
    """Every filter of `list` uses an index: no table is scanned and nothing is sorted."""
    journal = SqliteJournal(tmp_path / "j.db")
    await append_records(journal, "e", "{}")
    statements: list[str] = []
    await journal._reader.run(lambda connection: connection.set_trace_callback(statements.append))
    await journal.list(limit=5)
    await journal.list(status=ExecutionStatus.IN_PROGRESS, limit=5)
    await journal.list(agent_id="agent of e", limit=5)
    await journal.aclose()
    queries = [statement for statement in statements if statement.startswith("SELECT")]
    assert len(queries) == 3
    with closing(sqlite3.connect(journal.path)) as connection:
        plans = [" ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")) for query in queries]
    assert all("USING INDEX" in plan for plan in plans)
    assert not any("TEMP B-TREE" in plan for plan in plans[:2])


async def test_purge_deletes_ended_and_unclaimed_executions(tmp_path: Path) -> None:
    """Running, recently updated and claimed executions remain; all others are deleted in batches."""
    journal = SqliteJournal(tmp_path / "j.db", synchronous="normal")
    ended = [make_records(f"ended {number}", "{}") for number in range(450)]
    await asyncio.gather(
        *[append_claimed(journal, make_head(records, status=ExecutionStatus.FAILED), records) for records in ended]
    )
    await append_records(journal, "running", "{}")
    late = make_records("late", "{}")
    cutoff = late[0].at + timedelta(hours=1)
    await append_claimed(journal, evolve(make_head(late, status=ExecutionStatus.STOPPED), updated_at=cutoff), late)
    claim = await journal.claim("ended 7")
    assert await journal.purge(cutoff) == 449
    assert {head.execution_id for head in await journal.list()} == {"running", "late", "ended 7"}
    await claim.release()
    assert await journal.purge(cutoff) == 1
    assert await journal.verify() == ()
    await journal.aclose()


@pytest.mark.parametrize("kind", [OpenFileLocks, ProcessLocks])
async def test_locks_exclude_other_objects_of_the_process(tmp_path: Path, kind: type[ByteLocks]) -> None:
    """With either kind of locks, two objects of a process exclude each other, and closing one releases only its locks."""
    path = tmp_path / "claims"
    first, second = ClaimFile(path, kind), ClaimFile(path, kind)
    claims = [first.claim("a"), second.claim("b")]
    for claim_file, execution_id in ((first, "a"), (first, "b"), (second, "a")):
        with pytest.raises(JournalConflict, match="another writer of this process"):
            claim_file.claim(execution_id)
    await claims[0].release()
    third = second.claim("a")
    await claims[0].release()
    first.close()
    with pytest.raises(JournalConflict):
        first.claim("a")
    second.close()
    second.close()
    await third.release()
    last = first.claim("a")
    await claims[1].release()
    with pytest.raises(JournalConflict):
        second.claim("a")
    await last.release()
    first.close()
    second.close()


class StuckCounter(ProcessLocks):
    """Locks of which another process holds all but the first one that is asked for."""

    is_used = False

    def lock(self, byte: int) -> bool:
        was_used, self.is_used = self.is_used, True
        return not was_used and super().lock(byte)


def test_a_counter_that_another_process_keeps_locked_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For five seconds with short pauses, because others lock it for microseconds; then the claim is not made."""
    clock, pauses = ManualClock(), list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds)

    claims = ClaimFile(tmp_path / "claims", StuckCounter)
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", sleep)
        patch.setattr(time, "monotonic", clock.monotonic)
        with pytest.raises(JournalBusy, match=r"has locked the counter in .*-claims for 5 seconds"):
            claims.claim("e")
    assert sum(pauses) == pytest.approx(5, abs=0.05)
    assert max(pauses) < 0.05
    assert not claims.is_claimed("e")
    claims.close()


async def test_every_path_of_a_file_is_one_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through links, hard links, linked folders and relative paths, a journal has the same claims and records."""
    first = SqliteJournal(tmp_path / "j.db")
    records = await append_records(first, "e", "{}")
    (tmp_path / "link.db").symlink_to("j.db")
    (tmp_path / "hard.db").hardlink_to(tmp_path / "j.db")
    (tmp_path / "folder").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    claim = await first.claim("e")
    for path in ("j.db", "link.db", "hard.db", "folder/j.db", "folder/hard.db"):
        other = SqliteJournal(path)
        with pytest.raises(JournalConflict):
            await other.claim("e")
        assert list(await other.read("e")) == records
        await other.aclose()
    await claim.release()
    await first.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems store no path with the file")
async def test_a_file_system_without_attributes_takes_files_of_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symbolic links lead to the same journal there, too; a file with two hard links can only be read, as nobody knows both."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    monkeypatch.setattr(os, "getxattr", refuse)
    file, hard = tmp_path / "j.db", tmp_path / "hard.db"
    async with aclosing(SqliteJournal(file)) as journal, aclosing(SqliteJournal(tmp_path / "link.db")) as linked:
        claim = await journal.claim("e")
        records = await append_records(journal, "e", "{}", claim=claim)
        (tmp_path / "link.db").symlink_to("j.db")
        with pytest.raises(JournalConflict):
            await linked.claim("e")
        assert list(await linked.read("e")) == records
    hard.hardlink_to(file)
    for path in (file, hard):
        async with aclosing(SqliteJournal(path)) as journal:
            for use in (journal.list(), journal.claim("e"), journal.verify(), append_records(journal, "f", "{}")):
                with pytest.raises(JournalError, match="has 2 hard links"):
                    await use
            with monkeypatch.context() as patch:
                patch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
                assert list(await journal.read("e")) == records
    hard.unlink()
    async with aclosing(SqliteJournal(file)) as journal:
        await append_records(journal, "e", "{}", after=records)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux stores the path with the file")
async def test_a_file_that_was_moved_without_its_log_is_not_opened(tmp_path: Path) -> None:
    """A journal that was renamed while its `-wal` file had records is refused until the log has its new name, too."""
    file, moved = tmp_path / "j.db", tmp_path / "moved.db"
    records = make_records("e", "{}")
    writer, reader = SqliteJournal(file), SqliteJournal(moved)
    await append_claimed(writer, make_head(records), records)
    file.rename(moved)
    for refused in (reader.list(), reader.claim("e"), reader.verify()):
        with pytest.raises(JournalError, match="was moved from"):
            await refused
    file.with_name("j.db-wal").rename(tmp_path / "moved.db-wal")
    assert [head.execution_id for head in await reader.list()] == ["e"]
    await reader.aclose()
    await writer.aclose()


async def test_a_removed_lock_file_ends_its_claims(tmp_path: Path) -> None:
    """Others could claim an execution whose lock file was removed, so its writer cannot append any more."""
    journal = SqliteJournal(tmp_path / "j.db")
    claim = await journal.claim("e")
    records = await append_records(journal, "e", "{}", claim=claim)
    (tmp_path / "j.db-claims").unlink()
    assert claim.is_lost
    with pytest.raises(ClaimLost, match="was removed or replaced"):
        await append_records(journal, "e", "{}", after=records, claim=claim)
    assert "was removed or replaced" in await claim.lost()
    await journal.aclose()
    renewed = await journal.claim("e")
    assert renewed.token > claim.token
    await append_records(journal, "e", "{}", after=records, claim=renewed)
    await journal.aclose()


async def test_a_closed_lock_file_can_be_removed(tmp_path: Path) -> None:
    """When the last object with locks of the process is closed, nothing remembers the file that was removed since."""
    first, second = (ClaimFile(tmp_path / "j.db", ProcessLocks) for _ in range(2))
    for execution_id in ("a", "b"):
        first.claim(execution_id)
        second.claim(f"other {execution_id}")
    first.close()
    second.close()
    (tmp_path / "j.db-claims").unlink()
    for execution_id in ("a", "b"):
        first.claim(execution_id)
        second.claim(f"other {execution_id}")
    first.close()
    second.close()


async def test_a_token_is_larger_than_a_stored_one(tmp_path: Path) -> None:
    """After a loss of power, the counter may be an older one than that of the last append."""
    journal, claims = SqliteJournal(tmp_path / "j.db"), tmp_path / "j.db-claims"
    await append_records(journal, "other", "{}")
    former = claims.read_bytes()
    claim = await journal.claim("e")
    records = await append_records(journal, "e", "{}", claim=claim)
    await journal.aclose()
    claims.write_bytes(former)
    renewed = await journal.claim("e")
    assert renewed.token > claim.token
    await append_records(journal, "e", "{}", after=records, claim=renewed)
    await journal.aclose()


async def test_an_action_that_fails_leaves_those_alone_that_ran_with_it(tmp_path: Path) -> None:
    """Jobs that wait together run in one transaction; when one of them fails, the others are run without it."""
    journal = SqliteJournal(tmp_path / "j.db", busy_timeout=LONGEST)
    await append_records(journal, "first", "{}")

    def fail(_: object) -> None:
        raise ValueError("broken")

    with closing(sqlite3.connect(journal.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        claims = [await journal.claim(f"e{number}") for number in range(4)]
        appends = [append_records(journal, claim.execution_id, "{}", claim=claim) for claim in claims]
        waiting = [asyncio.ensure_future(each) for each in (*appends[:2], journal._writer.run(fail), *appends[2:])]
        assert len(await journal.list()) == 1
        other.execute("ROLLBACK")
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [list, list, ValueError, list, list]
    assert len(await journal.list()) == 5
    await journal.aclose()


async def test_only_a_lock_of_others_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds the file free is done without a pause."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    journal = SqliteJournal(tmp_path / "j.db", busy_timeout=LONGEST)
    records = await append_records(journal, "e", "{}")
    assert list(await journal.read("e")) == records
    assert not pauses
    with closing(sqlite3.connect(journal.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(append_records(journal, "e", "{}", after=records))
        while not pauses:
            await journal.read("e")
        other.execute("ROLLBACK")
    await waiting
    await journal.aclose()


async def test_a_wait_ends_with_a_change_of_what_is_waited_for(tmp_path: Path) -> None:
    """An append of another object wakes those who wait for any execution or for this one, and nobody else."""
    first, second = SqliteJournal(tmp_path / "j.db"), SqliteJournal(tmp_path / "j.db")
    await append_records(first, "e", "{}")
    for execution_id in ("e", "", "f"):
        while await second.wait_for_change(execution_id, timeout=0, caller=first):
            pass
    await append_records(first, "e", "{}", after=await first.read("e"))
    for execution_id in ("e", ""):
        assert await second.wait_for_change(execution_id, timeout=LONGEST, caller=first)
    assert not await second.wait_for_change("f", timeout=0, caller=first)
    await first.aclose()
    await second.aclose()


def test_who_waits_gets_the_error_of_a_storage_that_cannot_be_read() -> None:
    """Looks for changes that fail let those who wait look themselves, long before their time is over."""
    is_there = True

    async def fail(*_: str) -> object:
        raise JournalError("gone")

    async def read_mark(execution_id: str) -> object:
        return 1 if is_there else await fail(execution_id)

    async def wait() -> float:
        nonlocal is_there
        changes, loop = ChangeSignal(fail), asyncio.get_running_loop()
        assert await changes.wait("e", read_mark, timeout=0, caller=loop)
        waiting = asyncio.ensure_future(changes.wait("e", read_mark, timeout=60, caller=loop))
        await asyncio.sleep(0)
        is_there = False
        with pytest.raises(JournalError, match="gone"):
            await waiting
        return loop.time()

    assert run_in_virtual_time(wait()) < 1


async def test_a_tree_that_is_deleted_meanwhile_is_left_out_of_a_purge(tmp_path: Path) -> None:
    """What was listed as expired is looked at again before it is deleted."""
    journal, cutoff = SqliteJournal(tmp_path / "j.db"), to_microseconds(START + timedelta(hours=1))
    await append_head(journal, "e", status=ExecutionStatus.FAILED)
    deletion = await journal._writer.run(partial(delete_expired, [("gone",), ("e", "e/1/0/agent"), ("e",)], cutoff))
    assert list(deletion.execution_ids) == ["e"]
    await journal.aclose()
