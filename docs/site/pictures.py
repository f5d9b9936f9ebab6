"""Pictures: a block of Mermaid becomes a picture in the browser, by a script that is part of the site."""

from __future__ import annotations

from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

SCRIPT = Path(__file__).parents[2] / ".venv" / "mermaid.min.js"
"""The script that draws, which `make docs` takes from npm; without it, a picture is shown as its text."""


class Picture(SphinxDirective):
    """A block of Mermaid."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the block for HTML, and its text for everything else."""
        text = "\n".join(self.content)
        drawn = nodes.raw("", f'<pre class="mermaid">{escape(text)}</pre>', format="html")
        return [drawn]


def scripts() -> list[str]:
    """Return the files to copy into the site so that it needs no network."""
    return [str(SCRIPT)] if SCRIPT.is_file() and SCRIPT.stat().st_size else []
