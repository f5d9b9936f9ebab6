"""Law 12: MCP tools and agents as tools have the same results under every driver and mode, like local tools."""

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
from tests.testing.test_equivalence import REACT, TOOL_CALLING, factory_for


@tool(effect="pure")
def add(a: int, b: int) -> dict[str, Any]:
    """Add two numbers."""
    return {"result": a + b}


def call(number: int, name: str, **arguments: object) -> ToolCall:
    """Return a call with these arguments."""
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
LOCAL_AND_REMOTE = Scenario(
    "What now?", [ScriptedTurn("", (call(1, "add", a=2, b=3), call(2, "add", a=0, b=0))), ScriptedTurn("done")]
)


def agent(server: McpEnsemble) -> Tool:
    """Return an agent that has the tools of a server and may use one of them."""
    model = ScriptedInference(call(1, "add", a=20, b=22), call(2, "log", path="/dev/null"), "It is 42.")
    return AgentLoop.for_model(model, tools=[server]).as_tool("ask", "Adds.", tools_allowed=["ad*"])


async def run(scenario: Scenario, driver: CanUseTools, *tools: Tool | ToolGroup) -> dict[str, Any]:
    """Run a scenario; return everything that must not depend on the driver."""
    recorder, bus, events = PointRecorder(), EventBus(clock=ManualClock()), Counter[tuple[str, str]]()
    bus.wiretap(lambda event: events.update([(type(event).__name__, event.execution_id)]))
    settings: dict[str, Any] = {"events": bus, "clock": ManualClock(), "ids": CountingIds()}
    loop = AgentLoop(driver, tools, interceptors=[recorder], max_steps=6, **settings)
    state = await loop.execute(scenario.question, execution_id="run")
    deltas = [key for key in events if key[0] == "InferenceDeltaReceived"]
    for key in deltas:
        del events[key]
    return {"outcomes": outcomes(state), "text": state.final_text, "points": recorder.seen, "events": events}


def outcomes(state: AgentState) -> list[Any]:
    """Return the outcomes of all calls."""
    executions = [execution for step in state.steps for execution in step.executions]
    return [
        (outcome.name, outcome.call.arguments, outcome.status, outcome.value, outcome.error) for outcome in executions
    ]


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """Hold the results of the first mode."""
    return {}


@pytest.mark.parametrize("streaming", [False, pytest.param(True, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("mode", [*TOOL_CALLING, *REACT])
async def test_all_drivers_and_modes_have_the_same_results(
    mode: str,
    streaming: bool,  # noqa: FBT001  # a parameter of the test
    expected: dict[str, Any],
) -> None:
    """Calls, outcomes, answer, points and events are the same, including those of the agent."""
    server = small()
    result = await run(SCENARIO, factory_for(mode, streaming=streaming)(SCENARIO), server, agent(server))
    assert result["text"] == "done"
    assert [status.value for _, _, status, *_ in result["outcomes"]] == ["succeeded", "failed", *["succeeded"] * 4]
    assert result["events"]["ToolCallRejected", "run/2/1/agent"] == 1  # `log`, which the agent may not use
    for key, value in result.items():
        assert value == expected.setdefault(key, value), key


# The test above has all modes in every run.
@pytest.mark.parametrize(
    "mode",
    [
        mode if mode in {"native", "react-text"} else pytest.param(mode, marks=pytest.mark.heavy)
        for mode in [*TOOL_CALLING, *REACT]
    ],
)
async def test_a_tool_of_a_server_behaves_like_a_local_tool(mode: str) -> None:
    """The same call of a remote and of a local tool has the same outcome, points and events."""
    driver_for = factory_for(mode)
    local = await run(LOCAL_AND_REMOTE, driver_for(LOCAL_AND_REMOTE), add)
    server = McpEnsemble("small", small().server, allow=["add"])
    assert await run(LOCAL_AND_REMOTE, driver_for(LOCAL_AND_REMOTE), server) == local
