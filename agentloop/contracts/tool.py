"""The contract of tools, and what else a tool may be able to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from agentloop.contracts.tool_context import ToolContext
from agentloop.contracts.tool_policy import DEFAULT_POLICY, ToolPolicy
from agentloop.values.agent_state import AgentState
from agentloop.values.in_doubt import Probed
from agentloop.values.json_value import freeze_object
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_result import ToolResult
from agentloop.values.tool_spec import Effect, ToolSpec


class Tool(ABC):
    """Something a model can call.

    An implementer keeps these laws:

    - It is called with arguments that satisfy `parameters`, never with others (law 17).
    - It keeps nothing of a call, so that calls may run at the same time (law 9).
    - It does not change what it is given (law 3).
    - What it does to the world is what `effect` says (law 14).
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name by which a model calls it; a class attribute will do."""

    @property
    @abstractmethod
    def description(self) -> str:
        """What it does and when to use it, for the model; a class attribute will do."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Any]:
        """A JSON Schema of type object; a class attribute will do."""

    @property
    def effect(self) -> Effect:
        """What calling it does to the world; a class attribute will do. `Effect.EFFECT` unless it says otherwise."""
        return Effect.EFFECT

    @property
    def policy(self) -> ToolPolicy:
        """How it wants to be run; a class attribute will do."""
        return DEFAULT_POLICY

    @property
    def spec(self) -> ToolSpec:
        """What a model sees: name, description and parameters as one value."""
        return ToolSpec(self.name, self.description, freeze_object(self.parameters), self.effect)

    @abstractmethod
    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Do it.

        An implementer declares its own keyword parameters in place of `**arguments`.

        Args:
            **arguments: the arguments of the call, by name.

        Returns:
            JSON data; a part such as `Image` or a sequence of parts, which the model is shown; a `ToolResult`; or, of a
            tool that is `CanPresentResult`, whatever its `present` takes.

        Raises:
            AgentStop: to stop the execution.
            CallSuspended: to let the call wait for a decision; then it is used again, with what it left in the context.
            Exception: anything else makes the call fail; the model is told the message.
        """


class CanPrepareArguments(ABC):
    """A tool that takes its arguments in other types than JSON's."""

    @abstractmethod
    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Turn arguments that satisfy the schema into what `use` takes.

        Raises:
            InvalidArguments: when a value does not fit its type after all; names the path.
        """


class CanPresentResult(ABC):
    """A tool whose results have another type than JSON's, or a declared type that they have to fit."""

    @abstractmethod
    def present(self, result: Any) -> ToolResult:
        """Turn what `use` returned into JSON, and into what the model is shown where that differs.

        Raises:
            ToolFailed: when the result does not fit the declared type, or has no JSON form.
        """


class CanUseThread(ABC):
    """A tool whose work is a plain, blocking function: an executor runs it in a thread instead of awaiting `use`."""

    @abstractmethod
    def use_in_thread(self, **arguments: Any) -> Any:
        """Do it, blocking."""


class CanAccessAgentState(ABC):
    """A tool that reads the agent's state. The state is injected: it is never in the schema and never the model's."""

    @abstractmethod
    def with_agent_state(self, state: AgentState) -> Self:
        """Return a copy that may read this state."""


class CanAccessToolCall(ABC):
    """A tool that wants to know the call it serves."""

    @abstractmethod
    def with_tool_call(self, call: ToolCall) -> Self:
        """Return a copy that serves this call."""


class CanAccessToolContext(ABC):
    """A tool that wants the context of its call: idempotency key, progress, the program's dependencies."""

    @abstractmethod
    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy that serves this context."""


class CanProbeCall(ABC):
    """A tool that can find out whether a call of its own that was interrupted has run, as by asking the service it calls."""

    @abstractmethod
    async def probe(self, **arguments: Any) -> Probed:
        """Find out.

        The tool is bound as for `use`: `ToolContext.idempotency_key` is the one that the call had.

        Args:
            **arguments: the arguments of the call, by name.

        Returns:
            `happened(value)`, whose value settles the call; `did_not_happen()`, with which it is run; or `cannot_tell(reason)`.

        Raises:
            Exception: anything means that it cannot be found out now.
        """


class CanContinueCall(ABC):
    """A tool that writes down itself what it does: used again for a call that was interrupted, it goes on from there."""

    @property
    @abstractmethod
    def continues_calls(self) -> bool:
        """Whether it does."""
