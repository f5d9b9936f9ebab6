"""JSON Schema (draft 2020-12) of Python types."""

from __future__ import annotations

import collections.abc
import enum
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from typing import Any

import attrs

from agentloop.errors import NotJson, ToolDefinitionError
from agentloop.tools import pydantic_models
from agentloop.tools.annotations import annotation_keywords
from agentloop.values.json_value import JsonObject, JsonValue, freeze

Schema = dict[str, Any]

_DECIMAL = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"

_SIMPLE: Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
    JsonValue: {},
    bytes: {"type": "string", "contentEncoding": "base64"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    set: {"type": "array", "uniqueItems": True},
    frozenset: {"type": "array", "uniqueItems": True},
    dict: {"type": "object"},
    JsonObject: {"type": "object"},
    collections.abc.Mapping: {"type": "object"},
}

_BY_NAME: Mapping[str, Schema] = {
    "datetime.datetime": {"type": "string", "format": "date-time"},
    "datetime.date": {"type": "string", "format": "date"},
    "datetime.time": {"type": "string", "format": "time"},
    "datetime.timedelta": {"type": "number", "description": "a duration in seconds"},
    "uuid.UUID": {"type": "string", "format": "uuid"},
    "decimal.Decimal": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": _DECIMAL}]},
    "pathlib.Path": {"type": "string", "format": "path"},
    "pathlib.PurePath": {"type": "string", "format": "path"},
}
"""Classes by module and name, so that their modules are not loaded for those who do not use them."""

_SEQUENCES = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_SETS = (set, frozenset, collections.abc.Set)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_WRAPPERS = (typing.Required, typing.NotRequired, typing.Final, typing.ClassVar)

SUPPORTED = (
    "str, int, float, bool, None, Any, bytes, datetime, date, time, timedelta, UUID, Decimal, Path, list, tuple, set, dict "
    "and their abstract forms, Literal, Enum, Optional, Union, Annotated, TypedDict, dataclasses, attrs classes, and "
    "pydantic models"
)


def json_schema(hint: Any) -> Schema:
    """Return the JSON Schema of a type: what JSON data has to look like to be structured into it.

    Args:
        hint: a type or type hint; descriptions and bounds may stand in `Annotated`.

    Raises:
        ToolDefinitionError: when the type has no JSON form; lists those that have.
    """
    builder = SchemaBuilder()
    return builder.finished(builder.schema(hint, "the type"))


class SchemaBuilder:
    """Builds schemas that share one set of definitions. Only classes that contain themselves become definitions."""

    def __init__(self) -> None:
        self._definitions: dict[str, Schema] = {}
        self._open: dict[type, str] = {}
        self._names: dict[str, type] = {}

    def finished(self, schema: Schema) -> Schema:
        """Return the outermost schema together with the definitions that it refers to."""
        return {**schema, "$defs": self._definitions} if self._definitions else schema

    def schema(self, hint: Any, where: str) -> Schema:
        """Return the schema of a type.

        Args:
            hint: the type.
            where: what the type belongs to, for error messages.
        """
        simple = _SIMPLE.get(hint) if _is_hashable(hint) else None
        if simple is None and isinstance(hint, type):
            simple = _BY_NAME.get(f"{hint.__module__}.{hint.__qualname__}")
        if simple is not None:
            return dict(simple)
        if isinstance(hint, typing.NewType):
            return self.schema(hint.__supertype__, where)
        if isinstance(hint, typing.TypeVar):
            return self.schema(hint.__bound__ or Any, where)
        origin = typing.get_origin(hint)
        if origin is not None:
            return self._generic(hint, origin, where)
        if isinstance(hint, type):
            return self._class(hint, where)
        raise _unsupported(hint, where)

    def _generic(self, hint: Any, origin: Any, where: str) -> Schema:
        arguments = typing.get_args(hint)
        schema: Schema
        if origin in _WRAPPERS:
            schema = self.schema(arguments[0], where)
        elif origin is typing.Annotated:
            bare = self.schema(arguments[0], where)
            schema = {**bare, **annotation_keywords(arguments[1:], bare.get("type"))}
        elif origin is typing.Literal:
            schema = _enumeration(list(arguments), where)
        elif origin in {typing.Union, types.UnionType}:
            schema = {"anyOf": [self.schema(member, where) for member in arguments]}
        elif origin is tuple:
            schema = self._tuple(arguments, where)
        elif origin in _SEQUENCES:
            schema = {"type": "array", "items": self.schema(arguments[0], where)}
        elif origin in _SETS:
            schema = {"type": "array", "items": self.schema(arguments[0], where), "uniqueItems": True}
        elif origin in _MAPPINGS:
            if arguments[0] is not str:
                raise ToolDefinitionError(
                    f"{where} is {hint}, but the keys of a JSON object are text: use dict[str, …]"
                )
            schema = {"type": "object", "additionalProperties": self.schema(arguments[1], where)}
        else:
            raise _unsupported(hint, where)
        return schema

    def _tuple(self, arguments: tuple[Any, ...], where: str) -> Schema:
        if len(arguments) == 2 and arguments[1] is ...:  # noqa: PLR2004  # tuple[T, ...]
            return {"type": "array", "items": self.schema(arguments[0], where)}
        items = [self.schema(argument, where) for argument in arguments if argument != ()]
        length = {"minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "prefixItems": items, **length} if items else {"type": "array", "maxItems": 0}

    def _class(self, cls: type, where: str) -> Schema:
        if issubclass(cls, enum.Enum):
            return _enumeration([member.value for member in cls], where)
        if cls in self._open:
            return {"$ref": f"#/$defs/{self._defined(cls)}"}
        if pydantic_models.is_model(cls):
            return self._merged(pydantic_models.schema(cls))
        fields = _fields(cls)
        if fields is None:
            raise _unsupported(cls, where)
        self._open[cls] = ""
        schema = self._object(cls, fields)
        name = self._open.pop(cls)
        if not name:
            return schema
        self._definitions[name] = schema
        return {"$ref": f"#/$defs/{name}"}

    def _object(self, cls: type, fields: list[Field]) -> Schema:
        described = _described(cls)
        properties = {}
        for field in fields:
            schema = self.schema(field.hint, f"the field {field.name!r} of {cls.__qualname__}")
            if described.get(field.name) and "description" not in schema:
                schema["description"] = described[field.name]
            schema.update(field.default_keyword())
            properties[field.name] = schema
        required = [field.name for field in fields if field.required]
        return object_schema(properties, required)

    def _defined(self, cls: type) -> str:
        name = self._open[cls]
        number = 1
        while not name or self._names.get(name, cls) is not cls:
            name = cls.__name__ if number == 1 else f"{cls.__name__}{number}"
            number += 1
        self._open[cls] = name
        self._names[name] = cls
        return name

    def _merged(self, schema: Schema) -> Schema:
        definitions = schema.pop("$defs", {})
        self._definitions.update(definitions)
        return schema


def object_schema(properties: Mapping[str, Schema], required: list[str]) -> Schema:
    """Return the schema of an object that has these properties and no others."""
    schema: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    if required:
        schema["required"] = required
    return schema


_NOTHING = object()


@attrs.frozen
class Field:
    """A field of a class, or a parameter of a function.

    Attributes:
        name: its name.
        hint: its type.
        required: whether it has to be given.
        default: what stands for it when it is left out, if that has a JSON form.
    """

    name: str
    hint: Any
    required: bool
    default: Any = _NOTHING

    def default_keyword(self) -> Schema:
        """Return the `default` keyword, or nothing when there is no default that JSON can hold."""
        if self.default is _NOTHING:
            return {}
        try:
            return {"default": default_json(self.default)}
        except NotJson:
            return {}


_WRITTEN_AS_TEXT = frozenset({"uuid.UUID", "decimal.Decimal", "pathlib.PurePath"})


def default_json(value: Any) -> JsonValue:
    """Return the JSON form of a default.

    Raises:
        NotJson: when it has none.
    """
    if isinstance(value, enum.Enum):
        return freeze(value.value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    of_text = any(f"{cls.__module__}.{cls.__qualname__}" in _WRITTEN_AS_TEXT for cls in type(value).__mro__)
    return str(value) if of_text else freeze(value)


def _fields(cls: type) -> list[Field] | None:
    read = next((read for is_kind, read in _KINDS if is_kind(cls)), None)
    if read is None:
        return None
    try:
        return read(cls, typing.get_type_hints(cls, include_extras=True))
    except NameError as error:
        raise ToolDefinitionError(f"a type hint of {cls.__qualname__} cannot be resolved: {error}") from error


def _typed_dict_fields(cls: Any, hints: dict[str, Any]) -> list[Field]:
    return [Field(name, hint, name in cls.__required_keys__) for name, hint in hints.items()]


def _dataclass_fields(cls: Any, hints: dict[str, Any]) -> list[Field]:
    from dataclasses import MISSING, fields  # noqa: PLC0415  # loaded already by whoever has a dataclass

    found = []
    for field in fields(cls):
        if field.init:
            given = field.default is not MISSING
            required = not given and field.default_factory is MISSING
            found.append(Field(field.name, hints[field.name], required, field.default if given else _NOTHING))
    return found


def _attrs_fields(cls: Any, hints: dict[str, Any]) -> list[Field]:
    attrs.resolve_types(cls)  # cattrs reads the hints from there
    found = []
    for field in attrs.fields(cls):
        if field.init:
            given = field.default is not attrs.NOTHING and not isinstance(field.default, attrs.Factory)  # type: ignore[arg-type]  # Factory is a class at run time
            required = field.default is attrs.NOTHING
            found.append(Field(field.alias, hints.get(field.name, Any), required, field.default if given else _NOTHING))
    return found


_KINDS: tuple[tuple[Callable[[type], bool], Callable[[Any, dict[str, Any]], list[Field]]], ...] = (
    (typing.is_typeddict, _typed_dict_fields),
    (lambda cls: hasattr(cls, "__dataclass_fields__"), _dataclass_fields),
    (attrs.has, _attrs_fields),
)

_JSON_NAMES: Mapping[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def _enumeration(values: list[Any], where: str) -> Schema:
    plain = [value.value if isinstance(value, enum.Enum) else value for value in values]
    kinds = {_JSON_NAMES.get(type(value)) for value in plain}
    if None in kinds:
        raise ToolDefinitionError(f"{where} lists {plain!r}; the values of a Literal or Enum must be JSON scalars")
    return {"type": kinds.pop(), "enum": plain} if len(kinds) == 1 else {"enum": plain}


def _described(cls: type) -> dict[str, str]:
    """Return what the docstring of a class says of its fields."""
    text = cls.__doc__
    if not text or text.startswith(f"{cls.__name__}("):  # what dataclasses put in where there is no docstring
        return {}
    from docstring_parser import parse  # noqa: PLC0415  # 6 ms that only those pay who have classes as parameters

    return {entry.arg_name: entry.description for entry in parse(text).params if entry.description}


def _is_hashable(hint: object) -> bool:
    try:
        hash(hint)
    except TypeError:
        return False
    return True


def _unsupported(hint: Any, where: str) -> ToolDefinitionError:
    name = getattr(hint, "__qualname__", None) or str(hint)
    return ToolDefinitionError(f"{where} is {name}, which has no JSON Schema here; use one of: {SUPPORTED}")
