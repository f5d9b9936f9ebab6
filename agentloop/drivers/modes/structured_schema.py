"""The schema of an answer in which a model calls tools, answers or thinks aloud."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from agentloop.drivers.modes.strict_schema import NotStrict, strict_schema
from agentloop.values.encode_once import encode_each
from agentloop.values.inference_request import InferenceRequest, ResponseFormat
from agentloop.values.json_text import format_json
from agentloop.values.tool_spec import ToolSpec

NEXT = "next"
TOOL, ARGUMENTS, ANSWER, SCRATCHPAD = "tool", "arguments", "answer", "scratchpad"


@frozen
class ToolBranch:
    """What may stand for a call of one tool.

    Attributes:
        schema: the schema of such a call.
        definitions: the definitions that it refers to.
        reason: why the arguments are JSON written as a text; empty when they stand as they are.
    """

    schema: dict[str, Any]
    definitions: dict[str, Any]
    reason: str = ""


def tool_branch(spec: ToolSpec) -> ToolBranch:
    """Return what may stand for a call of a tool; computed once per tool."""
    return spec.encoded("a branch of a strict schema", _tool_branch)


def envelope(request: InferenceRequest) -> dict[str, Any]:
    """Return the schema of an answer: a list of calls, answers and thoughts, under one property, in the strict subset."""
    choice = request.tool_choice
    specs = [spec for spec in request.tools if choice.kind != "specific" or spec.name == choice.name]
    tools = encode_each(specs, "a branch of a strict schema", _tool_branch)
    branches = [branch.schema for branch in tools]
    definitions = {name: made for branch in tools for name, made in branch.definitions.items()}
    if choice.kind not in {"required", "specific"}:
        schema, more = _answer(request.response_format)
        branches.append(_closed("The final answer.", **{ANSWER: schema}))
        definitions.update(more)
    branches.append(_closed("Thoughts of yours, before you go on.", **{SCRATCHPAD: {"type": "string"}}))
    made = _closed("", **{NEXT: {"type": "array", "items": {"anyOf": branches}}})
    return {**made, "$defs": definitions} if definitions else made


def is_answer_strict(wanted: ResponseFormat | None) -> bool:
    """Say whether the form that is asked of the answer stands in the schema; otherwise the answer is JSON written as a text."""
    if wanted is None or wanted.schema is None:
        return False
    try:
        strict_schema(wanted.schema)
    except NotStrict:
        return False
    return True


def _tool_branch(spec: ToolSpec) -> ToolBranch:
    name: dict[str, Any] = {"type": "string", "enum": [spec.name]}
    try:
        arguments, definitions = strict_schema(spec.parameters, f"{spec.name}.")
    except NotStrict as reason:
        told = f"The arguments as the text of a JSON object that satisfies {format_json(spec.parameters).decode()}"
        text: dict[str, Any] = {"type": "string", "description": told}
        schema = _closed(spec.description, **{TOOL: name, ARGUMENTS: text})
        return ToolBranch(schema, {}, str(reason))
    return ToolBranch(_closed(spec.description, **{TOOL: name, ARGUMENTS: arguments}), definitions)


def _answer(wanted: ResponseFormat | None) -> tuple[dict[str, Any], dict[str, Any]]:
    if wanted is None:
        return {"type": "string"}, {}
    if wanted.schema is None:
        return {"type": "string", "description": "The text of a JSON object."}, {}
    try:
        return strict_schema(wanted.schema, "answer.")
    except NotStrict:
        told = f"The text of JSON that satisfies {format_json(wanted.schema).decode()}"
        return {"type": "string", "description": told}, {}


def _closed(described: str, **properties: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"description": described, **schema} if described else schema
