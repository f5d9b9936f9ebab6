"""Tools prepared for calls: schemas compiled, policies and abilities read, once per tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentloop.contracts.tool import (
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanCallTools,
    CanContinueCall,
    CanLabelResult,
    CanPresentResult,
    CanUseInline,
    CanUseThread,
    Tool,
    ToolContext,
    ToolPolicy,
)
from agentloop.contracts.tools import Tools
from agentloop.errors import CallNotAllowed, ToolFailed, UnknownTool
from agentloop.tools.fitting import fit_call, prepare_arguments
from agentloop.tools.presentation import present
from agentloop.tools.validation import validator_of
from agentloop.values.bounds import Bounds
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolCall, ToolResult, ToolSpec

_MAX_NAME_CHARACTERS = 200
_MAX_LISTED_NAMES = 100


class Toolbox:
    """The tools of one execution, each prepared when it is first called.

    Attributes:
        tools: the tools.
    """

    __slots__ = ("_ready", "tools")

    def __init__(self, tools: Tools) -> None:
        self.tools: Tools = tools
        self._ready: dict[str, ReadyTool] = {}

    def get(self, name: str) -> ReadyTool:
        """Return the tool of this name.

        Raises:
            UnknownTool: no tool has this name; the message suggests similar names.
            ToolDefinitionError: its parameters are not a valid JSON Schema.
        """
        ready = self._ready.get(name)
        if ready is None:
            tool, spec = self.tools.get(name), self.tools.spec(name)
            if tool is None or spec is None:
                raise UnknownTool(self._unknown_tool_message(name))
            # Prepared when first called: most executions use few of their tools.
            ready = self._ready[name] = ReadyTool(tool, spec)
        return ready

    def group_name(self, name: str) -> str:
        """Return the name of the group that contains a tool; empty for a tool outside of groups."""
        return self.tools.group_names.get(name, "") if self.tools.groups else ""

    def check_schemas(self) -> None:
        """Compile every schema, so that an invalid one is reported before any tool runs.

        Raises:
            ToolDefinitionError: for the first invalid schema.
        """
        for spec in self.tools.specs:
            validator_of(spec)

    def _unknown_tool_message(self, name: str) -> str:
        is_short = len(name) <= _MAX_NAME_CHARACTERS
        shown = name if is_short else f"{name[:_MAX_NAME_CHARACTERS]}…"
        if not len(self.tools):
            return f"there is no tool {shown!r}: no tools are offered; answer in text"
        # Similarity is not computed for a very long name: it takes time quadratic in its length.
        closest = self.tools.closest(name) if is_short else []
        if closest:
            return f"there is no tool {shown!r}; did you mean {' or '.join(map(repr, closest))}?"
        names = self.tools.names
        more = f" and {len(names) - _MAX_LISTED_NAMES} more" if len(names) > _MAX_LISTED_NAMES else ""
        return f"there is no tool {shown!r}; the tools are {', '.join(names[:_MAX_LISTED_NAMES])}{more}"


def is_agent(tool: Tool) -> bool:
    """Return whether a tool labels its results and records calls of its own, which pass the interceptors that use labels."""
    return isinstance(tool, CanLabelResult) and isinstance(tool, CanContinueCall) and tool.continues_calls


class ReadyTool:
    """A tool prepared for calls.

    Attributes:
        tool: the tool.
        spec: its name, schema and effect.
        policy: its policy, read once per execution.
        uses_thread: whether it runs in a thread.
        is_inline: whether it runs in the event loop without waiting.
        calls_tools: whether it makes calls itself.
        runs_alone: whether a call runs after all calls before it, and before all calls after it.
        is_agent: whether it is an agent whose calls pass the interceptors that use labels.
    """

    __slots__ = (
        "_is_bound_to_calls",
        "calls_tools",
        "is_agent",
        "is_inline",
        "policy",
        "runs_alone",
        "spec",
        "tool",
        "uses_thread",
    )

    def __init__(self, tool: Tool, spec: ToolSpec) -> None:
        self.tool: Tool = tool
        self.spec: ToolSpec = spec
        self.policy: ToolPolicy = tool.policy
        self._is_bound_to_calls = tool.is_bound_to_calls
        # Read once: such a look at an abstract class takes as long as a call of a function, and each call needs several.
        self.uses_thread: bool = isinstance(tool, CanUseThread)
        self.is_inline: bool = isinstance(tool, CanUseInline)
        self.calls_tools: bool = isinstance(tool, CanCallTools)
        self.is_agent: bool = isinstance(tool, CanLabelResult) and is_agent(tool)
        # What interceptors make of the state in the calls that such a tool makes has to be complete before the next call.
        self.runs_alone: bool = self.policy.sequential or self.calls_tools
        validator_of(spec)  # compiled now, so that an invalid schema is found before anything is decided about a call

    def prepare(self, call: ToolCall, bounds: Bounds) -> Mapping[str, Any]:
        """Parse, validate and convert the arguments of a call that was admitted. Each invocation returns new objects.

        Raises:
            CallNotAllowed: the call must not run.
            MalformedArguments: they are not a JSON object.
            InvalidArguments: they do not match the schema or the types.
        """
        return self.admit(call, bounds, strict=True)[1]

    def admit(self, call: ToolCall, bounds: Bounds, *, strict: bool) -> tuple[ToolCall, Mapping[str, Any]]:
        """Return a call as it runs, with coerced arguments if necessary, and its arguments as the tool takes them.

        Args:
            call: the call.
            bounds: the bounds on the check.
            strict: whether nothing is coerced.

        Raises:
            CallNotAllowed: the call must not run.
            MalformedArguments: they are not a JSON object.
            InvalidArguments: they do not match the schema or the types.
        """
        if call.rejection:
            raise CallNotAllowed(call.rejection)
        fitted, arguments = fit_call(call, self.spec, bounds, strict=strict)
        return fitted, prepare_arguments(self.tool, self.spec, arguments)

    def ordering_key(self, call: ToolCall) -> str:
        """Return the ordering key that the tool's policy assigns to a call; empty for none.

        Raises:
            TypeError: the policy's function does not return a string.
        """
        key = self.policy.key
        if key is None or isinstance(key, str):
            return key or ""
        result: object = key(call.arguments)
        if not isinstance(result, str):
            raise TypeError(
                f"the key function of the tool's policy returned a {type(result).__qualname__}; it must return text"
            )
        return result

    def bind(
        self,
        state: AgentState,
        call: ToolCall,
        create_context: Callable[[], ToolContext],
    ) -> Tool:
        """Return the tool with the state, the call and the context that it accepts."""
        tool = self.tool
        if not self._is_bound_to_calls:
            return tool
        if isinstance(tool, CanAccessAgentState):
            tool = tool.with_agent_state(state)
        if isinstance(tool, CanAccessToolCall):
            tool = tool.with_tool_call(call)
        if isinstance(tool, CanAccessToolContext):
            tool = tool.with_tool_context(create_context())
        return tool

    def present(self, result: Any) -> ToolResult:
        """Convert a result to JSON.

        Raises:
            ToolFailed: it does not match the tool's declared type, or has no JSON form.
        """
        # The registered tool presents the result, not the bound copy: the form of a result does not depend on the call.
        if isinstance(self.tool, CanPresentResult):
            try:
                return self.tool.present(result)
            except RecursionError:
                raise ToolFailed("the tool returned a value that is nested too deeply, or contains itself") from None
        return present(result)
