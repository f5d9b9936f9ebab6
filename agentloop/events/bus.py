"""The event bus: blinker signals with ordered delivery, strong references to listeners, and isolation of their errors."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable, iscoroutinefunction
from itertools import count
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, cast, overload

from attrs import frozen
from blinker import Signal

from agentloop._shielding import is_task_cancelled
from agentloop.contracts.can_handle_events import (
    CanCarryContext,
    CanHandleEvents,
    CanProvideContext,
    E,
    Listener,
    Subscription,
)
from agentloop.errors import ForeignCancellation, InvalidParameter
from agentloop.values.event import Event, EventHead
from agentloop.values.state import AgentState
from agentloop.values.time_and_ids import Clock, SystemClock
from agentloop.values.value import Value

P = ParamSpec("P")

_MAX_LISTED = 8
"""How many classes of events a message lists."""


class _Handled(tuple[()]):
    """The result of an emission that is over, because no listener had to be awaited; awaiting it does nothing."""

    __slots__ = ()
    # The iterator of an empty tuple ends at once, without a function of Python: this runs several times per step and tool call.
    __await__ = tuple.__iter__


_HANDLED = cast("Awaitable[None]", _Handled())


def emit(
    events: CanHandleEvents,
    kind: Callable[Concatenate[EventHead, P], Event],
    state: AgentState,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Awaitable[None]:
    """Emit an event of the step after the state's last one, if it has a listener.

    The event is counted either way (law 8) and built only when it is observed. Await the result: the listeners have
    handled the event when it returns.

    Args:
        events: the bus.
        kind: the event class.
        state: the state in which the event happens.
        *args: the fields of the event that follow its head.
        **kwargs: the same, by name.
    """
    # A coroutine is created only for listeners that are awaited: this runs several times per step and tool call, and for each
    # delta of a streamed response.
    if not events.due(kind):  # type: ignore[arg-type]  # a class, which is called as a function here
        return _HANDLED
    event = kind(events.head(state), *args, **kwargs)
    return events.deliver(event) if isinstance(events, ExecutionBus) else events.emit(event)


def emit_at_step(
    events: CanHandleEvents,
    kind: Callable[Concatenate[EventHead, P], Event],
    state: AgentState,
    step_number: int | None,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Awaitable[None]:
    """Emit an event of the step with this 1-based number; None stands for the step after the state's last one."""
    if not events.due(kind):  # type: ignore[arg-type]  # as above
        return _HANDLED
    event = kind(events.head(state, step_number=step_number), *args, **kwargs)
    return events.deliver(event) if isinstance(events, ExecutionBus) else events.emit(event)


def emit_soon(
    events: CanHandleEvents,
    kind: Callable[Concatenate[EventHead, P], Event],
    state: AgentState,
    step_number: int | None,
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Emit an event from code that cannot await: every listener has handled it before a later emission returns."""
    if events.due(cast("type[Event]", kind)):
        events.emit_soon(kind(events.head(state, step_number=step_number), *args, **kwargs))


def require_emitted(kind: object) -> None:
    """Check that events can be of exactly this class, so that a listener of it is not one that nothing ever calls.

    Raises:
        InvalidParameter: it is no class of events, or one of which only subclasses are emitted.
    """
    if not isinstance(kind, type) or not issubclass(kind, Event):
        raise InvalidParameter(f"on takes a class of events, such as ToolCallCompleted, not {kind!r:.100}")
    if vars(kind).get("is_base", False):
        kinds = dict.fromkeys([each.__name__ for each in kind.__subclasses__()])
        listed = ", ".join([*kinds][:_MAX_LISTED]) + (", …" if len(kinds) > _MAX_LISTED else "")
        raise InvalidParameter(
            f"no event is only a {kind.__name__}, which is the base of others: listen to each of {listed}, or to all events by wiretap"
        )


SignalSources: TypeAlias = "tuple[tuple[Signal, Mapping[type[Event], Signal]], ...]"
"""For each bus, the signal of all its events, and those of the event classes that have one."""


class SharedBus(Protocol):
    """The part of a bus that the buses of its executions use."""

    @property
    def clock(self) -> Clock:
        """The source of event times."""

    @property
    def sources(self) -> SignalSources:
        """The signals that tell whether an event has a listener; they are the same for the lifetime of the bus."""

    @property
    def providers(self) -> Sequence[CanProvideContext]:
        """The providers of contexts."""

    def provide(self, provider: CanProvideContext) -> Subscription:
        """Enter the contexts of a provider."""

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Call the listener for every event."""

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Call the listener for events of one class."""

    def includes(self, bus: object) -> bool:
        """Return whether this is that bus, or is joined of it and others."""

    def receivers(self, kind: type[Event]) -> list[Any]:
        """Return the receivers of an event class, in order."""

    async def deliver(self, event: Event, receivers: list[Any]) -> None:
        """Call the receivers and await the async ones."""

    def deliver_now(self, event: Event, receivers: list[Any]) -> None:
        """Call receivers that are all plain functions."""


class ExecutionBus(CanHandleEvents, CanCarryContext):
    """The bus of one execution: counts its events and delivers them in order, one at a time."""

    __slots__ = ("_bus", "_count", "_lock", "_queue", "_sources", "_tasks", "providers")

    def __init__(self, bus: SharedBus) -> None:
        self._bus = bus
        # Those of the bus itself, to which others may be added later: each operation looks at them.
        self.providers: Sequence[CanProvideContext] = bus.providers
        self._sources = bus.sources
        self._count = 0
        self._queue: deque[tuple[Event, list[Any]]] = deque()
        self._lock: asyncio.Lock | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Call the listener for every event of the shared bus, not only of this execution."""
        return self._bus.wiretap(listener)

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Call the listener for events of exactly this class, of the shared bus."""
        return self._bus.on(kind, listener)

    def provide(self, provider: CanProvideContext) -> Subscription:
        """Enter the contexts of a provider in all executions of the shared bus."""
        return self._bus.provide(provider)

    def belongs_to(self, bus: object) -> bool:
        """Return whether this is an execution's view of that bus, or of several with that bus among them."""
        return self._bus.includes(bus)

    def for_execution(self) -> ExecutionBus:
        """Return the bus of another execution, such as that of a sub-agent."""
        return ExecutionBus(self._bus)

    def joined_with(self, other: ExecutionBus) -> ExecutionBus:
        """Return a bus of one execution whose events reach the listeners of this bus and then those of the other one.

        It has one queue for all listeners, so that none gets an event before an earlier one.
        """
        return ExecutionBus(JoinedListeners(self._bus, other._bus))

    def due(self, kind: type[Event]) -> bool:
        """Count one event of this class and return whether it has a listener."""
        self._count += 1
        for every, signals in self._sources:
            if every.receivers:
                return True
            signal = signals.get(kind)
            if signal is not None and signal.receivers:
                return True
        return False

    def head(self, state: AgentState, *, step_number: int | None = None) -> EventHead:
        """Return the head of the event that was counted last."""
        number = state.step_count + 1 if step_number is None else step_number
        now = self._bus.clock.now()
        ids = (state.agent_id, state.execution_id, state.parent_agent_id)
        return EventHead(*ids, number, self._count, now, state.agent_name)

    async def emit(self, event: Event) -> None:
        """Deliver an event; when this returns, every listener has handled it."""
        await self.deliver(event)

    def deliver(self, event: Event) -> Awaitable[None]:
        """Deliver an event at once if all its listeners are plain functions, else while the result is awaited."""
        return _HANDLED if self._deliver_at_once(event) else self._deliver_queued()

    def emit_soon(self, event: Event) -> None:
        """Deliver an event at once if all its listeners are plain functions, else in a task."""
        if not self._deliver_at_once(event):
            task = asyncio.ensure_future(self._deliver_queued())
            self._tasks.add(task)
            task.add_done_callback(self._forget)

    async def drain(self) -> None:
        """Wait until every listener has handled every emitted event."""
        while self._tasks:
            await self._tasks.pop()

    def _forget(self, task: asyncio.Task[None]) -> None:
        # Failed tasks are kept, so that `drain` raises their error.
        if task.cancelled() or task.exception() is None:
            self._tasks.discard(task)

    def _deliver_at_once(self, event: Event) -> bool:
        receivers, lock = self._bus.receivers(type(event)), self._lock
        # An event must not overtake a queued one, nor one whose async listener is still running.
        if self._queue or (lock is not None and lock.locked()) or _has_async(receivers):
            self._queue.append((event, receivers))
            return False
        self._bus.deliver_now(event, receivers)
        return True

    async def _deliver_queued(self) -> None:
        if self._lock is None:
            self._lock = asyncio.Lock()  # created here, since most executions have no async listener
        # Whoever holds the lock delivers everything queued, so that concurrent emissions stay in order.
        async with self._lock:
            while self._queue:
                await self._bus.deliver(*self._queue.popleft())


def _has_async(receivers: list[Any]) -> bool:
    """Return whether any receiver is async."""
    for receiver in receivers:  # noqa: SIM110  # a generator would take longer than everything else here
        if getattr(receiver, "is_async", False):
            return True
    return False


logger: logging.Logger = logging.getLogger("agentloop.events")

_AFTER_ALL = float("inf")


class Receiver:
    """A listener in the form that blinker calls, with its position in the order of subscription."""

    __slots__ = ("failed_with", "is_async", "listener", "order")

    def __init__(self, listener: Callable[[Any], Any], order: int) -> None:
        self.listener: Callable[[Any], Any] = listener
        self.order: int = order
        self.failed_with: type[Exception] | None = None
        self.is_async: bool = iscoroutinefunction(listener) or iscoroutinefunction(getattr(listener, "__call__", None))  # noqa: B004

    def __call__(self, _bus: object, event: Event) -> Awaitable[Any] | Any:
        """Handle an event of a blinker signal."""
        return self.listener(event)

    def __repr__(self) -> str:
        return getattr(self.listener, "__qualname__", None) or repr(self.listener)


def _receivers_of(signal: Signal, bus: object) -> list[Any]:
    """Return the receivers of a signal that a bus sends."""
    receivers = list(signal.receivers.values())
    for receiver in receivers:
        # Only code that uses blinker itself connects receivers of one sender, and receivers that can be gone.
        if type(receiver) is not Receiver:
            return list(signal.receivers_for(bus))
    return receivers


@frozen(eq=False, repr=False)
class _SignalSubscription(Subscription, Value):
    signal: Signal
    receiver: Receiver

    def cancel(self) -> None:
        """Remove the listener."""
        self.signal.disconnect(self.receiver)


@frozen(eq=False, repr=False)
class _Provision(Subscription, Value):
    providers: list[CanProvideContext]
    provider: CanProvideContext

    def cancel(self) -> None:
        """Remove the provider."""
        if self.provider in self.providers:
            self.providers.remove(self.provider)


class EventBus(CanHandleEvents, CanCarryContext):
    """Delivers events to listeners, with one blinker signal per event class and one for all events.

    Listeners are called in the order in which they subscribed; async listeners are awaited. An error of a listener is logged
    under `agentloop.events` and affects neither the execution nor other listeners.

    Args:
        clock: the source of event times. It is separate from the loop's clock, so that observation does not change the times
            that a loop reads.
        strict: whether to raise the first error of a listener, after all listeners were called, instead of logging it.
    """

    def __init__(self, *, clock: Clock | None = None, strict: bool = False) -> None:
        self.clock: Clock = clock or SystemClock()
        self.strict = strict
        self.every: Signal = Signal()
        self.signals: dict[type[Event], Signal] = {}
        self.sources: SignalSources = ((self.every, self.signals),)
        self._providers: list[CanProvideContext] = []
        self._orders = count()
        self._stream = ExecutionBus(self)

    def signal(self, kind: type[Event]) -> Signal:
        """Return the blinker signal of an event class, for code that uses blinker: receivers get `(bus, event=event)`.

        Raises:
            InvalidParameter: no event has exactly this class.
        """
        require_emitted(kind)
        return self.signals.setdefault(kind, Signal())

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Call the listener for every event."""
        return self._subscribe(self.every, listener)

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Call the listener for events of exactly this class.

        Raises:
            InvalidParameter: no event has exactly this class.
        """
        return self._subscribe(self.signal(kind), listener)

    @property
    def providers(self) -> Sequence[CanProvideContext]:
        """The providers of contexts, in the order in which they are entered."""
        return self._providers

    def provide(self, provider: CanProvideContext) -> Subscription:
        """Enter the contexts of a provider from the next operation on; once, however often it is provided."""
        if provider not in self._providers:
            self._providers.append(provider)
        return _Provision(self._providers, provider)

    def for_execution(self) -> ExecutionBus:
        """Return a bus for one execution, with the same listeners and its own sequence of events."""
        return ExecutionBus(self)

    def due(self, kind: type[Event]) -> bool:
        """Count one event outside of any execution and return whether it has a listener."""
        return self._stream.due(kind)

    def head(self, state: AgentState, *, step_number: int | None = None) -> EventHead:
        """Return the head of the event that was counted last."""
        return self._stream.head(state, step_number=step_number)

    async def emit(self, event: Event) -> None:
        """Deliver an event; when this returns, every listener has handled it."""
        await self._stream.emit(event)

    def emit_soon(self, event: Event) -> None:
        """Deliver an event from code that cannot await."""
        self._stream.emit_soon(event)

    async def drain(self) -> None:
        """Wait until every listener has handled every emitted event."""
        await self._stream.drain()

    def includes(self, bus: object) -> bool:
        """Return whether this is that bus."""
        return self is bus

    def receivers(self, kind: type[Event]) -> list[Any]:
        """Return the receivers of an event class, in the order in which they subscribed."""
        receivers = _receivers_of(self.every, self) if self.every.receivers else []
        signal = self.signals.get(kind)
        if signal is not None and signal.receivers:
            receivers += _receivers_of(signal, self)
        if len(receivers) > 1:
            receivers.sort(key=lambda receiver: getattr(receiver, "order", _AFTER_ALL))
        return receivers

    async def deliver(self, event: Event, receivers: list[Any]) -> None:
        """Call the receivers one after the other and await the async ones."""
        cancelled: BaseException | None = None
        failed: Exception | None = None
        for receiver in receivers:
            try:
                outcome = receiver(self, event=event)
                if isawaitable(outcome):
                    await outcome
            except Exception as error:  # noqa: BLE001  # the error of a listener must not reach the execution
                failed = failed or self._report(receiver, event, error)
            except BaseException as error:  # noqa: BLE001  # raised again after all other receivers were called
                if isinstance(error, asyncio.CancelledError) and not is_task_cancelled():
                    foreign = ForeignCancellation(f"the listener {receiver!r}", error)
                    failed = failed or self._report(receiver, event, foreign)
                else:
                    cancelled = error
        if cancelled is not None:
            raise cancelled
        if failed is not None:
            raise failed

    def deliver_now(self, event: Event, receivers: list[Any]) -> None:
        """Call receivers that are all plain functions."""
        failed: Exception | None = None
        for receiver in receivers:
            try:
                is_own = type(receiver) is Receiver  # called without the form of blinker: this runs for each event
                outcome = receiver.listener(event) if is_own else receiver(self, event=event)
                if outcome is not None and isawaitable(outcome):
                    error = TypeError("a plain listener returned an awaitable, which is not awaited: use async def")
                    failed = failed or self._report(receiver, event, error)
            except Exception as error:  # noqa: BLE001  # the error of a listener must not reach the execution
                failed = failed or self._report(receiver, event, error)
        if failed is not None:
            raise failed

    def _report(self, receiver: object, event: Event, error: Exception) -> Exception | None:
        if self.strict:
            return error
        # The same mistake usually fails at every event, and one traceback leads to it.
        failed_again = False
        if type(receiver) is Receiver:
            failed_again, receiver.failed_with = receiver.failed_with is type(error), type(error)
        place = (
            f"{type(event).__name__} again: {type(error).__name__}: {error}" if failed_again else type(event).__name__
        )
        logger.error("the listener %r failed at %s", receiver, place, exc_info=None if failed_again else error)
        return None

    def _subscribe(self, signal: Signal, listener: Callable[[Any], Any]) -> Subscription:
        if not callable(listener):
            raise InvalidParameter(f"a listener is a function of one event, not {listener!r:.100}")
        receiver = Receiver(listener, next(self._orders))
        signal.connect(receiver, weak=False)
        return _SignalSubscription(signal, receiver)


class _Receivers:
    """The receivers of one of several buses as one receiver, in the order of the buses."""

    __slots__ = ("bus", "is_async", "receivers")

    def __init__(self, bus: SharedBus, receivers: list[Any]) -> None:
        self.bus = bus
        self.receivers = receivers
        self.is_async = _has_async(receivers)


class JoinedListeners:
    """The listeners of two buses, as the bus of one execution uses them.

    Args:
        first: the bus whose listeners are called first, which also takes new ones, and which has the clock.
        second: the other bus.
    """

    def __init__(self, first: SharedBus, second: SharedBus) -> None:
        self.first = first
        self.second = second
        self.clock: Clock = first.clock
        self.sources: SignalSources = (*first.sources, *second.sources)

    @property
    def providers(self) -> Sequence[CanProvideContext]:
        """The providers of both buses, each once; also of those that are provided later."""
        return _JoinedProviders(self.first.providers, self.second.providers)

    def provide(self, provider: CanProvideContext) -> Subscription:
        """Enter the contexts of a provider in the executions of the first bus."""
        return self.first.provide(provider)

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Call the listener for every event of the first bus."""
        return self.first.wiretap(listener)

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Call the listener for events of exactly this class, of the first bus."""
        return self.first.on(kind, listener)

    def includes(self, bus: object) -> bool:
        """Return whether that bus is among these."""
        return self is bus or self.first.includes(bus) or self.second.includes(bus)

    def receivers(self, kind: type[Event]) -> list[Any]:
        """Return the receivers of an event class of each bus, as one."""
        buses = (self.first, self.second)
        return [_Receivers(bus, receivers) for bus in buses if (receivers := bus.receivers(kind))]

    async def deliver(self, event: Event, receivers: list[Any]) -> None:
        """Call the receivers of the buses and await the async ones; those of one bus do not hide the event from the others."""
        errors: list[BaseException] = []
        for part in receivers:
            try:
                await part.bus.deliver(event, part.receivers)
            except BaseException as error:  # noqa: BLE001  # raised below
                errors.append(error)
        _raise_first(errors)

    def deliver_now(self, event: Event, receivers: list[Any]) -> None:
        """Call receivers of the buses that are all plain functions."""
        errors: list[BaseException] = []
        for part in receivers:
            try:
                part.bus.deliver_now(event, part.receivers)
            except BaseException as error:  # noqa: BLE001  # raised below
                errors.append(error)
        _raise_first(errors)


def _raise_first(errors: Sequence[BaseException]) -> None:
    """Raise the first error, if there is one; a cancellation comes before errors of listeners."""
    for error in sorted(errors, key=lambda error: isinstance(error, Exception)):
        raise error


def join_buses(first: CanHandleEvents, second: CanHandleEvents) -> CanHandleEvents:
    """Return a bus that delivers to the listeners of both buses, once to each listener."""
    return first if _delivers_to(first, second) else JoinedBus(first, second)


class JoinedBus(CanHandleEvents, CanCarryContext):
    """Delivers every event to the listeners of two buses.

    Args:
        first: the bus whose listeners are called first, and that creates the heads of events.
        second: the other bus.
    """

    def __init__(self, first: CanHandleEvents, second: CanHandleEvents) -> None:
        self.first: CanHandleEvents = first
        self.second: CanHandleEvents = second

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Subscribe to the first bus, which receives every event of this one."""
        return self.first.wiretap(listener)

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Call the listener for events of exactly this class."""
        return self.first.on(kind, listener)

    @property
    def providers(self) -> Sequence[CanProvideContext]:
        """The providers of both buses, each once."""
        return _join_providers(_providers_of(self.first), _providers_of(self.second))

    def provide(self, provider: CanProvideContext) -> Subscription:
        """Enter the contexts of a provider.

        Raises:
            InvalidParameter: neither bus carries contexts.
        """
        for bus in (self.first, self.second):
            if isinstance(bus, CanCarryContext):
                return bus.provide(provider)
        raise InvalidParameter("neither of the joined buses carries contexts; use an EventBus")

    def for_execution(self) -> CanHandleEvents:
        """Return the joined buses of one execution."""
        first, second = self.first.for_execution(), self.second.for_execution()
        if isinstance(first, ExecutionBus) and isinstance(second, ExecutionBus):
            return first.joined_with(second)
        return JoinedBus(first, second)  # a bus of another class has an order of its own

    def due(self, kind: type[Event]) -> bool:
        """Count one event of this class and return whether it has a listener."""
        first, second = self.first.due(kind), self.second.due(kind)  # no `or` here: both buses have to count the event
        return first or second

    def head(self, state: AgentState, *, step_number: int | None = None) -> EventHead:
        """Return the head of the event that was counted last."""
        return self.first.head(state, step_number=step_number)

    async def emit(self, event: Event) -> None:
        """Deliver an event; when this returns, every listener has handled it."""
        try:
            await self.first.emit(event)
        finally:  # a cancellation while listeners of the first bus are awaited does not hide the event from the others
            await self.second.emit(event)

    def emit_soon(self, event: Event) -> None:
        """Deliver an event from code that cannot await."""
        try:
            self.first.emit_soon(event)
        finally:
            self.second.emit_soon(event)

    async def drain(self) -> None:
        """Wait until every listener has handled every emitted event."""
        try:
            await self.first.drain()
        finally:
            await self.second.drain()


class _JoinedProviders(Sequence[CanProvideContext]):
    """The providers of two buses, each once, as they are when they are looked at."""

    def __init__(self, first: Sequence[CanProvideContext], second: Sequence[CanProvideContext]) -> None:
        self._first = first
        self._second = second

    def __len__(self) -> int:
        return len(_join_providers(self._first, self._second))

    @overload
    def __getitem__(self, index: int) -> CanProvideContext: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CanProvideContext]: ...
    def __getitem__(self, index: int | slice) -> CanProvideContext | Sequence[CanProvideContext]:
        return _join_providers(self._first, self._second)[index]


def _join_providers(
    first: Sequence[CanProvideContext], second: Sequence[CanProvideContext]
) -> Sequence[CanProvideContext]:
    return first if not second else [*first, *[provider for provider in second if provider not in first]]


def _providers_of(bus: CanHandleEvents) -> Sequence[CanProvideContext]:
    return bus.providers if isinstance(bus, CanCarryContext) else ()


def _delivers_to(bus: CanHandleEvents, other: CanHandleEvents) -> bool:
    """Return whether events of a bus reach the listeners of another one."""
    if isinstance(bus, JoinedBus):
        return _delivers_to(bus.first, other) or _delivers_to(bus.second, other)
    return bus is other or (isinstance(bus, ExecutionBus) and bus.belongs_to(other))
