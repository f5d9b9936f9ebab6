"""Responses of Chat Completions, read with tolerance for the many services that speak it.

Source: https://platform.openai.com/docs/api-reference/chat/object
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.inference.wire_formats.http_errors import error_in_answer, error_of, not_an_answer
from agentloop.values.inference_response import FinishReason, InferenceResponse
from agentloop.values.json_text import format_json, parse_json
from agentloop.values.message import ResponsePart
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_call import ToolCall
from agentloop.values.usage import Usage

_FINISH: Mapping[str, FinishReason] = {
    "stop": FinishReason.STOP,
    "end_turn": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_calls": FinishReason.TOOL_CALLS,
    "tool_call": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "tool_use": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "safety": FinishReason.CONTENT_FILTER,
    "refusal": FinishReason.CONTENT_FILTER,
    "error": FinishReason.ERROR,
}
_OK = 200


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Read an answer.

    Raises:
        InferenceError: typed by status and body.
    """
    if status != _OK:
        raise error_of(status, headers, body)
    try:
        data = parse_json(body)
    except ValueError as error:
        raise not_an_answer(f"the answer is not JSON ({error})", status, headers, body) from error
    if isinstance(data, dict) and data.get("error") and not data.get("choices"):
        raise error_in_answer(data, status, headers)
    try:
        choice = data["choices"][0]
        message = choice.get("message") or choice.get("delta") or {}
        parts = message_parts(message)
        return InferenceResponse(
            parts,
            finish_reason(choice.get("finish_reason"), has_calls=any(isinstance(part, ToolCall) for part in parts)),
            usage_of(data.get("usage")),
            text_of(data.get("model")),
            text_of(data.get("id")),
            choice.get("finish_reason") if isinstance(choice.get("finish_reason"), str) else None,
        )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise not_an_answer("the answer has not the shape of a chat completion", status, headers, body) from error


def message_parts(message: Mapping[str, Any]) -> tuple[ResponsePart, ...]:
    """Read reasoning, text and calls of an assistant's message, in that order."""
    parts: list[ResponsePart] = []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        parts.append(Reasoning(reasoning))
    parts.extend(_content(message.get("content")))
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal and not any(isinstance(part, Text) for part in parts):
        parts.append(Text(refusal))
    parts.extend(_call(call) for call in message.get("tool_calls") or ())
    if message.get("function_call"):
        parts.append(_call({"function": message["function_call"]}))
    return tuple(parts)


def finish_reason(reason: object, *, has_calls: bool) -> FinishReason:
    """Translate a finish reason to common words; calls count as such whatever a service says of them."""
    if has_calls and reason in {"stop", None, ""}:
        return FinishReason.TOOL_CALLS
    if not isinstance(reason, str) or not reason:
        return FinishReason.UNKNOWN
    return _FINISH.get(reason.lower(), FinishReason.OTHER)


def usage_of(usage: Any) -> Usage:
    """Read token counts; what a service does not report stays unknown."""
    if not isinstance(usage, dict):
        return Usage()
    read, written = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return Usage(
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
        _count(read.get("cached_tokens") if isinstance(read, dict) else None),
        None,
        _count(written.get("reasoning_tokens") if isinstance(written, dict) else None),
    )


def text_of(value: object) -> str:
    """Return a text, or an empty one for anything else."""
    return value if isinstance(value, str) else ""


def arguments_json(arguments: Any) -> str:
    """Return arguments as JSON text: as it came, or encoded where a service sends the object itself."""
    if arguments is None:
        return "{}"
    return arguments if isinstance(arguments, str) else format_json(arguments).decode()


def _content(content: Any) -> list[ResponsePart]:
    if isinstance(content, str):
        return [Text(content)] if content else []
    found: list[ResponsePart] = []
    for part in content or ():
        text = part if isinstance(part, str) else part.get("text") or part.get("refusal") or ""
        if isinstance(text, str) and text:
            found.append(Text(text))
        elif isinstance(part, dict) and isinstance(part.get("thinking"), list):
            found.append(Reasoning("".join(text_of(piece.get("text")) for piece in part["thinking"])))
    return found


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function") or call
    return ToolCall(text_of(call.get("id")), text_of(function.get("name")), arguments_json(function.get("arguments")))


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
