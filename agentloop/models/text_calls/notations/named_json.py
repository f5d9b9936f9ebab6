"""Notations that write the tool's name and then its arguments as a JSON object: one table of styles."""

from __future__ import annotations

import re
from typing import Final, Literal

from attrs import evolve, frozen

from agentloop.models.text_calls.literals import JSON, TOKEN_QUOTED, Dialect, ParsedObject
from agentloop.models.text_calls.notations.elements import (
    JSON_ESCAPE,
    SPACE,
    Capture,
    HeaderPart,
    OptionalParts,
    draft_call,
    match_header,
    read_value,
)
from agentloop.models.text_calls.notations.fenced import skip_closing_fence
from agentloop.models.text_calls.offered_tools import OfferedTools
from agentloop.models.text_calls.text_buffer import TextBuffer, match_literal
from agentloop.models.text_calls.text_format import (
    AttemptResult,
    CallDraft,
    CallPattern,
    ParseAttempt,
    Slot,
    TextFormat,
)


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
        is_exact: whether the name must be exactly that of an offered tool, and a word of an opening a whole word.
        clarity: how clearly the notation marks a call, as in `TextFormat.clarity`.
        ends: the texts that close a call; one in place of the arguments closes a call without any.
        glued: the texts that stand directly behind the name where special tokens between them were left out.
        tags: the texts that only calls have, as in `TextFormat.tags`.
        call: the parts of a call, as in `CallPattern`; the arguments are an object. Empty for a notation that another style writes.
        around: what stands before all calls and behind them.
        values: how values are written, as in `CallPattern`.
    """

    name: str
    openings: tuple[str, ...]
    header: tuple[HeaderPart, ...]
    dialect: Dialect = JSON
    wrappers: tuple[str, ...] = ()
    control_tokens: tuple[str, ...] = ()
    name_suffixes: tuple[str, ...] = ()
    is_exact: bool = False
    clarity: int = TextFormat.clarity
    ends: tuple[str, ...] = ()
    glued: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    call: tuple[str | Slot, ...] = ()
    around: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    values: Literal["json", "token"] = "json"

    @property
    def patterns(self) -> tuple[CallPattern, ...]:
        """How calls are written."""
        if not self.call:
            return ()
        key: tuple[str | Slot, ...] = (Slot.KEY, ":") if self.values == "token" else ('"', Slot.KEY, '": ')
        return (CallPattern(self.call, (*key, Slot.VALUE), self.values, ", ", self.around),)


_ARGUMENTS: Final = ("{", Slot.ARGUMENTS, "}")
_NAME: Final = Capture("name", r"[\w.-]")
_LINE_END: Final = (OptionalParts("\r"), "\n")

_DEEPSEEK: Final = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    # What small models write in place of the first token.
    "<｜tool▁calls｜>",
    "<｜tool calls begin｜>",
    "<｜tool\\_calls\\_begin｜>",
    "```",
)
_KIMI: Final = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_section_begin|>",
    "<|tool_call_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
)
_SOLAR: Final = ("<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>", "<|tool_call:end|>")
_PLAMO: Final = tuple(
    f"<|plamo:{side}_tool_{part}:plamo|>" for part in ("requests", "request") for side in ("begin", "end")
)
_PLAMO_END: Final = "<|plamo:end_tool_arguments:plamo|>"
# Calls belong to the channel of comments; models also make them in the channel of reasoning, and abbreviate the name of the
# first. The recipient is what marks a call.
_CHANNELS: Final = ("<|channel|>commentary", "<|channel|>analysis", "<|channel|>comment")
_ASSISTANT: Final = "<|start|>assistant"
_HARMONY_START: Final[tuple[HeaderPart, ...]] = (
    OptionalParts(_ASSISTANT),
    *map(OptionalParts, _CHANNELS),
    OptionalParts(" "),
    "to=",
)
_HARMONY_TYPE: Final[tuple[HeaderPart, ...]] = (
    *(OptionalParts(SPACE, channel) for channel in _CHANNELS),
    SPACE,
    OptionalParts("<|constrain|>"),
    OptionalParts(Capture("constraint", "[A-Za-z0-9_-]")),
    SPACE,
)
_HARMONY_OPENINGS: Final = tuple(
    f"{start}{channel} to=" for start in ("", _ASSISTANT) for channel in ("", *_CHANNELS) if start or channel
)

NAMED_JSON_STYLES: Final = (
    NamedJsonStyle(
        "mistral",
        ("[TOOL_CALLS]",),
        (
            "[TOOL_CALLS]",
            SPACE,
            _NAME,
            SPACE,
            OptionalParts("[CALL_ID]", SPACE, Capture("id"), SPACE),
            OptionalParts("[ARGS]"),
            SPACE,
        ),
        tags=(("[TOOL_CALLS]", ""), ("[CALL_ID]", ""), ("[ARGS]", "")),
        call=("[TOOL_CALLS]", Slot.NAME, "[ARGS]", *_ARGUMENTS),
    ),
    NamedJsonStyle(
        "deepseek",
        ("<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>"),
        (
            OptionalParts("<｜tool▁call▁begin｜>"),
            SPACE,
            OptionalParts("function", "<｜tool▁sep｜>"),
            _NAME,
            OptionalParts("<｜tool▁sep｜>"),
            SPACE,
            OptionalParts("```json"),
            SPACE,
        ),
        wrappers=_DEEPSEEK,
        ends=("<｜tool▁call▁end｜>",),
        tags=(
            ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
            ("<｜tool▁sep｜>", ""),
            *((token, "") for token in _DEEPSEEK[4:-1]),
        ),
        call=(
            *("<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>", Slot.NAME, "\n```json\n"),
            *(*_ARGUMENTS, "\n```", "<｜tool▁call▁end｜>"),
        ),
        around=(("<｜tool▁calls▁begin｜>",), ("<｜tool▁calls▁end｜>",)),
    ),
    NamedJsonStyle(
        "kimi",
        ("<|tool_call_begin|>",),
        ("<|tool_call_begin|>", SPACE, Capture("name"), SPACE, "<|tool_call_argument_begin|>", SPACE),
        wrappers=_KIMI,
        ends=("<|tool_call_end|>",),
        tags=(
            *((begin, begin.replace("begin", "end")) for begin in _KIMI[::2]),
            ("<|tool_call_argument_begin|>", ""),
        ),
        call=(
            *("<|tool_call_begin|>", "functions.", Slot.NAME, ":0", "<|tool_call_argument_begin|>"),
            *(*_ARGUMENTS, "<|tool_call_end|>"),
        ),
        around=(("<|tool_calls_section_begin|>",), ("<|tool_calls_section_end|>",)),
    ),
    NamedJsonStyle(
        "harmony",
        (
            # Without its special tokens, the text of a header remains.
            "assistantcommentary to=functions.",
            "assistant to=functions.",
            "commentary to=functions.",
            "to=functions.",
            *(f"{opening}functions." for opening in (" to=", *_HARMONY_OPENINGS)),
        ),
        (
            OptionalParts("assistant"),
            OptionalParts("commentary"),
            *_HARMONY_START,
            "functions.",
            _NAME,
            *_HARMONY_TYPE,
            OptionalParts("<|message|>"),
            SPACE,
        ),
        control_tokens=(
            _ASSISTANT,
            "<|channel|>commentary<|message|>",
            "<|channel|>final<|message|>",
            "<|call|>",
            "<|end|>",
            "<|return|>",
        ),
        ends=("<|call|>",),
        glued=("commentary", "analysis"),
        tags=(
            *((text, "") for text in ("to=functions.", "assistantcommentary", "assistantanalysis")),
            *((token, "") for token in ("<|constrain|>", "<|channel|>", "<|call|>")),
        ),
        call=(
            *("<|start|>assistant", "<|channel|>commentary", " to=functions.", Slot.NAME, " ", "<|constrain|>json"),
            *("<|message|>", *_ARGUMENTS, "<|call|>"),
        ),
    ),
    # Models forget the namespace, which then must not hide a tool of the provider, such as `python`.
    NamedJsonStyle(
        "harmony",
        ("to=", *_HARMONY_OPENINGS),
        (*_HARMONY_START, _NAME, *_HARMONY_TYPE, "<|message|>", SPACE),
        is_exact=True,
        ends=("<|call|>",),
    ),
    NamedJsonStyle(
        "solar",
        ("<|tool_call:begin|>",),
        ("<|tool_call:begin|>", Capture("id"), "<|tool_call:name|>", _NAME, "<|tool_call:args|>", SPACE),
        wrappers=_SOLAR,
        ends=("<|tool_call:end|>",),
        tags=(
            *((token, "") for token in ("<|calls|>", "<|tool_call:name|>", "<|tool_call:args|>")),
            ("<|tool_call:begin|>", "<|tool_call:end|>"),
        ),
        call=(
            *("<|tool_call:begin|>", "c1", "<|tool_call:name|>", Slot.NAME, "<|tool_call:args|>"),
            *(*_ARGUMENTS, "<|tool_call:end|>"),
        ),
        around=(("<|tool_calls|>",), ()),
    ),
    NamedJsonStyle(
        "plamo",
        ("<|plamo:begin_tool_name:plamo|>",),
        (
            "<|plamo:begin_tool_name:plamo|>",
            _NAME,
            "<|plamo:end_tool_name:plamo|>",
            SPACE,
            "<|plamo:begin_tool_arguments:plamo|>",
            SPACE,
        ),
        wrappers=(*_PLAMO, _PLAMO_END),
        control_tokens=("<|plamo:tag|>",),
        ends=(_PLAMO_END,),
        tags=(
            *((begin, begin.replace("begin", "end")) for begin in _PLAMO[::2]),
            ("<|plamo:begin_tool_name:plamo|>", "<|plamo:end_tool_name:plamo|>"),
            ("<|plamo:begin_tool_arguments:plamo|>", _PLAMO_END),
        ),
        call=(
            *(_PLAMO[2], "<|plamo:begin_tool_name:plamo|>", Slot.NAME, "<|plamo:end_tool_name:plamo|>"),
            *("<|plamo:begin_tool_arguments:plamo|>", *_ARGUMENTS, _PLAMO_END, _PLAMO[3]),
        ),
        around=(_PLAMO[:1], _PLAMO[1:2]),
    ),
    NamedJsonStyle(
        "qwen",
        ("✿FUNCTION✿:",),
        ("✿FUNCTION✿:", SPACE, _NAME, SPACE, "✿ARGS✿:", SPACE),
        wrappers=("✿RESULT✿:", "✿RESULT✿"),
        tags=(("✿FUNCTION✿", ""), ("✿ARGS✿", ""), ("✿RESULT✿", "")),
        call=("✿FUNCTION✿: ", Slot.NAME, "\n✿ARGS✿: ", *_ARGUMENTS),
    ),
    NamedJsonStyle(
        "gemma",
        ("<|tool_call>call:", "<|tool_call>:call:", "<start_function_call>call:"),
        (OptionalParts("<|tool_call>"), OptionalParts("<start_function_call>"), OptionalParts(":"), "call:", _NAME),
        TOKEN_QUOTED,
        wrappers=("<tool_call|>", "<end_function_call>", "<|tool_call>"),
        control_tokens=("<turn|>", "<end_of_turn>"),
        tags=(("<|tool_call>", "<tool_call|>"), ("<start_function_call>", "<end_function_call>")),
        call=("<|tool_call>call:", Slot.NAME, *_ARGUMENTS, "<tool_call|>"),
        values="token",
    ),
    # The same without its token, or with a damaged one.
    NamedJsonStyle(
        "gemma",
        ("call:", "<call>"),
        (OptionalParts("<call>"), OptionalParts("call:"), _NAME),
        TOKEN_QUOTED,
        is_exact=True,
        clarity=0,
    ),
    # Small models of the Llama family write the arguments into the tag of the function.
    NamedJsonStyle(
        "function",
        ("<function=",),
        ("<function=", _NAME, SPACE, OptionalParts("("), OptionalParts("["), SPACE),
        wrappers=tuple(f"{brackets}{end}</function>" for brackets in ("", ")", "]", "])") for end in (">", "")),
        is_exact=True,
        tags=(("<function=", "</function>"),),
        call=("<function=", Slot.NAME, ">", *_ARGUMENTS, "</function>"),
    ),
    NamedJsonStyle(
        "functionary",
        (">>>",),
        (">>>", _NAME, *_LINE_END, SPACE),
        tags=((">>>", ""),),
        call=(">>>", Slot.NAME, "\n", *_ARGUMENTS),
    ),
    NamedJsonStyle(
        "name and arguments",
        (),
        (_NAME, *_LINE_END),
        name_suffixes=("\n{", "\r\n{"),
        is_exact=True,
        clarity=1,
        call=(Slot.NAME, "\n", *_ARGUMENTS),
    ),
)
"""All notations of this family."""


# Kimi numbers the calls of a conversation: `functions.f:0`.
_CALL_NUMBER: Final = re.compile(r":\d+\Z")
_INSIDE_WORD: Final = re.compile(r"\w\w")
_NO_ARGUMENTS: Final = "no arguments"


class NamedJson(TextFormat):
    """A notation that writes the name first and then the arguments as an object."""

    escape = JSON_ESCAPE

    def __init__(self, style: NamedJsonStyle) -> None:
        """Create the format of a style."""
        self.name: str = style.name
        self.openings: tuple[str, ...] = style.openings
        self.name_suffixes: tuple[str, ...] = style.name_suffixes
        self.wrappers: tuple[str, ...] = style.wrappers
        self.control_tokens: tuple[str, ...] = style.control_tokens
        self.clarity: int = style.clarity
        self.tags: tuple[tuple[str, str], ...] = style.tags
        self.patterns: tuple[CallPattern, ...] = style.patterns
        self._style = style

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
        """Parse the name and then the object."""
        captures: dict[str, str] = {}
        style = self._style
        if style.is_exact and _INSIDE_WORD.search(buffer.text, max(0, start - 1), start + 1):
            return AttemptResult(start)
        position = yield from match_header(buffer, start, style.header, captures)
        if position < 0 or (style.is_exact and captures["name"] not in tools.by_exact_name):
            return AttemptResult(start)
        while position == len(buffer.text) and not buffer.is_complete:
            yield None
        name = self._clean(captures["name"], tools)
        closer = yield from match_literal(buffer, position, style.ends)
        if closer:
            end = position + len(closer)
            yield CallDraft(name, {}, start, end, repairs=(_NO_ARGUMENTS,))
            return AttemptResult(end)
        if not buffer.text.startswith("{", position):
            rejection = "" if style.is_exact else "no arguments follow the name of the tool"
            return AttemptResult(start, rejection, position)
        reader = yield from read_value(buffer, position, style.dialect)
        if not isinstance(reader.value, ParsedObject):
            return AttemptResult(start, reader.failure, reader.reached)
        draft = draft_call(name, reader.value, reader, buffer, (start, reader.position))
        yield draft if style.dialect is JSON else evolve(draft, raw="")  # other dialects are not JSON
        return AttemptResult((yield from skip_closing_fence(buffer, start, position, reader.position)))

    def _clean(self, name: str, tools: OfferedTools) -> str:
        """Return a name without what the notation adds to it."""
        name = _CALL_NUMBER.sub("", name).removeprefix("functions.")
        if tools.is_offered(tools.normalize_name(name)):
            return name
        bare = (name.removesuffix(text) for text in self._style.glued)
        return next((each for each in bare if tools.is_offered(tools.normalize_name(each))), name)
