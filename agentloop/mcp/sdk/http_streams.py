"""The client with which the SDK speaks streamable HTTP: errors are those of a request, answers are bounded."""

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
from agentloop.mcp.session import SENDING, Ending, Sending

_CONNECT_SECONDS = 10.0
_FAREWELL_SECONDS = 1.0
_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_LEAVES_US = ".send_request_headers.started"
_SESSION_ID = "mcp-session-id"
_EVENTS = "text/event-stream"
_NO_SUCH_SESSION = frozenset({400, 404})


@asynccontextmanager
async def http_streams(server: HttpServer, longest: int, ending: Ending) -> AsyncIterator[TransportStreams]:
    """Speak with a server; the session is ended, and connections are closed, at the end.

    Args:
        server: its address.
        longest: the most bytes of an answer.
        ending: is told when the session is not known any more.
    """
    timeout = httpx2.Timeout(_CONNECT_SECONDS, read=None)
    async with (
        _BoundedClient(longest, ending, headers=dict(server.headers), timeout=timeout) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=longest) as streams,
    ):
        yield streams


class _BoundedClient(httpx2.AsyncClient):
    """A client whose failures are answers: an exception of one request would end the SDK's whole session."""

    def __init__(self, longest: int, ending: Ending, **settings: Any) -> None:
        super().__init__(**settings)
        self._longest = longest
        self._ending = ending

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; note whether it left us, and whether the server has forgotten the session."""
        sending = SENDING.get() or Sending()

        async def on_trace(event: str, _: object) -> None:
            if event.endswith(_LEAVES_US):
                sending.sent = True

        request.extensions["trace"] = on_trace
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS if request.method == "DELETE" else None):
                response = await super().send(request, **options)
        except (*_NOT_CONNECTED, TimeoutError) as error:
            return self._failed(request, f"it cannot be reached: {_told(error)}")
        except httpx2.TransportError as error:
            return self._failed(request, f"the connection was lost: {_told(error)}")
        if request.method == "POST" and _SESSION_ID in request.headers and response.status_code in _NO_SUCH_SESSION:
            sending.refused = True
        if request.method == "POST":
            status = f"it answered {response.status_code} {response.reason_phrase}"
            self._ending.status = status if response.is_error else ""
        sending.over = False
        if isinstance(response.stream, httpx2.AsyncByteStream):
            events = response.headers.get("content-type", "").lower().startswith(_EVENTS)
            response.stream = _Bounded(response.stream, self._longest, sending, events=events)
        return response

    def _failed(self, request: httpx2.Request, reason: str) -> httpx2.Response:
        if request.method == "POST":
            self._ending.end(reason)
        error = {"code": CONNECTION_CLOSED, "message": reason}
        return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


class _Bounded(httpx2.AsyncByteStream):
    """The bytes of an answer, up to a limit; that they break off is told as an error that the SDK expects."""

    def __init__(self, stream: httpx2.AsyncByteStream, longest: int, sending: Sending, *, events: bool) -> None:
        self._events = events
        self._stream = stream
        self._longest = longest
        self._sending = sending

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = 0
        try:
            async for chunk in self._stream:
                seen += len(chunk)
                if seen > self._longest:
                    self._sending.lost = f"it sent an answer of more than {self._longest} bytes"
                    raise httpx2.StreamError(self._sending.lost)
                yield chunk
            self._sending.over = self._events  # who has found the answer among events does not read to their end
        except httpx2.TransportError as error:
            self._sending.lost = f"the connection was lost: {_told(error)}"
            raise httpx2.StreamError(self._sending.lost) from error

    async def aclose(self) -> None:
        """Let go of the connection."""
        await self._stream.aclose()


def _told(error: BaseException) -> str:
    if isinstance(error, httpx2.LocalProtocolError):  # its text may show a header, and so a key
        return "LocalProtocolError: the request cannot be sent as it is; look at its headers"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
