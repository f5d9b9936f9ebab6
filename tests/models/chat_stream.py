"""Builders for streamed chat completions."""

from __future__ import annotations

import json
from typing import Any

from tests.models.loopback import Reply, respond_chunked


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: object) -> bytes:
    """Return one chunk of a streamed chat completion."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return f"data: {json.dumps({'id': 'chatcmpl-1', 'model': 'loopback', 'choices': choices, **more})}\n\n".encode()


def call_chunk(index: int, name: str, arguments: str, call_id: str = "") -> bytes:
    """Return a chunk with a complete call."""
    tool_call = {"index": index, "id": call_id or f"c{index}", "function": {"name": name, "arguments": arguments}}
    return chunk({"tool_calls": [tool_call]})


END = [
    chunk({}, "stop"),
    chunk(None, usage={"prompt_tokens": 7, "completion_tokens": 3}),
    b"data: [DONE]\n\n",
]
CALLS_END = [chunk({}, "tool_calls"), *END[1:]]


def text_stream(*texts: str) -> list[bytes]:
    """Return a completion with one chunk per text."""
    return [*[chunk({"content": text}) for text in texts], *END]


def stream_text(*texts: str) -> Reply:
    """Stream a completion with one chunk per text."""
    return respond_chunked(text_stream(*texts))
