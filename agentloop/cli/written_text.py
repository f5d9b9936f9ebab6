"""The text of a model's answer while it is being written."""

from __future__ import annotations

from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from agentloop.cli.terminal_text import printable

_INDENT = " " * 5


class WrittenText:
    """Shows pieces of text as they come, dim and indented, one after the other.

    Args:
        console: where they are shown.
        symbol: the sign at the beginning.
    """

    def __init__(self, console: Console, symbol: str) -> None:
        self._console = console
        self._begin = f"  {set_cell_size(symbol, 2)} "
        self._is_open = False
        self._pieces: list[str] = []

    @property
    def last(self) -> str:
        """The text that was shown last, without the white space around it."""
        return "".join(self._pieces).strip()

    def add(self, piece: str) -> None:
        """Show one more piece."""
        if not self._is_open:
            piece = piece.lstrip()
            if not piece:
                return
            self._is_open = True
            self._pieces.clear()
            self._show(self._begin)
        self._pieces.append(piece)
        self._show(printable(piece).replace("\n", f"\n{_INDENT}"))

    def end(self) -> bool:
        """End the text, if there is any, and say whether there was."""
        was_open, self._is_open = self._is_open, False
        if was_open:
            self._console.print()
        return was_open

    def _show(self, piece: str) -> None:
        self._console.print(Text(piece, "dim"), end="", soft_wrap=True)
