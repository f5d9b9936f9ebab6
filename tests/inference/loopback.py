"""A provider on loopback that follows a script: real sockets, exact bytes, every kind of misbehaviour.

The server lives in the event loop of the test and has no tasks of its own, so that what a client leaves behind shows.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from attrs import frozen

from tests.limits import LONGEST

KEY = "sk-test-0123456789abcdef"

Reply: TypeAlias = Callable[["Connection", "Received"], None]
"""Answers a request that just came over a connection, well or badly."""


@frozen
class Received:
    """A request as it came.

    Attributes:
        line: the request line.
        headers: the headers, by names in lower case; several of one name are joined by a comma.
        body: the body.
        connection: the number of the connection that it came over, from 0.
    """

    line: str
    headers: Mapping[str, str]
    body: bytes
    connection: int

    @property
    def target(self) -> str:
        """What was asked for: a path, or a whole URL where the client takes the server for a proxy."""
        return self.line.split()[1]

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


class Loopback:
    """The server.

    Attributes:
        requests: what was received, in order.
        connections: how many connections were opened.
    """

    def __init__(self, replies: Sequence[Reply]) -> None:
        self.requests: list[Received] = []
        self.connections = 0
        self._replies = list(replies)
        self._open: set[Connection] = set()
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._open)

    async def start(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.get_running_loop().create_server(lambda: Connection(self), "127.0.0.1", 0)

    async def stop(self) -> None:
        """Close everything."""
        assert self._server is not None
        self._server.close()
        for connection in self._open:
            connection.transport.abort()
        await self.all_closed()

    def close_connections(self) -> None:
        """Close all connections from this side."""
        for connection in self._open:
            connection.transport.close()

    async def all_closed(self) -> None:
        """Wait until no connection is open."""
        await self._until(lambda: not self._open)

    async def received(self, count: int) -> None:
        """Wait until this many requests have come."""
        await self._until(lambda: len(self.requests) >= count)

    async def _until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(LONGEST):
            while not reached():
                self._changed.clear()
                await self._changed.wait()

    def opened(self, connection: Connection) -> int:
        """Take note of a new connection."""
        self._open.add(connection)
        self.connections += 1
        return self.connections - 1

    def closed(self, connection: Connection) -> None:
        """Take note of one that is closed."""
        self._open.discard(connection)
        self._changed.set()

    def answer(self, connection: Connection, request: Received) -> None:
        """Give the next answer of the script."""
        self.requests.append(request)
        reply = self._replies.pop(0) if self._replies else answer(418, b"the script is at its end")
        reply(connection, request)
        self._changed.set()


class Connection(asyncio.Protocol):
    """One connection of the server."""

    transport: asyncio.Transport

    def __init__(self, server: Loopback) -> None:
        self._server = server
        self._received = bytearray()
        self._number = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._number = self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._received[:1].isalpha():  # no HTTP: a TLS handshake, for one
            self.transport.close()
        head, found, rest = bytes(self._received).partition(b"\r\n\r\n")
        if not found:
            return
        line, *lines = head.decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for one in lines:
            name, _, value = one.partition(":")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        length = int(headers.get("content-length", "0"))
        if len(rest) >= length:
            self._received = bytearray(rest[length:])
            self._server.answer(self, Received(line, headers, rest[:length], self._number))


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """Spell the status line and the headers."""
    lines = [f"HTTP/1.1 {status} Whatever", *[f"{name}: {value}" for name, value in headers.items()]]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def answer(status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Reply:
    """Answer as servers do."""
    spelled = head(status, {"content-length": str(len(body)), **(headers or {})})
    return lambda connection, _: connection.transport.write(spelled + body)


def as_json(status: int, data: object, headers: Mapping[str, str] | None = None) -> Reply:
    """Answer with JSON."""
    return answer(status, json.dumps(data).encode(), {"content-type": "application/json", **(headers or {})})


def completion(text: str | None = "hello", **message: object) -> bytes:
    """Spell a chat completion."""
    spelled = {
        "id": "chatcmpl-1",
        "model": "loopback",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    }
    return json.dumps(spelled).encode()


def says(text: str = "hello", headers: Mapping[str, str] | None = None) -> Reply:
    """Answer with a chat completion."""
    return answer(200, completion(text), headers)


def echoes(connection: Connection, request: Received) -> None:
    """Answer with the text of the last message."""
    says(f"answer to {request.json['messages'][-1]['content']}")(connection, request)


def closing(body: bytes) -> Reply:
    """Answer without a length, the end of the body being the end of the connection."""

    def reply(connection: Connection, _: Received) -> None:
        connection.transport.write(head(200, {"connection": "close"}) + body)
        connection.transport.close()

    return reply


def chunked(pieces: Sequence[bytes], *, ends: bool = True) -> Reply:
    """Answer in chunks, each sent in a turn of the event loop of its own; without the last one unless `ends`."""
    spelled = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]

    def reply(connection: Connection, _: Received) -> None:
        def send(left: list[bytes]) -> None:
            if left:
                connection.transport.write(left[0])
                asyncio.get_running_loop().call_soon(send, left[1:])
            elif not ends:
                connection.transport.close()

        send([head(200, {"transfer-encoding": "chunked"}), *spelled, *([b"0\r\n\r\n"] if ends else [])])

    return reply


def gzipped(body: bytes) -> Reply:
    """Answer compressed."""
    return answer(200, gzip.compress(body), {"content-encoding": "gzip"})


def hangs_up(sent: bytes = b"") -> Reply:
    """Close the connection, after these bytes."""

    def reply(connection: Connection, _: Received) -> None:
        connection.transport.write(sent)
        connection.transport.close()

    return reply


def resets(sent: bytes = b"") -> Reply:
    """Break the connection without a farewell, after these bytes."""

    def reply(connection: Connection, _: Received) -> None:
        connection.transport.write(sent)
        connection.transport.abort()

    return reply


def stalls(sent: bytes = b"") -> Reply:
    """Say nothing more, after these bytes."""
    return lambda connection, _: connection.transport.write(sent)


@asynccontextmanager
async def loopback(*replies: Reply) -> AsyncIterator[Loopback]:
    """Run the server for the length of an `async with`."""
    server = Loopback(replies)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
