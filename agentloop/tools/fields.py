"""The fields of classes that have a JSON form, and defaults as JSON."""

from __future__ import annotations

import base64
import dataclasses
import enum
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, time, timedelta
from typing import Any

import attrs

from agentloop.errors import NotJson, ToolDefinitionError
from agentloop.tools.hints import class_hints, substitute
from agentloop.values.json import JsonValue, format_json, freeze, thaw
from agentloop.values.value import Value

NO_DEFAULT = object()
"""The default of a field that has none."""


@attrs.frozen(eq=False, repr=False)
class Field(Value):
    """A field of a class, or a parameter of a function.

    Attributes:
        name: its name.
        hint: its type.
        required: whether it has no default.
        default: its default; unset when it has none, or a factory.
        factory: makes its default each time; None without one.
        other_names: further names under which its value is taken.
    """

    name: str
    hint: Any
    required: bool
    default: Any = NO_DEFAULT
    factory: Callable[..., Any] | None = None
    other_names: tuple[str, ...] = ()

    def default_keyword(self) -> dict[str, Any]:
        """Return the schema keyword `default`; empty without a default or when the default has no JSON form."""
        if self.default is NO_DEFAULT:
            return {}
        try:
            return {"default": thaw(default_json(self.default))}
        except NotJson:
            return {}


def fields_of(hint: Any) -> list[Field] | None:
    """Return the fields of a TypedDict, a NamedTuple, a dataclass or an attrs class, as JSON data has them; None for other types.

    Args:
        hint: the class; a generic one also with its arguments.

    Raises:
        ToolDefinitionError: when a type hint of the class cannot be resolved, or the class needs a value that is no field.
    """
    cls = typing.get_origin(hint) or hint
    read_fields = next((read for is_kind, read in _KINDS if is_kind(cls)), None)
    if read_fields is None:
        return None
    fields = read_fields(cls, class_hints(cls))
    types = dict(zip(getattr(cls, "__parameters__", ()), typing.get_args(hint), strict=False))
    return [attrs.evolve(field, hint=substitute(field.hint, types)) for field in fields] if types else fields


def is_typed_dict(hint: object) -> bool:
    """Return whether this is a TypedDict, of `typing` or of `typing_extensions`; a generic one also with its arguments."""
    cls = typing.get_origin(hint) or hint
    return isinstance(cls, type) and issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def is_named_tuple(hint: object) -> bool:
    """Return whether this is a class of named tuples; a generic one also with its arguments."""
    cls = typing.get_origin(hint) or hint
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def _named_tuple_fields(cls: Any, hints: dict[str, Any]) -> list[Field]:
    defaults = cls._field_defaults
    return [
        Field(name, hints.get(name, Any), name not in defaults, defaults.get(name, NO_DEFAULT)) for name in cls._fields
    ]


def _typed_dict_fields(cls: Any, hints: dict[str, Any]) -> list[Field]:
    return [_typed_dict_field(name, hint, required=name in cls.__required_keys__) for name, hint in hints.items()]


def _typed_dict_field(name: str, hint: Any, *, required: bool) -> Field:
    # Under `from __future__ import annotations` the class has not seen Required and NotRequired: its __required_keys__ are
    # wrong, and the resolved hint decides.
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Required, typing.NotRequired}:
        return _typed_dict_field(name, arguments[0], required=origin is typing.Required)
    # `typing` has it from Python 3.13 on, and `typing_extensions` has one of its own.
    if str(origin) in {"typing.ReadOnly", "typing_extensions.ReadOnly"}:
        return _typed_dict_field(name, arguments[0], required=required)
    if origin is typing.Annotated:
        inner = _typed_dict_field(name, arguments[0], required=required)
        return Field(name, typing.Annotated[inner.hint, *arguments[1:]], inner.required)
    return Field(name, hint, required)


def _dataclass_fields(cls: Any, hints: dict[str, Any]) -> list[Field]:
    fields = []
    for field in dataclasses.fields(cls):
        field.type = hints[
            field.name
        ]  # cattrs reads it, and does not resolve a name inside of a type, as in list["Tree"]
        if field.init:
            has_value = field.default is not dataclasses.MISSING
            required = not has_value and field.default_factory is dataclasses.MISSING
            default = field.default if has_value else NO_DEFAULT
            factory: Any = None if has_value or required else field.default_factory
            fields.append(Field(field.name, hints[field.name], required, default, factory))
    _check_init_variables(cls, hints)
    return fields


def _check_init_variables(cls: Any, hints: dict[str, Any]) -> None:
    # Objects do not keep these values, so that JSON data of the class, such as a result, cannot have them.
    for name, field in cls.__dataclass_fields__.items():
        hint = hints.get(name)
        is_variable = hint is dataclasses.InitVar or isinstance(hint, dataclasses.InitVar)
        if is_variable and field.default is dataclasses.MISSING:
            raise ToolDefinitionError(
                f"{cls.__qualname__} cannot be made from JSON, since {name!r} is an InitVar and no field: give it a default, or "
                "make it a field"
            )


def _attrs_fields(cls: Any, hints: dict[str, Any]) -> list[Field]:
    attrs.resolve_types(cls)  # cattrs reads the resolved hints from the class
    fields = []
    for field in attrs.fields(cls):
        if field.init:
            required = field.default is attrs.NOTHING
            factory: Any = field.default if isinstance(field.default, attrs.Factory) else None  # type: ignore[arg-type]  # Factory is a class at run time
            default = NO_DEFAULT if required or factory is not None else field.default
            made = None if factory is None else factory.factory
            fields.append(Field(field.alias, hints.get(field.name, Any), required, default, made))
    return fields


_KINDS: tuple[tuple[Callable[[type], bool], Callable[[Any, dict[str, Any]], list[Field]]], ...] = (
    (is_typed_dict, _typed_dict_fields),
    (is_named_tuple, _named_tuple_fields),
    (lambda cls: hasattr(cls, "__dataclass_fields__"), _dataclass_fields),
    (attrs.has, _attrs_fields),
)
"""The kinds of classes that have fields, each with the function that reads them."""


def default_json(value: Any) -> JsonValue:
    """Return the JSON form of a default.

    Raises:
        NotJson: when it has none.
    """
    convert = next((convert for kinds, convert in _CONVERSIONS if isinstance(value, kinds)), None)
    if convert is not None:
        return freeze(convert(value))
    return str(value) if is_text_class(type(value)) else freeze(value)


def is_text_class(cls: type) -> bool:
    """Return whether the objects of a class become text: the text that `str` makes of them."""
    return any(class_name(base) in _TEXT_CLASSES for base in cls.__mro__)


def key_text(key: JsonValue) -> str:
    """Return the text of a key, of its JSON form.

    Raises:
        NotJson: it is an array or an object.
    """
    if isinstance(key, str):
        return key
    if isinstance(key, Mapping | Sequence):
        raise NotJson("the key of a JSON object is text, and this one is an array or an object")
    return format_json(key).decode()


def class_name(cls: type) -> str:
    """Return the module and the name of a class; some versions of Python define `pathlib.Path` in `pathlib._local`."""
    return f"{cls.__module__.partition('._')[0]}.{cls.__qualname__}"


def own_docstring(cls: type) -> str:
    """Return the docstring that was written for a class; empty if there is none."""
    docstring = cls.__doc__ or ""
    # Dataclasses write a signature where there is none.
    return "" if docstring.startswith(f"{cls.__name__}(") else docstring


def sort_items(items: Collection[Any]) -> list[Any]:
    """Sort the JSON items of a set by their text, so that equal sets are written alike in every process."""
    return sorted(items, key=lambda item: format_json(freeze(item)))


_CONVERSIONS: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    (enum.Enum, lambda member: member.value),
    ((date, time), lambda moment: moment.isoformat()),
    (timedelta, timedelta.total_seconds),
    (bytes, lambda data: base64.b64encode(data).decode()),
    ((set, frozenset), lambda items: sort_items([default_json(item) for item in items])),
    ((list, tuple), lambda items: [default_json(item) for item in items]),
    (Mapping, lambda entries: {key_text(default_json(key)): default_json(item) for key, item in entries.items()}),
)
_TEXT_CLASSES = frozenset(
    {
        "decimal.Decimal",
        "ipaddress.IPv4Address",
        "ipaddress.IPv4Network",
        "ipaddress.IPv6Address",
        "ipaddress.IPv6Network",
        "pathlib.PurePath",
        "pydantic.networks._BaseMultiHostUrl",
        "pydantic.networks._BaseUrl",
        "uuid.UUID",
        "zoneinfo.ZoneInfo",
    }
)
"""Classes that become text, by module and name: their modules are imported only by programs that use them."""
