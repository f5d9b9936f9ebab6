"""Tools called in a real loop by a scripted model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, ToolExecution
from agentloop.contracts import Tool, ToolGroup

Call: TypeAlias = tuple[str, dict[str, Any]]


def scripted_loop(tools: Sequence[Tool | ToolGroup], *steps: Call | list[Call], **options: Any) -> AgentLoop:
    """Return a loop whose model makes these calls, those of a list in one step, and then answers "done"."""
    turns = []
    for number, step in enumerate(steps):
        calls = step if isinstance(step, list) else [step]
        turns.append([ToolCall(f"c{number}_{i}", name, json.dumps(args)) for i, (name, args) in enumerate(calls)])
    return AgentLoop.for_model(ScriptedInference(*turns, "done"), tools=tools, **options)


async def run_calls(tools: Sequence[Tool | ToolGroup], *steps: Call | list[Call], **options: Any) -> AgentState:
    """Run these calls and return the final state."""
    return await scripted_loop(tools, *steps, **options).execute("go")


def executions(state: AgentState) -> list[ToolExecution]:
    """Return the executions of all calls, in order."""
    return [execution for step in state.steps for execution in step.executions]


async def run_call(tools: Sequence[Tool | ToolGroup], name: str, **arguments: Any) -> ToolExecution:
    """Run one call and return its execution."""
    return executions(await run_calls(tools, (name, arguments)))[0]
