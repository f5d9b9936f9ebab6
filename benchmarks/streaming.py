"""Measures the decoding of a streamed response of each wire format.

python benchmarks/streaming.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from loopback_server import event
from measuring import Row, show

from agentloop.models import wire_format

CHUNKS = 2000


def _events(*documents: dict[str, object], named: bool = False) -> bytes:
    names = [f"event: {document['type']}\n" if named else "" for document in documents]
    return "".join(f"{name}data: {json.dumps(each)}\n\n" for name, each in zip(names, documents, strict=True)).encode()


def _openai_chat(count: int) -> bytes:
    return b"".join([*[event({"content": f"word{n} "}) for n in range(count)], event({}, "stop"), event(None)])


def _openai_responses(count: int) -> bytes:
    head = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    whole = {"type": "output_text", "text": "".join(f"word{n} " for n in range(count)), "annotations": []}
    response = {"id": "resp_1", "status": "completed", "model": "m", "output": [{**item, "content": [whole]}]}
    return _events(
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        *[{"type": "response.output_text.delta", **head, "delta": f"word{n} "} for n in range(count)],
        {"type": "response.completed", "response": response},
        named=True,
    )


def _anthropic(count: int) -> bytes:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {}}
    return _events(
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *[
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": f"word{n} "}}
            for n in range(count)
        ],
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
        named=True,
    )


def _gemini(count: int) -> bytes:
    chunks: list[dict[str, object]] = [
        {"candidates": [{"content": {"parts": [{"text": f"word{n} "}], "role": "model"}, "index": 0}]}
        for n in range(count)
    ]
    chunks.append({"candidates": [{"content": {"parts": [], "role": "model"}, "finishReason": "STOP", "index": 0}]})
    return _events(*chunks)


def _ollama(count: int) -> bytes:
    chunks: list[dict[str, object]] = [
        {"model": "m", "message": {"role": "assistant", "content": f"word{n} "}, "done": False} for n in range(count)
    ]
    chunks.append({"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"})
    return "".join(f"{json.dumps(chunk)}\n" for chunk in chunks).encode()


STREAMS: dict[str, Callable[[int], bytes]] = {
    "openai-chat": _openai_chat,
    "openai-responses": _openai_responses,
    "anthropic-messages": _anthropic,
    "gemini": _gemini,
    "ollama": _ollama,
}


def decoding_row(name: str, build: Callable[[int], bytes]) -> Row:
    """Decode a stream of one format in blocks of 1,400 bytes, as they arrive over a network."""
    stream = build(CHUNKS)
    best = float("inf")
    for _ in range(7):
        decoder = wire_format(name).stream_decoder()
        before = time.process_time()
        deltas = sum(len(decoder.feed(stream[at : at + 1400])) for at in range(0, len(stream), 1400))
        response = decoder.close()
        best = min(best, time.process_time() - before)
        assert deltas == response.text.count(" ") == CHUNKS
    rate = f"{len(stream) / best / 1e6:7.1f} MB/s, {best / CHUNKS * 1e6:.1f} µs per chunk"
    return Row(f"decoding {name}", rate, "none", within=True)


if __name__ == "__main__":
    show("Decoding", [decoding_row(name, build) for name, build in STREAMS.items()])
