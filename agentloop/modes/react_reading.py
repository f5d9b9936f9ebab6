"""Reading a decision that is written as `Thought:`, `Action:`, `Action Input:` and `Final Answer:`."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from attrs import evolve, field, frozen

from agentloop.errors import NotJson
from agentloop.modes.react_decision import NOTATION, ReActDecision, further_names, further_schema
from agentloop.modes.strict import without_nulls
from agentloop.text_calls import (
    REASONING_TAGS,
    CallDraft,
    LiteralReader,
    OfferedTools,
    ParsedCall,
    ParsedObject,
    ParseResult,
    ResolveOptions,
    convert_untyped,
    read_calls,
    resolve_call,
)
from agentloop.values.inference import FinishReason, InferenceRequest, InferenceResponse, ResponseFormat
from agentloop.values.json import format_json, freeze, parse_json
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ToolCall, ToolSpec

ARGUMENTS_AS_TEXT = "arguments written as text"
NULL_LEFT_OUT = "null left out"
ANSWER_DROPPED = "an answer beside the call dropped"
OBSERVATION_CUT = "an invented observation cut off"

_ENDED = frozenset({FinishReason.STOP, FinishReason.UNKNOWN, FinishReason.OTHER})


@frozen
class ParsedDecision:
    """A decision as it was read.

    Attributes:
        thoughts: what the model thought, in order.
        calls: its calls.
        answer: its answer; None when it gives none.
        further: what it gives for the further fields of its class.
        problem: why there is no decision, in words for the model; empty when there is one.
        wants_tool: whether it says that it calls a tool, whatever it names.
    """

    thoughts: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    answer: str | None = None
    further: Mapping[str, Any] = field(factory=dict)
    problem: str = ""
    wants_tool: bool = False

    def response(self, response: InferenceResponse) -> InferenceResponse:
        """Return a model's response with its text replaced by what it says; one that says nothing keeps its text."""
        if self.problem:
            return evolve(response, problem=self.problem)
        parts: list[ResponsePart] = [part for part in response.parts if not isinstance(part, Text)]
        thought = "\n\n".join([thought for thought in self.thoughts if thought])
        if thought:
            parts.append(Reasoning(thought))
        if self.further:
            try:
                parts.append(ProviderPart(NOTATION, freeze(self.further)))
            except NotJson as error:
                return evolve(response, problem=str(error))
        parts.extend(self.calls)
        if self.answer and not self.calls:
            parts.append(Text(self.answer))
        finish = response.finish_reason
        if finish in _ENDED and self.wants_tool:
            finish = FinishReason.TOOL_CALLS
        return evolve(response, parts=parts, finish_reason=finish)


def made_call(name: str, arguments: Any, tools: Sequence[ToolSpec], repairs: Sequence[str] = ()) -> ToolCall:
    """Return the call of a decision that was read as JSON; arguments that are no object are kept, for whoever validates them."""
    offered = OfferedTools.of(tools)
    noted = list(repairs)
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments) if arguments.strip() else {}
            noted.append(ARGUMENTS_AS_TEXT)
        except ValueError:
            return ToolCall("", offered.normalize_name(name), arguments, repairs=noted)
    if not isinstance(arguments, dict | None):
        return ToolCall("", offered.normalize_name(name), format_json(arguments).decode(), repairs=noted)
    given = arguments or {}
    cleaned = without_nulls(given, offered.parameters(offered.normalize_name(name)))
    if cleaned != given:
        noted.append(NULL_LEFT_OUT)
    found = resolve_call(CallDraft(name, cleaned, 0, 0, repairs=tuple(noted)), offered, NOTATION, ResolveOptions())
    if isinstance(found, ParsedCall):
        return ToolCall("", found.name, found.arguments_json, repairs=found.repairs)
    return ToolCall("", offered.normalize_name(name), format_json(given).decode(), repairs=noted)


def with_repair(calls: Sequence[ToolCall], repair: str) -> tuple[ToolCall, ...]:
    """Return calls with one more thing that had to be mended."""
    return tuple([evolve(call, repairs=(*call.repairs, repair)) for call in calls])


_TRIES: Final = 50
_FENCE: Final = re.compile(r"\A\s*```\w*\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)
_NAMES: Final = {
    "thought": ("thought", "thoughts", "reasoning"),
    "type": ("type",),
    "tool": ("tool", "tool_name", "action", "name"),
    "args": ("args", "arguments", "action_input", "tool_input", "parameters"),
    "answer": ("answer", "final_answer"),
    "calls": ("calls", "tool_calls"),
}
"""The names that models give to what a decision holds; the first is the one that they are told."""
_KEYS: Final = frozenset(name for names in _NAMES.values() for name in names)
_TELLING: Final = _KEYS - {"name", "type", "parameters"}


def read_json_decision(text: str, request: InferenceRequest, kind: type[ReActDecision]) -> ParsedDecision:
    """Read the first decision in a model's text, bare, fenced or within other words; no text makes this raise."""
    thoughts, rest = split_thoughts(text)
    data, repairs, failure = _object(rest)
    if data is None:
        return ParsedDecision(problem=failure)
    try:
        found = _found(data, request, kind, repairs)
    except (ValueError, TypeError, RecursionError) as error:
        return ParsedDecision(problem=f"the JSON object cannot be used: {error}")
    return evolve(found, thoughts=(*thoughts, *found.thoughts))


def split_thoughts(text: str) -> tuple[tuple[str, ...], str]:
    """Take off the thoughts that a model marks by tags at the beginning of its text."""
    bare = text.lstrip()
    for opener, closer in REASONING_TAGS:
        end = bare.find(closer)
        if end >= 0 and bare.startswith(opener):
            return (bare[len(opener) : end].strip(),), bare[end + len(closer) :]
    return (), text


def _object(text: str) -> tuple[dict[str, Any] | None, tuple[str, ...], str]:
    """Return the first object that is a decision, what was mended in it, and why there is none."""
    fenced = _FENCE.match(text)
    try:
        data = parse_json((fenced[1] if fenced is not None else text).strip())
    except ValueError:
        return _object_within(text)
    if not isinstance(data, dict):
        return _object_within(text)
    if not _TELLING.isdisjoint(data):
        return data, (), ""
    return None, (), f"the JSON object has none of the keys type, tool and answer; it has {', '.join(data) or 'none'}"


def _object_within(text: str) -> tuple[dict[str, Any] | None, tuple[str, ...], str]:
    at, why, unclosed = text.find("{"), "", dict[str, int]()
    for _ in range(_TRIES):
        if at < 0:
            break
        reader = LiteralReader(at, unclosed_quotes=unclosed)
        reader.advance(text, is_complete=True)
        if isinstance(reader.value, ParsedObject):
            if not _TELLING.isdisjoint(reader.value):
                return reader.value, reader.repairs(at, reader.position), ""
            at = text.find("{", reader.position)
        else:
            why = why or f"the JSON object cannot be read: {reader.failure}"
            at = text.find("{", at + 1)
    return None, (), why or "it holds no JSON object that is a decision"


def _found(
    data: dict[str, Any], request: InferenceRequest, kind: type[ReActDecision], repairs: Sequence[str]
) -> ParsedDecision:
    own = further_names(kind)
    given = {key: _first(data, [name for name in names if name not in own]) for key, names in _NAMES.items()}
    thought = _text(given["thought"]) if given["thought"] is not None else ""
    calls = _calls(given, request.tools, repairs)
    answer = _answer(given["answer"], request.response_format)
    further = {name: data[name] for name in own if data.get(name) is not None}
    chosen = _type(given["type"], calls, answer)
    if not chosen:
        return ParsedDecision(problem=f"its type is {_text(given['type'])[:80]}; it is either 'tool' or 'final'")
    if chosen == "final":
        return ParsedDecision((thought,), (), answer, further)
    if answer:
        calls = with_repair(calls, ANSWER_DROPPED)
    return ParsedDecision((thought,), calls, None, further, wants_tool=True)


def _first(data: dict[str, Any], names: Sequence[str]) -> Any:
    return next((data[name] for name in names if data.get(name) is not None), None)


def _type(given: Any, calls: Sequence[ToolCall], answer: str | None) -> str:
    if given in ("tool", "final"):
        return str(given)
    if calls:
        return "tool"
    return "final" if answer else ""


def _calls(given: dict[str, Any], tools: Sequence[ToolSpec], repairs: Sequence[str]) -> tuple[ToolCall, ...]:
    several = given["calls"] if isinstance(given["calls"], list) else []
    calls = [_call(item, tools, repairs) for item in several if isinstance(item, dict)]
    if isinstance(given["tool"], str) and given["tool"]:
        single = made_call(given["tool"], given["args"], tools, repairs)
        if not calls or (calls[0].name, calls[0].arguments_json) != (single.name, single.arguments_json):
            calls.insert(0, single)
    return tuple(calls)


def _call(item: dict[str, Any], tools: Sequence[ToolSpec], repairs: Sequence[str]) -> ToolCall:
    name = _first(item, _NAMES["tool"])
    return made_call(name if isinstance(name, str) else "", _first(item, _NAMES["args"]), tools, repairs)


def _answer(given: Any, wanted: ResponseFormat | None) -> str | None:
    if given is None or isinstance(given, str):
        return given
    if wanted is not None and wanted.schema is not None:
        given = without_nulls(given, wanted.schema)
    return _text(given)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else format_json(value).decode()


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


def read_text_decision(text: str, tools: Sequence[ToolSpec], kind: type[ReActDecision]) -> ParsedDecision:
    """Read the first decision in a model's text; no text makes this raise.

    What follows an action from an `Observation:` on is the model's invention and is cut off.
    """
    tagged, rest = split_thoughts(text)
    own = further_names(kind)
    answer = answer_begins(rest, own)
    if answer is not None and not read_calls(rest[: answer.start], tools).calls:
        thoughts, further = _sections(rest[: answer.start], _Spans(()), kind)
        return ParsedDecision((*tagged, *thoughts), (), rest[answer.end :].strip(), further)
    rest = _plain_labels(rest, own)
    reading = read_calls(rest, tools)
    spans = _Spans(reading.calls)
    labels = [label for label in labels_in(rest, own) if not spans.hold(label.start)]
    if not reading.calls:
        return ParsedDecision(problem=_problem(reading, labels))
    first = reading.calls[0].start
    cut = next((label.start for label in labels if label.name == OBSERVATION and label.start > first), len(rest))
    calls = _made([call for call in reading.calls if call.start < cut])
    if cut < len(rest):
        calls = with_repair(calls, OBSERVATION_CUT)
    if any(label.name == ANSWER and label.start < cut for label in labels):
        calls = with_repair(calls, ANSWER_DROPPED)
    thoughts, further = _sections(rest[:cut], spans, kind)
    inner = (reading.reasoning,) if reading.reasoning and not tagged else ()
    return ParsedDecision((*tagged, *inner, *thoughts), calls, None, further, wants_tool=True)


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

    def __init__(self, calls: Sequence[ParsedCall]) -> None:
        self.starts = [call.start for call in calls]
        self._ends = [call.end for call in calls]

    def hold(self, place: int) -> bool:
        index = bisect_right(self.starts, place) - 1
        return index >= 0 and place < self._ends[index]


def _made(found: Sequence[ParsedCall]) -> tuple[ToolCall, ...]:
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
            further[label.name] = convert_untyped(content, further_schema(kind)["properties"][label.name])
        elif label.name == ANSWER:
            break
    return tuple(thoughts), further


def _problem(reading: ParseResult, labels: Sequence[Label]) -> str:
    if reading.rejected:
        return f"the action cannot be read: {reading.rejected[0].reason}"
    if any(label.name in _CALLING for label in labels):
        return "an Action needs the name of a tool, and an Action Input with a JSON object on the next line"
    return "it holds neither an Action with an Action Input nor a Final Answer"
