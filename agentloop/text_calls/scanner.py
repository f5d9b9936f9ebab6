"""Looking through a text for calls, from opening to opening."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from agentloop.text_calls.arguments import Rules, completed
from agentloop.text_calls.offered_tools import OfferedTools
from agentloop.text_calls.openings import CLOSER_OF, CLOSES_ALONE, OpeningSearch
from agentloop.text_calls.reading import Draft, FoundCall, Outcome, Refusal
from agentloop.text_calls.source import Source, Steps, find
from agentloop.text_calls.text_format import TextFormat
from agentloop.values.json import format_json

MARKED: Final = 3
"""The clarity of a notation in which nothing but calls is written."""


class MentionFilter:
    """Remembers the calls of a text, and knows which one is only mentioned.

    After other words, a call is only mentioned when it stands in a notation that is less clearly one than that of an earlier
    call, or when it is equal to an earlier one that is written in another way: models explain what they have done.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, bytes], tuple[bool, int]] = {}
        self._new: list[tuple[FoundCall, bool, int]] = []
        self._first = -1
        self._clearest = (0, 0)

    def why_mentioned(self, call: FoundCall, words: int, clarity: int, *, is_python: bool) -> str:
        """Return why this call is none, or nothing when it is one.

        Args:
            call: the call.
            words: a number that is larger than before if other words stand before this call.
            clarity: how clearly its notation says that it is a call.
            is_python: whether it is written as a call in Python's notation.
        """
        clearest, words_then = self._clearest
        if clarity < clearest and words != words_then:
            return "it stands in prose after calls that are set apart from it"
        self._clearest = max(self._clearest, (clarity, words))
        self._first = words if self._first < 0 else self._first
        self._new.append((call, is_python, words))
        if clarity == MARKED or words == self._first:
            return ""
        was_python, words_then = self._first_equal()
        return "it repeats an earlier call" if was_python != is_python and words_then != words else ""

    def _first_equal(self) -> tuple[bool, int]:
        """Compare the new calls with those before; return how the first one that is equal to the last stands in the text."""
        first = False, 0
        for call, is_python, words in self._new:
            key = call.name, format_json(call.arguments)
            first = self._seen.setdefault(key, (is_python, words))
        self._new.clear()
        return first


_WORD: Final = re.compile(r"\w")


class ShownText:
    """Takes a text's parts in order and keeps what is for the reader.

    Where something was cut out, the white space and the wrapping tags next to it go with it, and what stood around it stays
    apart by the white space before the cut, or else by that behind it. A text without cuts stays as it is.

    Attributes:
        words: a number that grows with each ordinary part that has a letter or a digit in it.
    """

    def __init__(self) -> None:
        self.words: int = 0
        self._kept: list[str] = []
        self._taken = 0
        self._pending: list[
            tuple[str, bool]
        ] = []  # white space, and wrapping tags (True), of which nothing is known yet
        self._behind_cut = False
        self._gap = ""

    @property
    def text(self) -> str:
        """All that is kept so far."""
        return "".join(self._kept)

    def take(self) -> str:
        """Return what was kept since this was last asked."""
        kept = self._kept[self._taken :]
        self._taken = len(self._kept)
        return "".join(kept)

    def plain(self, part: str) -> None:
        """Add ordinary text."""
        bare = part.lstrip()
        if len(bare) < len(part):
            self._pending.append((part[: len(part) - len(bare)], False))
        if not bare:
            return
        self._keep_pending()
        self.words += _WORD.search(bare) is not None
        content = bare.rstrip()
        self._kept.append(content)
        if len(content) < len(bare):
            self._pending.append((bare[len(content) :], False))

    def wrapper(self, part: str) -> None:
        """Add a tag that only serves calls: it is dropped if it turns out to stand next to one."""
        self._pending.append((part, True))

    def cut(self) -> None:
        """Leave something out."""
        if not self._behind_cut or not self._gap:
            self._gap = self._leading_space()
        self._pending.clear()
        self._behind_cut = True

    def forget(self) -> None:
        """Drop all that came so far: it was none of the answer."""
        self._kept.clear()
        self._pending.clear()
        self._taken, self._gap, self._behind_cut = 0, "", True

    def end(self) -> None:
        """Say that nothing more will come."""
        if not self._behind_cut:
            self._keep_pending()

    def _leading_space(self) -> str:
        space: list[str] = []
        for part, is_wrapper in self._pending:
            if is_wrapper:
                break
            space.append(part)
        return "".join(space)

    def _keep_pending(self) -> None:
        if self._behind_cut:
            space = self._gap or "".join(part for part, is_wrapper in self._pending if not is_wrapper)
            self._kept += [space] if self._kept else []
        else:
            self._kept += [part for part, _ in self._pending]
        self._pending.clear()
        self._behind_cut, self._gap = False, ""


_REREAD_SHARE: Final = 4
_REREAD_FREE: Final = 20_000
_MOST_REFUSALS: Final = 100
_MENTIONED: Final = frozenset("`'\"")


class Scanner:
    """Walks through a text once: from opening to opening, past the model's thoughts.

    Attributes:
        calls: what was found so far, in order.
        refused: what looked like a call and was not read; the first hundred.
        reasoning: the model's thoughts.
        shown: the text around all that.
    """

    def __init__(self, source: Source, formats: Sequence[TextFormat], tools: OfferedTools, rules: Rules) -> None:
        """Begin to look.

        Args:
            source: the text.
            formats: the notations, in the order in which they are tried where one text may begin several.
            tools: the tools that the model was offered.
            rules: what is done with calls that do not fit the offered tools.
        """
        self.calls: list[FoundCall] = []
        self.refused: list[Refusal] = []
        self.reasoning: list[str] = []
        self.shown: ShownText = ShownText()
        self._source = source
        self._tools = tools
        self._rules = rules
        self._search = OpeningSearch(formats, tools)
        self._done = 0
        self._reread = 0
        self._mentions = MentionFilter()
        self._steps = self._scan()

    def advance(self) -> None:
        """Go on as far as the text allows."""
        next(self._steps, None)

    def _scan(self) -> Steps[None]:
        at = 0
        while True:
            opening, certain = self._search.find(self._source, at)
            self._plain(certain)
            if opening:
                at = yield from self._past_opening(certain)
            elif self._source.ended:
                self.shown.end()
                return
            else:
                at = certain
                yield

    def _plain(self, end: int) -> None:
        if end > self._done:
            self.shown.plain(self._source.text[self._done : end])
            self._done = end

    def _past_opening(self, start: int) -> Steps[int]:
        while not self._source.ended and self._search.is_undecided(self._source.text, start):
            yield
        tag = self._search.thought_at(self._source.text, start)
        if tag:
            return (yield from self._past_thoughts(start, tag))
        resume, reached = start + 1, start
        for text_format in self._search.formats_at(self._source.text, start):
            before = len(self.calls)
            outcome = yield from self._attempt(text_format, start)
            if len(self.calls) > before:
                self._cut(outcome.end)
                return outcome.end
            resume, reached = max(resume, outcome.end), max(reached, outcome.reached)
        tag, is_control = self._search.wrapper_at(self._source.text, start)
        if tag and resume <= start + len(tag) and not (is_control and self._is_quoted(start)):
            if not is_control:
                self.shown.wrapper(tag)
            self._done = resume = start + len(tag)
        return self._within_budget(resume, reached)

    def _attempt(self, text_format: TextFormat, start: int) -> Steps[Outcome]:
        attempt = text_format.read(self._source, start, self._tools)
        while True:
            try:
                draft = next(attempt)
            except StopIteration as stop:
                outcome: Outcome = stop.value
                break
            if draft is not None:
                self._take(draft, text_format)
            elif self._source.ended:
                outcome = Outcome(start, "it waits for more text than there is")
                break
            else:
                yield
        if outcome.refusal:
            self._refuse(Refusal(outcome.refusal, start, max(outcome.end, outcome.reached), text_format.name))
        return outcome

    def _take(self, draft: Draft, text_format: TextFormat) -> None:
        found = completed(draft, self._tools, text_format.name, self._rules)
        if isinstance(found, FoundCall):
            clarity = text_format.clarity
            why = self._mentions.why_mentioned(found, self.shown.words, clarity, is_python=draft.is_python)
            found = Refusal(why, found.start, found.end, found.format) if why else found
        if isinstance(found, Refusal):
            self._refuse(found)
        else:
            self.calls.append(found)

    def _refuse(self, refusal: Refusal) -> None:
        if len(self.refused) < _MOST_REFUSALS:
            self.refused.append(refusal)

    def _cut(self, end: int) -> None:
        self.shown.cut()
        self._done = end

    def _is_quoted(self, start: int) -> bool:
        """Say whether a tag is only mentioned."""
        return start > 0 and self._source.text[start - 1] in _MENTIONED

    def _within_budget(self, resume: int, reached: int) -> int:
        """Skip what was looked at already where rereading it would be too much for a text of this length."""
        self._reread += max(0, reached - resume)
        if self._reread <= _REREAD_FREE + _REREAD_SHARE * reached:
            return resume
        self._reread -= reached - resume
        return max(resume, reached)

    def _past_thoughts(self, start: int, tag: str) -> Steps[int]:
        closer = CLOSER_OF.get(tag)
        behind = start + len(tag)
        if closer is None:
            return self._past_closer(start, behind, tag)
        if self._is_quoted(start):
            return start + 1
        end = yield from find(self._source, behind, closer)
        last = len(self._source.text) if end < 0 else end
        if end < 0:
            self._refuse(Refusal("the thoughts are never closed", start, last, "reasoning"))
        self.reasoning.append(self._source.text[behind:last].strip())
        self._cut(last if end < 0 else end + len(closer))
        return self._done

    def _past_closer(self, start: int, behind: int, tag: str) -> int:
        """Take all before a closing tag for thoughts whose opening tag stood in the prompt, unless there were others."""
        if tag in CLOSES_ALONE and not self.reasoning and not self._is_quoted(start):
            self.reasoning.append(self._source.text[:start].strip())
            self.calls.clear()
            self._mentions = MentionFilter()
            self.refused.clear()
            self.shown.forget()
            self._done = behind
            return behind
        return start + 1
