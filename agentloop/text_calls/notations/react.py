"""`Action:` and `Action Input:`, as prompts after the ReAct paper ask for them."""

from __future__ import annotations

import re
from typing import Final

from agentloop.text_calls.literals import ReadObject
from agentloop.text_calls.notations.elements import SPACE, Field, Maybe, draft_of, read_head, read_value
from agentloop.text_calls.notations.fenced import FENCE, past_fence
from agentloop.text_calls.offered_tools import OfferedTools
from agentloop.text_calls.reading import Attempt, Draft, Outcome
from agentloop.text_calls.source import Source, find
from agentloop.text_calls.text_format import TextFormat

_LONGEST_INPUT: Final = 20_000
_PARTS: Final = (
    "Action:",
    SPACE,
    Maybe("`"),
    Field("name", r"[\w.\\-]"),
    Maybe("`"),
    SPACE,
    "Action Input:",
    SPACE,
    Maybe(FENCE, Maybe("json")),
    SPACE,
)
_BARE: Final = re.compile(r"[^\n]*")


class ReActCalls(TextFormat):
    """`Action: f` and on the next line `Action Input: {…}`; a tool with one parameter may get it as the rest of the line."""

    name = "react"
    openings: tuple[str, ...] = ("Action:",)

    def read(self, source: Source, start: int, tools: OfferedTools) -> Attempt:
        """Read the name and then the arguments."""
        fields: dict[str, str] = {}
        at = yield from read_head(source, start, _PARTS, fields)
        if at < 0:
            return Outcome(start)
        while at == len(source.text) and not source.ended:
            yield None
        name = tools.plain_name(fields["name"])
        if not source.text.startswith("{", at):
            return (yield from self._line(source, start, at, name, tools))
        reader = yield from read_value(source, at)
        if not isinstance(reader.value, ReadObject):
            return Outcome(start, reader.failure, reader.reached)
        yield draft_of(name, reader.value, reader, source, (start, reader.at))
        return Outcome((yield from past_fence(source, start, at, reader.at)))

    def _line(self, source: Source, start: int, at: int, name: str, tools: OfferedTools) -> Attempt:
        key = tools.only_parameter(name)
        if not tools.knows(name) or (key is None and tools.properties(name)):
            return Outcome(start, f"the arguments of {name[:80]} are no object", at)
        end = yield from find(source, at, "\n", _LONGEST_INPUT)
        line = _BARE.match(source.text, at, len(source.text) if end < 0 else end)
        text = line[0].strip() if line else ""
        if len(text) > _LONGEST_INPUT or (key is None and text and text != "None"):
            return Outcome(start, f"the arguments of {name[:80]} are no object", at + len(text))
        behind = at + len(text)
        if key is None:
            yield Draft(name, {}, start, behind)
        else:
            bare = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
            yield Draft(name, {key: bare}, start, behind, untyped=frozenset({key}))
        return Outcome(behind)
