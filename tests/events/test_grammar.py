"""The grammar of events and its monitor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolCallingDriver, ToolCallLimit, tool
from agentloop.errors import ContractViolation
from agentloop.events import (
    AbandonedToolCallEnded,
    AgentExecutionStarted,
    AgentStepStarted,
    ProtocolMonitor,
    ToolCallCompleted,
)
from agentloop.events.grammar import EXECUTION, INFERENCE, TOOL_CALL
from agentloop.interception import RequireApproval
from agentloop.testing import Ledger, Scenario, ScriptedTurn, run_in_virtual_time, toy_call, toy_tools
from agentloop.testing.scenario import SCENARIOS
from agentloop.values import Event, approve


def events_of(scenario: Scenario) -> list[Event]:
    received: list[Event] = []
    loop = AgentLoop(ToolCallingDriver(scenario.inference()), toy_tools(Ledger()), interceptors=[ToolCallLimit(5)])
    loop.wiretap(received.append)
    run_in_virtual_time(loop.execute("go"))
    return received


def violations(events: list[Event]) -> list[str]:
    monitor = ProtocolMonitor()
    for event in events:
        monitor(event)
    return [*monitor.violations, *monitor.unfinished]


def renumber(events: list[Event]) -> list[Event]:
    """Renumber the events, so that only the grammar can detect a change."""
    return [evolve(event, head=evolve(event.head, sequence=number)) for number, event in enumerate(events, 1)]


@given(SCENARIOS)
def test_real_runs_are_accepted(scenario: Scenario) -> None:
    """Every real run satisfies the grammar."""
    assert not violations(events_of(scenario))


@given(SCENARIOS, st.data())
def test_a_lost_doubled_or_swapped_event_is_detected(scenario: Scenario, data: st.DataObject) -> None:
    """The monitor reports any single event that is lost, doubled or swapped with the next."""
    events = events_of(scenario)
    place = data.draw(st.integers(0, len(events) - 2))
    lost = events[:place] + events[place + 1 :]
    doubled = [*events[: place + 1], *events[place:]]
    swapped = [*events[:place], events[place + 1], events[place], *events[place + 2 :]]
    assert violations(lost) or place == 0
    assert violations(doubled)
    assert violations(swapped)


BREAKING: list[tuple[str, Callable[[list[Event]], list[Event]]]] = [
    ("no terminal event", lambda events: events[:-1]),
    ("two terminal events", lambda events: [*events, events[-1]]),
    ("no beginning", lambda events: events[1:]),
    (
        "a step started twice",
        lambda events: [e for e in events for _ in range(2 if isinstance(e, AgentStepStarted) else 1)],
    ),
    ("an outcome lost", lambda events: [e for e in events if not isinstance(e, ToolCallCompleted)]),
]


@pytest.mark.parametrize(("what", "spoil"), BREAKING)
def test_the_grammar_itself_detects_violations(what: str, spoil: Callable[[list[Event]], list[Event]]) -> None:
    """Without the help of sequence numbers, the order of events alone gives a broken run away."""
    scenario = Scenario(turns=(ScriptedTurn(calls=(toy_call("echo", 1), toy_call("fail", 2))), ScriptedTurn("done")))
    assert violations(renumber(spoil(events_of(scenario)))), what


def test_a_run_left_early_is_whole_between_steps() -> None:
    """A run that was left after a step has no terminal event, and nothing of it is open."""
    received: list[Event] = []
    scenario = Scenario(turns=(ScriptedTurn(calls=(toy_call("echo", 1),)), ScriptedTurn("done")))
    loop = AgentLoop(ToolCallingDriver(scenario.inference()), toy_tools(Ledger()))
    loop.wiretap(received.append)

    async def leave() -> None:
        states = loop.iterate("go")
        await anext(states)
        await states.aclose()

    run_in_virtual_time(leave())
    monitor = ProtocolMonitor()
    for event in received:
        monitor(event)
    monitor.check()
    assert len(monitor.unfinished) == 1


@pytest.mark.parametrize("times", [1, 2])
def test_a_tool_that_an_earlier_run_left_behind_may_end_in_a_later_one(times: int) -> None:
    """The events of a run that was suspended go on while the execution is resumed, with the numbers of that run."""

    @tool(effect="pure", timeout=1)
    async def stubborn(seconds: int) -> None:
        """Ignore the timeout."""
        end = asyncio.get_running_loop().time() + seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(left)

    @tool
    async def pay() -> None:
        """Take some time."""
        await asyncio.sleep(100)

    calls = [
        *[ToolCall("", "stubborn", f'{{"seconds": {50 + number}}}') for number in range(times)],
        ToolCall("", "pay"),
    ]
    driver = ToolCallingDriver(ScriptedInference(calls, "done"))
    loop = AgentLoop(driver, [stubborn, pay], interceptors=[RequireApproval()])
    monitor, events = ProtocolMonitor(), list[Event]()
    loop.wiretap(monitor)
    loop.wiretap(events.append)

    async def run() -> None:
        state = await loop.execute("go")
        (pending,) = state.pending
        await loop.resume(state, {pending.key: approve()})

    run_in_virtual_time(run())
    late = [index for index, event in enumerate(events) if isinstance(event, AbandonedToolCallEnded)]
    resumed = next(i for i, event in enumerate(events) if isinstance(event, AgentExecutionStarted) and event.resumed)
    assert len(late) == times
    assert min(late) > resumed
    monitor.check()


def test_check_lists_the_violations() -> None:
    """The error names the event, its number and the legal events."""
    monitor = ProtocolMonitor(violations=["ToolCallStarted (#3 of run): it came 'over'"])
    with pytest.raises(ContractViolation, match=r"law 7\): ToolCallStarted \(#3 of run\)"):
        monitor.check()


def test_every_state_of_the_tables_can_be_reached() -> None:
    """No row of the grammar is dead."""
    for table in (EXECUTION, INFERENCE, TOOL_CALL):
        reached = {next(iter(table))}
        for _ in table:
            reached |= {following for state in reached for following in table[state].values()}
        assert reached == set(table)
