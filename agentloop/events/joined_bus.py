"""Two event buses as one."""

from __future__ import annotations

from agentloop.contracts.can_handle_events import CanHandleEvents, E, Listener, Subscription
from agentloop.events.execution_bus import ExecutionBus
from agentloop.values.agent_state import AgentState
from agentloop.values.event import Event, EventHead


def joined(first: CanHandleEvents, second: CanHandleEvents) -> CanHandleEvents:
    """Return a bus that tells the listeners of both, each listener once."""
    return first if _reaches(first, second) else JoinedBus(first, second)


class JoinedBus(CanHandleEvents):
    """Tells every event to the listeners of two buses, which count alike.

    Args:
        first: the bus whose listeners are told first, and that makes the heads.
        second: the other one.
    """

    def __init__(self, first: CanHandleEvents, second: CanHandleEvents) -> None:
        self.first: CanHandleEvents = first
        self.second: CanHandleEvents = second

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Tell the listener every event of the first bus, and so all of this one."""
        return self.first.wiretap(listener)

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Tell the listener the events of exactly this class."""
        return self.first.on(kind, listener)

    def for_execution(self) -> JoinedBus:
        """Return both as one execution sees them."""
        return JoinedBus(self.first.for_execution(), self.second.for_execution())

    def due(self, kind: type[Event]) -> bool:
        """Count one event of this class, and say whether anybody listens."""
        first, second = self.first.due(kind), self.second.due(kind)  # both count, whoever listens
        return first or second

    def head(self, state: AgentState, *, step_number: int | None = None) -> EventHead:
        """Make the head of the event that was counted last."""
        return self.first.head(state, step_number=step_number)

    async def emit(self, event: Event) -> None:
        """Tell the event; when this returns, every listener has taken it."""
        await self.first.emit(event)
        await self.second.emit(event)

    def emit_soon(self, event: Event) -> None:
        """Tell the event from where nothing can be awaited."""
        self.first.emit_soon(event)
        self.second.emit_soon(event)

    async def drain(self) -> None:
        """Wait until every listener has taken what was emitted."""
        await self.first.drain()
        await self.second.drain()


def _reaches(bus: CanHandleEvents, other: CanHandleEvents) -> bool:
    """Say whether what is told to a bus reaches the listeners of another one."""
    if isinstance(bus, JoinedBus):
        return _reaches(bus.first, other) or _reaches(bus.second, other)
    return bus is other or (isinstance(bus, ExecutionBus) and bus.belongs_to(other))
