"""The contents of the documentation: the lists of links on the index pages are the tree of the site and of `llms.txt`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

DOCS = Path(__file__).parents[1]
INTRODUCTION = """\
> agentloop is a Python library that runs the loop of an LLM agent: call a model, run the tools that it calls, send it the
> results, repeat until it answers. Conversations hold every tool call with its outcome, executions survive the death of their
> process, and every contract has numbered laws with a test kit. The distribution is `agentloop-kernel`, the package `agentloop`.
"""


@frozen
class Entry:
    """One line of an index page.

    Attributes:
        title: the text of its link.
        page: the path of the page that it leads to, below `docs`.
        description: what follows the link.
    """

    title: str
    page: str
    description: str


@frozen
class Section:
    """A heading of an index page with the pages that are listed below it."""

    title: str
    entries: tuple[Entry, ...]


def is_index(page: str) -> bool:
    """Return whether a page lists others."""
    return Path(page).name == "index.md"


def read_sections(page: str, docs: Path = DOCS) -> Iterator[Section]:
    """Yield the sections of an index page that list pages of the documentation."""
    text = (docs / page).read_text(encoding="utf-8")
    for part in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        found = re.findall(
            r"^- \[(.+?)\]\((?!\.\./\.\.|\.\./[A-Z])([\w./-]+\.md)\)(?:: ?)?((?:.|\n  )*)", part, re.MULTILINE
        )
        entries = tuple(
            Entry(title, os.path.normpath(Path(page).parent / target), " ".join(description.split()))
            for title, target, description in found
        )
        heading = re.match(r"## (.+)", part)
        if entries:
            yield Section(heading[1] if heading else "", entries)


def toctrees(page: str, docs: Path = DOCS) -> str:
    """Return the directives that make the lists of an index page the tree of the site."""
    blocks: list[str] = []
    for section in read_sections(page, docs):
        caption = [f":caption: {section.title}"] if page == "index.md" else []
        folder = Path(page).parent
        lines = [
            f"{entry.title} <{Path(os.path.relpath(entry.page, folder)).with_suffix('')}>" for entry in section.entries
        ]
        blocks += ["", "```{toctree}", ":hidden:", *caption, "", *lines, "```"]
    return "\n".join([*blocks, ""])


def walk(page: str = "index.md") -> Iterator[str]:
    """Yield an index page and every page below it, in the order of the contents."""
    yield page
    for section in read_sections(page):
        for entry in section.entries:
            if is_index(entry.page):
                yield from walk(entry.page)
            else:
                yield entry.page


def llms_txt(url: str) -> str:
    """Return the contents for language models, as https://llmstxt.org describes them.

    Args:
        url: what the links begin with, ending with a slash.
    """
    lines = ["# agentloop", "", INTRODUCTION, f"All pages in one file: [llms-full.txt]({url}llms-full.txt)."]
    for section in read_sections("index.md"):
        lines += ["", f"## {section.title}", ""]
        for entry in section.entries:
            lines.append(_link(entry, url))
            if is_index(entry.page):
                lines += [_link(below, url) for part in read_sections(entry.page) for below in part.entries]
    return "\n".join([*lines, ""])


def _link(entry: Entry, url: str) -> str:
    page = Path(entry.page).with_suffix(".html")
    return f"- [{entry.title}]({url}{page}): {entry.description}".removesuffix(": ")


def llms_full_txt() -> str:
    """Return all pages but the generated reference, one after the other, with the programs that they show."""
    pages = [page for page in dict.fromkeys(walk()) if not page.startswith("reference/")]
    return "\n\n".join(f"<!-- docs/{page} -->\n\n{_with_programs(page)}" for page in pages)


def _with_programs(page: str) -> str:
    def program(match: re.Match[str]) -> str:
        path = ((DOCS / page).parent / match[1]).resolve()
        language = {".py": "python", ".sh": "sh"}.get(path.suffix, "")
        return f"```{language}\n{path.read_text(encoding='utf-8')}```"

    text = (DOCS / page).read_text(encoding="utf-8")
    return re.sub(r"^```\{literalinclude\} (\S+)\n(?:.*\n)*?```$", program, text, flags=re.MULTILINE)
