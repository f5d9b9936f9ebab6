"""The event bus: blinker signals with order, strong listeners and isolation."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable, iscoroutinefunction
from itertools import count
from typing import Any

from attrs import frozen
from blinker import Signal

from agentloop.contracts.can_handle_events import CanHandleEvents, E, Listener, Subscription
from agentloop.events.execution_bus import ExecutionBus
from agentloop.values.agent_state import AgentState
from agentloop.values.clock import Clock, SystemClock
from agentloop.values.event import Event, EventHead
from agentloop.values.value import Value

logger: logging.Logger = logging.getLogger("agentloop.events")

_LAST = float("inf")


class Receiver:
    """A listener as blinker calls it, with its place in the order of subscription."""

    __slots__ = ("awaits", "listener", "order")

    def __init__(self, listener: Callable[[Any], Any], order: int) -> None:
        self.listener: Callable[[Any], Any] = listener
        self.order: int = order
        self.awaits: bool = iscoroutinefunction(listener) or iscoroutinefunction(getattr(listener, "__call__", None))  # noqa: B004

    def __call__(self, _bus: object, event: Event) -> Awaitable[Any] | Any:
        """Take an event from a blinker signal."""
        return self.listener(event)

    def __repr__(self) -> str:
        return getattr(self.listener, "__qualname__", None) or repr(self.listener)


@frozen(eq=False, repr=False)
class _SignalSubscription(Subscription, Value):
    signal: Signal
    receiver: Receiver

    def cancel(self) -> None:
        """Stop telling the listener."""
        self.signal.disconnect(self.receiver)


class EventBus(CanHandleEvents):
    """Tells events to listeners: one blinker signal per event class and one for all.

    Listeners are held strongly until cancelled and are called in the order in which they subscribed; async ones are
    awaited. One that raises is logged under `agentloop.events` and does not disturb the run or the others.

    Args:
        clock: where the times of events come from; a clock of their own, so that watching draws no time from the loop's.
        strict: raise the first error of a listener, after all listeners were told, instead of logging it.
    """

    def __init__(self, *, clock: Clock | None = None, strict: bool = False) -> None:
        self.clock: Clock = clock or SystemClock()
        self.strict = strict
        self.every: Signal = Signal()
        self.signals: dict[type[Event], Signal] = {}
        self._orders = count()
        self._stream = ExecutionBus(self)

    def signal(self, kind: type[Event]) -> Signal:
        """Return the blinker signal of an event class, for code that speaks blinker: receivers get `(bus, event=event)`."""
        return self.signals.setdefault(kind, Signal())

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Tell the listener every event."""
        return self._subscribe(self.every, listener)

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Tell the listener the events of exactly this class."""
        return self._subscribe(self.signal(kind), listener)

    def for_execution(self) -> ExecutionBus:
        """Return the bus as one execution sees it: with a count and an order of its own."""
        return ExecutionBus(self)

    def due(self, kind: type[Event]) -> bool:
        """Count one event outside of any execution of a loop, and say whether anybody listens."""
        return self._stream.due(kind)

    def head(self, state: AgentState, *, step_number: int | None = None) -> EventHead:
        """Make the head of the event that was counted last."""
        return self._stream.head(state, step_number=step_number)

    async def emit(self, event: Event) -> None:
        """Tell the event; when this returns, every listener has taken it."""
        await self._stream.emit(event)

    def emit_soon(self, event: Event) -> None:
        """Tell the event from where nothing can be awaited."""
        self._stream.emit_soon(event)

    async def drain(self) -> None:
        """Wait until every listener has taken what was emitted."""
        await self._stream.drain()

    def receivers(self, kind: type[Event]) -> list[Any]:
        """Return who is to be told an event of this class, in order."""
        found = list(self.every.receivers_for(self)) if self.every.receivers else []
        signal = self.signals.get(kind)
        if signal is not None and signal.receivers:
            found.extend(signal.receivers_for(self))
        if len(found) > 1:
            found.sort(key=lambda receiver: getattr(receiver, "order", _LAST))
        return found

    async def tell(self, event: Event, receivers: list[Any]) -> None:
        """Call the receivers one after the other, and await those that are async."""
        cancelled: BaseException | None = None
        failed: Exception | None = None
        for receiver in receivers:
            try:
                outcome = receiver(self, event=event)
                if isawaitable(outcome):
                    await outcome
            except Exception as error:  # noqa: BLE001  # a listener's error is the listener's
                failed = failed or self._report(receiver, event, error)
            except BaseException as error:  # noqa: BLE001  # raised again when all others were told
                cancelled = error
        if cancelled is not None:
            raise cancelled
        if failed is not None:
            raise failed

    def tell_now(self, event: Event, receivers: list[Any]) -> None:
        """Call receivers that are all plain functions."""
        failed: Exception | None = None
        for receiver in receivers:
            try:
                outcome = receiver(self, event=event)
                if outcome is not None and isawaitable(outcome):
                    error = TypeError("a plain listener returned an awaitable, which nobody awaits: use async def")
                    failed = failed or self._report(receiver, event, error)
            except Exception as error:  # noqa: BLE001  # a listener's error is the listener's
                failed = failed or self._report(receiver, event, error)
        if failed is not None:
            raise failed

    def _report(self, receiver: object, event: Event, error: Exception) -> Exception | None:
        if self.strict:
            return error
        logger.error("the listener %r failed at %s", receiver, type(event).__name__, exc_info=error)
        return None

    def _subscribe(self, signal: Signal, listener: Callable[[Any], Any]) -> Subscription:
        if not callable(listener):
            raise TypeError(f"a listener is a function of one event, not {listener!r}")
        receiver = Receiver(listener, next(self._orders))
        signal.connect(receiver, weak=False)
        return _SignalSubscription(signal, receiver)
