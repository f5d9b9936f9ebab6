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

_BUFFER = 64


class EventStream(AsyncIterator[Event]):
    """The events of one execution, and of the agents that serve it, as they happen.

    The run begins with the first event that is asked for, and waits when the reader falls behind. Leaving the stream
    early cancels the run: `aclose`, or the end of an `async with`, waits until it has ended; after a `break` out of a stream
    that nobody keeps it ends by itself.
    """

    def __init__(
        self, agent_id: str, events: CanHandleEvents, run: Callable[[], Coroutine[Any, Any, AgentState]]
    ) -> None:
        self._reading = _Reading(agent_id, events, run)
        self._generator = self._reading.events()

    @property
    def state(self) -> AgentState | None:
        """The state as far as it is known: the final one after the last event, or after the stream was left."""
        return self._reading.state

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._generator)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave the stream; the run is cancelled if it has not ended."""
        await self._generator.aclose()


class _Reading:
    """What a stream shares with its run. It does not know the stream, so that one which is dropped ends.

    Attributes:
        state: the state as far as it is known.
    """

    def __init__(self, agent_id: str, bus: CanHandleEvents, run: Callable[[], Coroutine[Any, Any, AgentState]]) -> None:
        self.state: AgentState | None = None
        self._agents = {agent_id}
        self._execution_id = ""
        self._bus = bus
        self._run = run
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue(_BUFFER)

    async def events(self) -> AsyncGenerator[Event, None]:
        subscription = self._bus.wiretap(self._take)
        context = copy_context()
        context.run(_readings.set, (*_readings.get(), self))
        task = asyncio.get_running_loop().create_task(self._ran(), context=context)
        try:
            while (event := await self._queue.get()) is not None:
                yield event
            await task
        finally:
            subscription.cancel()
            if not task.done():
                task.cancel()
                _drop(self._queue)
                await asyncio.wait((task,))

    async def _take(self, event: Event) -> None:
        if self._is_ours(event):
            self._agents.add(event.agent_id)
            await self._queue.put(event)

    def _is_ours(self, event: Event) -> bool:
        """Tell the events of this run from those of others on the bus, also of the same agent."""
        inside = self in _readings.get()
        if not self._execution_id and inside and event.agent_id in self._agents:
            self._execution_id = event.execution_id
        return event.execution_id == self._execution_id or (inside and event.parent_agent_id in self._agents)

    async def _ran(self) -> None:
        try:
            self.state = await self._run()
        except asyncio.CancelledError as cancelled:
            self.state = interrupted_state(cancelled)
            raise
        finally:
            await self._queue.put(None)


_readings: ContextVar[tuple[_Reading, ...]] = ContextVar("agentloop_event_streams", default=())
"""The streams inside of whose runs something happens, outermost first."""


def _drop(queue: asyncio.Queue[Event | None]) -> None:
    """Make room, so that nobody waits for a reader who has left."""
    while not queue.empty():
        queue.get_nowait()
