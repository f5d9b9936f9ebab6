"""Values that keep their encoded form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Self, TypeVar, cast

from attrs import field, fields, frozen

from agentloop.values.value import Value

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
