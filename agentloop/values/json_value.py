"""JSON as immutable values: what tool arguments, tool results and metadata are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from agentloop.errors import NotJson

if TYPE_CHECKING:
    JsonValue: TypeAlias = "bool | int | float | str | tuple[JsonValue, ...] | JsonObject | None"
else:

    class JsonValue:
        """A JSON value in its immutable form: None, bool, int, float, str, `JsonArray` (a tuple) or `JsonObject`.

        For a type checker it is the union of these; at run time it is a name that converters can look up.
        """


class JsonObject(dict[str, Any]):
    """A JSON object that cannot be changed: a `dict` whose writing methods raise `TypeError`.

    It is a `dict` so that JSON encoders and schema validators take it as it is. It is hashable. `thaw` gives a plain copy.
    """

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]  # dict says it has none; an immutable one can
        return hash(frozenset(self.items()))

    def __repr__(self) -> str:
        return dict.__repr__(self)

    def __reduce__(self) -> tuple[type[JsonObject], tuple[dict[str, Any]]]:
        return JsonObject, (dict(self),)

    def __copy__(self) -> JsonObject:
        return self

    def __deepcopy__(self, memo: object) -> JsonObject:
        return self

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this JSON object is part of an immutable value; change a copy made with thaw() instead")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def plus(self, **entries: object) -> JsonObject:
        """Return a copy with these entries added or replaced."""
        return freeze_object({**self, **entries})


class JsonArray(tuple[Any, ...]):
    """A JSON array that cannot be changed: a `tuple` whose items are known to be immutable JSON."""

    __slots__ = ()


EMPTY_OBJECT = JsonObject()

_AS_IT_IS = frozenset({type(None), bool, int, str, JsonObject, JsonArray})


def freeze(value: object, path: str = "$") -> JsonValue:
    """Convert plain JSON data (dict, list, tuple, str, numbers, None) to its immutable form.

    Args:
        value: the data; mappings need text keys.
        path: where the data stands, for the error message.

    Raises:
        NotJson: for anything that JSON cannot hold: other classes, NaN and infinities, keys that are not text, cycles.
    """
    try:
        return _freeze(value, path)
    except RecursionError:
        raise NotJson(f"the value at {path} is nested too deeply, or contains itself") from None


def _freeze(value: object, path: str) -> JsonValue:
    if type(value) in _AS_IT_IS:
        return value  # type: ignore[return-value]  # the set of exact types above is what the alias lists
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        raise NotJson(f"{value} at {path} has no JSON form; use null or text for it")
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Mapping):
        return _freeze_mapping(value, path)
    if isinstance(value, list | tuple):
        return JsonArray([_freeze(item, f"{path}[{index}]") for index, item in enumerate(value)])
    raise NotJson(f"a {type(value).__qualname__} at {path} has no JSON form")


def _freeze_mapping(value: Mapping[Any, Any], path: str) -> JsonObject:
    frozen = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise NotJson(f"the key {key!r} at {path} is a {type(key).__qualname__}; JSON keys are text")
        frozen[key if type(key) is str else str.__str__(key)] = _freeze(item, f"{path}.{key}")
    return JsonObject(frozen)


def freeze_object(value: Mapping[str, object]) -> JsonObject:
    """Convert a mapping of plain JSON data to an immutable `JsonObject`.

    Raises:
        NotJson: when it is not a mapping, or holds what JSON cannot.
    """
    if type(value) is JsonObject:
        return value
    if not isinstance(value, Mapping):
        raise NotJson(f"a JSON object was expected, not {type(value).__qualname__}")
    frozen = freeze(value)
    assert isinstance(frozen, JsonObject)  # noqa: S101  # a mapping freezes to an object; this tells the type checker
    return frozen


def thaw(value: JsonValue) -> Any:
    """Copy an immutable JSON value to plain lists and dicts, which may be changed freely."""
    if isinstance(value, dict):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [thaw(item) for item in value]
    return value
