"""Responses of Messages.

Source: https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agentloop.inference.wire_formats.anthropic_messages.blocks import part_of, text_of
from agentloop.inference.wire_formats.whole_answer import read_whole_answer
from agentloop.values.inference_response import FinishReason, InferenceResponse
from agentloop.values.message import ResponsePart
from agentloop.values.tool_call import ToolCall
from agentloop.values.usage import Usage

_FINISH: Mapping[str, FinishReason] = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.CONTENT_FILTER,
}


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Read an answer.

    Raises:
        InferenceError: typed by status and body.
    """
    return read_whole_answer(
        status,
        headers,
        body,
        failure=lambda data: data if tells_error(data) else None,
        read=response_of,
        what="a message",
    )


def tells_error(data: Any) -> bool:
    """Say whether this is an error instead of a message."""
    return isinstance(data, dict) and "content" not in data and (data.get("type") == "error" or bool(data.get("error")))


def response_of(message: Mapping[str, Any]) -> InferenceResponse:
    """Read a message; of a streamed one, the inputs of calls may still be the text that came.

    Raises:
        TypeError: when it has not the shape of one; `AttributeError`, `KeyError` and `ValueError` likewise.
    """
    content, reason = message["content"], message.get("stop_reason")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    parts: list[ResponsePart] = [part for part in map(part_of, blocks) if part is not None]
    return InferenceResponse(
        parts,
        _finish_reason(reason, has_calls=any(isinstance(part, ToolCall) for part in parts)),
        _usage(message.get("usage")),
        text_of(message.get("model")),
        text_of(message.get("id")),
        reason if isinstance(reason, str) else None,
    )


def _finish_reason(reason: object, *, has_calls: bool) -> FinishReason:
    """Translate a stop reason to common words; calls count as such whatever a service says of them."""
    word = text_of(reason)
    if has_calls and word in {"end_turn", ""}:
        return FinishReason.TOOL_CALLS
    return _FINISH.get(word, FinishReason.OTHER) if word else FinishReason.UNKNOWN


def _usage(usage: Any) -> Usage:
    """Read token counts; the provider counts what its cache read and wrote beside the input, not in it."""
    if not isinstance(usage, dict):
        return Usage()
    details = usage.get("output_tokens_details")
    fresh, output = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
    read, written = _count(usage.get("cache_read_input_tokens")), _count(usage.get("cache_creation_input_tokens"))
    return Usage(
        None if fresh is None else fresh + (read or 0) + (written or 0),
        output,
        read,
        written,
        _count(details.get("thinking_tokens")) if isinstance(details, dict) else None,
    )


def _count(value: object) -> int | None:
    """Return a count of tokens; what cannot be one is unknown."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return int(value)
    return None
