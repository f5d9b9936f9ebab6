"""Compilers in a loop: the requests that a model receives, and the events of epochs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from agentloop import AgentLoop, AgentState, Message, ScriptedInference, Tool, ToolCall, ToolCallingDriver, tool
from agentloop.compilers import ConversationWithCurrentToolTrace, SlidingWindow, TokenWindow, WholeConversation
from agentloop.compilers.stale import STUB
from agentloop.contracts import CanCompileMessages
from agentloop.events import ContextEpochBegan, InferenceRequestStarted
from agentloop.testing import CountingIds, ManualClock
from agentloop.values import Event, InferenceRequest

PAGE = "a page of text " * 30


@tool(effect="pure")
async def read(path: str) -> str:
    """Read a file."""
    return f"{path}: {PAGE}"


@tool(name="read", effect="pure", supersedes="same arguments")
async def reread(path: str) -> str:
    """Read a file."""
    return f"{path}: {PAGE}"


def run_steps(
    compiler: CanCompileMessages | None, steps: int, start: AgentState | str = "go", *, reader: Tool = read
) -> tuple[AgentState, list[InferenceRequest], list[Event]]:
    """Run so many steps with one call each, and a final answer."""
    calls = [ToolCall(f"c{step}", "read", f'{{"path": "{"abc"[step % 3]}"}}') for step in range(steps)]
    inference = ScriptedInference(*calls, "done")
    loop = AgentLoop(
        ToolCallingDriver(inference),
        [reader],
        compiler=compiler,
        max_steps=steps + 1,
        clock=ManualClock(),
        ids=CountingIds(),
    )
    events: list[Event] = []
    loop.wiretap(events.append)
    final = loop.execute_sync(start)
    final.raise_for_status()
    return final, inference.requests, events


def count_breaks(requests: list[InferenceRequest]) -> int:
    """Count the requests that do not extend the previous one."""
    return sum(later.messages[: len(earlier.messages)] != earlier.messages for earlier, later in pairwise(requests))


@pytest.mark.parametrize("compiler", [SlidingWindow(10), TokenWindow(1500), TokenWindow(900, keep=300)])
def test_each_break_is_an_event_and_between_breaks_requests_extend_each_other(compiler: CanCompileMessages) -> None:
    """An event reports each request that the provider's cache does not serve, why, and what is left out (law 13)."""
    final, requests, events = run_steps(compiler, 40)
    epochs = [event for event in events if isinstance(event, ContextEpochBegan)]
    assert 1 < len(epochs) < 20
    assert len(epochs) == count_breaks(requests)
    for event in epochs:
        request_started = next(
            later for later in events if isinstance(later, InferenceRequestStarted) and later.sequence > event.sequence
        )
        assert len(request_started.request.messages) == event.kept
        assert event.kept + event.dropped == request_started.step_number
        assert event.reason
    assert len(final.messages) == 42


@pytest.mark.parametrize("compiler", [None, WholeConversation(), SlidingWindow(30), TokenWindow(1500)])
def test_each_request_after_a_newer_result_has_a_notice_for_the_older_one(compiler: CanCompileMessages | None) -> None:
    """No request shows two results of the same call; each epoch is an event, and requests extend each other in between."""
    _, requests, events = run_steps(compiler, 20, reader=reread)
    for request in requests:
        texts = [exchange.execution.text for message in request.messages for exchange in message.exchanges]
        fresh = [text for text in texts if text != STUB]
        assert len(fresh) == len(set(fresh)) == min(len(texts), 3)
    epochs = [event for event in events if isinstance(event, ContextEpochBegan)]
    assert len(epochs) == count_breaks(requests) == 17
    assert [event.superseded for event in epochs] == [*range(1, 18)]


def test_the_state_keeps_what_the_model_does_not_see() -> None:
    """Notices and dropped messages concern requests only; every request begins with the question."""
    final, requests, _ = run_steps(TokenWindow(900), 20, reader=reread)
    assert all(request.messages[0] == Message.user("go") for request in requests)
    exchanges = [exchange for request in requests for message in request.messages for exchange in message.exchanges]
    assert STUB in [exchange.execution.text for exchange in exchanges]
    assert all(PAGE in execution.text for step in final.steps for execution in step.executions)


def test_without_a_window_a_run_is_one_epoch() -> None:
    """The default compiler and `WholeConversation` leave nothing out of a first execution, and there is no event."""
    for compiler in (None, WholeConversation()):
        _, requests, events = run_steps(compiler, 12)
        assert count_breaks(requests) == 0
        assert not [event for event in events if isinstance(event, ContextEpochBegan)]


def test_the_event_of_another_execution_counts_what_is_left_out() -> None:
    """By default the second execution shows the tool trace of the first; `ConversationWithCurrentToolTrace` does not."""
    first, _, _ = run_steps(None, 3)
    second = first.with_message("again")
    _, requests, events = run_steps(ConversationWithCurrentToolTrace(), 2, second)
    (epoch,) = [event for event in events if isinstance(event, ContextEpochBegan)]
    assert (epoch.reason, epoch.dropped, epoch.kept) == ("another execution has begun", 3, 3)
    assert len(requests[0].messages) == 3
    _, requests, events = run_steps(None, 2, second)
    assert not [event for event in events if isinstance(event, ContextEpochBegan)]
    assert len(requests[0].messages) == 6


def test_listening_changes_nothing() -> None:
    """A run without listeners ends in the same state (law 8)."""
    final, requests, _ = run_steps(SlidingWindow(6), 15)
    calls = [ToolCall(f"c{step}", "read", f'{{"path": "{"abc"[step % 3]}"}}') for step in range(15)]
    inference = ScriptedInference(*calls, "done")
    loop = AgentLoop(
        ToolCallingDriver(inference), [read], compiler=SlidingWindow(6), clock=ManualClock(), ids=CountingIds()
    )
    assert loop.execute_sync("go") == final
    assert inference.requests == requests
