"""A tool as an ensemble offers it: with what the ensemble changes about it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop.contracts.tool import (
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanContinueCall,
    CanPrepareArguments,
    CanPresentResult,
    CanProbeCall,
    CanUseThread,
    Tool,
)
from agentloop.contracts.tool_context import ToolContext
from agentloop.contracts.tool_policy import ToolPolicy
from agentloop.errors import ToolUnavailable
from agentloop.tools.ensembles.lifecycle import Lifecycle
from agentloop.tools.presentation import present
from agentloop.tools.validation import validator_of
from agentloop.values.agent_state import AgentState
from agentloop.values.in_doubt import CannotTell, Probed
from agentloop.values.json_value import EMPTY_OBJECT, JsonObject, thaw
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_result import ToolResult
from agentloop.values.tool_spec import Effect, ToolSpec


@frozen(eq=False)
class GroupedTool(
    Tool,
    CanPrepareArguments,
    CanPresentResult,
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanProbeCall,
    CanContinueCall,
):
    """A tool with another spec or policy, with defaults, or that has to be started; else it behaves as the tool it is made of.

    Attributes:
        tool: the tool it is made of.
        spec: what a model sees.
        policy: how it wants to be run.
        defaults: arguments that stand for those a call leaves out.
        ensemble: the name of the ensemble it belongs to.
        lifecycle: what has to be started before it is used; None when nothing has to be.
    """

    tool: Tool
    spec: ToolSpec = field(repr=False)
    policy: ToolPolicy = field(repr=False)
    defaults: JsonObject = EMPTY_OBJECT
    ensemble: str = ""
    lifecycle: Lifecycle | None = field(default=None, repr=False)
    _problem: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """The name by which a model calls it."""
        return self.spec.name

    @property
    def description(self) -> str:
        """What it does and when to use it."""
        return self.spec.description

    @property
    def parameters(self) -> JsonObject:
        """A JSON Schema of what a model gives."""
        return self.spec.parameters

    @property
    def effect(self) -> Effect:
        """What calling it does to the world."""
        return self.spec.effect

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Do it.

        Raises:
            ToolUnavailable: when the ensemble could not be started.
        """
        self._check_available()
        return await self.tool.use(**arguments)

    async def probe(self, **arguments: Any) -> Probed:
        """Ask the tool what became of a call, if it can find out.

        Raises:
            ToolUnavailable: when the ensemble could not be started.
        """
        self._check_available()
        return await self.tool.probe(**arguments) if isinstance(self.tool, CanProbeCall) else CannotTell()

    @property
    def continues_calls(self) -> bool:
        """Whether the tool goes on with a call that was interrupted by itself."""
        return isinstance(self.tool, CanContinueCall) and self.tool.continues_calls

    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Add the defaults, and turn the arguments into what the tool takes.

        Raises:
            InvalidArguments: when one does not fit, alone or together with the defaults.
        """
        left_out = {name: thaw(value) for name, value in self.defaults.items() if name not in arguments}
        if left_out:
            arguments = {**arguments, **left_out}
            validator_of(self.spec).validate(arguments)
        return self.tool.prepare(arguments) if isinstance(self.tool, CanPrepareArguments) else arguments

    def present(self, result: Any) -> ToolResult:
        """Turn the result into JSON as the tool does.

        Raises:
            ToolFailed: when it has no JSON form.
        """
        return self.tool.present(result) if isinstance(self.tool, CanPresentResult) else present(result)

    def with_agent_state(self, state: AgentState) -> Self:
        """Return a copy that may read this state, if the tool wants it."""
        return self._of(self.tool.with_agent_state(state)) if isinstance(self.tool, CanAccessAgentState) else self

    def with_tool_call(self, call: ToolCall) -> Self:
        """Return a copy that serves this call, if the tool wants it."""
        return self._of(self.tool.with_tool_call(call)) if isinstance(self.tool, CanAccessToolCall) else self

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy that serves this context, and knows whether the ensemble runs in this event loop."""
        bound = self._of(self.tool.with_tool_context(context)) if isinstance(self.tool, CanAccessToolContext) else self
        problem = "" if self.lifecycle is None else self.lifecycle.problem()
        return evolve(bound, problem=problem) if problem else bound

    def _of(self, tool: Tool) -> Self:
        return self if tool is self.tool else evolve(self, tool=tool)

    def _check_available(self) -> None:
        if self._problem:
            raise ToolUnavailable(
                f"the tool {self.name!r} of the ensemble {self.ensemble!r} cannot be used now: {self._problem}"
            )


@frozen(eq=False)
class GroupedThreadTool(GroupedTool, CanUseThread):
    """The same for a tool whose work is a plain, blocking function."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Do it in a thread of asyncio's.

        Raises:
            ToolUnavailable: when the ensemble could not be started.
        """
        return await asyncio.to_thread(self.use_in_thread, **arguments)

    def use_in_thread(self, **arguments: Any) -> Any:
        """Do it, blocking.

        Raises:
            ToolUnavailable: when the ensemble could not be started.
        """
        self._check_available()
        tool = self.tool
        assert isinstance(tool, CanUseThread)  # noqa: S101  # this class is made only for such tools
        return tool.use_in_thread(**arguments)
