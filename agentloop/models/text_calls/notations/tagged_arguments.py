"""Notations that write every argument in a separate tag: one table of styles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import define, evolve, frozen

from agentloop.models.text_calls.literals import REPEATED_KEY, ParsedObject
from agentloop.models.text_calls.notations.elements import (
    IN_TAG,
    SPACE,
    Capture,
    HeaderPart,
    OptionalParts,
    draft_call,
    match_header,
    read_value,
)
from agentloop.models.text_calls.offered_tools import OfferedTools
from agentloop.models.text_calls.text_buffer import (
    Resumable,
    TextBuffer,
    find_literal,
    find_pattern,
    match_literal,
    skip_space,
)
from agentloop.models.text_calls.text_format import (
    AttemptResult,
    CallDraft,
    CallPattern,
    ParseAttempt,
    Slot,
    TextFormat,
)


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
        tags: further texts that only calls have, as in `TextFormat.tags`.
        argument_tags: further texts around arguments, as in `TextFormat.argument_tags`.
        wrapper: the texts around each call, or around all of them, as in the chat templates.
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
    tags: tuple[tuple[str, str], ...] = ()
    argument_tags: tuple[tuple[str, str], ...] = ()
    wrapper: tuple[str, str] = ("", "")

    @property
    def patterns(self) -> tuple[CallPattern, ...]:
        """How calls are written: without line breaks, and as chat templates do with them."""
        name, key = _parts_of(self.opening, self.header), _parts_of(self.parameter, self.parameter_header)
        value = ("\n", Slot.VALUE, "\n") if self.has_line_breaks else (Slot.VALUE,)
        before, behind = self.wrapper
        return (
            CallPattern((*name, Slot.ARGUMENTS, self.end), (*key, Slot.VALUE, self.parameter_end), "text", ""),
            CallPattern(
                (*name, "\n", Slot.ARGUMENTS, "\n", self.end),
                (*key, *value, self.parameter_end),
                "text",
                "\n",
                ((before, "\n"), ("\n", behind)) if before else ((), ()),
            ),
        )


def _parts_of(opening: str, header: tuple[HeaderPart, ...]) -> tuple[str | Slot, ...]:
    """Return the parts of a tag with a name or a key; a name that is an attribute has quotation marks."""
    mark = '"' if opening.endswith((" name=", " tool=", " key=")) else ""
    parts: list[str | Slot] = [opening]
    for part in header:
        if isinstance(part, Capture):
            slot = Slot.KEY if part.name == "key" else Slot.NAME
            parts += [mark, slot, mark] if mark else [slot]
        elif isinstance(part, str):
            parts.append(part)
    return tuple(parts)


_NAME_IN_TAG: Final = (Capture("name", IN_TAG), ">")
_KEY_IN_TAG: Final = (Capture("key", IN_TAG), ">")


def _invoke(prefix: str, *wrappers: str) -> TagStyle:
    """Return the style of `<invoke name=…>`, with a prefix before the name of every tag."""
    pairs = tuple((f"<{prefix}{wrapper}>", f"</{prefix}{wrapper}>") for wrapper in wrappers)
    return TagStyle(
        "invoke",
        f"<{prefix}invoke name=",
        _NAME_IN_TAG,
        f"<{prefix}parameter name=",
        _KEY_IN_TAG,
        f"</{prefix}parameter>",
        f"</{prefix}invoke>",
        wrappers=tuple(tag for pair in pairs for tag in pair),
        tags=(*pairs, *(((prefix.rstrip(), ""),) if prefix else ())),
        wrapper=pairs[0] if pairs else ("", ""),
    )


def _arg_key(prefix: str, suffix: str, name: Capture) -> TagStyle:
    """Return the style of `<arg_key>` and `<arg_value>`, with a prefix and a suffix of the name of every tag."""

    def tag(element: str) -> str:
        return f"<{prefix}{element}{suffix}>"

    def end_tag(element: str) -> str:
        return f"</{prefix}{element}{suffix}>"

    return TagStyle(
        "arg_key",
        tag("tool_call"),
        (SPACE, name, SPACE, OptionalParts(tag("tool_sep"))),
        tag("arg_key"),
        (
            Capture("key", IN_TAG),
            end_tag("arg_key"),
            SPACE,
            OptionalParts(tag("arg_type"), Capture("type", IN_TAG), end_tag("arg_type"), SPACE),
            tag("arg_value"),
        ),
        end_tag("arg_value"),
        end_tag("tool_call"),
        wrappers=(tag("tool_calls"), end_tag("tool_calls")),
        control_tokens=(f"<｜hy_eos{suffix}｜>",) if suffix else (),
        tags=((tag("tool_calls"), end_tag("tool_calls")), (tag("tool_sep"), "")),
        argument_tags=tuple((tag(name), end_tag(name)) for name in ("arg_key", "arg_type", "arg_value")),
        wrapper=(tag("tool_calls"), end_tag("tool_calls")),
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
    wrappers=("<seed:tool_call>", "</seed:tool_call>", "</function_invocation>"),
    tags=(
        ("<tool_call>", "</tool_call>"),
        ("<seed:tool_call>", "</seed:tool_call>"),
        ("<function_invocation>", "</function_invocation>"),
    ),
    wrapper=("<tool_call>", "</tool_call>"),
)
_STEP_TOKENS: Final = (
    "<｜tool_calls_begin｜>",
    "<｜tool_call_begin｜>",
    "<｜tool_call_begin｜>function<｜tool_sep｜>",
    "<｜tool_call_end｜>",
    "<｜tool_sep｜>",
    "<｜tool_calls_end｜>",
    "<steptml:toolcall>",
    "</steptml:toolcall>",
)

TAG_STYLES: Final = (
    _FUNCTION,  # Qwen 3 Coder, Nemotron 3, Step 3.5, Seed-OSS; with a JSON body: functionary 3.1
    evolve(_FUNCTION, parameter="<parameter name="),
    evolve(_FUNCTION, opening="<function name=", parameter="<param name=", parameter_end="</param>"),  # MiniCPM 5
    evolve(_FUNCTION, opening="<function name=", parameter="<parameter name="),
    _invoke("", "function_calls", "tool_calls", "minimax:tool_call", "dots_function_call"),  # MiniMax M2, dots
    # DeepSeek 3.2 and 4.1, also with the bars that some of their providers write, and GigaChat 3.5
    *(
        _invoke(prefix, "function_calls", "tool_calls", "calls")
        for prefix in ("｜DSML｜", "｜DSML｜ ", "|DSML|", "‖DSML‖", "｜｜DSML｜｜")
    ),
    _invoke("｜GCML｜", "function_calls", "tool_calls"),
    _invoke("antml:", "function_calls"),
    _invoke("atem:", "function_calls"),
    evolve(  # Step 3
        _invoke("steptml:"),
        wrappers=_STEP_TOKENS,
        tags=(
            *((f"<｜tool_{part}_begin｜>", f"<｜tool_{part}_end｜>") for part in ("calls", "call")),
            ("<｜tool_sep｜>", ""),
            ("<steptml:toolcall>", "</steptml:toolcall>"),
            ("steptml:", ""),
        ),
        wrapper=("<steptml:toolcall>", "</steptml:toolcall>"),
    ),
    _arg_key("", "", Capture("name")),  # GLM 4.5, Hunyuan 3
    _arg_key("", ":opensource", Capture("name", r"[\w.-]")),  # Hunyuan
    _arg_key("ifm|", "", Capture("name")),  # K2 Horizon
    TagStyle(
        "tool_arg",
        "<|tool_call:start|>",
        (SPACE, Capture("name", r"[\w.-]")),
        "<|tool_arg:start|>",
        (Capture("key", IN_TAG), "<|tool_arg:value|>"),
        "<|tool_arg:end|>",
        "<|tool_call:end|>",
        argument_tags=(("<|tool_arg:value|>", ""),),
    ),  # Solar Open 2
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
        tags=(("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"), ("<|open|>", ""), ("<|close|>", ""), ("<|sep|>", "")),
        wrapper=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
    ),  # Kimi K3
)
"""All notations of this family."""


@frozen
class _Argument:
    """An argument as it stands in the text.

    Attributes:
        tag: the content of its opening tag: its name, and perhaps attributes.
        tag_start: offset of its opening tag.
        start: offset of its value.
        end: offset behind its value.
        is_closed: whether its closing tag follows.
    """

    tag: str
    tag_start: int
    start: int
    end: int
    is_closed: bool = True

    @property
    def name(self) -> str:
        """The name."""
        return _first_value(self.tag)


@define
class _ShownArguments:
    """The arguments that a value shows and that the tool does not have.

    Attributes:
        properties: the parameters of the tool.
        count: the number of shown arguments that are open.
        first_end: where the value ends if no other closing tag follows: at the first one that may also close a shown argument.
    """

    properties: Mapping[str, object]
    count: int = 0
    first_end: int = -1


_MISSING_CLOSER: Final = "missing closing tag"

_BRACKET: Final = re.compile(r"[(\[{]")
_VALUE: Final = re.compile(r"\s*[\"']?([^\"'\s]+)")
_CDATA_START: Final = "<![CDATA["
_CDATA_END: Final = "]]>"
_LINE_BREAK: Final = re.compile(r"\r?\n")
_LAST_LINE_BREAK: Final = re.compile(r"\r?\n\Z")
_DECLARES_STRING: Final = re.compile(r"""\b(?:string=["']true|type=["']string)["']""")
_DECLARES_JSON: Final = re.compile(
    r"""\b(?:string=["']false|type=["'](?:integer|number|boolean|null|array|object))["']"""
)


class TaggedArguments(TextFormat):
    """`<function=f><parameter=a>1</parameter></function>` and its variants; the tool's schema decides the types of values."""

    def __init__(self, style: TagStyle) -> None:
        """Create the format of a style."""
        self.name: str = style.name
        self.openings: tuple[str, ...] = (style.opening,)
        self.wrappers: tuple[str, ...] = style.wrappers
        self.control_tokens: tuple[str, ...] = style.control_tokens
        self.tags: tuple[tuple[str, str], ...] = ((style.opening, style.end), *style.tags)
        self.argument_tags: tuple[tuple[str, str], ...] = _argument_tags(style)
        self.escape: str = f"; a text that must contain such a tag stands between {_CDATA_START} and {_CDATA_END}"
        self.patterns: tuple[CallPattern, ...] = style.patterns
        self._style = style
        self._continuations = (style.parameter, style.end)
        # What may directly follow a call.
        self._followers = ("</", style.opening, *style.wrappers)
        element = style.opening.partition(" ")[0].rstrip("=>")
        marks = (style.parameter_end, style.end, style.parameter, element)
        self._marks = re.compile("|".join(map(re.escape, marks[:3])) + rf"|{re.escape(element)}(?=[\s=>])")
        self._max_mark_length = max(map(len, marks)) + 1
        self._parameter_starts = re.compile(re.escape(style.parameter))
        self._parameter_marks = re.compile(rf"{re.escape(style.parameter_end)}|(?<=\n){re.escape(style.parameter)}")

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
        """Parse the arguments one by one, or a JSON object with all of them."""
        captures: dict[str, str] = {}
        position = yield from match_header(buffer, start + len(self._style.opening), self._style.header, captures)
        closes_itself = captures.get("name", "").rstrip().endswith("/")
        name = _first_value(captures.get("name", "").rstrip("/ ") if closes_itself else captures.get("name", ""))
        if position < 0 or not name:
            return AttemptResult(start)
        if _BRACKET.search(captures["name"]):
            return AttemptResult(start, "its tag contains more than the name of a tool", position)
        if _is_damaged(captures["name"]):
            return AttemptResult(start, _DAMAGED_TAG, position)
        if closes_itself:
            yield CallDraft(name, {}, start, position)
            return AttemptResult(position)
        position = yield from skip_space(buffer, position)
        if buffer.text.startswith("{", position):
            return (yield from self._read_json(buffer, start, position, name))
        return (yield from self._read_arguments(buffer, start, position, name, tools))

    def _read_json(self, buffer: TextBuffer, start: int, position: int, name: str) -> ParseAttempt:
        reader = yield from read_value(buffer, position)
        if not isinstance(reader.value, ParsedObject):
            return AttemptResult(start, reader.failure, reader.reached)
        yield draft_call(name, reader.value, reader, buffer, (start, reader.position))
        closing = yield from skip_space(buffer, reader.position)
        closer = yield from match_literal(buffer, closing, (self._style.end,))
        return AttemptResult(closing + len(closer) if closer else reader.position)

    def _read_arguments(
        self, buffer: TextBuffer, start: int, position: int, name: str, tools: OfferedTools
    ) -> ParseAttempt:
        arguments: list[_Argument] = []
        reached = position
        while True:
            position = yield from skip_space(buffer, position)
            tag = yield from match_literal(buffer, position, self._continuations)
            if tag != self._style.parameter:
                break
            argument = yield from self._match_opening_tag(buffer, position)
            if argument is None:
                return AttemptResult(start, "an argument is never closed", position)
            if _is_damaged(argument.tag):
                return AttemptResult(start, _DAMAGED_TAG, position)
            end = yield from self._find_literal_end(buffer, argument.start)
            is_closed, reached = True, max(end, argument.start)
            if end < 0:
                properties = tools.properties(tools.normalize_name(name))
                end, is_closed, reached = yield from self._find_value_end(buffer, argument.start, properties)
            if end < 0:
                return AttemptResult(start, "an argument is never closed", reached)
            arguments.append(evolve(argument, end=end, is_closed=is_closed))
            position = end + len(self._style.parameter_end) if is_closed else end
        # The closing tag of a call with arguments may be missing if another tag closes here, or another call begins.
        is_left_open = not tag and bool(arguments)
        if is_left_open and not buffer.text.startswith("</", position):
            is_left_open = yield from self._begins_call(buffer, position)
        if not (tag or is_left_open):
            return AttemptResult(start, "the call is never closed" if arguments else "", max(position, reached))
        properties = tools.properties(tools.normalize_name(name))
        arguments = yield from self._split(buffer, arguments, properties)
        problem = yield from self._find_hidden(buffer, arguments, properties)
        end = position + len(tag)
        draft = self._draft(buffer.text, name, arguments, (start, end), is_closed=bool(tag))
        yield evolve(draft, problem=problem) if problem else draft
        return AttemptResult(end, reached=reached)

    def _draft(
        self, text: str, name: str, arguments: Sequence[_Argument], span: tuple[int, int], *, is_closed: bool
    ) -> CallDraft:
        are_closed = all(argument.is_closed for argument in arguments)
        values = {argument.name: self._value(text, argument) for argument in arguments}
        return CallDraft(
            name,
            values,
            *span,
            repairs=(
                *(() if len(values) == len(arguments) else (REPEATED_KEY,)),
                *(() if are_closed else (f"{_MISSING_CLOSER} {self._style.parameter_end}",)),
                *(() if is_closed else (_MISSING_CLOSER,)),
            ),
            untyped=frozenset({argument.name for argument in arguments if not _DECLARES_STRING.search(argument.tag)}),
            encoded=frozenset({argument.name for argument in arguments if _DECLARES_JSON.search(argument.tag)}),
            literal=frozenset({argument.name for argument in arguments if _has_cdata(text, argument)}),
        )

    def _value(self, text: str, argument: _Argument) -> str:
        """Return a value without CDATA marks, or without the line breaks that separate it from its tags."""
        value = text[argument.start : argument.end]
        if _has_cdata(text, argument):
            return value.strip()[len(_CDATA_START) : -len(_CDATA_END)]
        if self._style.has_line_breaks:
            first = _LINE_BREAK.match(value)
            value = _LAST_LINE_BREAK.sub("", value[first.end() :] if first else value)
            # Where the line of the closing tag was left empty, it has a line break of its own.
            return value if argument.is_closed else _LAST_LINE_BREAK.sub("", value)
        # The tag that ends an unclosed value stands on a line of its own.
        return value if argument.is_closed else value[:-1].removesuffix("\r")

    def _match_opening_tag(self, buffer: TextBuffer, position: int) -> Resumable[_Argument | None]:
        """Return the argument whose opening tag is at a position, without its value; None if the tag is damaged."""
        captures: dict[str, str] = {}
        header = position + len(self._style.parameter)
        start = yield from match_header(buffer, header, self._style.parameter_header, captures)
        return None if start < 0 else _Argument(captures["key"], position, start, start)

    def _find_literal_end(self, buffer: TextBuffer, position: int) -> Resumable[int]:
        """Return the offset behind a value between CDATA marks, which may contain any tags; -1 if the value is another one."""
        position = yield from skip_space(buffer, position)
        if not (yield from match_literal(buffer, position, (_CDATA_START,))):
            return -1
        while True:
            position = yield from find_literal(buffer, position, _CDATA_END)
            if position < 0:
                return -1
            position += len(_CDATA_END)
            end = yield from skip_space(buffer, position)
            if (yield from match_literal(buffer, end, (self._style.parameter_end,))):
                return end

    def _find_value_end(
        self, buffer: TextBuffer, position: int, properties: Mapping[str, object]
    ) -> Resumable[tuple[int, bool, int]]:
        """Find the end of a value.

        Values are not escaped and may contain the closing tag themselves, so the value ends at the first closing tag that
        another argument, the end of the call or another call follows. Where there is none before the next call or the end of the text, the
        closing tag is missing, and the value ends at the line that closes the call: a closing tag without an opening one in
        the value. At the end of the text, only tags may directly follow that line, since the answer may also be cut off.

        A value may show a whole call in the notation: the closing tag of an argument that the tool does not have belongs to that
        argument, if another one closes the value before the call ends.

        Returns:
            The offset behind the value, or -1; whether its closing tag is there; and the offset up to which the text was
            examined.
        """
        depth, last_line, is_certain, shown = 0, -1, False, _ShownArguments(properties)
        while True:
            position, mark = yield from find_pattern(buffer, position, self._marks, self._max_mark_length)
            if shown.first_end >= 0 and (position < 0 or (mark == self._style.end and not depth)):
                return shown.first_end, True, len(buffer.text) if position < 0 else position
            if position < 0:
                return last_line if is_certain else -1, False, len(buffer.text)
            behind = position + len(mark)
            if mark in {self._style.parameter, self._style.parameter_end}:
                if (yield from self._closes_value(buffer, position, mark, shown)):
                    return position, True, behind
            elif mark != self._style.end:
                if last_line >= 0 and (yield from self._begins_call(buffer, position)):
                    return last_line, False, behind
                depth += 1
            elif depth:
                depth -= 1
            elif not is_certain and buffer.text[position - 1] == "\n":
                followers = (self._style.parameter_end, *self._followers)
                follower = yield from self._match_follower(buffer, behind, followers)
                is_certain = follower is not None and follower != self._style.parameter_end
                # Where something else follows, the first such line counts.
                is_last = is_certain or (follower is None and last_line < 0)
                last_line = position if is_last else last_line
            position = behind

    def _closes_value(self, buffer: TextBuffer, position: int, mark: str, shown: _ShownArguments) -> Resumable[bool]:
        """Whether a tag of an argument closes the value that it is in, and not an argument that the value shows."""
        if mark == self._style.parameter:
            inner = yield from self._match_opening_tag(buffer, position)
            shown.count += inner is not None and bool(shown.properties) and inner.name not in shown.properties
            return False
        if (yield from self._ends_value(buffer, position + len(mark))):
            if not shown.count:
                return True
            shown.first_end = position if shown.first_end < 0 else shown.first_end
        shown.count -= shown.count > 0
        return False

    def _ends_value(self, buffer: TextBuffer, position: int) -> Resumable[bool]:
        """Whether what follows a closing tag says that the value ends there."""
        if (yield from self._match_follower(buffer, position, (*self._continuations, "</"))) is not None:
            return True
        position = yield from skip_space(buffer, position)
        return (yield from self._begins_call(buffer, position))

    def _match_follower(self, buffer: TextBuffer, position: int, followers: tuple[str, ...]) -> Resumable[str | None]:
        """Return which text follows behind white space: empty at the end of the text, None if it is another one."""
        position = yield from skip_space(buffer, position)
        follower = yield from match_literal(buffer, position, followers)
        return follower if follower or position == len(buffer.text) else None

    def _begins_call(self, buffer: TextBuffer, position: int) -> Resumable[bool]:
        """Whether a call begins at a position, and not only a text with the same tag."""
        header = (self._style.opening, *self._style.header)
        position = yield from match_header(buffer, position, header, {})
        return position >= 0 and bool((yield from self._match_follower(buffer, position, (*self._continuations, "{"))))

    def _split(
        self, buffer: TextBuffer, arguments: Sequence[_Argument], properties: Mapping[str, object]
    ) -> Resumable[list[_Argument]]:
        """Separate the arguments between which a closing tag is missing, so that one of them contains the other.

        A value may also contain the opening tag as text, such as an explanation of the notation, and then it must stay whole.
        Both readings are possible if a line of the value begins with an opening tag and the value does not close it. It is an
        argument if the tool has one of that name and the call does not pass it elsewhere: models lose a closing tag far more
        often than they write exactly this name at the beginning of a line of a text. A tool that describes no arguments may
        have any. Every other name would be an argument that the tool does not know.
        """
        names = {argument.name for argument in arguments}
        parts: list[_Argument] = []
        for whole in arguments:
            argument = whole
            for inner in (yield from self._find_unclosed(buffer, whole)):
                if inner.name in names or (properties and inner.name not in properties):
                    continue
                names.add(inner.name)
                parts.append(evolve(argument, end=inner.tag_start, is_closed=False))
                argument = evolve(inner, end=whole.end, is_closed=whole.is_closed)
            parts.append(argument)
        return parts

    def _find_hidden(
        self, buffer: TextBuffer, arguments: Sequence[_Argument], properties: Mapping[str, object]
    ) -> Resumable[str]:
        """Return why a call must not run: a value has another argument of the tool in it, which the call does not pass elsewhere.

        A value may show how the notation is written, but then it is not likely to name just such an argument: a tag is in the wrong
        place, and the value has swallowed an argument.
        """
        names = {argument.name for argument in arguments}
        for argument in arguments:
            if _has_cdata(buffer.text, argument):
                continue
            starts = [
                mark.start() for mark in self._parameter_starts.finditer(buffer.text, argument.start, argument.end)
            ]
            for start in starts:
                inner = yield from self._match_opening_tag(buffer, start)
                if inner is not None and inner.name in properties and inner.name not in names:
                    return (
                        f"the argument {argument.name!r:.80} contains the argument {inner.name!r:.80}, which the call does not pass; "
                        f"pass each argument by itself{self.escape}"
                    )
        return ""

    def _find_unclosed(self, buffer: TextBuffer, argument: _Argument) -> Resumable[list[_Argument]]:
        """Return the opening tags that begin a line of a value and have no closing tag in it."""
        unclosed: list[_Argument] = []
        if _has_cdata(buffer.text, argument):
            return unclosed
        marks = [mark.start() for mark in self._parameter_marks.finditer(buffer.text, argument.start, argument.end)]
        for position in marks:
            if buffer.text.startswith(self._style.parameter_end, position):
                del unclosed[-1:]
                continue
            inner = yield from self._match_opening_tag(buffer, position)
            if inner is not None and inner.start <= argument.end:
                unclosed.append(inner)
        return unclosed


def _argument_tags(style: TagStyle) -> tuple[tuple[str, str], ...]:
    # In some notations, what opens an argument is closed behind its key.
    own = {opening for opening, _ in style.argument_tags}
    pair = () if style.parameter in own else ((style.parameter, style.parameter_end),)
    return (*pair, *style.argument_tags)


_DAMAGED_TAG: Final = "a quotation mark is missing or in the wrong place in one of its tags"


# A value in quotation marks, and something else directly behind it than the slash of a tag that closes itself.
_GLUED: Final = re.compile(r"\s*(?:\"[^\"]*\"|'[^']*')(?!/?\s*\Z)\S")


def _is_damaged(tag: str) -> bool:
    return tag.count('"') % 2 == 1 or _GLUED.match(tag) is not None


def _has_cdata(text: str, argument: _Argument) -> bool:
    return _is_cdata(text[argument.start : argument.end].strip())


def _is_cdata(text: str) -> bool:
    return text.startswith(_CDATA_START) and text.endswith(_CDATA_END)


def _first_value(text: str) -> str:
    """Return the first word of a tag's content, without quotation marks; attributes may follow it."""
    match = _VALUE.match(text)
    return match[1] if match else ""
