"""Loops run from programs that have no event loop."""

from __future__ import annotations

import pytest

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCallingDriver
from agentloop.testing import Ledger, call, toys


def loop_of(steps: int) -> AgentLoop:
    """Make a loop of so many steps."""
    lines = [call("echo", number) for number in range(steps - 1)]
    return AgentLoop(ToolCallingDriver(ScriptedInference(*lines, "done")), toys(Ledger()))


def test_no_state_is_written_out_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop's runner shows its tasks to itself, with their results: a repr as long as the conversation, per step."""
    shown: list[AgentState] = []

    def told(state: AgentState) -> str:
        shown.append(state)
        return "a state"

    monkeypatch.setattr(AgentState, "__repr__", told)
    assert loop_of(3).execute_sync("go").final_text == "done"
    assert [state.step_count for state in loop_of(3).iterate_sync("go")] == [1, 2, 3, 3]
    assert shown == []


def test_what_goes_wrong_is_raised_as_it_is() -> None:
    """Errors come out of the event loop unchanged, and the loop can be used again."""
    loop = loop_of(1)
    for _ in range(2):
        with pytest.raises(TypeError, match="not int"):
            loop.execute_sync(3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not int"):
            list(loop.iterate_sync(3))  # type: ignore[arg-type]
    assert loop.execute_sync("go").final_text == "done"
