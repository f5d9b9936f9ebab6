"""Lines of keys in TOML texts, which the standard parser does not tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_QUOTED = r"\"(?:\\.|[^\"\\])*\"|'[^']*'"
_KEY = rf"(?:[A-Za-z0-9_-]+|{_QUOTED})"
_KEYS = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_KEYS})\s*\]")
_ASSIGNMENT = re.compile(rf"\s*({_KEYS})\s*=")
_ONE_KEY = re.compile(_KEY)
_TEXT_OR_COMMENT = re.compile(rf"{_QUOTED}|#.*")
_LONG_TEXTS = ('"""', "'''")


def line_of(text: str, path: Sequence[str]) -> int:
    """Return the line on which a key is given.

    Args:
        text: a TOML document that the parser accepts.
        path: the key and the tables around it.

    Returns:
        The number of the line, from 1: that of the key, else that of the innermost part of the path that has one, as when
        the key stands in a table on one line; 0 when no part has.
    """
    wanted = tuple(path)
    found, line = 0, 0
    for number, keys in _keys(text):
        common = _common(keys, wanted)
        if common > found and common >= min(len(keys), len(wanted)):
            found, line = common, number
    return line


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _keys(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the lines that begin a table or give a key, each with its whole path."""
    table: tuple[str, ...] = ()
    open_text, depth = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        rest = line
        if open_text:
            _, closed, rest = line.partition(open_text)
            if not closed:
                continue
            open_text = ""
        elif not depth:
            header, assignment = _HEADER.match(line), _ASSIGNMENT.match(line)
            if header:
                table = _split(header.group(1))
                yield number, table
                continue
            if assignment:
                yield number, (*table, *_split(assignment.group(1)))
                rest = line[assignment.end() :]
        open_text, rest = _without_long_texts(rest)
        plain = _TEXT_OR_COMMENT.sub("", rest)
        depth = max(0, depth + plain.count("[") + plain.count("{") - plain.count("]") - plain.count("}"))


def _without_long_texts(rest: str) -> tuple[str, str]:
    """Return the delimiter of a text that goes on in the next line, if any does, and the rest without long texts."""
    kept = ""
    while True:
        starts = [(rest.find(mark), mark) for mark in _LONG_TEXTS if mark in rest]
        if not starts:
            return "", kept + rest
        at, mark = min(starts)
        kept += rest[:at]
        end = rest.find(mark, at + 3)
        if end < 0:
            return mark, kept
        rest = rest[end + 3 :]


def _split(keys: str) -> tuple[str, ...]:
    return tuple([key[1:-1] if key[0] in "\"'" else key for key in _ONE_KEY.findall(keys)])
