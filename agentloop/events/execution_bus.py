"""The event bus as one execution sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

from blinker import Signal

from agentloop.contracts.can_handle_events import CanHandleEvents, E, Listener, Subscription
from agentloop.values.agent_state import AgentState
from agentloop.values.clock import Clock
from agentloop.values.event import Event, EventHead


class Switchboard(Protocol):
    """What an execution's bus needs of the bus that it belongs to."""

    clock: Clock
    every: Signal
    signals: dict[type[Event], Signal]

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Tell the listener every event."""

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Tell the listener the events of one class."""

    def receivers(self, kind: type[Event]) -> list[Any]:
        """Return who is to be told, in order."""

    async def tell(self, event: Event, receivers: list[Any]) -> None:
        """Call the receivers, awaiting the async ones."""

    def tell_now(self, event: Event, receivers: list[Any]) -> None:
        """Call receivers that are all plain."""


class ExecutionBus(CanHandleEvents):
    """Counts the events of one execution and tells them in order, one at a time."""

    __slots__ = ("_count", "_every", "_lock", "_queue", "_signals", "_switchboard", "_tasks")

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard
        self._every = switchboard.every
        self._signals = switchboard.signals
        self._count = 0
        self._queue: deque[tuple[Event, list[Any]]] = deque()
        self._lock: asyncio.Lock | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Tell the listener every event of the whole bus, not of this execution only."""
        return self._switchboard.wiretap(listener)

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Tell the listener the events of exactly this class, of the whole bus."""
        return self._switchboard.on(kind, listener)

    def belongs_to(self, bus: object) -> bool:
        """Say whether this is how an execution sees that bus."""
        return self._switchboard is bus

    def for_execution(self) -> ExecutionBus:
        """Return the bus as another execution, such as a sub-agent's, sees it."""
        return ExecutionBus(self._switchboard)

    def due(self, kind: type[Event]) -> bool:
        """Count one event of this class, and say whether anybody listens."""
        self._count += 1
        if self._every.receivers:
            return True
        signal = self._signals.get(kind)
        return signal is not None and bool(signal.receivers)

    def head(self, state: AgentState, *, step_number: int | None = None) -> EventHead:
        """Make the head of the event that was counted last."""
        number = state.step_count + 1 if step_number is None else step_number
        now = self._switchboard.clock.now()
        return EventHead(state.agent_id, state.execution_id, state.parent_agent_id, number, self._count, now)

    async def emit(self, event: Event) -> None:
        """Tell the event; when this returns, every listener has taken it."""
        if not self._told_at_once(event):
            await self._tell_queued()

    def emit_soon(self, event: Event) -> None:
        """Tell the event from where nothing can be awaited: now, if all who listen are plain; else as soon as can be."""
        if not self._told_at_once(event):
            task = asyncio.ensure_future(self._tell_queued())
            self._tasks = {*(other for other in self._tasks if not other.done() or other.exception()), task}

    async def drain(self) -> None:
        """Wait until every listener has taken what was emitted."""
        while self._tasks:
            await self._tasks.pop()

    def _told_at_once(self, event: Event) -> bool:
        receivers = self._switchboard.receivers(type(event))
        if self._queue or self._busy or _awaits(receivers):
            self._queue.append((event, receivers))
            return False
        self._switchboard.tell_now(event, receivers)
        return True

    @property
    def _busy(self) -> bool:
        return self._lock is not None and self._lock.locked()

    async def _tell_queued(self) -> None:
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            while self._queue:
                await self._switchboard.tell(*self._queue.popleft())


def _awaits(receivers: list[Any]) -> bool:
    """Say whether any of those who are to be told is async."""
    for receiver in receivers:  # noqa: SIM110  # a generator costs more than all the rest
        if getattr(receiver, "awaits", False):
            return True
    return False
