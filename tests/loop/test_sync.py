"""Loops that are run from programs without an event loop."""

from __future__ import annotations

import pytest

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCallingDriver
from agentloop.testing import Ledger, toy_call, toy_tools


def loop_with_steps(steps: int) -> AgentLoop:
    """Return a loop that takes this many steps."""
    lines = [toy_call("echo", number) for number in range(steps - 1)]
    return AgentLoop(ToolCallingDriver(ScriptedInference(*lines, "done")), toy_tools(Ledger()))


def test_no_repr_of_a_state_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio makes a repr of its runner's task and of the task's result, so no task has a state as its result."""
    reprs: list[AgentState] = []

    def record_repr(state: AgentState) -> str:
        reprs.append(state)
        return "a state"

    monkeypatch.setattr(AgentState, "__repr__", record_repr)
    assert loop_with_steps(3).execute_sync("go").final_text == "done"
    assert [state.step_count for state in loop_with_steps(3).iterate_sync("go")] == [1, 2, 3, 3]
    assert reprs == []


def test_errors_are_raised_unchanged() -> None:
    """Errors leave the event loop unchanged, and the loop can be used again."""
    loop = loop_with_steps(1)
    for _ in range(2):
        with pytest.raises(TypeError, match="not int"):
            loop.execute_sync(3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not int"):
            list(loop.iterate_sync(3))  # type: ignore[arg-type]
    assert loop.execute_sync("go").final_text == "done"
