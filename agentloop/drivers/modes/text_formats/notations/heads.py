"""What stands before the arguments of a call: a short sequence of fixed texts, fields and white space.

Reading fails with the first character that does not belong, so nothing is held back longer than it takes to tell.
"""

from __future__ import annotations

import re
from typing import Final

from attrs import field, frozen

from agentloop.drivers.modes.text_formats.source import Source, Steps, after_space, literal_at, run_at

LONGEST_FIELD: Final = 300


@frozen
class Field:
    """A run of characters that is kept under a name.

    Attributes:
        name: the name.
        characters: which characters, as a class of a regular expression.
    """

    name: str
    characters: str = r"[\w.:-]"
    run: re.Pattern[str] = field(init=False, repr=False)

    @run.default
    def _compile(self) -> re.Pattern[str]:
        return re.compile(self.characters + "*+")


@frozen
class Space:
    """White space, or none."""


@frozen(init=False)
class Maybe:
    """A sequence that may be missing as a whole."""

    parts: tuple[Part, ...]

    def __init__(self, *parts: Part) -> None:
        self.__attrs_init__(parts)


Part = str | Field | Space | Maybe

SPACE: Final = Space()
IN_TAG: Final = r"[^<>\n]"


def read_head(source: Source, at: int, parts: tuple[Part, ...], fields: dict[str, str]) -> Steps[int]:
    """Read a sequence and fill in its fields; return the place behind it, or -1 when something else stands here."""
    for part in parts:
        if isinstance(part, str):
            literal = yield from literal_at(source, at, (part,))
            if not literal:
                return -1
            at += len(literal)
        elif isinstance(part, Space):
            at = yield from after_space(source, at)
        elif isinstance(part, Field):
            text = yield from run_at(source, at, part.run, LONGEST_FIELD)
            if not text:
                return -1
            fields[part.name] = text
            at += len(text)
        else:
            inner = yield from read_head(source, at, part.parts, fields)
            at = max(at, inner)
    return at
