"""Parsing the calls in a model's text, whole or while it arrives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from attrs import evolve

from agentloop.models.text_calls.arguments import ResolveOptions, resolve_call
from agentloop.models.text_calls.grades import Segment, find_broken_call, find_unread, grade_calls, grade_rejected
from agentloop.models.text_calls.notations.fenced import BareJson, CallList, FencedCalls, PythonCalls
from agentloop.models.text_calls.notations.named_json import NAMED_JSON_STYLES, NamedJson
from agentloop.models.text_calls.notations.react import ReActCalls
from agentloop.models.text_calls.notations.tagged import NestedTags, TaggedCalls
from agentloop.models.text_calls.notations.tagged_arguments import TAG_STYLES, TaggedArguments
from agentloop.models.text_calls.offered_tools import OfferedTools
from agentloop.models.text_calls.openings import CLOSER_OF, UNPAIRED_CLOSERS, OpeningSearch
from agentloop.models.text_calls.results import CallGrade, ParsedCall, ParseResult, RejectedCall, StreamChunk
from agentloop.models.text_calls.tags import StrayTags, find_lost_tag, find_stray_tags
from agentloop.models.text_calls.text_buffer import Resumable, TextBuffer, find_literal
from agentloop.models.text_calls.text_format import AttemptResult, CallDraft, TextFormat
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.json import format_json
from agentloop.values.tool_calls import ToolSpec

DEFAULT_FORMATS: Final[tuple[TextFormat, ...]] = (
    TaggedCalls(),
    *map(NamedJson, NAMED_JSON_STYLES),
    *map(TaggedArguments, TAG_STYLES),
    NestedTags(),
    ReActCalls(),
    FencedCalls(),
    CallList(),
    BareJson(),
    PythonCalls(),
)
"""All formats, in order of precedence: where several may begin, the first that yields a call wins."""


def read_calls(
    text: str,
    tools: Sequence[ToolSpec],
    *,
    formats: Sequence[TextFormat] = DEFAULT_FORMATS,
    coerce: bool = True,
    only_offered: bool = False,
    bounds: Bounds = DEFAULT_BOUNDS,
    form: Sequence[tuple[int, int]] = (),
    begins_in_reasoning: bool = True,
) -> ParseResult:
    """Parse the calls in a model's text.

    Nothing is evaluated, no text raises, and the time is linear in the length of the text. Calls of every grade are found, also
    those that the text only quotes: look at `ParseResult.grades` before you run one.

    Args:
        text: what the model wrote.
        tools: the tools that it was offered. A notation that is used for calls alone may also name another tool.
        formats: the formats, in order of precedence.
        coerce: whether a string becomes a number or a boolean where the tool's schema accepts no string; recorded in the
            call's repairs.
        only_offered: whether calls of tools that were not offered are rejected in every format.
        bounds: `text_characters` and `text_steps_per_character` limit the work.
        form: offsets of the parts that belong to the form that the prompt asked for and hold no calls, in order. They do not
            count as prose, and a call in one of them is never plain.
        begins_in_reasoning: whether the prompt may end with an opening tag of reasoning, so that a closing tag without one ends
            reasoning.
    """
    reader = StreamReader(
        tools, formats, coerce=coerce, only_offered=only_offered, bounds=bounds, begins_in_reasoning=begins_in_reasoning
    )
    reader.feed(text)
    return reader.close(form)


class StreamReader:
    """Parses the calls in a text that arrives in pieces.

    The result does not depend on how the text is split. What `feed` returns is final, with one exception: a closing reasoning
    tag whose opening tag is part of the prompt turns everything before it into reasoning, and `close` reports it as such.
    """

    def __init__(
        self,
        tools: Sequence[ToolSpec],
        formats: Sequence[TextFormat] = DEFAULT_FORMATS,
        *,
        coerce: bool = True,
        only_offered: bool = False,
        bounds: Bounds = DEFAULT_BOUNDS,
        begins_in_reasoning: bool = True,
    ) -> None:
        """Create a reader for one text; the arguments are those of `read_calls`."""
        self._buffer = TextBuffer()
        self._tools = OfferedTools.of(tools)
        self._new_scanner = partial(
            _Scanner,
            formats=formats,
            tools=self._tools,
            options=ResolveOptions(coerce, only_offered),
            bounds=bounds,
        )
        self._scanner = self._new_scanner(self._buffer)
        self._scanner.begins_in_reasoning = begins_in_reasoning
        self._reported = 0

    def feed(self, piece: str) -> StreamChunk:
        """Add a piece of the text; return the text that can be shown and the calls that were completed."""
        self._buffer.append(piece)
        self._scanner.advance()
        calls = self._scanner.calls
        # An unpaired closing tag of reasoning removes calls that were reported already.
        self._reported = min(self._reported, len(calls))
        new = tuple(calls[self._reported :])
        self._reported = len(calls)
        return StreamChunk(self._scanner.visible.take(), new)

    def close(self, form: Sequence[tuple[int, int]] = ()) -> ParseResult:
        """Mark the text as complete and return the result for all of it.

        Args:
            form: as for `read_calls`.
        """
        self._buffer.complete()
        self._scanner.advance()
        scanner, text = self._scanner, self._buffer.text
        rejected = tuple(scanner.rejected)
        if scanner.exceeded:
            return ParseResult(
                text=text, rejected=rejected, quoting_text=text, full_text=text, exceeded=scanner.exceeded
            )
        reasoning = "\n\n".join(part for part in scanner.reasoning if part)
        visible = scanner.visible.text
        segments = scanner.segments
        spans = tuple([(segment.start, segment.end) for segment in segments if segment.kind == "reasoning"])
        tags = scanner.find_stray_tags()
        if not scanner.calls:
            judged = _judge_rejected(text, segments, rejected, tags)
            if not judged and not tags.shown and (reason := find_broken_call(visible, self._tools)):
                judged = (*judged, RejectedCall(reason, 0, len(text), "broken"))
            return ParseResult(
                (),
                visible,
                reasoning,
                judged,
                quoting_text=visible,
                full_text=visible,
                reasoning_spans=spans,
                shown_tags=(*tags.shown, *_shown_parts(text, judged, tags.shown)),
            )
        grades = grade_calls(text, segments, form)
        if scanner.begins_in_reasoning and scanner.has_unpaired_closer and {*grades} == {CallGrade.QUOTED}:
            # What only quotes calls also quotes the tag, so that the text before it is part of the answer.
            self._scanner = self._new_scanner(self._buffer)
            self._scanner.begins_in_reasoning = False
            return self.close(form)
        counts = [segment.calls for segment in segments if segment.calls]
        return ParseResult(
            tuple(scanner.calls),
            visible,
            reasoning,
            rejected,
            tuple([grade for grade, count in zip(grades, counts, strict=True) for _ in range(count)]),
            _quoting_text(text, segments, grades) if CallGrade.QUOTED in grades else visible,
            _quoting_text(text, segments, [CallGrade.QUOTED] * len(grades)),
            scanner.partial or find_unread(text, segments, scanner.unread, self._tools) or scanner.doubt or tags.reason,
            reasoning_spans=spans,
            shown_tags=tags.shown,
        )


def _judge_rejected(
    text: str, segments: Sequence[Segment], rejected: Sequence[RejectedCall], tags: StrayTags
) -> tuple[RejectedCall, ...]:
    """Return the rejected parts of a text without calls, with what is left of damaged calls, and whether each is quoted."""
    grades = grade_rejected(text, segments, rejected) if rejected else ()
    # Where all tags are only shown, so are the calls that begin with them.
    shown = () if tags.meant else tags.shown
    judged = [
        evolve(
            each,
            is_quoted=grade is CallGrade.QUOTED or text.startswith(shown, each.start),
            is_embedded=grade is CallGrade.EMBEDDED,
        )
        for each, grade in zip(rejected, grades, strict=True)
    ]
    if tags.meant and all(each.is_quoted for each in judged):
        judged.append(RejectedCall(tags.reason, *tags.span, tags.format_name))
    return tuple(judged)


def _shown_parts(text: str, judged: Sequence[RejectedCall], tags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the beginnings of the parts that resemble calls and that the text only quotes, without those that begin with a tag."""
    parts = [text[each.start : min(each.end, each.start + _MAX_SHOWN)] for each in judged if each.is_quoted]
    return tuple(dict.fromkeys([part for part in parts if part and not (tags and part.startswith(tags))]))


_MAX_SHOWN: Final = 80
_MAX_REJECTIONS: Final = 100

# Characters that may be examined repeatedly: a multiple of the text, plus an allowance that short texts never exceed.
_REREAD_FACTOR: Final = 1
_REREAD_ALLOWANCE: Final = 20_000

# Steps that an attempt to parse a call counts for, besides the characters that it examines: its fixed cost.
_STEPS_OF_ATTEMPT: Final = 256
# Characters whose steps every text may take, so that short texts never exceed the bound.
_FREE_CHARACTERS: Final = 2_000

_QUOTATION_MARKS: Final = frozenset("`'\"")


class _Scanner:
    """Walks through a text once, from opening to opening, and skips the model's reasoning.

    Attributes:
        calls: the calls so far, in order.
        rejected: the first hundred parts that resemble a call but were not accepted.
        reasoning: the parts that are marked as reasoning.
        visible: the text around all of these.
        segments: all parts of the text so far, in order.
        unread: the rejected parts that were not rejected as mere mentions or as reasoning.
        partial: why the rest of a sequence of calls was not parsed; empty if no sequence was parsed in part.
        doubt: why it is not certain that a call is whole; empty if nothing speaks against it.
        exceeded: the name of the bound that ended the walk; empty if none did.
        begins_in_reasoning: whether a closing tag of reasoning without an opening one ends reasoning.
        has_unpaired_closer: whether there was such a tag.
    """

    def __init__(
        self,
        buffer: TextBuffer,
        formats: Sequence[TextFormat],
        tools: OfferedTools,
        options: ResolveOptions,
        bounds: Bounds,
    ) -> None:
        self.calls: list[ParsedCall] = []
        self.rejected: list[RejectedCall] = []
        self.reasoning: list[str] = []
        self.visible: _VisibleText = _VisibleText()
        self.segments: list[Segment] = []
        self.unread: list[RejectedCall] = []
        self.partial: str = ""
        self.doubt: str = ""
        self.exceeded: str = ""
        self.begins_in_reasoning: bool = True
        self.has_unpaired_closer: bool = False
        self._bounds = bounds
        self._parse_steps = 0
        self._buffer = buffer
        self._tools = tools
        self._options = options
        self._search = OpeningSearch(formats, tools)
        self._consumed = 0
        self._reread = 0
        self._is_mixed = False
        self._mentions = _MentionFilter()
        self._steps = self._scan()
        self._formats = tuple(formats)

    def find_stray_tags(self) -> StrayTags:
        """Return the tags that belong to no call; the text is complete."""
        used = frozenset([call.format for call in self.calls])
        return find_stray_tags(self._buffer.text, self.segments, self._formats, self._tools, used)

    def advance(self) -> None:
        """Continue as far as the text and the bounds allow."""
        if len(self._buffer.text) > self._bounds.text_characters:
            self.exceeded = "text_characters"
        if not self.exceeded:
            next(self._steps, None)

    def _scan(self) -> Resumable[None]:
        position = 0
        while True:
            is_opening, certain = self._search.find(self._buffer, position)
            self._show(certain)  # nothing before this offset can become a call
            if is_opening:
                position = yield from self._scan_opening(certain)
                if self.exceeded:
                    return
            elif self._buffer.is_complete:
                self.visible.close()
                return
            else:
                position = certain
                yield

    def _show(self, end: int) -> None:
        if end > self._consumed:
            self.visible.add_text(self._buffer.text[self._consumed : end])
            last = self.segments[-1] if self.segments else None
            if last is not None and last.kind == "text":
                last.end = end
            else:
                self.segments.append(Segment(self._consumed, end))
            self._consumed = end

    def _scan_opening(self, start: int) -> Resumable[int]:
        """Process what begins at an opening; return where the search resumes."""
        while not self._buffer.is_complete and self._search.is_undecided(self._buffer.text, start):
            yield
        tag = self._search.reasoning_tag_at(self._buffer.text, start)
        if tag:
            return (yield from self._scan_reasoning(start, tag))
        # A rejected attempt may exclude more text than its first character from the search.
        resume, reached = start + 1, start
        for text_format in self._search.formats_at(self._buffer.text, start):
            count, unread, self._is_mixed = len(self.calls), len(self.unread), False
            result = yield from self._attempt(text_format, start)
            if len(self.calls) > count:
                if len(self.unread) > unread:
                    self.partial = self.partial or self.unread[unread].reason
                self._cut(start, result.end, "call", len(self.calls) - count)
                self.segments[-1].is_mixed = self._is_mixed
                return result.end
            resume, reached = max(resume, result.end), max(reached, result.reached)
            if self.exceeded:
                return resume
        tag, is_control_token = self._search.wrapper_at(self._buffer.text, start)
        if tag and resume <= start + len(tag) and not (is_control_token and self._is_quoted(start)):
            if not is_control_token:
                self.visible.add_wrapper(tag)
            self._consumed = resume = start + len(tag)
            self.segments.append(Segment(start, resume, "token" if is_control_token else "mark"))
        return self._limit_rereading(resume, reached)

    def _attempt(self, text_format: TextFormat, start: int) -> Resumable[AttemptResult]:
        attempt = text_format.read(self._buffer, start, self._tools)
        while True:
            try:
                draft = next(attempt)
            except StopIteration as stop:
                result: AttemptResult = stop.value
                break
            if draft is not None:
                lost = find_lost_tag(draft, text_format, self._buffer.text, start)
                if lost is not None and lost.hides_arguments:
                    draft = evolve(draft, problem=draft.problem or lost.reason)
                elif lost is not None:
                    self.doubt = self.doubt or lost.reason
                self._add_call(draft, text_format)
            elif self._buffer.is_complete:
                # A custom format may ask for more text forever.
                result = AttemptResult(start, "the format waits for text after the end")
                break
            else:
                yield
        reached = max(result.end, result.reached)
        if result.rejection:
            self._reject(RejectedCall(result.rejection, start, reached, text_format.name), is_unread=True)
        self._count_steps(reached - start, reached)
        return result

    def _count_steps(self, examined: int, reached: int) -> None:
        # Compared with the text up to here, so that the result does not depend on how the text arrives.
        self._parse_steps += _STEPS_OF_ATTEMPT + examined
        if self._parse_steps > self._bounds.text_steps_per_character * (_FREE_CHARACTERS + reached):
            self.exceeded = "text_steps_per_character"

    def _add_call(self, draft: CallDraft, text_format: TextFormat) -> None:
        call = resolve_call(draft, self._tools, text_format.name, self._options)
        is_unread = isinstance(call, RejectedCall)
        if isinstance(call, ParsedCall):
            clarity = text_format.clarity
            reason = self._mentions.rejection(call, self.visible.words, clarity, is_python=draft.is_python)
            call = RejectedCall(reason, call.start, call.end, call.format) if reason else call
        if not isinstance(call, RejectedCall):
            self.calls.append(call)
            self._is_mixed = self._is_mixed or draft.is_mixed
            return
        self._reject(call, is_unread=is_unread)

    def _reject(self, rejected: RejectedCall, *, is_unread: bool = False) -> None:
        if len(self.rejected) < _MAX_REJECTIONS:
            self.rejected.append(rejected)
        if is_unread and len(self.unread) < _MAX_REJECTIONS:
            self.unread.append(rejected)

    def _cut(self, start: int, end: int, kind: str, calls: int = 0) -> None:
        self.visible.cut()
        self.segments.append(Segment(start, end, kind, calls))
        self._consumed = end

    def _is_quoted(self, start: int) -> bool:
        """Whether a tag follows a quotation mark, so that the text is about the tag."""
        return start > 0 and self._buffer.text[start - 1] in _QUOTATION_MARKS

    def _limit_rereading(self, resume: int, reached: int) -> int:
        """Return where the search resumes: behind the examined text if too much of the text was examined repeatedly."""
        self._reread += max(0, reached - resume)
        if self._reread <= _REREAD_ALLOWANCE + _REREAD_FACTOR * reached:
            return resume
        self._reread -= reached - resume
        return max(resume, reached)

    def _scan_reasoning(self, start: int, tag: str) -> Resumable[int]:
        closer = CLOSER_OF.get(tag)
        content_start = start + len(tag)
        if closer is None:
            return self._scan_unpaired_closer(start, content_start, tag)
        if self._is_quoted(start):
            return start + 1
        match = yield from find_literal(self._buffer, content_start, closer)
        end = len(self._buffer.text) if match < 0 else match
        if match < 0:
            self._reject(RejectedCall("the reasoning is never closed", start, end, "reasoning"))
        self.reasoning.append(self._buffer.text[content_start:end].strip())
        self._cut(start, end if match < 0 else end + len(closer), "reasoning")
        return self._consumed

    def _scan_unpaired_closer(self, start: int, end: int, tag: str) -> int:
        """Treat everything before a closing tag as reasoning if its opening tag was part of the prompt."""
        is_reasoning = self.begins_in_reasoning and not self.reasoning and not self._is_quoted(start)
        if tag in UNPAIRED_CLOSERS and is_reasoning:
            self.has_unpaired_closer = True
            self.reasoning.append(self._buffer.text[:start].strip())
            self.calls.clear()
            self._mentions = _MentionFilter()
            self.rejected.clear()
            self.unread.clear()
            self.partial = self.doubt = ""
            self.segments[:] = [Segment(0, end, "reasoning")]
            self.visible.clear()
            self._consumed = end
            return end
        return start + 1


_WORD_CHARACTER: Final = re.compile(r"\w")


class _VisibleText:
    """Collects the parts of a text that remain when calls, reasoning and wrapping tags are cut out.

    White space and wrapping tags next to a cut are dropped with it. The white space before the cut, or else behind it, keeps
    the surrounding text apart. A text without cuts remains as it is.

    Attributes:
        words: how many ordinary parts with a letter or a digit were added.
    """

    def __init__(self) -> None:
        self.words: int = 0
        self._parts: list[str] = []
        self._taken = 0
        # White space and wrappers (True) are retained or dropped depending on what follows them.
        self._pending: list[tuple[str, bool]] = []
        self._follows_cut = False
        self._gap = ""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._parts)

    def take(self) -> str:
        """Return the text that was added since the previous call."""
        parts = self._parts[self._taken :]
        self._taken = len(self._parts)
        return "".join(parts)

    def add_text(self, part: str) -> None:
        """Add ordinary text."""
        stripped = part.lstrip()
        if len(stripped) < len(part):
            self._pending.append((part[: len(part) - len(stripped)], False))
        if not stripped:
            return
        self._flush_pending()
        self.words += _WORD_CHARACTER.search(stripped) is not None
        content = stripped.rstrip()
        self._parts.append(content)
        if len(content) < len(stripped):
            self._pending.append((stripped[len(content) :], False))

    def add_wrapper(self, part: str) -> None:
        """Add a tag that is dropped if it turns out to be next to a call."""
        self._pending.append((part, True))

    def cut(self) -> None:
        """Note that a part was cut out here."""
        if not self._follows_cut or not self._gap:
            self._gap = self._leading_space()
        self._pending.clear()
        self._follows_cut = True

    def clear(self) -> None:
        """Remove everything added so far."""
        self._parts.clear()
        self._pending.clear()
        self._taken, self._gap, self._follows_cut = 0, "", True

    def close(self) -> None:
        """Note that nothing follows."""
        if not self._follows_cut:
            self._flush_pending()

    def _leading_space(self) -> str:
        space: list[str] = []
        for part, is_wrapper in self._pending:
            if is_wrapper:
                break
            space.append(part)
        return "".join(space)

    def _flush_pending(self) -> None:
        if self._follows_cut:
            space = self._gap or "".join(part for part, is_wrapper in self._pending if not is_wrapper)
            self._parts += [space] if self._parts else []
        else:
            self._parts += [part for part, _ in self._pending]
        self._pending.clear()
        self._follows_cut, self._gap = False, ""


def _quoting_text(text: str, segments: Sequence[Segment], grades: Sequence[CallGrade]) -> str:
    """Return the visible text with the quoted calls left in."""
    visible, remaining = _VisibleText(), iter(grades)
    for segment in segments:
        is_kept = segment.kind == "text" or (segment.kind == "call" and next(remaining) is CallGrade.QUOTED)
        if is_kept:
            visible.add_text(text[segment.start : segment.end])
        elif segment.kind == "mark":
            visible.add_wrapper(text[segment.start : segment.end])
        elif segment.kind != "token":
            visible.cut()
    visible.close()
    return visible.text


_UNAMBIGUOUS: Final = 3
"""The clarity of a notation that is used for calls alone."""


class _MentionFilter:
    """Distinguishes calls from mentions of calls, since models explain what they have done.

    After other words, a call counts as a mention if its notation is less clear than that of an earlier call, or if it equals
    an earlier call that is written in another way.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, bytes], tuple[bool, int]] = {}
        self._unseen: list[tuple[ParsedCall, bool, int]] = []
        self._first_words = -1
        self._clearest = (0, 0)

    def rejection(self, call: ParsedCall, words: int, clarity: int, *, is_python: bool) -> str:
        """Return why a call is a mere mention; empty if it is a call.

        Args:
            call: the call.
            words: the number of ordinary parts before it; it grows if words separate this call from the previous one.
            clarity: how clearly its notation marks a call.
            is_python: whether it is written in Python syntax.
        """
        max_clarity, words_then = self._clearest
        if clarity < max_clarity and words != words_then:
            return "it appears in prose after calls that are set apart from the text"
        self._clearest = max(self._clearest, (clarity, words))
        self._first_words = words if self._first_words < 0 else self._first_words
        self._unseen.append((call, is_python, words))
        if clarity == _UNAMBIGUOUS or words == self._first_words:
            return ""
        was_python, words_then = self._first_equal()
        return "it repeats an earlier call" if was_python != is_python and words_then != words else ""

    def _first_equal(self) -> tuple[bool, int]:
        """Return whether the first call that equals the latest is in Python syntax, and the words before it.

        Calls are serialized for the comparison only here, since most texts need none.
        """
        first = False, 0
        for call, is_python, words in self._unseen:
            key = call.name, format_json(call.arguments)
            first = self._seen.setdefault(key, (is_python, words))
        self._unseen.clear()
        return first
