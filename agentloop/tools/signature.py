"""The signature and the docstring of a function, read as the definition of a tool."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    is_typeddict,
)

from attrs import field, frozen

from agentloop.contracts.tool import ToolContext
from agentloop.errors import InvalidArguments, NotJson, ToolDefinitionError
from agentloop.tools import conversion
from agentloop.tools.constraints import check_constraints
from agentloop.tools.defaults import left_out
from agentloop.tools.fields import NO_DEFAULT, Field, default_json, own_docstring
from agentloop.tools.generators import Yields, is_generator
from agentloop.tools.hints import alias_value, function_hints, is_type_alias
from agentloop.tools.schema import Schema, SchemaBuilder, object_schema, with_description
from agentloop.tools.validation import invalid_arguments
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.reprs import ShownByField
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolCall

Injected: TypeAlias = type[AgentState] | type[ToolCall] | type[ToolContext[Any]]
INJECTED: tuple[Injected, ...] = (AgentState, ToolCall, ToolContext)
"""The classes that are injected into parameters annotated with them."""

_NO_DEFAULT = inspect.Parameter.empty
# JSON data is passed to parameters of these types as it is.
_UNCONVERTED = (Any, object, None, type(None))
_SECTIONS = frozenset(
    {"args", "arguments", "params", "parameters", "returns", "yields", "raises", "example", "examples"}
)


@frozen(eq=False, repr=False)
class Signature(ShownByField):
    """A function as a tool: its name, its description and its parameters.

    Attributes:
        name: the function's name, or the one passed to `of`.
        injected: the parameters that are injected, each with its class.
        hints: the types of the parameters that a model fills.
        returns: the type of the result.
        yields: what it yields, if it is a generator; else None.
        takes_any: whether it takes arguments of any name, which only a schema of its own describes.
        dependencies: the type of dependencies that each parameter annotated `ToolContext[…]` declares.
        is_strict: whether a type says that its value must not be coerced, as pydantic's `Strict` does.
    """

    name: str
    injected: Mapping[str, Injected]
    hints: Mapping[str, Any]
    returns: Any
    yields: Yields | None
    takes_any: bool
    dependencies: tuple[Any, ...]
    is_strict: bool
    _documentation: str = field(repr=False)
    _description: str = field(repr=False)
    _schema: Schema = field(repr=False)
    _converted: Mapping[str, Any] = field(init=False, repr=False)

    @_converted.default
    def _hints_to_convert(self) -> Mapping[str, Any]:
        return {name: hint for name, hint in self.hints.items() if hint not in _UNCONVERTED}

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        description: str = "",
        name: str = "",
        documentation: str | None = None,
        has_schema: bool = False,
    ) -> Signature:
        """Read a function.

        Args:
            function: the function; the `self` of a bound method is left out.
            description: replaces the text of the docstring, which may then be missing.
            name: replaces the name of the function.
            documentation: replaces the docstring of the function.
            has_schema: whether a schema replaces that of the hints, so that the function may take `**arguments`.

        Raises:
            ToolDefinitionError: when something that a model needs is missing or has no JSON form; lists all problems.
        """
        reader = SignatureReader(
            function, has_description=bool(description), documentation=documentation, has_schema=has_schema
        )
        fields, injected, returns = reader.read()
        if reader.problems:
            raise ToolDefinitionError(f"{reader.label} cannot be a tool: {'; '.join(reader.problems)}")
        hints = {parameter.name: parameter.hint for parameter in fields}
        return cls(
            name or reader.name,
            injected,
            hints,
            returns if reader.yields is None else reader.yields.result,
            reader.yields,
            reader.takes_any,
            tuple(reader.dependencies),
            reader.is_strict,
            reader.documentation,
            description,
            reader.schema,
        )

    @cached_property
    def definition(self) -> tuple[str, JsonObject]:
        """The description and the JSON Schema of the parameters; the docstring is parsed at the first access."""
        # Parsing takes milliseconds, and many tools are defined that no model ever sees.
        prose, descriptions = _parse_docstring(self._documentation)
        properties = {
            name: with_description(schema, self.hints[name], descriptions.get(name))
            for name, schema in self._schema["properties"].items()
        }
        return self._description or prose, freeze_object({**self._schema, "properties": properties})

    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Convert arguments that satisfy the schema to the annotated types.

        Raises:
            InvalidArguments: when an argument is for an injected parameter, or cannot be converted; names the path.
        """
        # A supplied schema may accept any name, but a model must never set an injected parameter.
        for name in self.injected:
            if name in arguments:
                raise InvalidArguments(f"{name!r} is injected by the program: leave it out", path=f"$.{name}")
        prepared = dict(arguments)
        for name, hint in self._converted.items():
            if name in prepared:
                try:
                    prepared[name] = conversion.structure(prepared[name], hint)
                except Exception as error:
                    raise invalid_arguments(conversion.problems(error, f"$.{name}")) from error
        return prepared

    def describe_defaults(self, arguments: Mapping[str, Any]) -> JsonObject:
        """Return the values that the function, and classes that arguments become, give to what a call leaves out, by path."""
        properties = self._schema["properties"]
        fields = [
            Field(name, hint, "default" not in properties[name], properties[name].get("default", NO_DEFAULT))
            for name, hint in self.hints.items()
        ]
        return left_out(fields, arguments)


def _parse_docstring(documentation: str) -> tuple[str, Mapping[str, str | None]]:
    """Return the text of a docstring, and the descriptions of parameters by name."""
    line = documentation.strip()
    if "\n" not in line and ":" not in line and "@" not in line:
        return line, {}  # one sentence: no section can be in it, and the parser takes 10 ms to import
    from docstring_parser import parse

    docstring = parse(documentation)
    prose = "\n\n".join(text.strip() for text in (docstring.short_description, docstring.long_description) if text)
    return prose, {entry.arg_name: entry.description for entry in docstring.params}


class SignatureReader:
    """Reads one function and collects the problems of its definition.

    Args:
        function: the function; the `self` of a bound method and the keywords of a partial are left out.
        has_description: whether a description is passed separately, so that the docstring may be missing.
        documentation: replaces the docstring of the function.
        has_schema: whether a schema replaces that of the hints, so that the function may take `**arguments`.

    Attributes:
        name: the function's name.
        label: the function, for error messages.
        documentation: its docstring.
        schema: the JSON Schema of the parameters that a model fills, without descriptions; set by `read`.
        problems: the reasons why it cannot be a tool; completed by `read`.
        yields: what it yields, if it is a generator; set by `read`.
        takes_any: whether it takes arguments of any name; set by `read`.
        dependencies: the types of dependencies that it declares; completed by `read`.
        is_strict: whether a type says that its value must not be coerced; set by `read`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        has_description: bool = False,
        documentation: str | None = None,
        has_schema: bool = False,
    ) -> None:
        self.function = function
        inner = _unwrap_partial(function)
        self.name: str = str(getattr(inner, "__name__", type(inner).__name__))
        self.label: str = f"{getattr(inner, '__qualname__', self.name)}()"
        self.documentation: str = _docstring(function) if documentation is None else documentation
        self.schema: Schema = {}
        self.problems: list[str] = []
        self.yields: Yields | None = None
        self.takes_any: bool = False
        self.dependencies: list[Any] = []
        self.is_strict: bool = False
        self._has_schema = has_schema
        if not has_description and not _begins_with_text(self.documentation):
            self.problems.append("it has no docstring: say in one what the tool does, or pass description=")

    def read(self) -> tuple[list[Field], dict[str, Injected], Any]:
        """Return the parameters that a model fills, those that are injected, and the type of the result."""
        parameters = self._parameters()
        hints = self._hints()
        injected: dict[str, Injected] = {}
        fields: list[Field] = []
        for parameter in parameters:
            definition = self._parameter(parameter, hints)
            if isinstance(definition, Field):
                fields.append(definition)
            elif definition is not None:
                injected[parameter.name] = definition
        if "return" not in hints:
            self.problems.append("it has no return annotation: add one, such as -> str")
        elif is_generator(_routine(self.function)):
            self.yields = Yields.of(_routine(self.function), hints["return"])
            if self.yields is None:
                kind = "AsyncIterator" if inspect.isasyncgenfunction(_routine(self.function)) else "Iterator"
                self.problems.append(f"it yields: annotate what, such as -> {kind}[str]; the last value is the result")
        self.schema = self._schema(fields)
        try:
            check_constraints(hints.get("return"), "the result")
        except ToolDefinitionError as error:
            self.problems.append(str(error))
        return fields, injected, hints.get("return")

    def _parameters(self) -> list[inspect.Parameter]:
        """Return the parameters that a partial has not filled."""
        filled = self.function.keywords if isinstance(self.function, partial) else {}
        try:
            parameters = inspect.signature(self.function).parameters
        except (ValueError, TypeError) as error:
            self.problems.append(f"its signature cannot be read: {error}")
            return []
        return [parameter for name, parameter in parameters.items() if name not in filled]

    def _hints(self) -> dict[str, Any]:
        routine = _routine(self.function)
        # A lambda has no place for hints; a schema says what its arguments are.
        is_lambda = self._has_schema and getattr(routine, "__name__", "") == "<lambda>"
        unwritten = dict.fromkeys([*inspect.signature(routine).parameters, "return"], Any) if is_lambda else {}
        try:
            return {**unwritten, **function_hints(routine)}
        except ToolDefinitionError as error:
            # All parameters count as annotated, so that one wrong hint is not reported as missing hints of the others.
            self.problems.append(str(error))
            return dict.fromkeys(getattr(routine, "__annotations__", {}), Any)

    def _parameter(self, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Field | Injected | None:
        # A model passes arguments by name, so each parameter needs a name in the schema.
        if parameter.kind is parameter.VAR_KEYWORD and self._has_schema:
            self.takes_any = True
        elif parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            hint = ", or pass schema=" if parameter.kind is parameter.VAR_KEYWORD else ""
            self.problems.append(f"a model cannot fill {str(parameter).partition(':')[0]}: name each parameter{hint}")
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            self.problems.append(f"arguments are passed by name: remove the / after {parameter.name!r}")
        elif parameter.name not in hints:
            is_self = parameter.name == "self"
            hint = " (a method is decorated in its class, or becomes a tool as tool(object.method))" if is_self else ""
            self.problems.append(f"the parameter {parameter.name!r} has no type hint{hint}")
        else:
            kind = injected_class(hints[parameter.name])
            if kind is ToolContext:
                self._add_dependencies(hints[parameter.name])
            return kind or self._field(parameter, hints[parameter.name])
        return None

    def _add_dependencies(self, hint: Any) -> None:
        declared = list(_contexts_in(hint))
        # In a union with a context of anything, nothing is declared.
        if all(declared):
            self.dependencies.append(Union[tuple(kind for kinds in declared for kind in kinds)])  # noqa: UP007  # computed

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
        for parameter in fields:
            try:
                schema = builder.schema(parameter.hint, f"the parameter {parameter.name!r}")
            except ToolDefinitionError as error:
                self.problems.append(str(error))
            else:
                properties[parameter.name] = {**schema, **parameter.default_keyword()}
        self.is_strict = builder.is_strict
        required = [parameter.name for parameter in fields if parameter.required and parameter.name in properties]
        return builder.finish(object_schema(properties, required))


def is_async(function: Any) -> bool:
    """Whether a function is a coroutine function or an async generator: itself, inside a partial, or as an object's `__call__`."""
    routine = _routine(function)
    return inspect.iscoroutinefunction(routine) or inspect.isasyncgenfunction(routine)


def hints_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the type hints of a function; empty when they cannot be resolved."""
    try:
        return function_hints(_routine(function))
    except ToolDefinitionError:
        return {}


def is_method(function: Any) -> bool:
    """Whether a function is written in a class and takes the object, so that it becomes a tool when it is bound to one."""
    if not inspect.isfunction(function):
        return False
    parent = function.__qualname__.rpartition(".")[0]
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if not parent or parent.endswith("<locals>") or first is None:
        return False
    is_positional = first.kind in {first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD}
    return is_positional and (first.name == "self" or first.annotation is first.empty)


def bound_to_any(function: Any) -> Any:
    """Return a method as objects have it, to read its signature."""
    return function.__get__(object())


def injected_class(hint: Any) -> Injected | None:
    """Return the class to inject into a parameter with this hint, also inside of `Annotated` and unions; None for none."""
    return next((kind for member in _members(hint) for kind in INJECTED if _is_form_of(kind, member)), None)


def _contexts_in(hint: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of each `ToolContext[…]` in a hint; an empty tuple for a plain `ToolContext`."""
    return (get_args(member) for member in _members(hint) if _is_form_of(ToolContext, member))


def _is_form_of(kind: type, hint: Any) -> bool:
    return hint is kind or get_origin(hint) is kind


def _members(hint: Any) -> Iterator[Any]:
    """Yield the members of a union, and what an alias or an `Annotated` stands for; of any other hint, the hint itself."""
    if is_type_alias(hint):
        yield from _members(alias_value(hint))
    elif get_origin(hint) is Annotated:
        yield from _members(get_args(hint)[0])
    elif get_origin(hint) in {Union, UnionType}:
        for member in get_args(hint):
            yield from _members(member)
    else:
        yield hint


# --- the types of dependencies ----------------------------------------------------------------------------------


def has_type(value: object, hint: Any) -> bool:
    """Return whether an object has a type, as far as this can be checked without inspecting its contents.

    Of a generic type, only the class is compared. Everything has the types that cannot be checked: protocols that are not
    `runtime_checkable`, and type variables.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, NewType):
        return has_type(value, hint.__supertype__)
    if origin is Literal:
        return value in arguments
    members = list(_members(hint))
    if members != [hint]:
        return any(has_type(value, member) for member in members)
    kind = type(None) if hint is None else dict if is_typeddict(hint) else origin or hint
    if kind is float:
        kind = (float, int)  # as type checkers have it
    try:
        return isinstance(value, kind)
    except TypeError:  # neither a class nor a protocol that can be checked at run time
        return True


def _unwrap_partial(function: Any) -> Any:
    return function.func if isinstance(function, partial) else function


def _routine(function: Any) -> Any:
    """Return the object that has the hints: the function itself, the one inside a partial, or the `__call__` of an object."""
    inner = _unwrap_partial(function)
    return inner if inspect.isroutine(inner) else type(inner).__call__


def _docstring(function: Any) -> str:
    """Return the docstring of a function; of an object, that of its `__call__` or of its class."""
    inner = _unwrap_partial(function)
    if inspect.isroutine(inner):
        return inspect.getdoc(inner) or ""
    # For a `__call__` without a docstring, `inspect.getdoc` finds the one of `type`.
    kind = type(inner)
    of_calls = [vars(base)["__call__"].__doc__ for base in kind.__mro__ if "__call__" in vars(base)]
    return inspect.cleandoc(next(filter(None, [*of_calls, own_docstring(kind)]), ""))


def _begins_with_text(documentation: str) -> bool:
    """Return whether a docstring begins with prose, not with a section or a field."""
    first = documentation.strip().partition("\n")[0].strip()
    # What follows a section or a field, such as `Args:` or `:param`, is no description of the tool.
    return bool(first) and first[0] not in ":@" and first.rstrip(":").lower() not in _SECTIONS
