"""Two buses as one: every listener receives each event once, in order."""

from __future__ import annotations

import asyncio

import pytest

from agentloop import AgentLoop, ScenarioStep, ScriptedDriver, ToolContext, tool
from agentloop.events import AgentExecutionStarted, EventBus, ToolCallProgressed
from agentloop.events.bus import JoinedBus, join_buses
from agentloop.values import AgentState, DerivedIds, Event

STATE = AgentState.start("go")


def started_event(bus: JoinedBus) -> AgentExecutionStarted:
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


def test_a_bus_that_is_reached_already_is_not_joined_again() -> None:
    """No listener gets an event twice, however the buses are nested."""
    outer, middle, inner = EventBus(), EventBus(), EventBus()
    assert join_buses(outer, outer) is outer
    execution = outer.for_execution()
    assert join_buses(execution, outer) is execution
    both = join_buses(execution, middle)
    assert isinstance(both, JoinedBus)
    assert join_buses(both.for_execution(), middle) is not both
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
