"""Calls whose arguments stand in tags of their own, one after the other: one table of styles."""

from __future__ import annotations

import re
from typing import Final

from attrs import evolve, frozen

from agentloop.text_calls.literals import ReadObject
from agentloop.text_calls.notations.elements import IN_TAG, SPACE, Field, Part, draft_of, read_head, read_value
from agentloop.text_calls.offered_tools import OfferedTools
from agentloop.text_calls.reading import Attempt, Draft, Outcome
from agentloop.text_calls.source import Source, Steps, after_space, find, literal_at
from agentloop.text_calls.text_format import TextFormat

MISSING_CLOSER: Final = "missing closing tag"

_VALUE: Final = re.compile(r"\s*[\"']?([^\"'\s]+)")
_VERBATIM: Final = "<![CDATA["
_VERBATIM_END: Final = "]]>"
_IS_TEXT: Final = re.compile(r"""\b(?:string=["']true|type=["']string)["']""")


@frozen
class Style:
    """How a notation writes calls and their arguments.

    Attributes:
        name: the name of the notation.
        opening: what a call begins with.
        head: what follows the opening, with a field `name`.
        parameter: what an argument begins with.
        parameter_head: what follows that, with a field `key`.
        parameter_end: what closes an argument.
        end: what closes a call.
        breaks: whether values stand on lines of their own: a line break next to each tag is not part of the value.
        wrappers: texts around its calls.
        control_tokens: texts that are never for the reader.
    """

    name: str
    opening: str
    head: tuple[Part, ...]
    parameter: str
    parameter_head: tuple[Part, ...]
    parameter_end: str
    end: str
    breaks: bool = False
    wrappers: tuple[str, ...] = ()
    control_tokens: tuple[str, ...] = ()


_NAME_IN_TAG: Final = (Field("name", IN_TAG), ">")
_KEY_IN_TAG: Final = (Field("key", IN_TAG), ">")


def _invoke(prefix: str, *wrappers: str) -> Style:
    tags = tuple(f"<{close}{prefix}{wrapper}>" for wrapper in wrappers for close in ("", "/"))
    return Style(
        "invoke",
        f"<{prefix}invoke name=",
        _NAME_IN_TAG,
        f"<{prefix}parameter name=",
        _KEY_IN_TAG,
        f"</{prefix}parameter>",
        f"</{prefix}invoke>",
        wrappers=tags,
    )


def _arg_key(suffix: str, head: tuple[Part, ...]) -> Style:
    return Style(
        "arg_key",
        f"<tool_call{suffix}>",
        head,
        f"<arg_key{suffix}>",
        (Field("key", IN_TAG), f"</arg_key{suffix}>", SPACE, f"<arg_value{suffix}>"),
        f"</arg_value{suffix}>",
        f"</tool_call{suffix}>",
        wrappers=(f"<tool_calls{suffix}>", f"</tool_calls{suffix}>"),
        control_tokens=(f"<｜hy_eos{suffix}｜>",) if suffix else (),
    )


_FUNCTION: Final = Style(
    "function",
    "<function=",
    _NAME_IN_TAG,
    "<parameter=",
    _KEY_IN_TAG,
    "</parameter>",
    "</function>",
    breaks=True,
    wrappers=("<seed:tool_call>", "</seed:tool_call>"),
)
_STEP: Final = (
    "<｜tool_calls_begin｜>",
    "<｜tool_call_begin｜>",
    "<｜tool_call_end｜>",
    "<｜tool_sep｜>",
    "<｜tool_calls_end｜>",
)

STYLES: Final = (
    _FUNCTION,  # Qwen 3 Coder, Nemotron 3, Step 3.5, Seed-OSS; with a JSON body: functionary 3.1
    evolve(_FUNCTION, opening="<function name=", parameter="<param name=", parameter_end="</param>"),  # MiniCPM 5
    evolve(_FUNCTION, opening="<function name=", parameter="<parameter name="),
    _invoke("", "function_calls", "tool_calls", "minimax:tool_call"),  # MiniMax M2
    _invoke("｜DSML｜", "function_calls", "tool_calls"),  # DeepSeek 3.2
    _invoke("antml:", "function_calls"),
    _invoke("atem:", "function_calls"),
    evolve(_invoke("steptml:"), wrappers=_STEP),  # Step 3
    _arg_key("", (SPACE, Field("name"), SPACE)),  # GLM 4.5
    _arg_key(":opensource", (SPACE, Field("name", r"[\w.-]"), SPACE, "<tool_sep:opensource>")),  # Hunyuan
    Style(
        "open call",
        "<|open|>call tool=",
        (Field("name", IN_TAG), "<|sep|>"),
        "<|open|>argument key=",
        (Field("key", IN_TAG), "<|sep|>"),
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
"""The styles of all these notations."""


class TaggedArguments(TextFormat):
    """`<function=f><parameter=a>1</parameter></function>` and its relatives; what a value is, the tool's schema says."""

    def __init__(self, style: Style) -> None:
        """Take the notation's style."""
        self.name: str = style.name
        self.openings: tuple[str, ...] = (style.opening,)
        self.wrappers: tuple[str, ...] = style.wrappers
        self.control_tokens: tuple[str, ...] = style.control_tokens
        self._style = style
        self._next = (style.parameter, style.end)

    def read(self, source: Source, start: int, tools: OfferedTools) -> Attempt:  # noqa: ARG002  # the contract's
        """Read argument after argument, or a JSON object with all of them."""
        fields: dict[str, str] = {}
        at = yield from read_head(source, start + len(self._style.opening), self._style.head, fields)
        name = _first(fields.get("name", ""))
        if at < 0 or not name:
            return Outcome(start)
        at = yield from after_space(source, at)
        if source.text.startswith("{", at):
            return (yield from self._json(source, start, at, name))
        return (yield from self._arguments(source, start, at, name))

    def _json(self, source: Source, start: int, at: int, name: str) -> Attempt:
        reader = yield from read_value(source, at)
        if not isinstance(reader.value, ReadObject):
            return Outcome(start, reader.failure, reader.reached)
        yield draft_of(name, reader.value, reader, source, (start, reader.at))
        closing = yield from after_space(source, reader.at)
        closer = yield from literal_at(source, closing, (self._style.end,))
        return Outcome(closing + len(closer) if closer else reader.at)

    def _arguments(self, source: Source, start: int, at: int, name: str) -> Attempt:
        arguments: dict[str, object] = {}
        untyped: set[str] = set()
        while True:
            at = yield from after_space(source, at)
            found = yield from literal_at(source, at, self._next)
            if found != self._style.parameter:
                break
            fields: dict[str, str] = {}
            value = yield from read_head(source, at + len(found), self._style.parameter_head, fields)
            end = -1 if value < 0 else (yield from self._value_end(source, value))
            if end < 0:
                return Outcome(start, "an argument is never closed", len(source.text) if value >= 0 else at)
            key = _first(fields["key"])
            arguments[key] = self._bare(source.text[value:end])
            if not _IS_TEXT.search(fields["key"]):
                untyped.add(key)
            at = end + len(self._style.parameter_end)
        if not found and not (arguments and source.text.startswith("</", at)):
            return Outcome(start, "the call is never closed" if arguments else "", at)
        repairs = () if found else (MISSING_CLOSER,)
        yield Draft(name, arguments, start, at + len(found), repairs=repairs, untyped=frozenset(untyped))
        return Outcome(at + len(found))

    def _bare(self, text: str) -> str:
        """Return a value without the marks or the line breaks that set it apart from its tags."""
        if text.startswith(_VERBATIM) and text.endswith(_VERBATIM_END):
            return text[len(_VERBATIM) : -len(_VERBATIM_END)]
        apart = self._style.breaks and len(text) > 1 and text[0] == text[-1] == "\n"
        return text[1:-1] if apart else text

    def _value_end(self, source: Source, at: int) -> Steps[int]:
        """Return where the closing tag of an argument stands: the first behind which the call goes on or ends."""
        while True:
            at = yield from find(source, at, self._style.parameter_end)
            if at < 0:
                return -1
            behind = yield from after_space(source, at + len(self._style.parameter_end))
            goes_on = yield from literal_at(source, behind, (*self._next, "</"))
            if goes_on or behind == len(source.text):
                return at
            at += len(self._style.parameter_end)


def _first(text: str) -> str:
    found = _VALUE.match(text)
    return found[1] if found else ""
