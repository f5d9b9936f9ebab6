"""The search for the next place where a call, a thought or a wrapping tag may begin."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.drivers.modes.text_formats.offered_tools import OfferedTools
from agentloop.drivers.modes.text_formats.openings import Literals, OfferedNames
from agentloop.drivers.modes.text_formats.reasoning import CLOSER_OF, CLOSES_ALONE
from agentloop.drivers.modes.text_formats.source import Source
from agentloop.drivers.modes.text_formats.text_format import TextFormat


class OpeningSearch:
    """Finds openings of all notations in one pass."""

    def __init__(self, formats: Sequence[TextFormat], tools: OfferedTools) -> None:
        thoughts = [*CLOSER_OF, *CLOSES_ALONE]
        control = {token for text_format in formats for token in text_format.control_tokens}
        wrappers = {wrapper for text_format in formats for wrapper in text_format.wrappers} | control
        openings = {opening for text_format in formats for opening in text_format.openings}
        after_name = {behind for text_format in formats for behind in text_format.after_name}
        self._formats = formats
        self._by_first = {
            first: [f for f in formats if any(o[0] == first for o in f.openings)] for first in {o[0] for o in openings}
        }
        self._thoughts = sorted(thoughts, key=len, reverse=True)
        self._control = control
        self._wrappers = sorted(wrappers, key=len, reverse=True)
        everything = sorted({*thoughts, *wrappers, *openings})
        self._by_letter = {
            first: [text for text in everything if text[0] == first] for first in {text[0] for text in everything}
        }
        self._literals = Literals(everything)
        self._names = OfferedNames(tools, sorted(after_name))
        self._named = [text_format for text_format in formats if text_format.after_name]
        self._literal = _Cached()
        self._name = _Cached()

    def find(self, source: Source, at: int) -> tuple[bool, int]:
        """Look for the next opening.

        Returns:
            whether there is one for certain; and where it is, or else up to where there is none.
        """
        literal = self._literal.find(self._literals, source, at)
        name = self._name.find(self._names, source, at)
        limit = min(literal[1], name[1])
        return (literal[0] == limit or name[0] == limit), limit

    def is_undecided(self, text: str, at: int) -> bool:
        """Say whether a longer opening may stand here than the text shows so far."""
        return any(
            len(text) - at < len(literal) and literal.startswith(text[at:])
            for literal in self._by_letter.get(text[at], ())
        )

    def thought_at(self, text: str, at: int) -> str:
        """Return the tag of thoughts that stands here, or nothing."""
        return next((tag for tag in self._thoughts if text.startswith(tag, at)), "") if text[at] in "<[◁" else ""

    def wrapper_at(self, text: str, at: int) -> tuple[str, bool]:
        """Return the wrapping tag or control token that stands here, or nothing, and whether it is a control token."""
        tag = next((tag for tag in self._wrappers if text.startswith(tag, at)), "")
        return tag, tag in self._control

    def formats_at(self, text: str, at: int) -> list[TextFormat]:
        """Return the notations in which a call may begin here, in order."""
        by_literal = [
            f for f in self._by_first.get(text[at], ()) if any(text.startswith(opening, at) for opening in f.openings)
        ]
        if self._name.found != at:
            return by_literal
        return [f for f in self._formats if f in by_literal or f in self._named]


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
