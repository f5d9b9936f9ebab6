"""Words that are values: numbers and constants."""

from __future__ import annotations

import re
from math import isfinite
from typing import Final

from agentloop.drivers.modes.text_formats.literals.dialect import PYTHON_LITERAL

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
