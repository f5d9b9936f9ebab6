"""Calls in a fenced block."""

from __future__ import annotations

import re
from typing import Final

from agentloop.drivers.modes.text_formats.draft import Attempt, Draft, Outcome
from agentloop.drivers.modes.text_formats.notations.elements import Run
from agentloop.drivers.modes.text_formats.offered_tools import OfferedTools
from agentloop.drivers.modes.text_formats.source import Source, Steps, after_space, literal_at, run_at
from agentloop.drivers.modes.text_formats.text_format import TextFormat

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
