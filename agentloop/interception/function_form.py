"""Interceptors made of one function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agentloop.contracts.can_intercept import Plain
from agentloop.interception.interceptor import Interceptor
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.points import (
    AfterExecution,
    AfterInference,
    AfterStep,
    AfterToolUse,
    AroundInference,
    AroundToolUse,
    BeforeExecution,
    BeforeInference,
    BeforeStep,
    BeforeToolUse,
    OnError,
    OnStop,
    ProceedInference,
    ProceedToolUse,
)
from agentloop.values.tool_execution import ToolExecution


class FunctionInterceptor(Interceptor):
    """One function at one point."""

    def __init__(self, point: str, function: Callable[..., Any], priority: int) -> None:
        if not callable(function):
            raise TypeError(f"{point}() takes a function, not {function!r}")
        self._point = point
        self._function = function
        self.priority = priority
        setattr(self, point, function)

    @property
    def points(self) -> frozenset[str]:
        """The one point."""
        return frozenset({self._point})

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self._function, "__name__", None) or repr(self._function)

    def __repr__(self) -> str:
        return f"{self._point}({self.name}, priority={self.priority})"


def before_execution(
    function: Callable[[BeforeExecution], Plain[BeforeExecution]], *, priority: int = 0
) -> Interceptor:
    """Call the function when an execution has begun."""
    return FunctionInterceptor("before_execution", function, priority)


def before_step(function: Callable[[BeforeStep], Plain[BeforeStep]], *, priority: int = 0) -> Interceptor:
    """Call the function before each step."""
    return FunctionInterceptor("before_step", function, priority)


def before_inference(
    function: Callable[[BeforeInference], Plain[BeforeInference]], *, priority: int = 0
) -> Interceptor:
    """Call the function before each inference."""
    return FunctionInterceptor("before_inference", function, priority)


def around_inference(
    function: Callable[[AroundInference, ProceedInference], Awaitable[InferenceResponse]], *, priority: int = 0
) -> Interceptor:
    """Wrap each inference in the function."""
    return FunctionInterceptor("around_inference", function, priority)


def after_inference(function: Callable[[AfterInference], Plain[AfterInference]], *, priority: int = 0) -> Interceptor:
    """Call the function after each inference."""
    return FunctionInterceptor("after_inference", function, priority)


def before_tool_use(function: Callable[[BeforeToolUse], Plain[BeforeToolUse]], *, priority: int = 0) -> Interceptor:
    """Call the function before each tool call."""
    return FunctionInterceptor("before_tool_use", function, priority)


def around_tool_use(
    function: Callable[[AroundToolUse, ProceedToolUse], Awaitable[ToolExecution]], *, priority: int = 0
) -> Interceptor:
    """Wrap each tool call in the function."""
    return FunctionInterceptor("around_tool_use", function, priority)


def after_tool_use(function: Callable[[AfterToolUse], Plain[AfterToolUse]], *, priority: int = 0) -> Interceptor:
    """Call the function after each tool call."""
    return FunctionInterceptor("after_tool_use", function, priority)


def after_step(function: Callable[[AfterStep], Plain[AfterStep]], *, priority: int = 0) -> Interceptor:
    """Call the function after each step."""
    return FunctionInterceptor("after_step", function, priority)


def on_stop(function: Callable[[OnStop], Plain[OnStop]], *, priority: int = 0) -> Interceptor:
    """Call the function when the execution is going to stop."""
    return FunctionInterceptor("on_stop", function, priority)


def after_execution(function: Callable[[AfterExecution], Plain[AfterExecution]], *, priority: int = 0) -> Interceptor:
    """Call the function when the execution has stopped."""
    return FunctionInterceptor("after_execution", function, priority)


def on_error(function: Callable[[OnError], Plain[OnError]], *, priority: int = 0) -> Interceptor:
    """Call the function when something other than a tool went wrong."""
    return FunctionInterceptor("on_error", function, priority)
