"""Sample responses of the Messages API, complete and as streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import InferenceDelta, InferenceResponse
from tests.models.wire_formats.anthropic_messages.generated_messages import FORMAT, citation

USAGE = {"input_tokens": 3, "output_tokens": 5}
BLOCKS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "redacted_thinking", "data": "d"},
    {"type": "text", "text": "so", "citations": [citation]},
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "a"}},
    {"type": "unheard_of", "content": "x", "more": [1, {"a": None}]},
    {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}, "caller": {"type": "direct"}},
]


def assistant_message(*content: object, **more: object) -> dict[str, Any]:
    """Return a message of the model."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": list(content),
        "stop_reason": "end_turn",
        "usage": USAGE,
        **more,
    }


def decode(data: object, status: int = 200) -> InferenceResponse:
    """Decode a complete response."""
    return wire_format(FORMAT).decode_response(status, {}, json.dumps(data).encode())


def events(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a stream with this message."""
    usage, ending = message["usage"], {"stop_reason": message["stop_reason"]}
    start = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    stream_events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(message["content"]):
        initial, deltas = split_block(block)
        stream_events.append({"type": "content_block_start", "index": index, "content_block": initial})
        stream_events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        stream_events.append({"type": "content_block_stop", "index": index})
    return [*stream_events, {"type": "message_delta", "delta": ending, "usage": usage}, {"type": "message_stop"}]


def split_block(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Split a block into its initial form and its deltas."""
    initial, deltas = dict(block), []
    for name, kind in (("text", "text_delta"), ("thinking", "thinking_delta"), ("signature", "signature_delta")):
        if name in block:
            initial[name] = ""
            fragments = [block[name]] if name == "signature" else list(block[name])
            deltas += [{"type": kind, name: fragment} for fragment in fragments]
    if block.get("citations"):
        initial["citations"] = []
        deltas += [{"type": "citations_delta", "citation": citation} for citation in block["citations"]]
    if "input" in block:
        text = json.dumps(block["input"], separators=(",", ":"), ensure_ascii=False)
        initial["input"] = {}
        deltas += [{"type": "input_json_delta", "partial_json": fragment} for fragment in ["", text[:3], text[3:]]]
    return initial, deltas


def stream(
    stream_events: Sequence[dict[str, Any]], size: int = 1 << 30
) -> tuple[list[InferenceDelta], InferenceResponse]:
    """Decode a stream of events in chunks of this many bytes."""
    body = "".join(f"event: {event.get('type')}\ndata: {json.dumps(event)}\n\n" for event in stream_events).encode()
    decoder = wire_format(FORMAT).stream_decoder()
    deltas = [delta for start in range(0, len(body), size) for delta in decoder.feed(body[start : start + size])]
    return deltas, decoder.close()
