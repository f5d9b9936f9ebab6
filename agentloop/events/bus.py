"""The event bus: blinker signals with order, strong listeners and isolation."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from inspect import isawaitable, iscoroutinefunction
from itertools import count
from typing import Any, Concatenate, ParamSpec, Protocol, cast

from attrs import frozen
from blinker import Signal

from agentloop.contracts.can_handle_events import CanHandleEvents, E, Listener, Subscription
from agentloop.values.event import Event, EventHead
from agentloop.values.state import AgentState
from agentloop.values.time_and_ids import Clock, SystemClock
from agentloop.values.value import Value

P = ParamSpec("P")


class _Unobserved(Awaitable[None]):
    """The result of an emission that no listener waits for; awaiting it does nothing."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


_UNOBSERVED = _Unobserved()


def emit(
    events: CanHandleEvents,
    kind: Callable[Concatenate[EventHead, P], Event],
    state: AgentState,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Awaitable[None]:
    """Emit an event of the step after the state's last one, if anybody listens for it.

    The event is counted either way (law 8) and built only when it is observed. Await the result: the listeners have
    taken the event when it returns.

    Args:
        events: the bus.
        kind: the event class.
        state: the state in which the event happens.
        *args: the fields of the event that follow its head.
        **kwargs: the same, by name.
    """
    return emit_at_step(events, kind, state, None, *args, **kwargs)


def emit_at_step(
    events: CanHandleEvents,
    kind: Callable[Concatenate[EventHead, P], Event],
    state: AgentState,
    step_number: int | None,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Awaitable[None]:
    """Emit an event of the step with this 1-based number; None stands for the step after the state's last one."""
    if not events.due(cast("type[Event]", kind)):
        return _UNOBSERVED
    return events.emit(kind(events.head(state, step_number=step_number), *args, **kwargs))


def emit_soon(
    events: CanHandleEvents,
    kind: Callable[Concatenate[EventHead, P], Event],
    state: AgentState,
    step_number: int | None,
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Emit an event from code that cannot await: the listeners have taken it before a later emission returns."""
    if events.due(cast("type[Event]", kind)):
        events.emit_soon(kind(events.head(state, step_number=step_number), *args, **kwargs))


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


def join_buses(first: CanHandleEvents, second: CanHandleEvents) -> CanHandleEvents:
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
