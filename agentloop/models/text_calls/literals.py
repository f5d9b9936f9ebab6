"""The parts of literals in JSON and Python syntax: dialects, containers, quoted strings and words."""

from __future__ import annotations

import re
from math import isfinite
from typing import Final

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
RAW_CONTROL = "unescaped control character"
ESCAPED_UNDERSCORE = "escaped underscore"
STRAY_BACKSLASH = "stray backslash"
OTHER_SPACE = "white space that JSON does not know"
LEADING_ZEROS = "leading zeros"
REPEATED_KEY = "key that occurs twice"
"""Not corrected: which of the two is meant is not known, so that such a call is rejected, as one of a tool API is."""


@frozen
class Dialect:
    """The deviations from JSON that a notation allows. Every other deviation that can be read is reported as a repair.

    Attributes:
        allowed: names of the repairs that are not reported.
        is_python: whether escapes have their Python meaning and adjacent strings are concatenated.
        has_free_keys: whether any word may be a key without quotation marks, and not only an identifier.
    """

    allowed: frozenset[str] = frozenset()
    is_python: bool = False
    has_free_keys: bool = False


JSON = Dialect()
PYTHON = Dialect(
    frozenset(
        {SINGLE_QUOTES, TRIPLE_QUOTES, TRAILING_COMMA, COMMENT, PYTHON_LITERAL, UNQUOTED_KEY, RAW_CONTROL, OTHER_SPACE}
    ),
    is_python=True,
)
TOKEN_QUOTED = Dialect(frozenset({QUOTED_BY_TOKEN, UNQUOTED_KEY}), has_free_keys=True)
"""Objects of the Gemma models: unquoted keys, and a special token in place of quotation marks."""


class ParsedObject(dict[str, object]):
    """An object, or the argument list of a call in Python syntax.

    Attributes:
        start: offset of its opening bracket.
        end: offset behind its closing bracket.
        positional: the arguments without a name, in order; always empty for an object.
    """

    __slots__ = ("end", "positional", "start")

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start: int = start
        self.end: int = start
        self.positional: list[object] = []


class ParsedList(list[object]):
    """An array, or a tuple in Python syntax.

    Attributes:
        start: offset of its opening bracket.
        end: offset behind its closing bracket.
    """

    __slots__ = ("end", "start")

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start: int = start
        self.end: int = start


ParsedContainer = ParsedObject | ParsedList


QUOTE_STARTS: Final = frozenset("\"'<")

# Longer marks first: `'''` also starts with `'`. The last two are special tokens of the Gemma models.
_QUOTES: Final = ('"""', "'''", '"', "'", '<|"|>', "<escape>")

# Each pattern matches a string's content up to its closing mark, or up to the last position that more text cannot change.
# Possessive quantifiers keep the time linear for any text. Their groups are atomic, since Python before 3.11.5 backtracks into
# others.
_CONTENT: Final = {
    '"': re.compile(r'[^"\\]*+(?>\\.[^"\\]*+)*+', re.DOTALL),
    "'": re.compile(r"[^'\\]*+(?>\\.[^'\\]*+)*+", re.DOTALL),
    '"""': re.compile(r'[^"\\]*+(?>(?:\\.|"{1,2}(?=[^"]))[^"\\]*+)*+', re.DOTALL),
    "'''": re.compile(r"[^'\\]*+(?>(?:\\.|'{1,2}(?=[^']))[^'\\]*+)*+", re.DOTALL),
    '<|"|>': re.compile(r'[^<]*+(?><(?=.)(?!\|(?:"(?:\|(?:>|\Z)|\Z)|\Z))[^<]*+)*+', re.DOTALL),
    "<escape>": re.compile(r"[^<]*+(?><(?=.{7})(?!escape>)[^<]*+)*+", re.DOTALL),
}
_REPAIR_OF_QUOTE: Final = {
    "'": SINGLE_QUOTES,
    '"""': TRIPLE_QUOTES,
    "'''": TRIPLE_QUOTES,
    '<|"|>': QUOTED_BY_TOKEN,
    "<escape>": QUOTED_BY_TOKEN,
}


def match_quote(text: str, position: int, *, is_complete: bool) -> str | None:
    """Return the quotation mark at a position; empty if there is none, None if more text is needed to decide."""
    rest = text[position : position + len("<escape>")]
    if not is_complete and any(quote != rest and quote.startswith(rest) for quote in _QUOTES):
        return None
    return next((quote for quote in _QUOTES if rest.startswith(quote)), "")


def find_string_end(text: str, quote: str, position: int) -> int:
    """Return the offset up to which the text certainly belongs to a string; its closing mark follows if it is complete."""
    match = _CONTENT[quote].match(text, position)
    assert match is not None  # noqa: S101  # the patterns match the empty text
    return match.end()


def unquote(raw: str, quote: str, *, is_python: bool) -> tuple[str, list[str]]:
    """Return the value of a string, and the repairs that were necessary.

    Args:
        raw: the text between the quotation marks.
        quote: the quotation mark.
        is_python: whether the escapes are those of Python; otherwise they are those of JSON.
    """
    repairs = [_REPAIR_OF_QUOTE[quote]] if quote in _REPAIR_OF_QUOTE else []
    if quote in {'"', "'"}:
        if "\n" in raw or "\r" in raw:
            repairs.append(RAW_NEWLINE)
        if _CONTROL.search(raw):
            repairs.append(RAW_CONTROL)
    # Between special tokens, a backslash is an ordinary character.
    if "\\" not in raw or quote.startswith("<"):
        return raw, repairs
    decoder = _EscapeDecoder(repairs, is_python=is_python)
    return _ESCAPE.sub(decoder.decode, raw), decoder.repairs


_CONTROL: Final = re.compile(r"[\x00-\x09\x0b\x0c\x0e-\x1f]")
# A number in octal has a zero in front or three digits: `\1` is more often meant for a regular expression.
_ESCAPE: Final = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
    r"|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|(0[0-7]{0,2}|[1-3][0-7]{2})|(.))",
    re.DOTALL,
)
_JSON_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
_PYTHON_ESCAPES: Final = {"'": "'", "\n": "", "a": "\a", "v": "\v"}


class _EscapeDecoder:
    """Decodes escapes and notes those that JSON does not define."""

    def __init__(self, repairs: list[str], *, is_python: bool) -> None:
        self.repairs = repairs
        self._is_python = is_python

    def decode(self, escape: re.Match[str]) -> str:
        high, low, unit, byte, point, octal, letter = escape.groups()
        if unit is not None:
            return chr(int(unit, 16))
        if high is not None:  # a surrogate pair
            return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
        if octal is not None:
            self._note(STRAY_BACKSLASH)
            return chr(int(octal, 8))
        if letter is None:
            self._note(STRAY_BACKSLASH)
            return chr(int(byte or point, 16))
        return self._decode_letter(letter)

    def _decode_letter(self, letter: str) -> str:
        if letter in _JSON_ESCAPES and not (self._is_python and letter == "/"):
            return _JSON_ESCAPES[letter]
        if letter == "_":  # models escape underscores as in Markdown
            self._note(ESCAPED_UNDERSCORE)
            return letter
        self._note(STRAY_BACKSLASH)
        return _PYTHON_ESCAPES.get(letter, "\\" + letter)

    def _note(self, repair: str) -> None:
        if not (self._is_python and repair == STRAY_BACKSLASH) and repair not in self.repairs:
            self.repairs.append(repair)


MAX_WORD_LENGTH: Final = 4_200
"""Characters of the longest number; `int()` raises for more than 4,300 digits."""

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_PYTHON_INTEGER = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|[1-9][0-9]*(?:_[0-9]+)*|0)", re.ASCII)
_PYTHON_FLOAT = re.compile(
    r"[+-]?(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:0|[1-9][0-9]*)\.?", re.ASCII
)
_ZERO_PADDED = re.compile(r"-?0[0-9]+", re.ASCII)
_JSON_CONSTANTS = {"true": True, "false": False, "null": None}
_PYTHON_CONSTANTS = {"True": True, "False": False, "None": None}


class NotALiteral(Exception):
    """A word is not a literal: a name, a NaN, or a number that JSON cannot represent."""


def read_word(word: str) -> tuple[object, str | None]:
    """Return the value of a number or a constant, and the repair that was necessary.

    Raises:
        NotALiteral: the word is neither.
    """
    if word in _JSON_CONSTANTS:
        return _JSON_CONSTANTS[word], None
    if word in _PYTHON_CONSTANTS:
        return _PYTHON_CONSTANTS[word], PYTHON_LITERAL
    number = _JSON_NUMBER.fullmatch(word)
    if number is None:
        decimal = _ZERO_PADDED.fullmatch(word)
        return (int(word), LEADING_ZEROS) if decimal else (_read_python_number(word), PYTHON_LITERAL)
    if number[1] is None and number[2] is None:
        return int(word), None
    return _read_float(word), None


def _read_python_number(word: str) -> int | float:
    integer = _PYTHON_INTEGER.fullmatch(word)
    if integer is not None:
        value = int(integer[2], 0)
        return -value if integer[1] == "-" else value
    if _PYTHON_FLOAT.fullmatch(word) and any(mark in word for mark in ".eE"):
        return _read_float(word)
    raise NotALiteral(f"{word[:40]} is not a literal")


def _read_float(word: str) -> float:
    value = float(word)
    if not isfinite(value):
        raise NotALiteral("a number is larger than a float can be")
    return value
