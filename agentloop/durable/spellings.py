"""The ways in which a text may be spelled, as patterns: in JSON, percent-encoded, in hexadecimal and in Base64."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator

from attrs import frozen

_SHORT_ESCAPES = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_PLAIN = re.compile(r'[^\x00-\x20"\\/\x7f-\U0010ffff]+')
"""Characters that JSON and URLs write as themselves, unless a writer escapes them by number."""
PERCENT = re.compile("%[0-9A-Fa-f]{2}")
_BREAK = r"(?>\s|(?<!\\)\\++[rnt])"
"""A pattern for a character that wraps encoded text into lines."""
BREAKS = re.compile(f"{_BREAK}+")
WRAPPED = re.compile(rf"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{{16,}}+{_BREAK}++[A-Za-z0-9+/_-]")
"""The end of a line of encoded text."""
WORD_SIGN = r'[^\s,"\\{}\[\]]'
"""A pattern for a character of a number or a word in JSON."""
_MAX_DOUBLED = 8
"""How many encoded backslashes one is at most: so many after three levels of nested JSON."""
_BASE64_SPELLINGS = {
    "+": r"(?:[+\-]|(?<!\\)\\+u002[Bb]|%(?:25)*2[Bb])",
    "/": r"(?:_|(?<!\\)\\*/|(?<!\\)\\+u002[Ff]|%(?:25)*2[Ff])",
}
"""Patterns for the characters that differ between the alphabets of Base64, or that JSON and URLs may escape."""


def plain_part(text: str) -> str:
    r"""Return the longest part of a text that is the same in every JSON spelling without `\u00`; empty when there is none."""
    return max(_PLAIN.findall(text), key=len, default="")


@frozen
class Spelling:
    """A way to spell a text.

    Attributes:
        pieces: patterns for its parts, one after the other.
        before: a pattern for what precedes it and holds a part of it; empty if nothing does.
        after: the same for what follows.
        is_ambiguous: whether a piece can match in several ways, so that the first way need not lead on to the next piece.
    """

    pieces: tuple[str, ...]
    before: str = ""
    after: str = ""
    is_ambiguous: bool = False

    @property
    def pattern(self) -> str:
        """The pattern for the whole text."""
        return self.before + "".join(self.pieces) + self.after


def spellings_of(text: str) -> Iterator[Spelling]:
    """Yield all ways to spell a text."""
    yield Spelling(tuple(_spelling(text, url=True)), is_ambiguous="\\" in text)
    yield Spelling(tuple(_wrapped([f"(?i:{digit})" for digit in hex_of(text)])))
    yield from _base64_spellings(text)


def _wrapped(pieces: list[str]) -> list[str]:
    """Return pieces between which lines may end."""
    return [piece if index == 0 else f"{_BREAK}*{piece}" for index, piece in enumerate(pieces)]


def hex_of(text: str) -> str:
    """Return the bytes of a text in hexadecimal."""
    return text.encode("utf-8", "surrogatepass").hex()


def field_pattern(names: Iterable[str]) -> re.Pattern[str]:
    r"""Return a pattern that matches a field of JSON in the middle of a text, if its value is a string, a number or a word.

    The group `name` holds everything before the value, `level` the backslashes before quotation marks at the depth of this JSON.
    A value that is cut off ends with the text.
    """
    value = rf'(?:(?P=level)".*?(?:(?<!\\)(?P=level)"|\Z)|{WORD_SIGN}+)'
    return re.compile(rf"(?P<name>{_field_head(names)}){value}", re.DOTALL)


def field_start_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for the beginning of a field as in `field_pattern`, up to and with the quotation mark of its value, if it has one."""
    return re.compile(rf'(?P<name>{_field_head(names)})(?:(?P<quote>(?P=level)")|(?={WORD_SIGN}))')


def _field_head(names: Iterable[str]) -> str:
    name = "|".join(["".join(_spelling(name)) for name in names])
    return rf'(?<!\\)(?P<level>\\*)"(?:{name})(?P=level)"\s*:\s*'


def field_spelling(name: str) -> Spelling:
    """Return the beginning of a field as in `field_start_pattern` in pieces."""
    pieces = (r'(?<!\\)\\*"', *_spelling(name), r'\\*"', r"\s*:", rf'\s*(?:\\*"|{WORD_SIGN})')
    return Spelling(pieces, is_ambiguous="\\" in name)


def base64_parts(text: str) -> Iterator[str]:
    """Yield the three texts of which one occurs in the Base64 of any bytes that contain a text.

    Three bytes become four characters, so the characters depend on the position of the text, modulo three. The first and the
    last one may also depend on the bytes next to the text; those are left out.
    """
    data = text.encode("utf-8", "surrogatepass")
    for offset in range(3):
        encoded = b64encode(bytes(offset) + data).decode()
        yield encoded[(offset * 8 + 5) // 6 : (offset + len(data)) * 8 // 6]


BASE64_SIGN = "[A-Za-z0-9+/_-]"


def _base64_spellings(text: str) -> Iterator[Spelling]:
    """Yield the Base64 of any bytes that contain a text, with the characters at its ends that hold parts of it."""
    for offset, part in enumerate(base64_parts(text)):
        ends_inside = (offset + len(text.encode("utf-8", "surrogatepass"))) % 3
        before, after = (f"{BASE64_SIGN}?" if shared else "" for shared in (offset, ends_inside))
        yield Spelling(tuple(_wrapped([_BASE64_SPELLINGS.get(sign, sign) for sign in part])), before, after)


def _spelling(text: str, *, url: bool = False) -> list[str]:
    r"""Return patterns, one after the other, for every JSON spelling of a text; with `url`, also for every percent encoding of it.

    Each level of nested JSON doubles backslashes, so a run of backslashes matches a run of any length, and of some that are
    encoded one by one.
    """
    pieces = re.findall(r"\\+|[^\\]", text)
    spellings = []
    for index, piece in enumerate(pieces):
        # A long run of backslashes must not take quadratic time: the first character does not match inside of one, and a
        # backslash takes all of it, also what precedes the next character.
        run = r"(?<!\\)\\+" if index == 0 else r"(?:\\+|(?<=\\\\))" if pieces[index - 1][0] == "\\" else r"\\+"
        if piece[0] != "\\":
            spellings.append(_character_spelling(piece, run, url=url))
        elif url or index < len(pieces) - 1:
            spellings.append(f"{_character_spelling(piece[0], run + '+', url=url)}{{1,{len(piece) * _MAX_DOUBLED}}}")
        else:
            # The pattern of a field goes on with backslashes.
            spellings.append(_character_spelling(piece[0], run))
    return spellings


def _character_spelling(character: str, run: str, *, url: bool = False) -> str:
    """Return a pattern for every JSON spelling of a character; `run` is that of the backslashes with which some of them begin."""
    if url:
        codes = character.encode("utf-8", "surrogatepass").hex()
        # Each level of percent encoding encodes the percent sign again.
        percent = "".join([f"%(?:25)*(?i:{codes[at : at + 2]})" for at in range(0, len(codes), 2)])
        # Forms write a space as a plus sign, which may be encoded again.
        form = rf"|\+|{run}u002[Bb]|%(?:25)*2[Bb]" if character == " " else ""
        return f"(?:{_character_spelling(character, run)}|{percent}{form})"
    units = character.encode("utf-16-be", "surrogatepass").hex()
    number = run + r"\\+".join([f"u(?i:{units[at : at + 4]})" for at in range(0, len(units), 4)])
    if character == "\\":
        return rf"(?:{number}|{run})"
    if character in '"/':
        return rf"(?:(?:{run})?{character}|{number})"
    short = rf"|{run}{_SHORT_ESCAPES[character]}" if character in _SHORT_ESCAPES else ""
    return f"(?:{re.escape(character)}|{number}{short})"
