"""The contract of event buses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from agentloop.values.event import Event, EventHead
from agentloop.values.state import AgentState

E = TypeVar("E", bound=Event)

Listener: TypeAlias = Callable[[E], Awaitable[Any] | Any]
"""A function of one event, plain or async; what it returns is not used."""


class Subscription(ABC):
    """A listener that is being told events."""

    @abstractmethod
    def cancel(self) -> None:
        """Stop telling the listener; cancelling twice is as cancelling once."""


class CanHandleEvents(ABC):
    """Tells listeners what happens.

    An implementer keeps these laws:

    - Listeners are held until cancelled, and are told the events of one execution in the order of their sequence, each
      listener one event at a time (law 7).
    - A listener that fails does not disturb the run or other listeners.
    - Events are counted whether or not anybody listens, so that watching changes nothing (law 8).
    - An event that nobody listens for is not built: callers ask `due` first, then build and emit.
    """

    @abstractmethod
    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Tell the listener every event."""

    @abstractmethod
    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Tell the listener the events of exactly this class."""

    @abstractmethod
    def for_execution(self) -> CanHandleEvents:
        """Return the bus as one execution sees it: with a count and an order of its own."""

    @abstractmethod
    def due(self, kind: type[Event]) -> bool:
        """Count one event of this class, and say whether anybody listens; if so, it has to be built and emitted next."""

    @abstractmethod
    def head(self, state: AgentState, *, step_number: int | None = None) -> EventHead:
        """Make the head of the event that was counted last.

        Args:
            state: the state in which it happened.
            step_number: the step it belongs to; the step after the state's last one when left out.
        """

    @abstractmethod
    async def emit(self, event: Event) -> None:
        """Tell the event; when this returns, every listener has taken it."""

    @abstractmethod
    def emit_soon(self, event: Event) -> None:
        """Tell the event from where nothing can be awaited: listeners have taken it before a later `emit` returns."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait until every listener has taken what was emitted."""
