"""The types of tools and of their dependencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from agentloop import AgentLoop, ScriptedInference, Tool, ToolContext, tool
from agentloop.contracts import CanReconcileCall
from agentloop.values import Reconciliation, did_not_happen


@dataclass
class Shop:
    """Dependencies of a tool."""

    name: str


@tool
def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="pure", timeout=3)
async def sell(item: str, context: ToolContext[Shop]) -> str:
    """Sell an item."""
    assert_type(context.dependencies, Shop)
    return f"{context.dependencies.name} sells {item}"


@tool
def look(context: ToolContext) -> str:
    """Look around."""
    assert_type(context.dependencies, Any)
    return context.execution_id


def functions_keep_their_signatures(context: ToolContext[Shop]) -> None:
    """A decorated function can be called as before, and is a tool."""
    assert_type(add(1, 2), int)
    assert_type(add(1), int)
    tools: list[Tool] = [add, sell, look]
    assert_type(AgentLoop.for_model(ScriptedInference(), tools=tools), AgentLoop[str])


def plain(number: int) -> int:
    """Return a number."""
    return number


def lists_of_tools_take_functions() -> None:
    """A plain function stands for the tool that is made of it."""
    assert_type(AgentLoop.for_model("ollama:qwen3", tools=[plain, add], options={"temperature": 0.0}), AgentLoop[str])


class OpensTickets(CanReconcileCall):
    """A tool declares the arguments that `reconcile` takes, as those of `use`."""

    async def reconcile(self, *, title: str, urgent: bool = False) -> Reconciliation:
        """Find no ticket."""
        return did_not_happen()
