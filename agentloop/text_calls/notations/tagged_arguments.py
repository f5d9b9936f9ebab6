"""Notations that write every argument in a separate tag: one table of styles."""

from __future__ import annotations

import re
from typing import Final

from attrs import evolve, frozen

from agentloop.text_calls.literals import ParsedObject
from agentloop.text_calls.notations.elements import (
    IN_TAG,
    SPACE,
    Capture,
    HeaderPart,
    draft_call,
    match_header,
    read_value,
)
from agentloop.text_calls.offered_tools import OfferedTools
from agentloop.text_calls.text_buffer import Resumable, TextBuffer, find_literal, match_literal, skip_space
from agentloop.text_calls.text_format import AttemptResult, CallDraft, ParseAttempt, TextFormat


@frozen
class TagStyle:
    """How a notation writes calls and their arguments.

    Attributes:
        name: the name of the format.
        opening: the text with which a call begins.
        header: what follows the opening, with a capture `name`.
        parameter: the text with which an argument begins.
        parameter_header: what follows that text, with a capture `key`.
        parameter_end: the text that closes an argument.
        end: the text that closes a call.
        has_line_breaks: whether values are written on separate lines: a line break next to a tag is not part of the value.
        wrappers: texts around the calls.
        control_tokens: texts that are never part of the visible text.
    """

    name: str
    opening: str
    header: tuple[HeaderPart, ...]
    parameter: str
    parameter_header: tuple[HeaderPart, ...]
    parameter_end: str
    end: str
    has_line_breaks: bool = False
    wrappers: tuple[str, ...] = ()
    control_tokens: tuple[str, ...] = ()


_NAME_IN_TAG: Final = (Capture("name", IN_TAG), ">")
_KEY_IN_TAG: Final = (Capture("key", IN_TAG), ">")


def _invoke(prefix: str, *wrappers: str) -> TagStyle:
    """Return the style of `<invoke name=…>`, with a prefix before the name of every tag."""
    tags = tuple(f"<{close}{prefix}{wrapper}>" for wrapper in wrappers for close in ("", "/"))
    return TagStyle(
        "invoke",
        f"<{prefix}invoke name=",
        _NAME_IN_TAG,
        f"<{prefix}parameter name=",
        _KEY_IN_TAG,
        f"</{prefix}parameter>",
        f"</{prefix}invoke>",
        wrappers=tags,
    )


def _arg_key(suffix: str, header: tuple[HeaderPart, ...]) -> TagStyle:
    """Return the style of `<arg_key>` and `<arg_value>`, with a suffix after the name of every tag."""
    return TagStyle(
        "arg_key",
        f"<tool_call{suffix}>",
        header,
        f"<arg_key{suffix}>",
        (Capture("key", IN_TAG), f"</arg_key{suffix}>", SPACE, f"<arg_value{suffix}>"),
        f"</arg_value{suffix}>",
        f"</tool_call{suffix}>",
        wrappers=(f"<tool_calls{suffix}>", f"</tool_calls{suffix}>"),
        control_tokens=(f"<｜hy_eos{suffix}｜>",) if suffix else (),
    )


_FUNCTION: Final = TagStyle(
    "function",
    "<function=",
    _NAME_IN_TAG,
    "<parameter=",
    _KEY_IN_TAG,
    "</parameter>",
    "</function>",
    has_line_breaks=True,
    wrappers=("<seed:tool_call>", "</seed:tool_call>"),
)
_STEP_TOKENS: Final = (
    "<｜tool_calls_begin｜>",
    "<｜tool_call_begin｜>",
    "<｜tool_call_end｜>",
    "<｜tool_sep｜>",
    "<｜tool_calls_end｜>",
)

TAG_STYLES: Final = (
    _FUNCTION,  # Qwen 3 Coder, Nemotron 3, Step 3.5, Seed-OSS; with a JSON body: functionary 3.1
    evolve(_FUNCTION, opening="<function name=", parameter="<param name=", parameter_end="</param>"),  # MiniCPM 5
    evolve(_FUNCTION, opening="<function name=", parameter="<parameter name="),
    _invoke("", "function_calls", "tool_calls", "minimax:tool_call"),  # MiniMax M2
    _invoke("｜DSML｜", "function_calls", "tool_calls"),  # DeepSeek 3.2
    _invoke("antml:", "function_calls"),
    _invoke("atem:", "function_calls"),
    evolve(_invoke("steptml:"), wrappers=_STEP_TOKENS),  # Step 3
    _arg_key("", (SPACE, Capture("name"), SPACE)),  # GLM 4.5
    _arg_key(":opensource", (SPACE, Capture("name", r"[\w.-]"), SPACE, "<tool_sep:opensource>")),  # Hunyuan
    TagStyle(
        "open call",
        "<|open|>call tool=",
        (Capture("name", IN_TAG), "<|sep|>"),
        "<|open|>argument key=",
        (Capture("key", IN_TAG), "<|sep|>"),
        "<|close|>argument<|sep|>",
        "<|close|>call<|sep|>",
        wrappers=(
            "<|close|>response<|sep|>",
            "<|open|>tools<|sep|>",
            "<|close|>tools<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ),
    ),  # Kimi K3
)
"""All notations of this family."""


_MISSING_CLOSER: Final = "missing closing tag"

_VALUE: Final = re.compile(r"\s*[\"']?([^\"'\s]+)")
_CDATA_START: Final = "<![CDATA["
_CDATA_END: Final = "]]>"
_OWN_LINES: Final = re.compile(r"\r?\n(.*?)\r?\n", re.DOTALL)
_DECLARES_STRING: Final = re.compile(r"""\b(?:string=["']true|type=["']string)["']""")


class TaggedArguments(TextFormat):
    """`<function=f><parameter=a>1</parameter></function>` and its variants; the tool's schema decides the types of values."""

    def __init__(self, style: TagStyle) -> None:
        """Create the format of a style."""
        self.name: str = style.name
        self.openings: tuple[str, ...] = (style.opening,)
        self.wrappers: tuple[str, ...] = style.wrappers
        self.control_tokens: tuple[str, ...] = style.control_tokens
        self._style = style
        self._continuations = (style.parameter, style.end)

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:  # noqa: ARG002  # the contract's
        """Parse the arguments one by one, or a JSON object with all of them."""
        captures: dict[str, str] = {}
        position = yield from match_header(buffer, start + len(self._style.opening), self._style.header, captures)
        name = _first_value(captures.get("name", ""))
        if position < 0 or not name:
            return AttemptResult(start)
        position = yield from skip_space(buffer, position)
        if buffer.text.startswith("{", position):
            return (yield from self._read_json(buffer, start, position, name))
        return (yield from self._read_arguments(buffer, start, position, name))

    def _read_json(self, buffer: TextBuffer, start: int, position: int, name: str) -> ParseAttempt:
        reader = yield from read_value(buffer, position)
        if not isinstance(reader.value, ParsedObject):
            return AttemptResult(start, reader.failure, reader.reached)
        yield draft_call(name, reader.value, reader, buffer, (start, reader.position))
        closing = yield from skip_space(buffer, reader.position)
        closer = yield from match_literal(buffer, closing, (self._style.end,))
        return AttemptResult(closing + len(closer) if closer else reader.position)

    def _read_arguments(self, buffer: TextBuffer, start: int, position: int, name: str) -> ParseAttempt:
        arguments: dict[str, object] = {}
        untyped: set[str] = set()
        while True:
            position = yield from skip_space(buffer, position)
            tag = yield from match_literal(buffer, position, self._continuations)
            if tag != self._style.parameter:
                break
            captures: dict[str, str] = {}
            value = yield from match_header(buffer, position + len(tag), self._style.parameter_header, captures)
            value_end = -1 if value < 0 else (yield from self._find_value_end(buffer, value))
            if value_end < 0:
                reached = len(buffer.text) if value >= 0 else position
                return AttemptResult(start, "an argument is never closed", reached)
            key = _first_value(captures["key"])
            arguments[key] = self._strip_marks(buffer.text[value:value_end])
            if not _DECLARES_STRING.search(captures["key"]):
                untyped.add(key)
            position = value_end + len(self._style.parameter_end)
        # The closing tag of a call with arguments may be missing if another tag closes here.
        if not tag and not (arguments and buffer.text.startswith("</", position)):
            return AttemptResult(start, "the call is never closed" if arguments else "", position)
        repairs = () if tag else (_MISSING_CLOSER,)
        yield CallDraft(name, arguments, start, position + len(tag), repairs=repairs, untyped=frozenset(untyped))
        return AttemptResult(position + len(tag))

    def _strip_marks(self, text: str) -> str:
        """Return a value without CDATA marks, or without the line breaks that separate it from its tags."""
        if text.startswith(_CDATA_START) and text.endswith(_CDATA_END):
            return text[len(_CDATA_START) : -len(_CDATA_END)]
        own_lines = _OWN_LINES.fullmatch(text) if self._style.has_line_breaks else None
        return own_lines[1] if own_lines else text

    def _find_value_end(self, buffer: TextBuffer, position: int) -> Resumable[int]:
        """Return where the closing tag of an argument begins, or -1.

        Values are not escaped and may contain the closing tag themselves, so the value ends at the first closing tag that
        another argument or the end of the call follows.
        """
        while True:
            position = yield from find_literal(buffer, position, self._style.parameter_end)
            if position < 0:
                return -1
            behind = yield from skip_space(buffer, position + len(self._style.parameter_end))
            continuation = yield from match_literal(buffer, behind, (*self._continuations, "</"))
            if continuation or behind == len(buffer.text):
                return position
            position += len(self._style.parameter_end)


def _first_value(text: str) -> str:
    """Return the first word of a tag's content, without quotation marks; attributes may follow it."""
    match = _VALUE.match(text)
    return match[1] if match else ""
