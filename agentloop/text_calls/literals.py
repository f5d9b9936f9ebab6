"""Ways of writing values, and what each of them may write without a fault."""

from __future__ import annotations

import re
from math import isfinite
from typing import Final, Literal

from attrs import frozen

SINGLE_QUOTES = "single quotes"
TRIPLE_QUOTES = "triple quotes"
QUOTED_BY_TOKEN = "quote token"  # noqa: S105  # no secret: the name of a repair
TRAILING_COMMA = "trailing comma"
COMMENT = "comment"
MISSING_BRACKET = "missing closing bracket"
PYTHON_LITERAL = "Python literal"
UNQUOTED_KEY = "unquoted key"
RAW_NEWLINE = "unescaped newline"
ESCAPED_UNDERSCORE = "escaped underscore"
STRAY_BACKSLASH = "stray backslash"


@frozen
class Dialect:
    """What a notation writes as a matter of course; everything else that is understood is a repair and is noted.

    Attributes:
        native: the names of repairs that are none in this notation.
        python: whether escapes such as those by hexadecimal digits mean what they mean in Python.
    """

    native: frozenset[str] = frozenset()
    python: bool = False


JSON = Dialect()
PYTHON = Dialect(
    frozenset({SINGLE_QUOTES, TRIPLE_QUOTES, TRAILING_COMMA, COMMENT, PYTHON_LITERAL, UNQUOTED_KEY}), python=True
)
TOKEN_QUOTED = Dialect(frozenset({QUOTED_BY_TOKEN, UNQUOTED_KEY}))
"""Objects as the Gemma family writes them: unquoted keys, and a special token where JSON has a quotation mark."""


class ReadObject(dict[str, object]):
    """An object read from text.

    Attributes:
        start: where it begins.
        end: where it ends.
    """

    __slots__ = ("end", "start")

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start: int = start
        self.end: int = start


class ReadArguments(ReadObject):
    """The arguments of a call in Python's notation: those by name as a dict, and those by position.

    Attributes:
        positional: the arguments without a name, in order.
    """

    __slots__ = ("positional",)

    def __init__(self, start: int) -> None:
        super().__init__(start)
        self.positional: list[object] = []


class ReadList(list[object]):
    """An array read from text.

    Attributes:
        start: where it begins.
        end: where it ends.
    """

    __slots__ = ("end", "start")

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start: int = start
        self.end: int = start


ReadContainer = ReadObject | ReadList


Expected = Literal["first", "next", "colon", "value", "separator"]


class Frame:
    """A container, and what may come next in it."""

    __slots__ = ("commas", "expected", "joined", "key", "node", "opener")

    def __init__(self, opener: str, node: ReadContainer) -> None:
        self.opener: str = opener
        self.node: ReadContainer = node
        self.expected: Expected = "first"
        self.key: str = ""
        self.commas: int = 0
        self.joined: int = -1  # how many texts were joined to the last value; -1 when that is no text


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


LONGEST_WORD: Final = 4_200
"""Characters; Python reads no integer of more than 4,300 digits."""

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_PYTHON_INTEGER = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|[1-9][0-9]*(?:_[0-9]+)*|0)", re.ASCII)
_PYTHON_FLOAT = re.compile(
    r"[+-]?(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:0|[1-9][0-9]*)\.?", re.ASCII
)
_CONSTANTS = {"true": True, "false": False, "null": None}
_PYTHON_CONSTANTS = {"True": True, "False": False, "None": None}


class NotAValue(Exception):
    """A word is no literal: a name, a NaN, a number that JSON cannot hold."""


def read_word(word: str) -> tuple[object, str | None]:
    """Return the value of a word, and the repair that it took.

    Raises:
        NotAValue: when the word is no literal.
    """
    if word in _CONSTANTS:
        return _CONSTANTS[word], None
    if word in _PYTHON_CONSTANTS:
        return _PYTHON_CONSTANTS[word], PYTHON_LITERAL
    number = _JSON_NUMBER.fullmatch(word)
    if number is None:
        return _python_number(word), PYTHON_LITERAL
    if number[1] is None and number[2] is None:
        return int(word), None
    return _finite(word), None


def _python_number(word: str) -> int | float:
    integer = _PYTHON_INTEGER.fullmatch(word)
    if integer is not None:
        value = int(integer[2], 0)
        return -value if integer[1] == "-" else value
    if _PYTHON_FLOAT.fullmatch(word) and any(mark in word for mark in ".eE"):
        return _finite(word)
    raise NotAValue(f"{word[:40]} is not a literal")


def _finite(word: str) -> float:
    value = float(word)
    if not isfinite(value):
        raise NotAValue("a number is larger than a float can be")
    return value
