"""Tool groups that discover their tools when they are held."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, handoff_to, tool
from agentloop.contracts import CanDiscoverTools, CanIntercept, Tool, ToolGroup
from agentloop.events import ToolCallStarted
from agentloop.values import ToolExecution


@tool
def local_tool() -> str:
    """Do something."""
    return "mine"


def tool_named(name: str, answer: str) -> Tool:
    """Return a tool with this name."""

    @tool(name=name, description="Answer.")
    def call_tool() -> str:
        return answer

    return call_tool


class GrowingGroup(CanDiscoverTools):
    """A group with one tool more each time it is queried."""

    name = "growing"
    interceptors: Sequence[CanIntercept] = ()

    def __init__(self) -> None:
        self.holds = self.queries = 0

    @property
    def offered(self) -> Sequence[Tool]:
        return [tool_named(f"tool{number}", str(number)) for number in range(self.queries)]

    async def hold(self) -> None:
        self.holds += 1

    async def release(self) -> None:
        self.holds -= 1

    async def discover(self) -> Sequence[Tool]:
        assert self.holds
        self.queries += 1
        return self.offered


class FixedGroup(GrowingGroup):
    """A group that discovers the tools that it was created with."""

    name = "fixed"

    def __init__(self, *tools: Tool) -> None:
        super().__init__()
        self.tools = tools

    @property
    def offered(self) -> Sequence[Tool]:
        return self.tools if self.queries else ()


def loop_calling(tools: Sequence[Tool | ToolGroup], *names: str) -> tuple[AgentLoop, ScriptedInference]:
    """Return a loop whose model calls these tools one after the other, and the model."""
    model = ScriptedInference(*[ToolCall(name, name, "{}") for name in names], "done")
    return AgentLoop.for_model(model, tools=tools), model


def outcomes(state: AgentState) -> list[ToolExecution]:
    """Return the name and the value of each call."""
    return [execution for step in state.steps for execution in step.executions]


async def test_tools_are_discovered_once_per_execution() -> None:
    """The tools of the start are offered until the end; the next execution discovers them again."""
    group = GrowingGroup()
    loop, model = loop_calling([local_tool, group], "tool0", "local_tool")
    first = await loop.execute("go")
    assert [execution.value for execution in outcomes(first)] == ["0", "mine"]
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["local_tool", "tool0"]] * 3
    model.requests.clear()
    await loop.execute("go")
    assert [spec.name for spec in model.requests[0].tools] == ["local_tool", "tool0", "tool1"]
    assert group.holds == 0


async def test_a_discovered_tool_does_not_replace_another_one(caplog: pytest.LogCaptureFixture) -> None:
    """Of two tools with one name the first stays, and the other one is logged."""
    loop, model = loop_calling(
        [local_tool, FixedGroup(tool_named("local_tool", "theirs"), tool_named("other", "theirs"))],
        "local_tool",
        "other",
    )
    state = await loop.execute("go")
    assert [execution.value for execution in outcomes(state)] == ["mine", "theirs"]
    assert len(model.requests[0].tools) == 2
    assert "the tool 'local_tool' of fixed is left out" in caplog.text


async def test_a_discovered_handoff_is_refused() -> None:
    """A handoff that an execution would know only after its start is an error before the model is asked."""
    other, _ = loop_calling([local_tool])
    loop, model = loop_calling([FixedGroup(handoff_to(other, name="move", description="Hand over."))], "move")
    state = await loop.execute("go")
    assert "the group 'fixed' has discovered the handoff 'move'" in state.errors[-1].message
    assert not model.requests


async def test_concurrent_executions_discover_separately() -> None:
    """Each execution has the tools that it discovered itself (law 9)."""
    loop, _ = loop_calling([GrowingGroup()], "tool1")
    states = await asyncio.gather(loop.execute("go"), loop.execute("go"))
    assert sorted(execution.succeeded for state in states for execution in outcomes(state)) == [False, True]


async def test_discovered_tools_belong_to_their_group() -> None:
    """Their calls have the events of any tool, and a copy of the loop discovers them, too."""
    loop, _ = loop_calling([GrowingGroup()], "tool0")
    started: list[str] = []
    loop.on(ToolCallStarted, lambda event: started.append(event.call.name))
    assert outcomes(await loop.replace(max_steps=5).execute("go"))[0].value == "0"
    assert started == ["tool0"]
    tools = loop.tools.with_discovered([(group, group.offered) for group in loop.tools.groups])
    assert tools.group_names == {"tool0": "growing"}
    assert tools.only(["tool0"]).group_names == {"tool0": "growing"}
