"""Groups whose tools are known only while they are held."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, tool
from agentloop.contracts import CanDiscoverTools, CanIntercept, Tool, ToolGroup
from agentloop.events import ToolCallStarted
from agentloop.values import ToolExecution


@tool
def own() -> str:
    """Do something of our own."""
    return "mine"


def made(name: str, answer: str) -> Tool:
    """Return a tool of this name."""

    @tool(name=name, description="Answer.")
    def answering() -> str:
        return answer

    return answering


class Growing(CanDiscoverTools):
    """A group that has one tool more each time it is asked."""

    name = "growing"
    interceptors: Sequence[CanIntercept] = ()

    def __init__(self) -> None:
        self.holds = self.asked = 0

    @property
    def offered(self) -> Sequence[Tool]:
        return [made(f"tool{number}", str(number)) for number in range(self.asked)]

    async def hold(self) -> None:
        self.holds += 1

    async def release(self) -> None:
        self.holds -= 1

    async def discover(self) -> Sequence[Tool]:
        assert self.holds
        self.asked += 1
        return self.offered


class Fixed(Growing):
    """A group that finds what it is given."""

    name = "fixed"

    def __init__(self, *found: Tool) -> None:
        super().__init__()
        self.found = found

    async def discover(self) -> Sequence[Tool]:
        return self.found


def loop_of(tools: Sequence[Tool | ToolGroup], *names: str) -> tuple[AgentLoop, ScriptedInference]:
    """Return a loop whose model calls these tools one after the other, and the model."""
    model = ScriptedInference(*[ToolCall(name, name, "{}") for name in names], "done")
    return AgentLoop.for_model(model, tools=tools), model


def outcomes(state: AgentState) -> list[ToolExecution]:
    """Return what came of the calls."""
    return [execution for step in state.steps for execution in step.executions]


async def test_what_is_found_when_an_execution_begins_is_offered_until_it_ends() -> None:
    """The next execution asks again; the tools of their own come first."""
    group = Growing()
    loop, model = loop_of([own, group], "tool0", "own")
    first = await loop.execute("go")
    assert [execution.value for execution in outcomes(first)] == ["0", "mine"]
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["own", "tool0"]] * 3
    model.requests.clear()
    await loop.execute("go")
    assert [spec.name for spec in model.requests[0].tools] == ["own", "tool0", "tool1"]
    assert group.holds == 0


async def test_of_two_tools_of_one_name_the_first_stays(caplog: pytest.LogCaptureFixture) -> None:
    """What is found does not stand in for a tool of the program; it is logged."""
    loop, model = loop_of([own, Fixed(made("own", "theirs"), made("other", "theirs"))], "own", "other")
    state = await loop.execute("go")
    assert [execution.value for execution in outcomes(state)] == ["mine", "theirs"]
    assert len(model.requests[0].tools) == 2
    assert "the tool 'own' of fixed is left out" in caplog.text


async def test_concurrent_executions_ask_for_themselves() -> None:
    """Each has the tools that it was told (law 9)."""
    loop, _ = loop_of([Growing()], "tool1")
    states = await asyncio.gather(loop.execute("go"), loop.execute("go"))
    assert sorted(execution.succeeded for state in states for execution in outcomes(state)) == [False, True]


async def test_found_tools_belong_to_their_group() -> None:
    """Events of their calls are those of any tool, and a copy of the loop finds them, too."""
    loop, _ = loop_of([Growing()], "tool0")
    begun: list[str] = []
    loop.on(ToolCallStarted, lambda event: begun.append(event.call.name))
    assert outcomes(await loop.with_max_steps(5).execute("go"))[0].value == "0"
    assert begun == ["tool0"]
    found = loop.tools.with_discovered([(group, group.offered) for group in loop.tools.groups])
    assert found.group_names == {"tool0": "growing"}
    assert found.only(["tool0"]).group_names == {"tool0": "growing"}
