"""What an ensemble changes about one of its tools."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from attrs import evolve, field, fields_dict, frozen
from attrs.converters import optional

from agentloop.contracts.tool import CanUseThread, Tool
from agentloop.contracts.tool_policy import ToolPolicy
from agentloop.errors import ConfigurationError, ToolDefinitionError
from agentloop.tools.ensembles.grouped_tool import GroupedThreadTool, GroupedTool
from agentloop.tools.ensembles.lifecycle import Lifecycle
from agentloop.tools.validation import SchemaValidator
from agentloop.values.json_value import EMPTY_OBJECT, JsonObject, freeze_object, thaw
from agentloop.values.tool_spec import Effect, ToolSpec
from agentloop.values.value import Value


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
