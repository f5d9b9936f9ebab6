"""A Chat Completions server for benchmarks: as little work per request as possible.

The first path segment says how many turns a conversation has and how many calls each answer holds, as in
`/10x1/v1/chat/completions`: every answer calls the tool `add` until that many turns have been taken, then comes a text.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import lru_cache


@lru_cache
def _answer(calls: int) -> bytes:
    if calls:
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"call_{place}",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a": 17, "b": 25}'},
                }
                for place in range(calls)
            ],
        }
    else:
        message = {"role": "assistant", "content": "The sum is 42."}
    completion = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "loopback",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": 120, "completion_tokens": 20, "total_tokens": 140},
    }
    body = json.dumps(completion).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end]).lower()
            start = head.find(b"content-length:") + len(b"content-length:")
            length = int(head[start : head.find(b"\r", start) if b"\r" in head[start:] else None])
            if len(self._received) < end + 4 + length:
                return
            body = bytes(self._received[end + 4 : end + 4 + length])
            del self._received[: end + 4 + length]
            self._reply(head, body)

    def _reply(self, head: bytes, body: bytes) -> None:
        turns, calls = map(int, head.split(b"/", 2)[1].split(b"x"))
        taken = body.count(b'"role":"tool"') + body.count(b'"role": "tool"')
        assert self._transport is not None
        self._transport.write(_answer(0 if taken >= (turns - 1) * calls else calls))


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
