"""Lawful interceptors, compilers, journals, stores and listeners of unusual shapes: retrieval, caches, networks and queues."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentloop import AgentState, Interceptor, Message
from agentloop.contracts import CanCompileMessages, CanKeepState, Claim
from agentloop.contracts.can_compile_messages import CanMarkEpoch
from agentloop.contracts.can_keep_state import Namespace
from agentloop.durable import MemoryJournal
from agentloop.events import ExecutionEnded
from agentloop.interception import AfterToolUse, BeforeInference, BeforeToolUse
from agentloop.policies import MemoryStore
from agentloop.values import Epoch, Event, ExecutionHead, JournalRecord
from agentloop.values.epochs import NO_EPOCH


class LooksUpDocuments(Interceptor):
    """Looks documents up for the first request of an execution, keeps them in the state, and adds them to each system prompt."""

    async def before_inference(self, point: BeforeInference) -> BeforeInference:
        known = point.state.context.metadata.get("documents")
        if known is None:
            await asyncio.sleep(0)
            known = f"about {point.request.messages[0].text[:20]}"
            point = point.with_state(point.state.with_metadata(documents=known))
        return point.with_request(point.request.with_system_prompt(f"{point.request.system_prompt}\n{known}"))


class WritesReports(Interceptor):
    """Puts a report in place of each result."""

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        return point.with_value(f"<{point.execution.value}>") if point.execution.succeeded else point


class KnowsAnswers(Interceptor):
    """Answers calls with even values, which do not run."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.answer("known") if point.arguments["value"] % 2 == 0 else point


class RetrievesMessages(CanCompileMessages, CanMarkEpoch):
    """Compiles the newest three messages, and before them the older one that is most like the newest."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        messages = state.messages
        if len(messages) <= 4:
            return messages
        newest = _words(messages[-1])
        return [max(messages[:-3], key=lambda each: _likeness(_words(each), newest)), *messages[-3:]]

    def epoch(self, state: AgentState) -> Epoch:
        count = len(state.messages)
        return NO_EPOCH if count <= 4 else Epoch("retrieval", dropped=count - 4, kept=4)


def _words(message: Message) -> Counter[str]:
    return Counter(re.findall(r"\w+", message.text))


def _likeness(first: Counter[str], second: Counter[str]) -> float:
    lengths = [math.sqrt(sum(count**2 for count in each.values())) or 1.0 for each in (first, second)]
    return sum(first[word] * second[word] for word in first) / math.prod(lengths)


class KeepsWhatItRead(MemoryJournal):
    """Keeps the records of an execution as long as its last hash is the same, and waits for a network with each operation."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.kept: dict[str, tuple[str, tuple[JournalRecord, ...]]] = {}

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        await asyncio.sleep(0)
        await super().append(head, records, claim)

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        head = await self.head(execution_id)
        if head is None:
            return ()
        last_hash, records = self.kept.get(execution_id, ("", ()))
        if last_hash != head.last_hash:
            records = tuple(await super().read(execution_id))
            self.kept[execution_id] = (head.last_hash, records)
        return records[max(after, 0) :]

    async def delete(self, execution_id: str) -> bool:
        await asyncio.sleep(0)
        return await super().delete(execution_id)


class ComparesAndSets(CanKeepState):
    """Has others win every third race, so that the transition runs again."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.races = 0

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        self.races += 1
        if self.races % 3 == 0:
            transition(None)
        await asyncio.sleep(0)
        return await self.inner.update(namespace, key, now, transition)


class SendsBatches:
    """Collects events, and sends them at the end of an execution."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, ExecutionEnded):
            self.events.clear()
            await asyncio.sleep(0.5)
