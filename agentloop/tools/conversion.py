"""JSON data to Python types and back, by cattrs, which is loaded with the first value that needs it."""

from __future__ import annotations

import base64
import collections.abc
import enum
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from agentloop.errors import NotJson
from agentloop.tools import pydantic_models
from agentloop.tools.fields import fields_of, in_order, is_typed_dict
from agentloop.tools.schema import annotation_keywords, broken_bound, is_type_alias, json_schema
from agentloop.tools.validation import SchemaValidator
from agentloop.values.json import JsonObject, JsonValue, freeze, freeze_object, thaw

if TYPE_CHECKING:
    from cattrs import Converter


SCALARS: Mapping[Any, tuple[type, ...]] = {str: (str,), bool: (bool,), int: (int, float), float: (float, int)}
"""The types that JSON has itself, and what comes of parsing a JSON value that fits them."""

_AS_ISO: tuple[Any, ...] = (datetime, date, time)
_ITERABLES = (collections.abc.Iterable, collections.abc.Collection)
_BARE = (*_ITERABLES, collections.abc.Sequence, collections.abc.MutableSet)


def structure(data: Any, hint: Any) -> Any:
    """Turn JSON data that satisfies the type's schema into the type.

    Raises:
        Exception: whatever the type's constructor or cattrs raises; `problems` puts it in words.
    """
    return scalar(data, hint) if isinstance(hint, type) and hint in SCALARS else _converter().structure(data, hint)


def scalar(data: Any, kind: Any) -> Any:
    """Return a JSON scalar as this type: 3.0 is an integer in JSON, and 3 a number.

    Raises:
        ValueError: when it is of another type, or cannot be this one without being changed.
        OverflowError: when it is larger than a float can be.
    """
    if type(data) is kind:
        return data
    if type(data) not in SCALARS[kind] or (kind is int and not data.is_integer()):
        raise ValueError(f"{data!r} is not of type {kind.__name__}")
    return kind(data)


def to_json_data(value: Any, hint: Any = None) -> JsonValue:
    """Turn a Python value into immutable JSON data.

    Args:
        value: the value.
        hint: its declared type; the value's own class when left out.

    Raises:
        NotJson: when the value has no JSON form.
    """
    try:
        return freeze(value)
    except NotJson as error:
        try:
            if hint is not None and hint is not Any and hint is not object:
                return freeze(_converter().unstructure(value, hint))
            return freeze(_converter().unstructure(value))
        except RecursionError:
            raise error from None


def problems(error: BaseException, path: str = "$") -> list[tuple[str, str]]:
    """Put what `structure` raised in words: pairs of a JSON path and a message."""
    return list(_problems(error, path, None))


def _problems(error: BaseException, path: str, kind: Any) -> Iterator[tuple[str, str]]:
    from cattrs.errors import ClassValidationError, IterableValidationError

    if isinstance(error, ClassValidationError):
        fields, others = error.group_exceptions()
        for one, field in fields:
            yield from _problems(one, f"{path}.{field.name}", field.type)
        for other in others:
            yield from _problems(other, path, None)
    elif isinstance(error, IterableValidationError):
        items, others = error.group_exceptions()
        for one, item in items:
            step = f"[{item.index}]" if isinstance(item.index, int) else f".{item.index}"
            yield from _problems(one, path + step, item.type)
        for other in others:
            yield from _problems(other, path, None)
    elif found := pydantic_models.problems(error):
        yield from ((path + inner, message) for inner, message in found)
    else:
        yield path, _in_words(error, kind)


def _in_words(error: BaseException, kind: Any) -> str:
    if isinstance(error, KeyError):
        return "this required field is missing"
    expected = f" (expected {getattr(kind, '__name__', kind)})" if kind is not None else ""
    return f"{str(error) or type(error).__name__}{expected}"


@cache
def _converter() -> Converter:
    """Make the converter; this file is the border to cattrs, and to what only converted values need."""
    from cattrs import Converter

    converter = Converter(use_alias=True, forbid_extra_keys=True)
    for kind in SCALARS:
        converter.register_structure_hook(kind, _structure_scalar)
    _know_classes_of_text(converter)
    _know_times(converter)
    converter.register_unstructure_hook(bytes, lambda data: base64.b64encode(data).decode())
    converter.register_structure_hook(bytes, lambda text, _: base64.b64decode(text, validate=True))
    for kind, frozen in ((JsonValue, freeze), (JsonObject, freeze_object)):
        converter.register_structure_hook(kind, partial(_structure_json, frozen))
        converter.register_unstructure_hook(kind, thaw)
    converter.register_structure_hook_func(pydantic_models.is_model, pydantic_models.structure)
    converter.register_unstructure_hook_func(pydantic_models.is_model, pydantic_models.unstructure)
    converter.register_structure_hook_func(_is_literal, _structure_literal)
    converter.register_structure_hook_factory(_is_union, partial(_union_hook, converter))
    converter.register_structure_hook_func(_is_iterable, partial(_structure_iterable, converter))
    converter.register_structure_hook_func(_is_bare, lambda data, hint: converter.structure(data, hint[Any]))
    converter.register_structure_hook_func(_stands_for, partial(_structure_meant, converter))
    converter.register_structure_hook_factory(_is_annotated, partial(_annotated_hook, converter))
    converter.register_structure_hook_factory(is_typed_dict, partial(_typed_dict_hook, converter))
    converter.register_unstructure_hook_factory(is_typed_dict, partial(_typed_dict_unstructure_hook, converter))
    converter.register_unstructure_hook_factory(_is_iterable, partial(_iterable_unstructure_hook, converter))
    converter.register_unstructure_hook_factory(_is_set, partial(_set_hook, converter))
    return converter


def _know_classes_of_text(converter: Converter) -> None:
    from decimal import Decimal
    from pathlib import Path, PurePath
    from uuid import UUID

    kind: Any
    for kind in (UUID, Decimal, PurePath):
        converter.register_unstructure_hook(kind, str)
    converter.register_structure_hook(UUID, lambda text, _: UUID(text))
    converter.register_structure_hook(Decimal, lambda number, _: Decimal(str(number)))
    converter.register_structure_hook(PurePath, lambda text, cls: cls(text))
    converter.register_structure_hook(Path, lambda text, cls: cls(text))


def _know_times(converter: Converter) -> None:
    for kind in _AS_ISO:
        converter.register_unstructure_hook(kind, kind.isoformat)
        converter.register_structure_hook(kind, lambda text, cls: cls.fromisoformat(text))
    converter.register_unstructure_hook(timedelta, timedelta.total_seconds)
    converter.register_structure_hook(timedelta, lambda seconds, _: timedelta(seconds=seconds))


def _structure_scalar(data: Any, kind: Any) -> Any:
    """Structure into a scalar type, or into an enumeration or another class made of one."""
    if kind in SCALARS:
        return scalar(data, kind)
    return kind(data)


def _structure_json(frozen: Callable[[Any], Any], data: Any, _: Any) -> Any:
    return frozen(data)


def _is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal


def _structure_literal(data: Any, hint: Any) -> Any:
    for member in typing.get_args(hint):
        plain = member.value if isinstance(member, enum.Enum) else member
        if plain == data and isinstance(plain, bool) is isinstance(data, bool):
            return member
    raise ValueError(f"{data!r} is none of {typing.get_args(hint)}")


def _is_iterable(hint: Any) -> bool:
    return typing.get_origin(hint) in _ITERABLES


def _structure_iterable(converter: Converter, data: Any, hint: Any) -> Any:
    arguments = typing.get_args(hint)
    return [converter.structure(item, arguments[0]) for item in data] if arguments else list(data)


def _iterable_unstructure_hook(converter: Converter, hint: Any) -> Callable[[Any], Any]:
    arguments = typing.get_args(hint)
    inner = arguments[0] if arguments else None
    return lambda items: [converter.unstructure(item, inner) for item in items]


def _is_bare(hint: Any) -> bool:
    return hint in _BARE


def _stands_for(hint: Any) -> bool:
    return isinstance(hint, typing.TypeVar) or is_type_alias(hint)


def _structure_meant(converter: Converter, data: Any, hint: Any) -> Any:
    return converter.structure(data, hint.__value__ if is_type_alias(hint) else hint.__bound__ or Any)


def _is_annotated(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Annotated


def _annotated_hook(converter: Converter, hint: Any) -> Callable[[Any, Any], Any]:
    """Hold a Decimal to the bounds beside its type, which the schema cannot when it comes as text."""
    from decimal import Decimal

    bare, *annotations = typing.get_args(hint)
    keywords = annotation_keywords(annotations)

    def structure_bounded(data: Any, _: Any) -> Any:
        value = converter.structure(data, bare)
        broken = broken_bound(value, keywords) if isinstance(value, Decimal) else None
        if broken is not None:
            raise ValueError(f"{value} is out of bounds: {broken}")
        return value

    return structure_bounded


def _typed_dict_hook(converter: Converter, cls: Any) -> Callable[[Any, Any], Any]:
    """Structure a TypedDict by its hints as they are resolved; cattrs goes by those that the class was made with."""
    from cattrs.errors import AttributeValidationNote, ClassValidationError

    fields = {field.name: field for field in fields_of(cls) or ()}

    def structure_entry(name: str, data: Any) -> Any:
        if name not in fields:
            raise ValueError("there is no such entry")
        return converter.structure(data[name], fields[name].hint)

    def structure_entries(data: Any, _: Any) -> Any:
        made, errors = {}, []
        for name in {**data, **{name: None for name, field in fields.items() if field.required}}:
            try:
                made[name] = structure_entry(name, data)
            except Exception as error:  # noqa: BLE001  # collected, with its place
                error.add_note(AttributeValidationNote(f"in the entry {name!r}", name, None))
                errors.append(error)
        if errors:
            raise ClassValidationError(f"while structuring {cls.__qualname__}", errors, cls)
        return made

    return structure_entries


def _typed_dict_unstructure_hook(converter: Converter, cls: Any) -> Callable[[Any], Any]:
    hints = {field.name: field.hint for field in fields_of(cls) or ()}
    return lambda entries: {name: converter.unstructure(value, hints.get(name)) for name, value in entries.items()}


def _is_set(hint: Any) -> bool:
    kind = typing.get_origin(hint) or hint
    return isinstance(kind, type) and issubclass(kind, collections.abc.Set)


def _set_hook(converter: Converter, hint: Any) -> Callable[[Any], Any]:
    """Unstructure a set in an order that does not depend on the process."""
    arguments = typing.get_args(hint)

    def unstructure(items: Any) -> Any:
        return in_order([converter.unstructure(item, arguments[0] if arguments else None) for item in items])

    return unstructure


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in {typing.Union, types.UnionType}


def _union_hook(converter: Converter, hint: Any) -> Callable[[Any, Any], Any]:
    """Structure data into the first member of a union whose schema it satisfies, as `anyOf` reads."""
    members = [(member, SchemaValidator(json_schema(member))) for member in typing.get_args(hint)]

    def structure_member(data: Any, _: Any) -> Any:
        error: Exception | None = None
        for member, validator in members:
            if validator.accepts(data):
                try:
                    return None if member is type(None) else converter.structure(data, member)
                except Exception as failed:  # noqa: BLE001  # another member may fit; the last error is raised below
                    error = failed
        raise error or ValueError(f"the value fits none of {hint}")

    return structure_member
