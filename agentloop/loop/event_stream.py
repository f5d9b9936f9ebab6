"""An execution as a stream of its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import Any, Self

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.values.event import Event
from agentloop.values.interruptions import interrupted_state
from agentloop.values.state import AgentState

_BUFFER_SIZE = 64
"""How many events the execution can be ahead of its reader."""


class EventStream(AsyncIterator[Event]):
    """The events of one execution and of its sub-agents, as they happen; see `AgentLoop.stream`.

    The execution starts with the first event that is requested, and waits for a reader that falls behind. Leaving the
    stream early cancels the execution: `aclose`, or the end of an `async with`, waits for its end. After a `break` out of a
    stream without another reference, the execution is cancelled in the background.
    """

    def __init__(
        self, agent_id: str, events: CanHandleEvents, run: Callable[[], Coroutine[Any, Any, AgentState]]
    ) -> None:
        self._reader = _EventReader(agent_id, events, run)
        self._events = self._reader.read()

    @property
    def state(self) -> AgentState | None:
        """The final state of the execution, also after a cancellation; None before its end."""
        return self._reader.state

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave the stream; an execution that has not ended is cancelled."""
        await self._events.aclose()


class _EventReader:
    """What a stream shares with the task of its execution.

    It has no reference to the stream, so that a stream without other references is collected, which closes its generator.
    """

    def __init__(self, agent_id: str, bus: CanHandleEvents, run: Callable[[], Coroutine[Any, Any, AgentState]]) -> None:
        self.state: AgentState | None = None
        self._agent_ids = {agent_id}
        self._execution_id = ""
        self._bus = bus
        self._run = run
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
            if not task.done():
                task.cancel()
                self._clear_queue()
                await asyncio.wait((task,))

    async def _put(self, event: Event) -> None:
        if self._accepts(event):
            self._agent_ids.add(event.agent_id)
            await self._queue.put(event)

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
            await self._queue.put(None)  # ends `read`

    def _clear_queue(self) -> None:
        # The execution may be waiting for a place in the queue, which the reader will not empty any more.
        while not self._queue.empty():
            self._queue.get_nowait()


_readers: ContextVar[tuple[_EventReader, ...]] = ContextVar("agentloop_event_streams", default=())
"""The readers of the streams whose executions contain the current code, outermost first."""
