"""What a function's signature and docstring say to a model."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from attrs import field, frozen
from docstring_parser import parse

from agentloop.contracts.tool_context import ToolContext
from agentloop.errors import InvalidArguments, NotJson, ToolDefinitionError
from agentloop.tools import conversion
from agentloop.tools.json_schema import Field, SchemaBuilder, default_json, object_schema
from agentloop.tools.validation import invalid_arguments
from agentloop.values.agent_state import AgentState
from agentloop.values.json_value import JsonObject, freeze_object
from agentloop.values.tool_call import ToolCall

Injected: TypeAlias = type[AgentState] | type[ToolCall] | type[ToolContext]
INJECTED: tuple[Injected, ...] = (AgentState, ToolCall, ToolContext)
"""The classes that are injected into a parameter that is annotated with them."""

_AS_JSON = (str, int, bool, float, Any, object, None, type(None))
_NO_DEFAULT = inspect.Parameter.empty


@frozen
class Signature:
    """A function, read as a tool.

    Attributes:
        name: the function's name.
        description: the text of its docstring before the sections.
        parameters: a JSON Schema of the parameters that a model gives.
        injected: the parameters that the program gives, with the class of each.
        hints: the types of the parameters that a model gives.
        returns: the type of the result.
    """

    name: str
    description: str
    parameters: JsonObject
    injected: Mapping[str, Injected]
    hints: Mapping[str, Any]
    returns: Any
    _converted: Mapping[str, Any] = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        converted = {name: hint for name, hint in self.hints.items() if hint not in _AS_JSON or hint is float}
        object.__setattr__(self, "_converted", converted)

    @classmethod
    def of(
        cls, function: Callable[..., Any], *, description: str | None = None, name: str | None = None
    ) -> "Signature":
        """Read a function.

        Args:
            function: the function; a bound method is read without its `self`.
            description: a description in place of the docstring's, which may then be missing.
            name: a name in place of the function's own.

        Raises:
            ToolDefinitionError: when anything a model needs is missing or cannot be told in JSON; lists all problems.
        """
        reader = _Reader(function, description, name)
        made = reader.read()
        if reader.problems:
            raise ToolDefinitionError(f"{reader.label} cannot be a tool: " + "; ".join(reader.problems))
        return made

    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Structure arguments that satisfy the schema into the annotated types.

        Raises:
            InvalidArguments: when one is injected by the program, or does not fit its type after all; names the path.
        """
        for name in self.injected:
            if name in arguments:
                raise InvalidArguments(
                    f"{name!r} is given by the program, not by the caller: leave it out", path=f"$.{name}"
                )
        for name, hint in self._converted.items():
            if name in arguments:
                try:
                    arguments[name] = conversion.structure(arguments[name], hint)
                except Exception as error:
                    raise invalid_arguments(_at(name, conversion.problems(error))) from error
        return arguments


class _Reader:
    """Reads one function and collects what is wrong with it."""

    def __init__(self, function: Callable[..., Any], description: str | None, name: str | None) -> None:
        self.function = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        self.label = f"{getattr(function, '__qualname__', self.name)}()"
        self.documentation = parse(inspect.getdoc(function) or "")
        self.description: str = description or _prose(self.documentation)
        self.problems: list[str] = []

    def read(self) -> Signature:
        if not self.description:
            self.problems.append("it has no docstring: say in one what the tool does, or pass description=")
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
        schema = self._schema(fields)
        kinds = {one.name: one.hint for one in fields}
        return Signature(self.name, self.description, schema, injected, kinds, hints.get("return"))

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

    def _schema(self, fields: list[Field]) -> JsonObject:
        builder = SchemaBuilder()
        described = {entry.arg_name: entry.description for entry in self.documentation.params}
        properties = {}
        for one in fields:
            try:
                schema = builder.schema(one.hint, f"the parameter {one.name!r}")
            except ToolDefinitionError as error:
                self.problems.append(str(error))
                continue
            if described.get(one.name):
                schema["description"] = described[one.name]
            properties[one.name] = {**schema, **one.default_keyword()}
        required = [one.name for one in fields if one.required and one.name in properties]
        return freeze_object(builder.finished(object_schema(properties, required)))


def _prose(documentation: Any) -> str:
    pieces = [documentation.short_description, documentation.long_description]
    return "\n\n".join(piece.strip() for piece in pieces if piece)


def _injected_kind(hint: Any) -> Injected | None:
    candidates = get_args(hint) if get_origin(hint) is not None else (hint,)
    return next((kind for kind in INJECTED if kind in candidates), None)


def _at(name: str, problems: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(f"$.{name}{path.removeprefix('$')}", message) for path, message in problems]
