"""Tools made ready for calls: validator compiled, abilities looked up, once per tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from agentloop.contracts.tool import (
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanPrepareArguments,
    CanPresentResult,
    CanUseThread,
    Tool,
    ToolContext,
)
from agentloop.contracts.tools import Tools
from agentloop.errors import ToolFailed, UnknownTool
from agentloop.tools.presentation import present
from agentloop.tools.validation import SchemaValidator, validator_of
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolCall, ToolResult, ToolSpec, parse_arguments

_SHOWN_CHARACTERS = 200
_SHOWN_NAMES = 100


@frozen
class ReadyTool:
    """A tool that is ready for calls.

    Attributes:
        tool: the tool.
        spec: what it offers.
        validator: its schema, compiled.
        blocking: whether it runs in a thread.
    """

    tool: Tool
    spec: ToolSpec
    validator: SchemaValidator = field(repr=False)
    blocking: bool

    @classmethod
    def of(cls, tool: Tool, spec: ToolSpec) -> ReadyTool:
        """Make a tool ready.

        Raises:
            ToolDefinitionError: when its parameters are not a valid JSON Schema.
        """
        validator = validator_of(spec)
        return cls(tool, spec, validator, isinstance(tool, CanUseThread))

    def prepared(self, call: ToolCall) -> Mapping[str, Any]:
        """Parse, validate and structure the arguments of a call; each call gets its own.

        Raises:
            MalformedArguments: when they are not a JSON object.
            InvalidArguments: when they do not satisfy the schema or the types.
        """
        arguments = parse_arguments(call.arguments_json)
        self.validator.validate(arguments)
        if isinstance(self.tool, CanPrepareArguments):
            return self.tool.prepare(arguments)
        return arguments

    def ordering_key(self, call: ToolCall) -> str:
        """Return the name that the tool's policy gives a call for its order; empty for none.

        Raises:
            TypeError: when what the policy gives is not text.
        """
        key = self.tool.policy.key
        if key is None or isinstance(key, str):
            return key or ""
        made: object = key(call.arguments)
        if not isinstance(made, str):
            raise TypeError(f"the key of its policy has to be text, and is a {type(made).__qualname__}")
        return made

    def bound(self, state: AgentState, call: ToolCall, context: ToolContext) -> Tool:
        """Return the tool with what it wants to know about this call."""
        tool = self.tool
        if isinstance(tool, CanAccessAgentState):
            tool = tool.with_agent_state(state)
        if isinstance(tool, CanAccessToolCall):
            tool = tool.with_tool_call(call)
        if isinstance(tool, CanAccessToolContext):
            tool = tool.with_tool_context(context)
        return tool

    def presented(self, result: Any) -> ToolResult:
        """Turn a result into JSON.

        Raises:
            ToolFailed: when it does not fit the tool's declared type, or has no JSON form.
        """
        if isinstance(self.tool, CanPresentResult):
            try:
                return self.tool.present(result)
            except RecursionError:
                raise ToolFailed("the tool returned a value that is nested too deeply, or contains itself") from None
        return present(result)


class Toolbox:
    """The tools of one execution, each made ready when it is first called."""

    __slots__ = ("_ready", "tools")

    def __init__(self, tools: Tools) -> None:
        self.tools: Tools = tools
        self._ready: dict[str, ReadyTool] = {}

    def ready(self, name: str) -> ReadyTool:
        """Return the tool of this name.

        Raises:
            UnknownTool: when there is none; names those most like it.
            ToolDefinitionError: when its parameters are not a valid JSON Schema.
        """
        ready = self._ready.get(name)
        if ready is None:
            tool, spec = self.tools.get(name), self.tools.spec(name)
            if tool is None or spec is None:
                raise UnknownTool(self._unknown(name))
            ready = self._ready[name] = ReadyTool.of(tool, spec)
        return ready

    def ensemble(self, name: str) -> str:
        """Return the name of the group that a tool came in; empty for a tool of its own."""
        return self.tools.group_names.get(name, "") if self.tools.groups else ""

    def check(self) -> None:
        """Compile every schema, so that one that is not valid is found before anything runs.

        Raises:
            ToolDefinitionError: for the first schema that is not valid.
        """
        for spec in self.tools.specs:
            validator_of(spec)

    def _unknown(self, name: str) -> str:
        shown = name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}…"
        if not len(self.tools):
            return f"there is no tool {shown!r}: no tools are offered; answer in text"
        closest = self.tools.closest(name) if shown is name else []
        if closest:
            return f"there is no tool {shown!r}; did you mean {' or '.join(map(repr, closest))}?"
        names = self.tools.names
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        return f"there is no tool {shown!r}; the tools are {', '.join(names[:_SHOWN_NAMES])}{more}"
