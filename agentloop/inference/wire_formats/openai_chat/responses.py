"""Responses of Chat Completions, read with tolerance for the many services that speak it.

Source: https://platform.openai.com/docs/api-reference/chat/object
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agentloop.inference.wire_formats.whole_answer import read_whole_answer
from agentloop.values.inference_response import FinishReason, InferenceResponse
from agentloop.values.json_text import format_json
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
REFUSAL: Mapping[str, Any] = {"openai-chat": {"type": "refusal"}}
"""What marks a text that came as a refusal."""


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Read an answer.

    Raises:
        InferenceError: typed by status and body.
    """
    return read_whole_answer(status, headers, body, failure=failure_in, read=_response, what="a chat completion")


def failure_in(data: Any) -> dict[str, Any] | None:
    """Find what tells an error: the answer itself, when it has no choices, or a choice of it, where a router puts it."""
    if not isinstance(data, dict):
        return None
    choices = data.get("choices")
    held = choices[0] if isinstance(choices, list) and choices else data
    return held if isinstance(held, dict) and held.get("error") else None


def _response(data: Any) -> InferenceResponse:
    choice = data["choices"][0]
    message = choice.get("message") or choice.get("delta") or {}
    reason, parts = choice.get("finish_reason"), message_parts(message)
    return InferenceResponse(
        parts,
        finish_reason(
            reason,
            has_calls=any(isinstance(part, ToolCall) for part in parts),
            refused=bool(message.get("refusal")),
        ),
        usage_of(data.get("usage")),
        text_of(data.get("model")),
        text_of(data.get("id")),
        reason if isinstance(reason, str) else None,
    )


def message_parts(message: Mapping[str, Any]) -> tuple[ResponsePart, ...]:
    """Read reasoning, text and calls of an assistant's message, in that order; a refusal is text."""
    parts: list[ResponsePart] = []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        parts.append(Reasoning(reasoning))
    parts.extend(content_parts(message.get("content")))
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal and not any(isinstance(part, Text) for part in parts):
        parts.append(Text(refusal, provider_data=REFUSAL))
    calls = message.get("tool_calls") or ()
    parts.extend(_call(call) for call in ([calls] if isinstance(calls, dict) else calls))
    return tuple(parts)


def finish_reason(reason: object, *, has_calls: bool, refused: bool = False) -> FinishReason:
    """Translate a finish reason to common words; calls and refusals count as such whatever a service says of them."""
    word = reason.lower() if isinstance(reason, str) else ""
    if has_calls and word in {"stop", ""}:
        return FinishReason.TOOL_CALLS
    if refused and word in {"stop", ""}:
        return FinishReason.CONTENT_FILTER
    return _FINISH.get(word, FinishReason.OTHER) if word else FinishReason.UNKNOWN


def usage_of(usage: Any) -> Usage:
    """Read token counts; what a service does not report stays unknown."""
    if not isinstance(usage, dict):
        return Usage()
    read, written = object_of(usage.get("prompt_tokens_details")), object_of(usage.get("completion_tokens_details"))
    cached = (read.get("cached_tokens"), usage.get("prompt_cache_hit_tokens"), usage.get("cached_tokens"))
    return Usage(
        count_of(usage.get("prompt_tokens")),
        count_of(usage.get("completion_tokens")),
        next((count for count in map(count_of, cached) if count is not None), None),
        count_of(read.get("cache_write_tokens")),
        count_of(written.get("reasoning_tokens")),
    )


def text_of(value: object) -> str:
    """Return a text, or an empty one for anything else."""
    return value if isinstance(value, str) else ""


def arguments_json(arguments: Any) -> str:
    """Return arguments as JSON text: as it came, or encoded where a service sends the object itself."""
    if arguments is None:
        return "{}"
    return arguments if isinstance(arguments, str) else format_json(arguments).decode()


def content_parts(content: Any) -> list[Text | Reasoning]:
    """Read the content of a message, as text or as a list of pieces."""
    if isinstance(content, str):
        return [Text(content)] if content else []
    found: list[Text | Reasoning] = []
    for part in [content] if isinstance(content, dict) else content or ():
        text = part if isinstance(part, str) else part.get("text") or part.get("refusal")
        if isinstance(text, str) and text:
            found.append(Text(text))
        elif isinstance(part, dict) and part.get("thinking"):
            found.append(Reasoning(_thoughts(part["thinking"])))
    return found


def _thoughts(thinking: Any) -> str:
    return thinking if isinstance(thinking, str) else "".join(text_of(piece.get("text")) for piece in thinking)


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function") or call
    call_id = call.get("id")
    return ToolCall(
        str(call_id) if isinstance(call_id, int) else text_of(call_id),
        text_of(function.get("name")),
        arguments_json(function.get("arguments")),
    )


def object_of(value: Any) -> dict[str, Any]:
    """Return an object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def count_of(value: object) -> int | None:
    """Return a count of tokens; what cannot be one is unknown."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return int(value)
    return None
