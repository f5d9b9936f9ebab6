"""Reading a decision that is written as a JSON object."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from attrs import evolve

from agentloop.drivers.modes.react_decision import ReActDecision, further_names
from agentloop.drivers.modes.react_found import ANSWER_DROPPED, Found, made_call, with_repair
from agentloop.drivers.modes.strict_schema import without_nulls
from agentloop.drivers.modes.text_formats.literals.literal_reader import LiteralReader
from agentloop.drivers.modes.text_formats.literals.nodes import ReadObject
from agentloop.drivers.modes.text_formats.reasoning import THOUGHTS
from agentloop.values.inference_request import InferenceRequest, ResponseFormat
from agentloop.values.json_text import format_json, parse_json
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_spec import ToolSpec

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


def read_json_decision(text: str, request: InferenceRequest, kind: type[ReActDecision]) -> Found:
    """Read the first decision in a model's text, bare, fenced or within other words; no text makes this raise."""
    thoughts, rest = split_thoughts(text)
    data, repairs, failure = _object(rest)
    if data is None:
        return Found(problem=failure)
    try:
        found = _found(data, request, kind, repairs)
    except (ValueError, TypeError, RecursionError) as error:
        return Found(problem=f"the JSON object cannot be used: {error}")
    return evolve(found, thoughts=(*thoughts, *found.thoughts))


def split_thoughts(text: str) -> tuple[tuple[str, ...], str]:
    """Take off the thoughts that a model marks by tags at the beginning of its text."""
    bare = text.lstrip()
    for opener, closer in THOUGHTS:
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
        reader = LiteralReader(at, unclosed=unclosed)
        reader.advance(text, ended=True)
        if isinstance(reader.value, ReadObject):
            if not _TELLING.isdisjoint(reader.value):
                return reader.value, reader.repairs(at, reader.at), ""
            at = text.find("{", reader.at)
        else:
            why = why or f"the JSON object cannot be read: {reader.failure}"
            at = text.find("{", at + 1)
    return None, (), why or "it holds no JSON object that is a decision"


def _found(data: dict[str, Any], request: InferenceRequest, kind: type[ReActDecision], repairs: Sequence[str]) -> Found:
    own = further_names(kind)
    given = {key: _first(data, [name for name in names if name not in own]) for key, names in _NAMES.items()}
    thought = _text(given["thought"]) if given["thought"] is not None else ""
    calls = _calls(given, request.tools, repairs)
    answer = _answer(given["answer"], request.response_format)
    further = {name: data[name] for name in own if data.get(name) is not None}
    chosen = _type(given["type"], calls, answer)
    if not chosen:
        return Found(problem=f"its type is {_text(given['type'])[:80]}; it is either 'tool' or 'final'")
    if chosen == "final":
        return Found((thought,), (), answer, further)
    if answer:
        calls = with_repair(calls, ANSWER_DROPPED)
    return Found((thought,), calls, None, further, wants_tool=True)


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
