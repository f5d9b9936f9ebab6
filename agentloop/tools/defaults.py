"""The values that a function gives to what a call leaves out, for the person who decides about the call."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, TypeAlias

from agentloop.errors import NotJson
from agentloop.tools import conversion, pydantic_models
from agentloop.tools.fields import NO_DEFAULT, Field, default_json, fields_of, is_named_tuple
from agentloop.tools.hints import alias_value, is_type_alias
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, format_json, freeze, freeze_object, thaw
from agentloop.values.rendering import EACH_ITEM, path_below

_MAX_SHOWN = 200
_MAX_REPR = 200
_Object: TypeAlias = tuple[str, str, Sequence[Field], Mapping[str, Any]]
"""A JSON object that becomes an object with fields: its path, the name of its class, the fields, and what it holds."""


def left_out(fields: Iterable[Field], arguments: Mapping[str, Any]) -> JsonObject:
    """Return the values that parameters, and fields of classes inside of arguments, get because a call leaves them out.

    Args:
        fields: the parameters.
        arguments: the arguments of the call, which satisfy the schema of the parameters.

    Returns:
        The values by path, those of parameters first. A value without a JSON form is an object with its `repr`, and one that is made
        by a function of the program an object that names the function. After 200 of them, one more entry has the number of the
        others and a hash of them.
    """
    found: dict[str, JsonValue] = {}
    level: list[_Object] = [("", "", tuple(fields), arguments)]
    while level:
        below: list[_Object] = []
        for path, owner, declared, values in level:
            for field in declared:
                name = next((name for name in (field.name, *field.other_names) if name in values), None)
                if name is not None:
                    below += _objects_in(path_below(path, name), field.hint, values[name])
                elif field.default is not NO_DEFAULT or field.factory is not None:
                    _add(found, path, f"{owner}.{field.name}", field)
        level = below
    return _bounded(found)


def _add(found: dict[str, JsonValue], path: str, full_name: str, field: Field) -> None:
    value, place = _shown(field), path_below(path, field.name)
    # Items of one list can be of several classes, with other defaults.
    if found.get(place, value) != value:
        place = path_below(path, full_name)
    found[place] = value


def _bounded(found: Mapping[str, JsonValue]) -> JsonObject:
    entries = list(found.items())
    rest = dict(entries[_MAX_SHOWN:])
    if not rest:
        return freeze_object(found)
    more: Mapping[str, JsonValue] = {"count": len(rest), "sha256": sha256(format_json(freeze_object(rest))).hexdigest()}
    return freeze_object({**dict(entries[:_MAX_SHOWN]), "more defaults": more})


# --- objects inside of arguments ------------------------------------------------------------------------------------


def _objects_in(path: str, hint: Any, value: Any) -> Iterator[_Object]:
    """Yield the objects in a value that become objects with fields; inside of these, nothing is looked for yet."""
    if not isinstance(value, Mapping | list | tuple):
        return
    hint = _bare(hint)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        yield from _objects_in(path, conversion.member_of(thaw(freeze(value)), hint), value)
    elif isinstance(value, Mapping):
        fields = _fields_of(hint)
        if fields is not None:
            yield path, hint.__name__, fields, value
        elif arguments:
            for item in value.values():
                yield from _objects_in(f"{path}/{EACH_ITEM}", arguments[-1], item)
    elif is_named_tuple(hint):
        fields = _fields_of(hint) or ()
        yield path, hint.__name__, fields, dict(zip([field.name for field in fields], value, strict=False))
    elif arguments:
        # Of a tuple, each item can have a type of its own.
        hints = arguments if len(arguments) == len(value) and arguments[-1] is not ... else arguments[:1] * len(value)
        for kind, item in zip(hints, value, strict=True):
            yield from _objects_in(f"{path}/{EACH_ITEM}", kind, item)


def _bare(hint: Any) -> Any:
    """Return the type that another name, a wrapper such as `Annotated` or a type variable stands for."""
    while True:
        if isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif is_type_alias(hint):
            hint = alias_value(hint)
        elif isinstance(hint, typing.TypeVar):
            hint = hint.__bound__
        elif typing.get_origin(hint) in _WRAPPERS:
            hint = typing.get_args(hint)[0]
        else:
            return hint


_WRAPPERS = frozenset({typing.Annotated, typing.Required, typing.NotRequired, typing.Final})


def _fields_of(hint: Any) -> Sequence[Field] | None:
    if not isinstance(typing.get_origin(hint) or hint, type):
        return None
    return pydantic_models.fields(hint) if pydantic_models.is_model(hint) else fields_of(hint)


# --- values ---------------------------------------------------------------------------------------------------------

_EMPTY: Mapping[Any, JsonValue] = {list: (), tuple: (), set: (), frozenset: (), dict: EMPTY_OBJECT, str: ""}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def _shown(field: Field) -> JsonValue:
    if field.factory is None:
        return as_default(field.default)
    if field.factory in _EMPTY:
        return _EMPTY[field.factory]
    # It is not called: it may return something else each time.
    name = getattr(field.factory, "__qualname__", type(field.factory).__qualname__)
    return freeze_object({"made by": f"{getattr(field.factory, '__module__', '')}.{name}"})


def as_default(value: Any) -> JsonValue:
    """Return a default as JSON; one without a JSON form as an object with its `repr`."""
    for convert in (default_json, conversion.to_json_data):
        with suppress(NotJson):
            return convert(value)
    # The address of an object is another one in each process.
    return freeze_object({"repr": _ADDRESS.sub("", repr(value))[:_MAX_REPR]})
