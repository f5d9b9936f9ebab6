"""The changes that an ensemble makes to its tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

from attrs import evolve, field, fields_dict, frozen
from attrs.converters import optional
from attrs.validators import instance_of

from agentloop._shielding import call_in_thread
from agentloop.contracts.tool import (
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanCallTools,
    CanContinueCall,
    CanDescribeDefaults,
    CanDescribeResult,
    CanLabelResult,
    CanPinDefinition,
    CanPrepareArguments,
    CanPresentResult,
    CanReconcileCall,
    CanRequireDependencies,
    CanUseThread,
    InnerCalls,
    Tool,
    ToolContext,
    ToolFromSpec,
    ToolPolicy,
)
from agentloop.errors import ConfigurationError, ToolDefinitionError, ToolUnavailable
from agentloop.toolkits.import_path import suggest_name
from agentloop.toolkits.lifecycle import Lifecycle
from agentloop.tools.fitting import describe_defaults, prepare_arguments
from agentloop.tools.presentation import present
from agentloop.tools.validation import SchemaValidator, validator_of
from agentloop.values.authority import DECLARED, Declarations
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object, thaw
from agentloop.values.records import CannotTell, Reconciliation
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import (
    ALL,
    Effect,
    Egress,
    ToolCall,
    ToolResult,
    ToolSpec,
    as_decides,
    as_egress,
    as_identifiers,
    as_own,
)
from agentloop.values.value import Value


@frozen(eq=False, repr=False, kw_only=True)
class ToolOverride(Value):
    """The changes to one tool of an ensemble; an attribute at its default leaves the tool as it is.

    Attributes:
        enabled: whether the tool is offered.
        name: the name by which a model calls it.
        description: the description for the model.
        schema: a JSON Schema of type object; its properties are parameters of the tool.
        effect: the effect of a call.
        egress: whether data can leave by a call, and by which arguments.
        own: the names of the fields of a result whose words the service vouches for.
        identifiers: the names of the fields of a result that name things of the service.
        decides: the names of the arguments that decide whom and what a call reaches.
        policy: values of `ToolPolicy` by name.
        defaults: values of parameters that a model may leave out.
        declarations: the statements about the tool, where others than code have a say; None where the changes are code's own.
        within: a definition of the tool whose schema arguments have to satisfy as well; None for no other schema.
    """

    enabled: bool = field(default=True, validator=instance_of(bool))
    name: str | None = None
    description: str | None = None
    schema: JsonObject | None = field(default=None, converter=optional(freeze_object))
    effect: Effect | None = field(default=None, converter=optional(Effect))
    egress: Egress | None = field(default=None, converter=optional(as_egress))
    own: tuple[str, ...] | None = field(default=None, converter=optional(as_own))
    identifiers: tuple[str, ...] | None = field(default=None, converter=optional(as_identifiers))
    decides: tuple[str, ...] | None = field(default=None, converter=optional(as_decides))
    policy: Mapping[str, Any] = field(factory=dict)
    defaults: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    declarations: Declarations | None = field(default=None, repr=False)
    within: ToolSpec | None = field(default=None, repr=False)


NO_OVERRIDE = ToolOverride()


OF_SPEC = ("effect", "egress", "own", "identifiers", "decides")
"""The subjects of statements that are attributes of a `ToolOverride`; the others are values of its policy."""


def apply_override(
    tool: Tool, override: ToolOverride = NO_OVERRIDE, *, ensemble: str = "", lifecycle: Lifecycle | None = None
) -> Tool:
    """Return the tool with the changes of an override; the tool itself when nothing changes.

    Args:
        tool: the tool.
        override: the changes.
        ensemble: the name of the ensemble that the tool belongs to.
        lifecycle: the start of the ensemble, which the tool needs; None when the ensemble has no hooks.

    Raises:
        ConfigurationError: when a default is for no parameter or does not satisfy the schema, the policy has no such value, or
            `egress` or `decides` names no parameter.
        ToolDefinitionError: when the schema is invalid, or has parameters that the tool does not have.
    """
    if override == NO_OVERRIDE and lifecycle is None:
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
        definition=spec.definition,
        pinned=spec.pinned,
        strict=override.policy.get("strict", spec.strict),
        egress=spec.egress if override.egress is None else override.egress,
        own=spec.own if override.own is None else override.own,
        identifiers=spec.identifiers if override.identifiers is None else override.identifiers,
        decides=spec.decides if override.decides is None else override.decides,
    )
    _check_arguments(tool.name, "egress", override.egress, changed.parameters)
    _check_arguments(tool.name, "decides", override.decides, changed.parameters)
    unknown = next((key for key in override.policy if key not in fields_dict(ToolPolicy)), None)
    if unknown is not None:
        hint = suggest_name(unknown, list(fields_dict(ToolPolicy)))
        raise ConfigurationError(f"the policy of a tool has no value {unknown!r}{hint}")
    return _class_of(tool)(
        tool,
        spec if changed == spec else changed,
        evolve(tool.policy, **override.policy),
        override.defaults,
        ensemble,
        lifecycle,
        declarations=override.declarations or tool.declarations.restated(**_stated(override)),
        within=override.within,
    )


def _stated(override: ToolOverride) -> dict[str, object]:
    """Return the statements of an override of code about a tool, by their subjects."""
    said = {about: getattr(override, about) for about in OF_SPEC}
    policy = {name: value for name, value in override.policy.items() if name in DECLARED}
    return {**{name: value for name, value in said.items() if value is not None}, **policy}


@frozen(eq=False)
class GroupedTool(
    ToolFromSpec,
    CanPrepareArguments,
    CanDescribeDefaults,
    CanPresentResult,
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanReconcileCall,
    CanRequireDependencies,
    CanContinueCall,
    CanDescribeResult,
    CanPinDefinition,
):
    """A tool of an ensemble that changes its spec, policy or defaults, or that has to be started.

    Everything else is delegated to the tool.

    Attributes:
        tool: the tool.
        spec: the name, description and parameters for the model.
        policy: the policy of calls.
        defaults: the values of arguments that a call leaves out.
        ensemble: the name of the ensemble.
        lifecycle: the start of the ensemble; None when it has no hooks.
        declarations: the statements about the tool.
        within: a definition of the tool whose schema arguments have to satisfy as well; None for no other schema.
    """

    tool: Tool
    spec: ToolSpec = field(repr=False)
    policy: ToolPolicy = field(repr=False)
    defaults: JsonObject = EMPTY_OBJECT
    ensemble: str = ""
    lifecycle: Lifecycle | None = field(default=None, repr=False)
    _unavailable: str = field(default="", repr=False)
    declarations: Declarations = field(factory=Declarations, repr=False, kw_only=True)
    within: ToolSpec | None = field(default=None, repr=False, kw_only=True)

    @property
    def is_local(self) -> bool:
        """Whether its calls run in the process of the execution, as those of the tool."""
        return self.tool.is_local

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Use the tool.

        Raises:
            ToolUnavailable: when the ensemble could not be started.
        """
        self._check_available()
        return await self.tool.use(**arguments)

    async def reconcile(self, **arguments: Any) -> Reconciliation:
        """Let the tool find out whether an interrupted call has run, if it is able to.

        Raises:
            ToolUnavailable: when the ensemble could not be started.
        """
        self._check_available()
        return await self.tool.reconcile(**arguments) if isinstance(self.tool, CanReconcileCall) else CannotTell()

    @property
    def continues_calls(self) -> bool:
        """Whether the tool resumes an interrupted call by itself."""
        return isinstance(self.tool, CanContinueCall) and self.tool.continues_calls

    @property
    def result_schema(self) -> JsonObject | None:
        """The JSON Schema of its results, as the tool describes it."""
        return self.tool.result_schema if isinstance(self.tool, CanDescribeResult) else None

    def accept_definition(self) -> None:
        """Pin the current definition, if the tool has one that can change."""
        if isinstance(self.tool, CanPinDefinition):
            self.tool.accept_definition()

    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Add the defaults, and convert the arguments as the tool does.

        Raises:
            InvalidArguments: when an argument does not fit, alone or together with the defaults.
        """
        left_out = {name: thaw(value) for name, value in self.defaults.items() if name not in arguments}
        if left_out:
            arguments = {**arguments, **left_out}
            # A schema can depend on several arguments, so the call is validated again with the defaults.
            validator_of(self.spec).validate(arguments)
        if self.within is not None:
            validator_of(self.within).validate(arguments)
        return prepare_arguments(self.tool, self.tool.spec, arguments)

    def describe_defaults(self, arguments: Mapping[str, Any]) -> JsonObject:
        """Return the defaults that a call leaves to the override and to the tool, by path."""
        own = {name: value for name, value in self.defaults.items() if name not in arguments}
        inner = describe_defaults(self.tool, self.tool.spec, {**arguments, **own})
        return freeze_object({**own, **inner})

    def present(self, result: Any) -> ToolResult:
        """Convert the result to JSON as the tool does.

        Raises:
            ToolFailed: when it has no JSON form.
        """
        return self.tool.present(result) if isinstance(self.tool, CanPresentResult) else present(result)

    def with_agent_state(self, state: AgentState) -> Self:
        """Return a copy whose tool reads this state, if it accesses the state."""
        return self._wrap(self.tool.with_agent_state(state)) if isinstance(self.tool, CanAccessAgentState) else self

    def with_tool_call(self, call: ToolCall) -> Self:
        """Return a copy whose tool serves this call, if it accesses the call."""
        return self._wrap(self.tool.with_tool_call(call)) if isinstance(self.tool, CanAccessToolCall) else self

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy for a call in the running event loop, with this context."""
        bound = self
        if isinstance(self.tool, CanAccessToolContext):
            bound = self._wrap(self.tool.with_tool_context(context))
        # Looked up here, in the event loop: `use_in_thread` runs in a thread that has none.
        unavailable = "" if self.lifecycle is None else self.lifecycle.diagnose()
        return evolve(bound, unavailable=unavailable) if unavailable else bound

    def check_dependencies(self, dependencies: object) -> None:
        """Check the dependencies as the tool does.

        Raises:
            InvalidDependencies: when they have another type than it declares.
        """
        if isinstance(self.tool, CanRequireDependencies):
            self.tool.check_dependencies(dependencies)

    def _wrap(self, tool: Tool) -> Self:
        return self if tool is self.tool else evolve(self, tool=tool)

    def _check_available(self) -> None:
        if self._unavailable:
            raise ToolUnavailable(
                f"the tool {self.name!r} of the ensemble {self.ensemble!r} cannot be used now: {self._unavailable}"
            )


# Executors recognize what a tool can do by its class, so each of these contracts needs a wrapper of its own.
def _class_of(tool: Tool) -> type[GroupedTool]:
    """Return the class of the wrapper of a tool."""
    says_label = isinstance(tool, CanLabelResult)
    if isinstance(tool, CanCallTools):
        return GroupedLabelingCallingTool if says_label else GroupedCallingTool
    if isinstance(tool, CanUseThread):
        return GroupedLabelingThreadTool if says_label else GroupedThreadTool
    return GroupedLabelingTool if says_label else GroupedTool


@frozen(eq=False)
class GroupedCallingTool(GroupedTool, CanCallTools):
    """A `GroupedTool` around a tool that calls other tools."""

    def with_inner_calls(self, inner: InnerCalls) -> Self:
        """Return a copy whose tool makes its calls by this."""
        assert isinstance(self.tool, CanCallTools)  # noqa: S101  # this class is used only for such tools
        return self._wrap(cast("Tool", self.tool.with_inner_calls(inner)))


@frozen(eq=False)
class GroupedThreadTool(GroupedTool, CanUseThread):
    """A `GroupedTool` around a tool that blocks and runs in a thread."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Use the tool in a thread of asyncio's default executor.

        Raises:
            ToolUnavailable: when the ensemble could not be started.
        """
        return await call_in_thread(self.use_in_thread, **arguments)

    def use_in_thread(self, **arguments: Any) -> Any:
        """Use the tool, blocking.

        Raises:
            ToolUnavailable: when the ensemble could not be started.
        """
        self._check_available()
        tool = self.tool
        assert isinstance(tool, CanUseThread)  # noqa: S101  # this class is used only for such tools
        return tool.use_in_thread(**arguments)


@frozen(eq=False)
class GroupedLabelingTool(GroupedTool, CanLabelResult):
    """A `GroupedTool` around a tool that says itself who had a part in its results, such as an agent."""


@frozen(eq=False)
class GroupedLabelingCallingTool(GroupedCallingTool, CanLabelResult):
    """A `GroupedCallingTool` around a tool that says itself who had a part in its results, such as one that runs programs."""


@frozen(eq=False)
class GroupedLabelingThreadTool(GroupedThreadTool, CanLabelResult):
    """A `GroupedThreadTool` around a tool that says itself who had a part in its results."""


def with_defaults(parameters: JsonObject, defaults: JsonObject, owner: str) -> JsonObject:
    """Return a schema in which parameters with defaults are optional.

    Args:
        parameters: the schema.
        defaults: the values by parameter.
        owner: the owner of the schema, for error messages.

    Raises:
        ConfigurationError: when a default is for no parameter, or does not satisfy the schema.
    """
    if not defaults:
        return parameters
    plain = thaw(parameters)
    properties = plain.get("properties", {})
    for name, value in defaults.items():
        if name not in properties:
            raise ConfigurationError(f"defaults.{name}: {owner} has no such parameter{suggest_name(name, properties)}")
        _check_default(name, value, plain, owner)
        if isinstance(properties[name], dict):
            properties[name]["default"] = thaw(value)
    required = [name for name in plain.pop("required", []) if name not in defaults]
    return freeze_object({**plain, **({"required": required} if required else {})})


def _check_default(name: str, value: object, schema: Mapping[str, Any], owner: str) -> None:
    # The schema of the parameter may refer to definitions at the root, so it is validated inside of an object.
    definitions = {key: schema[key] for key in ("$defs", "definitions", "$schema") if key in schema}
    wrapped = {**definitions, "type": "object", "properties": {name: schema["properties"][name]}}
    plain_value = thaw(freeze_object({"": value})[""])
    problems = SchemaValidator(wrapped, f"the parameters of {owner}").problems({name: plain_value})
    if problems:
        raise ConfigurationError(f"defaults.{name}: {problems[0][1]} (the parameter {name!r} of {owner})")


def _check_arguments(name: str, about: str, arguments: Egress | None, parameters: JsonObject) -> None:
    known = parameters.get("properties", {})
    for argument in () if arguments is None or isinstance(arguments, bool) or arguments == ALL else arguments:
        if argument not in known:
            raise ConfigurationError(
                f"{about}: the tool {name!r} has no parameter {argument!r}{suggest_name(argument, known)}"
            )


def _check_schema(name: str, schema: JsonObject, parameters: JsonObject) -> None:
    SchemaValidator(schema, f"the schema of {name!r}")
    if schema.get("type") != "object":
        raise ToolDefinitionError(f"the schema of {name!r} has to be of type object: arguments come by name")
    known = parameters.get("properties", {})
    unknown = sorted(schema.get("properties", {}).keys() - known.keys())
    if unknown:
        hint = suggest_name(unknown[0], known)
        raise ToolDefinitionError(
            f"the schema of {name!r} has {unknown[0]!r}, which the tool has no parameter for{hint}"
        )
