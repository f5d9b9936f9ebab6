"""The tags of notations: those that stand outside of calls, and those inside of values.

A tag is a text that only calls have. One outside of a call is what is left of a damaged call, unless the text only shows it. One
inside of a value, without its partner, says that a tag was lost, so that the value has swallowed what follows.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from attrs import define, frozen

from agentloop.models.text_calls.grades import Segment, are_shown
from agentloop.models.text_calls.offered_tools import MAX_NAME_LENGTH, OfferedTools
from agentloop.models.text_calls.text_format import CallDraft, TextFormat

_COMMON: Final = frozenset({"function", "invoke", "param", "parameter", ">>>"})
"""The elements and texts that ordinary text has, too: alone, they are of a call only next to the name of a tool or an argument."""

_ELEMENT: Final = re.compile(r"<([^\s<>/=][^<>=]*?)(?: (?:name|key|tool)=|=|>)")


@frozen
class Tag:
    """A tag in a text.

    Attributes:
        start: offset of its first character.
        end: offset behind its last one; an element ends behind its name and the mark that follows.
        key: what it is known by, in lower case: the name of its element, or the text without brackets.
        is_closing: whether it is the closing one of two.
        is_whole: whether the bracket of an element is closed.
    """

    start: int
    end: int
    key: str
    is_closing: bool = False
    is_whole: bool = True


@frozen
class _Token:
    """A tag that is no element.

    Attributes:
        partner: the key of the text that closes it, or that it closes; empty if it stands alone.
        is_closing: whether it is the closing one.
        format_name: the name of a format that has it.
    """

    partner: str
    is_closing: bool
    format_name: str


class Tags:
    """The tags of some formats: elements, and other texts."""

    def __init__(self, tags: Iterable[tuple[str, str, str]], openings: Iterable[str] = ()) -> None:
        """Prepare the search.

        Args:
            tags: for each tag the opening text, the closing text or an empty one, and the name of its format.
            openings: the texts with which calls begin.
        """
        self._openings = frozenset(map(_key_of, openings))
        self._elements: dict[str, str] = {}
        self._tokens: dict[str, _Token] = {}
        for opening, closing, format_name in tags:
            element = _ELEMENT.fullmatch(opening) if closing.startswith("</") else None
            if element is not None:
                self._elements.setdefault(element[1].lower(), format_name)
                continue
            opener, closer = _key_of(opening), _key_of(closing)
            self._tokens.setdefault(opener, _Token(closer, is_closing=False, format_name=format_name))
            if closing:
                self._tokens.setdefault(closer, _Token(opener, is_closing=True, format_name=format_name))
        # Servers and models change the case of elements and add spaces within their tags. All repetitions are bounded.
        self._pattern = re.compile(
            rf"<\s{{0,2}}(?P<slash>/?)\s{{0,2}}(?P<element>{_any_of(self._elements)})(?=[\s=>/]|\Z)"
            r"(?:\s{0,2}(?:name|key|tool)?\s{0,2}=|\s{0,2}/?\s{0,2}>)?(?P<rest>(?<=>)|(?=[^<>\n]{0,400}>))?"
            rf"|(?:<\s{{0,2}})?(?P<token>{_any_of(self._tokens)})(?:\s{{0,2}}>)?",
            re.IGNORECASE,
        )

    def find(self, text: str, start: int = 0, end: int | None = None) -> Iterator[Tag]:
        """Yield the tags in a part of a text, in order. The time is linear."""
        for match in self._pattern.finditer(text, start, len(text) if end is None else end):
            key = (match["element"] or match["token"]).lower()
            is_closing = bool(match["slash"]) if match["element"] else self._tokens[key].is_closing
            yield Tag(match.start(), match.end(), key, is_closing, not match["element"] or match["rest"] is not None)

    def format_of(self, tag: Tag) -> str:
        """Return the name of a format that has a tag."""
        return self._elements.get(tag.key) or self._tokens[tag.key].format_name

    def is_pair(self, opening: Tag, closing: Tag) -> bool:
        """Whether one tag opens what the other one closes."""
        token = self._tokens.get(opening.key)
        partner = opening.key if token is None else token.partner
        return not opening.is_closing and closing.is_closing and partner == closing.key

    def stands_alone(self, tag: Tag) -> bool:
        """Whether a tag neither opens nor closes anything."""
        token = self._tokens.get(tag.key)
        return token is not None and not token.partner

    def announces_call(self, tag: Tag) -> bool:
        """Whether a call follows a tag that nothing closes."""
        return tag.key in self._openings

    def find_unpaired(self, text: str) -> list[Tag]:
        """Return the tags of a text that have no partner in it."""
        open_tags: list[Tag] = []
        unpaired: list[Tag] = []
        for tag in self.find(text):
            if self.stands_alone(tag) or not tag.is_whole:
                unpaired.append(tag)
            elif not tag.is_closing:
                open_tags.append(tag)
            elif open_tags and self.is_pair(open_tags[-1], tag):
                open_tags.pop()
            else:
                unpaired.append(tag)
        return [*unpaired, *open_tags]


def _key_of(token: str) -> str:
    """Return a token in lower case, without the brackets, which get lost, around other marks."""
    is_bracketed = token.startswith("<") and token.endswith(">") and not token[1:-1].replace("_", "").isalnum()
    return (token[1:-1] if is_bracketed else token).lower()


def _any_of(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)"


@lru_cache(maxsize=16)
def tagged_formats(formats: tuple[TextFormat, ...]) -> tuple[TextFormat, ...]:
    """Return the formats that have tags."""
    return tuple([each for each in formats if each.tags])


@lru_cache(maxsize=16)
def tags_of(formats: tuple[TextFormat, ...]) -> Tags:
    """Return the tags of some formats."""
    tags = [(*pair, each.name) for each in formats for pair in (*each.tags, *each.argument_tags)]
    return Tags(tags, [opening for each in formats for opening in each.openings])


# --- inside of values -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _own_tags(text_format: TextFormat, opening: str) -> Tags:
    """Return the tags of a call with this opening, and not those of the other calls that its format reads."""
    pairs = [pair for pair in text_format.tags if pair[0] == opening or pair[0] not in text_format.openings]
    return Tags([*((*pair, "call") for pair in pairs), *((*pair, "argument") for pair in text_format.argument_tags)])


@frozen
class LostTag:
    """A tag in a value, whose partner is not there.

    Attributes:
        reason: why the call must not run, in words for the model.
        hides_arguments: whether it is a tag of an argument, so that the value may have swallowed what follows.
    """

    reason: str
    hides_arguments: bool


def find_lost_tag(draft: CallDraft, text_format: TextFormat, text: str, start: int) -> LostTag | None:
    """Return a tag of its own notation that a value of a call has without the partner; None if there is none.

    Args:
        draft: the call.
        text_format: the format that has read it.
        text: the text.
        start: where the format has begun to read.
    """
    if not (text_format.tags or text_format.argument_tags):
        return None
    opening = max((each for each in text_format.openings if text.startswith(each, start)), key=len, default="")
    tags, found = _own_tags(text_format, opening), None
    for name, content in _texts_of(draft):
        for tag in tags.find_unpaired(content):
            written = content[tag.start : tag.end]
            # A value whose tag is escaped has another text in the source.
            if text.find(written, draft.start, draft.end) < 0:
                continue
            hides_arguments = tags.format_of(tag) == "argument"
            if found is None or hides_arguments:
                found = LostTag(
                    f"the argument {name!r:.80} of {draft.name:.80} contains {written!r:.60} without the tag that belongs to it, so that "
                    f"it is not certain where the value ends; make the call again with all of its tags{text_format.escape}",
                    hides_arguments,
                )
            if hides_arguments:
                return found
    return found


def _texts_of(draft: CallDraft) -> Iterator[tuple[str, str]]:
    """Yield the texts in the values of a call, each with the name of its argument."""
    for name, value in draft.arguments.items():
        if name not in draft.literal:
            yield from ((name, content) for content in _texts_in(value))
    for value in draft.positional:
        yield from (("", content) for content in _texts_in(value))


def _texts_in(value: object) -> Iterator[str]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            stack += item


# --- outside of calls -------------------------------------------------------------------------------------------------


@frozen
class StrayTags:
    """The tags of a text that belong to no call.

    Attributes:
        shown: those that the text only shows, as written.
        meant: those that are left of damaged calls; empty if there is no damaged call.
        reason: why the damaged calls cannot be read, in words for the model.
        span: where they are: offset of the first character and behind the last one.
        format_name: the name of a format that has the first one.
    """

    shown: tuple[str, ...] = ()
    meant: tuple[str, ...] = ()
    reason: str = ""
    span: tuple[int, int] = (0, 0)
    format_name: str = ""


_NO_TAGS: Final = StrayTags()
_MAX_NAMED: Final = 10


def find_stray_tags(
    text: str, segments: Sequence[Segment], formats: tuple[TextFormat, ...], tools: OfferedTools, used: frozenset[str]
) -> StrayTags:
    """Return the tags outside of the calls of a text. The time is linear.

    A tag is only shown if it is quoted, or stands in a sentence. One next to the name of a tool or of an argument is meant.

    Args:
        text: the whole text.
        segments: its parts, in order.
        formats: the formats whose tags count.
        tools: the offered tools.
        used: the names of the formats in which the text has calls.
    """
    tags = tags_of(formats)
    strays = sorted({tag.start: tag for tag in _find_unattached(text, segments, tags)}.values(), key=_start_of)
    if not strays:
        return _NO_TAGS
    quoted = are_shown(text, segments, [(tag.start, tag.end) for tag in strays])
    loose = [tag for tag, is_quoted in zip(strays, quoted, strict=True) if not is_quoted]
    neighbors = _Neighbors(text, tools, tools.argument_names)
    lines = _Lines(text, strays)
    is_meant = any(neighbors.are_named(tag) for tag in loose) or any(
        not lines.has_sentence(tag) and (tag.key not in _COMMON or tags.format_of(tag) in used) for tag in loose
    )
    if not is_meant:
        return StrayTags(shown=_written(text, strays))
    first = loose[0]
    return StrayTags(
        _written(text, [tag for tag, is_quoted in zip(strays, quoted, strict=True) if is_quoted]),
        _written(text, loose),
        f"{text[first.start : first.end]!r:.60} belongs to no call that can be read: a part of a call is missing, or stands in the "
        "wrong place; write each call again as a whole. If you only want to show a tag, put it in `code marks`",
        (first.start, loose[-1].end),
        tags.format_of(first),
    )


def _start_of(tag: Tag) -> int:
    return tag.start


def _written(text: str, tags: Iterable[Tag]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([text[tag.start : tag.end] for tag in tags]))[:_MAX_NAMED]


def _find_unattached(text: str, segments: Sequence[Segment], tags: Tags) -> Iterator[Tag]:
    """Yield the tags in the text around the calls, and those among the marks that are at no call."""
    run: list[Segment] = []
    for segment in segments:
        if segment.kind == "reasoning" or (segment.kind == "text" and text[segment.start : segment.end].strip()):
            yield from _unattached_marks(text, run, tags)
            run.clear()
        if segment.kind == "text":
            yield from tags.find(text, segment.start, segment.end)
        elif segment.kind != "reasoning":
            run.append(segment)
    yield from _unattached_marks(text, run, tags)


def _unattached_marks(text: str, run: Sequence[Segment], tags: Tags) -> Iterator[Tag]:
    """Yield the tags of marks that open what no call follows, or close what no call precedes, or enclose nothing.

    Args:
        text: the whole text.
        run: calls, marks and tokens between which there is only white space.
        tags: the tags that count.
    """
    calls = [index for index, segment in enumerate(run) if segment.kind == "call"]
    before: Tag | None = None
    for index, segment in enumerate(run):
        tag = None if segment.kind == "call" else next(tags.find(text, segment.start, segment.end), None)
        if tag is not None:
            # Some models close a call with its opening tag.
            written = text[segment.start : segment.end]
            repeats = index > 0 and run[index - 1].kind == "call" and text.startswith(written, run[index - 1].start)
            closes = tag.is_closing or repeats
            is_attached = bool(calls) and (calls[0] < index if closes else calls[-1] > index)
            if tags.stands_alone(tag) and not tags.announces_call(tag):
                is_attached = bool(calls)
            if before is not None and tags.is_pair(before, tag):
                yield before
            elif not is_attached and (segment.kind == "mark" or not calls):
                yield tag
        before = tag


@define
class _Lines:
    """Whether the lines of a text are sentences, apart from the tags in them; the tags are asked for in order."""

    text: str
    tags: Sequence[Tag]
    _end: int = -1
    _is_sentence: bool = False

    def has_sentence(self, tag: Tag) -> bool:
        """Whether two ordinary words stand on the line of a tag."""
        if tag.start >= self._end:
            start = self.text.rfind("\n", 0, tag.start) + 1
            end = self.text.find("\n", tag.end)
            self._end = len(self.text) if end < 0 else end
            words = [word.start() for word in _WORD.finditer(self.text, start, self._end)]
            self._is_sentence = sum(not self._is_in_tag(word) for word in words) >= _SENTENCE_WORDS
        return self._is_sentence

    def _is_in_tag(self, position: int) -> bool:
        index = bisect_right(self.tags, position, key=lambda tag: tag.start) - 1
        return index >= 0 and position < self.tags[index].end


_SENTENCE_WORDS: Final = 2
# A word that touches no tag and is no name of a value.
_WORD: Final = re.compile(r"(?:(?<=[\s(])|^)[^\W\d_]{2,40}(?=[\s.,;!?)]|$)")
_NAME_AFTER: Final = re.compile(
    rf"(?:[^\w\s]|\n){{0,6}}(?:\s{{0,2}}[\"'{{(\[=:]){{0,3}}([\w.-]{{1,{MAX_NAME_LENGTH}}})"
)
# For the text in front of a tag, read backward: a search for a name that ends there would begin at each character.
_NAME_BEFORE: Final = re.compile(rf"(?:(?:[^\w\s]|\n){{0,5}}(?:[^\w\s.-]|\n))?([\w.-]{{1,{MAX_NAME_LENGTH}}})")
_WINDOW: Final = MAX_NAME_LENGTH + 10


@define
class _Neighbors:
    """What stands next to tags."""

    text: str
    tools: OfferedTools
    arguments: frozenset[str]

    def are_named(self, tag: Tag) -> bool:
        """Whether the name of an offered tool, or of an argument of one, touches a tag."""
        after = _NAME_AFTER.match(self.text, tag.end)
        before = _NAME_BEFORE.match(self.text[max(0, tag.start - _WINDOW) : tag.start][::-1])
        return (before is not None and self._is_known(before[1][::-1])) or (
            after is not None and self._is_known(after[1])
        )

    def _is_known(self, word: str) -> bool:
        return word in self.arguments or self.tools.is_offered(self.tools.normalize_name(word.strip(".-")))
