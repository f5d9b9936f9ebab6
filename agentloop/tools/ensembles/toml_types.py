"""The types of TOML, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from typing import Any, TypeAlias

Check: TypeAlias = Callable[[Any], str]
"""Says what is wrong with a value; empty when nothing is."""

EXPECTED: Mapping[type, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "a table",
    list: "a list",
    datetime: "a date",
    date: "a date",
    time: "a time",
}
"""The types in words."""


def is_of(*types: type) -> Check:
    """Make a check of the type; true and false are no numbers here.

    Args:
        *types: the types; the first one is named in the message.
    """

    def check(value: Any) -> str:
        wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
        return f"it has to be {EXPECTED[types[0]]}, not {in_words(value)}" if wrong else ""

    return check


def is_list_of_texts(value: Any) -> str:
    """Check that a value is a list of texts."""
    return is_of(list)(value) or next((f"each item {told[3:]}" for one in value if (told := is_of(str)(one))), "")


def in_words(value: object) -> str:
    """Say of what type a value is."""
    return EXPECTED.get(type(value), repr(value))
