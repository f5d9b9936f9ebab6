"""What a journal is asked to keep in trials, and what it should say then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Self

from attrs import evolve, field, frozen
from hypothesis import strategies as st

from agentloop.errors import UnknownExecution
from agentloop.journal.chain import chain_record
from agentloop.journal.memory_journal import MemoryJournal
from agentloop.values.json import format_json, parse_json
from agentloop.values.records import FIRST_HASH, ExecutionHead, JournalRecord, RecordKind
from agentloop.values.steps import ExecutionStatus

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
EXECUTIONS = ("one", "two", "three", "vier/4")
AGENTS = ("ada", "bob")
_LONG = 40_000

_TEXTS = st.text(max_size=20) | st.sampled_from(['"', "\\", "\n\t", "é", "😀", "\x00", "x" * _LONG, '\\"' * _LONG])
_BODIES = st.dictionaries(st.text(max_size=3), _TEXTS, max_size=3).map(lambda data: format_json(data).decode())
GROUPS = st.lists(_BODIES, min_size=1, max_size=4)
"""Bodies of records that are appended together."""


@frozen
class JournalOperation:
    """One thing that is asked of a journal.

    Attributes:
        kind: `append`, `delete`, `purge`, or one of the ways in which an append can be wrong.
        execution: of which execution.
        bodies: what is appended.
        status: how the execution stands then.
        ticks: after how many turns of the event loop it is given up.
    """

    kind: str
    execution: str
    bodies: Sequence[str]
    status: ExecutionStatus
    ticks: int


def scripts(*kinds: str) -> st.SearchStrategy[list[JournalOperation]]:
    """Things that are asked one after the other, appends and these."""
    choices = st.sampled_from(["append", "append", *kinds])
    statuses, ticks = st.sampled_from(ExecutionStatus), st.integers(0, 4)
    operations = st.builds(JournalOperation, choices, st.sampled_from(EXECUTIONS), GROUPS, statuses, ticks)
    return st.lists(operations, min_size=1, max_size=10)


@frozen
class JournalModel:
    """What a journal should hold.

    Attributes:
        heads: what is known of each execution.
        records: its records.
    """

    heads: dict[str, ExecutionHead] = field(factory=dict)
    records: dict[str, list[JournalRecord]] = field(factory=dict)

    def following(self, operation: JournalOperation) -> tuple[ExecutionHead, list[JournalRecord]]:
        """Make the records that come next in an execution, and its head after them."""
        there = self.records.get(operation.execution, [])
        previous = there[-1].hash if there else FIRST_HASH
        records = chain(operation.execution, operation.bodies, after=len(there), previous=previous)
        known = self.heads.get(operation.execution)
        begun = BEGIN + timedelta(hours=EXECUTIONS.index(operation.execution) * 7 % 5)
        head = known or ExecutionHead(
            execution_id=operation.execution,
            agent_id=AGENTS[EXECUTIONS.index(operation.execution) % 2],
            number=EXECUTIONS.index(operation.execution) + 1,
            status=operation.status,
            input="What is it?",
            started_at=begun,
            updated_at=begun,
        )
        return after(head, records, operation.status), records

    def keep(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        """Take note of what was appended."""
        self.heads[head.execution_id] = head
        self.records.setdefault(head.execution_id, []).extend(records)

    def forget(self, execution_id: str) -> bool:
        """Take note of what was deleted; say whether it was there."""
        self.records.pop(execution_id, None)
        return self.heads.pop(execution_id, None) is not None

    def chosen(self, agent_id: str | None, status: ExecutionStatus | None) -> list[ExecutionHead]:
        """Return the heads of an agent or a status."""
        return [one for one in self.heads.values() if agent_id in {None, one.agent_id} and status in {None, one.status}]


def chain(
    execution_id: str, bodies: Sequence[str], *, after: int = 0, previous: str = FIRST_HASH
) -> list[JournalRecord]:
    """Make records of an execution that follow the one of this number and hash."""
    records: list[JournalRecord] = []
    for sequence, body in enumerate(bodies, after + 1):
        kind = tuple(RecordKind)[sequence % len(RecordKind)]
        at = BEGIN + timedelta(seconds=sequence, microseconds=sequence % 3)
        records.append(chain_record(execution_id, sequence, kind, body, at=at, previous_hash=previous))
        previous = records[-1].hash
    return records


def after(head: ExecutionHead, records: Sequence[JournalRecord], status: ExecutionStatus) -> ExecutionHead:
    """Return the head of an execution after these records."""
    last = records[-1]
    return evolve(head, status=status, record_count=last.sequence, last_hash=last.hash, updated_at=last.at)


Spoil = Callable[[ExecutionHead, list[JournalRecord]], tuple[ExecutionHead, list[JournalRecord]]]


def _elsewhere(by: int) -> Spoil:
    """Append where nothing was left, or where something stands."""

    def spoil(head: ExecutionHead, records: list[JournalRecord]) -> tuple[ExecutionHead, list[JournalRecord]]:
        first = records[0]
        moved = chain(
            head.execution_id,
            [one.body for one in records],
            after=first.sequence - 1 + by,
            previous=first.previous_hash,
        )
        return after(head, moved, head.status), moved

    return spoil


def _after_another(head: ExecutionHead, records: list[JournalRecord]) -> tuple[ExecutionHead, list[JournalRecord]]:
    """Append what follows a record that somebody else could have written."""
    moved = chain(head.execution_id, [one.body for one in records], after=records[0].sequence - 1, previous="0" * 64)
    return after(head, moved, head.status), moved


def _same_number(head: ExecutionHead, records: list[JournalRecord]) -> tuple[ExecutionHead, list[JournalRecord]]:
    """Begin another execution with a number that is used."""
    begun = chain("another", [one.body for one in records])
    return after(evolve(head, execution_id="another"), begun, head.status), begun


INVALID_APPENDS: dict[str, Spoil] = {
    "gap": _elsewhere(1),
    "again": _elsewhere(-1),
    "other": _after_another,
    "number": _same_number,
}
"""Ways in which an append does not extend what is there."""


class CrashableJournal(MemoryJournal):
    """A journal in memory that knows the order of all its records, whichever execution they are of.

    It tells what a crash would leave: `await chronicle.crashed_after(n)` is a journal with the first records only.

    Attributes:
        appended: the records, in the order in which they were appended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.appended: list[JournalRecord] = []

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        """Put records at the end of an execution's chain, and note the order."""
        await super().append(head, records)
        self.appended += records

    async def after_crash(self, count: int) -> Self:
        """Return a journal with the first so many records of all executions, as a crash leaves it.

        Raises:
            UnknownExecution: when an execution was deleted meanwhile.
        """
        left = type(self)()
        by_execution: dict[str, list[JournalRecord]] = {}
        for record in self.appended[:count]:
            by_execution.setdefault(record.execution_id, []).append(record)
        for execution_id, records in by_execution.items():
            head = await self.head(execution_id)
            if head is None:
                raise UnknownExecution(f"execution {execution_id!r} was deleted: nobody knows what a crash left of it")
            await left.append(_head_after(head, records), records)
        return left


def _head_after(whole: ExecutionHead, records: Sequence[JournalRecord]) -> ExecutionHead:
    """Return what a list showed of an execution when these were its records."""
    status, steps = ExecutionStatus.IN_PROGRESS, 0
    for record in records:
        body = parse_json(record.body)
        steps = body["step"] if "delta" in body else steps
        if record.kind is RecordKind.EXECUTION_SUSPENDED:
            status = ExecutionStatus.SUSPENDED
        elif record.kind is RecordKind.EXECUTION_RESUMED:
            status = ExecutionStatus.IN_PROGRESS
        elif record.kind is RecordKind.EXECUTION_ENDED:
            status = whole.status
    last = records[-1]
    return evolve(
        whole,
        status=status,
        step_count=steps,
        record_count=last.sequence,
        last_hash=last.hash,
        updated_at=last.at,
    )
