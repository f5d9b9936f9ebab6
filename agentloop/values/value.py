"""The base classes of values: equality, hash and repr by field, and cached encodings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from operator import attrgetter
from typing import Any, Self, TypeVar, cast

import attrs
from attrs import field, fields, frozen


class Value:
    """The base of frozen attrs classes; provides `==`, `hash` and `repr` by field.

    attrs can generate these methods for each class, but for sixty classes that takes 30 ms of every start. Decorate
    subclasses with `@frozen(eq=False, repr=False)`. A field with `eq=False` is not compared, one with `repr=False` is left out
    of the repr, and a function as `repr` formats the field.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not type(self):
            return NotImplemented
        kind: Any = type(self)
        compared = _compared_fields(kind)
        return bool(compared(self) == compared(other))

    def __hash__(self) -> int:
        kind: Any = self.__class__
        return hash((kind, _compared_fields(kind)(self)))

    def __repr__(self) -> str:
        kind: Any = self.__class__
        shown = [(field, getattr(self, field.name)) for field in attrs.fields(kind) if field.repr]
        pairs = [f"{f.name.lstrip('_')}={f.repr(v) if callable(f.repr) else repr(v)}" for f, v in shown]
        return f"{kind.__qualname__.rpartition('>.')[2]}({', '.join(pairs)})"


@cache
def _compared_fields(kind: Any) -> Callable[[object], object]:
    """Return a function from an instance of this class to its compared fields; `attrgetter` runs in C."""
    names = [field.name for field in attrs.fields(kind) if field.eq]
    return attrgetter(*names) if names else _no_fields


def _no_fields(_: object) -> object:
    return ()


T = TypeVar("T")


@frozen(eq=False, repr=False)
class EncodeOnce(Value):
    """An immutable value that caches its encoded forms, in a slot that is not compared, shown or stored.

    A long conversation is encoded again for each request; with the cache, only its new messages are.
    """

    _encodings: dict[object, object] = field(factory=dict, init=False, eq=False, repr=False)

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        """Rebuild copies and pickles from the fields alone, without the cache."""
        arguments = {field.alias or field.name: getattr(self, field.name) for field in fields(type(self)) if field.init}
        return partial(type(self), **arguments), ()

    def encoded(self, fingerprint: object, encode: Callable[[Self], T]) -> T:
        """Return `encode(self)`, computed once per fingerprint.

        Args:
            fingerprint: hashable; identifies the encoder and everything else that its output depends on besides the value.
            encode: a pure function.
        """
        try:
            return cast("T", self._encodings[fingerprint])
        except KeyError:
            encoding = self._encodings[fingerprint] = encode(self)
            return encoding


V = TypeVar("V", bound=EncodeOnce)


def encode_each(values: Iterable[V], fingerprint: object, encode: Callable[[V], T]) -> list[T]:
    """Return `value.encoded(fingerprint, encode)` for each value, in order, but faster; its rules for the fingerprint apply."""
    encoded = []
    for value in values:
        encodings = value._encodings  # noqa: SLF001  # same file; this loop runs over the whole history for each request
        if fingerprint not in encodings:
            encodings[fingerprint] = encode(value)
        encoded.append(encodings[fingerprint])
    return cast("list[T]", encoded)
