"""Feeds: the events of executions, read once from the journal for all who follow them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias

from agentloop._shielding import compute_in_thread
from agentloop.contracts.can_journal import CanJournal, CanWatchExecutions
from agentloop.durable.fold import MANY_RECORDS
from agentloop.durable.masked_text import MaskedText
from agentloop.events.execution import ExecutionEnded
from agentloop.events.inference import InferenceDeltaReceived, InferenceResponseReceived
from agentloop.service.server.record_events import RecordReader, ServerEvent, unrecorded_end
from agentloop.values.event import Event
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.state import AgentState

UnrecordedState: TypeAlias = Callable[[str], Awaitable[AgentState | None]]
"""Returns the state of an execution of which nothing is recorded, as `CanRunExecutions.unrecorded_state`."""

MaskPieces: TypeAlias = Callable[[], MaskedText | None]
"""Returns a mask for a text that arrives in pieces; None if nothing is masked."""

_MAX_DELTAS = 1000
"""The deltas of one execution that are stored for slow readers; the oldest are dropped, since the record has the whole text."""
_MAX_INFERENCES = 1000
"""The executions whose newest inference is kept, so that a reader who comes later sees what was written before; the oldest are dropped."""
_MAX_WAIT = 1.0
"""Seconds after which the journal is read again in any case."""
_POLL_SECONDS = 0.02


async def wait_for_change(journal: CanJournal, execution_id: str, seconds: float, caller: object = None) -> None:
    """Wait until the journal may have more about an execution, or for a number of seconds at most.

    Args:
        journal: the journal; one that cannot wake those who wait is read again after 20 ms.
        execution_id: the execution.
        seconds: the maximum time.
        caller: who waits, as for `CanWatchExecutions`.
    """
    if isinstance(journal, CanWatchExecutions):
        await journal.wait_for_change(execution_id, timeout=seconds, caller=caller)
    else:
        await asyncio.sleep(min(seconds, _POLL_SECONDS))


class RunningInference:
    """The newest inference of an execution in this process, with what its model has written so far.

    Attributes:
        place: its step, and its 1-based number among the inferences of the step.
    """

    def __init__(self, mask_pieces: MaskPieces = lambda: None) -> None:
        self.place: tuple[int, int] = (0, 0)
        self._mask_pieces = mask_pieces
        self._masks: dict[str, MaskedText | None] = {}
        self._attempt = 0
        self._chunks: dict[str, list[str]] = {}
        self._lengths: Counter[str] = Counter()

    def reset(self) -> None:
        """Forget the inference."""
        self.place = (0, 0)
        self._forget_text()

    def begin(self, step: int) -> None:
        """Take the next inference."""
        self.place = (step, self.place[1] + 1 if step == self.place[0] else 1)
        self._forget_text()

    def add(self, event: InferenceDeltaReceived) -> ServerEvent:
        """Add a piece of text or reasoning, and return the event of what can be shown of it; its text is empty if nothing can."""
        delta = event.delta
        if delta.attempt != self._attempt:
            self._forget_text(delta.attempt)
        if delta.kind not in self._masks:
            self._masks[delta.kind] = self._mask_pieces()
        mask = self._masks[delta.kind]
        return self._show(event.execution_id, delta.kind, delta.text if mask is None else mask.add(delta.text))

    def end(self, execution_id: str) -> Sequence[ServerEvent]:
        """Return the events of what was held back: nothing follows."""
        masks, self._masks = self._masks, {}
        rest = [(kind, mask.end()) for kind, mask in masks.items() if mask is not None]
        return [self._show(execution_id, kind, text) for kind, text in rest if text]

    def _show(self, execution_id: str, kind: str, text: str) -> ServerEvent:
        offset = self._lengths[kind]
        self._chunks.setdefault(kind, []).append(text)
        self._lengths[kind] += len(text)
        return self._event(execution_id, kind, text, offset=offset)

    def written(self, execution_id: str) -> Sequence[ServerEvent]:
        """Return what is written so far, as one event for the text and one for the reasoning."""
        return [
            self._event(execution_id, kind, "".join(chunks), is_whole=True) for kind, chunks in self._chunks.items()
        ]

    def _forget_text(self, attempt: int = 0) -> None:
        self._attempt = attempt
        self._masks.clear()
        self._chunks.clear()
        self._lengths.clear()

    def _event(
        self, execution_id: str, kind: str, text: str, *, is_whole: bool = False, offset: int = 0
    ) -> ServerEvent:
        name = f"{kind}_delta"
        data = {
            "type": name,
            "execution_id": execution_id,
            "step": self.place[0],
            "attempt": self._attempt,
            "text": text,
        }
        return ServerEvent(name, data, is_whole=is_whole, offset=offset)


class Feed:
    """The events of one execution while somebody follows it.

    Readers have positions of their own in one list of events, so a slow one holds nobody and costs no memory.
    """

    def __init__(
        self, journal: CanJournal, execution_id: str, inference: RunningInference, unrecorded_state: UnrecordedState
    ) -> None:
        self.readers: int = 0
        self.failure: BaseException | None = None
        self.is_over: bool = False
        self._journal, self._execution_id = journal, execution_id
        self._unrecorded_state = unrecorded_state
        self._reader = RecordReader()
        self._sequence = 0
        self._events: list[ServerEvent] = []
        self._deltas: deque[tuple[int, tuple[int, int], ServerEvent]] = deque(maxlen=_MAX_DELTAS)
        self._delta_count = 0
        self._inference = inference
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Read the journal until the execution ends or is deleted, and wake the readers."""
        known: ExecutionHead | None = None  # that of one which a cluster has queued comes later
        try:
            while not (self._events and self._events[-1].is_end):
                head = await self._journal.head(self._execution_id)
                if known is not None and (head is None or head.started_at != known.started_at):
                    self.is_over = True  # it was deleted, and its id may be in use again
                    self.wake()
                    return
                known = head
                has_news = await self._read_unrecorded() if head is None else await self._read(head.record_count)
                if not has_news:
                    await wait_for_change(self._journal, self._execution_id, _MAX_WAIT)
        except Exception as error:  # noqa: BLE001  # raised again by the readers
            self.failure = error
            self.wake()

    async def _read_unrecorded(self) -> bool:
        """Return whether the execution has ended while it was queued."""
        state = await self._unrecorded_state(self._execution_id)
        if state is None or not state.status.is_terminal:
            return False
        self._events.append(unrecorded_end(self._execution_id, state))
        self.wake()
        return True

    async def _read(self, count: int) -> bool:
        """Read the records that are new if there are so many; return whether there were some."""
        if count <= self._sequence:
            return False
        records = await self._journal.read(self._execution_id, after=self._sequence)
        if len(records) > MANY_RECORDS:
            await compute_in_thread(self._add, records)
        else:
            self._add(records)
        self.wake()
        return bool(records)

    def _add(self, records: Sequence[JournalRecord]) -> None:
        for record in records:
            self._sequence = record.sequence
            event = self._reader.read(record)
            if event is not None:
                self._events.append(event)

    def wake(self) -> None:
        """Wake all readers."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def add_delta(self, delta: ServerEvent) -> None:
        """Add a piece of what the model of the newest inference writes."""
        self._delta_count += 1
        self._deltas.append((self._delta_count, self._inference.place, delta))
        self.wake()

    async def follow(self, after: int, seconds: float, *, catches_up: bool) -> AsyncGenerator[ServerEvent | None, None]:
        """Yield the events after a sequence number, and None whenever there was none for a number of seconds.

        The events up to that number are read as well, so that the position among the steps is known.
        """
        written = self._inference.written(self._execution_id) if catches_up else ()
        position = _Position(after, self._delta_count, [(self._inference.place, event) for event in written])
        while True:
            changed = self._changed
            for event in position.take(self._events, self._deltas):
                yield event
                if event.is_end:
                    return
            if self.failure is not None:
                raise self.failure
            if position.is_at_end(self._events):
                return
            if changed.is_set():  # more came while the reader was busy
                continue
            if self.is_over:
                return
            try:
                async with asyncio.timeout(seconds):
                    await changed.wait()
            except TimeoutError:
                yield None


class _Position:
    """How far a reader is: the events that it has got, and the inference that its deltas may belong to."""

    def __init__(self, after: int, delta_count: int, written: Sequence[tuple[tuple[int, int], ServerEvent]]) -> None:
        self._after = after
        self._written = deque(written)
        self._index = 0
        self._delta = delta_count
        self._inference = (1, 1)

    def is_at_end(self, events: list[ServerEvent]) -> bool:
        """Whether the reader has got the last event of an execution that has ended."""
        return bool(events) and events[-1].is_end and self._index == len(events)

    def take(
        self, events: list[ServerEvent], deltas: deque[tuple[int, tuple[int, int], ServerEvent]]
    ) -> list[ServerEvent]:
        """Return the next events. A delta comes after the records of earlier inferences, and never after its own."""
        found: list[ServerEvent] = []
        while self._index < len(events):
            event = events[self._index]
            if event.sequence > self._after or not event.sequence:
                found += self._take_deltas(deltas)
                found.append(event)
            self._index += 1
            self._advance(event)
        return found + self._take_deltas(deltas)

    def _take_deltas(self, deltas: deque[tuple[int, tuple[int, int], ServerEvent]]) -> list[ServerEvent]:
        found = []
        # What was written before the reader came is followed by the deltas that have come since.
        while self._written and self._written[0][0] <= self._inference:
            inference, event = self._written.popleft()
            if inference == self._inference:
                found.append(event)
        if self._written:
            return found  # its predecessors are not in the journal yet
        for count, inference, event in tuple(deltas):
            if count > self._delta and inference > self._inference:
                break  # its predecessors are not in the journal yet
            if count > self._delta:
                self._delta = count
                if inference == self._inference:
                    found.append(event)
        return found

    def _advance(self, event: ServerEvent) -> None:
        step, number = self._inference
        if event.type == "execution_started":  # a fork begins after a step
            self._inference = (event.data["step"], 1)
        elif event.type in {"inference_completed", "inference_failed"} and event.data["step"] == step:
            self._inference = (step, number + 1)
        elif event.type == "step_completed":
            self._inference = (event.data["step"] + 1, 1)


class Feeds:
    """The feeds of all executions that somebody follows, and what the models of all that run in this process write.

    Args:
        journal: holds the records.
        unrecorded_state: returns the state of an execution without records.
        mask_pieces: returns a mask for the next text of a model; None if nothing is masked.
    """

    def __init__(
        self, journal: CanJournal, unrecorded_state: UnrecordedState, mask_pieces: MaskPieces = lambda: None
    ) -> None:
        self._journal = journal
        self._unrecorded_state = unrecorded_state
        self._mask_pieces = mask_pieces
        self._feeds: dict[str, tuple[Feed, asyncio.Task[None]]] = {}
        self._inferences: dict[str, RunningInference] = {}

    def add(self, event: Event) -> None:
        """Take a live event of an inference of a run in this process, and hand it on to those who follow its execution."""
        inference = self._inference_of(event.execution_id)
        if isinstance(event, ExecutionEnded):
            # What goes on with the execution starts its step again.
            inference.reset()
            if event.execution_id not in self._feeds:
                del self._inferences[event.execution_id]
        elif isinstance(event, InferenceResponseReceived):
            self._hand_on(event.execution_id, inference.end(event.execution_id))
        elif not isinstance(event, InferenceDeltaReceived):
            inference.begin(event.step_number)
        elif event.delta.kind in {"text", "reasoning"}:
            delta = inference.add(event)
            # Not for a piece that is held back: the next one has it.
            if delta.data["text"] or not event.delta.text:
                self._hand_on(event.execution_id, [delta])

    def _hand_on(self, execution_id: str, deltas: Sequence[ServerEvent]) -> None:
        if (entry := self._feeds.get(execution_id)) is not None:
            for delta in deltas:
                entry[0].add_delta(delta)

    def _inference_of(self, execution_id: str) -> RunningInference:
        inference = self._inferences.pop(execution_id, None) or RunningInference(self._mask_pieces)
        self._inferences[execution_id] = inference  # the last one is the newest
        if len(self._inferences) > _MAX_INFERENCES:
            oldest = next((key for key in self._inferences if key not in self._feeds), execution_id)
            del self._inferences[oldest]
        return inference

    async def follow(
        self, execution_id: str, after: int = 0, seconds: float = 15.0, *, catches_up: bool = False
    ) -> AsyncGenerator[ServerEvent | None, None]:
        """Yield the events of an execution after a sequence number until its end or deletion, and None after seconds without any.

        Args:
            execution_id: the execution.
            after: the sequence number.
            seconds: the seconds.
            catches_up: whether to yield what the model of a running inference has written before, as one delta that is whole.

        Raises:
            JournalError: the journal cannot be read.
        """
        entry = self._feeds.get(execution_id)
        if entry is None or entry[1].done():  # one that is done may be of a deleted execution, held by a slow reader
            feed = Feed(self._journal, execution_id, self._inference_of(execution_id), self._unrecorded_state)
            entry = self._feeds[execution_id] = (feed, asyncio.create_task(feed.run()))
        feed, task = entry
        feed.readers += 1
        try:
            async with aclosing(feed.follow(after, seconds, catches_up=catches_up)) as events:
                async for event in events:
                    yield event
        finally:
            feed.readers -= 1
            if not feed.readers:
                task.cancel()
                if self._feeds.get(execution_id) is entry:
                    del self._feeds[execution_id]
