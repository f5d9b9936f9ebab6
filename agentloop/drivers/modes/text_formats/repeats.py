"""Calls that a model writes twice: once to make it, and once to talk about it."""

from __future__ import annotations

import re
from typing import Final

from agentloop.drivers.modes.text_formats.reading import FoundCall
from agentloop.values.json_text import format_json

_WORDS: Final = re.compile(r"\w")


class Repeats:
    """Remembers the calls of a text, and knows which one only talks about an equal one before it."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, bytes], tuple[str, int]] = {}
        self._end = 0
        self._block = 0

    def is_repeat(self, call: FoundCall, notation: str, text: str) -> bool:
        """Say whether an equal call was written in another notation before, with words between the two.

        Args:
            call: the call.
            notation: how it is written; empty for a notation in which nothing but calls is written.
            text: the text in which it stands.
        """
        key = call.name, format_json(call.arguments)
        if _WORDS.search(text, self._end, call.start):
            self._block += 1
        self._end = call.end
        first, block = self._seen.setdefault(key, (notation, self._block))
        return bool(notation) and notation != first and block != self._block
