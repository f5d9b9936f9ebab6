"""The law suite of event buses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar

from attrs import define, field, frozen
from hypothesis import strategies as st

from agentloop.contracts.can_handle_events import CanHandleEvents, Listener, Subscription
from agentloop.testing.clocks import ManualClock
from agentloop.testing.kit import Kit, checked_factory, require
from agentloop.testing.surroundings import Surroundings
from agentloop.values.event import Event, EventHead
from agentloop.values.state import AgentState, with_agent_name
from agentloop.values.steps import AgentStep

_PATIENCE = 5.0
"""Seconds after which a bus that does not deliver is taken for one that never does."""


@frozen(eq=False, repr=False)
class _Said(Event):
    """An event of the kit."""

    is_base: ClassVar[bool] = False
    number: int


@frozen(eq=False, repr=False)
class _Shouted(_Said):
    """One of a subclass, which listeners of the class above do not get."""

    is_base: ClassVar[bool] = False


_KINDS: tuple[type[_Said], ...] = (_Said, _Shouted)


@frozen
class _Plan:
    """What a listener does; by default, a plain one that gets six events.

    Attributes:
        kind: the class whose events it gets; None for all.
        is_async: whether it is awaited, and waits before it notes an event.
        raises: whether it raises an error after that.
        until: after how many events it is cancelled.
    """

    kind: type[_Said] | None
    is_async: bool = False
    raises: bool = False
    until: int = 6


@define
class _Heard:
    """What a listener got, in order."""

    plan: _Plan
    numbers: list[int] = field(factory=list)
    is_busy: bool = False
    overlaps: bool = False

    def listener(self) -> Listener[Event]:
        """Return a new listener, which nothing but the bus refers to."""

        def hear(event: Event) -> None:
            self.numbers.append(event.number if isinstance(event, _Said) else 0)
            if self.plan.raises:
                raise RuntimeError("a listener of the kit that raises")

        async def hear_slowly(event: Event) -> None:
            self.overlaps = self.overlaps or self.is_busy
            self.is_busy = True
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.is_busy = False
            hear(event)

        return hear_slowly if self.plan.is_async else hear

    def expects(self, kind: type[_Said], number: int) -> bool:
        """Return whether it should get this event."""
        return self.plan.kind in (None, kind) and number <= self.plan.until


_PLANS = st.lists(
    st.builds(_Plan, st.sampled_from([None, *_KINDS]), st.booleans(), st.booleans(), st.sampled_from([6, 0, 1, 3])),
    min_size=1,
    max_size=4,
)
_FIXED = (
    [
        _Plan(None, is_async=True),
        _Plan(_Said, raises=True),
        _Plan(_Shouted, is_async=True, raises=True),
        _Plan(None, until=4),
    ],
    [
        (kind, soon == "soon")
        for kind, soon in zip((_Said, _Shouted) * 3, ("soon", "soon", "soon", "", "soon", "soon"), strict=True)
    ],
)
_EMISSIONS = st.lists(st.tuples(st.sampled_from(_KINDS), st.booleans()), min_size=1, max_size=6)


class EventBusKit(Kit):
    """Checks an event bus against the laws of `CanHandleEvents`.

    Args:
        factory: creates a new bus without listeners.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (8, 9, 19, 34, 48)

    def __init__(self, factory: Callable[[], CanHandleEvents], *, examples: int = 100) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[], CanHandleEvents] = checked_factory(factory)

    def law_8(self) -> None:
        """Events are counted alike with and without listeners, so that a gap of the sequence is an event that nobody heard."""

        async def count(example: tuple[Sequence[_Plan], Sequence[tuple[type[_Said], bool]]]) -> None:
            plans, emissions = example
            sequences = []
            for listening in ([], plans):
                shared = self.factory()
                for plan in listening:
                    _subscribe(shared, _Heard(plan))
                bus, found = shared.for_execution(), []
                for number, (kind, _) in enumerate(emissions, 1):
                    is_due = bus.due(kind)
                    found.append(bus.head(_STATE).sequence)
                    if is_due:
                        await _in_time(bus.emit(kind(bus.head(_STATE), number)), 8)
                sequences.append(found)
            expected = list(range(1, len(emissions) + 1))
            for who, found in zip(("nobody listens", "there are listeners"), sequences, strict=True):
                require(8, found == expected, f"where {who}, the events have the sequence {found}, not {expected}")

        self.for_all(st.tuples(_PLANS, _EMISSIONS), lambda example: asyncio.run(count(example)))

    def law_9(self) -> None:
        """Executions share the listeners, also later ones; each has its own sequence, and its events are of its own state."""

        async def check(count: int) -> None:
            shared = self.factory()
            buses = [shared.for_execution() for _ in range(count)]
            heard = _Heard(_Plan(None, until=9))
            _subscribe(shared, heard)
            for number, bus in enumerate([*buses, *buses], 1):
                require(9, bus.due(_Said), "a listener of the bus is none of an execution that began before")
                expected = 1 if number <= count else 2
                state = _STATES[(number - 1) % count][number > count]
                head = bus.head(state)
                found = head.sequence
                require(9, found == expected, f"event {expected} of an execution has the sequence {found}")
                _require_head(head, state, state.step_count + 1)
                _require_head(bus.head(state, step_number=0), state, 0)
                await _in_time(bus.emit(_Said(head, number)), 9)
            expected_numbers = list(range(1, 2 * count + 1))
            found_numbers = heard.numbers
            require(9, found_numbers == expected_numbers, f"of {expected_numbers}, the listener got {found_numbers}")

        self.for_all(st.integers(1, 4), lambda count: asyncio.run(check(count)))

    def law_19(self) -> None:
        """When `drain` has returned, no task of the bus is left."""

        async def check(example: tuple[Sequence[_Plan], Sequence[tuple[type[_Said], bool]]]) -> None:
            before = Surroundings.now()
            await self._emit_all(*example, law=19)
            await before.require_tasks_and_sockets()

        self.for_all(st.tuples(_PLANS, _EMISSIONS), lambda example: asyncio.run(check(example)))

    def law_34(self) -> None:
        """An emission that is cancelled while a listener handles the event raises the cancellation."""

        async def check(ticks: int) -> None:
            shared, started, held = self.factory(), asyncio.Event(), asyncio.Event()

            async def hold(_: Event) -> None:
                started.set()
                await held.wait()

            shared.wiretap(hold)
            bus = shared.for_execution()
            bus.due(_Said)
            task = asyncio.ensure_future(bus.emit(_Said(bus.head(_STATE), 1)))
            await _in_time(started.wait(), 34)
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task], timeout=_PATIENCE)
            require(34, task.cancelled(), "an emission was cancelled, and did not raise that")

        self.for_all(st.integers(0, 3), lambda ticks: asyncio.run(check(ticks)))

    def law_48(self) -> None:
        """Each listener gets the events of exactly its class, in order, one at a time, until it is cancelled."""
        asyncio.run(self._emit_all(*_FIXED, law=48))
        examples = st.tuples(_PLANS, _EMISSIONS)
        self.for_all(examples, lambda example: asyncio.run(self._emit_all(*example, law=48)))
        asyncio.run(self._check_cancel())

    async def _emit_all(
        self, plans: Sequence[_Plan], emissions: Sequence[tuple[type[_Said], bool]], *, law: int
    ) -> None:
        shared = self.factory()
        listeners = [_Heard(plan) for plan in plans]
        subscriptions = [_subscribe(shared, each) for each in listeners]
        bus, expected = shared.for_execution(), [list[int]() for _ in plans]
        for number, (kind, soon) in enumerate(emissions, 1):
            await self._cancel_ended(bus, listeners, subscriptions, number, law=law)
            wanted = [each.expects(kind, number) for each in listeners]
            is_due = bus.due(kind)
            require(law, is_due == any(wanted), f"`due` of {kind.__name__} is {is_due}, with the listeners {plans}")
            if not is_due:
                continue
            for index, is_wanted in enumerate(wanted):
                expected[index] += [number] * is_wanted
            event = kind(bus.head(_STATE), number)
            if soon:
                bus.emit_soon(event)
            else:
                await _in_time(bus.emit(event), law)
                _require_heard(law, listeners, expected, after="`emit` has returned")
        await _in_time(bus.drain(), law)
        _require_heard(law, listeners, expected, after="`drain` has returned")
        require(law, not any(each.overlaps for each in listeners), "a listener got an event while it handled another")

    async def _cancel_ended(
        self,
        bus: CanHandleEvents,
        listeners: Sequence[_Heard],
        subscriptions: Sequence[Subscription],
        number: int,
        *,
        law: int,
    ) -> None:
        """Cancel the listeners that get no event from this number on; nothing is on its way then."""
        for each, subscription in zip(listeners, subscriptions, strict=True):
            if number == each.plan.until + 1:
                await _in_time(bus.drain(), law)
                subscription.cancel()
                subscription.cancel()  # idempotent

    async def _check_cancel(self) -> None:
        """Check that of a listener that subscribed twice, one subscription is left when the other one is cancelled."""
        shared = self.factory()
        heard = _Heard(_Plan(None, until=9))
        listener = heard.listener()
        first, _second = shared.wiretap(listener), shared.wiretap(listener)
        bus = shared.for_execution()
        first.cancel()
        is_due = bus.due(_Said)
        require(48, is_due, "a listener subscribed twice, and with one of its subscriptions the other was cancelled")
        await _in_time(bus.emit(_Said(bus.head(_STATE), 1)), 48)
        require(
            48, heard.numbers == [1], f"one subscription of a listener is left, and it got the events {heard.numbers}"
        )


def _states(number: int) -> tuple[AgentState, AgentState]:
    """Return the state of an execution before and after a step; each has an agent, a name and a number of steps of its own."""
    now = ManualClock().now()
    state = AgentState.start("hello", agent_id=f"agent-{number}").with_execution_started(f"execution-{number}", now)
    states = [with_agent_name(state, "kit" * (number % 2))]
    for step in range(1, number + 2):
        states.append(states[-1].with_step(AgentStep(id=f"step-{step}", number=step, started_at=now, ended_at=now)))
    return states[-2], states[-1]


_STATES = tuple([_states(number) for number in range(4)])
_STATE = AgentState.start("hello")


def _subscribe(bus: CanHandleEvents, heard: _Heard) -> Subscription:
    kind = heard.plan.kind
    return bus.wiretap(heard.listener()) if kind is None else bus.on(kind, heard.listener())


def _require_head(head: EventHead, state: AgentState, step_number: int) -> None:
    expected = (state.agent_id, state.execution_id, state.parent_agent_id, step_number, state.agent_name)
    found = (head.agent_id, head.execution_id, head.parent_agent_id, head.step_number, head.agent_name)
    require(9, found == expected, f"the head of an event has {found}, and its state and step are {expected}")


def _require_heard(law: int, listeners: Sequence[_Heard], expected: Sequence[Sequence[int]], *, after: str) -> None:
    for each, numbers in zip(listeners, expected, strict=True):
        require(
            law,
            each.numbers == numbers,
            f"{after}: a listener should have the events {numbers}, and got {each.numbers}",
        )


async def _in_time(awaitable: object, law: int) -> None:
    """Await something of a bus.

    Raises:
        LawViolation: it raised an error, which is that of a listener, or did not end.
    """
    try:
        await asyncio.wait_for(awaitable, _PATIENCE)  # type: ignore[arg-type]
    except TimeoutError:
        require(law, condition=False, reason=f"the bus did not deliver within {_PATIENCE:.0f} s")
    except Exception as error:  # noqa: BLE001  # reported
        require(law, condition=False, reason=f"the bus raised {type(error).__name__}: {error}")
