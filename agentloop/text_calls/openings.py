"""Where in a text a call may begin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from agentloop.text_calls.offered_tools import OfferedTools
from agentloop.text_calls.source import Source
from agentloop.text_calls.text_format import TextFormat

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


THOUGHTS: Final[tuple[tuple[str, str], ...]] = (
    ("<think>", "</think>"),  # DeepSeek R1, Qwen 3, GLM 4.5, and most others
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<scratch_pad>", "</scratch_pad>"),  # Hermes
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<mm:think>", "</mm:think>"),  # MiniMax M3
    ("<longcat_think>", "</longcat_think>"),
    ("[THINK]", "[/THINK]"),  # Mistral
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<|channel|>analysis<|message|>", "<|end|>"),  # gpt-oss: the harmony response format
    ("<|channel>thought", "<channel|>"),  # Gemma 4
)
"""What opens and what closes a model's thoughts."""

CLOSER_OF: Final = dict(THOUGHTS)

CLOSES_ALONE: Final = frozenset({"</think>", "</thinking>", "[/THINK]", "◁/think▷", "</seed:think>", "</mm:think>"})
"""What closes thoughts also where nothing opens them: prompts of these models end with the opening tag."""


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
