"""Building blocks of notations: headers, names, values and calls in Python syntax.

A header, the text before a call's arguments, is a sequence of literals, captures and white space. Matching stops at the first
character that does not belong to it, so that ordinary text is held back no longer than necessary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from agentloop.models.text_calls.literal_reader import LiteralReader
from agentloop.models.text_calls.literals import ESCAPED_UNDERSCORE, JSON, PYTHON, Dialect, ParsedObject
from agentloop.models.text_calls.offered_tools import MAX_NAME_LENGTH, NAME_PATTERN
from agentloop.models.text_calls.text_buffer import Resumable, TextBuffer, match_literal, match_run, skip_space
from agentloop.models.text_calls.text_format import CallDraft, CallPattern, Slot

_MAX_CAPTURE_LENGTH: Final = 300


@frozen
class Capture:
    """One or more characters whose text is captured under a name.

    Attributes:
        name: the name.
        characters: the accepted characters, as a character class of a regular expression.
    """

    name: str
    characters: str = r"[\w.:-]"
    pattern: re.Pattern[str] = field(init=False, repr=False)

    @pattern.default
    def _compile(self) -> re.Pattern[str]:
        return re.compile(self.characters + "*+")


@frozen
class Space:
    """Any amount of white space."""


@frozen(init=False)
class OptionalParts:
    """A sequence that is present as a whole or not at all."""

    parts: tuple[HeaderPart, ...]

    def __init__(self, *parts: HeaderPart) -> None:
        self.__attrs_init__(parts)


HeaderPart = str | Capture | Space | OptionalParts

SPACE: Final = Space()

JSON_ESCAPE: Final = "; in JSON, the first character of such a text may be written as \\u003c or \\u005b"
JSON_CALL: Final = (
    '{"name": ', '"', Slot.NAME, '"', ', "arguments": ', "{", Slot.ARGUMENTS, "}", "}",
)  # fmt: skip
"""The parts of a call as one JSON object."""
PYTHON_CALL: Final = CallPattern((Slot.NAME, "(", Slot.ARGUMENTS, ")"), (Slot.KEY, "=", Slot.VALUE), "python")
"""Calls in Python syntax."""

IN_TAG: Final = r"[^<>\n]"
"""Characters that may occur inside a tag."""


def match_header(
    buffer: TextBuffer, position: int, parts: tuple[HeaderPart, ...], captures: dict[str, str]
) -> Resumable[int]:
    """Match a header.

    Args:
        buffer: the text.
        position: where the header begins.
        parts: the header's parts.
        captures: receives the captured texts by name.

    Returns:
        The offset behind the header, or -1 if the text does not match.
    """
    for part in parts:
        if isinstance(part, str):
            literal = yield from match_literal(buffer, position, (part,))
            if not literal:
                return -1
            position += len(literal)
        elif isinstance(part, Space):
            position = yield from skip_space(buffer, position)
        elif isinstance(part, Capture):
            text = yield from match_run(buffer, position, part.pattern, _MAX_CAPTURE_LENGTH)
            if not text:
                return -1
            captures[part.name] = text
            position += len(text)
        else:
            end = yield from match_header(buffer, position, part.parts, captures)
            position = max(position, end)
    return position


_NAME: Final = re.compile(NAME_PATTERN)


def match_name(buffer: TextBuffer, position: int) -> Resumable[str]:
    """Return the name at a position as written; empty if there is none or it is too long for a tool name."""
    while True:
        match = _NAME.match(buffer.text, position, position + MAX_NAME_LENGTH + 1)
        if match is None:
            return ""
        if match.end() - position > MAX_NAME_LENGTH:
            return ""
        rest = buffer.text[match.end() : match.end() + 2]
        if buffer.is_complete or (rest and rest != "\\"):
            return match[0]
        del match, rest  # a match refers to the text and would prevent appending to it in place
        yield


def read_value(buffer: TextBuffer, position: int, dialect: Dialect = JSON) -> Resumable[LiteralReader]:
    """Read the container at a position; the returned reader holds its value or the failure."""
    reader = LiteralReader(position, dialect, buffer.unclosed_quotes)
    while not reader.advance(buffer.text, is_complete=buffer.is_complete):
        yield
    return reader


def read_python_call(buffer: TextBuffer, position: int, name: str) -> Resumable[CallDraft | LiteralReader]:
    """Read a call in Python syntax.

    Args:
        buffer: the text.
        position: where the name begins; an opening parenthesis follows the name.
        name: the name.

    Returns:
        The call, or the reader with the failure.
    """
    reader = yield from read_value(buffer, position + len(name), PYTHON)
    arguments = reader.value
    if not isinstance(arguments, ParsedObject):
        return reader
    repairs = reader.repairs(position, reader.position)
    if "\\" in name:
        repairs = (ESCAPED_UNDERSCORE, *(repair for repair in repairs if repair != ESCAPED_UNDERSCORE))
    return CallDraft(
        name,
        arguments,
        position,
        reader.position,
        repairs=repairs,
        positional=tuple(arguments.positional),
        is_python=True,
    )


def draft_call(
    name: str, arguments: Mapping[str, object], reader: LiteralReader, buffer: TextBuffer, span: tuple[int, int]
) -> CallDraft:
    """Return a draft whose arguments are an object in the value of a reader.

    Args:
        name: the tool's name.
        arguments: the arguments.
        reader: the reader of the value.
        buffer: the text.
        span: offsets of the call's beginning and end.
    """
    repairs = reader.repairs(*span)
    raw = ""
    if isinstance(arguments, ParsedObject) and not repairs:
        raw = buffer.text[arguments.start : arguments.end]
    return CallDraft(name, arguments, *span, raw=raw, repairs=repairs)
