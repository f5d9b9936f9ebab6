"""The event bus: order, isolation, and nothing built for nobody."""

from __future__ import annotations

import asyncio
import gc
import logging
from functools import partial
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCallingDriver
from agentloop.events import (
    AgentExecutionCompleted,
    AgentExecutionStarted,
    AgentStepCompleted,
    AgentStepStarted,
    EventBus,
    InferenceRequestStarted,
    ToolCallCompleted,
)
from agentloop.testing import Ledger, ManualClock, toy_call, toy_tools
from agentloop.values import AgentState, Event


def a_loop(events: EventBus | None = None) -> AgentLoop:
    script = ScriptedInference([toy_call("echo", 1), toy_call("echo", 2)], "done")
    return AgentLoop(ToolCallingDriver(script), toy_tools(Ledger()), events=events)


def test_listeners_are_told_in_the_order_of_their_subscription() -> None:
    """Plain listeners, of one class or of all, are called in the order in which they subscribed."""
    loop, told = a_loop(), list[str]()
    loop.on(AgentExecutionStarted, lambda _: told.append("first"))
    loop.wiretap(lambda event: told.append("second") if isinstance(event, AgentExecutionStarted) else None)
    loop.on(AgentExecutionStarted, lambda _: told.append("third"))
    loop.execute_sync("go")
    assert told == ["first", "second", "third"]


async def test_async_listeners_are_awaited_in_the_order_of_events() -> None:
    """A slow listener gets one event after the other, and the execution ends when it has taken the last."""
    loop, told = a_loop(), list[tuple[str, int]]()

    async def slow(event: Event) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        told.append(("slow", event.sequence))

    loop.wiretap(slow)
    loop.wiretap(lambda event: told.append(("plain", event.sequence)))
    await loop.execute("go")
    sequences = [sequence for name, sequence in told if name == "slow"]
    assert sequences == sorted(sequences) == list(range(1, len(sequences) + 1))
    assert [one for one in told if one[1] == 3] == [("slow", 3), ("plain", 3)]


def test_listeners_are_held_strongly() -> None:
    """A listener that nobody else refers to goes on listening."""
    loop, told = a_loop(), list[str]()

    class Listener:
        def __call__(self, event: Event) -> None:
            told.append(type(event).__name__)

    loop.wiretap(Listener())
    gc.collect()
    loop.execute_sync("go")
    assert told[0] == "AgentExecutionStarted"


def test_a_cancelled_subscription_is_told_nothing_more() -> None:
    """Cancelling ends a subscription, also twice, and no other."""
    loop, first, second = a_loop(), list[Event](), list[Event]()
    subscription = loop.wiretap(first.append)
    loop.wiretap(second.append)
    subscription.cancel()
    subscription.cancel()
    loop.execute_sync("go")
    assert not first
    assert second


async def test_a_listener_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged with its name; the run and the other listeners go on."""
    loop, told = a_loop(), list[Event]()

    def broken_listener(event: Event) -> None:
        raise ValueError("no")

    async def broken_coroutine(event: Event) -> None:
        raise ValueError("no either")

    loop.wiretap(broken_listener)
    loop.wiretap(broken_coroutine)
    loop.wiretap(told.append)
    state = await loop.execute("go")
    assert state.final_text == "done"
    assert isinstance(told[-1], AgentExecutionCompleted)
    assert {record.name for record in caplog.records} == {"agentloop.events"}
    assert any("broken_listener failed at AgentExecutionStarted" in record.message for record in caplog.records)
    assert any("broken_coroutine failed at" in record.message for record in caplog.records)


def test_a_strict_bus_raises_what_a_listener_raises() -> None:
    """For tests, the first error of a listener ends the run, after all others were told."""
    loop, told = a_loop(EventBus(strict=True)), list[Event]()

    def broken(event: Event) -> None:
        if isinstance(event, InferenceRequestStarted):
            raise ValueError("strictly no")  # noqa: TRY004  # any error will do

    loop.wiretap(broken)
    loop.on(InferenceRequestStarted, told.append)
    state = loop.execute_sync("go")
    assert (state.status.value, state.errors[-1].message) == ("failed", "strictly no")
    assert told


def test_a_plain_listener_that_returns_a_coroutine_is_told_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is lost in silence: a coroutine that nobody awaits is an error of the listener."""

    async def lost(event: Event) -> None:
        """Never awaited."""

    loop = a_loop()
    loop.on(AgentExecutionStarted, lambda event: lost(event))  # noqa: PLW0108  # the mistake under test
    with caplog.at_level(logging.ERROR), pytest.warns(RuntimeWarning, match="never awaited"):
        _executed_and_collected(loop)
    assert any("use async def" in str(record.exc_info) for record in caplog.records)


async def test_a_partial_of_a_coroutine_function_is_awaited() -> None:
    """A listener may be a partial or an object with an async call."""
    told: list[tuple[str, str]] = []

    async def note(label: str, event: Event) -> None:
        told.append((label, type(event).__name__))

    loop = a_loop()
    loop.on(AgentStepStarted, partial(note, "partial"))
    await loop.execute("go")
    assert told == [("partial", "AgentStepStarted")] * 2


def test_what_cannot_listen_is_refused() -> None:
    """A listener has to be a function."""
    with pytest.raises(TypeError, match="a listener is a function of one event"):
        a_loop().wiretap("not a function")  # type: ignore[arg-type]  # the mistake under test


def test_events_are_counted_whether_or_not_anybody_listens() -> None:
    """A listener of one class sees the gaps that the others leave, and the state is the same without it."""
    all_events, some = list[Event](), list[Event]()
    full, partly = a_loop(), a_loop()
    full.wiretap(all_events.append)
    partly.on(ToolCallCompleted, some.append)
    full.execute_sync("go")
    partly.execute_sync("go")
    expected = [event.sequence for event in all_events if isinstance(event, ToolCallCompleted)]
    assert [event.sequence for event in some] == expected


def test_an_event_nobody_listens_for_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without listeners, heads are not even made."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a head was made for nobody")

    monkeypatch.setattr("agentloop.events.bus.ExecutionBus.head", refuse)
    bus = EventBus()
    monkeypatch.setattr(bus, "for_execution", lambda: type(bus._stream)(bus))
    state = a_loop(bus).execute_sync("go")
    assert state.final_text == "done"


def test_event_times_come_from_a_clock_of_their_own() -> None:
    """Watching draws no time from the clock of the loop."""

    class Counting(ManualClock):
        asked = 0

        def now(self) -> Any:
            self.asked += 1
            return super().now()

    def asked(watched: bool) -> int:  # noqa: FBT001  # the two cases under test
        clock = Counting()
        loop = AgentLoop(ToolCallingDriver(ScriptedInference("done")), clock=clock)
        if watched:
            loop.wiretap(lambda _: None)
        loop.execute_sync("go")
        return clock.asked

    assert asked(watched=True) == asked(watched=False)


def test_events_carry_who_where_and_when() -> None:
    """Agent, execution, step, sequence and time stand in every event."""
    loop, told = a_loop(EventBus(clock=ManualClock())), list[Event]()
    loop.wiretap(told.append)
    state = loop.execute_sync(AgentState.start("go", agent_id="ada"))
    assert {event.agent_id for event in told} == {"ada"}
    assert {event.execution_id for event in told} == {state.execution_id}
    assert {event.parent_agent_id for event in told} == {None}
    assert {event.time for event in told} == {ManualClock().now()}
    assert [event.sequence for event in told] == list(range(1, len(told) + 1))
    assert [event.step_number for event in told if isinstance(event, AgentStepCompleted)] == [1, 2]


def test_code_that_speaks_blinker_can_connect() -> None:
    """The signal of a class calls blinker receivers too."""
    bus, told = EventBus(), list[object]()

    def receiver(sender: object, event: Event) -> None:
        told.append((sender is bus, type(event).__name__))

    bus.signal(AgentExecutionStarted).connect(receiver)
    a_loop(bus).execute_sync("go")
    assert told == [(True, "AgentExecutionStarted")]


async def test_two_executions_have_a_count_each() -> None:
    """Concurrent executions on one bus are each in order and complete."""
    loop, told = a_loop(), list[Event]()
    loop.wiretap(told.append)
    states = await asyncio.gather(loop.execute("one"), loop.execute("two"))
    for state in states:
        own = [event.sequence for event in told if event.execution_id == state.execution_id]
        assert own == list(range(1, len(own) + 1))


def _executed_and_collected(loop: AgentLoop) -> None:
    loop.execute_sync("go")
    gc.collect()
