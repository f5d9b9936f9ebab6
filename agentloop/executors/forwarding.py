"""The base of executors that wrap another one."""

from __future__ import annotations

from typing import Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptLifecycle, CanAcceptTools
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls, CanStartCallsEagerly, EagerCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import Tools
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.inference import InferenceRequest
from agentloop.values.state import AgentState
from agentloop.values.value import instance_of


@frozen
class ForwardingExecutor(
    CanExecuteToolCalls, CanStartCallsEagerly, CanAcceptTools, CanAcceptLifecycle, CanAcceptExecutionScope
):
    """Forwards everything to another executor, so that a subclass only writes what it does differently.

    It has every contract by which a loop passes its parts to an executor, and passes each of them on if the other one accepts
    it. Override `execute_tools`, and await `self.inner.execute_tools(…)` in it. Raise what that raises: a `BatchInterrupted`
    carries the outcomes of the batch. If the subclass is cancelled before it has handed the batch over, `not_begun` makes the
    outcomes to carry. Decorate a subclass with `attrs.frozen` if it adds attributes.

        @frozen
        class TimedExecutor(ForwardingExecutor):
            times: list[float]

            async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
                began = perf_counter()
                try:
                    return await self.inner.execute_tools(tool_calls, state)
                finally:
                    self.times.append(perf_counter() - began)

    Attributes:
        inner: the executor that runs the calls.
    """

    inner: CanExecuteToolCalls = field(validator=instance_of(CanExecuteToolCalls))

    @property
    def strict(self) -> bool:
        """Whether the other executor coerces no arguments."""
        return self.inner.strict

    def local_tools(self, tools: Tools) -> Tools:
        """Return those of the tools that the other executor runs in this process."""
        return self.inner.local_tools(tools)

    def with_tools(self, tools: Tools) -> Self:
        """Return a copy whose other executor runs these tools.

        Raises:
            ToolDefinitionError: the parameters of a tool are not a valid JSON Schema.
        """
        inner = self.inner
        return evolve(self, inner=inner.with_tools(tools)) if isinstance(inner, CanAcceptTools) else self

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        """Return a copy whose other executor has these interceptors and this bus."""
        inner = self.inner
        if not isinstance(inner, CanAcceptLifecycle):
            return self
        return evolve(self, inner=inner.with_lifecycle(interceptor, events))

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose other executor has this clock, these ids and this log."""
        inner = self.inner
        if not isinstance(inner, CanAcceptExecutionScope):
            return self
        return evolve(self, inner=inner.with_execution_scope(scope))

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        """Execute a batch by the other executor.

        Raises:
            BatchInterrupted: what the other executor raises, with the outcomes of the batch.
            asyncio.CancelledError: the task was cancelled; raised from a `BatchInterrupted`.
        """
        return await self.inner.execute_tools(tool_calls, state)

    def eager_calls(self, request: InferenceRequest, state: AgentState) -> EagerCalls | None:
        """Return what starts calls before their batch; None if the other executor cannot.

        None as well in a subclass that overrides `execute_tools` and not this method: it may decide there which calls run.
        """
        depth = {name: _depth(type(self), name) for name in ("execute_tools", "eager_calls")}
        if depth["execute_tools"] < depth["eager_calls"] or not isinstance(self.inner, CanStartCallsEagerly):
            return None
        return self.inner.eager_calls(request, state)


def innermost_executor(executor: CanExecuteToolCalls) -> CanExecuteToolCalls:
    """Return the executor inside of all wrappers; one that is no wrapper is returned as it is."""
    while isinstance(executor, ForwardingExecutor):
        executor = executor.inner
    return executor


def _depth(cls: type, name: str) -> int:
    """Return the position of the class that defines a method, in the order of lookup."""
    return next(index for index, base in enumerate(cls.__mro__) if name in vars(base))
