"""Calls in a fenced block."""

from __future__ import annotations

import re
from typing import Final

from agentloop.text_calls.notations.elements import name_at
from agentloop.text_calls.notations.json_objects import Run
from agentloop.text_calls.offered_tools import OfferedTools
from agentloop.text_calls.reading import Attempt, Draft, Outcome
from agentloop.text_calls.source import Source, Steps, after_space, literal_at, run_at
from agentloop.text_calls.text_format import TextFormat

FENCE: Final = "```"

_LANGUAGE: Final = re.compile(r"[\w+-]*+")
_LONGEST_LANGUAGE: Final = 20


def past_fence(source: Source, start: int, arguments: int, end: int) -> Steps[int]:
    """Return the place behind the fence that closes a call, if one was opened in front of its arguments.

    Args:
        source: the text.
        start: where the call begins.
        arguments: where its arguments begin.
        end: where they end.
    """
    if FENCE not in source.text[start:arguments]:
        return end
    closing = yield from after_space(source, end)
    closer = yield from literal_at(source, closing, (FENCE,))
    return closing + len(closer) if closer else end


class FencedCalls(TextFormat):
    """Calls in a fenced block, with or without the name of a language."""

    name = "fenced"
    clarity = 2
    openings: tuple[str, ...] = (FENCE,)

    def read(self, source: Source, start: int, tools: OfferedTools) -> Attempt:
        """Read the calls behind the fence, and the fence that closes the block."""
        at = start + len(FENCE)
        language = yield from run_at(source, at, _LANGUAGE, _LONGEST_LANGUAGE)
        at = yield from after_space(source, at + len(language))
        found = False
        run = Run(source, at, tools, explicit=False).read()
        outcome = Outcome(start)
        while True:
            try:
                draft = next(run)
            except StopIteration as stop:
                outcome = stop.value
                break
            found = found or isinstance(draft, Draft)
            yield draft
        if not found:
            return Outcome(start + len(FENCE), outcome.refusal, outcome.reached)
        closing = yield from after_space(source, outcome.end)
        closed = yield from literal_at(source, closing, (FENCE,))
        return Outcome(closing + len(FENCE) if closed else outcome.end, outcome.refusal, outcome.reached)


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
