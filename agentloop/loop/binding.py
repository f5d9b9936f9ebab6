"""Binding: the parts of a loop made into a run, once per execution."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from agentloop.contracts.can_accept import (
    CanAcceptExecutionScope,
    CanAcceptLifecycle,
    CanAcceptMessageCompiler,
    CanAcceptToolRuntime,
    CanAcceptTools,
)
from agentloop.contracts.can_compile_messages import CanCompileMessages
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import Tools
from agentloop.interception.stack import InterceptorStack

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
