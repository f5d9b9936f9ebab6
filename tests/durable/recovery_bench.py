"""Shared by the tests of recovery: a model that decides by its request, tools with a ledger, and truncated journals."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence

from agentloop.contracts import CanInfer
from agentloop.durable import MemoryJournal
from agentloop.testing import CrashableJournal
from agentloop.testing.journal_bench import append_claimed
from agentloop.values import FinishReason, InferenceDelta, InferenceRequest, InferenceResponse, Text, ToolCall, Usage
from agentloop.values.json import format_json

Turn = str | Sequence[tuple[str, Mapping[str, object]]]
"""An answer, or calls by name and arguments."""


class Model(CanInfer):
    """Answers with the turn that follows those in the request, so that it resumes correctly in any process."""

    def __init__(self, *turns: Turn) -> None:
        self.turns = turns
        self.asked = 0

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Return the turn that follows those in the request."""
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
        """Stream the turn in one piece."""
        yield await self.infer(request)


async def truncate(journal: MemoryJournal, execution_id: str, count: int) -> CrashableJournal:
    """Return a journal with the first records of one execution, as a crash leaves it."""
    journal_copy, head = CrashableJournal(), await journal.head(execution_id)
    assert head is not None
    await append_claimed(journal_copy, head, await journal.read(execution_id))
    return await journal_copy.after_crash(count)


class ToolLedger:
    """What tools have done, by the idempotency keys of their calls."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
