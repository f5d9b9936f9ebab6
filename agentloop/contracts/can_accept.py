"""What the loop binds into a driver, an executor, an inference or an interceptor, once per execution.

Binding makes a copy: what a user passed in is not changed, and any number of executions may be bound at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self, TypeAlias

from agentloop.contracts.can_compile_messages import CanCompileMessages
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import Tools
from agentloop.values.points import Point


class CanAcceptTools(ABC):
    """Takes the tools of the loop; executors do."""

    @abstractmethod
    def with_tools(self, tools: Tools) -> Self:
        """Return a copy that works with these tools."""


class CanAcceptToolRuntime(ABC):
    """Takes the tools and the executor of the loop; drivers do."""

    @abstractmethod
    def with_tool_runtime(self, tools: Tools, executor: CanExecuteToolCalls) -> Self:
        """Return a copy that offers these tools and has their calls run by this executor."""


class CanAcceptMessageCompiler(ABC):
    """Takes the message compiler of the loop; drivers do."""

    @abstractmethod
    def with_compiler(self, compiler: CanCompileMessages) -> Self:
        """Return a copy whose model sees what this compiler makes of the state."""


class CanAcceptLifecycle(ABC):
    """Takes the interceptors and the events of the loop, so that one stack and one wiretap serve the whole execution."""

    @abstractmethod
    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        """Return a copy that passes these points and emits to this bus."""


class CanAcceptExecutionScope(ABC):
    """Takes what one execution runs with."""

    @abstractmethod
    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that uses this clock, these ids and these resources."""


OutputCheck: TypeAlias = Callable[[str], object]
"""Reads the text of a final answer; raises `InvalidOutput` when it is not of the form that was asked for."""


class CanAcceptOutputCheck(ABC):
    """Takes the check of final answers; drivers that can ask again do."""

    @abstractmethod
    def with_output_check(self, check: OutputCheck) -> Self:
        """Return a copy that asks again for a final answer which the check refuses."""


class CanObserveReplay(ABC):
    """Sees what each interceptor does, and keeps out what would touch the world. The log of a replay does."""

    @abstractmethod
    def admits(self, interceptor: CanIntercept) -> bool:
        """Say whether an interceptor stands in the execution."""

    @abstractmethod
    def before_interceptor(self, interceptor: str, point: str) -> None:
        """See that an interceptor is about to do its work at a point."""

    @abstractmethod
    def after_interceptor(self, interceptor: str, point: str, before: Point, after: Point) -> None:
        """See what an interceptor has made of a point."""

    @abstractmethod
    def with_recorded_tools(self, tools: Tools) -> Tools:
        """Return the tools with those that a group would have to be started for to know."""
