"""JSON text: strict reading and compact writing, by orjson where it is installed and by the standard library elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from math import isinf
from typing import Any, NoReturn


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


def json_in_text(text: str) -> Any:
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
