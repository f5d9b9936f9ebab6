"""Streamed chat completions, spelled."""

from __future__ import annotations

import json
from typing import Any

from tests.inference.loopback import Reply, chunked


def event(delta: dict[str, Any] | None = None, finish: str | None = None, **more: object) -> bytes:
    """Spell one chunk of a streamed chat completion."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return f"data: {json.dumps({'id': 'chatcmpl-1', 'model': 'loopback', 'choices': choices, **more})}\n\n".encode()


def call(index: int, name: str, arguments: str, call_id: str = "") -> bytes:
    """Spell a chunk with a whole call."""
    spelled = {"index": index, "id": call_id or f"c{index}", "function": {"name": name, "arguments": arguments}}
    return event({"tool_calls": [spelled]})


END = [
    event({}, "stop"),
    event(None, usage={"prompt_tokens": 7, "completion_tokens": 3}),
    b"data: [DONE]\n\n",
]
CALLS_END = [event({}, "tool_calls"), *END[1:]]


def words(*texts: str) -> list[bytes]:
    """Spell an answer of these pieces of text."""
    return [*[event({"content": text}) for text in texts], *END]


def streams(*texts: str) -> Reply:
    """Answer with these pieces of text, each in a chunk of its own."""
    return chunked(words(*texts))
