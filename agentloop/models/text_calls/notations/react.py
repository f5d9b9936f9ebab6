"""Calls as `Action:` and `Action Input:`, the notation of the ReAct paper's prompts."""

from __future__ import annotations

import re
from typing import Final

from agentloop.models.text_calls.literals import ParsedObject
from agentloop.models.text_calls.notations.elements import (
    JSON_ESCAPE,
    SPACE,
    Capture,
    OptionalParts,
    draft_call,
    match_header,
    read_value,
)
from agentloop.models.text_calls.notations.fenced import FENCE, skip_closing_fence
from agentloop.models.text_calls.offered_tools import OfferedTools
from agentloop.models.text_calls.text_buffer import TextBuffer, find_literal
from agentloop.models.text_calls.text_format import (
    AttemptResult,
    CallDraft,
    CallPattern,
    ParseAttempt,
    Slot,
    TextFormat,
)

_MAX_INPUT_LENGTH: Final = 20_000
_EMPHASIS: Final = OptionalParts(SPACE, "**")
# Models number the labels and emphasize them, as in `**Action 1:**`.
_NUMBER: Final = OptionalParts(SPACE, Capture("number", "[0-9]"))
_LABEL_END: Final = (_NUMBER, _EMPHASIS, SPACE, ":", _EMPHASIS, SPACE)
_HEADER: Final = (
    OptionalParts("**"),
    "Action",
    *_LABEL_END,
    OptionalParts("`"),
    OptionalParts('"'),
    Capture("name", r"[\w.\\-]"),
    OptionalParts('"'),
    OptionalParts("`"),
    _EMPHASIS,
    _EMPHASIS,
    SPACE,
    "Action",
    _NUMBER,
    SPACE,
    Capture("initial", "[Ii]"),
    "nput",
    *_LABEL_END,
    OptionalParts(FENCE, OptionalParts("json")),
    SPACE,
)
# The line of the fence, perhaps with the name of a language; a word on the next line is content.
_FENCE_LINE: Final = re.compile(r"\A[\w+-]{0,20}[ \t]*\r?\n")
_LINE: Final = re.compile(r"[^\n]*")
_MEMBER: Final = re.compile(r"([\w.-]{1,80})[\"']\s{0,4}:")
_MISSING_LINE_END: Final = "missing end of the line"


class ReActCalls(TextFormat):
    """`Action: f`, and `Action Input: {…}` on the next line.

    A tool with one parameter also accepts the rest of the line, or a fenced block.
    """

    name = "react"
    openings: tuple[str, ...] = ("Action:", "Action :", "**Action", *(f"Action {digit}" for digit in range(1, 10)))
    tags: tuple[tuple[str, str], ...] = (("Action Input:", ""),)
    escape = JSON_ESCAPE
    patterns: tuple[CallPattern, ...] = (
        CallPattern(("Action: ", Slot.NAME, "\n", "Action Input: ", "{", Slot.ARGUMENTS, "}")),
    )

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
        """Parse the name and then the arguments."""
        captures: dict[str, str] = {}
        position = yield from match_header(buffer, start, _HEADER, captures)
        if position < 0:
            is_meant = tools.is_offered(tools.normalize_name(captures.get("name", "")))
            return AttemptResult(start, "no Action Input follows the name of the tool" if is_meant else "")
        while position == len(buffer.text) and not buffer.is_complete:
            yield None
        name = tools.normalize_name(captures["name"])
        if not buffer.text.startswith("{", position):
            return (yield from self._read_line(buffer, start, position, name, tools))
        reader = yield from read_value(buffer, position)
        if not isinstance(reader.value, ParsedObject):
            return AttemptResult(start, reader.failure, reader.reached)
        yield draft_call(name, reader.value, reader, buffer, (start, reader.position))
        return AttemptResult((yield from skip_closing_fence(buffer, start, position, reader.position)))

    def _read_line(self, buffer: TextBuffer, start: int, position: int, name: str, tools: OfferedTools) -> ParseAttempt:
        """Parse the rest of the line, or of a fenced block, as the value of the tool's only parameter."""
        key = tools.sole_parameter(name)
        not_an_object = f"the arguments of {name[:80]} are not an object"
        if not tools.is_offered(name) or (key is None and tools.properties(name)):
            return AttemptResult(start, not_an_object, position)
        fence = buffer.text.find(FENCE, start, position)
        if fence >= 0 and key is not None:
            closing = yield from find_literal(buffer, position, FENCE, _MAX_INPUT_LENGTH)
            if closing < 0:
                return AttemptResult(start, "the block of the arguments is never closed", len(buffer.text))
            text = _FENCE_LINE.sub("", buffer.text[fence + len(FENCE) : closing], count=1).rstrip()
            yield CallDraft(name, {key: text}, start, closing + len(FENCE), untyped=frozenset({key}))
            return AttemptResult(closing + len(FENCE))
        line_end = yield from find_literal(buffer, position, "\n", _MAX_INPUT_LENGTH)
        line = _LINE.match(buffer.text, position, len(buffer.text) if line_end < 0 else line_end)
        text = line[0].strip() if line else ""
        is_missing = not text and key in tools.required(name)
        if len(text) > _MAX_INPUT_LENGTH or (key is None and text and text != "None") or is_missing:
            return AttemptResult(start, not_an_object, position + len(text))
        properties = tools.properties(name)
        if any(
            match[1] in properties for match in _MEMBER.finditer(text)
        ):  # an object that lost a bracket or a quotation mark
            return AttemptResult(start, not_an_object, position + len(text))
        end = position + len(text)
        if key is None:
            yield CallDraft(name, {}, start, end)
        else:
            is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
            value = text[1:-1] if is_quoted else text
            # Nothing else says that the value is whole: an answer that was cut off looks the same.
            repairs = (_MISSING_LINE_END,) if line_end < 0 else ()
            yield CallDraft(name, {key: value}, start, end, repairs=repairs, untyped=frozenset({key}))
        return AttemptResult(end)
