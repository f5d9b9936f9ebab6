"""JSON as immutable values: what tool arguments, tool results and metadata are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from agentloop.errors import NotJson

if TYPE_CHECKING:
    JsonValue: TypeAlias = "bool | int | float | str | tuple[JsonValue, ...] | JsonObject | None"
else:

    class JsonValue:
        """A JSON value in its immutable form: None, bool, int, float, str, `JsonArray` (a tuple) or `JsonObject`.

        For a type checker it is the union of these; at run time it is a name that converters can look up.
        """


import json
from collections.abc import Iterator
from functools import partial
from math import isinf

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


def as_frozen_dict(entries: Mapping[Any, Any]) -> FrozenDict[Any, Any]:
    """Convert a mapping to one that cannot be changed; the attrs converter of fields that hold mappings."""
    return FrozenDict(entries)


MAX_DEPTH = 200
"""How deeply JSON may be nested. With a limit of its own, what was accepted can also be written, wherever that happens."""

_MOST_BITS = 14_000  # 4,214 digits; Python neither reads nor writes more than 4,300
_SHOWN_STEPS = 20
_MAPPINGS = (dict, Mapping)  # a dict is told fastest by its own class


class JsonObject(FrozenDict[str, Any]):
    """A JSON object that cannot be changed: a `dict` whose writing methods raise `TypeError`.

    It takes what `dict` takes, converts it as `freeze` does, and is hashable. It is a `dict` so that JSON encoders and
    schema validators take it as it is. `thaw` gives a plain copy.

    Raises:
        NotJson: when it is made of something that JSON cannot hold.
    """

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> JsonObject:  # noqa: D102, PYI034  # the class says it
        return freeze_object(dict(*args, **kwargs))

    def __deepcopy__(self, memo: object) -> JsonObject:
        return self

    def plus(self, **entries: object) -> JsonObject:
        """Return a copy with these entries added or replaced."""
        return freeze_object({**self, **entries})


class JsonArray(tuple[Any, ...]):
    """A JSON array that cannot be changed: a `tuple` whose items are immutable JSON.

    Raises:
        NotJson: when it is made of something that JSON cannot hold.
    """

    __slots__ = ()

    def __new__(cls, items: Iterable[object] = ()) -> JsonArray:  # noqa: D102, PYI034  # the class says it
        frozen = freeze(tuple(items))
        assert isinstance(frozen, JsonArray)  # noqa: S101  # a tuple freezes to an array; this tells the type checker
        return frozen

    def __reduce__(self) -> tuple[type[JsonArray], tuple[tuple[Any, ...]]]:
        return JsonArray, (tuple(self),)


_AS_IT_IS = frozenset({type(None), bool, str, JsonObject, JsonArray})


class _Refused(Exception):  # internal to this file; becomes a NotJson
    """What has no JSON form, why, and the way to it, which is noted from the inside out."""

    def __init__(self, subject: str, verdict: str) -> None:
        super().__init__(subject, verdict)
        self.steps: list[str] = []

    def told(self, path: str) -> str:
        """Say what is wrong and where."""
        subject, verdict = self.args
        way = self.steps[::-1]
        shown = "".join(way[:_SHOWN_STEPS]) + ("…" if len(way) > _SHOWN_STEPS else "")
        return f"{subject} at {path}{shown} {verdict}"


def freeze(value: object, path: str = "$") -> JsonValue:
    """Convert plain JSON data (dict, list, tuple, str, numbers, None) to its immutable form.

    Args:
        value: the data; mappings need text keys.
        path: where the data stands, for the error message.

    Raises:
        NotJson: for anything that JSON cannot hold: other classes, NaN and infinities, keys that are not text, cycles; and
            for what is nested more than 200 levels deep, and integers of more than 4,000 digits.
    """
    try:
        return _freeze(value, MAX_DEPTH)
    except _Refused as refused:
        raise NotJson(refused.told(path)) from None


def _freeze(value: object, levels: int) -> JsonValue:
    kind = type(value)
    if kind in _AS_IT_IS:
        return value  # type: ignore[return-value]  # the set of exact types above is what the alias lists
    if isinstance(value, int):
        if value.bit_length() <= _MOST_BITS:
            return int(value)
        raise _Refused("the integer", "has more than 4,000 digits; use text for it")
    if isinstance(value, float):
        if isfinite(value):
            return float(value)
        raise _Refused(str(float(value)), "has no JSON form; use null or text for it")
    if isinstance(value, str):
        return str.__str__(value)
    if not levels:
        raise _Refused("the value", f"is nested more than {MAX_DEPTH} levels deep, or contains itself")
    if isinstance(value, list | tuple):
        return _freeze_items(value, levels - 1)
    if isinstance(value, _MAPPINGS):
        return _freeze_mapping(value, levels - 1)
    raise _Refused(f"a {kind.__qualname__}", "has no JSON form")


def _freeze_items(items: list[object] | tuple[object, ...], levels: int) -> JsonArray:
    frozen: list[JsonValue] = []
    try:
        for item in items:
            frozen.append(_freeze(item, levels))  # noqa: PERF401  # how many there are is where it went wrong
    except _Refused as refused:
        refused.steps.append(f"[{len(frozen)}]")
        raise
    return tuple.__new__(JsonArray, frozen)


def _freeze_mapping(value: Mapping[Any, Any], levels: int) -> JsonObject:
    entries: dict[str, JsonValue] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise _Refused(f"the key {key!r}", f"is a {type(key).__qualname__}; JSON keys are text")
        try:
            entries[key if type(key) is str else str.__str__(key)] = _freeze(item, levels)
        except _Refused as refused:
            refused.steps.append(f".{key}")
            raise
    frozen = dict.__new__(JsonObject)
    dict.update(frozen, entries)
    return frozen


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


EMPTY_OBJECT = JsonObject()


def _plain(value: object) -> Any:
    """Give orjson a plain tuple for an immutable array; it refuses subclasses."""
    if isinstance(value, tuple):
        return tuple(value)
    raise TypeError(f"a {type(value).__qualname__} has no JSON form")


try:
    import orjson
except ImportError:
    _fast_dumps: Callable[[Any], bytes] | None = None
    _fast_loads: Callable[[bytes], Any] | None = None
else:
    _JSON_ONLY = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
    _fast_dumps, _fast_loads = partial(orjson.dumps, default=_plain, option=_JSON_ONLY), orjson.loads


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError(f"the number {text} is larger than a float can be")
    return number


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ascii_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))

_DIGITS = bytes(b"0"[0] if chr(byte).isdecimal() else b" "[0] for byte in range(128)) + b" " * 128
_LONG_INTEGER = b"0" * 19  # from here on it may not fit into 64 bits


def parse_json(text: str | bytes) -> Any:
    """Parse one JSON document to plain Python data.

    Stricter than `json.loads`: NaN and infinities are refused, so is nesting too deep to walk. Integers of any size keep
    all their digits.

    Raises:
        ValueError: with position, when the text is not one JSON document.
    """
    if _fast_loads is not None:
        try:
            data = text.encode() if isinstance(text, str) else text
            if _LONG_INTEGER not in data.translate(_DIGITS):  # orjson reads what does not fit into 64 bits as a float
                return _fast_loads(data)
        except ValueError:
            pass  # the standard library reads a little more (lone surrogates) and words errors better
    try:
        return _decoder.decode(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("nested too deeply to be read") from None


def format_json(value: Any) -> bytes:
    """Write plain or immutable JSON data as compact UTF-8, in the order of its keys.

    Raises:
        ValueError: for NaN, infinities and data that contains itself.
        TypeError: for anything else that JSON cannot hold.
    """
    if _fast_dumps is not None:
        try:
            written = _fast_dumps(value)
        except TypeError:
            pass  # integers over 64 bits and lone surrogates: the standard library can write them
        else:
            if b"null" not in written:  # orjson writes NaN as null; the standard library tells them apart
                return written
    try:
        return _encoder.encode(value).encode()
    except UnicodeEncodeError:
        return _ascii_encoder.encode(value).encode()
    except RecursionError:
        raise ValueError("nested too deeply to be written") from None


def extract_json(text: str) -> Any:
    """Parse the JSON that a model wrote: the whole text, what stands in a fence, or from the first bracket to the last.

    Raises:
        ValueError: with position, when there is none.
    """
    try:
        return parse_json(text)
    except ValueError as error:
        for inner in _candidates(text):
            try:
                return parse_json(inner)
            except ValueError:
                continue
        raise ValueError(str(error)) from error


def _candidates(text: str) -> Iterator[str]:
    begin = text.find("```")
    end = text.find("```", begin + 3)
    if 0 <= begin < end:
        yield text[begin + 3 : end].partition("\n")[2]
    for opening, closing in ("{}", "[]"):
        start, stop = text.find(opening), text.rfind(closing)
        if 0 <= start < stop:
            yield text[start : stop + 1]


def canonical_json(arguments: JsonObject) -> str:
    """Write arguments so that the same ones are the same text, in whatever order and spelling the model gave them."""
    return _canonical_encoder.encode(arguments)


_canonical_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
