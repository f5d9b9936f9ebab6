"""A journal that can be cut short, as a crash would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from attrs import evolve

from agentloop.errors import UnknownExecution
from agentloop.journal.memory_journal import MemoryJournal
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.journal_record import ExecutionHead, JournalRecord, RecordKind
from agentloop.values.json_text import parse_json


class Chronicle(MemoryJournal):
    """A journal in memory that knows the order of all its records, whichever execution they are of.

    It tells what a crash would leave: `await chronicle.crashed_after(n)` is a journal with the first records only.

    Attributes:
        order: the records, in the order in which they were appended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.order: list[JournalRecord] = []

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        """Put records at the end of an execution's chain, and note the order."""
        await super().append(head, records)
        self.order += records

    async def crashed_after(self, count: int) -> Self:
        """Return a journal with the first so many records of all executions, as a crash leaves it.

        Raises:
            UnknownExecution: when an execution was deleted meanwhile.
        """
        left = type(self)()
        by_execution: dict[str, list[JournalRecord]] = {}
        for record in self.order[:count]:
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
