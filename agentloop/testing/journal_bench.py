"""Operations on journals, a model of what a journal should contain, and a journal that simulates crashes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Self

from attrs import evolve, field, frozen
from hypothesis import strategies as st

from agentloop.contracts.can_journal import CanJournal, Claim
from agentloop.durable.chain import chain_record
from agentloop.durable.memory_journal import MemoryJournal
from agentloop.errors import UnknownExecution
from agentloop.values.grants import GrantUse
from agentloop.values.json import format_json, parse_json
from agentloop.values.records import FIRST_HASH, ExecutionHead, JournalRecord, RecordKind, callers_of
from agentloop.values.steps import ExecutionStatus


class CrashableJournal(MemoryJournal):
    """A journal in memory that can return its content at an earlier point in time, as a crash leaves it.

    Attributes:
        appended: the records of all executions, in the order in which they were appended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.appended: list[JournalRecord] = []

    async def append_using(
        self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim, uses: Sequence[GrantUse]
    ) -> None:
        """Append records to an execution's chain, as `append` does, too, and remember the order."""
        await super().append_using(head, records, claim, uses)
        self.appended += records

    async def after_crash(self, count: int) -> Self:
        """Return a new journal that contains only the first `count` of the appended records.

        Raises:
            UnknownExecution: when an execution was deleted meanwhile.
        """
        survived = type(self)()
        by_execution: dict[str, list[JournalRecord]] = {}
        for record in self.appended[:count]:
            by_execution.setdefault(record.execution_id, []).append(record)
        for execution_id, records in by_execution.items():
            head = await self.head(execution_id)
            if head is None:
                raise UnknownExecution(f"execution {execution_id!r} was deleted: its head is not known any more")
            await append_claimed(survived, _head_at_crash(head, records), records)
        return survived


async def append_claimed(journal: CanJournal, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
    """Append records to an execution's chain under a claim of their own."""
    claim = await journal.claim(head.execution_id)
    try:
        await journal.append(head, records, claim)
    finally:
        await claim.release()


def _head_at_crash(final: ExecutionHead, records: Sequence[JournalRecord]) -> ExecutionHead:
    """Return the head of an execution at the time when it had only these records."""
    status, steps = ExecutionStatus.IN_PROGRESS, 0
    for record in records:
        body = parse_json(record.body)
        # A record with a change of the state holds the number of steps after it.
        steps = body["step"] if "delta" in body else steps
        if record.kind is RecordKind.EXECUTION_SUSPENDED:
            status = ExecutionStatus.SUSPENDED
        elif record.kind is RecordKind.EXECUTION_RESUMED:
            status = ExecutionStatus.IN_PROGRESS
        elif record.kind is RecordKind.EXECUTION_ENDED:
            status = final.status
    last = records[-1]
    return evolve(
        final,
        status=status,
        step_count=steps,
        record_count=last.sequence,
        last_hash=last.hash,
        updated_at=last.at,
    )


# Operations, and the model of a journal.

START = datetime(2026, 1, 1, tzinfo=UTC)
EXECUTIONS = ("one", "two", "three", "vier/4", "one/1/0/agent", "one/1/0/agent/2/1/agent-2", "one/1/0/agent/fork-1")
"""Among them a tree of three executions, and a fork whose id only begins like theirs."""
FORKS = {"three": "one", "vier/4": "three", "one/1/0/agent/fork-1": "one/1/0/agent"}
"""The originals of the executions that are forks."""
AGENTS = ("ada", "bob")
_LONG = 40_000

_TEXTS = st.text(max_size=20) | st.sampled_from(['"', "\\", "\n\t", "é", "😀", "\x00", "x" * _LONG, '\\"' * _LONG])
_BODIES = st.dictionaries(st.text(max_size=3), _TEXTS, max_size=3).map(lambda data: format_json(data).decode())
GROUPS = st.lists(_BODIES, min_size=1, max_size=4)
"""The bodies of records that are appended together."""


@frozen
class JournalOperation:
    """One operation on a journal.

    Attributes:
        kind: `append`, `delete`, `purge`, `race`, `cancelled`, or a key of `INVALID_APPENDS`.
        execution_id: the execution.
        bodies: the bodies of the records to append.
        status: the status of the execution after the append.
        ticks: a small number: iterations of the event loop before a cancellation, or seconds after `START` for a purge.
    """

    kind: str
    execution_id: str
    bodies: Sequence[str]
    status: ExecutionStatus
    ticks: int


def operation_lists(*kinds: str) -> st.SearchStrategy[list[JournalOperation]]:
    """Return sequences of appends and of operations of these kinds."""
    choices = st.sampled_from(["append", "append", *kinds])
    statuses, ticks = st.sampled_from(ExecutionStatus), st.integers(0, 4)
    operations = st.builds(JournalOperation, choices, st.sampled_from(EXECUTIONS), GROUPS, statuses, ticks)
    return st.lists(operations, min_size=1, max_size=10)


@frozen
class JournalModel:
    """What a journal should contain after the operations so far.

    Attributes:
        heads: the head of each execution, by id.
        records: the records of each execution, by id.
    """

    heads: dict[str, ExecutionHead] = field(factory=dict)
    records: dict[str, list[JournalRecord]] = field(factory=dict)

    def next_records(self, operation: JournalOperation) -> tuple[ExecutionHead, list[JournalRecord]]:
        """Return the head and the records of the append that an operation describes."""
        existing = self.records.get(operation.execution_id, [])
        previous = existing[-1].hash if existing else FIRST_HASH
        records = chain(operation.execution_id, operation.bodies, after=len(existing), previous=previous)
        index = EXECUTIONS.index(operation.execution_id) if operation.execution_id in EXECUTIONS else 0
        # The start times are in another order than the ids and the numbers, and before all records: nothing ends before it starts.
        started_at = START - timedelta(hours=index * 7 % 5)
        head = self.heads.get(operation.execution_id) or ExecutionHead(
            execution_id=operation.execution_id,
            agent_id=AGENTS[index % 2],
            number=index + 1,
            status=operation.status,
            input="What is it?",
            forked_from=FORKS.get(operation.execution_id, ""),
            started_at=started_at,
            updated_at=started_at,
        )
        return head_after(head, records, operation.status), records

    def add(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        """Add the records of a successful append."""
        self.heads[head.execution_id] = head
        self.records.setdefault(head.execution_id, []).extend(records)

    def remove(self, execution_ids: Iterable[str]) -> None:
        """Remove deleted executions."""
        for execution_id in execution_ids:
            del self.heads[execution_id], self.records[execution_id]

    def tree(self, execution_id: str) -> list[str]:
        """Return the ids of an execution and of all below it; empty when it is not recorded or another one is above it."""
        if execution_id not in self.heads or any(caller in self.heads for caller in callers_of(execution_id)):
            return []
        return [each for each in self.heads if execution_id in {each, *callers_of(each)}]

    def is_needed(self, execution_id: str) -> bool:
        """Return whether a fork that has not ended needs an execution or one below it, also as the original of its original."""
        unfinished = [head.forked_from for head in self.heads.values() if not head.status.is_terminal]
        needed: set[str] = set()
        for source in unfinished:
            original = source
            while original:
                needed |= {original, *callers_of(original)}
                original = self.heads[original].forked_from if original in self.heads else ""
        return execution_id in needed

    def expired(self, before: datetime) -> list[str]:
        """Return the ids of the executions that a purge deletes."""
        trees = [
            self.tree(root) for root, head in self.heads.items() if head.status.is_terminal and not self.is_needed(root)
        ]
        return [each for tree in trees if all(self.heads[each].updated_at < before for each in tree) for each in tree]

    def filter(self, agent_id: str | None, status: ExecutionStatus | None) -> list[ExecutionHead]:
        """Return the heads with this agent and this status; None matches all."""
        return [
            head for head in self.heads.values() if agent_id in {None, head.agent_id} and status in {None, head.status}
        ]


def chain(
    execution_id: str, bodies: Sequence[str], *, after: int = 0, previous: str = FIRST_HASH
) -> list[JournalRecord]:
    """Return records of an execution, chained to the record with the sequence number `after` and the hash `previous`."""
    records: list[JournalRecord] = []
    for sequence, body in enumerate(bodies, after + 1):
        kind = tuple(RecordKind)[sequence % len(RecordKind)]
        at = START + timedelta(seconds=sequence, microseconds=sequence % 3)
        records.append(chain_record(execution_id, sequence, kind, body, at=at, previous_hash=previous))
        previous = records[-1].hash
    return records


def head_after(head: ExecutionHead, records: Sequence[JournalRecord], status: ExecutionStatus) -> ExecutionHead:
    """Return the head of an execution after an append of these records."""
    last = records[-1]
    return evolve(head, status=status, record_count=last.sequence, last_hash=last.hash, updated_at=last.at)


_Invalidate = Callable[[ExecutionHead, list[JournalRecord]], tuple[ExecutionHead, list[JournalRecord]]]


def _shifted(offset: int) -> _Invalidate:
    """Leave a gap in the sequence numbers, or reuse an existing number."""

    def invalidate(head: ExecutionHead, records: list[JournalRecord]) -> tuple[ExecutionHead, list[JournalRecord]]:
        first = records[0]
        moved = chain(
            head.execution_id,
            [record.body for record in records],
            after=first.sequence - 1 + offset,
            previous=first.previous_hash,
        )
        return head_after(head, moved, head.status), moved

    return invalidate


def _wrong_previous(head: ExecutionHead, records: list[JournalRecord]) -> tuple[ExecutionHead, list[JournalRecord]]:
    """Chain the records to a hash that is not the last one, as a second writer would."""
    moved = chain(
        head.execution_id, [record.body for record in records], after=records[0].sequence - 1, previous="0" * 64
    )
    return head_after(head, moved, head.status), moved


def _reused_number(head: ExecutionHead, records: list[JournalRecord]) -> tuple[ExecutionHead, list[JournalRecord]]:
    """Start another execution with a number that is already used."""
    first = chain("another", [record.body for record in records])
    return head_after(evolve(head, execution_id="another"), first, head.status), first


INVALID_APPENDS: dict[str, _Invalidate] = {
    "gap": _shifted(1),
    "again": _shifted(-1),
    "other": _wrong_previous,
    "number": _reused_number,
}
"""Ways to make an append invalid, so that it does not extend the chain of its execution."""
