"""The search for places in a text where a call, a wrapping tag or reasoning may begin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from agentloop.models.text_calls.offered_tools import MAX_NAME_LENGTH, NAME_PATTERN, OfferedTools
from agentloop.models.text_calls.text_buffer import TextBuffer
from agentloop.models.text_calls.text_format import TextFormat

REASONING_TAGS: Final[tuple[tuple[str, str], ...]] = (
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
    ("<|think:start|>", "<|think:end|>"),  # Solar Open 2
    ("to=self<|message|>", "<|eom|>"),  # Muse
    ("<|channel|>analysis<|message|>", "<|end|>"),  # gpt-oss: the harmony response format
    ("<|channel>thought", "<channel|>"),  # Gemma 4
)
"""The opening and closing tags of a model's reasoning."""

CLOSER_OF: Final = dict(REASONING_TAGS)

UNPAIRED_CLOSERS: Final = frozenset({"</think>", "</thinking>", "[/THINK]", "◁/think▷", "</seed:think>", "</mm:think>"})
"""Closing tags that also count without an opening tag, since the prompts of these models end with the opening tag."""


class OpeningSearch:
    """Finds the openings of all formats in one pass."""

    def __init__(self, formats: Sequence[TextFormat], tools: OfferedTools) -> None:
        self._formats = tuple(formats)
        self._vocabulary = _vocabulary(self._formats)
        self._names = NameSearch(tools, self._vocabulary.name_suffixes)
        self._cached_literal = _SearchCache()
        self._cached_name = _SearchCache()

    def find(self, buffer: TextBuffer, position: int) -> tuple[bool, int]:
        """Find the next opening.

        Returns:
            Whether there certainly is one; and its offset, or else the offset up to which there is none.
        """
        literal = self._cached_literal.find(self._vocabulary.literals, buffer, position)
        name = self._cached_name.find(self._names, buffer, position)
        limit = min(literal[1], name[1])
        return (literal[0] == limit or name[0] == limit), limit

    def is_undecided(self, text: str, position: int) -> bool:
        """Whether more text may turn what is at this position into a longer opening."""
        length = len(text) - position
        for literal in self._vocabulary.by_letter.get(text[position], ()):  # the longest first
            if len(literal) <= length:
                return False
            if literal.startswith(text[position:]):
                return True
        return False

    def reasoning_tag_at(self, text: str, position: int) -> str:
        """Return the reasoning tag at a position, or an empty string."""
        tag = self._vocabulary.reasoning_tag.match(text, position)
        return tag[0] if tag else ""

    def wrapper_at(self, text: str, position: int) -> tuple[str, bool]:
        """Return the wrapper or control token at a position, or an empty string; and whether it is a control token."""
        tag = self._vocabulary.wrapper.match(text, position)
        return (tag[0], tag[0] in self._vocabulary.control_tokens) if tag else ("", False)

    def formats_at(self, text: str, position: int) -> list[TextFormat]:
        """Return the formats of which a call may begin at a position, in order."""
        is_name = self._cached_name.match == position
        return [f for f in self._formats if text.startswith(f.openings, position) or (is_name and f.name_suffixes)]


class _SearchCache:
    """The last result of a search, reused while it is valid.

    Attributes:
        match: offset of the last match, or -1.
    """

    def __init__(self) -> None:
        self.match = -1
        self._certain = 0
        self._length = -1

    def find(self, search: LiteralSearch | NameSearch, buffer: TextBuffer, position: int) -> tuple[int, int]:
        # Completion counts like one more character, since it can decide what was undecided.
        length = len(buffer.text) + buffer.is_complete
        if self.match < position and (length != self._length or self.match >= 0):
            start = max(position, self._certain)
            self.match, self._certain = search.find(buffer.text, start, is_complete=buffer.is_complete)
            self._length = length
        return self.match, max(position, self._certain)


class _Vocabulary:
    """The fixed texts of a set of formats, prepared for searching."""

    def __init__(self, formats: tuple[TextFormat, ...]) -> None:
        self.control_tokens: set[str] = {token for text_format in formats for token in text_format.control_tokens}
        wrappers = {wrapper for text_format in formats for wrapper in text_format.wrappers} | self.control_tokens
        openings = {opening for text_format in formats for opening in text_format.openings}
        reasoning_tags = {*CLOSER_OF, *UNPAIRED_CLOSERS}
        self.name_suffixes: list[str] = sorted({s for text_format in formats for s in text_format.name_suffixes})
        self.wrapper: re.Pattern[str] = _compile_any(wrappers)
        self.reasoning_tag: re.Pattern[str] = _compile_any(reasoning_tags)
        self.by_letter: dict[str, list[str]] = {}
        for literal in sorted({*reasoning_tags, *wrappers, *openings}, key=len, reverse=True):
            self.by_letter.setdefault(literal[0], []).append(literal)
        self.literals: LiteralSearch = LiteralSearch(self.by_letter)


_vocabulary = lru_cache(maxsize=16)(_Vocabulary)

_NEVER: Final = re.compile(r"(?!)")


def _compile_any(literals: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches the longest of these texts; it never matches if there are none."""
    by_length = sorted(set(literals), key=lambda literal: (-len(literal), literal))
    return re.compile("|".join(map(re.escape, by_length))) if by_length else _NEVER


class LiteralSearch:
    """Finds fixed texts in text that may still grow."""

    def __init__(self, by_letter: Mapping[str, Sequence[str]]) -> None:
        """Prepare the search.

        Args:
            by_letter: the texts, grouped by their first letters.
        """
        literals = [literal for group in by_letter.values() for literal in group]
        self._pattern = _compile_any(literals)
        self._prefixes = frozenset(literal[:size] for literal in literals for size in range(1, len(literal)))
        self._first_letters = frozenset(by_letter)
        self._max_length = max(map(len, literals), default=1)

    def find(self, text: str, position: int, *, is_complete: bool) -> tuple[int, int]:
        """Find the next of these texts.

        Returns:
            Its offset, or -1 if none is certain yet; and the offset from which on more text may change the result.
        """
        match = self._pattern.search(text, position)
        if match is not None and (is_complete or match.start() + self._max_length <= len(text)):
            return match.start(), match.start()
        limit = len(text) if match is None else match.start() + 1
        undecided = len(text) if is_complete else self._find_prefix(text, position, limit)
        if match is not None and match.start() < undecided:
            return match.start(), match.start()
        return -1, undecided

    def _find_prefix(self, text: str, position: int, limit: int) -> int:
        """Return the offset of the end of the text that may become one of the literals."""
        for start in range(max(position, len(text) - self._max_length + 1), limit):
            if text[start] in self._first_letters and text[start:] in self._prefixes:
                return start
        return len(text)


class NameSearch:
    """Finds names of offered tools that a certain text follows, such as the `(` of a call in Python syntax."""

    def __init__(self, tools: OfferedTools, suffixes: Sequence[str]) -> None:
        self._tools = tools
        suffix_prefixes = {suffix[:size] for suffix in suffixes for size in range(1, len(suffix))}
        # A bounded, possessive repetition: a text that is one long word costs no more than its length.
        name = rf"(?<![\w.\\])({NAME_PATTERN[:-1]}{{0,{MAX_NAME_LENGTH}}}+)"
        self._pattern = re.compile(name + "(?:" + "|".join(map(re.escape, suffixes)) + ")") if suffixes else _NEVER
        partial_suffixes = "|".join(["", *map(re.escape, sorted(suffix_prefixes))])
        self._tail = re.compile(name + rf"\\?({partial_suffixes})\Z") if suffixes else _NEVER
        self._window = MAX_NAME_LENGTH + 1 + max(map(len, suffixes), default=0)

    def find(self, text: str, position: int, *, is_complete: bool) -> tuple[int, int]:
        """Find the next name; the result is that of `LiteralSearch.find`."""
        for match in self._pattern.finditer(text, position):
            if self._tools.is_offered(self._tools.normalize_name(match[1])):
                return match.start(), match.start()
        if is_complete:
            return -1, len(text)
        tail = self._tail.search(text, max(position, len(text) - self._window))
        if tail is None:
            return -1, len(text)
        name = tail[1].replace("\\", "")
        return -1, tail.start() if self._may_be_offered(name, is_whole=bool(tail[2])) else len(text)

    def _may_be_offered(self, name: str, *, is_whole: bool) -> bool:
        if is_whole:
            return self._tools.is_offered(self._tools.normalize_name(name))
        return self._tools.is_prefix(name)
