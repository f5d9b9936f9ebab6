"""Law 12: MCP tools and agents as tools come to the same under every driver and mode, as tools of our own do."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.contracts import CanUseTools, Tool, ToolGroup
from agentloop.events.bus import EventBus
from agentloop.mcp import McpEnsemble
from agentloop.testing import CountingIds, ManualClock, Scenario
from agentloop.testing.equivalence_kit import PointRecorder
from agentloop.testing.scenario import ScriptedTurn
from agentloop.values import AgentState
from tests.mcp.running import small
from tests.testing.test_equivalence import REACT, TOOL_CALLING, maker


@tool(effect="pure")
def add(a: int, b: int) -> dict[str, Any]:
    """Add two numbers."""
    return {"result": a + b}


def call(number: int, name: str, **arguments: object) -> ToolCall:
    """Return a call."""
    return ToolCall(f"c{number}", name, json.dumps(arguments))


SCENARIO = Scenario(
    "What now?",
    [
        ScriptedTurn("Let me look.", (call(1, "add", a=2, b=3), call(2, "fail"))),
        ScriptedTurn("", (call(3, "picture"), call(4, "ask", task="go"), call(5, "steps"))),
        ScriptedTurn("", (call(6, "ask", task="again"),)),
        ScriptedTurn("done"),
    ],
)
OF_BOTH = Scenario(
    "What now?", [ScriptedTurn("", (call(1, "add", a=2, b=3), call(2, "add", a=0, b=0))), ScriptedTurn("done")]
)


def agent(server: McpEnsemble) -> Tool:
    """Return an agent that has the tools of an MCP server and may use one of them."""
    model = ScriptedInference(call(1, "add", a=20, b=22), call(2, "log", path="/dev/null"), "It is 42.")
    return AgentLoop.for_model(model, tools=[server]).as_tool("ask", "Adds.", tools_allowed=["ad*"])


async def account(scenario: Scenario, driver: CanUseTools, *tools: Tool | ToolGroup) -> dict[str, Any]:
    """Run a scenario, and return what must not depend on the driver."""
    witness, bus, events = PointRecorder(), EventBus(clock=ManualClock()), Counter[tuple[str, str]]()
    bus.wiretap(lambda event: events.update([(type(event).__name__, event.execution_id)]))
    surroundings: dict[str, Any] = {"events": bus, "clock": ManualClock(), "ids": CountingIds()}
    loop = AgentLoop(driver, tools, interceptors=[witness], max_steps=6, **surroundings)
    state = await loop.execute(scenario.question, execution_id="run")
    deltas = [key for key in events if key[0] == "InferenceDeltaReceived"]
    for key in deltas:
        del events[key]
    return {"outcomes": outcomes(state), "text": state.final_text, "points": witness.seen, "events": events}


def outcomes(state: AgentState) -> list[Any]:
    """Return what came of the calls."""
    done = [execution for step in state.steps for execution in step.executions]
    return [(one.name, one.call.arguments, one.status, one.value, one.error) for one in done]


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """Keep what the first mode comes to."""
    return {}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("mode", [*TOOL_CALLING, *REACT])
async def test_every_driver_and_mode_comes_to_the_same(
    mode: str,
    streaming: bool,  # noqa: FBT001  # a parameter of the test
    expected: dict[str, Any],
) -> None:
    """Calls, outcomes, answer, points and events, those of the agent included."""
    server = small()
    found = await account(SCENARIO, maker(mode, streaming=streaming)(SCENARIO), server, agent(server))
    assert found["text"] == "done"
    assert [one[2].value for one in found["outcomes"]] == ["succeeded", "failed", *["succeeded"] * 4]
    assert found["events"]["ToolCallBlocked", "run/2/1/agent"] == 1  # `log`, which the agent may not use
    for what, seen in found.items():
        assert seen == expected.setdefault(what, seen), what


@pytest.mark.parametrize("mode", [*TOOL_CALLING, *REACT])
async def test_a_tool_of_a_server_is_used_like_one_of_our_own(mode: str) -> None:
    """The same call has the same outcome, and passes the same points, with the same events."""
    make = maker(mode)
    local = await account(OF_BOTH, make(OF_BOTH), add)
    server = McpEnsemble("small", small().server, allow=["add"])
    assert await account(OF_BOTH, make(OF_BOTH), server) == local
