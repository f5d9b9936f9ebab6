"""Long values in a table of their own, each once for an execution however often it is recorded.

What is cut out of a body are whole string literals of its JSON, so the same result has the same cut in every record that
holds it. Putting the cuts back gives the body byte for byte.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from attrs import frozen

from agentloop.values.json_text import format_json, parse_json

_LITERAL = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_PART = 8
"""A literal is long when it is longer than such a part of what a body may have in its row."""
_WHOLE = -1
"""The place of the cut that is all the rest."""


@frozen
class Spilled:
    """A body in parts.

    Attributes:
        rest: what stands in the row.
        cuts: what was cut out: places in the rest with digests, as JSON; empty when nothing was.
        spills: what was cut out, by its digest.
    """

    rest: str
    cuts: str
    spills: Mapping[str, str]


def spilled(body: str, most: int) -> Spilled:
    """Cut the long literals out of a body, and the rest too if it still is long.

    Args:
        body: the text of a JSON object; any other text comes back the same as well.
        most: how many characters may stay; a body of no more stays whole.
    """
    if len(body) <= most:
        return Spilled(body, "", {})
    spills: dict[str, str] = {}
    cuts: list[tuple[int, str]] = []
    kept: list[str] = []
    length = end = 0
    for literal in _LITERAL.finditer(body):
        if literal.end() - literal.start() > most // _PART:
            kept.append(body[end : literal.start()])
            length += literal.start() - end
            end = literal.end()
            cuts.append((length, _put(literal[0], spills)))
    rest = "".join([*kept, body[end:]])
    if len(rest) > most:
        cuts.insert(0, (_WHOLE, _put(rest, spills)))
        rest = ""
    return Spilled(rest, format_json(cuts).decode(), spills)


def whole(rest: str, cuts: str, spills: Mapping[str, str]) -> str:
    """Put a body together again.

    Raises:
        KeyError: when a spill is missing.
        ValueError: when the cuts cannot be read or are not those of the rest.
    """
    if not cuts:
        return rest
    parts: list[str] = []
    begin = 0
    for place, digest in parse_json(cuts):
        if place == _WHOLE:
            if rest:
                raise ValueError("there is more than was written")
            rest = spills[digest]
        else:
            parts += (rest[begin:place], spills[digest])
            begin = place
    return "".join([*parts, rest[begin:]])


def digest_of(data: str) -> str:
    """Return the digest that a spill is known by: SHA-256, in hexadecimal."""
    return hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest()


def _put(data: str, spills: dict[str, str]) -> str:
    digest = digest_of(data)
    spills[digest] = data
    return digest
