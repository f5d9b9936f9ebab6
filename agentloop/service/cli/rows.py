"""Text as rows of a terminal, so that a command knows what of it a person can see at once."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

MIN_WIDTH = 20
"""The width in columns for which rows are made where a terminal is narrower, or says that it has no width."""
_FIRST_PICTURE = 0x1F000  # many of them are wide although Unicode calls them narrow


def rows_of(line: str, width: int, indent: str, *, at_words: bool = False) -> list[str]:
    """Cut a line into rows that a terminal shows in one row each.

    Terminals disagree about the width of some characters. Each character counts with the largest, so that a row never wraps.

    Args:
        line: the line, without characters that a terminal would interpret.
        width: the columns of the terminal; the last one stays free, at which some terminals wrap early.
        indent: what every row but the first begins with.
        at_words: whether rows end after a space where they have one, as prose does.
    """
    columns = max(width, MIN_WIDTH) - 1
    rows, row, left = list[str](), list[str](), columns
    for char in line:
        cells = _cells(char)
        if cells > left:
            end = _end_of_words(row) if at_words else len(row)
            rows.append("".join(row[:end]))
            row = [indent, *row[end:]]
            left = columns - len(indent) - sum(map(_cells, row[1:]))
        row.append(char)
        left -= cells
    return [*rows, "".join(row)]


def _end_of_words(row: Sequence[str]) -> int:
    """Return the position after the last space of a row; its length without one after the first half."""
    spaces = [index + 1 for index in range(len(row) // 2, len(row)) if row[index] == " "]
    return spaces[-1] if spaces else len(row)


@lru_cache(maxsize=4096)
def _cells(char: str) -> int:
    if char.isascii():
        return 1
    is_wide = ord(char) >= _FIRST_PICTURE or unicodedata.east_asian_width(char) in {"W", "F", "A"}
    return 2 if is_wide else 1


def screens_of(rows: Iterable[str], height: int) -> Iterator[list[str]]:
    """Yield the rows in screens of a height, at least one row each; nothing without rows."""
    screen: list[str] = []
    for row in rows:
        if len(screen) >= max(height, 1):
            yield screen
            screen = []
        screen.append(row)
    if screen:
        yield screen


def drop_typed_ahead() -> None:
    """Forget what was typed before now and is not read yet: it answers no question that is asked from now on."""
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):  # a stream of a program, which no keyboard fills
        return
    if not os.isatty(descriptor):
        return
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  # Windows has no termios, and other systems have no msvcrt

        while msvcrt.kbhit():
            msvcrt.getwch()
    else:
        import termios  # noqa: PLC0415

        termios.tcflush(descriptor, termios.TCIFLUSH)
