"""What a function's signature and docstring say to a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from attrs import field, frozen

from agentloop.contracts.tool import ToolContext
from agentloop.errors import InvalidArguments, NotJson, ToolDefinitionError
from agentloop.tools.fields import Field, default_json
from agentloop.tools.schema import Schema, SchemaBuilder, described, object_schema
from agentloop.tools.validation import invalid_arguments
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolCall

Injected: TypeAlias = type[AgentState] | type[ToolCall] | type[ToolContext]
INJECTED: tuple[Injected, ...] = (AgentState, ToolCall, ToolContext)
"""The classes that are injected into a parameter that is annotated with them."""

_NO_DEFAULT = inspect.Parameter.empty
_SECTIONS = frozenset(
    {"args", "arguments", "params", "parameters", "returns", "yields", "raises", "example", "examples"}
)


class SignatureReader:
    """Reads one function and collects what is wrong with it.

    Args:
        function: the function; a bound method is read without its `self`, a partial without what it fills in by name.
        described: whether a description is given besides, so that the docstring may be missing.
        documentation: a docstring in place of the function's own.

    Attributes:
        name: the function's name.
        label: the function, for error messages.
        documentation: its docstring.
        schema: the JSON Schema of the parameters that a model gives, without descriptions; set by `read`.
        problems: what keeps it from being a tool; filled by `read`.
    """

    def __init__(
        self, function: Callable[..., Any], *, described: bool = False, documentation: str | None = None
    ) -> None:
        self.function = function
        self.name: str = str(getattr(_inside(function), "__name__", type(function).__name__))
        self.label: str = f"{getattr(_inside(function), '__qualname__', self.name)}()"
        self.documentation: str = _documentation(function) if documentation is None else documentation
        self.schema: Schema = {}
        self.problems: list[str] = []
        if not described and not _tells_something(self.documentation):
            self.problems.append("it has no docstring: say in one what the tool does, or pass description=")
        if inspect.isgeneratorfunction(_called(function)) or inspect.isasyncgenfunction(_called(function)):
            self.problems.append("it yields, but a tool has one result: return a list")

    def read(self) -> tuple[list[Field], dict[str, Injected], Any]:
        """Return the parameters that a model gives, those that the program gives, and the type of the result."""
        parameters = self._parameters()
        hints = self._hints()
        injected: dict[str, Injected] = {}
        fields: list[Field] = []
        for parameter in parameters:
            made = self._parameter(parameter, hints)
            if isinstance(made, Field):
                fields.append(made)
            elif made is not None:
                injected[parameter.name] = made
        if "return" not in hints:
            self.problems.append("it has no return annotation: add one, such as -> str")
        self.schema = self._schema(fields)
        return fields, injected, hints.get("return")

    def _parameters(self) -> list[inspect.Parameter]:
        """Return the parameters that are left to be given."""
        filled = self.function.keywords if isinstance(self.function, partial) else {}
        try:
            parameters = inspect.signature(self.function).parameters
        except (ValueError, TypeError) as error:
            self.problems.append(f"its signature cannot be read: {error}")
            return []
        return [parameter for name, parameter in parameters.items() if name not in filled]

    def _hints(self) -> dict[str, Any]:
        target = _called(self.function)
        try:
            return get_type_hints(target, include_extras=True)
        except Exception as error:  # noqa: BLE001  # a hint that is text may raise whatever evaluating it raises
            self.problems.append(f"a type hint cannot be resolved: {error}")
            return dict.fromkeys(getattr(target, "__annotations__", {}), Any)

    def _parameter(self, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Field | Injected | None:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            self.problems.append(f"a model cannot fill {str(parameter).partition(':')[0]}: name each parameter")
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


def hints_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the type hints of a function; none when they cannot be resolved."""
    try:
        return get_type_hints(_called(function), include_extras=True)
    except Exception:  # noqa: BLE001  # a hint that is text may raise whatever evaluating it raises
        return {}


def _inside(function: Any) -> Any:
    """Return the function inside a partial; anything else as it is."""
    return function.func if isinstance(function, partial) else function


def _called(function: Any) -> Any:
    """Return what holds the hints: the function itself, that inside a partial, or the `__call__` of an object."""
    inside = _inside(function)
    return inside if inspect.isroutine(inside) else type(inside).__call__


def _documentation(function: Any) -> str:
    """Return the docstring, of an object that of its `__call__` or of its class."""
    return inspect.getdoc(_called(function)) or inspect.getdoc(_inside(function)) or ""


def _tells_something(documentation: str) -> bool:
    """Say whether a docstring begins with text and not with a section or a field."""
    first = documentation.strip().partition("\n")[0].strip()
    return bool(first) and first[0] not in ":@" and first.rstrip(":").lower() not in _SECTIONS


def _injected_kind(hint: Any) -> Injected | None:
    origin = get_origin(hint)
    if origin in {Annotated, Union, UnionType}:
        members = get_args(hint)[:1] if origin is Annotated else get_args(hint)
        return next((kind for member in members if (kind := _injected_kind(member)) is not None), None)
    return next((kind for kind in INJECTED if kind is hint), None)


_AS_IT_IS = (Any, object, None, type(None))


@frozen(eq=False)
class Signature:
    """A function, read as a tool.

    Attributes:
        name: the function's name, or the name given for it.
        injected: the parameters that the program gives, with the class of each.
        hints: the types of the parameters that a model gives.
        returns: the type of the result.
    """

    name: str
    injected: Mapping[str, Injected]
    hints: Mapping[str, Any]
    returns: Any
    _documentation: str = field(repr=False)
    _description: str = field(repr=False)
    _schema: Schema = field(repr=False)
    _converted: Mapping[str, Any] = field(init=False, repr=False)

    @_converted.default
    def _types_to_convert(self) -> Mapping[str, Any]:
        return {name: hint for name, hint in self.hints.items() if hint not in _AS_IT_IS}

    @classmethod
    def of(
        cls, function: Callable[..., Any], *, description: str = "", name: str = "", documentation: str | None = None
    ) -> Signature:
        """Read a function.

        Args:
            function: the function; a bound method is read without its `self`.
            description: a description in place of the docstring's, which may then be missing.
            name: a name in place of the function's own.
            documentation: a docstring in place of the function's own.

        Raises:
            ToolDefinitionError: when anything a model needs is missing or cannot be told in JSON; lists all problems.
        """
        reader = SignatureReader(function, described=bool(description), documentation=documentation)
        fields, injected, returns = reader.read()
        if reader.problems:
            raise ToolDefinitionError(f"{reader.label} cannot be a tool: {'; '.join(reader.problems)}")
        hints = {one.name: one.hint for one in fields}
        return cls(name or reader.name, injected, hints, returns, reader.documentation, description, reader.schema)

    @cached_property
    def documented(self) -> tuple[str, JsonObject]:
        """The description and the JSON Schema of the parameters that a model gives; the docstring is parsed when asked."""
        from docstring_parser import parse

        parsed = parse(self._documentation)
        prose = "\n\n".join(text.strip() for text in (parsed.short_description, parsed.long_description) if text)
        texts = {entry.arg_name: entry.description for entry in parsed.params}
        properties = {
            name: described(schema, self.hints[name], texts.get(name))
            for name, schema in self._schema["properties"].items()
        }
        return self._description or prose, freeze_object({**self._schema, "properties": properties})

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
        prepared = dict(arguments)
        for name, hint in self._converted.items():
            if name in prepared:
                from agentloop.tools import conversion

                try:
                    prepared[name] = conversion.structure(prepared[name], hint)
                except Exception as error:
                    raise invalid_arguments(conversion.problems(error, f"$.{name}")) from error
        return prepared
