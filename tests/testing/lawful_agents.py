"""Wrappers of sub-agents and handoffs as people write them, which keep every law: they log, limit, rename, repeat, keep and route."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from copy import copy
from typing import Any, Self

from agentloop.contracts.tool import (
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanContinueCall,
    CanLabelResult,
    CanRequireDependencies,
    Tool,
    ToolContext,
    ToolPolicy,
)
from agentloop.errors import ExecutionFailed, ToolFailed, ToolUnavailable
from agentloop.values import AgentState, Effect, ToolCall
from agentloop.values.authority import Declarations
from agentloop.values.tool_calls import EgressLike


class Around(
    Tool,
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanContinueCall,
    CanLabelResult,
    CanRequireDependencies,
):
    """Passes everything on to the tool inside, so that a wrapper overrides what it changes."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    @property
    def name(self) -> str:
        return self.tool.name

    @property
    def description(self) -> str:
        return self.tool.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.tool.parameters

    @property
    def effect(self) -> Effect:
        return self.tool.effect

    @property
    def egress(self) -> EgressLike:
        return self.tool.egress

    @property
    def policy(self) -> ToolPolicy:
        return self.tool.policy

    @property
    def declarations(self) -> Declarations:
        return self.tool.declarations

    @property
    def is_local(self) -> bool:
        return self.tool.is_local

    @property
    def continues_calls(self) -> bool:
        return isinstance(self.tool, CanContinueCall) and self.tool.continues_calls

    def around(self, tool: Any) -> Self:
        """Return a copy around this tool."""
        bound = copy(self)
        bound.tool = tool
        return bound

    def with_agent_state(self, state: AgentState) -> Self:
        return self.around(self.tool.with_agent_state(state)) if isinstance(self.tool, CanAccessAgentState) else self

    def with_tool_call(self, call: ToolCall) -> Self:
        return self.around(self.tool.with_tool_call(call)) if isinstance(self.tool, CanAccessToolCall) else self

    def with_tool_context(self, context: ToolContext) -> Self:
        return (
            self.around(self.tool.with_tool_context(context)) if isinstance(self.tool, CanAccessToolContext) else self
        )

    def check_dependencies(self, dependencies: object) -> None:
        if isinstance(self.tool, CanRequireDependencies):
            self.tool.check_dependencies(dependencies)

    async def use(self, *_: Any, **arguments: Any) -> Any:
        return await self.tool.use(**arguments)


class Logs(Around):
    """Notes how each call began and ended."""

    def __init__(self, tool: Tool) -> None:
        super().__init__(tool)
        self.notes: list[str] = []

    async def use(self, *_: Any, **arguments: Any) -> Any:
        self.notes.append(f"{self.name} begins")
        try:
            result = await super().use(**arguments)
        except BaseException as error:
            self.notes.append(f"{self.name} raises {type(error).__name__}")
            raise
        self.notes.append(f"{self.name} returns")
        return result


class Renames(Around):
    """Has another name and description."""

    @property
    def name(self) -> str:
        return f"{self.tool.name}_v2"

    @property
    def description(self) -> str:
        return f"{self.tool.description} Ask in English."


_IS_INSIDE: ContextVar[bool] = ContextVar("_IS_INSIDE", default=False)


class Limits(Around):
    """Runs at most two calls at once; those that an agent inside makes are part of its call."""

    def __init__(self, tool: Tool) -> None:
        super().__init__(tool)
        self.permits = asyncio.Semaphore(2)

    async def use(self, *_: Any, **arguments: Any) -> Any:
        if _IS_INSIDE.get():
            return await super().use(**arguments)
        async with self.permits:
            token = _IS_INSIDE.set(True)
            try:
                return await super().use(**arguments)
            finally:
                _IS_INSIDE.reset(token)


class RepeatsPureAgents(Around):
    """Tries again if an agent without effects has failed."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        try:
            return await super().use(**arguments)
        except (ExecutionFailed, ToolFailed):
            if self.effect is not Effect.PURE:
                raise
            return await super().use(**arguments)


class LimitsTime(Around):
    """Lets an agent take ten minutes."""

    @property
    def policy(self) -> ToolPolicy:
        return ToolPolicy(timeout=600, key=self.tool.policy.key)


class AsksForBrevity(Around):
    """Adds a sentence to each task."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        task = arguments.get("task")
        return await super().use(**({**arguments, "task": f"{task} Be brief."} if isinstance(task, str) else arguments))


class RefusesMany(Around):
    """Refuses an agent that was asked before in the same execution."""

    def __init__(self, tool: Tool) -> None:
        super().__init__(tool)
        self.asked: dict[str, str] = {}

    def with_tool_context(self, context: ToolContext) -> Self:
        bound = super().with_tool_context(context)
        bound.context = context
        return bound

    async def use(self, *_: Any, **arguments: Any) -> Any:
        first = self.asked.setdefault(self.context.execution_id, self.context.idempotency_key)
        if first != self.context.idempotency_key:
            raise ToolUnavailable("one question is enough")
        return await super().use(**arguments)

    context: ToolContext


LAWFUL_AGENTS = (Around, Logs, Renames, Limits, RepeatsPureAgents, LimitsTime, AsksForBrevity, RefusesMany)
