"""What all values have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import attrs


class Value:
    """A frozen attrs class whose instances compare, hash and show themselves by their fields.

    attrs can write these methods for each class; with sixty classes that takes 30 ms of every start, so they stand here once.
    Subclasses are decorated with `@frozen(eq=False, repr=False)`. A field with `eq=False` is not compared, one with
    `repr=False` not shown, and a function as `repr` shows it.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not type(self):
            return NotImplemented
        kind: Any = type(self)
        take = _compared(kind)
        return bool(take(self) == take(other))

    def __hash__(self) -> int:
        kind: Any = self.__class__
        return hash((kind, _compared(kind)(self)))

    def __repr__(self) -> str:
        kind: Any = self.__class__
        shown = [(field, getattr(self, field.name)) for field in attrs.fields(kind) if field.repr]
        pairs = [f"{f.name.lstrip('_')}={f.repr(v) if callable(f.repr) else repr(v)}" for f, v in shown]
        return f"{kind.__qualname__.rpartition('>.')[2]}({', '.join(pairs)})"


@cache
def _compared(kind: Any) -> Callable[[object], object]:
    """Return a function that takes the compared fields out of an instance of this class."""
    names = [field.name for field in attrs.fields(kind) if field.eq]
    return attrgetter(*names) if names else _nothing


def _nothing(_: object) -> object:
    return ()
