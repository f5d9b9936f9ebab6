"""The read-only view of a loop that its executions use."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from agentloop.contracts.can_compile_messages import CanCompileMessages
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.tools import Tools
from agentloop.interception.stack import InterceptorStack
from agentloop.tools.output_type import OutputType
from agentloop.values.bounds import Bounds
from agentloop.values.state import SystemPrompt


@runtime_checkable
class LoopParts(Protocol):
    """The parts of a loop that are bound into an execution.

    `AgentLoop` has them. A run, its handoffs and the binding of its parts see a loop through this view only, so that
    `agent_loop` can import them and not the other way around.
    """

    @property
    def driver(self) -> CanUseTools:
        """The driver, not yet bound."""

    @property
    def tools(self) -> Tools:
        """The tools, without those that their groups discover when an execution begins."""

    @property
    def executor(self) -> CanExecuteToolCalls:
        """The executor, not yet bound."""

    @property
    def compiler(self) -> CanCompileMessages | None:
        """The message compiler; None for the driver's default."""

    @property
    def stack(self) -> InterceptorStack:
        """The interceptors in the order in which they run."""

    @property
    def output_form(self) -> OutputType | None:
        """The compiled type of final answers; None for text."""

    @property
    def system_prompt(self) -> SystemPrompt:
        """The instructions of agents that are created by this loop, or the function that returns them."""

    @property
    def bounds(self) -> Bounds:
        """The bounds on the work that models, tools and servers can cause."""
