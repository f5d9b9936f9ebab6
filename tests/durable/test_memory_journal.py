"""Behavior that journals of both kinds share: conversations, claims and verification."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import pytest
from attrs import evolve

from agentloop import tool
from agentloop.durable import Journal, MemoryJournal, open_journal
from agentloop.durable.chain import JournalFinding, VerifiedExecution, record_hash
from agentloop.errors import ClaimLost, JournalConflict, JournalError, SchemaTooNew
from agentloop.testing.journal_bench import append_claimed
from agentloop.values.records import RECORD_SCHEMA_VERSION, ExecutionHead, JournalRecord
from agentloop.values.reprs import MAX_REPR
from agentloop.values.steps import ExecutionStatus
from tests.durable.records import START, append_records, make_head, make_records
from tests.durable.replaying.bench import loop_of


@pytest.fixture
def create_journal(journal_place: str | None) -> Callable[[], Journal]:
    """Return a function that creates a journal of each kind."""
    return MemoryJournal if journal_place is None else partial(open_journal, journal_place)


async def start_execution(
    journal: Journal, execution_id: str, agent_id: str, number: int, *, minute: int, parent: str | None = None
) -> None:
    records = make_records(execution_id, "{}")
    head = make_head(records, agent_id=agent_id, number=number, started_at=START + timedelta(minutes=minute))
    await append_claimed(journal, evolve(head, parent_agent_id=parent), records)


async def test_the_executions_of_an_agent_form_a_conversation(create_journal: Callable[[], Journal]) -> None:
    """Executions are ordered by number, and conversations by their newest executions."""
    journal = create_journal()
    for execution_id, agent_id, number, minute in (
        ("a1", "ada", 1, 0),
        ("b1", "bob", 1, 1),
        ("a2", "ada", 2, 2),
        ("c1", "cleo", 1, 1),
    ):
        await start_execution(
            journal, execution_id, agent_id, number, minute=minute, parent="ada" if agent_id == "cleo" else None
        )
    conversations = await journal.conversations()
    summaries = [
        (item.agent_id, item.parent_agent_id, [head.execution_id for head in item.executions]) for item in conversations
    ]
    assert summaries[0] == ("ada", None, ["a1", "a2"])
    assert sorted(summaries[1:]) == [("bob", None, ["b1"]), ("cleo", "ada", ["c1"])]
    assert list(await journal.conversations(limit=1)) == [conversations[0]]
    assert await journal.conversation("ada") == conversations[0]
    assert await journal.conversation("unknown") is None
    await journal.aclose()


async def test_a_head_follows_the_last_append(create_journal: Callable[[], Journal]) -> None:
    """The head of an execution is the one of its last append; other executions are not changed."""
    journal = create_journal()
    await append_records(journal, "other", "{}")
    records = make_records("e", "{}", "{}", "{}")
    for count, status in enumerate(
        (ExecutionStatus.IN_PROGRESS, ExecutionStatus.SUSPENDED, ExecutionStatus.COMPLETED), 1
    ):
        await append_claimed(journal, make_head(records[:count], status=status), records[count - 1 : count])
        head = await journal.head("e")
        assert head == make_head(records[:count], status=status)
        assert [item.execution_id for item in await journal.list(status=status)][:1] in (["e"], ["other"])
    assert [item.execution_id for item in await journal.list(status=ExecutionStatus.COMPLETED)] == ["e"]
    assert not await journal.list(status=ExecutionStatus.SUSPENDED)
    await journal.aclose()


async def test_a_claimed_execution_is_not_purged(create_journal: Callable[[], Journal]) -> None:
    """An ended execution remains as long as a writer has claimed it."""
    journal = create_journal()
    records = make_records("e", "{}")
    await append_claimed(journal, make_head(records, status=ExecutionStatus.FAILED), records)
    claim = await journal.claim("e")
    assert await journal.purge(START + timedelta(days=1)) == 0
    with pytest.raises(JournalConflict, match="alive"):
        await journal.delete("e")
    await claim.release()
    assert await journal.purge(START + timedelta(days=1)) == 1
    await journal.aclose()


class DamagedJournal(MemoryJournal):
    """Returns other records than were written."""

    def __init__(self, damage: Callable[[list[JournalRecord]], Sequence[JournalRecord]]) -> None:
        super().__init__()
        self.damage = damage

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        return self.damage(list(await super().read(execution_id, after=after)))


OTHERS = make_records("f", *["{}"] * 9)
DAMAGES: dict[str, tuple[Callable[[list[JournalRecord]], Sequence[JournalRecord]], list[int]]] = {
    "none": (lambda records: records, []),
    "the last is missing": (lambda records: records[:-1], [5]),
    "all are missing": (lambda _: [], [5]),
    "the first is missing": (lambda records: records[1:], [2, 5]),
    "one in the middle is missing": (lambda records: [*records[:2], *records[3:]], [4, 5]),
    "one is changed": (lambda records: [*records[:2], evolve(records[2], body="{} "), *records[3:]], [3]),
    "two are changed": (
        lambda records: [evolve(item, body="[]") if item.sequence in {2, 4} else item for item in records],
        [2, 4],
    ),
    "there is an additional one": (lambda records: [*records, *make_records("e", "{}", after=records)], [5]),
    "one belongs to another execution": (lambda records: [*records[:2], OTHERS[2], *records[3:]], [3, 4]),
    "the last is replaced": (lambda records: [*records[:-1], *make_records("e", "[]", after=records[:-1])], [5]),
    "two are swapped": (lambda records: [records[1], records[0], *records[2:]], [2, 1, 3]),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_verification_locates_damage(name: str) -> None:
    """Every damaged record is reported once, and so is a damaged end of the chain."""
    damage, sequences = DAMAGES[name]
    journal = DamagedJournal(damage)
    await append_records(journal, "e", *["{}"] * 5)
    findings = await journal.verify()
    assert [finding.sequence for finding in findings] == sequences
    assert {finding.execution_id for finding in findings} <= {"e"}
    assert all(finding.problem for finding in findings)
    assert findings == await journal.verify("e")


async def test_concurrent_changes_are_not_damage() -> None:
    """An append or a deletion during the verification is not reported."""

    class AppendingJournal(MemoryJournal):
        async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
            records = list(await super().read(execution_id, after=after))
            await append_records(self, execution_id, "{}", after=records)
            return await super().read(execution_id, after=after)

    class DeletingJournal(MemoryJournal):
        async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
            await self.delete(execution_id)
            return ()

    for journal in (AppendingJournal(), DeletingJournal()):
        await append_records(journal, "e", "{}", "{}")
        assert await journal.verify() == ()


async def test_verify_each_yields_one_result_per_execution(create_journal: Callable[[], Journal]) -> None:
    """`verify_each` yields the result of every execution, newest first, and one for an unknown execution."""
    journal = create_journal()
    for number in range(5):
        await append_records(journal, f"e{number}", *["{}"] * (number + 1))
    verified = [item async for item in journal.verify_each()]
    assert [(item.execution_id, item.record_count) for item in verified] == [
        (f"e{number}", number + 1) for number in reversed(range(5))
    ]
    assert not any(item.findings for item in verified)
    assert [item async for item in journal.verify_each("unknown")] == [VerifiedExecution("unknown", 0, ())]
    await journal.aclose()


async def test_records_without_a_head_are_reported() -> None:
    """Records of an execution without a head are damage."""

    class HeadlessJournal(MemoryJournal):
        async def head(self, execution_id: str) -> ExecutionHead | None:
            return None

    journal = HeadlessJournal()
    await append_records(journal, "e", "{}")
    (finding,) = await journal.verify()
    assert finding == JournalFinding("e", 0, finding.problem)


def test_the_repr_describes_the_journal(create_journal: Callable[[], Journal]) -> None:
    """The repr names the kind of the journal and where its records are."""
    assert repr(create_journal()).startswith(("MemoryJournal(0", "SqliteJournal('/", "PostgresJournal('/"))


def test_the_repr_of_a_damaged_execution_is_bounded() -> None:
    """However many findings there are."""
    verified = VerifiedExecution("e", 1_000, [JournalFinding("e", number, "changed") for number in range(1_000)])
    assert len(repr(verified)) <= MAX_REPR


async def test_an_id_with_lone_surrogates_is_refused(create_journal: Callable[[], Journal]) -> None:
    """Claims and appends raise JournalError, and nothing is written."""
    journal = create_journal()
    for execution_id, agent_id in (("\ud800", "ada"), ("e", "\ud800")):
        with pytest.raises(JournalError, match=r"ud800' cannot be recorded"):
            await start_execution(journal, execution_id, agent_id, 1, minute=0)
    with pytest.raises(JournalError, match=r"ud800' cannot be recorded"):
        await journal.claim("\ud800")
    with pytest.raises(JournalError, match="ud800"):
        await loop_of(journal=journal).execute("Continue.", execution_id="\ud800")
    assert not await journal.list()
    await journal.aclose()


async def test_a_record_of_a_newer_version_is_not_read(create_journal: Callable[[], Journal]) -> None:
    """What a newer program wrote through the same journal raises SchemaTooNew, wherever the reading begins."""
    journal = create_journal()
    records = await append_records(journal, "e", "{}")
    (record,) = make_records("e", "{}", after=records)
    newer = evolve(record, schema_version=RECORD_SCHEMA_VERSION + 1)
    newer = evolve(newer, hash=record_hash(newer))
    await append_claimed(journal, make_head([newer]), [newer])
    for after in (0, 1):
        with pytest.raises(SchemaTooNew) as caught:
            await journal.read("e", after=after)
        assert (caught.value.document_version, caught.value.supported) == (newer.schema_version, RECORD_SCHEMA_VERSION)
    await journal.aclose()


async def test_a_claimed_execution_that_has_not_started_is_not_deleted(create_journal: Callable[[], Journal]) -> None:
    """Its writer is about to start it; it can be deleted, once, when the writer has released it."""
    journal = create_journal()
    claim = await journal.claim("e")
    with pytest.raises(JournalConflict, match="execution e is claimed"):
        await journal.delete("e")
    await append_records(journal, "e", "{}", claim=claim)
    await claim.release()
    assert await journal.delete("e")
    assert not await journal.delete("e")
    await journal.aclose()


async def test_a_used_execution_number_is_refused(create_journal: Callable[[], Journal]) -> None:
    """The error suggests to continue from the newest state of the conversation, or to fork."""
    journal = create_journal()
    await start_execution(journal, "a1", "ada", 1, minute=0)
    with pytest.raises(JournalConflict, match=r"continue from its newest state .*`journal\.fork`"):
        await start_execution(journal, "a2", "ada", 1, minute=1)
    await journal.aclose()


async def test_a_writer_cannot_append_after_the_journal_was_closed(create_journal: Callable[[], Journal]) -> None:
    """Appending is possible again after a new claim through this journal, and after the old claim was released."""
    journal = create_journal()
    claim = await journal.claim("e")
    records = await append_records(journal, "e", "{}", claim=claim)
    await journal.aclose()
    for _ in range(2):
        with pytest.raises(ClaimLost, match="the claim on execution e is lost: the journal was closed while") as caught:
            await append_records(journal, "e", "{}", after=records, claim=claim)
        assert (caught.value.execution_id, caught.value.token) == ("e", claim.token)
        assert caught.value.reason == await claim.lost()
        await journal.aclose()
    renewed = await journal.claim("e")
    await claim.release()
    with pytest.raises(JournalConflict):
        await journal.claim("e")
    records = await append_records(journal, "e", "{}", after=records, claim=renewed)
    await journal.aclose()
    await renewed.release()
    await append_records(journal, "e", "{}", after=records)
    await journal.aclose()


async def test_closing_the_journal_ends_a_running_execution(create_journal: Callable[[], Journal]) -> None:
    """No further call runs, no thread remains, and the execution can be recovered."""
    before = set(threading.enumerate())
    journal, calls = create_journal(), list[int]()

    @tool(effect="idempotent")
    async def look(n: int) -> str:
        """Look, and close the journal at the first look."""
        calls.append(n)
        if len(calls) == 1:
            await journal.aclose()
        return "seen"

    script = ([("look", {"n": 1})], [("look", {"n": 2})], "All is seen.")
    with pytest.raises(JournalError, match="the journal was closed"):
        await loop_of(*script, tool_list=[look], journal=journal).execute("Look.", execution_id="e")
    assert calls == [1]
    assert set(threading.enumerate()) == before
    state = await loop_of(*script, tool_list=[look], journal=journal).recover("e")
    assert state.final_text == "All is seen."
    assert calls == [1, 1, 2]
    assert await journal.verify() == ()
    await journal.aclose()
