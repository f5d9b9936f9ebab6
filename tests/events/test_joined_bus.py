"""Two buses as one: every listener receives each event once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, ScriptedDriver, ToolContext, tool
from agentloop.contracts.can_handle_events import CanHandleEvents, CanProvideContext, E, Listener, Subscription
from agentloop.drivers import ScenarioStep
from agentloop.errors import InvalidParameter
from agentloop.events import AgentExecutionStarted, EventBus, ToolCallProgressed, ToolCallSettled
from agentloop.events.bus import JoinedBus, emit, emit_soon, join_buses
from agentloop.values import AgentState, Event
from agentloop.values.event import EventHead, Operation
from agentloop.values.time_and_ids import DerivedIds

STATE = AgentState.start("go")


def started_event(bus: CanHandleEvents) -> AgentExecutionStarted:
    """Return the event that was counted last."""
    return AgentExecutionStarted(bus.head(STATE), None, False)  # noqa: FBT003  # whether it is resumed


@pytest.mark.unmonitored
async def test_listeners_of_both_are_called_in_order_and_once() -> None:
    """Plain and async listeners of both buses get the same events with the same sequence."""
    first, second = EventBus(), EventBus()
    received: list[tuple[str, int]] = []

    async def slowly(event: Event) -> None:
        await asyncio.sleep(0)
        received.append(("second", event.sequence))

    first.wiretap(lambda event: received.append(("first", event.sequence)))
    second.on(AgentExecutionStarted, slowly)
    bus = JoinedBus(first, second).for_execution()
    for _ in range(3):
        assert bus.due(AgentExecutionStarted)
        await bus.emit(started_event(bus))
    assert received == [(name, number) for number in (1, 2, 3) for name in ("first", "second")]


@pytest.mark.unmonitored
@pytest.mark.parametrize("listening", ["first", "second", "none"])
async def test_an_event_is_due_when_anybody_listens(listening: str) -> None:
    """Both buses count with and without listeners, so that observation changes nothing."""
    first, second = EventBus(), EventBus()
    bus = JoinedBus(first, second).for_execution()
    bus.due(AgentExecutionStarted)
    seen: list[int] = []
    for name, joined_bus in (("first", first), ("second", second)):
        if name == listening:
            joined_bus.wiretap(lambda event: seen.append(event.sequence))
    due = bus.due(AgentExecutionStarted)
    assert due is (listening != "none")
    if due:
        await bus.emit(started_event(bus))
        assert seen == [2]


@pytest.mark.unmonitored
@given(
    listening=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([None, 0, 1, 3])), min_size=1, max_size=5),
    emissions=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=12),
)
def test_each_listener_gets_the_events_in_their_order(
    listening: list[tuple[int, int | None]], emissions: list[tuple[bool, int]]
) -> None:
    """Plain and async listeners of nested joined buses get all events in the order of their sequence, also when some are
    emitted while others are handled, and by code that does not wait.
    """
    buses = [EventBus(), EventBus(), EventBus()]
    received: list[list[int]] = [[] for _ in listening]

    def listen(bus: EventBus, turns: int | None, seen: list[int]) -> None:
        async def slowly(event: Event) -> None:
            for _ in range(turns or 0):
                await asyncio.sleep(0)
            seen.append(event.sequence)

        bus.wiretap((lambda event: seen.append(event.sequence)) if turns is None else slowly)

    for (place, turns), seen in zip(listening, received, strict=True):
        listen(buses[place], turns, seen)

    async def run() -> None:
        outer = JoinedBus(buses[0].for_execution(), buses[1]).for_execution()
        bus = JoinedBus(outer, buses[2]).for_execution()
        tasks: list[asyncio.Future[None]] = []
        for waits, turns in emissions:
            if waits:
                tasks.append(asyncio.ensure_future(emit(bus, AgentExecutionStarted, STATE, None, resumed=False)))
            else:
                emit_soon(bus, AgentExecutionStarted, STATE, 0, None, resumed=False)
            for _ in range(turns):
                await asyncio.sleep(0)
        for task in tasks:
            await task
        await bus.drain()

    asyncio.run(run())
    expected = list(range(1, len(emissions) + 1))
    assert received == [expected] * len(listening)


@pytest.mark.unmonitored
@pytest.mark.parametrize("is_async", [True, False])
async def test_an_error_at_one_bus_hides_no_event_from_the_other(*, is_async: bool) -> None:
    """A strict bus raises the error of its listener when the listeners of both buses were called."""
    first, second, seen = EventBus(strict=True), EventBus(), list[int]()

    def fails(event: Event) -> None:
        raise KeyError(event.sequence)

    async def fails_later(event: Event) -> None:
        await asyncio.sleep(0)
        fails(event)

    first.wiretap(fails_later if is_async else fails)
    second.wiretap(lambda event: seen.append(event.sequence))
    bus = JoinedBus(first, second).for_execution()
    with pytest.raises(KeyError):
        await emit(bus, AgentExecutionStarted, STATE, None, resumed=False)
    assert seen == [1]


class Counting(CanHandleEvents):
    """A bus of another class: it counts what it gets."""

    def __init__(self) -> None:
        self.counted, self.seen = 0, list[int]()

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        raise NotImplementedError

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        raise NotImplementedError

    def for_execution(self) -> Counting:
        return self

    def due(self, kind: type[Event]) -> bool:
        self.counted += 1
        return True

    def head(self, state: AgentState, *, step_number: int | None = None) -> EventHead:
        raise NotImplementedError

    async def emit(self, event: Event) -> None:
        self.seen.append(event.sequence)

    def emit_soon(self, event: Event) -> None:
        self.seen.append(event.sequence)

    async def drain(self) -> None:
        pass


@pytest.mark.unmonitored
async def test_a_bus_of_another_class_gets_every_event() -> None:
    """It counts the events itself, and decides itself in which order it delivers them."""
    first, second, seen = EventBus(), Counting(), list[int]()
    first.wiretap(lambda event: seen.append(event.sequence))
    bus = JoinedBus(first, second).for_execution()
    await emit(bus, AgentExecutionStarted, STATE, None, resumed=False)
    emit_soon(bus, AgentExecutionStarted, STATE, 0, None, resumed=False)
    await bus.drain()
    assert seen == second.seen == [1, 2]
    assert second.counted == 2


@pytest.mark.parametrize("kind", [Event, ToolCallSettled, int])
def test_a_loop_with_a_bus_of_another_class_refuses_what_no_event_is_exactly(kind: type[Any]) -> None:
    """The loop itself checks the class of events, before it asks its bus, which may accept any."""
    loop = AgentLoop(ScriptedDriver(), events=Counting())
    with pytest.raises(InvalidParameter, match=r"no event is only a|takes a class of events"):
        loop.on(kind, print)


async def test_events_of_an_agent_keep_their_order_while_a_listener_of_its_caller_is_slow() -> None:
    """Progress that is reported meanwhile overtakes nothing, for the listeners of the agent, and for those of its caller."""

    @tool(effect="pure")
    async def quick() -> str:
        """End first."""
        await asyncio.sleep(0)
        return "quick"

    @tool(effect="pure")
    async def report(context: ToolContext) -> str:
        """Report progress all the time."""
        for number in range(20):
            context.progress(number)
            await asyncio.sleep(0)
        return "reported"

    calls = ScenarioStep.tool_calls(("quick", {}), ("report", {}))
    child = AgentLoop(ScriptedDriver(calls, ScenarioStep.final("x")), [quick, report])
    script = (ScenarioStep.tool_call("ask", {"task": "t"}), ScenarioStep.final("y"))
    parent = AgentLoop(ScriptedDriver(*script), [child.as_tool("ask", "Asks.")])
    at_child, at_parent = list[int](), list[int]()

    async def slowly(event: Event) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        if event.parent_agent_id is not None:
            at_parent.append(event.sequence)

    parent.wiretap(slowly)
    child.wiretap(lambda event: at_child.append(event.sequence))
    await parent.execute("go")
    assert at_child == at_parent == list(range(1, len(at_child) + 1))


def test_a_bus_that_is_reached_already_is_not_joined_again() -> None:
    """No listener gets an event twice, however the buses are nested."""
    outer, middle, inner = EventBus(), EventBus(), EventBus()
    assert join_buses(outer, outer) is outer
    execution = outer.for_execution()
    assert join_buses(execution, outer) is execution
    both = join_buses(execution, middle)
    assert isinstance(both, JoinedBus)
    joined = both.for_execution()
    assert join_buses(joined, middle) is joined
    assert join_buses(joined, outer) is joined
    assert isinstance(join_buses(joined, inner), JoinedBus)
    assert not isinstance(join_buses(both, inner), EventBus)
    assert join_buses(both, middle) is both
    assert join_buses(both, outer) is both


async def test_progress_of_an_agents_tool_reaches_both_loops() -> None:
    """Events of `emit_soon` reach both buses before the execution continues."""

    @tool
    async def work(context: ToolContext) -> str:
        """Work."""
        for part in range(3):
            context.progress(part)
        return "done"

    child = AgentLoop(ScriptedDriver(ScenarioStep.tool_call("work"), ScenarioStep.final("done")), [work])
    script = (ScenarioStep.tool_call("ask", {"task": "x"}), ScenarioStep.final("over"))
    loop = AgentLoop(ScriptedDriver(*script), [child.as_tool("ask", "Works.")])
    received: list[tuple[str, object]] = []

    async def at_parent(event: ToolCallProgressed) -> None:
        received.append(("parent", event.update))

    loop.on(ToolCallProgressed, at_parent)
    child.on(ToolCallProgressed, lambda event: received.append(("child", event.update)))
    await loop.execute("go")
    for name in ("parent", "child"):
        assert [update for who, update in received if who == name] == [0, 1, 2]


def test_derived_ids_are_those_of_their_origin_in_any_order() -> None:
    """Sources of different origin never create the same id, and a new source of the same origin creates the same ids."""
    first, second = DerivedIds("a"), DerivedIds("b")
    drawn = [first.new_id("step"), second.new_id("step"), first.new_id("step"), first.new_id("agent")]
    assert drawn == ["a/step_1", "b/step_1", "a/step_2", "a/agent_1"]
    assert DerivedIds("a").new_id("step") == "a/step_1"


class Known(CanProvideContext):
    """Has nothing current."""

    def enter(self, operation: Operation) -> AbstractContextManager[None]:
        return nullcontext()

    def end(self, operation: Operation) -> None: ...

    def carrier(self) -> Mapping[str, str]:
        return {}


def test_providers_that_come_later_are_seen_in_running_executions() -> None:
    """The bus of an execution has the providers that its buses have now, each once, and not those that they had at its start."""
    first, second, both, own = EventBus(), EventBus(), Known(), Known()
    joined = first.for_execution().joined_with(second.for_execution())
    alone = first.for_execution()
    assert (list(joined.providers), list(alone.providers)) == ([], [])
    first.provide(both)
    second.provide(both)
    subscription = second.provide(own)
    assert (list(joined.providers), list(alone.providers)) == ([both, own], [both])
    assert joined.providers[1:] == [own]
    subscription.cancel()
    assert list(joined.providers) == [both]


@pytest.mark.parametrize("carries_first", [True, False])
def test_a_bus_that_carries_no_contexts_hides_no_provider_of_the_other(*, carries_first: bool) -> None:
    """A provider is that of the bus that can have one, and is entered until its subscription ends."""
    carrying, other, provider = EventBus(), Counting(), Known()
    bus = JoinedBus(carrying, other) if carries_first else JoinedBus(other, carrying)
    assert list(bus.providers) == []
    subscription = bus.provide(provider)
    assert list(bus.providers) == list(carrying.providers) == [provider]
    subscription.cancel()
    assert list(bus.providers) == []
    with pytest.raises(InvalidParameter):
        JoinedBus(Counting(), Counting()).provide(provider)
