"""Calls whose name stands before a JSON object with the arguments: one table of heads."""

from __future__ import annotations

import re
from typing import Final

from attrs import evolve, frozen

from agentloop.text_calls.literals import JSON, TOKEN_QUOTED, Dialect, ReadObject
from agentloop.text_calls.notations.elements import SPACE, Field, Maybe, Part, draft_of, read_head, read_value
from agentloop.text_calls.notations.fenced import past_fence
from agentloop.text_calls.offered_tools import OfferedTools
from agentloop.text_calls.reading import Attempt, Outcome
from agentloop.text_calls.source import Source
from agentloop.text_calls.text_format import TextFormat

_NAME: Final = Field("name", r"[\w.-]")
_NUMBERED: Final = re.compile(r":\d+\Z")


@frozen
class Head:
    """How a notation writes what stands before the arguments.

    Attributes:
        name: the name of the notation.
        openings: what it begins with.
        parts: all of it, with a field `name`.
        dialect: how the arguments are written.
        wrappers: texts around its calls.
        control_tokens: texts that are never for the reader.
        after_name: what stands behind the name, in a notation that begins with it.
        offered_only: whether only a tool offered under this very name is called this way.
    """

    name: str
    openings: tuple[str, ...]
    parts: tuple[Part, ...]
    dialect: Dialect = JSON
    wrappers: tuple[str, ...] = ()
    control_tokens: tuple[str, ...] = ()
    after_name: tuple[str, ...] = ()
    offered_only: bool = False


_DEEPSEEK: Final = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "```",
)
_KIMI: Final = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
)
_SOLAR: Final = ("<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>", "<|tool_call:end|>")
_COMMENTARY: Final = "<|channel|>commentary"

HEADS: Final = (
    Head(
        "mistral",
        ("[TOOL_CALLS]",),
        ("[TOOL_CALLS]", SPACE, _NAME, Maybe("[CALL_ID]", Field("id")), Maybe("[ARGS]"), SPACE),
    ),
    Head(
        "deepseek",
        ("<｜tool▁call▁begin｜>",),
        (
            "<｜tool▁call▁begin｜>",
            SPACE,
            Maybe("function", "<｜tool▁sep｜>"),
            _NAME,
            Maybe("<｜tool▁sep｜>"),
            SPACE,
            Maybe("```json"),
            SPACE,
        ),
        wrappers=_DEEPSEEK,
    ),
    Head(
        "kimi",
        ("<|tool_call_begin|>",),
        ("<|tool_call_begin|>", SPACE, Field("name"), SPACE, "<|tool_call_argument_begin|>", SPACE),
        wrappers=_KIMI,
    ),
    Head(
        "harmony",
        (
            "to=functions.",
            " to=functions.",
            _COMMENTARY + " to=functions.",
            "<|start|>assistant to=functions.",
            "<|start|>assistant" + _COMMENTARY + " to=functions.",
        ),
        (
            Maybe("<|start|>assistant"),
            Maybe(_COMMENTARY),
            Maybe(" "),
            "to=functions.",
            _NAME,
            Maybe(SPACE, _COMMENTARY),
            SPACE,
            Maybe("<|constrain|>"),
            Maybe("json"),
            SPACE,
            "<|message|>",
            SPACE,
        ),
        control_tokens=(
            "<|start|>assistant",
            _COMMENTARY + "<|message|>",
            "<|channel|>final<|message|>",
            "<|call|>",
            "<|end|>",
            "<|return|>",
        ),
    ),
    Head(
        "solar",
        ("<|tool_call:begin|>",),
        ("<|tool_call:begin|>", Field("id"), "<|tool_call:name|>", _NAME, "<|tool_call:args|>", SPACE),
        wrappers=_SOLAR,
    ),
    Head(
        "gemma",
        ("<|tool_call>call:", "<start_function_call>call:"),
        (Maybe("<|tool_call>"), Maybe("<start_function_call>"), "call:", _NAME),
        TOKEN_QUOTED,
        wrappers=("<tool_call|>", "<end_function_call>", "<|tool_call>"),
    ),
    Head("functionary", (">>>",), (">>>", _NAME, "\n", SPACE)),
    Head("name and arguments", (), (_NAME, "\n"), after_name=("\n{",), offered_only=True),
)
"""The heads of all these notations."""


class NamedJson(TextFormat):
    """A notation that gives the name first and then the arguments as one object."""

    def __init__(self, head: Head) -> None:
        """Take the notation's head."""
        self.name: str = head.name
        self.openings: tuple[str, ...] = head.openings
        self.after_name: tuple[str, ...] = head.after_name
        self.wrappers: tuple[str, ...] = head.wrappers
        self.control_tokens: tuple[str, ...] = head.control_tokens
        self.clarity: int = 1 if head.offered_only else TextFormat.clarity
        self._head = head

    def read(self, source: Source, start: int, tools: OfferedTools) -> Attempt:
        """Read the name and then the object."""
        fields: dict[str, str] = {}
        at = yield from read_head(source, start, self._head.parts, fields)
        if at < 0 or (self._head.offered_only and fields["name"] not in tools.own):
            return Outcome(start)
        while at == len(source.text) and not source.ended:
            yield None
        if not source.text.startswith("{", at):
            return Outcome(start, "" if self._head.offered_only else "no arguments follow the name of the tool", at)
        reader = yield from read_value(source, at, self._head.dialect)
        if not isinstance(reader.value, ReadObject):
            return Outcome(start, reader.failure, reader.reached)
        name = _NUMBERED.sub("", fields["name"]).removeprefix("functions.")
        draft = draft_of(name, reader.value, reader, source, (start, reader.at))
        yield draft if self._head.dialect is JSON else evolve(draft, raw="")
        return Outcome((yield from past_fence(source, start, at, reader.at)))
