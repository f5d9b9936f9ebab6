"""Runs of calls: JSON objects and calls in Python's notation, one after another, with or without brackets around them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from agentloop.drivers.modes.text_formats.draft import Draft, Outcome
from agentloop.drivers.modes.text_formats.literals.literal_reader import LiteralReader
from agentloop.drivers.modes.text_formats.notations.json_objects import CallsInJson
from agentloop.drivers.modes.text_formats.notations.values import name_at, python_call, read_value
from agentloop.drivers.modes.text_formats.offered_tools import OfferedTools
from agentloop.drivers.modes.text_formats.source import Source, Steps, after_space, literal_at

_QUOTES: Final = frozenset("'\"`")
_CLOSERS: Final = ("</", "<|/", "<tool_call")
_BETWEEN: Final = frozenset(",;")

_Found = Generator[Draft | None, None, Outcome]


class Run:
    """Reads calls as long as there is one after the other.

    Attributes:
        end: behind the last call and the brackets that belong to it.
    """

    def __init__(self, source: Source, start: int, tools: OfferedTools, *, explicit: bool) -> None:
        """Begin to read.

        Args:
            source: the text.
            start: where the first call or a bracket before it stands.
            tools: the tools that the model was offered.
            explicit: whether the notation said already that calls follow, so that their names need not be offered.
        """
        self.end: int = start
        self._source = source
        self._tools = tools
        self._explicit = explicit
        self._at = start
        self._depth = 0
        self._found = False
        self._reached = start
        self._quote = ""

    def read(self) -> _Found:
        """Give the calls; the outcome ends behind the last one, or where a value that is none ends."""
        while True:
            self._at = yield from after_space(self._source, self._at)
            letter = self._source.text[self._at : self._at + 1]
            if self._is_between(letter):
                self._at += 1
                if letter in "]}" and self._found:
                    self.end = self._at
                    if not self._depth:
                        return self._outcome("")
                continue
            if letter == "{":
                refusal = yield from self._object()
            elif letter and (letter.isalpha() or letter == "_"):
                refusal = yield from self._call()
            else:
                return self._outcome("")
            if refusal is not None:
                return self._outcome(refusal)

    def _is_between(self, letter: str) -> bool:
        """Say whether this is a bracket, a comma or a quotation mark that belongs to the run."""
        if letter == "[" and self._depth < 2:  # noqa: PLR2004  # a list, and one in a list
            self._depth += 1
        elif letter == "]" and self._depth:
            self._depth -= 1
        elif letter == "}" and self._found and self._explicit:  # one too many, before the closing tag
            return True
        elif letter and letter in _QUOTES and self._depth and not self._quote:
            self._quote = letter
        elif not (letter and letter in _BETWEEN and self._found and not self._quote):
            return False
        return True

    def _object(self) -> Generator[Draft | None, None, str | None]:
        reader = yield from read_value(self._source, self._at)
        self._reached = max(self._reached, reader.reached)
        if reader.failure and self._explicit and (yield from literal_at(self._source, reader.at, _CLOSERS)):
            reader.close_here()
        drafts = CallsInJson(reader, self._source, self._tools, explicit=self._explicit).drafts()
        if reader.value is not None and not self._found:
            self.end = reader.at  # data: nothing in it is a call
        if not drafts:
            return reader.failure if self._explicit or self._found else ""
        yield from drafts
        yield from self._pass(reader.at)
        return None

    def _call(self) -> Generator[Draft | None, None, str | None]:
        name = yield from name_at(self._source, self._at)
        self._reached = max(self._reached, self._at + len(name))
        if not name or not self._source.text.startswith("(", self._at + len(name)):
            return ""
        plain = self._tools.plain_name(name)
        if not (self._explicit or self._tools.knows(plain) or (self._depth and not self._tools.names)):
            return f"{plain[:80]} is not offered" if self._depth else ""
        call = yield from python_call(self._source, self._at, name)
        if isinstance(call, LiteralReader):
            self._reached = max(self._reached, call.reached)
            return call.failure or "it is no list of arguments"
        yield call
        yield from self._pass(call.end)
        return None

    def _pass(self, end: int) -> Steps[None]:
        self._found = True
        closer = (yield from literal_at(self._source, end, (self._quote,))) if self._quote else ""
        self._at = self.end = end + len(closer)
        self._quote = ""

    def _outcome(self, refusal: str) -> Outcome:
        return Outcome(self.end, refusal, self._reached)
