"""Calls without anything around them: a JSON object, a list of calls, and calls in Python's notation."""

from __future__ import annotations

import re
from typing import Final

from agentloop.drivers.modes.text_formats.draft import Attempt, Outcome
from agentloop.drivers.modes.text_formats.notations.elements import Run
from agentloop.drivers.modes.text_formats.notations.values import name_at
from agentloop.drivers.modes.text_formats.offered_tools import OfferedTools
from agentloop.drivers.modes.text_formats.source import Source, after_space
from agentloop.drivers.modes.text_formats.text_format import TextFormat

_DEFINITION: Final = "def "
_BRACES: Final = re.compile(r"\{*")
_BRACKETS: Final = re.compile(r"\[*")


class BareJson(TextFormat):
    """A JSON object: `{"name": "f", "arguments": {…}}`, the forms of OpenAI's API, and `{"f": {…}}`."""

    name = "json"
    clarity = 1
    openings: tuple[str, ...] = ("{",)

    def read(self, source: Source, start: int, tools: OfferedTools) -> Attempt:
        """Read one object, or say where the data ends that it is."""
        at = yield from after_space(source, start + 1)
        if source.text.startswith("{", at):  # no object begins like that; look at the last of them
            braces = _BRACES.match(source.text, at)
            return Outcome(braces.end() - 1 if braces else at)
        return (yield from Run(source, start, tools, explicit=False).read())


class CallList(TextFormat):
    """A list of calls in brackets: `[f(a=1), g()]`, `['f(a=1)']`, `[{"name": "f", "arguments": {…}}]`."""

    name = "list"
    clarity = 1
    openings: tuple[str, ...] = ("[",)

    def read(self, source: Source, start: int, tools: OfferedTools) -> Attempt:
        """Read the calls of a list."""
        at = yield from after_space(source, start + 1)
        if source.text.startswith("[", at):
            brackets = _BRACKETS.match(source.text, at)
            if brackets and brackets.end() - at > 1:
                return Outcome(brackets.end() - 1)
        outcome = yield from Run(source, start, tools, explicit=False).read()
        return outcome


class PythonCalls(TextFormat):
    """A call of an offered tool in Python's notation: `f(a=1, b="x")`, wherever it stands."""

    name = "python"
    clarity = 0
    after_name: tuple[str, ...] = ("(",)

    def read(self, source: Source, start: int, tools: OfferedTools) -> Attempt:
        """Read one call, and those that follow it after a comma."""
        name = yield from name_at(source, start)
        if not name or source.text.startswith(_DEFINITION, max(0, start - len(_DEFINITION))):
            return Outcome(start + len(name))
        outcome = yield from Run(source, start, tools, explicit=False).read()
        return outcome if outcome.end > start else Outcome(start + len(name), outcome.refusal, outcome.reached)
