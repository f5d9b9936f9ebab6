"""What stands before the arguments of a call: a short sequence of fixed texts, fields and white space.

Reading fails with the first character that does not belong, so nothing is held back longer than it takes to tell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from agentloop.text_calls.literal_reader import LiteralReader
from agentloop.text_calls.literals import JSON, PYTHON, Dialect, ReadArguments, ReadObject
from agentloop.text_calls.openings import LONGEST_NAME, NAME
from agentloop.text_calls.reading import Draft
from agentloop.text_calls.source import Source, Steps, after_space, literal_at, run_at

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


ESCAPED_NAME: Final = "escaped underscore"

_NAME: Final = re.compile(NAME)


def read_value(source: Source, at: int, dialect: Dialect = JSON) -> Steps[LiteralReader]:
    """Read the container that begins here; the reader says what came of it."""
    reader = LiteralReader(at, dialect, source.unclosed)
    while not reader.advance(source.text, ended=source.ended):
        yield
    return reader


def name_at(source: Source, at: int) -> Steps[str]:
    """Return the name that stands here, as it is written; empty when none does or it is too long for one."""
    while True:
        found = _NAME.match(source.text, at, at + LONGEST_NAME + 1)
        if found is None:
            return ""
        size = found.end() - at
        if size > LONGEST_NAME:
            return ""
        rest = source.text[found.end() : found.end() + 2]
        if source.ended or (rest and rest != "\\"):
            return found[0]
        del found, rest  # what holds the text keeps it from growing in place
        yield


def python_call(source: Source, at: int, name: str) -> Steps[Draft | LiteralReader]:
    """Read a call in Python's notation whose name stands here; the reader says why when it is none."""
    reader = yield from read_value(source, at + len(name), PYTHON)
    if not isinstance(reader.value, ReadArguments):
        return reader
    repairs = reader.repairs(at, reader.at)
    if "\\" in name:
        repairs = (ESCAPED_NAME, *(repair for repair in repairs if repair != ESCAPED_NAME))
    return Draft(
        name, reader.value, at, reader.at, repairs=repairs, positional=tuple(reader.value.positional), is_python=True
    )


def draft_of(
    name: str, node: Mapping[str, object], reader: LiteralReader, source: Source, span: tuple[int, int]
) -> Draft:
    """Return the call with these arguments, an object that a reader has read.

    Args:
        name: the tool's name.
        node: the arguments.
        reader: what read them.
        source: the text.
        span: where the call begins and ends.
    """
    repairs = reader.repairs(*span)
    raw = ""
    if isinstance(node, ReadObject) and not repairs:
        raw = source.text[node.start : node.end]
    return Draft(name, node, *span, raw=raw, repairs=repairs)
