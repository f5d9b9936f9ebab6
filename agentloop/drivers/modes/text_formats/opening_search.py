"""The search for the next place where a call, a thought or a wrapping tag may begin."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from agentloop.drivers.modes.text_formats.offered_tools import OfferedTools
from agentloop.drivers.modes.text_formats.openings import Literals, OfferedNames, any_of
from agentloop.drivers.modes.text_formats.reasoning import CLOSER_OF, CLOSES_ALONE
from agentloop.drivers.modes.text_formats.source import Source
from agentloop.drivers.modes.text_formats.text_format import TextFormat


class Vocabulary:
    """All fixed texts that some notations know, made ready to be searched for."""

    def __init__(self, formats: tuple[TextFormat, ...]) -> None:
        self.control: set[str] = {token for text_format in formats for token in text_format.control_tokens}
        wrappers = {wrapper for text_format in formats for wrapper in text_format.wrappers} | self.control
        openings = {opening for text_format in formats for opening in text_format.openings}
        thoughts = {*CLOSER_OF, *CLOSES_ALONE}
        self.after_name: list[str] = sorted({behind for text_format in formats for behind in text_format.after_name})
        self.wrapper: re.Pattern[str] = any_of(wrappers)
        self.thought: re.Pattern[str] = any_of(thoughts)
        self.by_letter: dict[str, list[str]] = {}
        for literal in sorted({*thoughts, *wrappers, *openings}, key=len, reverse=True):
            self.by_letter.setdefault(literal[0], []).append(literal)
        self.literals: Literals = Literals(self.by_letter)


_vocabulary = lru_cache(maxsize=16)(Vocabulary)


class OpeningSearch:
    """Finds openings of all notations in one pass."""

    def __init__(self, formats: Sequence[TextFormat], tools: OfferedTools) -> None:
        self._formats = tuple(formats)
        self._known = _vocabulary(self._formats)
        self._names = OfferedNames(tools, self._known.after_name)
        self._literal = _Cached()
        self._name = _Cached()

    def find(self, source: Source, at: int) -> tuple[bool, int]:
        """Look for the next opening.

        Returns:
            whether there is one for certain; and where it is, or else up to where there is none.
        """
        literal = self._literal.find(self._known.literals, source, at)
        name = self._name.find(self._names, source, at)
        limit = min(literal[1], name[1])
        return (literal[0] == limit or name[0] == limit), limit

    def is_undecided(self, text: str, at: int) -> bool:
        """Say whether a longer opening may stand here than the text shows so far."""
        left = len(text) - at
        for literal in self._known.by_letter.get(text[at], ()):  # the longest first
            if len(literal) <= left:
                return False
            if literal.startswith(text[at:]):
                return True
        return False

    def thought_at(self, text: str, at: int) -> str:
        """Return the tag of thoughts that stands here, or nothing."""
        tag = self._known.thought.match(text, at)
        return tag[0] if tag else ""

    def wrapper_at(self, text: str, at: int) -> tuple[str, bool]:
        """Return the wrapping tag or control token that stands here, or nothing, and whether it is a control token."""
        tag = self._known.wrapper.match(text, at)
        return (tag[0], tag[0] in self._known.control) if tag else ("", False)

    def formats_at(self, text: str, at: int) -> list[TextFormat]:
        """Return the notations in which a call may begin here, in order."""
        named = self._name.found == at
        return [f for f in self._formats if text.startswith(f.openings, at) or (named and f.after_name)]


class _Cached:
    """What a search said last, as long as it holds."""

    def __init__(self) -> None:
        self.found = -1
        self._certain = 0
        self._length = -1

    def find(self, search: Literals | OfferedNames, source: Source, at: int) -> tuple[int, int]:
        length = len(source.text) + source.ended
        if self.found < at and (length != self._length or self.found >= 0):
            self.found, self._certain = search.find(source.text, max(at, self._certain), ended=source.ended)
            self._length = length
        return self.found, max(at, self._certain)
