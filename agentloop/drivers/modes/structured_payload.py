"""The JSON in which a model calls tools, answers and thinks aloud: written and read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from agentloop.drivers.modes.strict_schema import without_nulls
from agentloop.drivers.modes.structured_schema import ANSWER, ARGUMENTS, NEXT, SCRATCHPAD, TOOL, is_answer_strict
from agentloop.drivers.modes.told_calls import results_message
from agentloop.inference.wire_formats.call_arguments import arguments_object
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.json_text import format_json, parse_json
from agentloop.values.message import Message, ResponsePart
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ToolExchange

_FENCE = re.compile(r"\A\s*```[a-zA-Z]*\s*\n(.*)\n\s*```\s*\Z", re.DOTALL)
_THOUGHTS = re.compile(r"\A\s*<think>(.*?)</think>", re.DOTALL)


@frozen
class Payload:
    """What a model's JSON holds.

    Attributes:
        parts: calls, answers as text and thoughts as reasoning, in order.
        problem: why it cannot be read, in words for the model; empty when it can.
    """

    parts: tuple[ResponsePart, ...] = ()
    problem: str = ""

    @property
    def has_calls(self) -> bool:
        """Whether it calls a tool."""
        return any(isinstance(part, ToolCall) for part in self.parts)

    @property
    def only_thinks(self) -> bool:
        """Whether it neither calls a tool nor answers."""
        return all(isinstance(part, Reasoning) for part in self.parts)


def read_payload(text: str, request: InferenceRequest) -> Payload:
    """Read a model's JSON; no text makes this raise."""
    thoughts = _THOUGHTS.match(text)
    rest = text[thoughts.end() :] if thoughts is not None else text
    fenced = _FENCE.match(rest)
    try:
        data = parse_json((fenced[1] if fenced is not None else rest).strip())
    except ValueError as error:
        return Payload(problem=f"it is not one JSON object ({error})")
    items = data.get(NEXT, data) if isinstance(data, dict) else data
    parts: list[ResponsePart] = [Reasoning(thoughts[1].strip())] if thoughts is not None else []
    for place, item in enumerate(items if isinstance(items, list) else [items]):
        part = _part(item, request)
        if isinstance(part, str):
            return Payload(problem=f"at {NEXT}[{place}]: {part}")
        parts.extend(part)
    return Payload(tuple(parts)) if parts else Payload(problem=f"the list {NEXT!r} is empty")


def holds_steps(text: str) -> bool:
    """Say whether a text that should be plain is such JSON, whole and with nothing beside it."""
    fenced = _FENCE.match(text)
    inner = (fenced[1] if fenced is not None else text).strip()
    if not inner.startswith("{"):
        return False
    try:
        data = parse_json(inner)
    except ValueError:
        return False
    return isinstance(data, dict) and data.keys() == {NEXT} and isinstance(data[NEXT], list)


def tell_payload(message: Message) -> Sequence[Message]:
    """Return a message as such JSON: what an assistant said, then a user's message with the results of its calls."""
    if message.role != "assistant":
        return (message,)
    items: list[dict[str, Any]] = []
    kept = []
    results: list[tuple[str, ToolExchange]] = []
    for part in message.parts:
        if isinstance(part, Text):
            items.append({ANSWER: part.text})
        elif isinstance(part, Reasoning) and not part.provider_data:
            items.append({SCRATCHPAD: part.text})
        elif isinstance(part, ToolExchange):
            items.append({TOOL: part.call.name, ARGUMENTS: arguments_object(part.call)})
            told = {TOOL: part.call.name, "result": part.execution.text}
            results.append((format_json(told).decode(), part))
        else:
            kept.append(part)
    said = Message.assistant(*kept, *([format_json({NEXT: items}).decode()] if items else []))
    return (said, results_message(results)) if results else (said,)


def _part(item: Any, request: InferenceRequest) -> list[ResponsePart] | str:
    """Read one item of the list; a text says what is wrong with it."""
    if not isinstance(item, dict):
        return f"an object with {TOOL!r}, {ANSWER!r} or {SCRATCHPAD!r} is expected, not {_kind(item)}"
    parts: list[ResponsePart] = []
    if isinstance(item.get(SCRATCHPAD), str) and item[SCRATCHPAD]:
        parts.append(Reasoning(item[SCRATCHPAD]))
    if isinstance(item.get(TOOL), str):
        parts.append(ToolCall("", item[TOOL], _arguments(item[TOOL], item.get(ARGUMENTS), request)))
    elif item.get(ANSWER) is not None or (ANSWER in item and request.response_format is not None):
        parts.append(Text(_answer(item[ANSWER], request)))
    if not parts:
        return f"an object with {TOOL!r}, {ANSWER!r} or {SCRATCHPAD!r} is expected; its keys are {', '.join(item) or 'none'}"
    return parts


def _arguments(name: str, arguments: Any, request: InferenceRequest) -> str:
    if isinstance(arguments, str):
        return arguments
    spec = next((spec for spec in request.tools if spec.name == name), None)
    cleaned = arguments if spec is None else without_nulls(arguments, spec.parameters)
    return format_json({} if cleaned is None else cleaned).decode()


def _answer(answer: Any, request: InferenceRequest) -> str:
    wanted = request.response_format
    if wanted is not None and wanted.schema is not None and is_answer_strict(wanted):
        answer = without_nulls(answer, wanted.schema)
        return format_json(answer).decode()
    return answer if isinstance(answer, str) else format_json(answer).decode()


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(
        type(value), "a number"
    )
