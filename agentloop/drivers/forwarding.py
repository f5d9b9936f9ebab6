"""The base of drivers that wrap another one."""

from __future__ import annotations

from typing import Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import (
    CanAcceptExecutionScope,
    CanAcceptLifecycle,
    CanAcceptOutputCheck,
    CanAcceptToolRuntime,
    CanAddTools,
    OutputCheck,
)
from agentloop.contracts.can_compile_messages import CanAcceptMessageCompiler, CanCompileMessages
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import Tools
from agentloop.values.state import AgentState
from agentloop.values.value import Value, instance_of


@frozen(eq=False, repr=False)
class ForwardingDriver(
    Value,
    CanUseTools,
    CanAddTools,
    CanAcceptToolRuntime,
    CanAcceptMessageCompiler,
    CanAcceptLifecycle,
    CanAcceptExecutionScope,
    CanAcceptOutputCheck,
):
    """Forwards everything to another driver, so that a subclass only writes what it does differently.

    It has every contract by which a loop passes its parts to a driver, and passes each of them on if the other one accepts it.
    Override `use_tools`, and await `self.inner.use_tools(state)` in it. Raise what that raises: a `StepInterrupted` carries
    the step so far. Decorate a subclass with `attrs.frozen` if it adds attributes.

        @frozen
        class TimedDriver(ForwardingDriver):
            times: list[float]

            async def use_tools(self, state: AgentState) -> AgentState:
                began = perf_counter()
                try:
                    return await self.inner.use_tools(state)
                finally:
                    self.times.append(perf_counter() - began)

    Attributes:
        inner: the driver that takes the steps.
    """

    inner: CanUseTools = field(validator=instance_of(CanUseTools))

    def add_tools(self, tools: Tools) -> Tools:
        """Return the tools with those that the other driver needs.

        Raises:
            ConfigurationError: a tool that it needs cannot be made.
        """
        return self.inner.add_tools(tools) if isinstance(self.inner, CanAddTools) else tools

    def with_tool_runtime(self, tools: Tools, executor: CanExecuteToolCalls) -> Self:
        """Return a copy whose other driver offers these tools and passes their calls to this executor."""
        inner = self.inner
        if not isinstance(inner, CanAcceptToolRuntime):
            return self
        return evolve(self, inner=inner.with_tool_runtime(tools, executor))

    def with_compiler(self, compiler: CanCompileMessages) -> Self:
        """Return a copy whose other driver uses the messages of this compiler."""
        inner = self.inner
        return (
            evolve(self, inner=inner.with_compiler(compiler)) if isinstance(inner, CanAcceptMessageCompiler) else self
        )

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        """Return a copy whose other driver has these interceptors and this bus."""
        inner = self.inner
        if not isinstance(inner, CanAcceptLifecycle):
            return self
        return evolve(self, inner=inner.with_lifecycle(interceptor, events))

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose other driver has this clock, these ids and these resources."""
        inner = self.inner
        if not isinstance(inner, CanAcceptExecutionScope):
            return self
        return evolve(self, inner=inner.with_execution_scope(scope))

    def with_output_check(self, check: OutputCheck) -> Self:
        """Return a copy whose other driver requests another final answer when the check refuses one."""
        inner = self.inner
        return evolve(self, inner=inner.with_output_check(check)) if isinstance(inner, CanAcceptOutputCheck) else self

    async def use_tools(self, state: AgentState) -> AgentState:
        """Take a step by the other driver.

        Raises:
            StepInterrupted: what the other driver raises, with the step so far.
            asyncio.CancelledError: the task was cancelled; raised from a `StepInterrupted` if there is a state to carry.
        """
        return await self.inner.use_tools(state)


def innermost_driver(driver: CanUseTools) -> CanUseTools:
    """Return the driver inside of all wrappers; one that is no wrapper is returned as it is."""
    while isinstance(driver, ForwardingDriver):
        driver = driver.inner
    return driver
