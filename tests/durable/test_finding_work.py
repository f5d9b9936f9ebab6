"""Finding executions in a journal: pages, filters, unclaimed executions, whole trees."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from attrs import evolve

from agentloop.durable import MemoryJournal, SqliteJournal, open_journal
from agentloop.durable.chain import record_hash
from agentloop.durable.journal import Journal
from agentloop.durable.sqlite.claims import OpenFileLocks, ProcessLocks
from agentloop.durable.trees import INTERRUPTED, effective_status
from agentloop.errors import ConfigurationError, JournalError
from agentloop.testing.journal_bench import append_claimed
from agentloop.values.records import ExecutionHead, parse_cursor
from agentloop.values.steps import ExecutionStatus
from tests.durable.processes import read_line, start_process
from tests.durable.records import START, append_head, append_records, make_head, make_records

MakeJournal = Callable[[], Journal]


@pytest.fixture
def journal(journal_place: str | None) -> Journal:
    """Return an empty journal of each kind."""
    return MemoryJournal() if journal_place is None else open_journal(journal_place)


def _ids(heads: object) -> list[str]:
    assert isinstance(heads, list | tuple)
    return [head.execution_id for head in heads]


async def _fill(journal: Journal, count: int) -> list[str]:
    """Record executions of several statuses and agents; return their ids, newest first."""
    statuses = tuple(ExecutionStatus)
    for index in range(count):
        # Three executions start at the same time each.
        await append_head(
            journal,
            f"e{index:02}",
            agent_id=f"agent {index % 4}",
            number=index // 4 + 1,
            status=statuses[index % len(statuses)],
            started_at=START + timedelta(seconds=index // 3),
        )
    return _ids(await journal.list())


async def test_pages_hold_every_execution_once(journal: Journal) -> None:
    """Pages of any size, one after the other, are the whole list, under every filter."""
    ids = await _fill(journal, 25)
    assert len(ids) == 25
    for status in (None, ExecutionStatus.SUSPENDED, [ExecutionStatus.SUSPENDED, ExecutionStatus.COMPLETED]):
        for agent_id in (None, "agent 2"):
            whole = await journal.list(status=status, agent_id=agent_id)
            for size in (1, 2, 7, 30):
                read, page = list[ExecutionHead](), await journal.list(status=status, agent_id=agent_id, limit=size)
                while page:
                    assert len(page) <= size
                    read += page
                    page = await journal.list(status=status, agent_id=agent_id, limit=size, after=page[-1].cursor)
                assert read == list(whole)
    await journal.aclose()


async def test_executions_that_start_between_pages_are_on_no_later_page(journal: Journal) -> None:
    """A cursor is a position, so that new executions shift nothing, also when that of the cursor was deleted."""
    ids = await _fill(journal, 10)
    first = await journal.list(limit=4)
    await append_head(journal, "new", started_at=START + timedelta(hours=1))
    last = [head for head in first if head.status.is_terminal][-1]
    rest = [each for each in ids if each > last.execution_id or each < last.execution_id]
    assert await journal.delete(last.execution_id)
    after = _ids(await journal.list(after=last.cursor))
    assert after == rest[ids.index(last.execution_id) :]
    await journal.aclose()


async def test_a_text_that_is_no_cursor_is_refused(journal: Journal) -> None:
    """Cursors come from a journal; other texts raise ConfigurationError."""
    for text in ("e1", "1/2", "1/two/e"):
        with pytest.raises(ConfigurationError, match="is not a cursor"):
            await journal.list(after=text)
    head = await append_head(journal, "with/slashes/1/0/agent\nand lines")
    assert parse_cursor(head.cursor)[2] == head.execution_id
    assert not await journal.list(after=head.cursor)
    await journal.aclose()


async def test_several_statuses_select_those_and_no_others(journal: Journal) -> None:
    """The filter takes a status, its text, or a collection, of which the empty one selects nothing."""
    await _fill(journal, 25)
    everything = await journal.list()
    chosen = {ExecutionStatus.FAILED, ExecutionStatus.SUSPENDED}
    assert list(await journal.list(status=chosen)) == [head for head in everything if head.status in chosen]
    assert await journal.list(status=ExecutionStatus.FAILED) == await journal.list(status=["failed"])  # type: ignore[list-item]
    assert not await journal.list(status=[])
    await journal.aclose()


@pytest.mark.parametrize("limit", [0, -1, -(2**63) - 1])
async def test_a_limit_below_one_selects_nothing(journal: Journal, limit: int) -> None:
    """Every journal takes a negative limit for 0."""
    await _fill(journal, 3)
    assert _ids(await journal.list(limit=limit)) == []
    assert _ids(await journal.list(limit=limit, status=list(ExecutionStatus), prefix="e" * 2_000)) == []
    await journal.aclose()


@pytest.mark.parametrize("after", [1, 2**63 - 1, 2**63, 10**30])
async def test_no_record_follows_the_last_one(journal: Journal, after: int) -> None:
    """However large the number is, after which records are read."""
    await append_head(journal, "e")
    assert list(await journal.read("e", after=after)) == []
    await journal.aclose()


@pytest.mark.parametrize("limit", [2**31, 2**63 - 1, 2**63, 10**30])
async def test_a_limit_beyond_every_list_is_none(journal: Journal, limit: int) -> None:
    """Any number of executions can be asked for, also with several statuses."""
    ids = await _fill(journal, 5)
    assert _ids(await journal.list(limit=limit)) == ids
    assert _ids(await journal.list(limit=limit, status=list(ExecutionStatus))) == ids
    await journal.aclose()


async def test_times_before_1970_are_kept(journal: Journal) -> None:
    """With a clock that is wrong, or of a test, executions are recorded, listed, read and verified as with any other."""
    moments = [datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), START]
    for number, moment in enumerate(moments):
        record = evolve(make_records(f"e{number}", "{}")[0], at=moment)
        record = evolve(record, hash=record_hash(record))
        await append_claimed(journal, evolve(make_head([record]), started_at=moment), [record])
        assert list(await journal.read(f"e{number}")) == [record]
    heads = await journal.list()
    assert [head.started_at for head in heads] == moments[::-1]
    assert list(await journal.list(after=heads[0].cursor)) == list(heads[1:])
    assert await journal.verify() == ()
    await journal.aclose()


@pytest.mark.parametrize("prefix", ["run", "run/", "r\uffff", "\U0010ffff", "\ud7ff", "%", "a_"])
async def test_a_prefix_selects_the_ids_that_start_with_it(journal: Journal, prefix: str) -> None:
    """Ids are compared as texts: no character of a prefix has another meaning."""
    ids = [
        "run",
        "run/1/0/agent",
        "run0",
        "ru",
        "RUN",
        f"{prefix}",
        f"{prefix}x",
        f"{prefix}\U0010ffff",
        "ab",
        "a_b",
        "zz",
    ]
    for each in dict.fromkeys(ids):
        await append_head(journal, each)
    expected = {each for each in ids if each.startswith(prefix)}
    assert set(_ids(await journal.list(prefix=prefix))) == expected
    await journal.aclose()


@pytest.mark.parametrize("locks", [OpenFileLocks, ProcessLocks])
async def test_work_to_find_is_in_progress_and_unclaimed(tmp_path: Path, locks: type[object]) -> None:
    """Executions that this journal, another one or another process has claimed are not listed; dead processes claim nothing."""
    if locks is OpenFileLocks and sys.platform != "linux":
        pytest.skip("only Linux has locks of open files")
    path = tmp_path / "runs.db"
    journal, other = SqliteJournal(path), SqliteJournal(path)
    for each in (journal, other):
        each._claims._open_locks = locks  # type: ignore[assignment]
    for execution_id in ("mine", "theirs", "foreign", "free"):
        await append_records(journal, execution_id, "{}")
    claims = [await journal.claim("mine"), await other.claim("theirs")]

    async def unclaimed(of: SqliteJournal) -> set[str]:
        heads = await of.list(status=ExecutionStatus.IN_PROGRESS, unclaimed=True)
        assert list(heads[:1]) == list(await of.list(status=ExecutionStatus.IN_PROGRESS, unclaimed=True, limit=1))
        return {head.execution_id for head in heads}

    with start_process(path, "claim", "foreign") as holder:
        assert read_line(holder) == "claimed"
        assert await unclaimed(journal) == await unclaimed(other) == {"free"}
        holder.kill()
        holder.wait()
    assert await unclaimed(journal) == {"foreign", "free"}
    for claim in claims:
        await claim.release()
    assert await unclaimed(journal) == await unclaimed(other) == {"mine", "theirs", "foreign", "free"}
    # Looking does not claim: everything can still be claimed, by each of them.
    await (await other.claim("free")).release()
    await journal.aclose()
    await other.aclose()


async def test_conversations_with_a_limit_are_the_newest_ones(journal: Journal) -> None:
    """A limit returns the beginning of the whole list, with all executions of each agent."""
    for index in range(230):
        await append_head(
            journal,
            f"e{index}",
            agent_id=f"agent {index * 7 % 40}",
            number=index + 1,
            started_at=START + timedelta(seconds=index),
        )
    whole = await journal.conversations()
    assert len(whole) == 40
    for limit in (0, 1, 15, 40, 99):
        assert list(await journal.conversations(limit=limit)) == list(whole[:limit])
    await journal.aclose()


async def test_expired_trees_are_those_that_a_purge_deletes(journal: Journal) -> None:
    """What `expired_trees` returns is what `purge` counts, and trees that unfinished forks need are in neither."""
    done = ExecutionStatus.COMPLETED
    for each in ("a", "a/1/0/agent", "a/1/0/agent/1/0/agent", "b", "c"):
        await append_head(journal, each, status=done)
    await append_head(journal, "d", status=ExecutionStatus.SUSPENDED)
    await append_head(journal, "fork", status=ExecutionStatus.SUSPENDED, forked_from="b")
    trees = await journal.expired_trees(START + timedelta(days=1))
    assert sorted([tree.ids for tree in trees]) == [("a", "a/1/0/agent", "a/1/0/agent/1/0/agent"), ("c",)]
    assert not await journal.expired_trees(START)
    assert await journal.purge(START + timedelta(days=1)) == 4
    assert sorted(_ids(await journal.list())) == ["b", "d", "fork"]
    await journal.aclose()


async def test_an_execution_is_interrupted_while_nobody_has_claimed_it(journal: Journal) -> None:
    """While somebody runs it, it is in progress."""
    head = await append_head(journal, "e")
    claim = await journal.claim("e")
    assert await effective_status(journal, head) == "in_progress"
    await claim.release()
    assert await effective_status(journal, head) == INTERRUPTED
    await journal.aclose()


async def test_without_the_claims_the_status_is_the_recorded_one() -> None:
    """Whoever cannot read the claims does not know whether an execution is interrupted."""

    class Unreadable(MemoryJournal):
        async def list(self, **options: object) -> list[ExecutionHead]:
            raise JournalError("permission denied")

    for journal, expected in ((MemoryJournal(), INTERRUPTED), (Unreadable(), "in_progress")):
        head = await append_head(journal, "e")
        assert await effective_status(journal, head) == expected
        for status in (ExecutionStatus.SUSPENDED, ExecutionStatus.FAILED):
            assert await effective_status(journal, evolve(head, status=status)) == status.value


async def test_a_tree_is_kept_while_any_of_it_is_recent(journal: Journal) -> None:
    """An agent that serves a call may be updated after its caller has ended."""
    cutoff = START + timedelta(hours=1)
    for execution_id, updated_at in (("e", START), ("e/1/0/agent", cutoff), ("f", START), ("f/1/0/agent", START)):
        records = make_records(execution_id, "{}")
        head = evolve(make_head(records, status=ExecutionStatus.FAILED), updated_at=updated_at)
        await append_claimed(journal, head, records)
        assert await journal.purge(START) == 0
    for recent in (cutoff - timedelta(seconds=1), cutoff):
        assert await journal.purge(recent) == (2 if recent < cutoff else 0)
    assert await journal.purge(cutoff + timedelta(seconds=1)) == 2
    await journal.aclose()
