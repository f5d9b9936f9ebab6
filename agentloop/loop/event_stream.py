"""An execution as a stream of its events, or of the text that its model writes."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from agentloop import events as event_classes
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.errors import ContractViolation
from agentloop.values.event import Event
from agentloop.values.interruptions import interrupted_state
from agentloop.values.parts import Text
from agentloop.values.state import AgentState, Output_co
from agentloop.values.steps import AgentStep

T = TypeVar("T")
_BUFFER_SIZE = 64
"""How many events the execution can be ahead of its reader."""


class ExecutionStream(AsyncIterator[T], Generic[T, Output_co]):
    """The base of the streams of one execution: what is read of it, and how it is left."""

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        """Create the stream.

        Args:
            items: what is read; closing it cancels the execution.
        """
        self._items = items

    @property
    @abstractmethod
    def state(self) -> AgentState[Output_co] | None:
        """The final state of the execution, also after a cancellation; None before its end."""

    @property
    def output(self) -> Output_co:
        """The final answer.

        Raises:
            ContractViolation: the execution has not ended.
            NoOutput: there is no answer.
        """
        if self.state is None:
            raise ContractViolation("the execution has not ended: read its stream to the end before its output")
        return self.state.output

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await anext(self._items)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave the stream; an execution that has not ended is cancelled."""
        await self._items.aclose()


class EventStream(ExecutionStream[Event, Output_co]):
    """The events of one execution and of its sub-agents, as they happen; see `AgentLoop.stream`.

    The execution starts with the first event that is requested, and waits for a reader that falls behind. Leaving the
    stream early cancels the execution: `aclose`, or the end of an `async with`, waits for its end. After a `break` out of a
    stream without another reference, the execution is cancelled in the background.
    """

    def __init__(
        self, agent_id: str, events: CanHandleEvents, run: Callable[[], Coroutine[Any, Any, AgentState[Output_co]]]
    ) -> None:
        self._reader = _EventReader(agent_id, events, run)
        super().__init__(self._reader.read())

    @property
    def state(self) -> AgentState[Output_co] | None:
        """The final state of the execution, also after a cancellation; None before its end."""
        return self._reader.state


class TextStream(ExecutionStream[str, Output_co]):
    """The text that the model of one execution writes, piece by piece; see `AgentLoop.stream_text`.

    The stream has the text of every step, also of steps that call tools; texts of different steps are separated by an empty
    line. Texts of sub-agents are left out. A driver or a mode that cannot stream yields the text of a step at its end.

    A text can be abandoned after a part of it was yielded: the request failed and is sent again, the response is rejected, or
    an interceptor replaces it. What was yielded cannot be taken back. The next text then follows after an empty line,
    `restarts` grows by one, and `text` has only what counts.

    The execution starts with the first piece that is requested, and waits for a reader that falls behind. After the last piece
    an execution that has not completed raises the error that `AgentLoop.run` would raise. Leaving the stream early cancels the
    execution, as for an `EventStream`.
    """

    def __init__(self, agent_id: str, events: EventStream[Output_co]) -> None:
        """Create the stream.

        Args:
            agent_id: the id of the agent whose text is read.
            events: the events of its execution.
        """
        self._events = events
        self._draft = _TextDraft()
        super().__init__(_read_text(agent_id, events, self._draft))

    @property
    def state(self) -> AgentState[Output_co] | None:
        """The final state of the execution, also after a cancellation; None before its end."""
        return self._events.state

    @property
    def text(self) -> str:
        """The text so far, without abandoned ones."""
        return self._draft.text

    @property
    def restarts(self) -> int:
        """How many texts were abandoned after a part of them was yielded."""
        return self._draft.restarts


# Without a reference to the stream, so that a stream without other references is collected, which closes its events.
async def _read_text(agent_id: str, events: EventStream[Any], draft: _TextDraft) -> AsyncGenerator[str, None]:
    async with events:
        async for event in events:
            if event.agent_id == agent_id and (piece := draft.add(event)):
                yield piece
    if events.state is not None:
        events.state.raise_for_status()


_SEPARATOR = "\n\n"


class _TextDraft:
    """What the model has written: texts that count, and the one that is being written."""

    def __init__(self) -> None:
        self.restarts = 0
        self._texts: list[str] = []
        self._written = ""
        self._attempt = 1
        self._has_begun = False

    @property
    def text(self) -> str:
        """The texts that count, with the one that is being written."""
        return _SEPARATOR.join([text for text in (*self._texts, self._written) if text.strip()])

    def add(self, event: Event) -> str:
        """Return what an event adds to the text for its reader; empty if nothing."""
        if isinstance(event, event_classes.InferenceDeltaReceived):
            if event.delta.attempt != self._attempt:
                self._abandon()
                self._attempt = event.delta.attempt
            return self._write(event.delta.text) if event.delta.kind == "text" else ""
        if isinstance(
            event, event_classes.InferenceRequestStarted
        ):  # a second request of a step replaces the answer to the first
            self._abandon()
            self._attempt = 1
        elif isinstance(event, event_classes.AgentStepCompleted):
            return self._end_step(_text_of(event.step))
        return ""

    def _write(self, text: str) -> str:
        held, self._written = self._written, self._written + text
        if not self._written.strip():  # it may be white space before a call, which is not worth an empty line
            return ""
        if held.strip():
            return text
        separator, self._has_begun = _SEPARATOR if self._has_begun else "", True
        return separator + self._written

    def _end_step(self, text: str) -> str:
        """Return what a step says that was not written before."""
        if text.split() == self._written.split():
            rest = ""
        elif text.startswith(self._written):
            rest = self._write(text[len(self._written) :])
        else:
            self._abandon()
            rest = self._write(text)
        self._texts.append(text)
        self._written = ""
        return rest

    def _abandon(self) -> None:
        if self._written.strip():
            self.restarts += 1
        self._written = ""


def _text_of(step: AgentStep) -> str:
    """Return the text that the model wrote in a step, also if its calls are pending."""
    if step.message is not None:
        return step.message.text
    parts = step.open_turn.parts if step.open_turn is not None else ()
    return "".join([part.text for part in parts if isinstance(part, Text)])


class _EventReader(Generic[Output_co]):
    """What a stream shares with the task of its execution.

    It has no reference to the stream, so that a stream without other references is collected, which closes its generator.
    """

    def __init__(
        self, agent_id: str, bus: CanHandleEvents, run: Callable[[], Coroutine[Any, Any, AgentState[Output_co]]]
    ) -> None:
        self.state: AgentState[Output_co] | None = None
        self._agent_ids = {agent_id}
        self._execution_id = ""
        self._bus = bus
        self._run = run
        self._is_left = False  # nothing is read any more
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue(_BUFFER_SIZE)

    async def read(self) -> AsyncGenerator[Event, None]:
        subscription = self._bus.wiretap(self._put)
        # The variable is set for all code of the execution, also in the tasks of its tools and sub-agents.
        context = copy_context()
        context.run(_readers.set, (*_readers.get(), self))
        task = asyncio.get_running_loop().create_task(self._execute(), context=context)
        try:
            while (event := await self._queue.get()) is not None:
                yield event
            await task
        finally:
            subscription.cancel()
            self._leave()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    async def _put(self, event: Event) -> None:
        # Events that were emitted while the stream was read can be delivered after it was left.
        if not self._is_left and self._accepts(event):
            self._agent_ids.add(event.agent_id)
            await self._put_item(event)

    def _accepts(self, event: Event) -> bool:
        """Whether an event is of this execution: the bus also has events of others, even of the same agent."""
        is_inside = self in _readers.get()
        if not self._execution_id and is_inside and event.agent_id in self._agent_ids:
            self._execution_id = event.execution_id
        return event.execution_id == self._execution_id or (is_inside and event.parent_agent_id in self._agent_ids)

    async def _execute(self) -> None:
        try:
            self.state = await self._run()
        except asyncio.CancelledError as cancelled:
            self.state = interrupted_state(cancelled)
            raise
        finally:
            if not self._is_left:
                await self._put_item(None)  # ends `read`

    async def _put_item(self, item: Event | None) -> None:
        await self._queue.put(item)
        if self._is_left:  # this place is the one that the next waiting item needs
            self._clear_queue()

    def _leave(self) -> None:
        """Let the execution run on without a reader: what waits for a place in the queue gets one, and nothing waits again."""
        self._is_left = True
        self._clear_queue()

    def _clear_queue(self) -> None:
        while not self._queue.empty():
            self._queue.get_nowait()


_readers: ContextVar[tuple[_EventReader[Any], ...]] = ContextVar("agentloop_event_streams", default=())
"""The readers of the streams whose executions contain the current code, outermost first."""
