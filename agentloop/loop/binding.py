"""Binding: the parts of a loop made into a run, once per execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from attrs import evolve, frozen

from agentloop.contracts.can_accept import (
    CanAcceptExecutionScope,
    CanAcceptLifecycle,
    CanAcceptMessageCompiler,
    CanAcceptOutputCheck,
    CanAcceptToolRuntime,
    CanAcceptTools,
    CanObserveReplay,
    OutputCheck,
)
from agentloop.contracts.can_compile_messages import CanCompileMessages
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import Tools
from agentloop.interception.interceptor import name_of
from agentloop.interception.stack import InterceptorStack
from agentloop.loop.parts import LoopParts
from agentloop.loop.resources import discovered, hold_groups, must_discover
from agentloop.values.state import AgentState
from agentloop.values.stop import Continuation

T = TypeVar("T")


def bound_executor(
    executor: CanExecuteToolCalls,
    tools: Tools,
    interceptor: InterceptorStack,
    events: CanHandleEvents,
    scope: ExecutionScope,
) -> CanExecuteToolCalls:
    """Return a copy of the executor for one execution, with whatever of this it accepts."""
    bound = executor
    if isinstance(bound, CanAcceptTools):
        bound = bound.with_tools(tools)
    return _with_surroundings(bound, interceptor, events, scope)


def bound_driver(
    driver: CanUseTools,
    tools: Tools,
    executor: CanExecuteToolCalls,
    compiler: CanCompileMessages | None,
    *,
    interceptor: InterceptorStack,
    events: CanHandleEvents,
    scope: ExecutionScope,
) -> CanUseTools:
    """Return a copy of the driver for one execution, with whatever of this it accepts."""
    bound = driver
    if isinstance(bound, CanAcceptToolRuntime):
        bound = bound.with_tool_runtime(tools, executor)
    if compiler is not None and isinstance(bound, CanAcceptMessageCompiler):
        bound = bound.with_compiler(compiler)
    return _with_surroundings(bound, interceptor, events, scope)


def _with_surroundings(given: T, interceptor: InterceptorStack, events: CanHandleEvents, scope: ExecutionScope) -> T:
    bound: Any = given
    if isinstance(bound, CanAcceptLifecycle):
        bound = bound.with_lifecycle(interceptor, events)
    if isinstance(bound, CanAcceptExecutionScope):
        bound = bound.with_execution_scope(scope)
    return cast("T", bound)


@frozen(eq=False, kw_only=True)
class BoundParts:
    """The parts of a loop as one execution uses them.

    Attributes:
        driver: the driver, bound.
        interceptor: the stack, bound.
        tools: the tools.
        read_output: reads final answers that have a type; None for text.
        driver_of: binds the driver to other tools.
    """

    driver: CanUseTools
    interceptor: InterceptorStack
    tools: Tools
    read_output: OutputCheck | None
    driver_of: Callable[[Tools], CanUseTools]

    def check_output(self, state: AgentState, continuation: Continuation) -> None:
        """Refuse a final answer that has not the type that was asked for, whatever the driver makes of it.

        Raises:
            InvalidOutput: when it has not.
        """
        if self.read_output is not None and state.has_final_response and not continuation.requested:
            self.read_output(state.final_text)

    async def held(self, scope: ExecutionScope) -> BoundParts:
        """Hold the groups of the tools until the execution ends; return the parts with what these have discovered.

        Raises:
            asyncio.CancelledError: when cancelled meanwhile.
        """
        if not self.tools.groups:
            return self
        log = scope.log
        if log is not None and isinstance(log, CanObserveReplay):  # nothing is started for those who only watch
            return evolve(self, driver=self.driver_of(log.known_tools(self.tools)))
        await hold_groups(self.tools.groups, scope.own)
        if not must_discover(self.tools):
            return self
        return evolve(self, driver=self.driver_of(await discovered(self.tools)))


def bind(loop: LoopParts, stack: InterceptorStack, events: CanHandleEvents, scope: ExecutionScope) -> BoundParts:
    """Bind the parts of a loop.

    Args:
        loop: the loop.
        stack: its interceptors, bound, and whatever else stands around them.
        events: the bus of the execution.
        scope: what the execution runs with.
    """
    check = None if loop.output_form is None else loop.output_form.read

    def driver_of(tools: Tools) -> CanUseTools:
        executor = bound_executor(loop.executor, tools, stack, events, scope)
        driver = bound_driver(
            loop.driver, tools, executor, loop.compiler, interceptor=stack, events=events, scope=scope
        )
        if check is not None and isinstance(driver, CanAcceptOutputCheck):
            driver = driver.with_output_check(check)
        return driver

    return BoundParts(
        driver=driver_of(loop.tools), interceptor=stack, tools=loop.tools, read_output=check, driver_of=driver_of
    )


def composition_of(loop: LoopParts, state: AgentState) -> dict[str, Any]:
    """Return what a loop is made of, as plain JSON data: names only, nothing that could be secret.

    Args:
        loop: the loop.
        state: the state with which an execution begins; it is told whether its instructions are the loop's own.
    """
    driver = loop.driver
    mode = getattr(driver, "mode", None) or getattr(driver, "output", None)
    told = mode if isinstance(mode, str) else getattr(mode, "name", None)
    return {
        "driver": type(driver).__name__,
        **({"mode": told} if isinstance(told, str) else {}),
        "compiler": type(loop.compiler or getattr(driver, "compiler", None)).__name__,
        "executor": type(loop.executor).__name__,
        "tools": list(loop.tools.names),
        "interceptors": [name_of(layer) for layer in loop.stack.layers],
        "own_prompt": state.execution_count == 1 and state.context.system_prompt == loop.system_prompt,
        "typed": loop.output_form is not None,
    }
