"""JSON text: strict reading and compact writing, by orjson where it is installed and by the standard library elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
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
    _fast_loads: Callable[[str | bytes], Any] | None = None
else:
    _fast_dumps, _fast_loads = partial(orjson.dumps, default=_plain), orjson.loads


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ascii_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def parse_json(text: str | bytes) -> Any:
    """Parse one JSON document to plain Python data.

    Stricter than `json.loads`: NaN and infinities are refused, so is nesting too deep to walk.

    Raises:
        ValueError: with position, when the text is not one JSON document.
    """
    if _fast_loads is not None:
        try:
            return _fast_loads(text)
        except ValueError:
            pass  # the standard library reads a little more (big integers, lone surrogates) and words errors better
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
            return _fast_dumps(value)
        except TypeError:
            pass  # integers over 64 bits and lone surrogates: the standard library can write them
    try:
        return _encoder.encode(value).encode()
    except UnicodeEncodeError:
        return _ascii_encoder.encode(value).encode()
    except RecursionError:
        raise ValueError("nested too deeply to be written") from None
