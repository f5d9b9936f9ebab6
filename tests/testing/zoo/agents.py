"""Wrappers of sub-agents and handoffs that break one law each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import Context
from typing import Any, Self

from attrs import evolve

from agentloop.contracts.tool import CanAccessAgentState as CanAccessState
from agentloop.contracts.tool import (
    CanAccessToolCall,
    CanAccessToolContext,
    CanContinueCall,
    CanLabelResult,
    CanRequireDependencies,
    Tool,
    ToolContext,
    ToolPolicy,
)
from agentloop.errors import CallSuspended, ExecutionFailed, ToolFailed, ToolUnavailable
from agentloop.testing import AgentToolKit
from agentloop.values import AgentState, Effect, ToolCall, ToolResult
from agentloop.values.labels import CLEAN
from tests.testing.lawful_agents import Around
from tests.testing.zoo.zoo import Member

LEFT: list[asyncio.Task[Any]] = []


# --- the execution below the call ---------------------------------------------------------------------------------------


class StartsAfresh(Around):
    """Breaks law 27: the agent's loop runs as if nobody had called it."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        loop = getattr(self.tool, "loop", None)
        if loop is None:
            return await super().use(**arguments)
        state = await loop.execute(str(arguments["task"]))
        return state.final_text


class NumbersAttempts(Around):
    """Breaks law 27: the key of the call is one of the wrapper's own."""

    def with_tool_context(self, context: ToolContext) -> Self:
        return super().with_tool_context(evolve(context, idempotency_key=f"agents/{id(context)}"))


class OwnContext(Around):
    """Breaks law 59: the context is built anew, without the scope."""

    def with_tool_context(self, context: ToolContext) -> Self:
        names = ("execution_id", "agent_id", "idempotency_key", "dependencies", "events", "id", "resumed")
        return super().with_tool_context(ToolContext(**{name: getattr(context, name) for name in names}))


class Worker(Around):
    """Breaks law 59: the agent is run by a task that knows nothing of the call, and so of its limits."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        task = asyncio.get_running_loop().create_task(super().use(**arguments), context=Context())
        try:
            return await task
        finally:
            task.cancel()


class HidesEvents(Around):
    """Breaks law 59: the events of the agent do not reach the listeners of the caller."""

    def with_tool_context(self, context: ToolContext) -> Self:
        return super().with_tool_context(evolve(context, events=None))


class ForgetsDepth(Around):
    """Breaks law 59: agents can be nested without an end."""

    def with_tool_context(self, context: ToolContext) -> Self:
        return super().with_tool_context(evolve(context, scope=evolve(context.scope, depth=0)))


class OwnDependencies(Around):
    """Breaks law 59: the agent has no dependencies."""

    def with_tool_context(self, context: ToolContext) -> Self:
        return super().with_tool_context(evolve(context, dependencies=None))


class OneAgentAtATime(Around):
    """Breaks law 59: an agent that calls another one waits for itself."""

    def __init__(self, tool: Tool) -> None:
        super().__init__(tool)
        self.lock = asyncio.Lock()

    async def use(self, *_: Any, **arguments: Any) -> Any:
        async with self.lock:
            return await super().use(**arguments)


class ForgetsToContinue(Tool, CanAccessState, CanAccessToolCall, CanAccessToolContext):
    """Breaks law 59: after a crash, the call is in doubt although its agent has a record."""

    def __init__(self, tool: Any) -> None:
        self.tool = tool

    name = property(lambda self: self.tool.name)
    description = property(lambda self: self.tool.description)
    parameters = property(lambda self: self.tool.parameters)
    effect = property(lambda self: self.tool.effect)
    egress = property(lambda self: self.tool.egress)
    policy = property(lambda self: self.tool.policy)
    is_local = property(lambda self: self.tool.is_local)

    def with_agent_state(self, state: AgentState) -> Self:
        return type(self)(self.tool.with_agent_state(state))

    def with_tool_call(self, call: ToolCall) -> Self:
        is_bound = isinstance(self.tool, CanAccessToolCall)
        return type(self)(self.tool.with_tool_call(call)) if is_bound else self

    def with_tool_context(self, context: ToolContext) -> Self:
        return type(self)(self.tool.with_tool_context(context))

    async def use(self, *_: Any, **arguments: Any) -> Any:
        return await self.tool.use(**arguments)


# --- suspensions ----------------------------------------------------------------------------------------------------------


class CatchesEverything(Around):
    """Breaks law 16: an agent that is suspended is taken for one that has failed."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        try:
            return await super().use(**arguments)
        except Exception as error:  # noqa: BLE001
            return f"the agent could not do it: {error}"


class HidesWhatWaits(Around):
    """Breaks law 16: the caller does not see what its agent waits for."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        try:
            return await super().use(**arguments)
        except CallSuspended as suspended:
            raise CallSuspended(f"{self.name}: {suspended.reason}") from suspended


class ForgetsProgress(Around):
    """Breaks law 16: an agent that is resumed begins anew."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        try:
            return await super().use(**arguments)
        except CallSuspended as suspended:
            raise CallSuspended(suspended.reason, inner=suspended.inner) from suspended


class ForgetsResumption(Around):
    """Breaks law 16: decisions do not reach the agent."""

    def with_tool_context(self, context: ToolContext) -> Self:
        return super().with_tool_context(evolve(context, resumed=None))


# --- cancellation and errors ------------------------------------------------------------------------------------------------


class SwallowsCancellation(Around):
    """Breaks law 34: an agent that is cancelled has an answer."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        try:
            return await super().use(**arguments)
        except asyncio.CancelledError:
            return "the agent was stopped"


class ShieldsAgents(Around):
    """Breaks law 34: the agent goes on when its call is cancelled."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        task = asyncio.ensure_future(super().use(**arguments))
        LEFT.append(task)
        return await asyncio.shield(task)


class KeepsPermits(Around):
    """Breaks law 34: a call that is cancelled keeps its permit."""

    def __init__(self, tool: Tool) -> None:
        super().__init__(tool)
        self.permits = asyncio.Semaphore(2)

    async def use(self, *_: Any, **arguments: Any) -> Any:
        await self.permits.acquire()
        result = await super().use(**arguments)
        self.permits.release()
        return result


class ReportsLater(Around):
    """Breaks law 19: the report about each call is sent by a task that nobody ends."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        LEFT.append(asyncio.ensure_future(asyncio.sleep(3600)))
        return await super().use(**arguments)


class Apologizes(Around):
    """Breaks law 41: an agent that has failed, and may have had an effect, has an answer."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        try:
            return await super().use(**arguments)
        except (ExecutionFailed, ToolFailed):
            return "The expert is not available."


class SaysUnavailable(Around):
    """Breaks law 41: of an agent that has failed after an effect it says that nothing has happened."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        try:
            return await super().use(**arguments)
        except (ExecutionFailed, ToolFailed) as failure:
            raise ToolUnavailable("the expert is not available") from failure


class ForgetsTimeLimit(Around):
    """Breaks law 38: the time limit of the agent is gone."""

    policy = ToolPolicy(sequential=True)


class Retries(Around):
    """Breaks law 14: an agent that has failed does its work again."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        try:
            return await super().use(**arguments)
        except (ExecutionFailed, ToolFailed):
            return await super().use(**arguments)


class AsksTwice(Around):
    """Breaks law 14: the better of two answers is taken."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        first = await super().use(**arguments)
        second = await super().use(**arguments)
        return max(first, second, key=lambda answer: len(str(answer)))


# --- whose call it is ---------------------------------------------------------------------------------------------------------


class BindsInPlace(Around):
    """Breaks law 9: calls at the same time have one context."""

    def around(self, tool: Any) -> Self:
        self.tool = tool
        return self

    async def use(self, *_: Any, **arguments: Any) -> Any:
        await asyncio.sleep(0)  # as for a permit
        return await super().use(**arguments)


class AnswersFromMemory(Around):
    """Breaks law 9: an answer is kept for all who ask the same, whoever they are."""

    def __init__(self, tool: Tool) -> None:
        super().__init__(tool)
        self.answers: dict[str, Any] = {}

    async def use(self, *_: Any, **arguments: Any) -> Any:
        key = str(sorted(arguments.items()))
        if key not in self.answers:
            self.answers[key] = await super().use(**arguments)
        return self.answers[key]


class MixesAnswers(Around):
    """Breaks law 9: the answer waits where that of another call takes its place."""

    def __init__(self, tool: Tool) -> None:
        super().__init__(tool)
        self.shared: dict[str, Any] = {}

    async def use(self, *_: Any, **arguments: Any) -> Any:
        self.shared["answer"] = await super().use(**arguments)
        await asyncio.sleep(0.001)
        return self.shared["answer"]


# --- what is declared -----------------------------------------------------------------------------------------------------------


class SaysPure(Around):
    """Breaks law 38: an agent with effects is called pure, so that it starts early."""

    @property
    def effect(self) -> Effect:
        return Effect.PURE


class ForgetsEgress(Around):
    """Breaks law 38: data can leave by the agent, and the tool says that they cannot."""

    egress = False


class ForgetsPlace(Around):
    """Breaks law 38: an executor may send the call to another process."""

    is_local = False


class ForgetsDependencies(ForgetsToContinue, CanContinueCall, CanLabelResult):
    """Breaks law 38: dependencies of the wrong type are found when a tool of the agent runs."""

    continues_calls = True


class AcceptsAnything(Around):
    """Breaks law 17: the arguments of the agent are not checked."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object"}


# --- labels -------------------------------------------------------------------------------------------------------------------


class VouchesForAgents(Around):
    """Breaks law 50: what an agent has read elsewhere is taken for its own words."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        result = await super().use(**arguments)
        return ToolResult(result.value, result.content, label=CLEAN) if isinstance(result, ToolResult) else result


class HidesTheAuthor(Around):
    """Breaks law 50: the agent does not know who had a part in its task."""

    def with_tool_context(self, context: ToolContext) -> Self:
        return super().with_tool_context(evolve(context, label=None if context.label is None else CLEAN))


# --- handoffs -------------------------------------------------------------------------------------------------------------------


class ForgetsTheTool(Tool, CanAccessState, CanAccessToolCall, CanAccessToolContext, CanContinueCall, CanLabelResult):
    """Breaks law 40: the tool inside has another attribute, so that nobody finds the loop that a handoff leads to."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    name = property(lambda self: self.inner.name)
    description = property(lambda self: self.inner.description)
    parameters = property(lambda self: self.inner.parameters)
    effect = property(lambda self: self.inner.effect)
    egress = property(lambda self: self.inner.egress)
    policy = property(lambda self: self.inner.policy)
    is_local = property(lambda self: self.inner.is_local)
    continues_calls = property(lambda self: isinstance(self.inner, CanContinueCall))

    def with_agent_state(self, state: AgentState) -> Self:
        return type(self)(self.inner.with_agent_state(state))

    def with_tool_call(self, call: ToolCall) -> Self:
        is_bound = isinstance(self.inner, CanAccessToolCall)
        return type(self)(self.inner.with_tool_call(call)) if is_bound else self

    def with_tool_context(self, context: ToolContext) -> Self:
        return type(self)(self.inner.with_tool_context(context))

    async def use(self, *_: Any, **arguments: Any) -> Any:
        return await self.inner.use(**arguments)


class SaysMore(Around):
    """Breaks law 40: the text of an accepted handoff is another one, and the conversation stays where it was."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        result = await super().use(**arguments)
        return f"{self.name}: {result}" if isinstance(result, str) else result


class AcceptsAll(Around):
    """Breaks law 40: of two handoffs in a step, each is told that it has the conversation."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        try:
            return await super().use(**arguments)
        except ToolFailed as failure:
            if "already" in str(failure):
                return "the conversation is handed over"
            raise


class NeedsNothing(Around, CanRequireDependencies):
    """Breaks law 38: the dependencies of an execution are not checked before it begins."""

    def check_dependencies(self, dependencies: object) -> None:
        """Check nothing."""


def _agent(law: int, wrapper: Any) -> Member:
    return Member(wrapper, law, lambda examples: AgentToolKit(wrapper, examples=examples))


AGENTS: tuple[Member, ...] = (
    _agent(9, BindsInPlace),
    _agent(9, AnswersFromMemory),
    _agent(9, MixesAnswers),
    _agent(14, Retries),
    _agent(14, AsksTwice),
    _agent(16, CatchesEverything),
    _agent(16, HidesWhatWaits),
    _agent(16, ForgetsProgress),
    _agent(16, ForgetsResumption),
    _agent(17, AcceptsAnything),
    _agent(19, ReportsLater),
    _agent(27, StartsAfresh),
    _agent(27, NumbersAttempts),
    _agent(34, SwallowsCancellation),
    _agent(34, ShieldsAgents),
    _agent(34, KeepsPermits),
    _agent(38, SaysPure),
    _agent(38, ForgetsEgress),
    _agent(38, ForgetsPlace),
    _agent(38, ForgetsTimeLimit),
    _agent(38, ForgetsDependencies),
    _agent(38, NeedsNothing),
    _agent(40, ForgetsTheTool),
    _agent(40, SaysMore),
    _agent(40, AcceptsAll),
    _agent(41, Apologizes),
    _agent(41, SaysUnavailable),
    _agent(50, VouchesForAgents),
    _agent(50, HidesTheAuthor),
    _agent(59, OwnContext),
    _agent(59, Worker),
    _agent(59, HidesEvents),
    _agent(59, ForgetsDepth),
    _agent(59, OwnDependencies),
    _agent(59, OneAgentAtATime),
    _agent(59, ForgetsToContinue),
)
