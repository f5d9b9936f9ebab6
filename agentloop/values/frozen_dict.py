"""A dictionary that cannot be changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A `dict` whose writing methods raise `TypeError`. It is hashable where what it holds is."""

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Fill it here, so that calling `__init__` again changes nothing."""
        made: Any = dict.__new__(cls)
        dict.__init__(made, *args, **kwargs)
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __hash__(self) -> int:  # type: ignore[override]  # dict says it has none; an immutable one can
        return hash(frozenset(self.items()))

    def __repr__(self) -> str:
        return dict.__repr__(self)

    def __reduce__(self) -> tuple[type[FrozenDict[K, V]], tuple[dict[K, V]]]:
        return type(self), (dict(self),)

    def __copy__(self) -> FrozenDict[K, V]:
        return self

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this is part of an immutable value; change a copy made with dict(…) or thaw(…) instead")

    __setitem__: Callable[..., NoReturn] = _refuse
    __delitem__: Callable[..., NoReturn] = _refuse
    __ior__: Callable[..., NoReturn] = _refuse
    clear: Callable[..., NoReturn] = _refuse
    pop: Callable[..., NoReturn] = _refuse
    popitem: Callable[..., NoReturn] = _refuse
    setdefault: Callable[..., NoReturn] = _refuse
    update: Callable[..., NoReturn] = _refuse
