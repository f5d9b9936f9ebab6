"""The text of a page in HTML; the only module that imports lxml.

The parser of lxml reports elements one after the other, without building a tree, so that the time is proportional to the page: a
tree as browsers build it can be a thousand times larger than a hostile page.
"""

from __future__ import annotations

import re
from typing import Any

from lxml import etree  # type: ignore[import-untyped]  # lxml has no types

from agentloop.errors import ToolFailed

_MAX_DEPTH = 500  # of elements; the parser looks for the beginning of each that ends among all that are open
_PIECE = 16_384
_SKIPPED = frozenset(
    re.findall(
        r"\w+",
        "script style noscript template svg math iframe object embed canvas audio video select datalist head",
    )
)
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "address article aside blockquote body br center dd details dialog div dl dt fieldset figcaption figure footer form h1 "
        "h2 h3 h4 h5 h6 header hr legend li main nav ol option p pre section summary table tbody tfoot thead tr ul",
    )
)
_PREFIXES = {"li": "- ", **{f"h{level}": f"{'#' * level} " for level in range(1, 7)}}
_MARKS = frozenset(_PREFIXES.values())
_CELLS = frozenset({"td", "th"})
_HIDDEN = re.compile(r"display\s{0,9}:\s{0,9}none|visibility\s{0,9}:\s{0,9}hidden", re.IGNORECASE)
_SPACES = re.compile(r"[ \t\r\n\f\xa0]+")
_MAX_LINK = 2_000


def html_to_text(page: str, *, links: bool = False) -> tuple[str, str]:
    """Return the title and the text of a page, in lines, with headings and lists marked as in Markdown.

    Scripts, styles and elements that a reader cannot see are left out.

    Args:
        page: the page.
        links: whether the addresses of links are shown, as in Markdown.

    Raises:
        ToolFailed: elements are nested more deeply than a page needs.
    """
    target = _TextTarget(links=links)
    parser = etree.HTMLParser(target=target, encoding="utf-8", recover=True, no_network=True, huge_tree=False)
    data = page.encode("utf-8", "replace")
    for start in range(0, len(data), _PIECE):
        parser.feed(data[start : start + _PIECE])
        # Raised here: what a target raises is only seen after the whole piece.
        if target.depth > _MAX_DEPTH:
            raise ToolFailed(f"the page has more than {_MAX_DEPTH} elements inside of each other")
    if data:
        parser.close()
    return target.title, target.text


class _TextTarget:
    """Receives the elements of a page in order, and collects lines.

    Args:
        links: whether the addresses of links are shown.
    """

    def __init__(self, *, links: bool) -> None:
        self.depth = 0
        self._links = links
        self._skipped = 0  # the depth inside of an element that is left out
        self._preformatted = 0
        self._in_title = False
        self._title: list[str] = []
        self._lines: list[str] = []
        self._line: list[str] = []
        self._hrefs: list[str] = []

    # --- what the parser calls ----------------------------------------------------------------------------------

    def start(self, tag: str, attributes: Any) -> None:
        """An element begins."""
        self.depth += 1
        if tag == "title" and not self._title:
            self._in_title = True
        if self._skipped or tag in _SKIPPED or _is_hidden(attributes):
            self._skipped += 1
            return
        if tag in _BLOCKS:
            # An item of a list often begins with a paragraph; its mark belongs to that.
            mark = "".join(self._line) if self._line and self._line[0] in _MARKS else ""
            self._end_line()
            self._line.append(_PREFIXES.get(tag) or (mark if mark in _MARKS else ""))
        elif tag in _CELLS and any(self._line):
            self._line.append(" | ")
        elif tag == "img" and (alternative := attributes.get("alt", "").strip()):
            self._line.append(f"[{alternative}]")
        elif tag == "a" and self._links:
            self._hrefs.append(attributes.get("href", "").strip()[:_MAX_LINK])
            self._line.append("[" if self._hrefs[-1] else "")
        self._preformatted += tag == "pre"

    def end(self, tag: str) -> None:
        """An element ends."""
        self.depth -= 1
        if tag == "title":
            self._in_title = False
        if self._skipped:
            self._skipped -= 1
            return
        if tag in _BLOCKS and tag != "br":
            self._end_line()
        self._preformatted -= tag == "pre"
        if tag == "a" and self._hrefs and (href := self._hrefs.pop()):
            self._line.append(f"]({href})")

    def data(self, text: str) -> None:
        """A piece of text."""
        if self._in_title:
            self._title.append(text)
        elif not self._skipped and self._preformatted:
            first, *others = text.split("\n")
            self._line.append(first)
            for line in others:
                self._end_line()
                self._line.append(line)
        elif not self._skipped:
            self._line.append(_SPACES.sub(" ", text))

    def comment(self, text: str) -> None:
        """A comment, which is left out."""

    def close(self) -> None:
        """The page ends."""
        self._end_line()

    # --- the result ---------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """The title, in one line."""
        return " ".join("".join(self._title).split())

    @property
    def text(self) -> str:
        """The lines."""
        return "\n".join(self._lines)

    def _end_line(self) -> None:
        line = "".join(self._line)
        line = line.rstrip() if self._preformatted else _SPACES.sub(" ", line).strip()
        self._line.clear()
        if line and f"{line} " not in _MARKS:
            self._lines.append(line)


def _is_hidden(attributes: Any) -> bool:
    style = attributes.get("style")
    return (
        "hidden" in attributes
        or attributes.get("aria-hidden") == "true"
        or (style is not None and _HIDDEN.search(style) is not None)
    )
