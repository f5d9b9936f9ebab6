"""HTTP/1.1 on the transports of asyncio, parsed by httptools: what a request costs is mostly the bytes (extra `fast`)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from functools import partial

import httptools
import httpx

from agentloop.models.connections import (
    HttpRequest,
    HttpResponse,
    ModelConnection,
    ServerAddress,
    encode_headers,
    is_readable,
    join_headers,
)

_MAX_OVERHEAD = 100 * 1024
"""Bytes of a response that are no body: its head, and what is around the chunks of its body."""
_MAX_CHUNK_OVERHEAD = 64
_HIGH_WATER = 256 * 1024
"""Bytes of the body that may wait for their reader."""
_ONE_WRITE = 64 * 1024
_DISCONNECTED = "Server disconnected without sending a response."
_OK = 200
_NO_BODY = (204, 304)


class HttptoolsResponse:
    """A response that is being received.

    Attributes:
        status_code: the HTTP status; 0 before the head.
        headers: the headers, by lower-case names; those of the same name are joined by commas.
    """

    __slots__ = ("_buffered", "_chunks", "_connection", "_error", "_waiter", "headers", "is_complete", "status_code")

    def __init__(self, connection: HttptoolsConnection) -> None:
        self.status_code: int = 0
        self.headers: Mapping[str, str] = {}
        self.is_complete: bool = False
        self._connection = connection
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._error: httpx.TransportError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_stream_consumed(self) -> bool:
        """Never: the body is read once, as it arrives."""
        return False

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to come."""
        return self.is_complete or self._error is not None

    async def wait_for_head(self) -> None:
        """Wait for the status and the headers.

        Raises:
            httpx.TransportError: there is no response.
        """
        while not self.status_code:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, what came at once as one chunk.

        Raises:
            httpx.TransportError: it broke off.
        """
        while True:
            if self._chunks:
                data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
                self._chunks.clear()
                if self._buffered > _HIGH_WATER:
                    self._connection.resume_reading()
                self._buffered = 0
                yield data
            elif self._error is not None:
                raise self._error
            elif self.is_complete:
                return
            else:
                await self._wait()

    async def aclose(self) -> None:
        """Close the response, and with it a connection that is still receiving it."""
        if not self.is_complete:
            self.fail(httpx.ReadError("the response was closed"))
            self._connection.abort()

    def add(self, data: bytes) -> None:
        """Take a part of the body."""
        before, self._buffered = self._buffered, self._buffered + len(data)
        self._chunks.append(data)
        if before <= _HIGH_WATER < self._buffered:
            self._connection.pause_reading()

    def fail(self, error: httpx.TransportError) -> None:
        """Let the reader have an error, after what was received."""
        if not self.has_ended:
            self._error = error
        self.wake()

    def wake(self) -> None:
        """Let the reader go on."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class HttptoolsConnection(ModelConnection, asyncio.Protocol):
    """A connection whose responses httptools parses.

    Args:
        address: the server.
    """

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._response: HttptoolsResponse | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._is_kept_alive = False
        self._ends_with_connection = False
        self._overhead = 0  # bytes of the response so far that were no body, apart from what chunks may have
        self._is_closed = False

    @property
    def is_usable(self) -> bool:
        """Whether the last response was received completely, and the server has not closed the connection since."""
        if self._transport is None or not self.is_kept_alive:
            return False
        # What the event loop has not noticed yet: an idle connection has something to read when its server has closed it.
        return not is_readable(self._transport.get_extra_info("socket"))

    @property
    def is_kept_alive(self) -> bool:
        """Whether the last response was received completely, and the connection is not known to be closed."""
        return self._is_kept_alive and not self._is_closed and self._response is None

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request and wait for the head of the response.

        Raises:
            httpx.LocalProtocolError: a header is not valid HTTP.
            httpx.TransportError: there is no connection, or no valid response.
        """
        transport = self._transport
        if transport is None:
            create = partial(asyncio.get_running_loop().create_connection, lambda: self)
            created: tuple[asyncio.Transport, asyncio.BaseProtocol] = await self._address.connect(
                create, request.connect_timeout
            )
            transport = self._transport = created[0]
        if self._is_closed:
            raise httpx.RemoteProtocolError(_DISCONNECTED)
        _write(transport, request)
        response = self._response = HttptoolsResponse(self)
        self._headers = []
        self._is_kept_alive = self._ends_with_connection = False
        self._overhead = 0
        await response.wait_for_head()
        return response

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        self.abort()
        await asyncio.sleep(0)  # the transport closes its socket in the next turn of the event loop

    def abort(self) -> None:
        """Close the connection at once, without a farewell for which an event loop that is being closed has no time."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Receive nothing more for now."""
        if self._transport is not None and not self._is_closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive again."""
        if self._transport is not None and not self._is_closed:
            self._transport.resume_reading()

    # --- called by the transport ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived."""
        response = self._response
        if response is None:  # nothing was asked for
            self.abort()
            return
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break_off(response, str(error))
        else:
            if self._overhead > _MAX_OVERHEAD:
                self._break_off(response, "the head, or what is around the chunks, is too large")
            self._overhead = max(self._overhead, 0)  # many small chunks do not allow for a large one
        response.wake()

    def eof_received(self) -> None:
        """Let the transport close the connection, as the server did."""
        self._is_closed = True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response, as far as it was received."""
        self._is_closed = True
        response, self._response = self._response, None
        if response is None or response.has_ended:
            return
        if exc is not None:
            response.fail(httpx.ReadError(str(exc) or type(exc).__name__))
        elif not response.status_code:
            response.fail(httpx.RemoteProtocolError(_DISCONNECTED))
        elif self._ends_with_connection:
            response.is_complete = True
            response.wake()
        else:
            response.fail(httpx.RemoteProtocolError("peer closed connection without sending complete message body"))

    def _break_off(self, response: HttptoolsResponse, reason: str) -> None:
        response.fail(httpx.RemoteProtocolError(reason))
        self.abort()

    # --- called by the parser -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Give the connection up if this is a response too many: it would be taken for that of the next request."""
        if self._response is None:
            self._is_kept_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those after the body are not used."""
        response = self._response
        if response is not None and not response.status_code:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """End the head, unless it is that of an interim response."""
        status, response = self._parser.get_status_code(), self._response
        headers, self._headers = join_headers(self._headers), []
        if response is None or status < _OK:
            return
        is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self._ends_with_connection = not (is_chunked or "content-length" in headers or status in _NO_BODY)
        if self._ends_with_connection and "transfer-encoding" in headers:
            raise ValueError("the transfer encoding is not supported")
        response.headers = headers
        response.status_code = status

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._overhead -= len(body)
        if self._response is not None:
            self._response.add(body)

    def on_chunk_header(self) -> None:
        """Count the bytes around a chunk no further than what they usually are."""
        self._overhead -= _MAX_CHUNK_OVERHEAD

    def on_message_complete(self) -> None:
        """End the response, unless it is an interim one."""
        response = self._response
        if response is not None and response.status_code:
            self._is_kept_alive = self._parser.should_keep_alive()
            response.is_complete = True
            self._response = None


def _write(transport: asyncio.Transport, request: HttpRequest) -> None:
    # The key is in no frame that is still there while the response is awaited.
    if len(request.body) <= _ONE_WRITE:
        transport.write(_encode_head(request) + request.body)
    else:
        transport.write(_encode_head(request))
        transport.write(request.body)


def _encode_head(request: HttpRequest) -> bytes:
    """Return the request line and the headers.

    Raises:
        httpx.LocalProtocolError: a header is not valid HTTP.
    """
    start = b"%b %b HTTP/1.1" % (request.method.encode(), request.url.raw_path)
    return b"\r\n".join([start, *[b"%b: %b" % pair for pair in encode_headers(request)], b"", b""])
