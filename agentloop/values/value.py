"""The base classes of values: equality, hash and repr by field, and cached encodings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from operator import attrgetter
from types import UnionType
from typing import Any, Literal, Protocol, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import attrs
from attrs import field, fields, frozen

from agentloop.errors.hints import suggest
from agentloop.errors.kinds import InvalidParameter
from agentloop.values.reprs import bounded_repr


class Value:
    """The base of frozen attrs classes; provides `==`, `hash` and `repr` by field.

    attrs can generate these methods for each class, but for sixty classes that takes 30 ms of every start. Decorate
    subclasses with `@frozen(eq=False, repr=False)`. A field with `eq=False` is not compared, one with `repr=False` is left out
    of the repr, and a function as `repr` formats the field. The repr is bounded: `agentloop.values.reprs`.
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

    __repr__ = bounded_repr


@cache
def _compared_fields(kind: Any) -> Callable[[object], object]:
    """Return a function from an instance of this class to its compared fields; `attrgetter` runs in C."""
    names = [field.name for field in attrs.fields(kind) if field.eq]
    return attrgetter(*names) if names else _no_fields


def _no_fields(_: object) -> object:
    return ()


def instance_of(kind: type) -> Callable[[Any, Any, Any], None]:
    """Return a validator of a field that takes objects of a class. The errors of attrs' own are tuples of several lines."""

    def validate(owner: object, attribute: Any, value: object) -> None:
        if isinstance(value, kind):
            return
        found = type(value).__name__
        if isinstance(value, type):
            found = f"the class {value.__name__}; create an object of it: {value.__name__}(…)"
        where = f"the {attribute.alias} of {type(owner).__name__}"
        raise InvalidParameter(f"{where} has to be a {kind.__name__}, not {found}")

    return validate


def at_least(limit: float) -> Callable[[Any, Any, Any], None]:
    """Return a validator of a field that takes numbers from a limit on; whole ones if the limit is one."""
    whole = "whole " if isinstance(limit, int) else ""

    def validate(owner: object, attribute: Any, value: Any) -> None:
        if not _is_number(value, whole=bool(whole)) or not value >= limit:  # NaN is not
            where = f"the {attribute.alias} of {type(owner).__name__}"
            raise InvalidParameter(f"{where} is a {whole}number, {limit} or more, not {value!r:.100}")

    return validate


def above(limit: float) -> Callable[[Any, Any, Any], None]:
    """Return a validator of a field that takes numbers above a limit."""

    def validate(owner: object, attribute: Any, value: Any) -> None:
        if not _is_number(value) or not value > limit:  # NaN is not
            where = f"the {attribute.alias} of {type(owner).__name__}"
            raise InvalidParameter(f"{where} is a number above {limit}, not {value!r:.100}")

    return validate


def _is_number(value: object, *, whole: bool = False) -> bool:
    return isinstance(value, int if whole else int | float) and not isinstance(value, bool)


def one_of(options: Iterable[str]) -> Callable[[Any, Any, Any], None]:
    """Return a validator of a field that takes one of these texts; its error offers the closest one."""
    known = tuple(options)

    def validate(owner: object, attribute: Any, value: object) -> None:
        if value not in known:
            where = f"the {attribute.alias} of {type(owner).__name__}"
            raise InvalidParameter(
                f"{where} is one of {', '.join(known)}, not {value!r:.100}{suggest(str(value), known)}"
            )

    return validate


def check_types(value: object) -> None:
    """Check the types of a value's fields, as `__attrs_post_init__` of classes that are stored as JSON.

    A value of another type could be written, but not be read back. Fields with a converter are left to it.

    Raises:
        TypeError: for a field of another type; names the field.
    """
    kind: Any = type(value)
    check = _type_check(kind)
    check(value)
    if kind.__dict__.get("__attrs_post_init__") is check_types:  # from now on without this lookup
        kind.__attrs_post_init__ = check


_IS_READING: ContextVar[bool] = ContextVar("agentloop_is_reading", default=False)


@contextmanager
def reading() -> Iterator[None]:
    """Read records inside of this block: the values keep what was recorded, also what cannot be declared any more."""
    token = _IS_READING.set(True)
    try:
        yield
    finally:
        _IS_READING.reset(token)


class Declared(Value):
    """The base of values that a program declares, and that are recorded.

    A new declaration has to make sense, and later versions may refuse declarations that this one accepts. A record is a fact: it is read as it
    was written, whatever this version would refuse. The types of the fields are checked in both cases.
    """

    __slots__ = ()

    def check_declaration(self) -> None:
        """Refuse what makes no sense in a new declaration.

        Raises:
            ConfigurationError: names the field and says what to do.
        """
        raise NotImplementedError

    def __attrs_post_init__(self) -> None:
        """Check the types, and unless a record is read, the declaration."""
        check_types(self)
        if not _IS_READING.get():
            self.check_declaration()


UNCHECKED: Mapping[str, bool] = {"agentloop.unchecked": True}
"""The metadata of a field whose items `check_types` does not check: they are many and come from other values, or the field has a
converter that checks them."""


@cache
def _type_check(kind: type) -> Callable[[object], None]:
    """Return the check of a class. It is generated, as the `__init__` of the class is, because it runs for every value."""
    hints = get_type_hints(kind)
    fields_ = [f for f in attrs.fields(cast("Any", kind)) if f.init]
    names = [f.name for f in fields_ if not f.converter and hints[f.name] is not Any]
    lists = {f.name: item for f in fields_ if (item := _item_hint(hints[f.name])) and f.metadata != UNCHECKED}
    # Few combinations of types occur, so one lookup of the exact types is the usual check of all fields.
    accepted: set[tuple[object, ...]] = set()
    accepted_items: dict[str, set[type]] = {name: set() for name in lists}

    def check_each(value: object) -> None:
        for name in names:
            if not _accepts(hints[name], getattr(value, name)):
                raise _unexpected_type(kind, name, getattr(value, name), hints[name])
        for name, hint in lists.items():
            for item in getattr(value, name) or ():
                if not _accepts(hint, item):
                    raise _unexpected_type(kind, f"{name}[…]", item, hint)
                accepted_items[name].add(type(item))
        accepted.add(read_types(value))

    # Of a field with a few values, the value is compared.
    types = "".join(f"{f'value.{name}' if _has_options(hints[name]) else f'type(value.{name})'}," for name in names)
    items = "".join(f" and (not value.{name} or items{name}(map(type, value.{name})))" for name in lists)
    context: dict[str, object] = {f"items{name}": accepted_items[name].issuperset for name in lists}
    context |= {"accepted": accepted, "check_each": check_each}
    read_types: Callable[[object], tuple[object, ...]] = eval(f"lambda value: ({types})", {})  # noqa: S307  # names of fields
    code = f"lambda value: None if ({types}) in accepted{items} else check_each(value)"
    check: Callable[[object], None] = eval(code, context)  # noqa: S307  # names of fields
    return check


def _unexpected_type(kind: type, name: str, value: object, hint: Any) -> TypeError:
    found = repr(value) if isinstance(value, str) else f"a {type(value).__name__}"
    return TypeError(f"{kind.__name__}.{name.lstrip('_')} is {found}, not {_describe_type(hint)}")


def _describe_type(hint: Any) -> str:
    if get_origin(hint) in {Union, UnionType}:
        return " or ".join(map(_describe_type, get_args(hint)))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    return "None" if hint in {None, type(None)} else str(getattr(hint, "__name__", hint))


def _item_hint(hint: Any) -> Any:
    """Return the type of the items of a tuple, or None for any other type."""
    options = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    return next((get_args(option)[0] for option in options if get_origin(option) is tuple), None)


def _has_options(hint: Any) -> bool:
    return get_origin(hint) is Literal or any(get_origin(option) is Literal for option in get_args(hint))


def _accepts(hint: Any, value: object) -> bool:
    if get_origin(hint) in {Union, UnionType}:
        return any(_accepts(member, value) for member in get_args(hint))
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    expected = type(None) if hint is None else get_origin(hint) or hint
    # As in the JSON form: an int is a float, and a bool is not a number.
    if isinstance(value, bool):
        return expected is bool
    return isinstance(value, (int, float) if expected is float else expected)


T = TypeVar("T")


class Copy(Protocol):
    """Copies an object with other values of some fields."""

    def __call__(self, value: T, /, *new_values: object) -> T:
        """Return the copy, of the class of the object."""


def copier(kind: type, *changed: str) -> Copy:
    """Return a function that copies an object of an attrs class with other values of some fields: `copy(value, *new_values)`.

    It is generated, as the `__init__` of the class is, so that it keeps every other field in half the time of `attrs.evolve`, which looks
    up each of them. It is for copies that each step, call or record makes. An object of a subclass is copied by `evolve`.

    Args:
        kind: the class.
        changed: the names of the fields that get other values, in the order of the arguments.

    Raises:
        TypeError: the class has no such field, or its `__init__` does not take it.
    """
    names = {f.alias: f.name for f in attrs.fields(cast("Any", kind)) if f.init}
    if unknown := [name for name in changed if name not in names]:
        raise TypeError(
            f"{kind.__name__} has no field {unknown[0]!r} that a copy can change{suggest(unknown[0], names)}"
        )
    new = ", ".join(f"{name}={name}" for name in changed)
    kept = "".join(f", {alias}=_value.{name}" for alias, name in names.items() if alias not in changed)
    code = f"_kind({new}{kept}) if _value.__class__ is _kind else _evolve(_value, {new})"
    copy: Copy = eval(  # noqa: S307  # names of fields
        f"lambda _value, {', '.join(changed)}: {code}", {"_kind": kind, "_evolve": attrs.evolve}
    )
    return copy


def starts_with(items: tuple[T, ...], first: tuple[T, ...], grown_from: tuple[T, ...] | None) -> bool:
    """Return whether a tuple begins with another one.

    Args:
        items: the tuple.
        first: what it has to begin with.
        grown_from: the tuple to which one item was added to make `items`, if that is known: this one takes no time.
    """
    return items is first or grown_from is first or items[: len(first)] == first


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
