"""Compilers at work: what a model was asked, and which epochs were told."""

from __future__ import annotations

from itertools import pairwise

import pytest

from agentloop import AgentLoop, AgentState, Message, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.compilers import SlidingWindow, TokenWindow, WholeConversation
from agentloop.compilers.retained import STUB
from agentloop.contracts import CanCompileMessages
from agentloop.events import ContextEpochBegan, InferenceRequestStarted
from agentloop.testing import CountingIds, ManualClock
from agentloop.values import Event, InferenceRequest

PAGE = "a page of text " * 30


@tool(effect="pure", supersedes="same arguments")
async def read(path: str) -> str:
    """Read a file."""
    return f"{path}: {PAGE}"


def driven(
    compiler: CanCompileMessages | None, steps: int, start: AgentState | str = "go"
) -> tuple[AgentState, list[InferenceRequest], list[Event]]:
    """Run so many steps with a call each, and an answer."""
    calls = [ToolCall(f"c{step}", "read", f'{{"path": "{"abc"[step % 3]}"}}') for step in range(steps)]
    inference = ScriptedInference(*calls, "done")
    loop = AgentLoop(
        ToolCallingDriver(inference),
        [read],
        compiler=compiler,
        max_steps=steps + 1,
        clock=ManualClock(),
        ids=CountingIds(),
    )
    told: list[Event] = []
    loop.wiretap(told.append)
    final = loop.execute_sync(start)
    final.raise_for_failure()
    return final, inference.requests, told


def breaks(requests: list[InferenceRequest]) -> int:
    """Count the requests that do not extend the one before."""
    return sum(later.messages[: len(one.messages)] != one.messages for one, later in pairwise(requests))


@pytest.mark.parametrize("compiler", [SlidingWindow(10), TokenWindow(1500), TokenWindow(900, keep=300)])
def test_each_break_is_told_and_between_breaks_requests_extend_each_other(compiler: CanCompileMessages) -> None:
    """A listener knows where the provider's cache was lost, why, and what is left out (law 13)."""
    final, requests, told = driven(compiler, 40)
    epochs = [event for event in told if isinstance(event, ContextEpochBegan)]
    assert 1 < len(epochs) < 20
    assert len(epochs) == breaks(requests)
    for event in epochs:
        follows = next(
            later for later in told if isinstance(later, InferenceRequestStarted) and later.sequence > event.sequence
        )
        assert len(follows.request.messages) == event.kept
        assert event.kept + event.dropped == follows.step_number
        assert event.reason
    assert len(final.messages) == 42


def test_the_state_keeps_what_the_model_is_not_shown() -> None:
    """Notices and dropped messages are the request's matter; the model always gets its question."""
    final, requests, _ = driven(TokenWindow(900), 20)
    assert all(request.messages[0] == Message.user("go") for request in requests)
    shown = [one.execution.text for request in requests for message in request.messages for one in message.exchanges]
    assert STUB in shown
    assert all(PAGE in execution.text for step in final.steps for execution in step.executions)


def test_without_a_bound_a_run_is_one_epoch() -> None:
    """The default and the whole conversation leave nothing out of a first execution, and nothing is told."""
    for compiler in (None, WholeConversation()):
        _, requests, told = driven(compiler, 12)
        assert breaks(requests) == 0
        assert not [event for event in told if isinstance(event, ContextEpochBegan)]


def test_another_execution_tells_what_is_left_out_of_it() -> None:
    """By default the tool trace of the first is not shown in the second; with the whole conversation it is."""
    first, _, _ = driven(None, 3)
    again = first.with_message("again")
    _, requests, told = driven(None, 2, again)
    (epoch,) = [event for event in told if isinstance(event, ContextEpochBegan)]
    assert (epoch.reason, epoch.dropped, epoch.kept) == ("another execution has begun", 3, 3)
    assert len(requests[0].messages) == 3
    _, requests, told = driven(WholeConversation(), 2, again)
    assert not [event for event in told if isinstance(event, ContextEpochBegan)]
    assert len(requests[0].messages) == 6


def test_listening_changes_nothing() -> None:
    """A run in which nobody hears of epochs ends in the same state (law 8)."""
    final, requests, _ = driven(SlidingWindow(6), 15)
    calls = [ToolCall(f"c{step}", "read", f'{{"path": "{"abc"[step % 3]}"}}') for step in range(15)]
    inference = ScriptedInference(*calls, "done")
    loop = AgentLoop(
        ToolCallingDriver(inference), [read], compiler=SlidingWindow(6), clock=ManualClock(), ids=CountingIds()
    )
    assert loop.execute_sync("go") == final
    assert inference.requests == requests
