"""The fields of classes that have a JSON form, and defaults as JSON."""

from __future__ import annotations

import base64
import enum
import typing
from collections.abc import Callable, Collection, Mapping
from datetime import date, time, timedelta
from typing import Any

import attrs

from agentloop.errors import NotJson, ToolDefinitionError
from agentloop.values.json import JsonValue, format_json, freeze, thaw

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

    def default_keyword(self) -> dict[str, Any]:
        """Return the `default` keyword, or nothing when there is no default that JSON can hold."""
        if self.default is _NOTHING:
            return {}
        try:
            return {"default": thaw(default_json(self.default))}
        except NotJson:
            return {}


def default_json(value: Any) -> JsonValue:
    """Return the JSON form of a default.

    Raises:
        NotJson: when it has none.
    """
    form = next((form for kinds, form in _FORMS if isinstance(value, kinds)), None)
    if form is not None:
        return freeze(form(value))
    of_text = any(f"{cls.__module__}.{cls.__qualname__}" in _WRITTEN_AS_TEXT for cls in type(value).__mro__)
    return str(value) if of_text else freeze(value)


_FORMS: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    (enum.Enum, lambda member: member.value),
    ((date, time), lambda moment: moment.isoformat()),
    (timedelta, timedelta.total_seconds),
    (bytes, lambda data: base64.b64encode(data).decode()),
    ((set, frozenset), lambda items: in_order([default_json(item) for item in items])),
    ((list, tuple), lambda items: [default_json(item) for item in items]),
    (Mapping, lambda entries: {key: default_json(item) for key, item in entries.items()}),
)
_WRITTEN_AS_TEXT = frozenset({"uuid.UUID", "decimal.Decimal", "pathlib.PurePath"})
"""Classes by module and name, so that their modules are not loaded for those who do not use them."""


def in_order(items: Collection[Any]) -> list[Any]:
    """Sort the JSON items of a set by their text, so that equal sets look equal in every process."""
    return sorted(items, key=lambda item: format_json(freeze(item)))


def fields_of(cls: type) -> list[Field] | None:
    """Return the fields that JSON data may have to be structured into a class; None when it is of no kind that has any.

    Raises:
        ToolDefinitionError: when a type hint of the class cannot be resolved.
    """
    read = next((read for is_kind, read in _KINDS if is_kind(cls)), None)
    if read is None:
        return None
    try:
        return read(cls, typing.get_type_hints(cls, include_extras=True))
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise ToolDefinitionError(f"a type hint of {cls.__qualname__} cannot be resolved: {error}") from error


def is_typed_dict(cls: object) -> bool:
    """Say whether this is a TypedDict, of `typing` or of `typing_extensions`."""
    return isinstance(cls, type) and issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def _typed_dict_fields(cls: Any, hints: dict[str, Any]) -> list[Field]:
    return [_typed_dict_field(name, hint, required=name in cls.__required_keys__) for name, hint in hints.items()]


def _typed_dict_field(name: str, hint: Any, *, required: bool) -> Field:
    """Read what the hint itself says; a class made of hints that were text has not seen it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Required, typing.NotRequired}:
        return Field(name, arguments[0], origin is typing.Required)
    if origin is typing.Annotated:
        inner = _typed_dict_field(name, arguments[0], required=required)
        return Field(name, typing.Annotated[inner.hint, *arguments[1:]], inner.required)
    return Field(name, hint, required)


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
    (is_typed_dict, _typed_dict_fields),
    (lambda cls: hasattr(cls, "__dataclass_fields__"), _dataclass_fields),
    (attrs.has, _attrs_fields),
)
