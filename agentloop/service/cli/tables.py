"""Tables of the commands: identifiers are never broken, texts wrap at words, and what does not fit goes below its row."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import zip_longest
from typing import TypeAlias

from attrs import frozen
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from agentloop.service.cli.console import as_one_line

_GAP = 2
_INDENT = 4
_NARROWEST_TEXT = 16


class Fit(Enum):
    """How a column fits into the width of the console."""

    WHOLE = "whole"
    """A cell is never broken, so that it can be copied into a command."""
    WRAPPED = "wrapped"
    """A cell wraps at words; words are never broken."""
    CUT = "cut"
    """A cell is cut, with an ellipsis."""


@frozen
class Column:
    """A column of a table.

    Attributes:
        name: its name in the header.
        fit: how it fits into the width.
        is_number: whether its cells stand at the right.
    """

    name: str
    fit: Fit = Fit.WHOLE
    is_number: bool = False


Cell: TypeAlias = str | Text
"""A text of any origin, or one that has a style and no character that a terminal interprets."""


def print_table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table. Where a line has no room for all columns, those that wrap or are cut go below their row.

    Args:
        console: where it is printed.
        columns: the columns; those that are never broken come first.
        rows: the cells, one for each column.
    """
    for line in lay_out(console, columns, rows):
        # The terminal breaks a line that is too long, so that what is copied from it is still one line.
        console.print(line, soft_wrap=True)


def lay_out(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> list[Text]:
    """Return the lines of a table as `print_table` prints it."""
    cells = [[cell if isinstance(cell, Text) else Text(as_one_line(cell)) for cell in row] for row in rows]
    count, widths = _beside(columns, cells, console.width)
    lines = _row(console, columns[:count], _header(columns[:count]), widths)
    for row in cells:
        lines += _row(console, columns[:count], row[:count], widths)
        for column, cell in zip(columns[count:], row[count:], strict=True):
            lines += _below(console, column, cell, is_named=len(columns) > count + 1)
    return lines


def _beside(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> tuple[int, list[int]]:
    """Return how many columns have room beside each other, and their widths; all that are never broken are among them."""
    whole = sum(column.fit is Fit.WHOLE for column in columns)
    for count in range(len(columns), whole, -1):
        widths = _widths(columns[:count], rows, width)
        if widths is not None:
            return count, widths
    return whole, [max(map(_width, cells)) for cells in _columns_of(columns[:whole], rows)]


def _header(columns: Sequence[Column]) -> list[Text]:
    return [Text(column.name, "bold") for column in columns]


def _columns_of(columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> list[list[Text]]:
    return [[header, *[row[index] for row in rows]] for index, header in enumerate(_header(columns))]


def _width(cell: Text) -> int:
    return cell_len(cell.plain)


def _longest_word(cell: Text) -> int:
    return max(map(cell_len, cell.plain.split(" ")))


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> list[int] | None:
    """Return the widths of the columns beside each other; None if they have no room there."""
    natural, least = [], []
    for column, cells in zip(columns, _columns_of(columns, rows), strict=True):
        longest = max(map(_width, cells))
        natural.append(longest)
        words = map(_longest_word, cells) if column.fit is Fit.WRAPPED else ()
        least.append(longest if column.fit is Fit.WHOLE else min(longest, max([_NARROWEST_TEXT, *words])))
    spare = width - _GAP * (len(columns) - 1) - sum(least)
    if spare < 0:
        return None
    missing = [wanted - given for wanted, given in zip(natural, least, strict=True)]
    share = min(1.0, spare / max(1, sum(missing)))
    return [given + int(share * lack) for given, lack in zip(least, missing, strict=True)]


def _row(console: Console, columns: Sequence[Column], row: Sequence[Text], widths: Sequence[int]) -> list[Text]:
    fitted = [_fitted(console, *each) for each in zip(columns, row, widths, strict=True)]
    return [_line(columns, cells, widths) for cells in zip_longest(*fitted, fillvalue=Text())]


def _fitted(console: Console, column: Column, cell: Text, width: int) -> list[Text]:
    if column.fit is Fit.WRAPPED:
        return [*cell.wrap(console, max(width, _longest_word(cell)), overflow="fold")] or [Text()]
    fitted = cell.copy()
    if column.fit is Fit.CUT:
        fitted.truncate(width, overflow="ellipsis")
    return [fitted]


def _line(columns: Sequence[Column], cells: Sequence[Text], widths: Sequence[int]) -> Text:
    line = Text()
    for column, cell, width in zip(columns, cells, widths, strict=True):
        padding = " " * (width - _width(cell))
        first, second = (Text(padding), cell) if column.is_number else (cell, Text(padding))
        line = Text.assemble(line, first, second, " " * _GAP)
    line.rstrip()
    return line


def _below(console: Console, column: Column, cell: Text, *, is_named: bool) -> list[Text]:
    if not cell.plain:
        return []
    text = Text.assemble(f"{column.name}: ", cell) if is_named else cell
    lines = _fitted(console, column, text, max(_NARROWEST_TEXT, console.width - _INDENT))
    return [Text.assemble(" " * _INDENT, line) for line in lines]
