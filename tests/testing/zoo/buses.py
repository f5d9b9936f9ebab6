"""Event buses that break one law each."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

from agentloop.contracts.can_handle_events import CanHandleEvents, E, Listener, Subscription
from agentloop.testing import EventBusKit
from agentloop.values import AgentState
from agentloop.values.event import Event, EventHead
from agentloop.values.time_and_ids import SystemClock
from tests.testing.zoo.zoo import Member


class _Registered(Subscription):
    def __init__(self, bus: PlainBus, listener: Any) -> None:
        self.bus, self.listener = bus, listener

    def cancel(self) -> None:
        self.bus.cancel(self)


class PlainBus(CanHandleEvents):
    """Keeps all laws; the classes below break one each."""

    def __init__(self, shared: PlainBus | None = None) -> None:
        self.subscriptions: list[Any] = [] if shared is None else shared.subscriptions
        self.count = 0
        self.lock = asyncio.Lock()
        self.tasks: list[asyncio.Task[None]] = []

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        return self.register(None, listener)

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        return self.register(kind, listener)

    def register(self, kind: Any, listener: Any) -> Subscription:
        subscription = _Registered(self, listener)
        self.subscriptions.append((subscription, kind, listener))
        return subscription

    def cancel(self, subscription: Subscription) -> None:
        self.subscriptions[:] = [each for each in self.subscriptions if each[0] is not subscription]

    def for_execution(self) -> CanHandleEvents:
        return type(self)(self)

    def listeners(self, kind: type[Event]) -> list[Any]:
        return [listener for _, wanted, listener in self.subscriptions if wanted in (None, kind)]

    def due(self, kind: type[Event]) -> bool:
        self.count += 1
        return bool(self.listeners(kind))

    def head(self, state: AgentState, *, step_number: int | None = None) -> EventHead:
        number = state.step_count + 1 if step_number is None else step_number
        ids = (state.agent_id, state.execution_id, state.parent_agent_id)
        return EventHead(*ids, number, self.count, SystemClock().now(), state.agent_name)

    async def emit(self, event: Event) -> None:
        listeners = self.listeners(type(event))
        async with self.lock:
            for listener in listeners:
                await self.call(listener, event)

    async def call(self, listener: Any, event: Event) -> None:
        try:
            result = listener(event)
            if asyncio.iscoroutine(result):
                await result
        except Exception:  # noqa: BLE001  # a listener disturbs nobody
            return

    def emit_soon(self, event: Event) -> None:
        self.tasks.append(asyncio.ensure_future(self.emit(event)))

    async def drain(self) -> None:
        while self.tasks:
            await self.tasks.pop(0)


class KeepsWatch(PlainBus):
    """Breaks law 19: a task that watches the bus never ends."""

    async def emit(self, event: Event) -> None:
        if not self.tasks:
            self.watch = asyncio.ensure_future(asyncio.sleep(3600))
        await super().emit(event)


class StopsAtAnError(PlainBus):
    """Breaks law 48: listeners after one that raises get nothing."""

    async def emit(self, event: Event) -> None:
        async with self.lock:
            try:
                for listener in self.listeners(type(event)):
                    result = listener(event)
                    if asyncio.iscoroutine(result):
                        await result
            except Exception:  # noqa: BLE001
                return


class RaisesErrors(PlainBus):
    """Breaks law 48: the error of a listener reaches the execution."""

    async def call(self, listener: Any, event: Event) -> None:
        result = listener(event)
        if asyncio.iscoroutine(result):
            await result


class TriesAgain(PlainBus):
    """Breaks law 48: a listener that raises gets the event once more."""

    async def call(self, listener: Any, event: Event) -> None:
        try:
            await RaisesErrors.call(self, listener, event)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001
            await super().call(listener, event)


class DropsWhatRaises(PlainBus):
    """Breaks law 48: a listener that has raised gets no later event."""

    async def call(self, listener: Any, event: Event) -> None:
        try:
            await RaisesErrors.call(self, listener, event)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001
            self.subscriptions[:] = [each for each in self.subscriptions if each[2] is not listener]


class MatchesSubclasses(PlainBus):
    """Breaks law 48: a listener of a class gets its subclasses, too."""

    def listeners(self, kind: type[Event]) -> list[Any]:
        return [listener for _, wanted, listener in self.subscriptions if wanted is None or issubclass(kind, wanted)]


class IgnoresKinds(PlainBus):
    """Breaks law 48: every listener gets every event."""

    def listeners(self, kind: type[Event]) -> list[Any]:
        return [listener for _, _, listener in self.subscriptions]


class ForgetsListeners(PlainBus):
    """Breaks law 48: a listener is gone when nothing else refers to it."""

    def register(self, kind: Any, listener: Any) -> Subscription:
        known = weakref.WeakMethod(listener) if hasattr(listener, "__self__") else weakref.ref(listener)

        def call(event: Event) -> Any:
            found = known()
            return None if found is None else found(event)

        return super().register(kind, call)


class KeepsCancelledListeners(PlainBus):
    """Breaks law 48: a cancelled subscription goes on."""

    def cancel(self, subscription: Subscription) -> None:
        """Do nothing."""


class CancelsEqualListeners(PlainBus):
    """Breaks law 48: a listener that is registered twice is cancelled twice at once."""

    def cancel(self, subscription: Any) -> None:
        self.subscriptions[:] = [each for each in self.subscriptions if each[2] is not subscription.listener]


class CancelsOnce(PlainBus):
    """Breaks law 48: a second `cancel` raises."""

    def cancel(self, subscription: Subscription) -> None:
        found = [each for each in self.subscriptions if each[0] is subscription]
        self.subscriptions.remove(found[0])


class DoesNotWait(PlainBus):
    """Breaks law 48: `emit` returns while an async listener still handles the event."""

    async def emit(self, event: Event) -> None:
        self.emit_soon(event)

    def emit_soon(self, event: Event) -> None:
        self.tasks.append(asyncio.ensure_future(super().emit(event)))


class CallsAtOnce(PlainBus):
    """Breaks law 48: a listener gets an event while it still handles the one before."""

    async def emit(self, event: Event) -> None:
        await asyncio.gather(*[self.call(listener, event) for listener in self.listeners(type(event))])


class DrainsNothing(PlainBus):
    """Breaks law 48: `drain` does not wait for what was emitted soon."""

    async def drain(self) -> None:
        """Do nothing."""


class NewestFirst(PlainBus):
    """Breaks law 48: events that wait are delivered from the last one on."""

    def __init__(self, shared: PlainBus | None = None) -> None:
        super().__init__(shared)
        self.waiting: list[Event] = []

    def emit_soon(self, event: Event) -> None:
        self.waiting.append(event)
        self.tasks.append(asyncio.ensure_future(self.emit_last()))

    async def emit_last(self) -> None:
        await super().emit(self.waiting.pop())


class CountsObservedEvents(PlainBus):
    """Breaks law 8: an event that nobody hears is not counted."""

    def due(self, kind: type[Event]) -> bool:
        is_due = bool(self.listeners(kind))
        self.count += is_due
        return is_due


class CountsTogether(PlainBus):
    """Breaks law 9: all executions have one sequence."""

    def for_execution(self) -> CanHandleEvents:
        return self


class HearsItsOwn(PlainBus):
    """Breaks law 9: an execution is heard by the listeners alone that were there when it began."""

    def __init__(self, shared: PlainBus | None = None) -> None:
        super().__init__(shared)
        self.subscriptions = list(self.subscriptions)


class KeepsTheFirstHead(PlainBus):
    """Breaks law 9: every event names the execution that the first one was of."""

    def __init__(self, shared: KeepsTheFirstHead | None = None) -> None:
        super().__init__(shared)
        self.states: list[AgentState] = [] if shared is None else shared.states

    def head(self, state: AgentState, *, step_number: int | None = None) -> EventHead:
        self.states.append(state)
        return super().head(self.states[0], step_number=step_number)


class IgnoresStepNumbers(PlainBus):
    """Breaks law 9: an event is of the next step, whatever step its emitter names."""

    def head(self, state: AgentState, *, step_number: int | None = None) -> EventHead:
        return super().head(state)


class SwallowsCancellation(PlainBus):
    """Breaks law 34: who emits an event is not cancelled while a listener handles it."""

    async def emit(self, event: Event) -> None:
        try:
            await super().emit(event)
        except asyncio.CancelledError:
            return


def _bus(law: int, bus: Callable[[], CanHandleEvents]) -> Member:
    return Member(bus, law, lambda examples: EventBusKit(bus, examples=examples))


BUSES: tuple[Member, ...] = (
    _bus(8, CountsObservedEvents),
    _bus(9, CountsTogether),
    _bus(9, HearsItsOwn),
    _bus(9, KeepsTheFirstHead),
    _bus(9, IgnoresStepNumbers),
    _bus(19, KeepsWatch),
    _bus(34, SwallowsCancellation),
    _bus(48, StopsAtAnError),
    _bus(48, RaisesErrors),
    _bus(48, TriesAgain),
    _bus(48, DropsWhatRaises),
    _bus(48, MatchesSubclasses),
    _bus(48, IgnoresKinds),
    _bus(48, ForgetsListeners),
    _bus(48, KeepsCancelledListeners),
    _bus(48, CancelsEqualListeners),
    _bus(48, CancelsOnce),
    _bus(48, DoesNotWait),
    _bus(48, CallsAtOnce),
    _bus(48, DrainsNothing),
    _bus(48, NewestFirst),
)
