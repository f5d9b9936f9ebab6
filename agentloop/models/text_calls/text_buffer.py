"""Text that may still grow, and resumable primitives that match parts of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")

Resumable: TypeAlias = Generator[None, None, T]
"""A computation that yields whenever it needs more text and returns its result."""


class TextBuffer:
    """A text that arrives in pieces.

    Read `text` anew after every `yield` and hold no other reference to it meanwhile: CPython appends to a string in place
    only while nothing else refers to it, which keeps the cost of many small pieces linear.

    Attributes:
        text: everything received so far.
        is_complete: whether no more text follows.
        unclosed_quotes: for each quotation mark, the position from which the complete text has no closing one. Readers share
            it so that none of them searches for the same missing mark again.
    """

    def __init__(self, text: str = "", *, is_complete: bool = False) -> None:
        self.text: str = text
        self.is_complete: bool = is_complete
        self.unclosed_quotes: dict[str, int] = {}

    def append(self, piece: str) -> None:
        """Add a piece at the end."""
        # The attribute is emptied first so that the local variable is the only reference and `+=` works in place.
        text, self.text = self.text, ""
        text += piece
        self.text = text

    def complete(self) -> None:
        """Mark the text as complete."""
        self.is_complete = True


def skip_space(buffer: TextBuffer, position: int) -> Resumable[int]:
    """Return the position of the next character that is not white space, or the end of the text."""
    while True:
        position = _match_end(_SPACE, buffer.text, position)
        if position < len(buffer.text) or buffer.is_complete:
            return position
        yield


def match_literal(buffer: TextBuffer, position: int, literals: tuple[str, ...]) -> Resumable[str]:
    """Return the first of these literals that occurs at the position, or an empty string."""
    for literal in literals:
        while not buffer.text.startswith(literal, position):
            if buffer.is_complete or not literal.startswith(buffer.text[position : position + len(literal)]):
                break
            yield
        else:
            return literal
    return ""


def find_literal(buffer: TextBuffer, position: int, literal: str, max_length: int | None = None) -> Resumable[int]:
    """Return the position of the next occurrence of a literal.

    Args:
        buffer: the text.
        position: where the search starts.
        literal: the text to search for.
        max_length: how many characters are searched; None for no limit.

    Returns:
        The position, or -1 if the literal does not occur before the end of the text or within `max_length` characters.
    """
    start = position
    while True:
        limit = len(buffer.text) if max_length is None else start + max_length
        match = buffer.text.find(literal, position, limit)
        if match >= 0 or buffer.is_complete or len(buffer.text) >= limit != len(buffer.text):
            return match
        position = max(position, len(buffer.text) - len(literal) + 1)
        yield


def find_pattern(
    buffer: TextBuffer, position: int, pattern: re.Pattern[str], max_length: int
) -> Resumable[tuple[int, str]]:
    """Return the position and the text of the next match of a pattern.

    Args:
        buffer: the text.
        position: where the search starts.
        pattern: matches at least one character; the beginning of a match never is a match itself.
        max_length: characters that decide whether there is a match: those of the longest, and those that it looks ahead.

    Returns:
        The position and the matched text, or -1 and an empty string if there is no match before the end of the text.
    """
    while True:
        match = pattern.search(buffer.text, position)
        if match is not None:
            return match.start(), match[0]
        if buffer.is_complete:
            return -1, ""
        position = max(position, len(buffer.text) - max_length + 1)
        yield


def match_run(buffer: TextBuffer, position: int, pattern: re.Pattern[str], max_length: int) -> Resumable[str]:
    """Return the run of characters at the position that a pattern matches.

    Args:
        buffer: the text.
        position: where the run begins.
        pattern: matches any number of the accepted characters.
        max_length: characters.

    Returns:
        The run; empty if there is none or it is longer than `max_length`.
    """
    while True:
        end = _match_end(pattern, buffer.text, position, position + max_length + 1)
        if end - position > max_length:
            return ""
        if end < len(buffer.text) or buffer.is_complete:
            return buffer.text[position:end]
        yield


_SPACE: Final = re.compile(r"\s*")


def _match_end(pattern: re.Pattern[str], text: str, position: int, limit: int = sys.maxsize) -> int:
    """Return where a match ends. The match object does not outlive this call, since it would refer to the text."""
    match = pattern.match(text, position, limit)
    return match.end() if match else position
