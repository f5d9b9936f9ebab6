"""Text between quotation marks: where it ends, and what its escapes mean."""

from __future__ import annotations

import re
from typing import Final

from agentloop.drivers.modes.text_formats.literals.dialect import (
    ESCAPED_UNDERSCORE,
    QUOTED_BY_TOKEN,
    RAW_NEWLINE,
    SINGLE_QUOTES,
    STRAY_BACKSLASH,
    TRIPLE_QUOTES,
)

QUOTE_STARTS: Final = frozenset("\"'<")
_QUOTES: Final = ('"""', "'''", '"', "'", '<|"|>', "<escape>")

_UP_TO: Final = {
    '"': re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL),
    "'": re.compile(r"[^'\\]*+(?:\\.[^'\\]*+)*+", re.DOTALL),
    '"""': re.compile(r'[^"\\]*+(?:(?:\\.|"{1,2}(?=[^"]))[^"\\]*+)*+', re.DOTALL),
    "'''": re.compile(r"[^'\\]*+(?:(?:\\.|'{1,2}(?=[^']))[^'\\]*+)*+", re.DOTALL),
    '<|"|>': re.compile(r'[^<]*+(?:<(?=.)(?!\|(?:"(?:\|(?:>|\Z)|\Z)|\Z))[^<]*+)*+', re.DOTALL),
    "<escape>": re.compile(r"[^<]*+(?:<(?=.{7})(?!escape>)[^<]*+)*+", re.DOTALL),
}
_REPAIR_OF: Final = {
    "'": SINGLE_QUOTES,
    '"""': TRIPLE_QUOTES,
    "'''": TRIPLE_QUOTES,
    '<|"|>': QUOTED_BY_TOKEN,
    "<escape>": QUOTED_BY_TOKEN,
}
_ESCAPE: Final = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
    r"|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|(.))",
    re.DOTALL,
)
_JSON_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
_PYTHON_ESCAPES: Final = {"'": "'", "\n": "", "a": "\a", "v": "\v", "0": "\0"}


def quote_at(text: str, at: int, *, ended: bool) -> str | None:
    """Return the quotation mark that begins here, empty when none does, and None when more text has to tell."""
    rest = text[at : at + len("<escape>")]
    if not ended and any(quote != rest and quote.startswith(rest) for quote in _QUOTES):
        return None
    return next((quote for quote in _QUOTES if rest.startswith(quote)), "")


def end_of_text(text: str, quote: str, at: int) -> int:
    """Return how far the text between quotation marks goes for sure; the closing mark stands there if it is complete."""
    found = _UP_TO[quote].match(text, at)
    assert found is not None  # noqa: S101  # the patterns match the empty text
    return found.end()


def unquoted(raw: str, quote: str, *, python: bool) -> tuple[str, list[str]]:
    """Return what the text between quotation marks means, and the repairs that it took.

    Args:
        raw: the text between the marks.
        quote: the mark.
        python: whether the escapes are Python's; the others are JSON's.
    """
    repairs = [_REPAIR_OF[quote]] if quote in _REPAIR_OF else []
    if quote in {'"', "'"} and ("\n" in raw or "\r" in raw):
        repairs.append(RAW_NEWLINE)
    if "\\" not in raw or quote.startswith("<"):
        return raw, repairs
    escapes = _Escapes(repairs, python=python)
    return _ESCAPE.sub(escapes.meaning, raw), escapes.repairs


class _Escapes:
    """What escapes mean, with a note of those that JSON does not know."""

    def __init__(self, repairs: list[str], *, python: bool) -> None:
        self.repairs = repairs
        self._python = python

    def meaning(self, escape: re.Match[str]) -> str:
        high, low, unit, byte, point, other = escape.groups()
        if unit is not None:
            return chr(int(unit, 16))
        if high is not None:
            return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
        if other is None:
            self._note(STRAY_BACKSLASH)
            return chr(int(byte or point, 16))
        return self._short(other)

    def _short(self, letter: str) -> str:
        if letter in _JSON_ESCAPES and not (self._python and letter == "/"):
            return _JSON_ESCAPES[letter]
        if letter == "_":
            self._note(ESCAPED_UNDERSCORE)
            return letter
        if letter in _PYTHON_ESCAPES:
            self._note(STRAY_BACKSLASH)
            return _PYTHON_ESCAPES[letter]
        self._note(STRAY_BACKSLASH)
        return "\\" + letter

    def _note(self, repair: str) -> None:
        if not (self._python and repair == STRAY_BACKSLASH) and repair not in self.repairs:
            self.repairs.append(repair)
