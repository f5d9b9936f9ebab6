"""Names of tools on the wire, where a provider refuses some characters."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache

_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")
_LETTER = re.compile(r"[a-zA-Z_]")
_MADE = re.compile(r"__[0-9a-f]{8}\Z")
_LONGEST = 64
_DIGITS = 8


@lru_cache(maxsize=4096)
def wire_name(name: str, *, begins_with_letter: bool = False) -> str:
    """Return the name under which a tool goes over the wire.

    A name of at most 64 letters, digits, underscores and dashes stays as it is. Any other is made into one, with a digest of
    the name at its end, so that different names stay different; so is a name that ends as if it had been made, since it
    could be another's. The result depends on nothing but the arguments.

    Args:
        name: the name of the tool.
        begins_with_letter: whether the provider refuses names that begin with a digit or a dash.
    """
    needs_letter = begins_with_letter and not _LETTER.match(name)
    if name and len(name) <= _LONGEST and not needs_letter and not _REFUSED.search(name) and not _MADE.search(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    readable = _REFUSED.sub("_", f"_{name}" if needs_letter else name)[: _LONGEST - _DIGITS - 2]
    return f"{readable}__{digest}"


def renamed(names: Iterable[str], *, begins_with_letter: bool = False) -> dict[str, str]:
    """Return, for the names that go by another one on the wire, that one and the name itself."""
    wires = [(wire_name(name, begins_with_letter=begins_with_letter), name) for name in names]
    return {wire: name for wire, name in wires if wire != name}
