"""Calls in a fenced block, and calls without any marks: JSON objects, lists, and Python syntax."""

from __future__ import annotations

import re
from typing import Final

from attrs import evolve

from agentloop.models.text_calls.notations.elements import JSON_CALL, PYTHON_CALL, match_name
from agentloop.models.text_calls.notations.json_objects import CallSequence
from agentloop.models.text_calls.offered_tools import OfferedTools
from agentloop.models.text_calls.text_buffer import Resumable, TextBuffer, match_literal, match_run, skip_space
from agentloop.models.text_calls.text_format import AttemptResult, CallPattern, ParseAttempt, TextFormat

FENCE: Final = "```"

_LANGUAGE: Final = re.compile(r"[\w+-]*+")
_MAX_LANGUAGE_LENGTH: Final = 20


class FencedCalls(TextFormat):
    """Calls in a fenced block, with or without the name of a language, also as code that prints their results."""

    name = "fenced"
    clarity = 2
    openings: tuple[str, ...] = (FENCE,)
    patterns: tuple[CallPattern, ...] = (
        CallPattern(JSON_CALL, around=((FENCE, "json\n"), ("\n", FENCE))),
        evolve(PYTHON_CALL, around=((FENCE, "python\n"), ("\n", FENCE))),
    )

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
        """Parse the calls behind the fence, and the fence that closes the block."""
        position = start + len(FENCE)
        language = yield from match_run(buffer, position, _LANGUAGE, _MAX_LANGUAGE_LENGTH)
        position = yield from skip_space(buffer, position + len(language))
        sequence = CallSequence(buffer, position, tools, is_explicit=False, is_code=True)
        result = yield from sequence.read()
        # A block of other code: only the fence is passed, since calls may follow in it.
        if not sequence.has_calls:
            return AttemptResult(start + len(FENCE), result.rejection, result.reached)
        closing = yield from skip_space(buffer, result.end)
        closer = yield from match_literal(buffer, closing, (FENCE,))
        return AttemptResult(closing + len(FENCE) if closer else result.end, result.rejection, result.reached)


def skip_closing_fence(buffer: TextBuffer, start: int, arguments_start: int, arguments_end: int) -> Resumable[int]:
    """Return the offset behind the closing fence of a call if a fence was opened before its arguments.

    Args:
        buffer: the text.
        start: where the call begins.
        arguments_start: where its arguments begin.
        arguments_end: where its arguments end.
    """
    if FENCE not in buffer.text[start:arguments_start]:
        return arguments_end
    closing = yield from skip_space(buffer, arguments_end)
    closer = yield from match_literal(buffer, closing, (FENCE,))
    return closing + len(closer) if closer else arguments_end


_DEFINITION: Final = "def "
_BRACES: Final = re.compile(r"\{*")
_BRACKETS: Final = re.compile(r"\[*")


class BareJson(TextFormat):
    """A JSON object: `{"name": "f", "arguments": {…}}`, the forms of OpenAI's API, and `{"f": {…}}`."""

    name = "json"
    clarity = 1
    openings: tuple[str, ...] = ("{",)
    patterns: tuple[CallPattern, ...] = (CallPattern(JSON_CALL),)

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
        """Parse one object; if it is data, the result ends behind it."""
        position = yield from skip_space(buffer, start + 1)
        # No object begins with two braces: of several, only the last may open an object.
        if buffer.text.startswith("{", position):
            braces = _BRACES.match(buffer.text, position)
            return AttemptResult(braces.end() - 1 if braces else position)
        return (yield from CallSequence(buffer, start, tools, is_explicit=False).read())


class CallList(TextFormat):
    """A list of calls in brackets: `[f(a=1), g()]`, `['f(a=1)']`, `[{"name": "f", "arguments": {…}}]`."""

    name = "list"
    clarity = 1
    openings: tuple[str, ...] = ("[",)
    patterns: tuple[CallPattern, ...] = (
        CallPattern(JSON_CALL, around=(("[",), ("]",)), between=", "),
        evolve(PYTHON_CALL, around=(("[",), ("]",)), between=", "),
    )

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
        """Parse the calls of a list."""
        position = yield from skip_space(buffer, start + 1)
        # Lists of calls are nested once at most: of more brackets, only the last may open a list.
        if buffer.text.startswith("[", position):
            brackets = _BRACKETS.match(buffer.text, position)
            if brackets and brackets.end() - position > 1:
                return AttemptResult(brackets.end() - 1)
        return (yield from CallSequence(buffer, start, tools, is_explicit=False).read())


class PythonCalls(TextFormat):
    """A call of an offered tool in Python syntax, anywhere in the text: `f(a=1, b="x")`."""

    name = "python"
    clarity = 0
    name_suffixes: tuple[str, ...] = ("(",)
    patterns: tuple[CallPattern, ...] = (PYTHON_CALL,)

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
        """Parse one call, and those that follow it after a comma."""
        name = yield from match_name(buffer, start)
        if not name or buffer.text.startswith(_DEFINITION, max(0, start - len(_DEFINITION))):
            return AttemptResult(start + len(name))
        result = yield from CallSequence(buffer, start, tools, is_explicit=False).read()
        return result if result.end > start else AttemptResult(start + len(name), result.rejection, result.reached)
