r"""How JSON may spell a text: with any character escaped, and the escapes escaped again in JSON inside of a string.

A quotation mark is `"` as such, `\"` in JSON, `\\\"` in JSON within a string of JSON, and so on; any character can also be
spelt by its number, `\u0022`. The patterns here find a text in all these spellings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SHORT = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_PLAIN = re.compile(r'[^\x00-\x1f"\\/\x7f-\U0010ffff]+')
"""Characters that are themselves in all JSON, unless somebody spells them by their number."""


def plain_part(text: str) -> str:
    r"""Return the longest part of a text that stands in every spelling of it that has no `\u00`; empty when there is none."""
    return max(_PLAIN.findall(text), key=len, default="")


def secrets_pattern(texts: Iterable[str]) -> re.Pattern[str]:
    """Make a pattern that finds any of these texts in any spelling, the first that fits."""
    return re.compile("|".join([_spelt(text) for text in texts]))


def field_pattern(names: Iterable[str]) -> re.Pattern[str]:
    r"""Make a pattern that finds a field of JSON in the middle of a text, as far as its value is a text, a number or a word.

    The group `name` is all before the value, `level` the backslashes that quotation marks have at the depth of this JSON. A value
    that is cut off ends with the text.
    """
    name = "|".join([_spelt(name) for name in names])
    value = r'(?:(?P=level)".*?(?:(?<!\\)(?P=level)"|\Z)|[^\s,"\\{}\[\]]+)'
    return re.compile(rf'(?P<name>(?<!\\)(?P<level>\\*)"(?:{name})(?P=level)"\s*:\s*){value}', re.DOTALL)


def _spelt(text: str) -> str:
    r"""Write the pattern of a text; a run of backslashes is one of any length, for each level doubles it."""
    once = re.sub(r"\\+", r"\\", text)
    return _spelt_character(once[0], r"(?<!\\)") + "".join([_spelt_character(other) for other in once[1:]])


def _spelt_character(character: str, begin: str = "") -> str:
    r"""Write the pattern of a character; `begin` keeps one that comes first from being tried inside a run of backslashes."""
    units = character.encode("utf-16-be", "surrogatepass").hex()
    number = begin + "".join([rf"\\+u(?i:{units[at : at + 4]})" for at in range(0, len(units), 4)])
    if character == "\\":
        return rf"(?:{number}|{begin}\\+)"
    if character in '"/':
        return rf"(?:{begin}\\*{character}|{number})"
    short = rf"|{begin}\\+{_SHORT[character]}" if character in _SHORT else ""
    return f"(?:{re.escape(character)}|{number}{short})"
