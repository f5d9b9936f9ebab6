"""What all values have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from operator import attrgetter
from typing import Any, Self, TypeVar, cast

import attrs
from attrs import field, fields, frozen


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


T = TypeVar("T")


@frozen(eq=False, repr=False)
class EncodeOnce(Value):
    """An immutable value that keeps what encoders make of it, in a slot that is not compared, shown or stored."""

    _encodings: dict[object, object] = field(factory=dict, init=False, eq=False, repr=False)

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        """Copies and pickles leave the encoded forms behind."""
        taken = {field.alias or field.name: getattr(self, field.name) for field in fields(type(self)) if field.init}
        return partial(type(self), **taken), ()

    def encoded(self, fingerprint: object, encode: Callable[[Self], T]) -> T:
        """Return what `encode` makes of this value, computed once per fingerprint.

        Args:
            fingerprint: hashable; names the encoder together with everything besides the value that its output depends on.
            encode: a pure function.
        """
        try:
            return cast("T", self._encodings[fingerprint])
        except KeyError:
            made = self._encodings[fingerprint] = encode(self)
            return made


V = TypeVar("V", bound=EncodeOnce)


def encode_each(values: Iterable[V], fingerprint: object, encode: Callable[[V], T]) -> list[T]:
    """Return what `encode` makes of each value, in order; each is encoded once and then kept with its value."""
    made = []
    for value in values:
        encodings = value._encodings  # noqa: SLF001  # a friend in the same file, on the path that grows with the history
        if fingerprint not in encodings:
            encodings[fingerprint] = encode(value)
        made.append(encodings[fingerprint])
    return cast("list[T]", made)
