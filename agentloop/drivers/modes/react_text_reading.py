"""Reading a decision that is written as `Thought:`, `Action:`, `Action Input:` and `Final Answer:`."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from attrs import frozen

from agentloop.drivers.modes.react_decision import ReActDecision, further_names, further_schema
from agentloop.drivers.modes.react_found import ANSWER_DROPPED, OBSERVATION_CUT, Found, with_repair
from agentloop.drivers.modes.react_json_reading import split_thoughts
from agentloop.drivers.modes.text_formats.reader import read_calls
from agentloop.drivers.modes.text_formats.reading import FoundCall, Reading
from agentloop.drivers.modes.text_formats.untyped_text import typed
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_spec import ToolSpec

THOUGHT, ACTION, INPUT, OBSERVATION, ANSWER = "Thought", "Action", "Action Input", "Observation", "Final Answer"
_PATTERN: Final = r"^[ \t]*(?:[*_#>]+[ \t]*)?({})[ \t]*(?:\d+)?[*_]*[ \t]*:[ \t]*(?:\*\*|__)?"
_CALLING: Final = frozenset({ACTION, INPUT})


@frozen
class Label:
    """A label at the beginning of a line.

    Attributes:
        name: the label, as prompts write it.
        start: where it begins.
        end: where what it labels begins.
    """

    name: str
    start: int
    end: int


@cache
def _labels(further: tuple[str, ...]) -> tuple[re.Pattern[str], Mapping[str, str]]:
    names = {name.lower(): name for name in (INPUT, ACTION, THOUGHT, OBSERVATION, ANSWER)}
    names |= {label_of(name).lower(): name for name in further}
    pattern = _PATTERN.format("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE), names


def label_of(name: str) -> str:
    """Return the label under which a further field of a decision is written."""
    return name.replace("_", " ").strip().capitalize()


def labels_in(text: str, further: tuple[str, ...] = (), start: int = 0) -> Iterator[Label]:
    """Return the labels of a text from a place on, in order."""
    pattern, names = _labels(further)
    for found in pattern.finditer(text, start):
        yield Label(names[found[1].lower()], found.start(), found.end())


def read_text_decision(text: str, tools: Sequence[ToolSpec], kind: type[ReActDecision]) -> Found:
    """Read the first decision in a model's text; no text makes this raise.

    What follows an action from an `Observation:` on is the model's invention and is cut off.
    """
    tagged, rest = split_thoughts(text)
    own = further_names(kind)
    answer = answer_begins(rest, own)
    if answer is not None and not read_calls(rest[: answer.start], tools).calls:
        thoughts, further = _sections(rest[: answer.start], _Spans(()), kind)
        return Found((*tagged, *thoughts), (), rest[answer.end :].strip(), further)
    rest = _plain_labels(rest, own)
    reading = read_calls(rest, tools)
    spans = _Spans(reading.calls)
    labels = [label for label in labels_in(rest, own) if not spans.hold(label.start)]
    if not reading.calls:
        return Found(problem=_problem(reading, labels))
    first = reading.calls[0].start
    cut = next((label.start for label in labels if label.name == OBSERVATION and label.start > first), len(rest))
    calls = _made([call for call in reading.calls if call.start < cut])
    if cut < len(rest):
        calls = with_repair(calls, OBSERVATION_CUT)
    if any(label.name == ANSWER and label.start < cut for label in labels):
        calls = with_repair(calls, ANSWER_DROPPED)
    thoughts, further = _sections(rest[:cut], spans, kind)
    inner = (reading.reasoning,) if reading.reasoning and not tagged else ()
    return Found((*tagged, *inner, *thoughts), calls, None, further, wants_tool=True)


def answer_begins(text: str, own: tuple[str, ...], start: int = 0) -> Label | None:
    """Return the first label that decides between calling and answering, if it is `Final Answer:`."""
    deciding = next((label for label in labels_in(text, own, start) if label.name in {ACTION, INPUT, ANSWER}), None)
    return deciding if deciding is not None and deciding.name == ANSWER else None


def has_labels(text: str) -> bool:
    """Say whether a text is written in this notation."""
    return any(label.name in {ACTION, ANSWER} for label in labels_in(text))


def _plain_labels(text: str, own: tuple[str, ...]) -> str:
    """Return a text whose labels are written as prompts write them, without emphasis, numbers and other case."""
    pattern, names = _labels(own)
    return pattern.sub(lambda found: f"{_written(names[found[1].lower()], own)}: ", text)


def _written(name: str, own: tuple[str, ...]) -> str:
    return label_of(name) if name in own else name


class _Spans:
    """Where the calls of a text stand."""

    def __init__(self, calls: Sequence[FoundCall]) -> None:
        self.starts = [call.start for call in calls]
        self._ends = [call.end for call in calls]

    def hold(self, place: int) -> bool:
        index = bisect_right(self.starts, place) - 1
        return index >= 0 and place < self._ends[index]


def _made(found: Sequence[FoundCall]) -> tuple[ToolCall, ...]:
    return tuple([ToolCall("", call.name, call.arguments_json, repairs=call.repairs) for call in found])


def _sections(text: str, spans: _Spans, kind: type[ReActDecision]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the thoughts of a text, and what it gives for the further fields of a decision."""
    own = further_names(kind)
    labels = [label for label in labels_in(text, own) if not spans.hold(label.start)]
    starts = sorted(
        [*[label.start for label in labels], *[start for start in spans.starts if start < len(text)], len(text)]
    )
    thoughts: list[str] = []
    further: dict[str, Any] = {}
    lead = text[: starts[0]].strip()
    if lead:
        thoughts.append(lead)
    for label in labels:
        end = starts[bisect_right(starts, label.start)]
        content = text[label.end : end].strip()
        if label.name == THOUGHT and content:
            thoughts.append(content)
        elif label.name in own:
            further[label.name] = typed(content, further_schema(kind)["properties"][label.name])
        elif label.name == ANSWER:
            break
    return tuple(thoughts), further


def _problem(reading: Reading, labels: Sequence[Label]) -> str:
    if reading.refused:
        return f"the action cannot be read: {reading.refused[0].reason}"
    if any(label.name in _CALLING for label in labels):
        return "an Action needs the name of a tool, and an Action Input with a JSON object on the next line"
    return "it holds neither an Action with an Action Input nor a Final Answer"
