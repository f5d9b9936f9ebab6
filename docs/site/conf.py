"""The settings of Sphinx: Markdown pages, the reference from docstrings, and nothing that a browser loads from elsewhere."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

SITE = Path(__file__).parent
ROOT = SITE.parents[1]
sys.path[:0] = [str(SITE), str(ROOT)]

import contents  # noqa: E402
import pictures  # noqa: E402
import search  # noqa: E402
from reference import PackageReference  # noqa: E402

import agentloop  # noqa: E402  # found by the line above

REPOSITORY = os.environ.get("DOCS_REPOSITORY", "")
"""The address of the files of the repository, without a slash at its end; without one, links to them are text."""
SCRIPTS = pictures.scripts()

project = "agentloop"
author = "the authors of agentloop"
copyright = author  # noqa: A001  # the name that Sphinx reads
version = release = agentloop.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["site"]
root_doc = "index"
suppress_warnings = ["misc.highlighting_failure"]  # examples of docstrings may have a `…`; blocks of pages run as tests

html_theme = "furo"
html_title = "agentloop"
html_static_path = ["static", *SCRIPTS]
html_css_files = ["site.css"]
html_js_files = [*(Path(script).name for script in SCRIPTS), "pictures.js"]
html_search_scorer = str(SITE / "scorer.js")
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_fence_as_directive = ["mermaid"]

default_role = "code"
add_module_names = False
python_use_unqualified_type_names = True
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_use_rtype = False
napoleon_use_ivar = True


def prepare(app: Sphinx, page: str, source: list[str]) -> None:
    """Make links that leave the documentation links to the repository or text, and lists of pages the tree of the site."""

    def absolute(match: re.Match[str]) -> str:
        path = os.path.relpath(os.path.normpath((ROOT / "docs" / page).parent / match[2]), ROOT)
        if REPOSITORY:
            return f"[{match[1]}]({REPOSITORY}/{path})"
        return match[1] if path in match[1] else f"{match[1]} (`{path}`)"

    outside = "../" * (page.count("/") + 1)
    source[0] = re.sub(rf"\[([^]\n]+)\]\(({re.escape(outside)}[^)]*)\)", absolute, source[0])
    if contents.is_index(f"{page}.md"):
        source[0] += contents.toctrees(f"{page}.md", Path(app.srcdir))


SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)(?=(\w?))")


def as_restructured_text(_app: Sphinx, what: str, *described: Any) -> None:
    """Translate code in a docstring, which is written as in Markdown: spans, and indented examples outside of `Args:` and the like."""
    lines: list[str] = described[-1]
    marked: list[str] = []
    in_section = in_code = False
    for line in lines:
        if line and not line.startswith(" "):
            in_section, in_code = SECTION.match(line) is not None, False
        if line.startswith("    ") and not in_section and not in_code and marked and not marked[-1]:
            marked += [".. code-block:: python", ""]
            in_code = True
        marked.append(line if in_code else SPAN.sub(lambda span: f"``{span[1]}``" + ("\\ " if span[2] else ""), line))
    # Text before a colon in the first line of a property would be read as its type.
    lines[:] = ["", *marked] if what in {"attribute", "data", "property"} else marked


def hide_factories(_app: Sphinx, *described: Any) -> tuple[str, str | None] | None:
    """Show a default that is made anew for each object as `…`."""
    signature, returned = described[-2:]
    return (re.sub(r"= ?NOTHING\b", "= …", signature), returned) if signature else None


def finish(app: Sphinx, error: Exception | None) -> None:
    """Write the pages once more, for the search and for language models."""
    if error is None and app.builder.format == "html":
        search.write(app)
        Path(app.outdir, "llms.txt").write_text(contents.llms_txt(""), encoding="utf-8")
        Path(app.outdir, "llms-full.txt").write_text(contents.llms_full_txt(), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what this project adds to Sphinx."""
    app.add_directive("package-reference", PackageReference)
    app.add_directive("mermaid", pictures.Picture)
    app.connect("source-read", prepare)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)  # before the sections are read
    app.connect("autodoc-process-signature", hide_factories)
    app.connect("html-page-context", search.add_scripts)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
