"""What an ensemble changes about one of its tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Self

from attrs import evolve, field, fields_dict, frozen
from attrs.converters import optional

from agentloop.contracts.tool import (
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanContinueCall,
    CanPrepareArguments,
    CanPresentResult,
    CanReconcileCall,
    CanUseThread,
    Tool,
    ToolContext,
    ToolPolicy,
)
from agentloop.errors import ConfigurationError, ToolDefinitionError, ToolUnavailable
from agentloop.tools.ensembles.lifecycle import Lifecycle
from agentloop.tools.presentation import present
from agentloop.tools.validation import SchemaValidator, validator_of
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object, thaw
from agentloop.values.records import CannotTell, Reconciliation
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import Effect, ToolCall, ToolResult, ToolSpec
from agentloop.values.value import Value


@frozen(eq=False)
class GroupedTool(
    Tool,
    CanPrepareArguments,
    CanPresentResult,
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanReconcileCall,
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

    async def reconcile(self, **arguments: Any) -> Reconciliation:
        """Ask the tool whether an interrupted call has run, if it can find out.

        Raises:
            ToolUnavailable: when the ensemble could not be started.
        """
        self._check_available()
        return await self.tool.reconcile(**arguments) if isinstance(self.tool, CanReconcileCall) else CannotTell()

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


@frozen(eq=False, repr=False, kw_only=True)
class ToolOverride(Value):
    """What an ensemble changes about one of its tools; what is left out stays as the tool has it.

    Attributes:
        enabled: whether the tool is offered.
        name: the name by which a model calls it.
        description: what a model is told about it.
        schema: a JSON Schema of type object; its properties are parameters that the tool has.
        effect: what calling it does to the world.
        policy: values of `ToolPolicy` by name.
        defaults: values of parameters that a model need not give.
    """

    enabled: bool = True
    name: str | None = None
    description: str | None = None
    schema: JsonObject | None = field(default=None, converter=optional(freeze_object))
    effect: Effect | None = field(default=None, converter=optional(Effect))
    policy: Mapping[str, Any] = field(factory=dict)
    defaults: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)


AS_IT_IS = ToolOverride()


def overridden(
    tool: Tool, override: ToolOverride = AS_IT_IS, *, ensemble: str = "", lifecycle: Lifecycle | None = None
) -> Tool:
    """Return the tool as it is to be offered; itself when nothing changes.

    Args:
        tool: the tool.
        override: what changes.
        ensemble: the name of the ensemble it belongs to.
        lifecycle: what has to be started before it is used.

    Raises:
        ConfigurationError: when a default is for no parameter, or does not fit the schema; when the policy has no such value.
        ToolDefinitionError: when the schema is not valid, or not one of this tool.
    """
    if override == AS_IT_IS and lifecycle is None:
        return tool
    spec = tool.spec
    if override.schema is not None:
        _check_schema(tool.name, override.schema, spec.parameters)
    parameters = spec.parameters if override.schema is None else override.schema
    changed = ToolSpec(
        override.name or spec.name,
        spec.description if override.description is None else override.description,
        with_defaults(parameters, override.defaults, f"the tool {tool.name!r}"),
        spec.effect if override.effect is None else override.effect,
    )
    unknown = next((key for key in override.policy if key not in fields_dict(ToolPolicy)), None)
    if unknown is not None:
        raise ConfigurationError(
            f"{unknown!r} is nothing that the policy of a tool has{closest(unknown, list(fields_dict(ToolPolicy)))}"
        )
    kind = GroupedThreadTool if isinstance(tool, CanUseThread) else GroupedTool
    policy = evolve(tool.policy, **override.policy)
    return kind(tool, spec if changed == spec else changed, policy, override.defaults, ensemble, lifecycle)


def with_defaults(parameters: JsonObject, defaults: JsonObject, of: str) -> JsonObject:
    """Return a schema whose parameters with defaults need not be given.

    Args:
        parameters: the schema.
        defaults: the values by parameter.
        of: whose schema it is, for error messages.

    Raises:
        ConfigurationError: when a default is for no parameter, or does not fit.
    """
    if not defaults:
        return parameters
    plain = thaw(parameters)
    properties = plain.get("properties", {})
    for name, value in defaults.items():
        if name not in properties:
            raise ConfigurationError(f"defaults.{name}: {of} has no such parameter{closest(name, properties)}")
        _check_default(name, value, plain, of)
        if isinstance(properties[name], dict):
            properties[name]["default"] = thaw(value)
    required = [name for name in plain.pop("required", []) if name not in defaults]
    return freeze_object({**plain, **({"required": required} if required else {})})


def closest(name: str, known: Mapping[str, Any] | list[str] | tuple[str, ...]) -> str:
    """Return what to say about a name that is not known: the likeliest, or all."""
    found = get_close_matches(name, list(known), n=1, cutoff=0.5)
    if found:
        return f"; did you mean {found[0]!r}?"
    return f"; there is {', '.join(map(repr, known))}" if known else "; there is none"


def _check_default(name: str, value: object, schema: Mapping[str, Any], of: str) -> None:
    definitions = {key: schema[key] for key in ("$defs", "definitions", "$schema") if key in schema}
    wrapped = {**definitions, "type": "object", "properties": {name: schema["properties"][name]}}
    problems = SchemaValidator(wrapped, f"the parameters of {of}").problems(
        {name: thaw(freeze_object({"": value})[""])}
    )
    if problems:
        raise ConfigurationError(f"defaults.{name}: {problems[0][1]} (the parameter {name!r} of {of})")


def _check_schema(name: str, schema: JsonObject, before: JsonObject) -> None:
    SchemaValidator(schema, f"the schema of {name!r}")
    if schema.get("type") != "object":
        raise ToolDefinitionError(f"the schema of {name!r} has to be of type object: arguments come by name")
    known = before.get("properties", {})
    unknown = sorted(schema.get("properties", {}).keys() - known.keys())
    if unknown:
        raise ToolDefinitionError(
            f"the schema of {name!r} has {unknown[0]!r}, which the tool has no parameter for{closest(unknown[0], known)}"
        )
