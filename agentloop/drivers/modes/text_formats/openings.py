"""Where in a text a call may begin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from agentloop.drivers.modes.text_formats.offered_tools import OfferedTools

LONGEST_NAME: Final = 200
NAME: Final = r"[^\W\d](?:[\w.-]|\\_)*"

_NEVER: Final = re.compile(r"(?!)")


def any_of(literals: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches the longest of these texts; nothing when there are none."""
    by_length = sorted(set(literals), key=lambda literal: (-len(literal), literal))
    return re.compile("|".join(map(re.escape, by_length))) if by_length else _NEVER


class Literals:
    """Fixed texts, searched for in text that may still grow."""

    def __init__(self, by_letter: Mapping[str, Sequence[str]]) -> None:
        """Take the texts by their first letters."""
        literals = [literal for group in by_letter.values() for literal in group]
        self._pattern = any_of(literals)
        self._begun = frozenset(literal[:size] for literal in literals for size in range(1, len(literal)))
        self._first = frozenset(by_letter)
        self._longest = max(map(len, literals), default=1)

    def find(self, text: str, at: int, *, ended: bool) -> tuple[int, int]:
        """Look for the next one.

        Returns:
            where it begins, or -1 when that is not certain yet; and from where on nothing is certain when there is more text.
        """
        found = self._pattern.search(text, at)
        if found is not None and (ended or found.start() + self._longest <= len(text)):
            return found.start(), found.start()
        limit = len(text) if found is None else found.start() + 1
        begun = len(text) if ended else self._undecided(text, at, limit)
        if found is not None and found.start() < begun:
            return found.start(), found.start()
        return -1, begun

    def _undecided(self, text: str, at: int, limit: int) -> int:
        for start in range(max(at, len(text) - self._longest + 1), limit):
            if text[start] in self._first and text[start:] in self._begun:
                return start
        return len(text)


class OfferedNames:
    """Names of offered tools with something right behind them, such as the `(` of a call in Python's notation."""

    def __init__(self, tools: OfferedTools, behind: Sequence[str]) -> None:
        self._tools = tools
        begun = {literal[:size] for literal in behind for size in range(1, len(literal))}
        name = rf"(?<![\w.\\])({NAME[:-1]}{{0,{LONGEST_NAME}}}+)"
        self._pattern = re.compile(name + "(?:" + "|".join(map(re.escape, behind)) + ")") if behind else _NEVER
        self._tail = (
            re.compile(name + r"\\?(" + "|".join(["", *map(re.escape, sorted(begun))]) + r")\Z") if behind else _NEVER
        )
        self._window = LONGEST_NAME + 1 + max(map(len, behind), default=0)

    def find(self, text: str, at: int, *, ended: bool) -> tuple[int, int]:
        """Look for the next one; returns what `Literals.find` does."""
        for found in self._pattern.finditer(text, at):
            if self._tools.knows(self._tools.plain_name(found[1])):
                return found.start(), found.start()
        if ended:
            return -1, len(text)
        tail = self._tail.search(text, max(at, len(text) - self._window))
        if tail is None:
            return -1, len(text)
        name = tail[1].replace("\\", "")
        return -1, tail.start() if self._may_be_offered(name, whole=bool(tail[2])) else len(text)

    def _may_be_offered(self, name: str, *, whole: bool) -> bool:
        return self._tools.knows(self._tools.plain_name(name)) if whole else self._tools.begins(name)
