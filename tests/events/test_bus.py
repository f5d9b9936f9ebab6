"""The event bus: order, isolation, and no event is built without listeners."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from functools import partial
from typing import Any

import pytest

import agentloop.events as event_module
from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolCallingDriver, ToolContext, tool
from agentloop.errors import InvalidParameter
from agentloop.events import (
    AgentExecutionCompleted,
    AgentExecutionStarted,
    AgentStepCompleted,
    AgentStepStarted,
    EventBus,
    InferenceRequestStarted,
    ToolCallCompleted,
    ToolCallProgressed,
)
from agentloop.events.bus import emit_soon
from agentloop.events.grammar import EXECUTION, INFERENCE, TOOL_CALL, event_classes
from agentloop.testing import Ledger, ManualClock, toy_call, toy_tools
from agentloop.values import AgentState, Event


def a_loop(events: EventBus | None = None) -> AgentLoop:
    script = ScriptedInference([toy_call("echo", 1), toy_call("echo", 2)], "done")
    return AgentLoop(ToolCallingDriver(script), toy_tools(Ledger()), events=events)


def test_listeners_are_called_in_the_order_of_their_subscription() -> None:
    """Plain listeners, of one class or of all, are called in the order in which they subscribed."""
    loop, received = a_loop(), list[str]()
    loop.on(AgentExecutionStarted, lambda _: received.append("first"))
    loop.wiretap(lambda event: received.append("second") if isinstance(event, AgentExecutionStarted) else None)
    loop.on(AgentExecutionStarted, lambda _: received.append("third"))
    loop.execute_sync("go")
    assert received == ["first", "second", "third"]


async def test_async_listeners_are_awaited_in_the_order_of_events() -> None:
    """A slow listener gets the events one after the other, and the execution ends after it has handled the last."""
    loop, received = a_loop(), list[tuple[str, int]]()

    async def slow(event: Event) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        received.append(("slow", event.sequence))

    loop.wiretap(slow)
    loop.wiretap(lambda event: received.append(("plain", event.sequence)))
    await loop.execute("go")
    sequences = [sequence for name, sequence in received if name == "slow"]
    assert sequences == sorted(sequences) == list(range(1, len(sequences) + 1))
    assert [one for one in received if one[1] == 3] == [("slow", 3), ("plain", 3)]


@pytest.mark.unmonitored  # a listener of all events is awaited at the last one
async def test_an_execution_waits_for_a_slow_listener_of_one_class() -> None:
    """Progress, which a tool does not await, is handled when the execution returns, also if nobody gets a later event."""

    @tool
    async def report(context: ToolContext) -> str:
        """Report progress."""
        context.progress("half done")
        return "done"

    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "report"), "done"), tools=[report])
    received = list[object]()

    async def slow(event: ToolCallProgressed) -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        received.append(event.update)

    loop.on(ToolCallProgressed, slow)
    await loop.execute("go")
    assert received == ["half done"]


def test_listeners_are_held_strongly() -> None:
    """A listener without other references is still called."""
    loop, received = a_loop(), list[str]()

    class Listener:
        def __call__(self, event: Event) -> None:
            received.append(type(event).__name__)

    loop.wiretap(Listener())
    gc.collect()
    loop.execute_sync("go")
    assert received[0] == "AgentExecutionStarted"


def test_a_cancelled_subscription_gets_no_more_events() -> None:
    """Cancelling ends a subscription, also twice, and no other."""
    loop, first, second = a_loop(), list[Event](), list[Event]()
    subscription = loop.wiretap(first.append)
    loop.wiretap(second.append)
    subscription.cancel()
    subscription.cancel()
    loop.execute_sync("go")
    assert not first
    assert second


async def test_an_error_of_a_listener_is_isolated(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged with its name; the run and the other listeners go on."""
    loop, received = a_loop(), list[Event]()

    def broken_listener(event: Event) -> None:
        raise ValueError("no")

    async def broken_coroutine(event: Event) -> None:
        raise ValueError("no either")

    loop.wiretap(broken_listener)
    loop.wiretap(broken_coroutine)
    loop.wiretap(received.append)
    state = await loop.execute("go")
    assert state.final_text == "done"
    assert isinstance(received[-1], AgentExecutionCompleted)
    assert {record.name for record in caplog.records} == {"agentloop.events"}
    assert any("broken_listener failed at AgentExecutionStarted" in record.message for record in caplog.records)
    assert any("broken_coroutine failed at" in record.message for record in caplog.records)


def test_a_strict_bus_raises_what_a_listener_raises() -> None:
    """With `strict`, the first error of a listener ends the run, after all others were called."""
    loop, received = a_loop(EventBus(strict=True)), list[Event]()

    def broken(event: Event) -> None:
        if isinstance(event, InferenceRequestStarted):
            raise ValueError("strictly no")  # noqa: TRY004  # any error will do

    loop.wiretap(broken)
    loop.on(InferenceRequestStarted, received.append)
    state = loop.execute_sync("go")
    assert (state.status.value, state.errors[-1].message) == ("failed", "strictly no")
    assert received


def test_a_plain_listener_that_returns_a_coroutine_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """A coroutine that is not awaited is logged as an error of the listener."""

    async def lost(event: Event) -> None:
        """Never awaited."""

    loop = a_loop()
    loop.on(AgentExecutionStarted, lambda event: lost(event))  # noqa: PLW0108  # the mistake under test
    with caplog.at_level(logging.ERROR), pytest.warns(RuntimeWarning, match="never awaited"):
        _executed_and_collected(loop)
    assert any("use async def" in str(record.exc_info) for record in caplog.records)


async def test_a_partial_of_a_coroutine_function_is_awaited() -> None:
    """A listener may be a partial or an object with an async call."""
    received: list[tuple[str, str]] = []

    async def note(label: str, event: Event) -> None:
        received.append((label, type(event).__name__))

    loop = a_loop()
    loop.on(AgentStepStarted, partial(note, "partial"))
    await loop.execute("go")
    assert received == [("partial", "AgentStepStarted")] * 2


KINDS = [
    kind
    for kind in [getattr(event_module, name) for name in dir(event_module)]
    if isinstance(kind, type) and issubclass(kind, Event)
]
BASES = [kind for kind in KINDS if vars(kind).get("is_base")]
EMITTED = event_classes(EXECUTION) | event_classes(INFERENCE) | event_classes(TOOL_CALL)


@pytest.mark.parametrize("kind", [Event, *BASES])
def test_nobody_listens_to_the_base_of_events(kind: type[Event]) -> None:
    """No event has exactly that class, so that the listener would never be called; the message names what to listen to."""
    loop = a_loop()
    below = kind.__subclasses__()[0].__name__
    with pytest.raises(InvalidParameter, match=rf"no event is only a {kind.__name__}, .*\b{below}\b.* by wiretap"):
        loop.on(kind, print)
    with pytest.raises(InvalidParameter, match="no event is only"):
        EventBus().on(kind, print)


def test_the_bases_of_events_are_marked() -> None:
    """Of the classes of the package, those that others inherit from are never emitted, and are bases."""
    inherited = {base for kind in KINDS for base in kind.__bases__ if base is not Event}
    assert inherited == {*BASES}
    assert inherited.isdisjoint(EMITTED)
    for kind in EMITTED:
        EventBus().on(kind, print).cancel()


def test_a_listener_must_be_callable() -> None:
    """A listener has to be a function."""
    with pytest.raises(TypeError, match="a listener is a function of one event"):
        a_loop().wiretap("not a function")  # type: ignore[arg-type]  # the mistake under test


def test_events_are_counted_whether_or_not_anybody_listens() -> None:
    """A listener of a single class sees gaps in the sequence, and the state is the same without it."""
    all_events, some = list[Event](), list[Event]()
    full, partly = a_loop(), a_loop()
    full.wiretap(all_events.append)
    partly.on(ToolCallCompleted, some.append)
    full.execute_sync("go")
    partly.execute_sync("go")
    expected = [event.sequence for event in all_events if isinstance(event, ToolCallCompleted)]
    assert [event.sequence for event in some] == expected


def test_an_event_without_listeners_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without listeners, no event head is created."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a head was built without listeners")

    monkeypatch.setattr("agentloop.events.bus.ExecutionBus.head", refuse)
    bus = EventBus()
    monkeypatch.setattr(bus, "for_execution", lambda: type(bus._stream)(bus))
    state = a_loop(bus).execute_sync("go")
    assert state.final_text == "done"


def test_event_times_come_from_a_clock_of_their_own() -> None:
    """Watching draws no time from the clock of the loop."""

    class Counting(ManualClock):
        readings = 0

        def now(self) -> Any:
            self.readings += 1
            return super().now()

    def readings(watched: bool) -> int:  # noqa: FBT001  # the two cases under test
        clock = Counting()
        loop = AgentLoop(ToolCallingDriver(ScriptedInference("done")), clock=clock)
        if watched:
            loop.wiretap(lambda _: None)
        loop.execute_sync("go")
        return clock.readings

    assert readings(watched=True) == readings(watched=False)


def test_events_carry_who_where_and_when() -> None:
    """Every event has agent, execution, step, sequence and time."""
    loop, received = a_loop(EventBus(clock=ManualClock())), list[Event]()
    loop.wiretap(received.append)
    state = loop.execute_sync(AgentState.start("go", agent_id="ada"))
    assert {event.agent_id for event in received} == {"ada"}
    assert {event.execution_id for event in received} == {state.execution_id}
    assert {event.parent_agent_id for event in received} == {None}
    assert {event.time for event in received} == {ManualClock().now()}
    assert [event.sequence for event in received] == list(range(1, len(received) + 1))
    assert [event.step_number for event in received if isinstance(event, AgentStepCompleted)] == [1, 2]


def test_code_that_speaks_blinker_can_connect() -> None:
    """The signal of a class calls blinker receivers too."""
    bus, received = EventBus(), list[object]()

    def receiver(sender: object, event: Event) -> None:
        received.append((sender is bus, type(event).__name__))

    bus.signal(AgentExecutionStarted).connect(receiver)
    a_loop(bus).execute_sync("go")
    assert received == [(True, "AgentExecutionStarted")]


async def test_two_executions_have_a_count_each() -> None:
    """Concurrent executions on one bus are each in order and complete."""
    loop, received = a_loop(), list[Event]()
    loop.wiretap(received.append)
    states = await asyncio.gather(loop.execute("one"), loop.execute("two"))
    for state in states:
        sequences = [event.sequence for event in received if event.execution_id == state.execution_id]
        assert sequences == list(range(1, len(sequences) + 1))


def _executed_and_collected(loop: AgentLoop) -> None:
    loop.execute_sync("go")
    gc.collect()


@pytest.mark.unmonitored
async def test_an_event_that_is_emitted_soon_costs_the_same_however_many_wait() -> None:
    """The tasks that deliver are kept without a look at all of them; those that have ended are not kept."""
    bus, proceed, seen = EventBus(), asyncio.Event(), list[int]()

    async def wait(event: Event) -> None:
        await proceed.wait()
        seen.append(event.sequence)

    bus.wiretap(wait)
    state, events = AgentState.start("go"), bus.for_execution()

    def emit_many() -> int:
        """Return how many functions are entered."""
        entered = 0

        def count(*_: object) -> None:
            nonlocal entered
            entered += 1

        sys.setprofile(count)
        try:
            for _ in range(300):
                emit_soon(events, AgentExecutionStarted, state, 0, None, resumed=False)
        finally:
            sys.setprofile(None)
        return entered

    first, second = emit_many(), emit_many()
    assert second <= first * 1.1
    proceed.set()
    await events.drain()
    assert seen == list(range(1, 601))


@pytest.mark.unmonitored
async def test_the_error_of_an_event_that_is_emitted_soon_is_raised_later() -> None:
    """A strict bus raises it from `drain`, once."""

    async def fails(event: Event) -> None:
        raise KeyError(event.sequence)

    bus = EventBus(strict=True)
    bus.wiretap(fails)
    events = bus.for_execution()
    emit_soon(events, AgentExecutionStarted, AgentState.start("go"), 0, None, resumed=False)
    await asyncio.sleep(0.01)
    with pytest.raises(KeyError):
        await events.drain()
    await events.drain()
