"""The JSON Schema of a decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agentloop.drivers.modes.react_decision import ReActDecision, further_schema
from agentloop.drivers.modes.strict_schema import NotStrict, strict_schema
from agentloop.values.inference_request import InferenceRequest, ResponseFormat

_TEXT: Final = {"type": "string"}


def decision_format(request: InferenceRequest, kind: type[ReActDecision]) -> ResponseFormat:
    """Return the form of a decision: in the strict subset where all that it holds can be expressed there."""
    try:
        return ResponseFormat(_strict(request, kind), name="decision")
    except NotStrict:
        return ResponseFormat(_open(request, kind), name="decision", strict=False)


def _strict(request: InferenceRequest, kind: type[ReActDecision]) -> dict[str, Any]:
    branches, definitions = [], dict[str, Any]()
    for spec in request.tools:
        made, inner = strict_schema(spec.parameters, f"{spec.name}.")
        branches.append(made)
        definitions |= inner
    args = {"anyOf": [*branches, {"type": "null"}]}
    name: dict[str, Any] = {"type": "string", "enum": [spec.name for spec in request.tools]}
    answer: dict[str, Any] = dict(_TEXT)
    if request.response_format is not None and request.response_format.schema is not None:
        answer, inner = strict_schema(request.response_format.schema, "answer.")
        definitions |= inner
    further, inner = strict_schema(further_schema(kind), "decision.")
    properties = {
        "thought": _TEXT,
        **further["properties"],
        "type": {"type": "string", "enum": ["tool", "final"]},
        "tool": {"anyOf": [name, {"type": "null"}]},
        "args": args,
        "calls": {"anyOf": [{"type": "array", "items": _closed({"tool": name, "args": args})}, {"type": "null"}]},
        "answer": {"anyOf": [answer, {"type": "null"}]},
    }
    if request.parallel_tool_calls is False:
        del properties["calls"]
    definitions |= inner
    return {**_closed(properties), **({"$defs": definitions} if definitions else {})}


def _open(request: InferenceRequest, kind: type[ReActDecision]) -> dict[str, Any]:
    name = {"type": "string", "enum": [spec.name for spec in request.tools]}
    call = {"tool": name, "args": {"type": "object"}}
    answer: Mapping[str, Any] = _TEXT
    if request.response_format is not None and request.response_format.schema is not None:
        answer = {}
    own = further_schema(kind)
    properties = {
        "thought": _TEXT,
        **own["properties"],
        "type": {"type": "string", "enum": ["tool", "final"]},
        **call,
        "calls": {"type": "array", "items": {"type": "object", "properties": call, "required": ["tool", "args"]}},
        "answer": answer,
    }
    if request.parallel_tool_calls is False:
        del properties["calls"]
    made = {"type": "object", "properties": properties, "required": ["thought", "type", *own.get("required", ())]}
    return {**made, "$defs": own["$defs"]} if "$defs" in own else made


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
