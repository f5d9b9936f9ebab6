"""Streams over streamable HTTP: the errors of a request stay with that request, and responses have a maximum size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED

from agentloop.mcp.servers import HttpServer
from agentloop.mcp.session import CURRENT_REQUEST, ConnectionStatus, RequestStatus

_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 1.0
_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_SEND_EVENT = ".send_request_headers.started"
_SESSION_HEADER = "mcp-session-id"
_EVENT_STREAM = "text/event-stream"
_UNKNOWN_SESSION = frozenset({400, 404})


@asynccontextmanager
async def http_streams(
    server: HttpServer, max_message_bytes: int, status: ConnectionStatus
) -> AsyncIterator[TransportStreams]:
    """Yield the streams of a server's messages; the session and the connections are closed at the end.

    Args:
        server: its address.
        max_message_bytes: maximum size of a response.
        status: is closed when the server cannot be reached.
    """
    # Calls have timeouts of their own, and event streams may be silent for long.
    timeout = httpx2.Timeout(_CONNECT_SECONDS, read=None)
    async with (
        _Client(max_message_bytes, status, headers=dict(server.headers), timeout=timeout) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=max_message_bytes) as streams,
    ):
        yield streams


class _Client(httpx2.AsyncClient):
    """A client that returns errors as responses: an exception of one request would end the SDK's whole session."""

    def __init__(self, max_message_bytes: int, status: ConnectionStatus, **settings: Any) -> None:
        super().__init__(**settings)
        self._max_message_bytes = max_message_bytes
        self._status = status

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request and update its status."""
        request_status = CURRENT_REQUEST.get() or RequestStatus()

        async def on_trace(event: str, _: object) -> None:
            if event.endswith(_SEND_EVENT):
                request_status.sent = True

        request.extensions["trace"] = on_trace
        try:
            # DELETE closes the session; a server that is gone must not delay the end of an execution.
            async with asyncio.timeout(_CLOSE_SECONDS if request.method == "DELETE" else None):
                response = await super().send(request, **options)
        except (*_NOT_CONNECTED, TimeoutError) as error:
            return self._error_response(request, f"it cannot be reached: {_describe(error)}")
        except httpx2.TransportError as error:
            return self._error_response(request, f"the connection was lost: {_describe(error)}")
        if request.method == "POST":
            has_session = _SESSION_HEADER in request.headers
            if has_session and response.status_code in _UNKNOWN_SESSION:
                request_status.rejected = True
            error_text = f"it answered {response.status_code} {response.reason_phrase}"
            self._status.http_error = error_text if response.is_error else ""
        request_status.stream_ended = False
        if isinstance(response.stream, httpx2.AsyncByteStream):
            is_events = response.headers.get("content-type", "").lower().startswith(_EVENT_STREAM)
            response.stream = _BoundedStream(
                response.stream, self._max_message_bytes, request_status, is_events=is_events
            )
        return response

    def _error_response(self, request: httpx2.Request, reason: str) -> httpx2.Response:
        if request.method == "POST":
            self._status.close(reason)
        error = {"code": CONNECTION_CLOSED, "message": reason}
        return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


class _BoundedStream(httpx2.AsyncByteStream):
    """The bytes of a response up to a limit; errors are raised as the SDK expects them and noted in the status."""

    def __init__(
        self, stream: httpx2.AsyncByteStream, max_bytes: int, status: RequestStatus, *, is_events: bool
    ) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._status = status
        self._is_events = is_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for chunk in self._stream:
                size += len(chunk)
                if size > self._max_bytes:
                    self._status.failure = f"it sent an answer of more than {self._max_bytes} bytes"
                    raise httpx2.StreamError(self._status.failure)
                yield chunk
            # The SDK stops reading events at the response, so it reads to the end only when there was none.
            self._status.stream_ended = self._is_events
        except httpx2.TransportError as error:
            self._status.failure = f"the connection was lost: {_describe(error)}"
            raise httpx2.StreamError(self._status.failure) from error

    async def aclose(self) -> None:
        """Close the response."""
        await self._stream.aclose()


def _describe(error: BaseException) -> str:
    if isinstance(error, httpx2.LocalProtocolError):  # its text may contain a header, and so a key
        return "LocalProtocolError: the request cannot be sent as it is; look at its headers"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
