"""A Chat Completions server for benchmarks that does as little work per request as possible.

The first path segment is the number of turns and the number of calls in each response, as in `/10x1/v1/chat/completions`: responses
call the tool `add` until the last turn, which is a text. A path such as `/burst-2000/v1/…` or `/paced-2000/v1/…` streams a text in
that many chunks: all in one write, or each in its own write, half a millisecond apart. A path such as `/held-1000/v1/…` answers as soon as
so many requests wait. A question of what the server can do is answered with the status 404.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import lru_cache


@lru_cache(maxsize=1000)
def _response(calls: int, first: int = 0) -> bytes:
    """Return an answer with calls, whose ids begin with a number, as ids are unique in a conversation; or a text."""
    if calls:
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"call_{first + index}",
                    "type": "function",
                    # Each call is another one: a model that repeats itself is asked for its answer.
                    "function": {"name": "add", "arguments": f'{{"a": {first + index}, "b": 25}}'},
                }
                for index in range(calls)
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


def event(delta: dict[str, object] | None, finish: str | None = None) -> bytes:
    """Return one chunk of a streamed response as a server-sent event."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    chunk: dict[str, object] = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "loopback",
        "system_fingerprint": "fp_1",
        "choices": choices,
        "usage": None if choices else {"prompt_tokens": 120, "completion_tokens": 20, "total_tokens": 140},
    }
    return f"data: {json.dumps(chunk)}\n\n".encode()


@lru_cache
def _events(count: int) -> list[bytes]:
    words = [event({"content": f"word{number} "}) for number in range(count)]
    return [*words, event({}, "stop"), event(None), b"data: [DONE]\n\n"]


_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_PAUSE = 0.0005


_HELD: list[asyncio.Transport] = []


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end]).lower()
            if head.startswith(b"get "):
                del self._received[: end + 4]
                self._transport.write(_NOT_FOUND)
                continue
            start = head.find(b"content-length:") + len(b"content-length:")
            length = int(head[start : head.find(b"\r", start) if b"\r" in head[start:] else None])
            if len(self._received) < end + 4 + length:
                return
            body = bytes(self._received[end + 4 : end + 4 + length])
            del self._received[: end + 4 + length]
            self._reply(head, body)

    def _reply(self, head: bytes, body: bytes) -> None:
        segment = head.split(b"/", 2)[1]
        if b"-" in segment:
            kind, _, count = segment.partition(b"-")
            if kind == b"held":
                self._hold(int(count))
                return
            self._stream(_events(int(count)), paced=kind == b"paced")
            return
        turns, calls = map(int, segment.split(b"x"))
        results = body.count(b'"role":"tool"') + body.count(b'"role": "tool"')
        assert self._transport is not None
        is_end = results >= (turns - 1) * calls
        self._transport.write(_response(0) if is_end else _response(calls, results))

    def _hold(self, count: int) -> None:
        assert self._transport is not None
        _HELD.append(self._transport)
        if len(_HELD) >= count:
            for each in _HELD:
                each.write(_response(0))
            _HELD.clear()

    def _stream(self, events: list[bytes], *, paced: bool) -> None:
        assert self._transport is not None
        chunks = [b"%x\r\n%s\r\n" % (len(data), data) for data in events] + [b"0\r\n\r\n"]
        if not paced:
            self._transport.write(_STREAM_HEAD + b"".join(chunks))
            return
        self._transport.write(_STREAM_HEAD)
        self._send(chunks, 0)

    def _send(self, chunks: list[bytes], index: int) -> None:
        assert self._transport is not None
        self._transport.write(chunks[index])
        if index + 1 < len(chunks):
            asyncio.get_running_loop().call_later(_PAUSE, self._send, chunks, index + 1)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
