"""Tools called through a real loop, by a model that follows a script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, ToolExecution
from agentloop.contracts import Tool, ToolGroup

Call: TypeAlias = tuple[str, dict[str, Any]]


def scripted_loop(tools: Sequence[Tool | ToolGroup], *steps: Call | list[Call], **parts: Any) -> AgentLoop:
    """Return a loop whose model makes these calls, those of a list in one step, and then answers."""
    lines = []
    for number, step in enumerate(steps):
        calls = step if isinstance(step, list) else [step]
        made = [ToolCall(f"c{number}_{i}", name, json.dumps(given)) for i, (name, given) in enumerate(calls)]
        lines.append(made)
    return AgentLoop.for_model(ScriptedInference(*lines, "done"), tools=tools, **parts)


async def ran(tools: Sequence[Tool | ToolGroup], *steps: Call | list[Call], **parts: Any) -> AgentState:
    """Run these calls and return the final state."""
    return await scripted_loop(tools, *steps, **parts).execute("go")


def executions(state: AgentState) -> list[ToolExecution]:
    """Return what came of the calls, in order."""
    return [execution for step in state.steps for execution in step.executions]


async def called(tools: Sequence[Tool | ToolGroup], name: str, **arguments: Any) -> ToolExecution:
    """Run one call and return what came of it."""
    return executions(await ran(tools, (name, arguments)))[0]
