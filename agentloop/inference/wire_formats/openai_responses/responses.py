"""Responses of the Responses API.

Source: https://platform.openai.com/docs/api-reference/responses/object
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentloop.inference.wire_formats.openai_chat.responses import arguments_json, count_of, object_of, text_of
from agentloop.inference.wire_formats.openai_responses.input_items import CUSTOM, NAME
from agentloop.inference.wire_formats.whole_answer import read_whole_answer
from agentloop.values.inference_response import FinishReason, InferenceResponse
from agentloop.values.message import ResponsePart
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.tool_call import ToolCall
from agentloop.values.usage import Usage

_DONE = frozenset({"completed", "complete"})
_INCOMPLETE: Mapping[str, FinishReason] = {
    "max_output_tokens": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Read an answer.

    Raises:
        InferenceError: typed by status and body.
    """
    return read_whole_answer(status, headers, body, failure=failure_in, read=response_of, what="a response")


def failure_in(data: Any) -> dict[str, Any] | None:
    """Find what tells an error: the response itself, when it holds one or says that it failed."""
    if not isinstance(data, dict):
        return None
    if data.get("error"):
        return data
    if data.get("status") == "failed":
        return {"error": {"code": "server_error", "message": "the response failed; no reason is given"}}
    return None


def response_of(data: Any) -> InferenceResponse:
    """Read a response object; what is not of its shape raises `KeyError`, `TypeError`, `AttributeError` or `ValueError`."""
    parts = tuple(part for item in data["output"] for part in _parts(item))
    status = data.get("status")
    return InferenceResponse(
        parts,
        _finish_reason(text_of(status), text_of(object_of(data.get("incomplete_details")).get("reason")), parts),
        _usage(data.get("usage")),
        text_of(data.get("model")),
        text_of(data.get("id")),
        status if isinstance(status, str) else None,
    )


def _finish_reason(status: str, reason: str, parts: tuple[ResponsePart, ...]) -> FinishReason:
    if status == "incomplete":
        return _INCOMPLETE.get(reason, FinishReason.OTHER)
    if status and status not in _DONE:
        return FinishReason.OTHER
    if any(isinstance(part, ToolCall) for part in parts):
        return FinishReason.TOOL_CALLS
    if any(isinstance(part, Text) and _is_refusal(part) for part in parts):
        return FinishReason.CONTENT_FILTER
    return FinishReason.STOP if status else FinishReason.UNKNOWN


def _is_refusal(part: Text) -> bool:
    return object_of(object_of(part.provider_data.get(NAME)).get("content")).get("type") == "refusal"


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    read, written = object_of(usage.get("input_tokens_details")), object_of(usage.get("output_tokens_details"))
    return Usage(
        count_of(usage.get("input_tokens")),
        count_of(usage.get("output_tokens")),
        count_of(read.get("cached_tokens")),
        count_of(read.get("cache_write_tokens")),
        count_of(written.get("reasoning_tokens")),
    )


def _parts(item: dict[str, Any]) -> Iterator[ResponsePart]:
    kind = item.get("type")
    if kind == "message":
        yield from _texts(item)
    elif kind == "reasoning":
        yield Reasoning(reasoning_text(item), provider_data={NAME: _without_nulls(item)})
    elif kind in {"function_call", CUSTOM}:
        yield _call(item)
    else:
        yield ProviderPart(NAME, item)


def _texts(item: dict[str, Any]) -> Iterator[Text]:
    """Read a message: a text for each piece of its content, so that the pieces can be told apart when they go back."""
    kept = {name: value for name, value in _without_nulls(item).items() if name not in {"type", "role", "content"}}
    content = item.get("content") or ()
    for piece in [{"text": content}] if isinstance(content, str) else content:
        refusal = text_of(piece.get("refusal"))
        text = text_of(piece.get("text")) or refusal
        if not text and not kept.get("id"):
            continue
        noted = (
            {"type": "refusal"}
            if refusal
            else {"annotations": piece["annotations"]}
            if piece.get("annotations")
            else {}
        )
        state = {"item": kept, "content": noted} if noted else {"item": kept}
        yield Text(text, provider_data={NAME: state} if kept.get("id") or noted else {})


def reasoning_text(item: Mapping[str, Any]) -> str:
    """Return the thoughts of a reasoning item: its summary, or what it shows of them in full."""
    pieces = item.get("summary") or item.get("content") or ()
    return "\n".join(text_of(piece.get("text")) for piece in pieces)


def _call(item: dict[str, Any]) -> ToolCall:
    is_custom = item.get("type") == CUSTOM
    sent = {"call_id", "name", "arguments", "type"} if not is_custom else {"call_id", "name", "input", "status"}
    kept = {name: value for name, value in _without_nulls(item).items() if name not in sent}
    arguments = text_of(item.get("input")) if is_custom else arguments_json(item.get("arguments"))
    call_id = text_of(item.get("call_id")) or text_of(item.get("id"))
    return ToolCall(call_id, text_of(item.get("name")), arguments, provider_data={NAME: kept} if kept else {})


def _without_nulls(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if value is not None}
