"""Tools and agents, as offers to others; each call is an execution of a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from agentloop.cli.outcome import shortcoming
from agentloop.contracts.tool import Tool
from agentloop.contracts.tool_group import CanDiscoverTools
from agentloop.contracts.tools import Tools
from agentloop.drivers.scripted import ScenarioStep, ScriptedDriver
from agentloop.errors import ToolFailed
from agentloop.events.step_events import AgentStepStarted
from agentloop.events.tool_events import ToolCallProgressed, ToolCallStarted
from agentloop.loop.agent_loop import AgentLoop
from agentloop.tools.mcp.offers import Offer, Progress
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.tool_result import ToolResult
from agentloop.values.tool_spec import Effect

_TASK = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "What the agent has to do, with all that it needs to know."}
    },
    "required": ["task"],
}


@asynccontextmanager
async def offers_of(tools: Tools) -> AsyncIterator[list[Offer]]:
    """Hold the groups of tools, and return an offer for each tool."""
    async with AgentLoop(ScriptedDriver(), tools, max_steps=1) as loop:
        asked = [group for group in tools.groups if isinstance(group, CanDiscoverTools)]
        found = await asyncio.gather(*[group.discover() for group in asked])
        known = tools.with_discovered(zip(asked, found, strict=True))
        yield [_of_tool(loop, tool) for tool in known]


@asynccontextmanager
async def offer_of_agent(loop: AgentLoop, name: str, description: str) -> AsyncIterator[Offer]:
    """Enter a loop, and return an offer to let it do a task."""
    async with loop:
        yield Offer(name, description, _TASK, Effect.EFFECT, partial(_done, loop))


def _of_tool(loop: AgentLoop, tool: Tool) -> Offer:
    spec = tool.spec
    return Offer(spec.name, spec.description, spec.parameters, spec.effect, partial(_called, loop, spec.name))


async def _called(loop: AgentLoop, name: str, arguments: Mapping[str, Any], report: Progress) -> ToolResult:
    """Call one tool, through all that stands around it in a loop."""
    tell = _counting(report)
    scripted = loop.with_driver(ScriptedDriver(ScenarioStep.tool_call(name, arguments)))
    async with scripted.stream(f"call {name}") as events:
        async for event in events:
            if isinstance(event, ToolCallProgressed):
                tell(event.update)
    state = events.state
    step = None if state is None else state.last_step
    if state is None or step is None or not step.executions:
        raise ToolFailed(
            "the call waits for a decision that nobody can make here" if step else "the call came to nothing"
        )
    execution = step.executions[0]
    if execution.error is not None:
        raise ToolFailed(f"{execution.error.type}: {execution.error.message}", path=execution.error.path)
    return ToolResult(execution.value, execution.content)


async def _done(loop: AgentLoop, arguments: Mapping[str, Any], report: Progress) -> ToolResult:
    """Have an agent do a task; its steps and calls are the progress."""
    task = arguments.get("task")
    if not isinstance(task, str) or not task.strip():
        raise ToolFailed("the argument task is missing: a text that says what to do")
    tell = _counting(report)
    async with loop.stream(task) as events:
        async for event in events:
            if isinstance(event, AgentStepStarted):
                tell("thinks")
            elif isinstance(event, ToolCallStarted):
                tell(f"calls {event.call.name}")
    state = events.state
    if state is None or state.status is not ExecutionStatus.COMPLETED:
        raise ToolFailed("the agent was cut off" if state is None else shortcoming(state) or str(state.status))
    return ToolResult(state.final_text)


def _counting(report: Progress) -> Callable[[object], None]:
    """Return what tells updates of any form: those of the protocol's as they are, others as messages that are counted."""
    told = 0

    def tell(update: object) -> None:
        nonlocal told
        told += 1
        match update:
            case {"progress": int() | float()}:
                assert isinstance(update, Mapping)  # noqa: S101  # as matched
                report(update)
            case bool():
                report({"progress": told, "message": str(update)})
            case int() | float():
                report({"progress": update})
            case _:
                report({"progress": told, "message": str(update)})

    return tell
