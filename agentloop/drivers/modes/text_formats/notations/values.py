"""What the notations share: reading one value, one name, and one call in Python's notation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from agentloop.drivers.modes.text_formats.draft import Draft
from agentloop.drivers.modes.text_formats.literals.dialect import JSON, PYTHON, Dialect
from agentloop.drivers.modes.text_formats.literals.literal_reader import LiteralReader
from agentloop.drivers.modes.text_formats.literals.nodes import ReadArguments, ReadObject
from agentloop.drivers.modes.text_formats.openings import LONGEST_NAME, NAME
from agentloop.drivers.modes.text_formats.source import Source, Steps

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
