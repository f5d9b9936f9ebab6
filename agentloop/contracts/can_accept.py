"""The contracts by which a loop passes its parts to drivers, executors, inferences and interceptors, once per execution.

Each method returns a copy, so the objects of the user are not changed and several executions can be bound at the same time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self, TypeAlias

from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import Tools
from agentloop.values.points import Point


class CanAcceptTools(ABC):
    """Accepts the tools of the loop; implemented by executors."""

    @abstractmethod
    def with_tools(self, tools: Tools) -> Self:
        """Return a copy that uses these tools."""


class CanAddTools(ABC):
    """Needs tools besides those of the loop; implemented by drivers."""

    @abstractmethod
    def add_tools(self, tools: Tools) -> Tools:
        """Return the tools with those that it needs; a tool that is there under the same name is kept.

        Raises:
            ConfigurationError: a tool that it needs cannot be made, for example because an extra is not installed.
        """


class CanAcceptToolRuntime(ABC):
    """Accepts the tools and the executor of the loop; implemented by drivers."""

    @abstractmethod
    def with_tool_runtime(self, tools: Tools, executor: CanExecuteToolCalls) -> Self:
        """Return a copy that offers these tools and passes their calls to this executor."""


class CanAcceptLifecycle(ABC):
    """Accepts the interceptors and the event bus of the loop, so that one stack and one bus serve the whole execution."""

    @abstractmethod
    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        """Return a copy that calls this interceptor at its points and emits to this bus."""


class CanAcceptExecutionScope(ABC):
    """Accepts the scope of one execution."""

    @abstractmethod
    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that uses the clock, ids, resources and log of this scope."""


OutputCheck: TypeAlias = Callable[[str], object]
"""Parses the text of a final answer; raises `InvalidOutput` if it does not have the required format."""


class CanAcceptOutputCheck(ABC):
    """Accepts a check of final answers; implemented by drivers that can request another answer."""

    @abstractmethod
    def with_output_check(self, check: OutputCheck) -> Self:
        """Return a copy that requests another final answer when the check refuses one."""


class CanObserveReplay(ABC):
    """Observes the interceptors of a replayed execution and leaves out those with external effects; implemented by its log."""

    @abstractmethod
    def admits(self, interceptor: CanIntercept) -> bool:
        """Return whether an interceptor takes part in the execution."""

    @abstractmethod
    def before_interceptor(self, interceptor: str, point: str) -> None:
        """Observe that an interceptor is about to run.

        Args:
            interceptor: its name.
            point: the name of the point.
        """

    @abstractmethod
    def after_interceptor(self, interceptor: str, point: str, before: Point, after: Point) -> None:
        """Observe the context of a point before and after an interceptor ran.

        Args:
            interceptor: its name.
            point: the name of the point.
            before: the context that it received.
            after: the context that it returned.
        """

    @abstractmethod
    def with_recorded_tools(self, tools: Tools) -> Tools:
        """Return the tools with the recorded tools of groups that would have to be started to discover them."""
