"""JSON Schema (draft 2020-12) of Python types."""

from __future__ import annotations

import collections
import collections.abc
import enum
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from agentloop.errors import ToolDefinitionError
from agentloop.tools import pydantic_models
from agentloop.tools.constraints import constraints_of, description_in, is_strict
from agentloop.tools.fields import Field, class_name, fields_of, is_named_tuple, own_docstring
from agentloop.tools.hints import alias_value, is_type_alias
from agentloop.tools.object_keys import key_schema
from agentloop.values.json import JsonObject, JsonValue

Schema = dict[str, Any]

SUPPORTED = (
    "str, int, float, bool, None, Any, bytes, datetime, date, time, timedelta, ZoneInfo, UUID, Decimal, Path, addresses and "
    "networks of ipaddress, list, tuple, set, dict and their abstract forms, deque, Counter, OrderedDict, defaultdict, Literal, "
    "Enum, Optional, Union, Annotated, NewType, TypedDict, NamedTuple, dataclasses, attrs classes, pydantic models, and types "
    "that pydantic validates, such as HttpUrl"
)
"""The supported types, as error messages list them."""

_DECIMAL = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
_LENGTH = r"[0-9]+([.,][0-9]+)?"
_TIME = f"T({_LENGTH}H({_LENGTH}M)?({_LENGTH}S)?|{_LENGTH}M({_LENGTH}S)?|{_LENGTH}S)"
DURATION = f"^[+-]?P({_LENGTH}W({_LENGTH}D)?({_TIME})?|{_LENGTH}D({_TIME})?|{_TIME})$"
_SECONDS = "a duration in seconds, or as ISO 8601 text, such as PT5M or P1DT12H"
_REFERENCE = "#/$defs/"

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
    JsonObject: {"type": "object"},
}

_BY_NAME: Mapping[str, Schema] = {
    "datetime.datetime": {"type": "string", "format": "date-time"},
    "datetime.date": {"type": "string", "format": "date"},
    "datetime.time": {"type": "string", "format": "time"},
    "datetime.timedelta": {
        "anyOf": [{"type": "number"}, {"type": "string", "format": "duration", "pattern": DURATION}],
        "description": _SECONDS,
    },
    "uuid.UUID": {"type": "string", "format": "uuid"},
    "decimal.Decimal": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": _DECIMAL}]},
    **{
        f"pathlib.{kind}Path": {"type": "string", "format": "path"} for kind in ("", "Pure", "PurePosix", "PureWindows")
    },
    **{
        f"ipaddress.IPv{version}{kind}": {
            "type": "string",
            "format": f"ipv{version}{kind.removesuffix('Address').lower()}",
        }
        for version in (4, 6)
        for kind in ("Address", "Network", "Interface")
    },
    "zoneinfo.ZoneInfo": {"type": "string", "description": "a time zone, such as Europe/Berlin"},
}
"""Classes by module and name, so that their modules are imported only by programs that use them."""

_SEQUENCES = (
    list,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Iterable,
    collections.abc.Collection,
    collections.deque,
)
_SETS = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)
MAPPINGS: tuple[Any, ...] = (
    dict,
    collections.abc.Mapping,
    collections.abc.MutableMapping,
    collections.OrderedDict,
    collections.defaultdict,
    collections.Counter,
)
"""The classes of mappings, whose values are objects with any keys."""


def mapping_types(hint: Any) -> tuple[Any, Any, Any]:
    """Return the class of a mapping, and the types of its keys and values."""
    kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    values = int if kind is collections.Counter else arguments[-1] if arguments else Any
    return kind, arguments[0] if arguments else str, values


_ANY_TEXT: tuple[Schema, ...] = ({}, {"type": "string"})
_UNIONS = (typing.Union, types.UnionType)
_WRAPPERS = (typing.Required, typing.NotRequired, typing.Final, typing.ClassVar)
_SCALAR_NAMES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


def json_schema(hint: Any) -> Schema:
    """Return the JSON Schema of a type: the JSON data that can be structured into it.

    Args:
        hint: a type or type hint; `Annotated` may add a description and bounds.

    Raises:
        ToolDefinitionError: when the type has no JSON form; the message lists the supported types.
    """
    builder = SchemaBuilder()
    return builder.finish(builder.schema(hint, "the type"))


class SchemaBuilder:
    """Builds schemas that share one set of definitions. A recursive type becomes a definition; other types are inlined.

    Attributes:
        is_strict: whether a part of any of the types says that its value must not be coerced.
    """

    def __init__(self) -> None:
        self.is_strict: bool = False
        self._definitions: dict[str, Schema] = {}
        # The types whose schema is under construction, each with the name of its definition once it refers to itself.
        self._open: dict[Any, str] = {}
        self._owners: dict[str, object] = {}

    def finish(self, schema: Schema) -> Schema:
        """Return the outermost schema together with the definitions that it refers to."""
        return {**schema, "$defs": self._definitions} if self._definitions else schema

    def schema(self, hint: Any, where: str) -> Schema:
        """Return the schema of a type.

        Args:
            hint: the type.
            where: the parameter or field that has the type, for error messages.

        Raises:
            ToolDefinitionError: when the type has no JSON form.
        """
        if not _is_hashable(hint):
            raise ToolDefinitionError(
                f"{where} has the annotation {hint}, which is not hashable: use a hashable type, and a function in place of Not(…)"
            )
        simple = _SIMPLE.get(hint)
        if simple is None and isinstance(hint, type):
            simple = _BY_NAME.get(class_name(hint))
        if simple is not None:
            return dict(simple)
        if isinstance(hint, typing.NewType | typing.TypeVar):
            return self.schema(hint.__supertype__ if isinstance(hint, typing.NewType) else hint.__bound__ or Any, where)
        if is_type_alias(hint):
            return self._named(hint, hint.__name__, lambda: self.schema(alias_value(hint), where))
        origin = typing.get_origin(hint)
        if origin is not None:
            return self._generic(hint, origin, where)
        if isinstance(hint, type):
            return self._class(hint, where)
        raise _unsupported(hint, where)

    def _generic(self, hint: Any, origin: Any, where: str) -> Schema:
        arguments = typing.get_args(hint)
        if origin in _WRAPPERS:
            return self.schema(arguments[0], where)
        if origin is typing.Annotated:
            return self._annotated(hint, arguments[0], where)
        if origin is typing.Literal or origin in _UNIONS:
            is_literal = origin is typing.Literal
            return _enumeration(list(arguments), where) if is_literal else self._union(arguments, where)
        if origin is tuple and (arguments or hint == tuple[()]):
            return self._tuple(arguments, where)
        if isinstance(origin, type) and (fields := [] if hint in self._open else fields_of(hint)) is not None:
            return self._named(hint, origin.__name__, lambda: self._object(hint, fields))
        return self._container(hint, origin, arguments, where)

    def _union(self, members: tuple[Any, ...], where: str) -> Schema:
        return {"anyOf": [self.schema(member, where) for member in members]}

    def _annotated(self, hint: Any, inner: Any, where: str) -> Schema:
        # What pydantic alone applies may change the form of the data, so that the schema is its own, too.
        adapted = constraints_of(hint, where).adapted
        self.is_strict = self.is_strict or is_strict(hint)
        schema = (
            self.schema(inner, where)
            if adapted is None
            else self._merge(pydantic_models.adapted_schema(adapted, where))
        )
        keywords = constraints_of(hint, where, schema).keywords
        if "description" in keywords:
            keywords = {**keywords, "description": _with_unit(schema, keywords["description"])}
        return {**schema, **keywords}

    def _container(self, hint: Any, origin: Any, arguments: tuple[Any, ...], where: str) -> Schema:
        """Return the schema of a container, with or without the type of its items."""
        if origin in _SEQUENCES or origin is tuple:
            return {"type": "array", **({"items": self.schema(arguments[0], where)} if arguments else {})}
        if origin in _SETS:
            return {**self._container(hint, list, arguments, where), "uniqueItems": True}
        if origin not in MAPPINGS:
            raise _unsupported(hint, where)
        _, keys_hint, values = mapping_types(hint)
        items = {} if values is Any else {"additionalProperties": self.schema(values, where)}
        if keys_hint is str:
            return {"type": "object", **items}
        keys = key_schema(self.schema(keys_hint, where))
        if keys is None:
            raise ToolDefinitionError(
                f"{where} is {hint}, but the keys of a JSON object are text: use dict[str, …], or keys that are written as text"
            )
        return {"type": "object", **({} if keys in _ANY_TEXT else {"propertyNames": keys}), **items}

    def _tuple(self, arguments: tuple[Any, ...], where: str) -> Schema:
        if len(arguments) == 2 and arguments[1] is ...:  # noqa: PLR2004  # tuple[T, ...]
            return {"type": "array", "items": self.schema(arguments[0], where)}
        items = [self.schema(argument, where) for argument in arguments]
        length = {"minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "prefixItems": items, **length} if items else {"type": "array", "maxItems": 0}

    def _class(self, cls: type, where: str) -> Schema:
        if issubclass(cls, enum.Flag):
            return _flags(cls)
        if issubclass(cls, enum.Enum):
            return _enumeration([member.value for member in cls], where)
        if pydantic_models.is_model(cls):
            self.is_strict = self.is_strict or pydantic_models.is_strict_model(cls)
            return self._merge(pydantic_models.schema(cls, where))
        # A class under construction becomes a reference, which needs none of its fields.
        fields = [] if cls in self._open else fields_of(cls)
        if fields is None and pydantic_models.is_validated_class(cls):
            return self._merge(pydantic_models.adapted_schema(cls, where))
        if fields is None:
            return self._container(cls, cls, (), where)
        return self._named(cls, cls.__name__, lambda: self._object(cls, fields))

    def _named(self, kind: Any, name: str, build: Callable[[], Schema]) -> Schema:
        """Return the schema of a type that may contain itself; a recursive one becomes a reference to a definition."""
        if kind in self._open:
            self._open[kind] = self._open[kind] or self._reserve_name(name, kind)
            return {"$ref": f"{_REFERENCE}{self._open[kind]}"}
        self._open[kind] = ""
        schema = build()
        definition = self._open.pop(kind)
        # `build` reserves a name when it meets the type again; a name means that the type is recursive.
        if not definition:
            return schema
        self._definitions[definition] = schema
        return {"$ref": f"{_REFERENCE}{definition}"}

    def _object(self, hint: Any, fields: list[Field]) -> Schema:
        cls = typing.get_origin(hint) or hint
        descriptions = _field_descriptions(cls)
        properties = {}
        for field in fields:
            schema = self.schema(field.hint, f"the field {field.name!r} of {cls.__qualname__}")
            schema = with_description(schema, field.hint, descriptions.get(field.name))
            properties[field.name] = {**schema, **field.default_keyword()}
        required = [field.name for field in fields if field.required]
        return _named_array(properties, len(required)) if is_named_tuple(cls) else object_schema(properties, required)

    def _reserve_name(self, preferred: str, owner: object) -> str:
        """Return a name for a definition; a number is appended when another type has the name."""
        name, number = preferred, 1
        # A type keeps the name that it has; another type of the same name gets a number.
        while self._owners.setdefault(name, owner) != owner:
            number += 1
            name = f"{preferred}{number}"
        return name

    def _merge(self, schema: Schema) -> Schema:
        """Add the definitions of a schema from elsewhere, renamed where a name is in use."""
        definitions = schema.pop("$defs", {})
        names = {name: self._reserve_name(name, definition) for name, definition in definitions.items()}
        for name, definition in definitions.items():
            self._definitions[names[name]] = _rename_references(definition, names)
        renamed: Schema = _rename_references(schema, names)
        return renamed


def object_schema(properties: Mapping[str, Schema], required: list[str]) -> Schema:
    """Return the schema of an object that has these properties and no others."""
    # Models make up arguments; rejecting them lets the model correct the call.
    schema: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    if required:
        schema["required"] = required
    return schema


def _named_array(properties: Mapping[str, Schema], required: int) -> Schema:
    """Return the schema of an array with the values of fields in their order; those at its end may be missing."""
    items = [{"title": name, **schema} for name, schema in properties.items()]
    prefix = {"prefixItems": items} if items else {}
    return {"type": "array", **prefix, "minItems": required, "maxItems": len(items)}


def with_description(schema: Schema, hint: Any, text: str | None) -> Schema:
    """Return the schema of a type with a description, unless the type has one in `Annotated`."""
    if not text or description_in(hint):
        return schema
    return {**schema, "description": _with_unit(schema, text)}


def _with_unit(schema: Schema, text: str) -> str:
    # A number for a timedelta says nothing about its unit, so a description never replaces that part.
    return f"{text} ({_SECONDS})" if schema.get("description") == _SECONDS else text


def _enumeration(values: list[Any], where: str) -> Schema:
    plain = [value.value if isinstance(value, enum.Enum) else value for value in values]
    kinds = {_SCALAR_NAMES.get(type(value)) for value in plain}
    if None in kinds:
        raise ToolDefinitionError(f"{where} lists {plain!r}; the values of a Literal or Enum must be JSON scalars")
    # Some providers reject an enumeration without a type.
    return {"type": kinds.pop(), "enum": plain} if len(kinds) == 1 else {"enum": plain}


def _flags(cls: type[enum.Flag]) -> Schema:
    """Return the schema of a set of flags: the sum of their values."""
    values = ", ".join(f"{member.value} ({member.name})" for member in cls)
    highest = sum(member.value for member in cls)
    return {"type": "integer", "minimum": 0, "maximum": highest, "description": f"the sum of any of {values}"}


def _rename_references(schema: Any, names: Mapping[str, str]) -> Any:
    """Return the schema with its references to definitions under their new names."""
    if isinstance(schema, dict):
        return {key: _rename_references(value, names) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_rename_references(item, names) for item in schema]
    if isinstance(schema, str) and schema.startswith(_REFERENCE):
        name = schema.removeprefix(_REFERENCE)
        return _REFERENCE + names.get(name, name)
    return schema


def _field_descriptions(cls: type) -> dict[str, str]:
    """Return the descriptions of the fields in the docstring of a class."""
    docstring = own_docstring(cls)
    if not docstring:
        return {}
    from docstring_parser import parse  # noqa: PLC0415  # 6 ms, for programs that have classes as parameters

    return {entry.arg_name: entry.description for entry in parse(docstring).params if entry.description}


def _is_hashable(hint: object) -> bool:
    try:
        hash(hint)
    except TypeError:
        return False
    return True


def _unsupported(hint: Any, where: str) -> ToolDefinitionError:
    name = getattr(hint, "__qualname__", None) or str(hint)
    return ToolDefinitionError(f"{where} is {name}, which has no JSON Schema here; use one of: {SUPPORTED}")
