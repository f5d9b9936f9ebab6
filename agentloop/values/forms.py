"""The JSON form of any Python value, so that whatever a tool returned reaches the model.

| value | form |
|---|---|
| JSON data | itself |
| NaN and infinities | the texts `NaN`, `Infinity` and `-Infinity` |
| an integer of more than 4,000 digits | its digits as text |
| keys of a mapping that are not texts | the JSON text of their form; where two keys get the same text, the mapping is a list of pairs |
| bytes | Base64 |
| sets | a list, sorted by the JSON text of the items |
| other collections, such as `deque` and `range` | a list |
| members of an enumeration | the form of their value |
| dates and times | ISO 8601; a `timedelta` is its seconds |
| dataclasses, attrs classes and pydantic models | an object of their fields |
| an exception | an object with `type` and `message`, and with its notes, its cause and the exceptions of a group |
| a data frame | an object with `columns` and `rows`, and with `index` unless that numbers the rows |
| an array, a series or a scalar of numpy, pandas, polars, pyarrow or torch | the list or the number that it holds |
| an object whose class has a `__str__` of its own, such as an id, a path or an address | that text |
| anything else | its `repr`, with the name of its class and without addresses in memory |

The last two are cut at 4,000 characters. A value that contains itself, and what is nested more than 100 levels deep, is the text of that.
"""

from __future__ import annotations

import base64
import enum
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import date, time, timedelta
from typing import Any, Final

from attrs import define, field

from agentloop.errors.kinds import NotJson
from agentloop.values.json import JsonValue, format_json, freeze

MAX_TEXT: Final = 4_000
"""The characters of the text of one value that has no other form."""
_MAX_LEVELS: Final = 100
_MAX_MEMBERS: Final = 1_000_000
_ADDRESS: Final = re.compile(r" at 0x[0-9A-Fa-f]+")


def freeze_any(value: object) -> JsonValue:
    """Return the JSON form of any value; see the table at the top of this file."""
    try:
        return freeze(value)
    except (NotJson, RecursionError):
        return Form.of(value).value


def shorten(text: str, maximum: int = MAX_TEXT) -> str:
    """Return a text, cut to its first characters, with its length, if it has more."""
    return text if len(text) <= maximum else f"{text[:maximum]}… ({len(text):,} characters)"


def form_text(value: object, maximum: int = MAX_TEXT) -> str:
    """Return the form of a value as a text: JSON unless it is a text itself, cut to its first characters."""
    form = freeze_any(value)
    return shorten(form if isinstance(form, str) else format_json(form).decode(), maximum)


@define(eq=False)
class Form:
    """The form of a value, while it is written.

    Attributes:
        value: the JSON form.
        plain: the same as lists and dicts, with NaN and infinities as numbers: what a schema is to be checked against.
        unknown: the names of the classes whose objects are only a text.
    """

    plain: Any = None
    unknown: list[str] = field(factory=list)
    _open: set[int] = field(factory=set)
    _members: int = 0

    @classmethod
    def of(cls, value: object) -> Form:
        """Write a value. Nothing that the value does while it is read raises."""
        form = cls()
        form.plain = form._write(value, _MAX_LEVELS)
        return form

    @property
    def value(self) -> JsonValue:
        """The form as immutable JSON."""
        return freeze(_with_texts(self.plain))

    def _write(self, value: object, levels: int) -> Any:
        self._members += 1
        if self._members > _MAX_MEMBERS:
            return "(left out: the value has more than a million members)"
        if value is None or isinstance(value, str | float | int):
            return _write_scalar(value)
        if id(value) in self._open:
            return f"(the {type(value).__qualname__} that this is a part of)"
        if not levels:
            return f"(a {type(value).__qualname__}, nested more than {_MAX_LEVELS} levels deep)"
        self._open.add(id(value))
        try:
            return self._write_object(value, levels - 1)
        except Exception as error:  # noqa: BLE001  # an object may raise anything while it is read
            return self._describe(value, error)
        finally:
            self._open.discard(id(value))

    def _write_object(self, value: Any, levels: int) -> Any:
        for kinds, write in _WRITERS:
            if isinstance(value, kinds):
                return self._write(write(value), levels)
        if isinstance(value, Mapping):
            return self._write_entries(list(value.items()), levels)
        content = _content_of(value)
        if content is not None:
            return self._write(content, levels)
        if isinstance(value, set | frozenset):
            return sorted((self._write(item, levels) for item in value), key=_json_text)
        if isinstance(value, Collection) and not isinstance(value, type):
            return [self._write(item, levels) for item in value]
        return self._describe(value)

    def _write_entries(self, entries: Sequence[tuple[Any, Any]], levels: int) -> Any:
        written = [(self._write(key, levels), self._write(item, levels)) for key, item in entries]
        keys = [key if isinstance(key, str) else _json_text(key) for key, _ in written]
        if len(set(keys)) < len(keys):
            return [[key, item] for key, item in written]
        return dict(zip(keys, (item for _, item in written), strict=True))

    def _describe(self, value: object, error: Exception | None = None) -> str:
        kind = type(value)
        self.unknown.append(kind.__qualname__)
        failed = "" if error is None else f" (it cannot be read: {type(error).__name__})"
        try:
            if _has_own_text(kind):
                return shorten(str(value)) + failed
            text = _ADDRESS.sub("", repr(value))
        except Exception as inner:  # noqa: BLE001  # also the text of an object may raise anything
            return f"<{kind.__qualname__}, whose text cannot be read: {type(inner).__name__}>"
        return shorten(text if kind.__name__ in text else f"{kind.__qualname__} {text}") + failed


def _write_scalar(value: str | float | None) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):  # also a member of an IntEnum or a StrEnum is its value
        return _write_scalar(value.value)
    if isinstance(value, int):
        try:
            return freeze(value)
        except NotJson:
            return _digits(value)
    return float(value) if isinstance(value, float) else str.__str__(value)


def _digits(number: int) -> str:
    # Python itself writes no more than 4,300 digits, since the time grows with the square of their number.
    if number.bit_length() > _MAX_DIGIT_BITS:
        return hex(number)
    digits = ""
    sign, number = "-" if number < 0 else "", abs(number)
    while number:
        number, rest = divmod(number, _CHUNK)
        digits = f"{rest:0{_CHUNK_DIGITS}d}{digits}"
    return sign + digits.lstrip("0")


_MAX_DIGIT_BITS: Final = 200_000
_CHUNK_DIGITS: Final = 4_000
_CHUNK: Final = 10**_CHUNK_DIGITS


def _with_texts(plain: Any) -> Any:
    """Return written data with texts for the numbers that JSON does not have."""
    if isinstance(plain, float) and not math.isfinite(plain):
        return "NaN" if math.isnan(plain) else "Infinity" if plain > 0 else "-Infinity"
    if isinstance(plain, dict):
        return {key: _with_texts(item) for key, item in plain.items()}
    return [_with_texts(item) for item in plain] if isinstance(plain, list) else plain


def _json_text(plain: Any) -> str:
    texts = _with_texts(plain)
    return texts if isinstance(plain, float) and isinstance(texts, str) else format_json(texts).decode()


def _has_own_text(kind: type) -> bool:
    """Return whether a class says how its objects are written as text, other than by `repr`."""
    return not issubclass(kind, type) and any("__str__" in vars(base) for base in kind.__mro__[:-1])


# --- objects with a content -------------------------------------------------------------------------------------------


def _write_exception(error: BaseException) -> dict[str, Any]:
    written: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, BaseExceptionGroup):
        written["exceptions"] = list(error.exceptions)
    if notes := getattr(error, "__notes__", None):
        written["notes"] = notes
    if error.__cause__ is not None:
        written["cause"] = error.__cause__
    return written


_WRITERS: Final[Sequence[tuple[type | tuple[type, ...], Callable[[Any], Any]]]] = (
    (enum.Enum, lambda member: member.value),
    ((bytes, bytearray, memoryview), lambda data: base64.b64encode(bytes(data)).decode()),
    ((date, time), lambda moment: moment.isoformat()),
    (timedelta, timedelta.total_seconds),
    (BaseException, _write_exception),
)


def _content_of(value: Any) -> Any:
    """Return what an object holds, as simpler values; None for an object of another kind."""
    kind = type(value)
    for has_content, read in _CONTENTS:
        if has_content(kind):
            return read(value)
    return None


def _has(*names: str) -> Callable[[type], bool]:
    # Looked up in the class: an object that has every attribute, such as a mock, has none of these.
    return lambda kind: all(hasattr(kind, name) for name in names)


def _fields(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in dataclass_fields(value) if each.init}


def _attrs(value: Any) -> dict[str, Any]:
    return {each.alias or each.name: getattr(value, each.name) for each in type(value).__attrs_attrs__ if each.init}


def _frame(value: Any) -> dict[str, Any]:
    split = value.to_dict(orient="split")
    table = {"columns": split["columns"], "rows": split["data"]}
    index = list(split["index"])
    return table if index == list(range(len(index))) else {**table, "index": index}


def _series(value: Any) -> Any:
    index, values = list(value.index), value.tolist()
    return values if index == list(range(len(index))) else {"index": index, "values": values}


_CONTENTS: Final[Sequence[tuple[Callable[[type], bool], Callable[[Any], Any]]]] = (
    (is_dataclass, _fields),
    (_has("__attrs_attrs__"), _attrs),
    (_has("model_dump", "model_fields"), lambda model: model.model_dump(by_alias=True)),
    # The libraries of data frames are not imported here: their classes are known by their methods.
    (_has("to_dict", "columns", "index"), _frame),
    (_has("to_dicts", "columns", "rows"), lambda frame: {"columns": list(frame.columns), "rows": frame.rows()}),
    (_has("tolist", "to_dict", "index"), _series),
    (_has("tolist"), lambda array: array.tolist()),
    (_has("to_list"), lambda series: series.to_list()),
    (_has("to_pylist"), lambda table: table.to_pylist()),
    # Such as a row of SQLite, which is a sequence of values, too.
    (_has("keys", "__getitem__"), lambda row: {key: row[key] for key in row.keys()}),  # noqa: SIM118  # no mapping
)
