"""Looking through a text for calls, from opening to opening."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentloop.drivers.modes.text_formats.completing import Rules, completed
from agentloop.drivers.modes.text_formats.draft import Draft, Outcome
from agentloop.drivers.modes.text_formats.mentions import Mentions
from agentloop.drivers.modes.text_formats.offered_tools import OfferedTools
from agentloop.drivers.modes.text_formats.opening_search import OpeningSearch
from agentloop.drivers.modes.text_formats.reading import FoundCall, Refusal
from agentloop.drivers.modes.text_formats.reasoning import CLOSER_OF, CLOSES_ALONE
from agentloop.drivers.modes.text_formats.shown_text import ShownText
from agentloop.drivers.modes.text_formats.source import Source, Steps, find
from agentloop.drivers.modes.text_formats.text_format import TextFormat

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
        self._mentions = Mentions()
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
            self._mentions = Mentions()
            self.refused.clear()
            self.shown.forget()
            self._done = behind
            return behind
        return start + 1
