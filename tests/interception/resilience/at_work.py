"""A tool whose every run is noted, and loops in virtual time around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import define, field

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, ToolCallingDriver, ToolContext
from agentloop.contracts import CanIntercept, Tool, ToolPolicy
from agentloop.contracts.tool import CanAccessToolContext
from agentloop.testing import LoopClock, run_in_virtual_time
from agentloop.values import Effect, Event, ToolExecution

Behavior = Callable[["Run"], Any]


@define
class Run:
    """One run of the tool: which call, with what, when, and the how many-th run of that call."""

    key: str
    value: Any
    at: float
    attempt: int


@define
class Worker(Tool, CanAccessToolContext):
    """A tool that notes each run, waits some seconds, and then does as it is told."""

    does: Behavior = lambda run: run.value
    seconds: float | Callable[[Run], float] = 0.0
    tool_name: str = "work"
    kind: Effect = Effect.PURE
    wants: ToolPolicy = field(factory=ToolPolicy)
    runs: list[Run] = field(factory=list)
    context: ToolContext | None = None

    @property
    def name(self) -> str:
        return self.tool_name

    @property
    def description(self) -> str:
        return "Works."

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object", "properties": {"value": {}}}

    @property
    def effect(self) -> Effect:
        return self.kind

    @property
    def policy(self) -> ToolPolicy:
        return self.wants

    def with_tool_context(self, context: ToolContext) -> Worker:
        return Worker(self.does, self.seconds, self.tool_name, self.kind, self.wants, self.runs, context)

    async def use(self, *_: Any, value: Any = None) -> Any:
        key = self.context.idempotency_key if self.context is not None else ""
        attempt = sum(run.key == key for run in self.runs) + 1
        run = Run(key, value, asyncio.get_running_loop().time(), attempt)
        self.runs.append(run)
        await asyncio.sleep(self.seconds(run) if callable(self.seconds) else self.seconds)
        return self.does(run)


def failing(times: int) -> Behavior:
    """Fail the first times that a call is run."""

    def does(run: Run) -> Any:
        if run.attempt <= times:
            raise ConnectionError(f"attempt {run.attempt} of {run.key}")
        return run.value

    return does


def use(value: Any = None, name: str = "work") -> ToolCall:
    return ToolCall("", name, json.dumps({"value": value}))


@define
class Seen:
    """What came of a run: the state, the events, and the seconds that it took."""

    state: AgentState
    events: list[Event]
    seconds: float

    @property
    def outcomes(self) -> list[ToolExecution]:
        return [one for step in self.state.steps for one in step.executions]

    @property
    def statuses(self) -> list[str]:
        return [one.status.value for one in self.outcomes]

    def told(self, *kinds: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]


def looped(tools: Tool | Iterable[Tool], interceptors: Iterable[CanIntercept], *turns: list[ToolCall]) -> AgentLoop:
    """Make a loop whose model asks for these calls, batch by batch."""
    offered = [tools] if isinstance(tools, Tool) else list(tools)
    driver = ToolCallingDriver(ScriptedInference(*turns, "done"))
    return AgentLoop(driver, offered, interceptors=list(interceptors), clock=LoopClock(), max_steps=None)


async def watched(loop: AgentLoop, *, agent: str = "agent") -> Seen:
    """Run a loop."""
    events: list[Event] = []
    listening = loop.wiretap(events.append)
    began = asyncio.get_running_loop().time()
    state = await loop.execute(AgentState.start("go", agent_id=agent))
    listening.cancel()
    return Seen(state, events, asyncio.get_running_loop().time() - began)


def seen(tools: Tool | Iterable[Tool], interceptors: Iterable[CanIntercept], *turns: list[ToolCall]) -> Seen:
    """Run a loop in virtual time."""
    return run_in_virtual_time(watched(looped(tools, interceptors, *turns)))
