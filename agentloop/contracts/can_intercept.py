"""The contract of interceptors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import TypeAlias, TypeVar

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

T = TypeVar("T")
Plain: TypeAlias = T | Awaitable[T]
"""What a point returns: the value, or something to await it from."""


class CanIntercept(ABC):
    """Stands in the loop and may change what happens.

    An implementer keeps these laws:

    - A point returns a context of the type that it was given; what may change there is what the context has methods for.
    - It keeps nothing of an execution, unless it says so; one interceptor serves any number of executions (law 9).
    - One that raises stops what it guards: the call or the inference does not happen (law 11).
    - `points` names every point that it does anything at; the others cost nothing.
    """

    @property
    @abstractmethod
    def points(self) -> frozenset[str]:
        """The names of the points at which it does anything, such as `before_step`."""

    @abstractmethod
    def before_execution(self, point: BeforeExecution) -> Plain[BeforeExecution]:
        """An execution has begun."""

    @abstractmethod
    def before_step(self, point: BeforeStep) -> Plain[BeforeStep]:
        """A step is about to begin."""

    @abstractmethod
    def before_inference(self, point: BeforeInference) -> Plain[BeforeInference]:
        """A model is about to be asked."""

    @abstractmethod
    def around_inference(self, point: AroundInference, proceed: ProceedInference) -> Awaitable[InferenceResponse]:
        """A model is being asked: await `proceed()` for its answer, or return one without it."""

    @abstractmethod
    def after_inference(self, point: AfterInference) -> Plain[AfterInference]:
        """A model has answered."""

    @abstractmethod
    def before_tool_use(self, point: BeforeToolUse) -> Plain[BeforeToolUse]:
        """A valid call is about to run."""

    @abstractmethod
    def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> Awaitable[ToolExecution]:
        """A tool is running: await `proceed()` for its execution, or return one without it."""

    @abstractmethod
    def after_tool_use(self, point: AfterToolUse) -> Plain[AfterToolUse]:
        """A call has been settled."""

    @abstractmethod
    def after_step(self, point: AfterStep) -> Plain[AfterStep]:
        """A step has been taken."""

    @abstractmethod
    def on_stop(self, point: OnStop) -> Plain[OnStop]:
        """The execution is going to stop."""

    @abstractmethod
    def after_execution(self, point: AfterExecution) -> Plain[AfterExecution]:
        """The execution has stopped."""

    @abstractmethod
    def on_error(self, point: OnError) -> Plain[OnError]:
        """Something other than a tool went wrong."""
