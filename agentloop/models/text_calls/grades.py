"""Grading of the calls in a text: the whole answer, part of a sentence, or only quoted."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from attrs import define, field

from agentloop.models.text_calls.literal_reader import LiteralReader
from agentloop.models.text_calls.offered_tools import OfferedTools
from agentloop.models.text_calls.openings import REASONING_TAGS
from agentloop.models.text_calls.results import CallGrade, RejectedCall


@define
class Segment:
    """A part of a text as the parser of calls saw it.

    Attributes:
        start: offset of its first character.
        end: offset behind its last character.
        kind: `text`; `mark` for a tag or a fence around calls; `token` for a control token, which is never shown; `call`; or
            `reasoning`.
        calls: the number of calls that were parsed from it.
        is_mixed: whether the calls are in an object with other contents.
    """

    start: int
    end: int
    kind: str = "text"
    calls: int = 0
    is_mixed: bool = False


def grade_calls(text: str, segments: Sequence[Segment], form: Sequence[tuple[int, int]] = ()) -> list[CallGrade]:
    """Return a grade for each segment with calls, in order. The time is linear in the text.

    Args:
        text: the whole text.
        segments: its parts, in order.
        form: spans without calls that belong to the form that the prompt asked for, in order; they are not prose.
    """
    spans = _Form(form)
    context = _Context(text)
    found: list[_Place] = []
    has_prose = False
    for segment in segments:
        if segment.kind == "call":
            found.append(context.place(segment, is_loose=spans.contain(segment.start)))
            has_prose = has_prose or segment.is_mixed or context.shows(segment)
            context.skip(segment)
        elif segment.kind == "reasoning":
            if not text.startswith(_REASONING_OPENERS, segment.start):
                has_prose = has_prose or not _ends_reasoning(text, segment, context)
            context.skip(segment)
        else:
            context.scan(segment)
            if segment.kind == "text":
                has_prose = has_prose or context.has_nested_fence or spans.has_prose(text, segment, context.fence_marks)
            elif segment.kind == "token":
                has_prose = has_prose or _FINAL in text[segment.start : segment.end]
            else:
                has_prose = has_prose or text.startswith(_LONG_FENCE, segment.start)
    has_formed = not all(place.is_loose for place in found)
    return [_grade(place, context.fences, has_prose=has_prose, has_formed=has_formed) for place in found]


def grade_rejected(text: str, segments: Sequence[Segment], rejected: Iterable[RejectedCall]) -> list[CallGrade]:
    """Return the grade of each rejected part of a text without calls.

    Args:
        text: the whole text.
        segments: its parts, in order.
        rejected: the rejected parts; those that overlap have one grade.
    """
    rejected = list(rejected)
    spans: list[tuple[int, int]] = []
    for start, end in sorted({(each.start, max(each.start + 1, each.end)) for each in rejected}):
        if not spans or start >= spans[-1][1]:
            spans.append((start, min(end, len(text))))
    parts: list[Segment] = []
    position = 0
    for start, end in spans:
        parts += [*_clip(segments, position, start), Segment(start, end, "call", 1)]
        position = end
    grades = grade_calls(text, [*parts, *_clip(segments, position, len(text))])
    starts = [start for start, _ in spans]
    return [grades[bisect_right(starts, each.start) - 1] for each in rejected]


def are_shown(text: str, segments: Sequence[Segment], spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Return, for each of some short parts, whether the text shows it: it is code, quoted or marked, or in a fence among words.

    Where there are calls, code marks and quotation marks count among words only.

    Args:
        text: the whole text.
        segments: its parts, in order.
        spans: the offsets of the first character and behind the last one of each part, in order.
    """
    context, places, index = _Context(text), list[_Place](), 0
    for segment in segments:
        if segment.kind in {"call", "reasoning"}:
            context.skip(segment)
            continue
        position = segment.start
        while index < len(spans) and spans[index][0] < segment.end:
            start, end = spans[index]
            context.scan_text(Segment(position, start, segment.kind))
            places.append(context.place(Segment(start, end), is_loose=False))
            position, index = end, index + 1
        context.scan_text(Segment(position, segment.end, segment.kind))
    has_words = _has_words_outside(text, segments, context.fence_marks, spans)
    # Beside calls and without words, a quotation mark is left of a damaged call.
    has_quotations = has_words or all(segment.kind != "call" for segment in segments)
    return [
        place.is_marked or (place.is_quoted and has_quotations) or (place.is_fenced and has_words) for place in places
    ]


def _has_words_outside(
    text: str, segments: Iterable[Segment], fence_marks: Sequence[tuple[int, int]], tags: Sequence[tuple[int, int]]
) -> bool:
    """Whether the text has words outside of its fenced blocks and of some tags, which are in order."""
    edges = [0, *[edge for mark in fence_marks for edge in mark], len(text)]
    outside = [(edges[index], edges[index + 1]) for index in range(0, len(edges) - 1, 4)]
    parts = [part for segment in segments if segment.kind == "text" for part in _within(segment, outside)]
    found = (match.start() for start, end in parts for match in _WORDS.finditer(text, start, end) if match[1])
    return any(not any(_within(Segment(start, start + 1), tags)) for start in found)


def _within(segment: Segment, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    index = max(0, bisect_right(spans, (segment.start, segment.start)) - 1)
    while index < len(spans) and spans[index][0] < segment.end:
        start, end = spans[index]
        if end > segment.start:
            yield max(start, segment.start), min(end, segment.end)
        index += 1


def _clip(segments: Iterable[Segment], start: int, end: int) -> Iterator[Segment]:
    for segment in segments:
        if segment.start < end and segment.end > start:
            yield Segment(max(segment.start, start), min(segment.end, end), segment.kind)


@define
class _Place:
    """Where a call stands.

    Attributes:
        is_loose: whether it is inside of a part of the form that holds no calls.
        is_marked: whether its line is marked as a quotation, an example or a record.
        is_quoted: whether it is inside of quotation marks or code marks that only count among prose.
        is_fenced: whether it is in a fenced block.
    """

    is_loose: bool
    is_marked: bool
    is_quoted: bool
    is_fenced: bool


def _grade(place: _Place, fences: int, *, has_prose: bool, has_formed: bool) -> CallGrade:
    if place.is_marked:
        return CallGrade.QUOTED
    # Next to calls in the form that was asked for, one in another part of the answer is only mentioned.
    if place.is_loose and has_formed:
        return CallGrade.QUOTED
    if not has_prose and not place.is_loose:
        return CallGrade.PLAIN
    if place.is_quoted or (place.is_fenced and fences > 1):
        return CallGrade.QUOTED
    return CallGrade.EMBEDDED


_WORD: Final = re.compile(r"\w")
# A word alone matches too, without the group: else the search would begin again at each of its letters.
_WORDS: Final = re.compile(r"[^\W\d_]{2,}+([ \t]++[^\W\d_]{2,}+)?")
# Everything else than separators and brackets is prose: a symbol may negate a call, and marks may comment it out.
_PROSE: Final = re.compile(r"[^\s;,\[\]`]|;;")
# A control token with this word begins what is shown to the user.
_FINAL: Final = "final"
_REASONING_OPENERS: Final = tuple([opener for opener, _ in REASONING_TAGS])
_SENTENCE_END: Final = re.compile(r"[.!?…。！？｡।؟][\"'”’»」』)\]*_]{0,3}\s*\Z")  # noqa: RUF001  # punctuation


def _ends_reasoning(text: str, segment: Segment, context: _Context) -> bool:
    """Whether everything before a closing tag reads as reasoning, whose opening tag was part of the prompt.

    A closing tag may also be quoted, with the calls behind it. Reasoning ends with a sentence, and with nothing left open.
    """
    closer = max(text.rfind(opening, segment.start, segment.end) for opening in "<[◁")
    context.scan(Segment(segment.start, closer))
    is_open = context.is_open or context.is_marked(Segment(closer, segment.end))
    context.clear()
    return not is_open and _SENTENCE_END.search(text, max(segment.start, closer - _WINDOW), closer) is not None


class _Form:
    """The spans of a text that belong to the form that the prompt asked for."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        self._starts = [start for start, _ in spans]
        self._ends = [end for _, end in spans]

    def contain(self, position: int) -> bool:
        index = bisect_right(self._starts, position) - 1
        return index >= 0 and position < self._ends[index]

    def has_prose(self, text: str, segment: Segment, fence_marks: Sequence[tuple[int, int]]) -> bool:
        """Whether a segment has prose outside of the spans and of the marks of fences, which are in order."""
        position, index = segment.start, bisect_right(fence_marks, (segment.start, 0)) - 1
        while position < segment.end:
            found = _PROSE.search(text, position, segment.end)
            if found is None:
                return False
            start = found.start()
            while index + 1 < len(fence_marks) and fence_marks[index + 1][0] <= start:
                index += 1
            if index >= 0 and start < fence_marks[index][1]:
                position = fence_marks[index][1]
            elif self.contain(start):
                position = self._ends[bisect_right(self._starts, start) - 1]
            else:
                return True
        return False


# Elements whose content is shown, and not meant as an instruction.
_QUOTING_ELEMENTS: Final = (
    "code|pre|samp|kbd|tt|xmp|blockquote|q|cite|del|textarea|script|template|td|th|li|example|examples|quote|document|"
    "page|untrusted|tool_response|tool_responses|tool_result|tool_results|function_response|function_result|"
    "function_results|observation|output|result|results"
)
_TOKEN: Final = re.compile(
    r"\n(?:[ \t]*\n)?"
    r"|(?:`+|~{3,})"
    r"|[\"“”„‟«»‹›「」『』]|(?<!<)\|(?!>)"  # noqa: RUF001  # quotation marks
    r"|<!--|-->"
    rf"|<(?P<close>/?)(?:{_QUOTING_ELEMENTS})\b[^<>\n]{{0,200}}+>",
    re.IGNORECASE,
)
_MAX_MARK_LENGTH: Final = 120

# What stands at the beginning of a line that is quoted or recorded: after indentation and list marks, a block quote, a table,
# a comment, a prompt of a shell or an interpreter, a line of a diff, or the time or level of a log.
_LINE_MARK: Final = re.compile(
    r"[ \t]*+(?>(?:[-*+]|\d{1,3}[.)])[ \t]++)*+(?:"
    r">|\||//|#|--[ \t]|;;|%%"
    r"|[\w.@~:/\\-]{0,60}+[$%][ \t]"
    r"|In \[\d*\]:|Out\[\d*\]:"
    r"|[+-](?![ \t])|@@"
    r"|\W{0,4}+(?:\d{4}-\d\d-\d\d|\d{1,2}:\d\d\b|(?:DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL|TRACE)\b)"
    r")"
)
_ENTITY: Final = (
    r"(?:&(?:amp;)*(?:lt|gt|quot|apos|#\d{1,6}|#[xX][0-9a-fA-F]{1,6});|\\u00(?:3[cCeE]|22)|%(?:3[cCeE]|22))"
)
_ENTITY_BEFORE: Final = re.compile(_ENTITY + r"\s*\Z")
_ENTITY_BEHIND: Final = re.compile(r"\s*" + _ENTITY)
_SINGLE_QUOTES: Final = frozenset("'‘’‚")  # noqa: RUF001  # quotation marks
_WINDOW: Final = 40

# Each quotation mark with the one that stands for its pair; the marks of a pair open and close in different languages.
_QUOTE_FAMILIES: Final = {mark: pair[0] for pair in ('"', "“”„‟", "«»", "‹›", "「」", "『』") for mark in pair}  # noqa: RUF001  # quotation marks
_FENCE: Final = "```"
# A fence of more marks encloses text that contains fences.
_LONG_FENCE: Final = "````"
# The languages of blocks that may be meant as calls. Others, such as a log, a diff or a web page, are shown.
_LANGUAGE: Final = re.compile(
    r"[ \t]*(?>(?:python|py|python3|json|json5|jsonc|xml|yaml|js|javascript|ts|typescript|java|bash|sh|shell|code|text|txt|"
    r"plain|plaintext|tool|tools|tool_use|tool_code|react|actions?|(?:tool|function)[_-]?calls?|calls?|functions?)\b)?+"
    r"[ \t]*(?=\n|\[|\{|<|\Z)",
    re.IGNORECASE,
)


def is_call_language(info: str) -> bool:
    """Whether a fenced block with this info string may be meant as calls, and is not of a language that is only shown."""
    return _LANGUAGE.fullmatch(info) is not None


@define
class _Context:
    """What is open at a position of a text: fences, code marks, quotation marks, elements and block quotes.

    Attributes:
        text: the whole text.
        fences: the number of fenced blocks so far.
        fence_marks: the marks of fences so far, each with the name of its language.
        has_nested_fence: whether there was a block within a longer fence.
    """

    text: str
    fences: int = 0
    fence_marks: list[tuple[int, int]] = field(factory=list)
    has_nested_fence: bool = False
    _fence: str = ""
    _code: str = ""
    _quotes: set[str] = field(factory=set)
    _elements: int = 0
    _in_comment: bool = False
    _line_start: int = 0
    _has_pipe: bool = False
    # The verdict about the line at this offset, and about the paragraph that a block quote begins.
    _judged_line: int = -1
    _is_line_marked: bool = False
    _in_block_quote: bool = False

    def scan(self, segment: Segment) -> None:
        """Process a part without calls."""
        if segment.kind != "text" and self.text[segment.start] not in "`~":
            return  # the quotation marks of a special token are none
        for token in _TOKEN.finditer(self.text, segment.start, segment.end):
            mark = token[0]
            if mark[0] == "\n":
                self._begin_line(token.end(), is_paragraph=len(mark) > 1)
            elif mark[0] == "`" and len(mark) < len(_FENCE):
                if not self._fence:
                    self._code = "" if self._code == mark else self._code or mark
            elif mark[0] in "`~":
                self._toggle_fence(mark, token.start(), token.end())
            elif mark == "|":
                self._has_pipe = True
            elif mark in _QUOTE_FAMILIES:
                self._quotes ^= {_QUOTE_FAMILIES[mark]}
            elif mark.startswith(("<!--", "-->")):
                self._in_comment = mark == "<!--"
            else:
                self._elements = max(0, self._elements - 1) if token["close"] else self._elements + 1

    def scan_text(self, segment: Segment) -> None:
        """Process a part, which may be empty."""
        if segment.start < segment.end:
            self.scan(segment)

    def skip(self, segment: Segment) -> None:
        """Process a part whose content does not count: calls, or reasoning."""
        newline = self.text.rfind("\n", segment.start, segment.end)
        if newline >= 0:
            self._begin_line(newline + 1, is_paragraph=False)
        if segment.kind == "call" and self.text.startswith(_FENCE, segment.start):
            self.fences += not self._fence
            is_closed = self.text.endswith(_FENCE, segment.start + len(_FENCE), segment.end)
            self._fence = "" if is_closed else self._fence or _FENCE

    @property
    def is_open(self) -> bool:
        """Whether a fence, code marks, quotation marks, an element or a comment is open."""
        return self._is_enclosed or bool(self._fence)

    @property
    def _is_enclosed(self) -> bool:
        return bool(self._code or self._quotes or self._elements or self._in_comment)

    def clear(self) -> None:
        """Forget what is open: the next part does not continue the previous one."""
        self._fence = self._code = ""
        self._quotes.clear()
        self._elements, self.fences = 0, 0
        self._in_comment = self._in_block_quote = False

    def place(self, segment: Segment, *, is_loose: bool) -> _Place:
        """Return where a call stands."""
        before = self.text[segment.start - 1 : segment.start]
        behind = self.text[segment.end : segment.end + 1]
        is_quoted = self._is_enclosed or (before in _SINGLE_QUOTES and behind in _SINGLE_QUOTES and bool(before))
        return _Place(
            is_loose,
            self.is_marked(segment),
            is_quoted or self._is_escaped(segment) or self._is_inline_fence(segment),
            bool(self._fence) or self.text.startswith(_FENCE, segment.start),
        )

    def is_marked(self, segment: Segment) -> bool:
        """Whether the line of a part, before it, is marked as a quotation, an example or a record."""
        if self._judged_line != self._line_start:
            self._judged_line = self._line_start
            limit = min(segment.start, self._line_start + _MAX_MARK_LENGTH)
            mark = _LINE_MARK.match(self.text, self._line_start, limit)
            self._is_line_marked = mark is not None
        return self._is_line_marked or self._in_block_quote or self._has_pipe

    def shows(self, segment: Segment) -> bool:
        """Whether calls begin with a fence within another one, or in a language that is only shown."""
        if not self.text.startswith(_FENCE, segment.start):
            return False
        info = self.text[segment.start + len(_FENCE) : min(segment.end, segment.start + _WINDOW)]
        return bool(self._fence) or (_LANGUAGE.match(info) is None and _WORD.match(info.lstrip()) is not None)

    def _is_escaped(self, segment: Segment) -> bool:
        """Whether an HTML entity for a bracket or a quotation mark is next to a call."""
        before = self.text[max(0, segment.start - _WINDOW) : segment.start]
        behind = self.text[segment.end : segment.end + _WINDOW]
        return _ENTITY_BEFORE.search(before) is not None or _ENTITY_BEHIND.match(behind) is not None

    def _is_inline_fence(self, segment: Segment) -> bool:
        """Whether a call in a fence stands on one line with other words."""
        if not self.text.startswith(_FENCE, segment.start) or "\n" in self.text[segment.start : segment.end]:
            return False
        rest = self.text[segment.end : segment.end + _WINDOW].partition("\n")[0]
        lead = self.text[max(self._line_start, segment.start - _WINDOW) : segment.start]
        return _WORD.search(rest) is not None or _WORD.search(lead) is not None

    def _begin_line(self, start: int, *, is_paragraph: bool) -> None:
        # A block quote lasts to the end of its paragraph, also on lines without its mark.
        self._in_block_quote = not is_paragraph and (
            self._in_block_quote or _BLOCK_QUOTE.match(self.text, self._line_start) is not None
        )
        self._line_start, self._has_pipe = start, False
        self._quotes.discard('"')
        if is_paragraph:
            self._quotes.clear()
            self._code = ""

    def _toggle_fence(self, mark: str, start: int, end: int) -> None:
        if not self._fence:
            self._fence = mark
            self.fences += 1
            info = _LANGUAGE.match(self.text, end)
            self.fence_marks.append((start, info.end() if info else end))
        elif mark[0] == self._fence[0] and len(mark) >= len(self._fence):
            self._fence = ""
            # Some models repeat the name of the language at the end.
            info = _LANGUAGE.match(self.text, end)
            self.fence_marks.append((start, info.end() if info else end))
        else:
            self.fences += 1  # a block within a longer fence
            self.has_nested_fence = True


_BLOCK_QUOTE: Final = re.compile(r"[ \t]*+(?>(?:[-*+]|\d{1,3}[.)])[ \t]++)*+>(?!>>\S)")


# --- what is left of calls that cannot be read --------------------------------------------------------------------------

# A whole call in Python syntax at the beginning of a line, of a list, or of the rest of one.
_UNREAD_PYTHON: Final = re.compile(
    r"(?:\A\s*+[,;]\s*+|^[ \t]*+(?>(?:[-*+]|\d{1,3}[.)])[ \t]++)*+[\[(]*+)[^\W\d][\w.]{0,200}+"
    r"\((?>[^()\n]|\([^()\n]*+\)){0,2000}+\)[ \t]*+[\]),;]*+[ \t]*+(?=\n|,|\Z)",
    re.MULTILINE,
)
_UNREAD_JSON: Final = re.compile(
    r"\{\s*+[\"'](?:name|tool|tool_name|function|function_name|action|tool_calls?|function_calls?)[\"']\s*+:"
)
# The arguments of a call as JSON whose beginning is missing.
_UNREAD_ARGUMENTS: Final = re.compile(r"[\"'](?:arguments|parameters)[\"']\s*+:\s*+[{\"']")
# An argument as JSON has it, or on a line that ends as a call in Python does.
_ARGUMENT: Final = re.compile(
    r"[\"']([\w.-]{1,80})[\"']\s{0,4}:"
    r"|(?:^|[(,\[`])[ \t]{0,8}([\w.-]{1,80})[ \t]{0,4}=(?=[^\n]{0,200}\)[ \t]{0,4}(?:$|[(,\]`\w]))",
    re.MULTILINE,
)
# An argument directly behind a call, whose closing bracket stands in front of it.
_ARGUMENT_BEHIND: Final = re.compile(r"\s*+(?>(?:[,;}\])]\s*+){0,6})([\w.-]{1,80})\s{0,4}=|\s*+[,}]\s*+([\w.-]{1,80}):")


def find_unread(text: str, segments: Iterable[Segment], rejected: Sequence[RejectedCall], tools: OfferedTools) -> str:
    """Return why a part of an answer with calls resembles a call and was not parsed; empty if there is no such part.

    Args:
        text: the whole text.
        segments: its parts, in order.
        rejected: the parts that were rejected by a notation, or as a call of an offered tool.
        tools: the offered tools.
    """
    segments = list(segments)
    calls = [segment for segment in segments if segment.kind == "call"]
    starts = [segment.start for segment in calls]
    for rejection in rejected:
        index = bisect_right(starts, rejection.start) - 1
        # Another notation has read what one rejected.
        if index < 0 or rejection.start >= calls[index].end:
            return rejection.reason
    names, follows_call = tools.argument_names, False
    for line in _lines_outside(text, segments):
        if _has_loose_argument(line, tools, names) and not _SENTENCE.search(line):
            return _BROKEN
    for segment in segments:
        if segment.kind == "text":
            part = text[segment.start : segment.end]
            if name := _find_argument(part, names, follows_call=follows_call):
                return f"the argument {name!r} stands in no call"
            unread = _UNREAD_PYTHON.search(part) or _UNREAD_JSON.search(part) or _UNREAD_ARGUMENTS.search(part)
            if unread is not None:
                return f"it is not a call of an offered tool: {unread[0].strip(' ,;[]()')[:80]}"
        follows_call = segment.kind == "call" or (follows_call and segment.kind in {"mark", "token"})
    return ""


def _lines_outside(text: str, segments: Iterable[Segment]) -> Iterator[str]:
    """Yield the lines of a text without calls and without what stands in quotation marks."""
    parts = [text[segment.start : segment.end] if segment.kind == "text" else " " for segment in segments]
    return (_QUOTED.sub('""', line) for line in "".join(parts).split("\n"))


def _find_argument(part: str, names: frozenset[str], *, follows_call: bool = False) -> str:
    """Return the name of an argument that stands outside of calls as if it belonged to one; empty if there is none."""
    found = [*_ARGUMENT.finditer(part)]
    if follows_call and (behind := _ARGUMENT_BEHIND.match(part)) is not None:
        found.insert(0, behind)
    return next((name for match in found if (name := match[1] or match[2]) in names), "")


_BROKEN: Final = "it has parts of a call, and they make no call that can be read"
# A call as JSON whose name is empty, or has a line break in it.
_NAMELESS: Final = re.compile(
    r"(?:json\s)?[\[{\s]*[\"'](?:name|tool|function)[\"']\s*:\s*[\"'](?:[^\"'\n]{0,80}\n[^\"'\n]{0,80})?[\"']"
    r"\s*,\s*[\"'](?:arguments|parameters)[\"']"
)
# An argument of a call in Python whose brackets are in the wrong place; the name of the tool may be directly before it.
_LOOSE_ARGUMENT: Final = re.compile(r"(?:^|[\s,(\[])([\w.-]{1,160}+)[ \t]{0,4}\(?=(?!=)")
_QUOTED: Final = re.compile(r"\"[^\"\n]{0,2000}\"|'[^'\n]{0,2000}'")
_SENTENCE: Final = re.compile(r"(?<![^\W\d_])[^\W\d_]{2,}+[ \t]++[^\W\d_]{2}")
_NAME: Final = re.compile(r"[\w.-]{1,200}")
_MAX_BROKEN: Final = 20_000


def find_broken_call(text: str, tools: OfferedTools) -> str:
    """Return why a text without calls and without words is nothing but a broken call in JSON or Python; empty if it is none.

    Data is what can be read as a whole, such as another JSON object. It is a broken call only if all that it lacks is the name.

    Args:
        text: the text, without what belongs to its reasoning.
        tools: the offered tools.
    """
    bare = text.strip().strip("`").strip()
    if not bare or len(bare) > _MAX_BROKEN or _SENTENCE.search(_QUOTED.sub('""', bare)):
        return ""
    names = tools.argument_names
    has_argument = bool(_find_argument(bare, names)) or _has_loose_argument(bare, tools, names)
    has_holder, is_data = _UNREAD_ARGUMENTS.search(bare) is not None, _is_data(bare)
    if has_argument and (_NAMELESS.match(bare) if is_data else _NAMELESS.search(bare)):
        return _BROKEN
    if is_data:
        return ""
    has_name = any(_is_name(word[0].strip(".-"), tools, names) for word in _NAME.finditer(bare))
    if (has_argument and (has_name or "=" in bare)) or (has_name and has_holder):
        return _BROKEN
    return ""


def _has_loose_argument(part: str, tools: OfferedTools, names: frozenset[str]) -> bool:
    """Whether a part with a bracket has an argument as in Python, alone or directly behind the name of a tool."""
    if "(" not in part and ")" not in part:
        return False
    words = [match[1] for match in _LOOSE_ARGUMENT.finditer(part)]
    return any(word in names or _is_name(word, tools, names) for word in words)


def _is_name(word: str, tools: OfferedTools, argument_names: frozenset[str]) -> bool:
    """Whether a word is the name of a tool, alone or directly beside a second name if the part between them is missing."""
    if tools.is_offered(tools.normalize_name(word)):
        return True
    halves = [(word[:index], word[index:]) for index in range(1, len(word))]
    return any(
        (tools.is_offered(first) and (second in argument_names or tools.is_offered(second)))
        or (first in argument_names and tools.is_offered(second))
        for first, second in halves
    )


def _is_data(text: str) -> bool:
    text = text.removeprefix("json").lstrip()
    if text[:1] not in {"{", "["}:
        return False
    reader = LiteralReader(0)
    reader.advance(text, is_complete=True)
    return reader.value is not None and reader.position == len(text)
