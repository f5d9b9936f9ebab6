"""What the tests of recovery share: a model that decides by what it sees, tools that keep a ledger, and journals cut short."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence

from attrs import evolve

from agentloop.contracts import CanInfer
from agentloop.journal import MemoryJournal
from agentloop.values import (
    ExecutionHead,
    ExecutionStatus,
    FinishReason,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    JournalRecord,
    RecordKind,
    Text,
    ToolCall,
    Usage,
)
from agentloop.values.json_text import format_json, parse_json

Turn = str | Sequence[tuple[str, Mapping[str, object]]]
"""An answer, or calls by name and arguments."""


class Model(CanInfer):
    """Answers by how many turns of its own it sees, so that it goes on rightly in any process."""

    def __init__(self, *turns: Turn) -> None:
        self.turns = turns
        self.asked = 0

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Give the turn that follows those in the request."""
        self.asked += 1
        number = sum(message.role == "assistant" for message in request.messages)
        turn = self.turns[number]
        usage = Usage(100 + number, 10, 0, 0, 0)
        if isinstance(turn, str):
            return InferenceResponse((Text(turn),), FinishReason.STOP, usage, "m", f"r{number}")
        calls = [
            ToolCall(f"c{number}_{place}", name, format_json(arguments).decode())
            for place, (name, arguments) in enumerate(turn)
        ]
        return InferenceResponse(tuple(calls), FinishReason.TOOL_CALLS, usage, "m", f"r{number}")

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Give the turn in one piece."""
        yield await self.infer(request)


async def cut(
    journal: MemoryJournal,
    execution_id: str,
    count: int,
    *,
    also: Sequence[str] = (),
    into: MemoryJournal | None = None,
) -> MemoryJournal:
    """Return a journal as a crash leaves it: only the first records of an execution, and others whole."""
    made = MemoryJournal() if into is None else into
    for other in also:
        records = await journal.read(other)
        if records:
            await made.append(head_of(await journal.head(other), records), records)
    records = list(await journal.read(execution_id))[:count]
    await made.append(head_of(await journal.head(execution_id), records), records)
    return made


def head_of(whole: ExecutionHead | None, records: Sequence[JournalRecord]) -> ExecutionHead:
    """Return what a list showed of an execution when these were its records."""
    assert whole is not None
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
    return evolve(whole, status=status, step_count=steps, record_count=last.sequence, last_hash=last.hash)


class World:
    """What tools have done, by the idempotency keys of their calls."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()


class Chronicle(MemoryJournal):
    """A journal that knows the order of all its records, whichever execution they are of."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[JournalRecord] = []

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        """Append, and note the order."""
        await super().append(head, records)
        self.order += records

    async def crashed_after(self, count: int) -> MemoryJournal:
        """Return the journal as a crash leaves it after so many records in all."""
        left = Chronicle()
        by_execution: dict[str, list[JournalRecord]] = {}
        for record in self.order[:count]:
            by_execution.setdefault(record.execution_id, []).append(record)
        for execution_id, records in by_execution.items():
            await left.append(head_of(await self.head(execution_id), records), records)
        return left
