"""A scripted provider on the loopback interface: real sockets, exact bytes, every kind of misbehavior.

The server runs in the event loop of the test without tasks of its own, so that tests can detect tasks that a client leaks.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeAlias

from attrs import frozen

from tests.limits import LONGEST

KEY = "sk-test-0123456789abcdef"

Reply: TypeAlias = Callable[["Connection", "ReceivedRequest"], None]
"""Responds to a request on a connection, correctly or not."""


@frozen
class ReceivedRequest:
    """A received request.

    Attributes:
        line: the request line.
        headers: the headers, by lower-case names; repeated headers are joined by commas.
        body: the body.
        connection: the 0-based number of its connection.
    """

    line: str
    headers: Mapping[str, str]
    body: bytes
    connection: int

    @property
    def target(self) -> str:
        """The request target: a path, or a URL if the client uses the server as a proxy."""
        return self.line.split()[1]

    @property
    def json(self) -> Any:
        """The parsed body."""
        return json.loads(self.body)


_TURNS_TO_MAKE_A_CONNECTION = 4
"""The turns of the event loop in which asyncio makes a connection that it has accepted."""


class Loopback:
    """The server.

    Attributes:
        requests: the received requests, in order.
        connections: the number of connections opened so far.
    """

    def __init__(self, replies: Sequence[Reply]) -> None:
        self.requests: list[ReceivedRequest] = []
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
        """A base URL that ends in `/v1`; the server answers at any path."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    async def start(self) -> None:
        """Start to listen."""
        self._server = await asyncio.get_running_loop().create_server(lambda: Connection(self), "127.0.0.1", 0)

    async def stop(self) -> None:
        """Stop to listen and close all connections, also those that were accepted and are not made yet."""
        assert self._server is not None
        self._server.close()
        async with asyncio.timeout(LONGEST):
            for turn in count():
                # asyncio counts also the connections whose protocol has not been told of them.
                if turn >= _TURNS_TO_MAKE_A_CONNECTION and not self._open and not _count_connections(self._server):
                    break
                for connection in self._open:
                    connection.transport.abort()
                await asyncio.sleep(0)

    def close_connections(self) -> None:
        """Close all connections from the server side."""
        for connection in self._open:
            connection.transport.close()

    async def all_closed(self) -> None:
        """Wait until no connection is open."""
        await self._until(lambda: not self._open)

    async def received(self, count: int) -> None:
        """Wait until this many requests were received."""
        await self._until(lambda: len(self.requests) >= count)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LONGEST):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def add(self, connection: Connection) -> int:
        """Register a new connection and return its number."""
        self._open.add(connection)
        self.connections += 1
        return self.connections - 1

    def remove(self, connection: Connection) -> None:
        """Unregister a closed connection."""
        self._open.discard(connection)
        self._changed.set()

    def handle(self, connection: Connection, request: ReceivedRequest) -> None:
        """Send the next reply of the script; a question about the server takes none, and has no answer."""
        if request.line.startswith("GET ") and request.target.endswith(("/props", "/models", "/api/version")):
            respond(404)(connection, request)
            return
        self.requests.append(request)
        reply = self._replies.pop(0) if self._replies else respond(418, b"the script has ended")
        reply(connection, request)
        self._changed.set()


class Connection(asyncio.Protocol):
    """A connection on the server side."""

    transport: asyncio.Transport

    def __init__(self, server: Loopback) -> None:
        self._server = server
        self._received = bytearray()
        self._number = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._number = self._server.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.remove(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._received[:1].isalpha():  # not HTTP, but for example a TLS handshake
            self.transport.close()
        head, end, body = bytes(self._received).partition(b"\r\n\r\n")
        if not end:
            return
        line, *lines = head.decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for header in lines:
            name, _, value = header.partition(":")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        length = int(headers.get("content-length", "0"))
        if len(body) >= length:
            self._received = bytearray(body[length:])
            self._server.handle(self, ReceivedRequest(line, headers, body[:length], self._number))


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """Return the status line and the headers."""
    lines = [f"HTTP/1.1 {status} Whatever", *[f"{name}: {value}" for name, value in headers.items()]]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def respond(status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Reply:
    """Send a complete response."""
    response = head(status, {"content-length": str(len(body)), **(headers or {})}) + body
    return lambda connection, _: connection.transport.write(response)


def respond_json(status: int, data: object, headers: Mapping[str, str] | None = None) -> Reply:
    """Send a JSON response."""
    return respond(status, json.dumps(data).encode(), {"content-type": "application/json", **(headers or {})})


def completion(text: str | None = "hello", **message: object) -> bytes:
    """Return the body of a chat completion."""
    data = {
        "id": "chatcmpl-1",
        "model": "loopback",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    }
    return json.dumps(data).encode()


def respond_text(text: str = "hello", headers: Mapping[str, str] | None = None) -> Reply:
    """Send a chat completion with this text."""
    return respond(200, completion(text), headers)


def echo(connection: Connection, request: ReceivedRequest) -> None:
    """Send a chat completion with the text of the last message."""
    respond_text(f"answer to {request.json['messages'][-1]['content']}")(connection, request)


def respond_and_close(body: bytes) -> Reply:
    """Send a response without a length, whose body ends with the connection."""

    def reply(connection: Connection, _: ReceivedRequest) -> None:
        connection.transport.write(head(200, {"connection": "close"}) + body)
        connection.transport.close()

    return reply


def respond_chunked(chunks: Sequence[bytes], *, ends: bool = True) -> Reply:
    """Send a chunked response, one chunk per turn of the event loop; without `ends`, close before the last chunk."""
    encoded = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]

    def reply(connection: Connection, _: ReceivedRequest) -> None:
        def send(remaining: list[bytes]) -> None:
            if remaining:
                connection.transport.write(remaining[0])
                asyncio.get_running_loop().call_soon(send, remaining[1:])
            elif not ends:
                connection.transport.close()

        send([head(200, {"transfer-encoding": "chunked"}), *encoded, *([b"0\r\n\r\n"] if ends else [])])

    return reply


def respond_gzipped(body: bytes) -> Reply:
    """Send a compressed response."""
    return respond(200, gzip.compress(body), {"content-encoding": "gzip"})


def hang_up(sent: bytes = b"") -> Reply:
    """Send these bytes and close the connection."""

    def reply(connection: Connection, _: ReceivedRequest) -> None:
        connection.transport.write(sent)
        connection.transport.close()

    return reply


def reset(sent: bytes = b"") -> Reply:
    """Send these bytes and abort the connection."""

    def reply(connection: Connection, _: ReceivedRequest) -> None:
        connection.transport.write(sent)
        connection.transport.abort()

    return reply


def stall(sent: bytes = b"") -> Reply:
    """Send these bytes and nothing more."""
    return lambda connection, _: connection.transport.write(sent)


def _count_connections(server: asyncio.Server) -> int:
    # Python 3.13 knows the connections themselves.
    return len(getattr(server, "_clients", ())) or getattr(server, "_active_count", 0)


@asynccontextmanager
async def loopback(*replies: Reply) -> AsyncIterator[Loopback]:
    """Run a server with this script within an `async with` block."""
    server = Loopback(replies)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
