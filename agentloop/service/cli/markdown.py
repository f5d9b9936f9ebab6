"""Answers on a terminal: Markdown is rendered there, block by block as it arrives; everywhere else texts stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment, Segments

from agentloop.service.cli.console import StreamedText, Symbols, as_printable

if TYPE_CHECKING:
    from rich.markdown import Markdown


def renders_markdown(console: Console) -> bool:
    """Return whether texts of models are rendered on this console."""
    return console.is_terminal and not console.is_dumb_terminal


def print_answer(console: Console, text: str) -> None:
    """Print a text of a model on a terminal."""
    blocks = MarkdownBlocks(console)
    blocks.add(text.strip("\n"))
    blocks.end()


def streamed_markdown(console: Console, *, indent: int = 0, style: str = "") -> StreamedText:
    """Return a streamed text that prints each block of its Markdown as soon as the block is complete."""
    blocks = MarkdownBlocks(console, indent=indent, style=style)
    return StreamedText(blocks.add, end_line=blocks.end)


def indented_text(console: Console, symbols: Symbols) -> StreamedText:
    """Return the streamed text among the lines of a progress: dimmed, and rendered on a terminal."""
    if renders_markdown(console):
        return streamed_markdown(console, indent=5, style="dim")
    return StreamedText.indented(console, symbols.note)


class MarkdownBlocks:
    """Prints a text that arrives in chunks, rendered block by block: a paragraph, a list, a table, a piece of code.

    A text that begins as JSON does is printed as it is.

    Args:
        console: where it is printed.
        indent: the number of columns before each line.
        style: the style of the text.
    """

    def __init__(self, console: Console, *, indent: int = 0, style: str = "") -> None:
        self._console = console
        self._indent = indent
        self._style = style
        self._reset()

    def _reset(self) -> None:
        self._open = ""
        self._looked_at = 0
        self._has_printed = False

    def add(self, chunk: str) -> None:
        """Take the next chunk, and print the blocks that it completes."""
        self._open += chunk
        # A long block is not read again for each of its lines.
        if "\n" in chunk and len(self._open) > self._looked_at * 1.1 and not self._is_json():
            self._print_complete()
            self._looked_at = len(self._open)

    def end(self) -> None:
        """Print what is left; the next chunk begins another text."""
        if self._is_json():
            self._console.print(as_printable(self._open), soft_wrap=True, style=self._style)
        elif self._open.strip():
            self._print(self._open)
        self._reset()

    def _is_json(self) -> bool:
        return not self._has_printed and self._open.lstrip()[:1] in {"{", "["}

    def _print_complete(self) -> None:
        starts = [token.map[0] for token in _parse(self._open).parsed if token.map and not token.level]
        if starts and starts[-1] > 0:
            lines = self._open.split("\n")
            self._print("\n".join(lines[: starts[-1]]))
            self._open = "\n".join(lines[starts[-1] :])

    def _print(self, text: str) -> None:
        if self._has_printed:
            self._console.print()
        self._has_printed = True
        margin = Segment(" " * self._indent)
        options = self._console.options.update_width(max(1, self._console.width - self._indent))
        style = self._console.get_style(self._style) if self._style else None
        for line in _without_margins(self._console.render_lines(_parse(text), options, style=style, pad=False)):
            self._console.print(Segments([margin, *_without_end_spaces(line), Segment.line()]), end="")


def _without_end_spaces(line: Sequence[Segment]) -> Sequence[Segment]:
    """Return a line without the spaces that fill it up to the edge of the terminal."""
    filled = [index for index, segment in enumerate(line) if segment.text.strip()]
    if not filled:
        return ()
    last = line[filled[-1]]
    return [*line[: filled[-1]], Segment(last.text.rstrip(), last.style, last.control)]


def _without_margins(lines: Sequence[list[Segment]]) -> Sequence[list[Segment]]:
    """Return lines without the empty ones at their start and end."""
    filled = [index for index, line in enumerate(lines) if any(segment.text.strip() for segment in line)]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def _parse(text: str) -> Markdown:
    """Parse Markdown so that every word of it is shown: tags are text, addresses stand beside their links, lines stay lines."""
    # Loaded with the first answer only: they take longer than most commands.
    from markdown_it import MarkdownIt  # noqa: PLC0415
    from rich.markdown import Markdown  # noqa: PLC0415

    parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table").disable("image")
    # A code of a name, such as &nbsp;, could hide what a terminal would interpret.
    parser.disable("entity")
    document = Markdown("", hyperlinks=False, code_theme="ansi_dark")
    document.parsed = parser.parse(as_printable(text))
    for token in document.parsed:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    return document
