"""What follows from the contract of journals: conversations, and finding damage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from attrs import evolve

from agentloop import tool
from agentloop.errors import JournalConflict, JournalError
from agentloop.journal import Journal, JournalFinding, MemoryJournal, SqliteJournal, VerifiedExecution
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.steps import ExecutionStatus
from tests.journal.records import START, append_records, make_head, make_records
from tests.replay.bench import loop_of


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Journal]:
    """Make a journal of either kind."""
    return (
        MemoryJournal if request.param == "memory" else lambda: SqliteJournal(tmp_path / "j.db", synchronous="normal")
    )


async def begin(
    journal: Journal, execution_id: str, agent_id: str, number: int, *, minute: int, parent: str | None = None
) -> None:
    records = make_records(execution_id, "{}")
    head = make_head(records, agent_id=agent_id, number=number, started_at=START + timedelta(minutes=minute))
    await journal.append(evolve(head, parent_agent_id=parent), records)


async def test_executions_of_an_agent_are_a_conversation(make: Callable[[], Journal]) -> None:
    """Executions stand in their order; the agent that began something last comes first."""
    journal = make()
    for execution_id, agent_id, number, minute in (
        ("a1", "ada", 1, 0),
        ("b1", "bob", 1, 1),
        ("a2", "ada", 2, 2),
        ("c1", "cleo", 1, 1),
    ):
        await begin(
            journal, execution_id, agent_id, number, minute=minute, parent="ada" if agent_id == "cleo" else None
        )
    found = await journal.conversations()
    told = [(one.agent_id, one.parent_agent_id, [head.execution_id for head in one.executions]) for one in found]
    assert told[0] == ("ada", None, ["a1", "a2"])
    assert sorted(told[1:]) == [("bob", None, ["b1"]), ("cleo", "ada", ["c1"])]
    assert list(await journal.conversations(limit=1)) == [found[0]]
    assert await journal.conversation("ada") == found[0]
    assert await journal.conversation("nobody") is None
    await journal.aclose()


async def test_an_execution_that_goes_on_takes_the_place_of_none(make: Callable[[], Journal]) -> None:
    """The status of an execution and its number of steps are those of the last append; others keep theirs."""
    journal = make()
    await append_records(journal, "other", "{}")
    records = make_records("e", "{}", "{}", "{}")
    for count, status in enumerate(
        (ExecutionStatus.IN_PROGRESS, ExecutionStatus.SUSPENDED, ExecutionStatus.COMPLETED), 1
    ):
        await journal.append(make_head(records[:count], status=status), records[count - 1 : count])
        head = await journal.head("e")
        assert head == make_head(records[:count], status=status)
        assert [one.execution_id for one in await journal.list(status=status)][:1] in (["e"], ["other"])
    assert [one.execution_id for one in await journal.list(status=ExecutionStatus.COMPLETED)] == ["e"]
    assert not await journal.list(status=ExecutionStatus.SUSPENDED)
    await journal.aclose()


async def test_what_is_claimed_is_not_purged(make: Callable[[], Journal]) -> None:
    """An execution that somebody goes on with stays, though it has ended."""
    journal = make()
    records = make_records("e", "{}")
    await journal.append(make_head(records, status=ExecutionStatus.FAILED), records)
    claim = await journal.claim("e")
    assert await journal.purge(START + timedelta(days=1)) == 0
    with pytest.raises(JournalConflict, match="alive"):
        await journal.delete("e")
    await claim.release()
    assert await journal.purge(START + timedelta(days=1)) == 1
    await journal.aclose()


class Damaged(MemoryJournal):
    """Reads other records than were written, and knows other heads."""

    def __init__(self, damage: Callable[[list[JournalRecord]], Sequence[JournalRecord]]) -> None:
        super().__init__()
        self.damage = damage

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        return self.damage(list(await super().read(execution_id, after=after)))


OTHERS = make_records("f", *["{}"] * 9)
DAMAGES: dict[str, tuple[Callable[[list[JournalRecord]], Sequence[JournalRecord]], list[int]]] = {
    "none": (lambda records: records, []),
    "the last is gone": (lambda records: records[:-1], [5]),
    "all are gone": (lambda _: [], [5]),
    "the first is gone": (lambda records: records[1:], [2, 5]),
    "one in the middle is gone": (lambda records: [*records[:2], *records[3:]], [4, 5]),
    "one is changed": (lambda records: [*records[:2], evolve(records[2], body="{} "), *records[3:]], [3]),
    "two are changed": (
        lambda records: [evolve(one, body="[]") if one.sequence in {2, 4} else one for one in records],
        [2, 4],
    ),
    "one is too many": (lambda records: [*records, *make_records("e", "{}", after=records)], [5]),
    "one is of another": (lambda records: [*records[:2], OTHERS[2], *records[3:]], [3, 4]),
    "the last is another": (lambda records: [*records[:-1], *make_records("e", "[]", after=records[:-1])], [5]),
    "the order": (lambda records: [records[1], records[0], *records[2:]], [2, 1, 3]),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_damage_is_found_and_its_place_told(name: str) -> None:
    """Each record that is not as it was written is told once, and so is an end that is not the one that was written."""
    damage, places = DAMAGES[name]
    journal = Damaged(damage)
    await append_records(journal, "e", *["{}"] * 5)
    found = await journal.verify()
    assert [one.sequence for one in found] == places
    assert {one.execution_id for one in found} <= {"e"}
    assert all(one.problem for one in found)
    assert found == await journal.verify("e")


async def test_what_goes_on_meanwhile_is_not_damage() -> None:
    """An execution that is appended to or deleted while it is looked at is all right."""

    class Busy(MemoryJournal):
        async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
            there = list(await super().read(execution_id, after=after))
            await append_records(self, execution_id, "{}", after=there)
            return await super().read(execution_id, after=after)

    class Vanishing(MemoryJournal):
        async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
            await self.delete(execution_id)
            return ()

    for journal in (Busy(), Vanishing()):
        await append_records(journal, "e", "{}", "{}")
        assert await journal.verify() == ()


async def test_progress_is_told_while_it_is_looked_at(make: Callable[[], Journal]) -> None:
    """Many executions are looked at one after the other, and each is told."""
    journal = make()
    for number in range(5):
        await append_records(journal, f"e{number}", *["{}"] * (number + 1))
    verified = [one async for one in journal.verify_each()]
    assert [(one.execution_id, one.record_count) for one in verified] == [
        (f"e{number}", number + 1) for number in reversed(range(5))
    ]
    assert not any(one.findings for one in verified)
    assert [one async for one in journal.verify_each("nobody")] == [VerifiedExecution("nobody", 0, ())]
    await journal.aclose()


async def test_records_without_a_head_are_found() -> None:
    """Records that nobody knows of are damage, too."""

    class Headless(MemoryJournal):
        async def head(self, execution_id: str) -> ExecutionHead | None:
            return None

    journal = Headless()
    await append_records(journal, "e", "{}")
    (finding,) = await journal.verify()
    assert finding == JournalFinding("e", 0, finding.problem)


def test_a_journal_shows_what_it_is(make: Callable[[], Journal]) -> None:
    """The repr says where the records are."""
    assert repr(make()).startswith(("MemoryJournal(0", "SqliteJournal('/"))


async def test_an_id_that_is_no_text_of_utf_8_is_refused(make: Callable[[], Journal]) -> None:
    """Any journal says so when it is claimed and when something is append_records, and has written nothing."""
    journal = make()
    for name, of_agent in (("\ud800", "ada"), ("e", "\ud800")):
        with pytest.raises(JournalError, match=r"ud800' cannot be recorded"):
            await begin(journal, name, of_agent, 1, minute=0)
    with pytest.raises(JournalError, match=r"ud800' cannot be recorded"):
        await journal.claim("\ud800")
    with pytest.raises(JournalError, match="ud800"):
        await loop_of(journal=journal).execute("Go on.", execution_id="\ud800")
    assert not await journal.list()
    await journal.aclose()


async def test_who_begins_with_a_number_that_is_taken_is_told_what_to_do(make: Callable[[], Journal]) -> None:
    """The conversation has gone on: its newest state is continued, or another line of it begins."""
    journal = make()
    await begin(journal, "a1", "ada", 1, minute=0)
    with pytest.raises(JournalConflict, match=r"continue from its newest state .*`journal\.fork`"):
        await begin(journal, "a2", "ada", 1, minute=1)
    await journal.aclose()


async def test_who_had_a_claim_when_the_journal_was_closed_appends_no_more(make: Callable[[], Journal]) -> None:
    """Others may claim the execution; when it is claimed through this journal again, or was given back, appending goes on."""
    journal = make()
    claim = await journal.claim("e")
    records = await append_records(journal, "e", "{}")
    other = await append_records(journal, "unclaimed", "{}")
    await journal.aclose()
    for _ in range(2):
        with pytest.raises(JournalError, match="the journal was closed while execution e was running"):
            await append_records(journal, "e", "{}", after=records)
        await journal.aclose()
    await append_records(journal, "unclaimed", "{}", after=other)
    anew = await journal.claim("e")
    await claim.release()
    with pytest.raises(JournalConflict):
        await journal.claim("e")
    records = await append_records(journal, "e", "{}", after=records)
    await journal.aclose()
    await anew.release()
    await append_records(journal, "e", "{}", after=records)
    await journal.aclose()


async def test_a_journal_that_is_closed_in_a_run_ends_the_run(make: Callable[[], Journal]) -> None:
    """No call runs that is not written down, no thread stays, and the run is recovered later."""
    before = set(threading.enumerate())
    journal, ran = make(), list[int]()

    @tool(effect="idempotent")
    async def look(n: int) -> str:
        """Look, and close the journal at the first look."""
        ran.append(n)
        if len(ran) == 1:
            await journal.aclose()
        return "seen"

    script = ([("look", {"n": 1})], [("look", {"n": 2})], "All is seen.")
    with pytest.raises(JournalError, match="the journal was closed"):
        await loop_of(*script, given=[look], journal=journal).execute("Look.", execution_id="e")
    assert ran == [1]
    assert set(threading.enumerate()) == before
    state = await loop_of(*script, given=[look], journal=journal).recover("e")
    assert state.final_text == "All is seen."
    assert ran == [1, 1, 2]
    assert await journal.verify() == ()
    await journal.aclose()
