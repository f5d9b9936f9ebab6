"""Whether two values are the same in JSON, which tells apart what Python calls equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any


def same(one: object, other: object, *, ordered: bool = False) -> bool:
    """Say whether two values, or two plain JSON data, are equal and have one JSON form.

    To Python, `1`, `True` and `1.0` are equal, and so are `0.0` and `-0.0`; in JSON they are not. What is one object is not looked at.

    Args:
        one: a value.
        other: the value beside it.
        ordered: whether the keys of objects have to stand in the same order, too.
    """
    if one is other:
        return True
    if one != other:
        return False
    pairs: list[tuple[Any, Any]] = [(one, other)]
    while pairs:
        left, right = pairs.pop()
        if left is right:
            continue
        if _form(left) != _form(right):
            return False
        if ordered and isinstance(left, Mapping) and tuple(left) != tuple(right):
            return False
        pairs.extend(_inner(left, right))
    return True


def _inner(one: Any, other: Any) -> Iterable[tuple[Any, Any]]:
    """Return what stands in two equal things, in pairs."""
    if isinstance(one, Mapping):
        return [(value, other[key]) for key, value in one.items()]
    if isinstance(one, Sequence) and not isinstance(one, str | bytes):
        return zip(one, other, strict=True)
    kind: Any = type(one)
    return [(take(one), take(other)) for take in _compared(kind)]


@cache
def _compared(kind: Any) -> tuple[attrgetter[Any], ...]:
    """Return what takes each compared field out of an instance of this class; nothing for one without fields."""
    return tuple([attrgetter(field.name) for field in getattr(kind, "__attrs_attrs__", ()) if field.eq])


def _form(value: object) -> tuple[type, str] | None:
    """Return what equal things can differ in; None for those that cannot."""
    if isinstance(value, bool | int | float):
        kind = next(kind for kind in (bool, int, float) if isinstance(value, kind))
        return kind, repr(value) if kind is float else ""
    return (datetime, value.isoformat()) if isinstance(value, datetime) else None
