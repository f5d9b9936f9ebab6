"""What users subclass to change what happens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from agentloop.contracts.can_intercept import CanIntercept, Plain
from agentloop.values.inference import InferenceResponse
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
from agentloop.values.tool_calls import ToolExecution

POINTS: tuple[str, ...] = (
    "before_execution",
    "before_step",
    "before_inference",
    "around_inference",
    "after_inference",
    "before_tool_use",
    "around_tool_use",
    "after_tool_use",
    "after_step",
    "on_stop",
    "after_execution",
    "on_error",
)
"""The names of all points, in the order in which a step passes them."""


class Interceptor(CanIntercept):
    """Stands in the loop and may change what happens: subclass it and override the points you need.

    A point may be a plain or an async method. It returns the context it was given, or a changed copy of it; an `around`
    point awaits `proceed()` and returns what came of it.

    Attributes:
        priority: higher goes first on the way in and last on the way out; equal ones keep the order in which they were
            given.
        touches_world: whether it reads or writes anything beside the run: a file, a network, another program. A replay
            leaves it out, since it must not do so again.
    """

    priority: int = 0
    touches_world: bool = False
    _points: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Note which points the subclass overrides."""
        super().__init_subclass__(**kwargs)
        cls._points = frozenset(name for name in POINTS if getattr(cls, name) is not getattr(Interceptor, name))

    @property
    def points(self) -> frozenset[str]:
        """The names of the points that this class overrides."""
        return self._points

    @property
    def name(self) -> str:
        """The name in events and errors: that of the class."""
        return type(self).__name__

    def before_execution(self, point: BeforeExecution) -> Plain[BeforeExecution]:
        """An execution has begun: change the state, or stop."""
        return point

    def before_step(self, point: BeforeStep) -> Plain[BeforeStep]:
        """A step is about to begin: change the state, or stop."""
        return point

    def before_inference(self, point: BeforeInference) -> Plain[BeforeInference]:
        """A model is about to be asked: change the request or the state, or answer in the model's place."""
        return point

    def around_inference(self, point: AroundInference, proceed: ProceedInference) -> Awaitable[InferenceResponse]:
        """A model is being asked: await `proceed()`, as often as it takes, or return a response without it."""
        return proceed()

    def after_inference(self, point: AfterInference) -> Plain[AfterInference]:
        """A model has answered: change the response or the state."""
        return point

    def before_tool_use(self, point: BeforeToolUse) -> Plain[BeforeToolUse]:
        """A valid call is about to run: change the call or the state, block, answer or suspend."""
        return point

    def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> Awaitable[ToolExecution]:
        """A tool is running: await `proceed()`, as often as it takes, or return an execution without it."""
        return proceed()

    def after_tool_use(self, point: AfterToolUse) -> Plain[AfterToolUse]:
        """A call has been settled: change the outcome or the state."""
        return point

    def after_step(self, point: AfterStep) -> Plain[AfterStep]:
        """A step has been taken: change the state, stop, or ask to go on."""
        return point

    def on_stop(self, point: OnStop) -> Plain[OnStop]:
        """The execution is going to stop: change the state."""
        return point

    def after_execution(self, point: AfterExecution) -> Plain[AfterExecution]:
        """The execution has stopped: change the state."""
        return point

    def on_error(self, point: OnError) -> Plain[OnError]:
        """Something other than a tool went wrong: change the error, or recover."""
        return point


def name_of(interceptor: CanIntercept) -> str:
    """Return the name of an interceptor in events and errors."""
    return interceptor.name if isinstance(interceptor, Interceptor) else type(interceptor).__name__


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
