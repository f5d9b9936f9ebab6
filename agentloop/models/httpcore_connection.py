"""HTTP/1.1 by httpcore, which httpx is built on, over streams of asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import suppress
from types import coroutine
from typing import Any

import httpcore
import httpx

from agentloop.models.connections import (
    HttpRequest,
    HttpResponse,
    ModelConnection,
    ServerAddress,
    continue_work,
    encode_headers,
    is_readable,
    join_headers,
)

_FAILURES: Mapping[type[Exception], type[httpx.TransportError]] = {
    httpcore.ReadError: httpx.ReadError,
    httpcore.WriteError: httpx.WriteError,
    httpcore.LocalProtocolError: httpx.LocalProtocolError,
    httpcore.RemoteProtocolError: httpx.RemoteProtocolError,
}


class HttpcoreConnection(ModelConnection):
    """A connection of httpcore.

    A pool of httpcore with one connection, on the streams of anyio, takes a quarter of the time of a short request. Here
    `ConnectionPool` is the pool, and the streams are those of asyncio.

    Args:
        address: the server.
    """

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._connection: httpcore.AsyncHTTP11Connection | None = None

    @property
    def is_usable(self) -> bool:
        """Whether the last response was received completely, and the server has not closed the connection since."""
        connection = self._connection
        return connection is not None and connection.is_idle() and not connection.has_expired()

    @property
    def is_kept_alive(self) -> bool:
        """Whether the last response was received completely, and the connection is not known to be closed."""
        return self._connection is not None and self._connection.is_idle()

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request and wait for the head of the response.

        Raises:
            httpx.LocalProtocolError: a header is not valid HTTP.
            httpx.TransportError: there is no connection, or no valid response.
        """
        parts = request.url
        url = httpcore.URL(scheme=parts.raw_scheme, host=parts.raw_host, port=parts.port, target=parts.raw_path)
        connection = self._connection
        if connection is None:
            stream = _Stream(*await self._address.connect(asyncio.open_connection, request.connect_timeout))
            connection = self._connection = httpcore.AsyncHTTP11Connection(url.origin, stream)
        try:
            # The key is in no frame of ours that is still there while the response is awaited.
            response = await connection.handle_async_request(
                httpcore.Request(request.method, url, headers=encode_headers(request), content=request.body)
            )
        except tuple(_FAILURES) as error:
            raise _FAILURES[type(error)](str(error)) from error
        return HttpcoreResponse(response)

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        if self._connection is not None:
            await self._connection.aclose()


class HttpcoreResponse:
    """A response whose body is received as it is read.

    Attributes:
        status_code: the HTTP status.
        headers: the headers, by lower-case names; those of the same name are joined by commas.
    """

    __slots__ = ("_response", "headers", "status_code")

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response
        self.status_code: int = response.status
        self.headers: Mapping[str, str] = join_headers(response.headers)

    @property
    def is_stream_consumed(self) -> bool:
        """Never: the body is read once, as it arrives."""
        return False

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, what came at once as one chunk.

        Raises:
            httpx.TransportError: it broke off.
        """
        received: list[bytes] = []
        steps, is_waiting, failure = self._receive(received).__await__(), True, None
        try:
            while is_waiting:
                is_waiting = False
                try:
                    is_waiting = await _run_until_read(steps)
                except tuple(_FAILURES) as error:
                    failure = error
                if received:  # also before a failure
                    data = received[0] if len(received) == 1 else b"".join(received)
                    received.clear()
                    yield data
            if failure is not None:
                raise _FAILURES[type(failure)](str(failure)) from failure
        finally:
            if is_waiting:
                await self._abandon(steps)

    async def _receive(self, received: list[bytes]) -> None:
        """Receive the complete body, chunk by chunk; each read is announced, so that the chunks before it can be taken."""
        network: _Stream = self._response.extensions["network_stream"]
        network.announces_reads = True
        try:
            chunks: Any = self._response.stream  # of either kind, sync or async, by its type
            async for chunk in chunks:
                received.append(chunk)  # noqa: PERF401  # they are taken while this waits
        finally:
            network.announces_reads = False

    async def _abandon(self, steps: Generator[Any, Any, None]) -> None:
        """End what is about to read; on a closed connection, that is an error at once."""
        await self.aclose()
        with suppress(httpcore.ReadError, httpcore.RemoteProtocolError):
            while await _run_until_read(steps):
                continue

    async def aclose(self) -> None:
        """Close the response. The connection can be used again only if the body was read completely."""
        await self._response.aclose()


_READ = object()
"""What is announced before a read."""


@coroutine
def _announce_read() -> Generator[Any, Any, None]:
    yield _READ


async def _run_until_read(steps: Generator[Any, Any, None]) -> bool:
    """Run work until it is about to read, or to its end; return whether it is about to read."""
    try:
        waits_for = next(steps)
    except StopIteration:
        return False
    end: object = await continue_work(steps, waits_for, until=_READ)
    return end is _READ


class _Stream(httpcore.AsyncNetworkStream):
    """A stream of asyncio, as httpcore uses those of other libraries. Nothing here waits for a limited time; see `TransferLimits`.

    Attributes:
        announces_reads: whether reads are announced to `_run_until_read`.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.announces_reads: bool = False
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002, ASYNC109  # of the base class
        if self.announces_reads:
            await _announce_read()
        try:
            return await self._reader.read(max_bytes)
        except OSError as error:
            raise httpcore.ReadError(str(error) or type(error).__name__) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109
        try:
            self._writer.write(buffer)
            await self._writer.drain()
        except OSError as error:
            raise httpcore.WriteError(str(error) or type(error).__name__) from error

    async def aclose(self) -> None:
        # An event loop that is being closed has no time for a farewell.
        self._writer.transport.abort()
        await asyncio.sleep(0)  # the transport closes its socket in the next turn of the event loop

    def get_extra_info(self, info: str) -> Any:
        """Return whether there is something to read, which on an idle connection is its end; nothing else is asked for."""
        if info != "is_readable":
            return None
        transport = self._writer.transport
        return self._reader.at_eof() or transport.is_closing() or is_readable(transport.get_extra_info("socket"))
