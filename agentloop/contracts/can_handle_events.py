"""The contracts of event buses, and of what is current while operations run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, TypeVar

from agentloop.values.event import Event, EventHead, Operation
from agentloop.values.state import AgentState

E = TypeVar("E", bound=Event)

Listener: TypeAlias = Callable[[E], Awaitable[Any] | Any]
"""A plain or async function of one event; its result is ignored."""


class Subscription(ABC):
    """The registration of a listener."""

    @abstractmethod
    def cancel(self) -> None:
        """Remove the listener. Idempotent."""


class CanHandleEvents(ABC):
    """An event bus: delivers events to listeners.

    An implementation keeps these laws, and `EventBusKit` checks them:

    - Listeners are referenced until they are cancelled. They receive the events of one execution in the order of their
      sequence, each listener one event at a time (laws 7 and 48).
    - An error of a listener affects neither the execution nor other listeners (law 48).
    - Events are counted with and without listeners, so that observation does not change the run (law 8).
    - Executions share the listeners; each has its own sequence, and the heads of its events are of its own state (law 9).

    Emit events with `emit`, `emit_at_step` and `emit_soon` of `agentloop.events.bus`: they call `due`, and build an event only
    if it has a listener.
    """

    @abstractmethod
    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Call the listener for every event."""

    @abstractmethod
    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Call the listener for events of exactly this class, not of its subclasses."""

    @abstractmethod
    def for_execution(self) -> CanHandleEvents:
        """Return a bus for one execution, with the same listeners and its own sequence of events."""

    @abstractmethod
    def due(self, kind: type[Event]) -> bool:
        """Count one event of this class and return whether it has a listener; if so, emit it next."""

    @abstractmethod
    def head(self, state: AgentState, *, step_number: int | None = None) -> EventHead:
        """Return the head of the event that was counted last.

        Args:
            state: the state in which the event happened.
            step_number: its 1-based step; by default the step after the state's last one.
        """

    @abstractmethod
    async def emit(self, event: Event) -> None:
        """Deliver an event; when this returns, every listener has handled it."""

    @abstractmethod
    def emit_soon(self, event: Event) -> None:
        """Deliver an event from code that cannot await; every listener has handled it before a later `emit` returns."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait until every listener has handled every emitted event."""


class CanProvideContext(ABC):
    """Has something current while operations of executions run, such as a span that the code inside of them finds.

    An implementation keeps these laws:

    - It waits for nothing, and changes nothing of an execution (law 8).
    - What it raises is logged, and the operation runs without it.
    """

    @abstractmethod
    def enter(self, operation: Operation) -> AbstractContextManager[None]:
        """Return what is entered before an operation, or a part of it, and left after it, both in one task.

        An execution has a part for each time that its caller asks for a state. A call whose tool starts while the model still
        writes its answer is entered for the tool, and again where the call is executed.
        """

    @abstractmethod
    def end(self, operation: Operation) -> None:
        """Note that a run of an execution is over; called once, after its last event."""

    @abstractmethod
    def carrier(self) -> Mapping[str, str]:
        """Return what another process needs to continue what is current, as texts by name; empty if nothing is."""


class CanCarryContext(ABC):
    """A bus whose executions have contexts; implemented by event buses.

    A bus that is none delivers events, and nothing is current in the operations.
    """

    @property
    @abstractmethod
    def providers(self) -> Sequence[CanProvideContext]:
        """The providers of contexts, in the order in which they are entered."""

    @abstractmethod
    def provide(self, provider: CanProvideContext) -> Subscription:
        """Enter the contexts of a provider from the next operation on, in executions of this bus and of sub-agents."""
