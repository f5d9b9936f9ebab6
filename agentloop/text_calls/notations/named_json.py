"""Notations that write the tool's name and then its arguments as a JSON object: one table of styles."""

from __future__ import annotations

import re
from typing import Final

from attrs import evolve, frozen

from agentloop.text_calls.literals import JSON, TOKEN_QUOTED, Dialect, ParsedObject
from agentloop.text_calls.notations.elements import (
    SPACE,
    Capture,
    HeaderPart,
    OptionalParts,
    draft_call,
    match_header,
    read_value,
)
from agentloop.text_calls.notations.fenced import skip_closing_fence
from agentloop.text_calls.offered_tools import OfferedTools
from agentloop.text_calls.text_buffer import TextBuffer
from agentloop.text_calls.text_format import AttemptResult, ParseAttempt, TextFormat


@frozen
class NamedJsonStyle:
    """How a notation writes the text before the arguments.

    Attributes:
        name: the name of the format.
        openings: the texts with which a call may begin.
        header: everything before the arguments, with a capture `name`.
        dialect: the syntax of the arguments.
        wrappers: texts around the calls.
        control_tokens: texts that are never part of the visible text.
        name_suffixes: the texts after the name, in a notation that begins with the name.
        is_exact: whether the name must be exactly that of an offered tool.
    """

    name: str
    openings: tuple[str, ...]
    header: tuple[HeaderPart, ...]
    dialect: Dialect = JSON
    wrappers: tuple[str, ...] = ()
    control_tokens: tuple[str, ...] = ()
    name_suffixes: tuple[str, ...] = ()
    is_exact: bool = False


_NAME: Final = Capture("name", r"[\w.-]")
_LINE_END: Final = (OptionalParts("\r"), "\n")

_DEEPSEEK: Final = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "```",
)
_KIMI: Final = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
)
_SOLAR: Final = ("<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>", "<|tool_call:end|>")
# Calls belong to the channel of comments; models also make them in the channel of reasoning. The recipient is what marks a call.
_COMMENTARY: Final = "<|channel|>commentary"
_ANALYSIS: Final = "<|channel|>analysis"

NAMED_JSON_STYLES: Final = (
    NamedJsonStyle(
        "mistral",
        ("[TOOL_CALLS]",),
        ("[TOOL_CALLS]", SPACE, _NAME, OptionalParts("[CALL_ID]", Capture("id")), OptionalParts("[ARGS]"), SPACE),
    ),
    NamedJsonStyle(
        "deepseek",
        ("<｜tool▁call▁begin｜>",),
        (
            "<｜tool▁call▁begin｜>",
            SPACE,
            OptionalParts("function", "<｜tool▁sep｜>"),
            _NAME,
            OptionalParts("<｜tool▁sep｜>"),
            SPACE,
            OptionalParts("```json"),
            SPACE,
        ),
        wrappers=_DEEPSEEK,
    ),
    NamedJsonStyle(
        "kimi",
        ("<|tool_call_begin|>",),
        ("<|tool_call_begin|>", SPACE, Capture("name"), SPACE, "<|tool_call_argument_begin|>", SPACE),
        wrappers=_KIMI,
    ),
    NamedJsonStyle(
        "harmony",
        (
            "to=functions.",
            *(
                f"{start}{channel} to=functions."
                for start in ("", "<|start|>assistant")
                for channel in ("", _COMMENTARY, _ANALYSIS)
            ),
        ),
        (
            OptionalParts("<|start|>assistant"),
            OptionalParts(_COMMENTARY),
            OptionalParts(_ANALYSIS),
            OptionalParts(" "),
            "to=functions.",
            _NAME,
            OptionalParts(SPACE, _COMMENTARY),
            OptionalParts(SPACE, _ANALYSIS),
            SPACE,
            OptionalParts("<|constrain|>"),
            OptionalParts(Capture("constraint", "[A-Za-z0-9_-]")),
            SPACE,
            "<|message|>",
            SPACE,
        ),
        control_tokens=(
            "<|start|>assistant",
            _COMMENTARY + "<|message|>",
            "<|channel|>final<|message|>",
            "<|call|>",
            "<|end|>",
            "<|return|>",
        ),
    ),
    NamedJsonStyle(
        "solar",
        ("<|tool_call:begin|>",),
        ("<|tool_call:begin|>", Capture("id"), "<|tool_call:name|>", _NAME, "<|tool_call:args|>", SPACE),
        wrappers=_SOLAR,
    ),
    NamedJsonStyle(
        "gemma",
        ("<|tool_call>call:", "<start_function_call>call:"),
        (OptionalParts("<|tool_call>"), OptionalParts("<start_function_call>"), "call:", _NAME),
        TOKEN_QUOTED,
        wrappers=("<tool_call|>", "<end_function_call>", "<|tool_call>"),
    ),
    NamedJsonStyle("functionary", (">>>",), (">>>", _NAME, *_LINE_END, SPACE)),
    NamedJsonStyle("name and arguments", (), (_NAME, *_LINE_END), name_suffixes=("\n{", "\r\n{"), is_exact=True),
)
"""All notations of this family."""


# Kimi numbers the calls of a conversation: `functions.f:0`.
_CALL_NUMBER: Final = re.compile(r":\d+\Z")


class NamedJson(TextFormat):
    """A notation that writes the name first and then the arguments as an object."""

    def __init__(self, style: NamedJsonStyle) -> None:
        """Create the format of a style."""
        self.name: str = style.name
        self.openings: tuple[str, ...] = style.openings
        self.name_suffixes: tuple[str, ...] = style.name_suffixes
        self.wrappers: tuple[str, ...] = style.wrappers
        self.control_tokens: tuple[str, ...] = style.control_tokens
        self.clarity: int = 1 if style.is_exact else TextFormat.clarity
        self._style = style

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
        """Parse the name and then the object."""
        captures: dict[str, str] = {}
        style = self._style
        position = yield from match_header(buffer, start, style.header, captures)
        if position < 0 or (style.is_exact and captures["name"] not in tools.by_exact_name):
            return AttemptResult(start)
        while position == len(buffer.text) and not buffer.is_complete:
            yield None
        if not buffer.text.startswith("{", position):
            rejection = "" if style.is_exact else "no arguments follow the name of the tool"
            return AttemptResult(start, rejection, position)
        reader = yield from read_value(buffer, position, style.dialect)
        if not isinstance(reader.value, ParsedObject):
            return AttemptResult(start, reader.failure, reader.reached)
        name = _CALL_NUMBER.sub("", captures["name"]).removeprefix("functions.")
        draft = draft_call(name, reader.value, reader, buffer, (start, reader.position))
        yield draft if style.dialect is JSON else evolve(draft, raw="")  # other dialects are not JSON
        return AttemptResult((yield from skip_closing_fence(buffer, start, position, reader.position)))
