"""An execution as a stream of its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from agentloop.contracts.can_handle_events import CanHandleEvents, Subscription
from agentloop.values.agent_state import AgentState
from agentloop.values.event import Event

_BUFFER = 64


class EventStream(AsyncIterator[Event]):
    """The events of one execution, and of the agents that serve it, as they happen.

    The run begins with the first event that is asked for, and waits when the reader falls behind. Leaving the stream
    early, by `aclose` or at the end of an `async with`, cancels the run.

    Attributes:
        state: the state as far as it is known: the final one after the last event.
    """

    def __init__(
        self, agent_id: str, events: CanHandleEvents, run: Callable[[], Coroutine[Any, Any, AgentState]]
    ) -> None:
        self.state: AgentState | None = None
        self._agents = {agent_id}
        self._events = events
        self._run = run
        self._generator = self._generate()

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

    async def _generate(self) -> AsyncGenerator[Event, None]:
        queue: asyncio.Queue[Event | None] = asyncio.Queue(_BUFFER)
        subscription = self._subscribe(queue)
        task = asyncio.ensure_future(self._ran(queue))
        try:
            while (event := await queue.get()) is not None:
                yield event
            self.state = await task
        finally:
            subscription.cancel()
            if not task.done():
                task.cancel()
                _drop(queue)
                await asyncio.wait((task,))
            if not task.cancelled() and task.exception() is None:
                self.state = task.result()

    def _subscribe(self, queue: asyncio.Queue[Event | None]) -> Subscription:
        async def take(event: Event) -> None:
            if event.agent_id in self._agents or event.parent_agent_id in self._agents:
                self._agents.add(event.agent_id)
                await queue.put(event)

        return self._events.wiretap(take)

    async def _ran(self, queue: asyncio.Queue[Event | None]) -> AgentState:
        try:
            return await self._run()
        finally:
            await queue.put(None)


def _drop(queue: asyncio.Queue[Event | None]) -> None:
    """Make room, so that nobody waits for a reader who has left."""
    while not queue.empty():
        queue.get_nowait()
