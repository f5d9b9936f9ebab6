"""The types of tools and of their dependencies."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, assert_type

from agentloop import AgentLoop, ScriptedInference, Tool, ToolCallingDriver, ToolContext, tool
from agentloop.contracts import CanReconcileCall
from agentloop.loop import Identity, RunRequest
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


@contextmanager
def open_shop(_: RunRequest) -> Generator[Shop]:
    """Open a shop for a run."""
    yield Shop("lamps")


async def find_shop(_: RunRequest) -> Shop:
    """Find a shop for a run."""
    return Shop("lamps")


async def loops_know_the_type_of_their_dependencies(driver: ToolCallingDriver) -> None:
    """It is the second parameter, which dependencies or an annotation set; without either, it is Any."""
    assert_type(AgentLoop.for_model("ollama:qwen3"), AgentLoop[str, Any])
    assert_type(AgentLoop.for_model("ollama:qwen3", dependencies=Shop("a")), AgentLoop[str, Shop])
    assert_type(AgentLoop(driver, tools=[sell], dependencies=Shop("a")), AgentLoop[str, Shop])
    assert_type(AgentLoop(driver, output_type=int, dependencies=Shop("a")), AgentLoop[int, Shop])
    managed: AgentLoop[str, Shop] = AgentLoop.for_model("ollama:qwen3", dependencies=open_shop)
    later: AgentLoop[int, Shop] = AgentLoop(driver, output_type=int, dependencies=find_shop)
    given: AgentLoop[str, Shop] = AgentLoop.for_model("ollama:qwen3", tools=[sell])
    assert_type(await given.run("go", dependencies=Shop("a"), principal=Identity("ada")), str)
    assert_type(later.replace(max_steps=3), AgentLoop[int, Shop])
    assert_type(managed.replace(output_type=int), AgentLoop[int, Shop])
    of_any: AgentLoop[str] = given
    assert_type(await of_any.run("go", dependencies=3), str)
