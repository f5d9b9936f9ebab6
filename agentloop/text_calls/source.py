"""Text that may still grow, and the small steps in which it is read."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""Reading that stops wherever the text ends for now, and goes on when there is more; what it returns is the result."""

_SPACE: Final = re.compile(r"\s*")


class Source:
    """A text that arrives in pieces.

    Readers look `text` up each time and never keep it while they wait: as long as nobody else holds it, it grows in place.

    Attributes:
        text: all that has arrived.
        ended: whether that is all there will be.
        unclosed: by quotation mark, from where on the text has none any more; filled in when the text has ended.
    """

    def __init__(self, text: str = "", *, ended: bool = False) -> None:
        self.text: str = text
        self.ended: bool = ended
        self.unclosed: dict[str, int] = {}

    def grow(self, piece: str) -> None:
        """Add a piece at the end."""
        text, self.text = self.text, ""
        text += piece
        self.text = text

    def end(self) -> None:
        """Say that nothing more will come."""
        self.ended = True


def _run_end(run: re.Pattern[str], text: str, at: int, end: int = sys.maxsize) -> int:
    """Return where a run ends; no match is kept, since it would hold the text and so keep it from growing in place."""
    found = run.match(text, at, end)
    return found.end() if found else at


def after_space(source: Source, at: int) -> Steps[int]:
    """Return the place of the next character that is no white space, or the end of the text."""
    while True:
        at = _run_end(_SPACE, source.text, at)
        if at < len(source.text) or source.ended:
            return at
        yield


def literal_at(source: Source, at: int, literals: tuple[str, ...]) -> Steps[str]:
    """Return the first of these that stands here, or the empty text when none does."""
    for literal in literals:
        while not source.text.startswith(literal, at):
            if source.ended or not literal.startswith(source.text[at : at + len(literal)]):
                break
            yield
        else:
            return literal
    return ""


def find(source: Source, at: int, literal: str, most: int | None = None) -> Steps[int]:
    """Return where this literal stands next, or -1 when the text ends without it or it is not within `most` characters."""
    start = at
    while True:
        last = len(source.text) if most is None else start + most
        found = source.text.find(literal, at, last)
        if found >= 0 or source.ended or len(source.text) >= last != len(source.text):
            return found
        at = max(at, len(source.text) - len(literal) + 1)
        yield


def run_at(source: Source, at: int, run: re.Pattern[str], most: int) -> Steps[str]:
    """Return the run of certain characters that stands here; empty when there is none or it is longer than `most`.

    Args:
        source: the text.
        at: where the run begins.
        run: matches any number of these characters.
        most: characters.
    """
    while True:
        end = _run_end(run, source.text, at, at + most + 1)
        if end - at > most:
            return ""
        if end < len(source.text) or source.ended:
            return source.text[at:end]
        yield
