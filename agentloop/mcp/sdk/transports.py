"""The streams of messages between a client and a server: standard input and output, and streamable HTTP.

Over HTTP, the errors of a request stay with that request. Messages and responses have a maximum size.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from zlib import MAX_WBITS, decompressobj
from zlib import error as ZlibError  # noqa: N812  # a class, in spite of its name

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from agentloop.mcp.answers import readable_response
from agentloop.mcp.sdk.authorization import authorization_flow
from agentloop.mcp.sdk.authorization_requests import AuthorizationFailed
from agentloop.mcp.sdk.names import (
    IS_FIRST_GENERATION,
    TransportStreams,
    as_message,
    content_of,
    httpx2,
    read_message,
    types,
)
from agentloop.mcp.server_process import ServerProcess
from agentloop.mcp.servers import HttpServer, StdioServer
from agentloop.mcp.session import CURRENT_REQUEST, ConnectionLost, ConnectionStatus, LimitPause, RequestStatus
from agentloop.values.forms import form_text
from agentloop.values.json import text_has_more_entries

if TYPE_CHECKING or not IS_FIRST_GENERATION:
    from mcp.client.streamable_http import streamable_http_client
else:
    from agentloop.mcp.sdk.first_generation.client import streamable_http_client

# --- standard input and output --------------------------------------------------------------------------------------

_LOG = logging.getLogger("agentloop.mcp.server")
_TOOL_LOG = logging.getLogger("agentloop.mcp")
_MAX_QUEUED_MESSAGES = 1_000
_MAX_INVALID_LINES = 1_000
_MAX_ID_BYTES = 1_000
_MAX_ANSWER = 1_000


@asynccontextmanager
async def stdio_streams(
    name: str, server: StdioServer, max_message_bytes: float, status: ConnectionStatus
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[SessionMessage | Exception], OutgoingStream]]:
    """Start a server and yield the streams of its messages; it is stopped at the end.

    Args:
        name: the name of the server, for the log.
        server: its command.
        max_message_bytes: maximum size of a message.
        status: is closed when the server ends by itself.

    Raises:
        ConfigurationError: when there is no such program.
    """
    process = await ServerProcess.start(name, server, {**get_default_environment(), **server.env})
    sender, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing = OutgoingStream(status)
    tasks = (
        asyncio.create_task(_receive(name, process, max_message_bytes, sender, status)),
        asyncio.create_task(_send(process, outgoing, status)),
    )
    try:
        yield incoming, outgoing
    finally:
        for task in tasks:
            task.cancel()
        # Shielded: a cancelled execution still waits until the process has ended.
        stopped = asyncio.gather(process.stop(), *tasks, return_exceptions=True)
        try:
            await asyncio.shield(stopped)
        except asyncio.CancelledError:
            await asyncio.wait((stopped,))
            raise
        finally:
            sender.close()
            incoming.close()


class OutgoingStream:
    """Queues messages for a server; a sender does not wait until the server has read them."""

    def __init__(self, status: ConnectionStatus) -> None:
        self._status = status
        self.queue: asyncio.Queue[tuple[SessionMessage, RequestStatus | None]] = asyncio.Queue(_MAX_QUEUED_MESSAGES)
        self._is_closed = False

    async def send(self, item: SessionMessage, /) -> None:
        """Queue a message together with the status of its request."""
        # What is sent after the end would wait for an answer, since generation 1 of the SDK has ended the other requests by then.
        if self._is_closed or self._status.closed.is_set():
            raise anyio.ClosedResourceError
        try:
            # The queue is bounded: a server that never reads must not use up our memory.
            self.queue.put_nowait((item, CURRENT_REQUEST.get()))
        except asyncio.QueueFull:
            self._status.close(f"it does not read: {_MAX_QUEUED_MESSAGES} messages wait for it")
            raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        """Accept no more messages."""
        self._is_closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


async def _send(process: ServerProcess, outgoing: OutgoingStream, status: ConnectionStatus) -> None:
    while True:
        item, request = await outgoing.queue.get()
        # Messages after the end are dropped; their requests fail when the stream is closed.
        if status.closed.is_set():
            continue
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        if request is not None:
            request.sent = True  # before the write: a part of it may reach the server even when it fails
        try:
            await process.write_line(line)
        except OSError:
            reason, last_output = await process.exit_reason("it does not read its input")
            if not status.closed.is_set():
                status.last_output = last_output
            status.close(reason)


async def _receive(
    name: str,
    process: ServerProcess,
    max_message_bytes: float,
    sender: MemoryObjectSendStream[SessionMessage | Exception],
    status: ConnectionStatus,
) -> None:
    invalid_lines = 0
    # Closing the stream wakes all pending requests, so it is closed after the reason is known.
    async with sender:
        try:
            async for line in process.read_lines(max_message_bytes):
                is_long = len(line) > _LONG_BYTES
                message = await asyncio.to_thread(parse_message, name, line) if is_long else parse_message(name, line)
                if message is None:
                    invalid_lines = _log_invalid(name, line, invalid_lines)
                else:
                    invalid_lines = 0
                    await sender.send(SessionMessage(message))
            reason, status.last_output = await process.exit_reason("its output was closed")
        except ConnectionLost as lost:
            reason = str(lost)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            reason = "its output was closed"
        status.close(reason)


def _log_invalid(name: str, line: bytes, count: int) -> int:
    """Log the first of several invalid lines in a row; return how many there were.

    Raises:
        ConnectionLost: when there were too many.
    """
    if not line.strip():
        return count
    if not count:
        _LOG.warning("%s: a line of its standard output is not a message: %.200r", name, line)
    if count >= _MAX_INVALID_LINES:
        raise ConnectionLost(f"it wrote {_MAX_INVALID_LINES} lines that are no messages")
    return count + 1


def parse_message(name: str, line: bytes) -> types.JSONRPCMessage | None:
    """Parse a line; return None when it is not a message.

    Lone surrogates, which JavaScript writes when it has cut a text inside of a character, and bytes that are not UTF-8
    become U+FFFD, and tools that are nested too deeply are left out and logged. A response that violates the protocol, has too
    many entries, or cannot be parsed, becomes an error with the same id, so that its request ends.

    Args:
        name: the name of the server, for the log.
        line: the line, without its end.

    Raises:
        ConnectionLost: when it is a message that cannot be parsed, and its id cannot be found.
    """
    if text_has_more_entries(line, _MAX_ENTRIES):
        return _unreadable_message(line, _TOO_MANY_ENTRIES)
    try:
        return _with_short_lists(read_message(line))
    except ValueError:
        pass
    try:
        document = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return _unreadable_message(line)
    if not isinstance(document, Mapping) or document.get("jsonrpc") != "2.0":
        return None
    try:
        return _with_short_lists(read_message(_write_readable(name, document)))
    except (ValueError, RecursionError):
        return _invalid_response(document)


# Each entry is built, checked and copied several times, and each block of a result becomes a part of a message.
_LONG_BYTES = 10_000
_MAX_ENTRIES = 100_000
_MAX_BLOCKS = 1_000
_TOO_MANY_ENTRIES = f"its answer has more than {_MAX_ENTRIES:,} entries in its lists and objects"
_BLOCK_LISTS = ("content", "contents", "messages", "resources", "resourceTemplates", "prompts")


def _with_short_lists(message: types.JSONRPCMessage) -> types.JSONRPCMessage:
    """Return a message, or an error in its place if it is a result with too many blocks."""
    content = content_of(message)
    if not isinstance(content, types.JSONRPCResponse):
        return message
    for name in _BLOCK_LISTS:
        blocks = content.result.get(name)
        if isinstance(blocks, list) and len(blocks) > _MAX_BLOCKS:
            problem = f"its answer has {len(blocks):,} entries in `{name}`; the limit is {_MAX_BLOCKS:,}"
            return _error_response(content.id, problem)
    return message


def readable_message(name: str, data: bytes) -> bytes:
    """Return a message with the replacements of `parse_message`, where the SDK could not parse it; any other data unchanged.

    Args:
        name: the name of the server, for the log.
        data: what the SDK will parse.
    """
    if text_has_more_entries(data, _MAX_ENTRIES):
        error = _unreadable_message(data, _TOO_MANY_ENTRIES)
        return data if error is None else error.model_dump_json(by_alias=True, exclude_unset=True).encode()
    try:
        message = read_message(data)
        short = _with_short_lists(message)
        return data if short is message else short.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except ValueError:
        pass
    try:
        return _write_readable(name, json.loads(data.decode(errors="replace")))
    except (ValueError, RecursionError):
        return data


def _write_readable(name: str, document: Any) -> bytes:
    """Return a message as JSON that the SDK parses: without lone surrogates, and without tools that are nested too deeply."""
    if isinstance(document, Mapping):
        document = readable_response(document)
    # The parser rejects a whole message for one of its tools.
    match document:
        case {"result": {"tools": list(tools)} as result}:
            readable = [tool for tool in tools if _is_readable_tool(name, tool)]
            document = {**document, "result": {**result, "tools": readable}}
    return _without_surrogates(document)


def _is_readable_tool(name: str, tool: object) -> bool:
    with suppress(ValueError, RecursionError):
        if _is_readable(_without_surrogates({"jsonrpc": "2.0", "id": 0, "result": {"tools": [tool]}})):
            return True
    tool_name = tool.get("name") if isinstance(tool, Mapping) else tool
    _TOOL_LOG.warning("the tool %.100r of the MCP server %s is left out: it is nested too deeply", tool_name, name)
    return False


def _is_readable(data: bytes) -> bool:
    try:
        read_message(data)
    except ValueError:
        return False
    return True


def _without_surrogates(document: object) -> bytes:
    utf16 = json.dumps(document, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return utf16.decode("utf-16", "replace").encode()


def _invalid_response(document: Mapping[str, object], problem: str = "") -> types.JSONRPCMessage | None:
    request_id = document.get("id")
    # Only responses have a request that waits for them.
    if "method" in document or not isinstance(request_id, str | int):
        return None
    return _error_response(
        request_id, problem or f"its answer is not of the protocol: {form_text(document, _MAX_ANSWER)}"
    )


def _error_response(request_id: str | int, problem: str) -> types.JSONRPCMessage:
    error = types.ErrorData(code=types.PARSE_ERROR, message=problem)
    return as_message(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error))


# The members of a message are at its start or its end; a message may be long, so that the rest is not searched.
_SEARCHED_BYTES = 1 << 16
_MESSAGE = re.compile(rb'\s*\{.*?"jsonrpc"', re.DOTALL)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_VALUE = re.compile(rb'\s*:\s*(-?[0-9]{1,18}\b|"(?:[^"\\]|\\.)*")')
_LAST_MEMBER = re.compile(rb'"id"\s*:\s*(-?[0-9]{1,18}|"[^"\\]*")\s*\}\s*\Z')


def _unreadable_message(line: bytes, problem: str = "its answer is not of the protocol") -> types.JSONRPCMessage | None:
    """Return an error for a response with numbers or a depth that no parser here takes; None for a line of another kind.

    Args:
        line: the line.
        problem: what is wrong with it.

    Raises:
        ConnectionLost: when it is a message whose id cannot be found: the request would wait for ever.
    """
    start, end = line[:_SEARCHED_BYTES], line[-_SEARCHED_BYTES:]
    is_message = _MESSAGE.match(start) is not None or (start.lstrip()[:1] == b"{" and b'"jsonrpc"' in end)
    if not is_message:
        return None
    last = _LAST_MEMBER.search(end[-_MAX_ID_BYTES:])
    found = _first_id(start) or (None if last is None else last[1])
    if found is None:
        raise ConnectionLost("it sent a message that cannot be read")
    return _invalid_response({"id": json.loads(found)}, problem)


def _first_id(start: bytes) -> bytes | None:
    """Return the value of the member `id` of the outermost object, if the start of a message contains it."""
    depth = 0
    for token in _TOKEN.finditer(start):
        text = token[0]
        if text in {b"{", b"["}:
            depth += 1
        elif text in {b"}", b"]"}:
            depth -= 1
        elif depth == 1 and text == b'"method"':
            return None  # a request of the server, whose id is not that of one of ours
        elif depth == 1 and text == b'"id"':
            value = _VALUE.match(start, token.end())
            if value is not None:
                return value[1]
    return None


# --- streamable HTTP ------------------------------------------------------------------------------------------------

_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 1.0
_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_SEND_EVENT = ".send_request_headers.started"
_SESSION_HEADER = "mcp-session-id"
_EVENT_STREAM = "text/event-stream"
_UNKNOWN_SESSION = frozenset({400, 404})
_INFLATED_BYTES = 1 << 16
_UNAUTHORIZED = 401
_AUTH_HINT = (
    """; it wants authorization: write auth=OAuth(), or "auth": "oauth" in a file, or give it a header Authorization"""
)
_BOUND = " (Bounds.message_bytes)"
_IDENTITY = frozenset({"", "identity"})
_GZIP = (["gzip"], ["x-gzip"])


@asynccontextmanager
async def http_streams(
    name: str, server: HttpServer, max_message_bytes: float, status: ConnectionStatus, pause: LimitPause
) -> AsyncIterator[TransportStreams]:
    """Yield the streams of a server's messages; the session and the connections are closed at the end.

    Args:
        name: the name of the server, for the log.
        server: its address.
        max_message_bytes: maximum size of a response, or of one event of a stream, after decompression.
        status: is closed when the server cannot be reached.
        pause: suspends the limits of time while a person is asked for authorization.
    """
    # Calls have timeouts of their own, and event streams may be silent for long.
    timeout = httpx2.Timeout(_CONNECT_SECONDS, read=None)
    # The only coding that is decoded here; `accept-encoding` among the server's headers wins.
    headers = {"accept-encoding": "gzip", **server.headers}
    auth = authorization_flow(server, pause)
    async with (
        _Client(name, max_message_bytes, status, headers=headers, timeout=timeout, auth=auth) as client,
        # Events are bounded here, where a failure is noted in the status of its request.
        streamable_http_client(server.url, http_client=client, max_sse_event_size=None) as streams,
    ):
        yield streams


class _Client(httpx2.AsyncClient):
    """A client that returns errors as responses: an exception of one request would end the SDK's whole session."""

    def __init__(self, name: str, max_message_bytes: float, status: ConnectionStatus, **settings: Any) -> None:
        super().__init__(**settings)
        self._name = name
        self._max_message_bytes = max_message_bytes
        self._status = status

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Send a request and update its status."""
        request_status = CURRENT_REQUEST.get() or RequestStatus()

        async def on_trace(event: str, _: object) -> None:
            if event.endswith(_SEND_EVENT):
                request_status.sent = True

        request.extensions["trace"] = on_trace
        try:
            # DELETE closes the session; a server that is gone must not delay the end of an execution.
            async with asyncio.timeout(_CLOSE_SECONDS if request.method == "DELETE" else None):
                response = await super().send(request, stream=True, **options)
                self._bound(response, request_status)
                if not stream:
                    await response.aread()
        except AuthorizationFailed as error:
            request_status.rejected = True
            return self._error_response(request, str(error), is_final=error.is_final)
        except (httpx2.TransportError, httpx2.StreamError, TimeoutError) as error:
            return self._error_response(request, _loss(error, request))
        if request.method == "POST":
            has_session = _SESSION_HEADER in request.headers
            if has_session and response.status_code in _UNKNOWN_SESSION:
                request_status.rejected = True
            error_text = f"it answered {response.status_code} {response.reason_phrase}"
            if response.status_code == _UNAUTHORIZED and self.auth is None:
                error_text += _AUTH_HINT
            self._status.http_error = request_status.http_error = error_text if response.is_error else ""
        return response

    def _bound(self, response: httpx2.Response, request_status: RequestStatus) -> None:
        """Replace the stream of a response by one that decodes it up to the limit, into what the SDK can parse."""
        request_status.stream_ended = False
        if isinstance(response.stream, httpx2.AsyncByteStream):
            codings = response.headers.get_list("content-encoding", split_commas=True)
            response.headers.pop("content-encoding", None)  # decoded here, and not again by the client
            stream = _BoundedStream(response.stream, codings, self._max_message_bytes, request_status)
            is_events = response.headers.get("content-type", "").lower().startswith(_EVENT_STREAM)
            response.stream = _EventMessages(self._name, stream) if is_events else _OneMessage(self._name, stream)

    def _error_response(self, request: httpx2.Request, reason: str, *, is_final: bool = False) -> httpx2.Response:
        if request.method == "POST":
            self._status.close(reason, is_final=is_final)
        error = {"code": types.CONNECTION_CLOSED, "message": reason}
        return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


class _BoundedStream:
    """The decoded bytes of a response, each message up to a limit; errors are noted in the status, and raised as the SDK expects them.

    Args:
        stream: the response.
        codings: its content codings.
        max_bytes: maximum size of a message.
        status: the status of the request.
    """

    def __init__(
        self, stream: httpx2.AsyncByteStream, codings: Sequence[str], max_bytes: float, status: RequestStatus
    ) -> None:
        self.status = status
        self._stream = stream
        self._codings = [coding for coding in (name.strip().lower() for name in codings) if coding not in _IDENTITY]
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for piece in self._decoded():
                # Bytes that are there already, and the pieces of compressed ones, come without a wait.
                size += len(piece)
                if size > _INFLATED_BYTES:
                    size = len(piece)
                    await asyncio.sleep(0)
                yield piece
        except httpx2.TransportError as error:
            raise self._failure(f"the connection was lost: {_describe(error)}") from error

    def check_size(self, size: int) -> None:
        """Check the size of a message, of which more may follow.

        Raises:
            httpx2.StreamError: it is over the limit.
        """
        if size > self._max_bytes:
            raise self._failure(f"it sent an answer of more than {self._max_bytes:g} bytes{_BOUND}")

    async def _decoded(self) -> AsyncIterator[bytes]:
        """Yield the decoded bytes in pieces of at most 64 KiB, whatever they were compressed to."""
        if not self._codings:
            async for chunk in self._stream:
                yield chunk
            return
        # Several codings would multiply what each of them can inflate.
        if self._codings not in _GZIP:
            raise self._failure(f"its answer has the content coding {', '.join(self._codings):.100}; only gzip is read")
        inflater = decompressobj(MAX_WBITS | 16)
        try:
            async for chunk in self._stream:
                packed = chunk
                while packed and not inflater.eof:
                    yield inflater.decompress(packed, _INFLATED_BYTES)
                    packed = inflater.unconsumed_tail
        except ZlibError as error:
            raise self._failure(f"its answer is not gzip: {error}") from error
        if not inflater.eof:
            raise self._failure("its compressed answer was cut off")

    def _failure(self, reason: str) -> httpx2.StreamError:
        self.status.failure = reason
        return httpx2.StreamError(reason)

    async def aclose(self) -> None:
        """Close the response."""
        await self._stream.aclose()


async def _readable(name: str, data: bytes) -> bytes:
    is_long = len(data) > _LONG_BYTES
    return await asyncio.to_thread(readable_message, name, data) if is_long else readable_message(name, data)


class _OneMessage(httpx2.AsyncByteStream):
    """The body of a response that is one message."""

    def __init__(self, name: str, stream: _BoundedStream) -> None:
        self._name = name
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async for piece in self._stream:
            body += piece
            self._stream.check_size(len(body))
        yield await _readable(self._name, bytes(body))

    async def aclose(self) -> None:
        """Close the response."""
        await self._stream.aclose()


class _EventMessages(httpx2.AsyncByteStream):
    """The events of a response, each of which is one message; the stream itself may go on without limit."""

    def __init__(self, name: str, stream: _BoundedStream) -> None:
        self._name = name
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        splitter = EventSplitter()
        async for piece in self._stream:
            for event in splitter.feed(piece):
                self._stream.check_size(len(event))
                yield await self._readable(event)
            self._stream.check_size(splitter.pending_bytes)
        # The SDK stops reading events at the response, so it reads to the end only when there was none.
        self._stream.status.stream_ended = True

    async def _readable(self, event: bytes) -> bytes:
        """Return an event with its end, and with data that the SDK can parse."""
        data = b"\n".join(_DATA_LINE.findall(event))
        readable = await _readable(self._name, data)
        return event + b"\n" if readable is data else b"%bdata: %b\n\n" % (_DATA_LINE.sub(b"", event), readable)

    async def aclose(self) -> None:
        """Close the response."""
        await self._stream.aclose()


class EventSplitter:
    """Splits a stream of server-sent events into its events, wherever the pieces of the stream are cut.

    Lines end with CRLF, LF or CR. Comments are no part of an event: a server may send any number of them to keep a connection.
    """

    def __init__(self) -> None:
        self._event = bytearray()
        self._line = bytearray()
        self._ended_with_return = False

    @property
    def pending_bytes(self) -> int:
        """The size of the event that is not complete."""
        return len(self._event) + len(self._line)

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Take the next piece of the stream; yield the events that it completes, each line ended by LF, without the empty line."""
        if not piece:
            return
        start = 1 if self._ended_with_return and piece.startswith(b"\n") else 0
        self._ended_with_return = piece.endswith(b"\r")
        *lines, rest = _LINE_END.split(piece[start:])
        for line in lines:
            self._line += line
            if not self._line and self._event:
                yield bytes(self._event)
                self._event.clear()
            elif self._line and not self._line.startswith(b":"):
                self._event += self._line + b"\n"
            self._line.clear()
        self._line += rest


_LINE_END = re.compile(rb"\r\n|\r|\n")
_DATA_LINE = re.compile(rb"^data(?:: ?(.*))?\n", re.MULTILINE)


def _loss(error: Exception, request: httpx2.Request) -> str:
    """Return why there is no response, as in "it …"."""
    if isinstance(error, (*_NOT_CONNECTED, TimeoutError)):
        return f"{_subject(error, request)} cannot be reached: {_describe(error)}"
    if isinstance(error, httpx2.StreamError):  # of the body of a response that is not streamed
        return str(error)
    return f"the connection was lost: {_describe(error)}"


def _subject(error: Exception, request: httpx2.Request) -> str:
    """Return who could not be reached: the server, or the one that authorizes at it."""
    url = error.request.url if isinstance(error, httpx2.RequestError) else request.url
    is_server = (url.scheme, url.host, url.port) == (request.url.scheme, request.url.host, request.url.port)
    return "it" if is_server else f"its authorization server {url.scheme}://{url.netloc.decode('ascii')}"


def _describe(error: BaseException) -> str:
    if isinstance(error, httpx2.LocalProtocolError):  # its text may contain a header, and so a key
        return "LocalProtocolError: the request cannot be sent as it is; look at its headers"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
