"""Reading a function's signature, and saying what keeps it from being a tool."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from agentloop.contracts.tool_context import ToolContext
from agentloop.errors import NotJson, ToolDefinitionError
from agentloop.tools.json_schema import Field, Schema, SchemaBuilder, default_json, object_schema
from agentloop.values.agent_state import AgentState
from agentloop.values.tool_call import ToolCall

Injected: TypeAlias = type[AgentState] | type[ToolCall] | type[ToolContext]
INJECTED: tuple[Injected, ...] = (AgentState, ToolCall, ToolContext)
"""The classes that are injected into a parameter that is annotated with them."""

_NO_DEFAULT = inspect.Parameter.empty


class SignatureReader:
    """Reads one function and collects what is wrong with it.

    Args:
        function: the function; a bound method is read without its `self`.
        described: whether a description is given besides, so that the docstring may be missing.

    Attributes:
        name: the function's name.
        label: the function, for error messages.
        documentation: its docstring.
        schema: the JSON Schema of the parameters that a model gives, without descriptions; set by `read`.
        problems: what keeps it from being a tool; filled by `read`.
    """

    def __init__(self, function: Callable[..., Any], *, described: bool) -> None:
        self.function = function
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self.label = f"{getattr(function, '__qualname__', self.name)}()"
        self.documentation = inspect.getdoc(function) or ""
        self.schema: Schema = {}
        self.problems: list[str] = []
        if not described and not self.documentation.strip():
            self.problems.append("it has no docstring: say in one what the tool does, or pass description=")

    def read(self) -> tuple[list[Field], dict[str, Injected], Any]:
        """Return the parameters that a model gives, those that the program gives, and the type of the result."""
        hints = self._hints()
        injected: dict[str, Injected] = {}
        fields: list[Field] = []
        for parameter in inspect.signature(self.function).parameters.values():
            made = self._parameter(parameter, hints)
            if isinstance(made, Field):
                fields.append(made)
            elif made is not None:
                injected[parameter.name] = made
        if "return" not in hints:
            self.problems.append("it has no return annotation: add one, such as -> str")
        self.schema = self._schema(fields)
        return fields, injected, hints.get("return")

    def _hints(self) -> dict[str, Any]:
        target = self.function if inspect.isroutine(self.function) else type(self.function).__call__
        try:
            return get_type_hints(target, include_extras=True)
        except (NameError, TypeError) as error:
            self.problems.append(f"a type hint cannot be resolved: {error}")
            return dict.fromkeys([*inspect.signature(self.function).parameters, "return"], Any)

    def _parameter(self, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Field | Injected | None:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            self.problems.append(f"a model cannot fill *{parameter.name}: name each parameter")
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            self.problems.append(f"arguments are given by name: remove the / after {parameter.name!r}")
        elif parameter.name not in hints:
            hint = (
                " (a method becomes a tool through its object: tool(object.method))" if parameter.name == "self" else ""
            )
            self.problems.append(f"the parameter {parameter.name!r} has no type hint{hint}")
        else:
            kind = _injected_kind(hints[parameter.name])
            return kind or self._field(parameter, hints[parameter.name])
        return None

    def _field(self, parameter: inspect.Parameter, hint: Any) -> Field:
        if parameter.default is _NO_DEFAULT:
            return Field(parameter.name, hint, required=True)
        try:
            default_json(parameter.default)
        except NotJson as error:
            self.problems.append(f"the default of {parameter.name!r} has no JSON form: {error}")
        return Field(parameter.name, hint, required=False, default=parameter.default)

    def _schema(self, fields: list[Field]) -> Schema:
        builder = SchemaBuilder()
        properties: dict[str, Schema] = {}
        for one in fields:
            try:
                schema = builder.schema(one.hint, f"the parameter {one.name!r}")
            except ToolDefinitionError as error:
                self.problems.append(str(error))
            else:
                properties[one.name] = {**schema, **one.default_keyword()}
        required = [one.name for one in fields if one.required and one.name in properties]
        return builder.finished(object_schema(properties, required))


def _injected_kind(hint: Any) -> Injected | None:
    candidates = get_args(hint) if get_origin(hint) is not None else (hint,)
    return next((kind for kind in INJECTED if kind in candidates), None)
