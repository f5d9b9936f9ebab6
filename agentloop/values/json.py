"""JSON as immutable values, and its text form: arguments and results of tools, metadata and schemas are made of these."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from math import isfinite, isinf
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from agentloop.errors.kinds import NotJson

K = TypeVar("K")
V = TypeVar("V")

MAX_DEPTH = 200
"""The maximum nesting depth. A limit of our own, below Python's recursion limit: accepted data can also be written later."""

_MAX_INTEGER_BITS = 14_000  # 4,214 digits; Python refuses to parse and format integers of more than 4,300
_MAX_SHOWN_STEPS = 20
_MAPPINGS = (dict, Mapping)  # `dict` first: checking an exact class is faster than checking the abstract one


# --- immutable values -----------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    JsonValue: TypeAlias = "bool | int | float | str | tuple[JsonValue, ...] | JsonObject | None"
else:

    class JsonValue:
        """An immutable JSON value: None, bool, int, float, str, `JsonArray` (a tuple) or `JsonObject`.

        Type checkers see the union of these types. At run time it is a class, so that converters can register hooks for it.
        """


class FrozenDict(dict[K, V]):
    """A `dict` whose mutating methods raise `TypeError`. It is hashable if its values are."""

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Create and fill the mapping here, so that a second call of `__init__` cannot change it."""
        instance: Any = dict.__new__(cls)
        dict.__init__(instance, *args, **kwargs)
        return instance

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __hash__(self) -> int:  # type: ignore[override]  # dict declares __hash__ as None; an immutable one has a hash
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
    """Convert a mapping to an immutable one; the attrs converter of fields that hold mappings."""
    # As in `freeze_object`, values do not share the empty one.
    return FrozenDict(entries) if entries else dict.__new__(FrozenDict)


class JsonObject(FrozenDict[str, Any]):
    """An immutable JSON object: a `dict` whose mutating methods raise `TypeError`.

    It accepts the arguments of `dict`, converts the values as `freeze` does, and is hashable. It is a real `dict`, so JSON
    encoders and schema validators accept it unchanged. `thaw` returns a plain copy.

    Raises:
        NotJson: if a key is not a string or a value has no JSON form.
    """

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> JsonObject:  # noqa: D102, PYI034  # described by the class
        return freeze_object(dict(*args, **kwargs))

    def __deepcopy__(self, memo: object) -> JsonObject:
        return self

    def plus(self, /, **entries: object) -> JsonObject:
        """Return a copy with these entries added or replaced."""
        # Only the new entries are converted: an object that grows entry by entry takes time in proportion to its size.
        return _object_of({**self, **freeze_object(entries)})


class JsonArray(tuple[Any, ...]):
    """An immutable JSON array: a `tuple` whose items are immutable JSON values.

    Raises:
        NotJson: if an item has no JSON form.
    """

    __slots__ = ()

    def __new__(cls, items: Iterable[object] = ()) -> JsonArray:  # noqa: D102, PYI034  # described by the class
        frozen = freeze(tuple(items))
        assert isinstance(frozen, JsonArray)  # noqa: S101  # a tuple freezes to an array; this informs the type checker
        return frozen

    def __reduce__(self) -> tuple[type[JsonArray], tuple[tuple[Any, ...]]]:
        return JsonArray, (tuple(self),)


# --- conversion -----------------------------------------------------------------------------------------------------


def freeze(value: object, path: str = "$") -> JsonValue:
    """Convert plain JSON data (dict, list, tuple, str, numbers, None) to its immutable form.

    Args:
        value: the data; the keys of mappings must be strings.
        path: the JSON path of the data, for the error message.

    Raises:
        NotJson: for objects of other classes, NaN, infinities, keys that are not strings, cycles, data nested more than
            200 levels deep, and integers of more than 4,000 digits.
    """
    try:
        return _freeze(value, MAX_DEPTH)
    except _Refused as refused:
        raise NotJson(refused.message(path)) from None


def freeze_object(value: Mapping[str, object]) -> JsonObject:
    """Convert a mapping of plain JSON data to an immutable `JsonObject`.

    Raises:
        NotJson: if it is not a mapping, or something in it has no JSON form.
    """
    if type(value) is JsonObject:
        # C code such as `eval` can write even into this class of dict, so that values do not share the empty one.
        return value or dict.__new__(JsonObject)
    if not isinstance(value, Mapping):
        raise NotJson(f"a JSON object was expected, not {type(value).__qualname__}")
    frozen = freeze(value)
    assert isinstance(frozen, JsonObject)  # noqa: S101  # a mapping freezes to an object; this informs the type checker
    return frozen


def thaw(value: JsonValue) -> Any:
    """Copy an immutable JSON value to plain lists and dicts, which may be changed freely."""
    if isinstance(value, dict):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [thaw(item) for item in value]
    return value


# Instances of exactly these types are immutable JSON already; the exact check keeps subclasses, such as enums, out.
_FROZEN_TYPES = frozenset({type(None), bool, str, JsonObject, JsonArray})


class _Refused(Exception):  # internal to this file; becomes a NotJson
    """Data without a JSON form. The path to it is collected from the inside out while the recursion unwinds."""

    def __init__(self, subject: str, problem: str) -> None:
        super().__init__(subject, problem)
        self.steps: list[str] = []

    def message(self, path: str) -> str:
        """Return what is wrong, and where below `path`."""
        subject, problem = self.args
        steps = self.steps[::-1]
        shown = "".join(steps[:_MAX_SHOWN_STEPS]) + ("…" if len(steps) > _MAX_SHOWN_STEPS else "")
        return f"{subject} at {path}{shown} {problem}"


def _freeze(value: object, levels: int) -> JsonValue:
    kind = type(value)
    if kind in _FROZEN_TYPES:
        # An immutable container is shallow enough on its own; inside of another one, its levels are added.
        if levels < MAX_DEPTH and (kind is JsonObject or kind is JsonArray):
            _check_depth(value, levels)
        return value  # type: ignore[return-value]  # the set of exact types above matches the alias
    # Subclasses of the scalar types, such as members of an IntEnum, are reduced to the plain type.
    if isinstance(value, int):
        if value.bit_length() <= _MAX_INTEGER_BITS:
            return int(value)
        raise _Refused("the integer", "has more than 4,000 digits; use text for it")
    if isinstance(value, float):
        if isfinite(value):
            return float(value)
        raise _Refused(str(float(value)), "has no JSON form; use null or text for it")
    if isinstance(value, str):
        return str.__str__(value)
    return _freeze_container(value, levels)


def _freeze_container(value: object, levels: int) -> JsonValue:
    if not levels:
        raise _too_deep()
    if isinstance(value, list | tuple):
        return _freeze_items(value, levels - 1)
    if isinstance(value, _MAPPINGS):
        return _freeze_mapping(value, levels - 1)
    raise _Refused(f"a {type(value).__qualname__}", "has no JSON form")


def _check_depth(value: Any, levels: int) -> None:
    """Check that an immutable container has at most this many levels."""
    if not levels:
        raise _too_deep()
    for item in value.values() if type(value) is JsonObject else value:
        if type(item) is JsonObject or type(item) is JsonArray:
            _check_depth(item, levels - 1)


def _too_deep() -> _Refused:
    return _Refused("the value", f"is nested more than {MAX_DEPTH} levels deep, or contains itself")


def _freeze_items(items: list[object] | tuple[object, ...], levels: int) -> JsonArray:
    frozen: list[JsonValue] = []
    try:
        for item in items:
            frozen.append(_freeze(item, levels))  # noqa: PERF401  # its length is the index of the item that fails
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
    return _object_of(entries)


def _object_of(entries: dict[str, JsonValue]) -> JsonObject:
    """Return an object of immutable entries, without `JsonObject.__new__`, which would freeze them a second time."""
    frozen = dict.__new__(JsonObject)
    dict.update(frozen, entries)
    return frozen


EMPTY_OBJECT = JsonObject()


def has_more_entries(value: object, limit: int) -> bool:
    """Return whether the lists and objects of plain or immutable JSON data have more entries than a limit, all together.

    The time is proportional to the limit, and not to the data.
    """
    count, pending = 0, [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict | list | tuple):
            count += len(item)
            if count > limit:
                return True
            pending.extend(item.values() if isinstance(item, dict) else item)
    return False


# --- text -----------------------------------------------------------------------------------------------------------


def text_has_more_entries(text: str | bytes, limit: int) -> bool:
    """Return whether the lists and objects of a JSON text have more entries together than a limit, without parsing it.

    An entry takes about 100 bytes of memory and 200 ns, however short it is, and a parser in C lets no other thread go on. Commas and
    opening brackets outside of strings count.
    """
    if len(text) <= limit:
        return False
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if _count_entries(data, 0, len(data)) <= limit:
        return False
    count = position = 0
    for string in _STRING.finditer(data):
        count += _count_entries(data, position, string.start())
        if count > limit:
            return True
        position = string.end()
    return count + _count_entries(data, position, len(data)) > limit


def _count_entries(data: bytes, start: int, end: int) -> int:
    return data.count(b",", start, end) + data.count(b"[", start, end) + data.count(b"{", start, end)


_STRING = re.compile(rb'"[^"\\]*+(?>\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)


class TooManyEntries(ValueError):
    """The lists and objects of a JSON text have more entries together than a limit; the message goes on after its subject."""


def parse_json(text: str | bytes, max_entries: int | None = None) -> Any:
    """Parse one JSON document to plain Python data.

    Stricter than `json.loads`: it refuses NaN, infinities and nesting beyond the recursion limit. Integers of any size keep
    all their digits.

    Args:
        text: the document.
        max_entries: the maximum number of entries of its lists and objects together; None for any number.

    Raises:
        TooManyEntries: a `ValueError`: it has more entries.
        ValueError: if the text is not one JSON document; the message names the position.
    """
    if max_entries is not None and text_has_more_entries(text, max_entries):
        raise TooManyEntries(f"has more than {max_entries:,} entries in its lists and objects")
    if _fast_loads is not None:
        try:
            data = text.encode() if isinstance(text, str) else text
            # orjson parses integers that do not fit into 64 bits as floats, and so loses digits.
            if _LONG_INTEGER not in data.translate(_DIGITS_TO_ZERO):
                return _fast_loads(data)
        except ValueError:
            pass  # the standard library accepts a little more (lone surrogates), and its error messages are better
    decoded = text if isinstance(text, str) else text.decode("utf-8-sig")
    try:
        data = _decode(decoded)
    except RecursionError:
        raise ValueError("nested too deeply to be read") from None
    if _is_nested_deeper(decoded, data):
        raise ValueError("nested too deeply to be read")
    return data


def _decode(text: str) -> Any:
    decoder = _decoder if len(text) <= _LONG else _long_decoder
    # Nearly all documents have no white space around them, for which `decode` searches; it also has the better errors.
    try:
        data, end = decoder.raw_decode(text)
    except ValueError:
        end = -1
    return data if end == len(text) else decoder.decode(text)


_MAX_NESTING = 1024
"""The maximum number of levels of a JSON text, which is that of orjson."""


def _is_nested_deeper(text: str, data: object) -> bool:
    """Return whether a value, and the text that it was read from or written to, has too many levels.

    From Python 3.14 on, the standard library reads and writes far more levels than anything else here.
    """
    if text.count("[") + text.count("{") <= _MAX_NESTING:
        return False
    level = [data]
    for _ in range(_MAX_NESTING + 1):
        containers = [item for item in level if isinstance(item, dict | list | tuple)]
        if not containers:
            return False
        level = [item for each in containers for item in (each.values() if isinstance(each, dict) else each)]
    return True


def format_json(value: Any) -> bytes:
    """Format plain or immutable JSON data as compact UTF-8; keys stay in their order.

    Raises:
        ValueError: for NaN, infinities and data that contains itself.
        TypeError: for anything else that has no JSON form.
    """
    formatted = b""
    if _fast_dumps is not None:
        try:
            formatted = _fast_dumps(value)
        except TypeError:
            pass  # the standard library can write integers over 64 bits and lone surrogates
        else:
            # orjson writes NaN as null. For long data, the standard library is the fastest to distinguish it from None.
            if b"null" not in formatted or (len(formatted) <= _SHORT and _is_finite(value)):
                return formatted
    try:
        text = _encoder.encode(value)
        if formatted:  # orjson has also counted the levels
            return formatted
        if _is_nested_deeper(text, value):
            raise ValueError("nested too deeply to be written")
        return text.encode()
    except UnicodeEncodeError:
        return _ascii_encoder.encode(value).encode()  # lone surrogates have no UTF-8 form; ASCII escapes them
    except RecursionError:
        raise ValueError("nested too deeply to be written") from None


_SHORT = 4096
"""The bytes of JSON up to which a look at every value in Python is faster than the encoder of the standard library."""


def _is_finite(value: object) -> bool:
    """Return whether data consists of plain values, without NaN and infinities."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return True
    if kind is float:
        return isfinite(value)  # type: ignore[arg-type]  # a float
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return isinstance(value, list | tuple) and all(map(_is_finite, value))


def is_truncated_json(text: str | bytes) -> bool:
    """Return whether text that is not JSON could become JSON by adding more text at its end."""
    document = (text if isinstance(text, str) else text.decode("utf-8-sig", "replace")).rstrip()
    try:
        _decoder.decode(document)
    except json.JSONDecodeError as error:
        # The decoder stops at a text without its end, or at the first character that nothing can follow.
        return bool(document) and (
            error.msg.startswith("Unterminated string") or bool(_PARTIAL_TOKEN.fullmatch(document, error.pos))
        )
    except (ValueError, RecursionError):
        return False
    return False


def duplicate_key(text: str) -> str | None:
    """Return a key that occurs twice in an object of a JSON document, or None. `parse_json` keeps the last value of such a key.

    Raises:
        ValueError: if the text is not JSON, or nested beyond the recursion limit.
    """
    found: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            seen: set[str] = set()
            found.extend(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # None
        return entries

    try:
        json.loads(text, object_pairs_hook=collect)
    except RecursionError:
        raise ValueError("nested too deeply to be read") from None
    return found[0] if found else None


def read_pointer(pointer: str) -> list[str]:
    """Return the tokens of a JSON pointer, such as `/properties/a~1b` (RFC 6901)."""
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]


def replace_lone_surrogates(document: bytes) -> bytes:
    """Replace escapes of lone surrogates in a JSON document by U+FFFD; strict parsers refuse the whole document for one.

    Tool results contain them, for example, as bytes of file names that are not UTF-8. In stored documents they are kept.
    """
    # Nearly no document contains such an escape, and the search for it is fast.
    if b"\\ud" not in document and b"\\uD" not in document:
        return document
    # A space and an escape behind the document end its last piece.
    pieces: list[bytes] = _UP_TO_LONE_SURROGATE.findall(document + rb" \ud800")
    return document if len(pieces) == 1 else b"\xef\xbf\xbd".join(pieces)[:-1]


# Other escapes are passed over inside of a match, so that a document of nothing but backslashes is one. A backslash that is itself
# escaped does not start an escape.
_HIGH, _LOW, _LONE = rb"u[dD][89abAB][0-9a-fA-F]{2}", rb"u[dD][c-fC-F][0-9a-fA-F]{2}", rb"u[dD][89a-fA-F][0-9a-fA-F]{2}"
_UP_TO_LONE_SURROGATE = re.compile(rb"((?>[^\\]++|\\%b\\%b|\\(?!%b).)*+)\\%b" % (_HIGH, _LOW, _LONE, _LONE), re.DOTALL)


def extract_json(text: str) -> Any:
    """Parse the JSON in a model's output: the whole text, a fenced block, or the span from the first to the last bracket.

    Raises:
        ValueError: if the text contains no JSON; the message names the position at which the whole text is not JSON.
    """
    try:
        return parse_json(text)
    except ValueError as error:
        for candidate in _json_candidates(text):
            try:
                return parse_json(candidate)
            except ValueError:
                continue
        raise ValueError(str(error)) from error


def canonical_json(arguments: Mapping[str, object]) -> str:
    """Format arguments so that equal arguments have equal text, whatever their key order and spelling were."""
    return _canonical_encoder.encode(arguments)


def _json_candidates(text: str) -> Iterator[str]:
    fence = text.find("```")
    end = text.find("```", fence + 3)
    if 0 <= fence < end:
        yield text[fence + 3 : end].partition("\n")[2]
    for opening, closing in ("{}", "[]"):
        start, stop = text.find(opening), text.rfind(closing)
        if 0 <= start < stop:
            yield text[start : stop + 1]


def _to_plain_tuple(value: object) -> Any:
    """Convert an immutable array for orjson, which refuses subclasses of tuple."""
    if isinstance(value, tuple):
        return tuple(value)
    raise TypeError(f"a {type(value).__qualname__} has no JSON form")


# orjson is optional. It formats and parses what it handles exactly; the standard library handles the rest. It is imported with its
# first use, because that takes longer than most of what a program does with JSON before its first execution.
def _first_dumps(value: Any) -> bytes:
    _load_orjson()
    assert _fast_dumps is not None  # noqa: S101  # set above
    return _fast_dumps(value)


def _first_loads(data: bytes) -> Any:
    _load_orjson()
    assert _fast_loads is not None  # noqa: S101  # set above
    return _fast_loads(data)


def _load_orjson() -> None:
    global _fast_dumps, _fast_loads  # noqa: PLW0603  # later calls go to orjson directly
    import orjson  # noqa: PLC0415

    json_only = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
    _fast_dumps = partial(orjson.dumps, default=_to_plain_tuple, option=json_only)
    _fast_loads = orjson.loads


_HAS_ORJSON = find_spec("orjson") is not None
_fast_dumps: Callable[[Any], bytes] | None = _first_dumps if _HAS_ORJSON else None
_fast_loads: Callable[[bytes], Any] | None = _first_loads if _HAS_ORJSON else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parse_finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError(f"the number {text} is larger than a float can be")
    return number


# What a document may end with where a token was expected: nothing, or the start of a literal, a number or an escape.
_PARTIAL_TOKEN = re.compile(r"t(r(u)?)?|f(a(l(s)?)?)?|n(u(l)?)?|-|\.|(\.[0-9]+)?[eE][+-]?|\\?(u[0-9a-fA-F]{0,3})?|")


def _parse_integer(digits: str) -> int:
    """Parse an integer. Other than `int`, a function in Python lets other threads go on between the integers of a document."""
    return int(digits)


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_parse_finite)
_long_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_parse_finite, parse_int=_parse_integer)
_LONG = 65_536
"""The characters from which on a document is parsed in a thread, or at once where nothing waits."""

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ascii_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))
_canonical_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

# Maps every digit to "0" and every other byte to a space, so that one substring search finds long runs of digits.
_DIGITS_TO_ZERO = bytes(b"0"[0] if chr(byte).isdecimal() else b" "[0] for byte in range(128)) + b" " * 128
_LONG_INTEGER = b"0" * 19  # an integer of 19 digits may exceed 64 bits
