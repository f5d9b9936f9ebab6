"""Loops whose scripted model runs programs, and tools that note their calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agentloop import AgentLoop, AgentState, ScriptedInference, Tool, ToolCall, ToolExecution, tool
from agentloop.events import ProtocolMonitor
from agentloop.models import RunProgram
from agentloop.values import Event


def program(source: str, call_id: str = "1") -> ToolCall:
    """A call that runs a program."""
    return ToolCall(call_id, "run_program", json.dumps({"code": source}))


class World:
    """Tools over one list of what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []

    @property
    def tools(self) -> list[Tool]:
        done = self.done

        @tool(effect="pure")
        async def search(query: str, n: int = 1) -> list[str]:
            """Search the archive.

            Args:
                query: what to look for
                n: how many results
            """
            done.append(f"search {query}")
            if query == "bad":
                raise ValueError("no such thing")
            return [query] * n

        @tool
        async def pay(to: str) -> str:
            """Pay somebody."""
            done.append(f"pay {to}")
            return f"paid {to}"

        return [search, pay]


class Ran:
    """One run: its state, its events, and what the tools did."""

    def __init__(self, loop: AgentLoop, world: World, events: list[Event]) -> None:
        self.loop = loop
        self.world = world
        self.events = events
        self.state = AgentState.start()

    @property
    def outer(self) -> ToolExecution:
        """The execution of the program."""
        return self.state.steps[0].executions[0]


@contextmanager
def checked(loop: AgentLoop) -> Iterator[list[Event]]:
    """Collect the events of a loop, and check them against the grammar at the end."""
    events, monitor = list[Event](), ProtocolMonitor()
    first, second = loop.wiretap(events.append), loop.wiretap(monitor)
    yield events
    first.cancel()
    second.cancel()
    monitor.check()


def run(
    source: str | Sequence[ToolCall],
    *more: ToolCall | str,
    tools: Callable[[World], list[Tool]] | None = None,
    **options: Any,
) -> Ran:
    """Run a program in an agent to its end, or until it waits."""
    world = World()
    limits = options.pop("limits", None)
    runner = RunProgram() if limits is None else RunProgram(limits=limits)
    offered = world.tools if tools is None else tools(world)
    model = ScriptedInference(program(source) if isinstance(source, str) else source, *(more or ("done",)))
    loop = AgentLoop.for_model(model, tools=[*offered, runner], **options)
    with checked(loop) as events:
        ran = Ran(loop, world, events)
        ran.state = loop.execute_sync("Go.", execution_id="e")
    return ran
