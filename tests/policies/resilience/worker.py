"""A tool that records each run, and loops in virtual time that call it."""

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
    """One run of the tool: the key of its call, its value, when it started, and its 1-based number among the call's runs."""

    key: str
    value: Any
    at: float
    attempt: int


@define
class Worker(Tool, CanAccessToolContext):
    """A tool that records each run, waits some seconds, and then does what its behavior says."""

    behavior: Behavior = lambda run: run.value
    seconds: float | Callable[[Run], float] = 0.0
    tool_name: str = "work"
    declared_effect: Effect = Effect.PURE
    declared_policy: ToolPolicy = field(factory=ToolPolicy)
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
        return self.declared_effect

    @property
    def policy(self) -> ToolPolicy:
        return self.declared_policy

    def with_tool_context(self, context: ToolContext) -> Worker:
        return Worker(
            self.behavior,
            self.seconds,
            self.tool_name,
            self.declared_effect,
            self.declared_policy,
            self.runs,
            context,
        )

    async def use(self, *_: Any, value: Any = None) -> Any:
        key = self.context.idempotency_key if self.context is not None else ""
        attempt = sum(run.key == key for run in self.runs) + 1
        run = Run(key, value, asyncio.get_running_loop().time(), attempt)
        self.runs.append(run)
        await asyncio.sleep(self.seconds(run) if callable(self.seconds) else self.seconds)
        return self.behavior(run)


def fail_first(count: int) -> Behavior:
    """Return a behavior that fails in the first runs of each call."""

    def behavior(run: Run) -> Any:
        if run.attempt <= count:
            raise ConnectionError(f"attempt {run.attempt} of {run.key}")
        return run.value

    return behavior


def work(value: Any = None, name: str = "work") -> ToolCall:
    """Return a call of the tool."""
    return ToolCall("", name, json.dumps({"value": value}))


@define
class Observation:
    """The result of an execution: its final state, its events, and the seconds that it took."""

    state: AgentState
    events: list[Event]
    seconds: float

    @property
    def outcomes(self) -> list[ToolExecution]:
        return [execution for step in self.state.steps for execution in step.executions]

    @property
    def statuses(self) -> list[str]:
        return [outcome.status.value for outcome in self.outcomes]

    def events_of(self, *kinds: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]


def create_loop(
    tools: Tool | Iterable[Tool], interceptors: Iterable[CanIntercept], *turns: list[ToolCall]
) -> AgentLoop:
    """Return a loop whose model makes these calls, a batch in each step."""
    offered = [tools] if isinstance(tools, Tool) else list(tools)
    driver = ToolCallingDriver(ScriptedInference(*turns, "done"))
    return AgentLoop(driver, offered, interceptors=list(interceptors), clock=LoopClock(), max_steps=None)


async def observe(loop: AgentLoop, *, agent: str = "agent") -> Observation:
    """Execute a loop and record its events."""
    events: list[Event] = []
    subscription = loop.wiretap(events.append)
    started = asyncio.get_running_loop().time()
    state = await loop.execute(AgentState.start("go", agent_id=agent))
    subscription.cancel()
    return Observation(state, events, asyncio.get_running_loop().time() - started)


def run_loop(tools: Tool | Iterable[Tool], interceptors: Iterable[CanIntercept], *turns: list[ToolCall]) -> Observation:
    """Execute a loop in virtual time."""
    return run_in_virtual_time(observe(create_loop(tools, interceptors, *turns)))
