"""Calls that a model makes, told from those that it only talks about afterwards."""

from __future__ import annotations

from typing import Final

from agentloop.drivers.modes.text_formats.reading import FoundCall
from agentloop.values.json_text import format_json

MARKED: Final = 3
"""The clarity of a notation in which nothing but calls is written."""


class Mentions:
    """Remembers the calls of a text, and knows which one is only mentioned.

    After other words, a call is only mentioned when it stands in a notation that is less clearly one than that of an earlier
    call, or when it is equal to an earlier one that is written in another way: models explain what they have done.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, bytes], tuple[bool, int]] = {}
        self._new: list[tuple[FoundCall, bool, int]] = []
        self._first = -1
        self._clearest = (0, 0)

    def why_mentioned(self, call: FoundCall, words: int, clarity: int, *, is_python: bool) -> str:
        """Return why this call is none, or nothing when it is one.

        Args:
            call: the call.
            words: a number that is larger than before if other words stand before this call.
            clarity: how clearly its notation says that it is a call.
            is_python: whether it is written as a call in Python's notation.
        """
        clearest, words_then = self._clearest
        if clarity < clearest and words != words_then:
            return "it stands in prose after calls that are set apart from it"
        self._clearest = max(self._clearest, (clarity, words))
        self._first = words if self._first < 0 else self._first
        self._new.append((call, is_python, words))
        if clarity == MARKED or words == self._first:
            return ""
        was_python, words_then = self._first_equal()
        return "it repeats an earlier call" if was_python != is_python and words_then != words else ""

    def _first_equal(self) -> tuple[bool, int]:
        """Compare the new calls with those before; return how the first one that is equal to the last stands in the text."""
        first = False, 0
        for call, is_python, words in self._new:
            key = call.name, format_json(call.arguments)
            first = self._seen.setdefault(key, (is_python, words))
        self._new.clear()
        return first
