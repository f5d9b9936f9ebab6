"""Tests of the event loops that the package starts itself."""

from __future__ import annotations

import asyncio
import sys

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop._event_loops import loop_factory


def package_of_event_loop() -> str:
    """Return the package of the event loop in which a tool of `run_sync` runs."""
    seen: list[str] = []

    @tool(effect="pure")
    async def look() -> str:
        """Look at the event loop."""
        seen.append(type(asyncio.get_running_loop()).__module__.partition(".")[0])
        return "seen"

    AgentLoop(ToolCallingDriver(ScriptedInference(ToolCall("1", "look", "{}"), "done")), [look]).run_sync("Look.")
    return seen[0]


def test_sync_twins_run_in_uvloop_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable of the environment turns it off."""
    pytest.importorskip("uvloop", reason="uvloop is not available for this system")
    assert package_of_event_loop() == "uvloop"
    monkeypatch.setenv("AGENTLOOP_EVENT_LOOP", "asyncio")
    assert package_of_event_loop() == "asyncio"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="policies are deprecated from Python 3.14 on")
def test_the_policy_of_a_program_is_respected() -> None:
    """A program that has chosen its event loops gets those."""

    class Own(asyncio.DefaultEventLoopPolicy):
        pass

    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(Own())
    try:
        assert loop_factory() is None
    finally:
        asyncio.set_event_loop_policy(before)
