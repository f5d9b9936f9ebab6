"""Pages that show traces: the built viewer with a trace embedded, in one file that needs no network."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

from agentloop.errors import ConfigurationError
from agentloop.service.trace.document import Trace, TraceComparison, TracePage
from agentloop.values.json import format_json, replace_lone_surrogates
from agentloop.values.secrets import open_private

VIEWER = Path(__file__).with_name("viewer.html")
"""The built viewer. Clones and installations have it; after a change of `viewer/src`, `make viewer` builds it again."""
_ROOT = Path(__file__).parents[3]

_SLOT = re.compile(r'(<script type="application/json" id="trace-data">)null(</script>)')
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)"')
# Inside of a script element, `<` could end it or begin a comment; as an escape it is the same JSON.
_ESCAPES = ((b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))  # fmt: skip


def load_viewer() -> str:
    """Return the built viewer, an HTML document without a trace.

    Raises:
        ConfigurationError: it is not there.
    """
    try:
        return VIEWER.read_text(encoding="utf-8")
    except FileNotFoundError:
        is_clone = (_ROOT / "viewer" / "src").is_dir()
        raise ConfigurationError(
            "the trace viewer is not built in this clone: run `git checkout agentloop/service/trace/viewer.html`, or `make viewer`, which "
            "needs node and npm; `agentloop runs show` shows an execution without it"
            if is_clone
            else f"the file {VIEWER} of the trace viewer is missing: install agentloop-kernel again; `agentloop runs show` shows "
            "an execution without it"
        ) from None


def render_trace_page(page: TracePage, viewer: str | None = None) -> str:
    """Return a page as one HTML document: the viewer, with its data embedded so that nothing in them is markup or code.

    Args:
        page: what the page shows.
        viewer: the HTML document of the viewer; by default the built one.

    Raises:
        ConfigurationError: the viewer is missing, or has no single place for the data.
    """
    data = replace_lone_surrogates(format_json(page))
    for character, escape in _ESCAPES:
        data = data.replace(character, escape)
    document, count = _SLOT.subn(lambda slot: f"{slot[1]}{data.decode()}{slot[2]}", viewer or load_viewer())
    if count != 1:
        raise ConfigurationError(
            f"the viewer has {count} places for a trace instead of one; build it again: make viewer"
        )
    return document


def write_trace_page(
    path: str | os.PathLike[str], trace: Trace, compare: TraceComparison | None = None, viewer: str | None = None
) -> None:
    """Write a page that shows a trace to a file, which only its owner can read: it holds prompts and results.

    Args:
        path: the file; it is replaced if it exists, and keeps its mode then.
        trace: the trace.
        compare: a second trace to show beside it; see `compare_traces`.
        viewer: as for `render_trace_page`.

    Raises:
        ConfigurationError: the viewer is missing.
        OSError: the file cannot be written.
    """
    document = render_trace_page({"trace": trace, "compare": compare, "served": None}, viewer)
    with open(path, "w", encoding="utf-8", opener=open_private) as file:  # Path.open has no opener
        file.write(document)


def security_policy(viewer: str) -> str:
    """Return the content security policy that the viewer declares for itself, for the header of a page that is served.

    Raises:
        ConfigurationError: it declares none.
    """
    found = _POLICY.search(viewer)
    if found is None:
        raise ConfigurationError("the viewer declares no content security policy; build it again: make viewer")
    return html.unescape(found[1])
