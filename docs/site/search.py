"""What the search of the site knows of each page besides the index of Sphinx: its group, its description and its text.

The page of the search loads it as a script, so that the results have their texts where nothing can be fetched, as from `file://`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path

import contents
from docutils import nodes
from sphinx.application import Sphinx

SCRIPT = "pages.js"
_RANKS = {"Start": 0, "Guides": 0, "Explanation": 1, "Contracts": 2, "Reference": 3}
"""The sections of the contents, with the order in which a reader wants their pages."""
_COMPARISONS = "coming-from/"
"""The folder of pages that name everything and explain little; a reader finds them by their titles."""


def describe(app: Sphinx) -> dict[str, dict[str, object]]:
    """Return what is known of each page, by its name.

    Args:
        app: the application, which has read the pages.
    """
    listed = {name: (group, text) for name, group, text in _listed(Path(app.srcdir))}
    described: dict[str, dict[str, object]] = {}
    for name in sorted(app.env.all_docs):
        group, text = listed.get(name, ("", ""))
        rank = 1 if name.startswith(_COMPARISONS) else _RANKS.get(group, len(_RANKS))
        # Most of the reference are docstrings; the index of Sphinx finds their names.
        page = "" if group == "Reference" and name.startswith("reference/") else _as_html(app.env.get_doctree(name))
        described[name] = {"rank": rank, "description": text, "page": page}
    return described


def write(app: Sphinx) -> None:
    """Write the script."""
    data = json.dumps(describe(app), ensure_ascii=False, separators=(",", ":"))
    target = Path(app.outdir) / "_static" / SCRIPT
    target.write_text(f"const PAGES = {data};\n", encoding="utf-8")


def add_scripts(app: Sphinx, page: str, *_: object) -> None:
    """Load the scripts of the search on its page only."""
    if page == "search":
        app.add_js_file(SCRIPT)
        app.add_js_file("search.js")


def _listed(docs: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each page of the contents with its group and its description."""
    for section in contents.read_sections("index.md", docs):
        for entry in section.entries:
            yield _name(entry.page), section.title, f"{entry.title}: {entry.description}"
            if contents.is_index(entry.page):
                for part in contents.read_sections(entry.page, docs):
                    for below in part.entries:
                        yield _name(below.page), section.title, f"{below.title}: {below.description}"


def _name(page: str) -> str:
    return str(Path(page).with_suffix(""))


def _as_html(page: nodes.Node) -> str:
    """Return the text of a page in the least HTML in which the search finds its sections."""
    return f'<div role="main">{"".join(_parts(page))}</div>'


def _parts(node: nodes.Node) -> Iterator[str]:
    for child in node.children:
        if isinstance(child, nodes.section):
            # A page can refer to a section by several names.
            for name in child["ids"][1:]:
                yield f'<i id="{escape(name)}"></i>'
            yield f'<section id="{escape(child["ids"][0])}">{"".join(_parts(child))}</section>'
        elif not isinstance(child, nodes.title | nodes.comment | nodes.raw):
            yield f"{escape(child.astext(), quote=False)}\n"
