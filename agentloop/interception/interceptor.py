"""What users subclass to change what happens."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar

from agentloop.contracts.can_intercept import CanIntercept, Plain
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
