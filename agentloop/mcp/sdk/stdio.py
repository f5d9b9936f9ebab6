"""Streams over the standard input and output of a server process, as the SDK reads and writes them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter

from agentloop.mcp.server_process import ServerProcess
from agentloop.mcp.servers import StdioServer
from agentloop.mcp.session import CURRENT_REQUEST, ConnectionLost, ConnectionStatus, RequestStatus

_LOG = logging.getLogger("agentloop.mcp.server")
_MAX_QUEUED_MESSAGES = 1_000
_MAX_INVALID_LINES = 1_000


@asynccontextmanager
async def stdio_streams(
    name: str, server: StdioServer, max_message_bytes: int, status: ConnectionStatus
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
        if self._is_closed:
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
    max_message_bytes: int,
    sender: MemoryObjectSendStream[SessionMessage | Exception],
    status: ConnectionStatus,
) -> None:
    invalid_lines = 0
    # Closing the stream wakes all pending requests, so it is closed after the reason is known.
    async with sender:
        try:
            async for line in process.read_lines(max_message_bytes):
                message = parse_message(line)
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


def parse_message(line: bytes) -> JSONRPCMessage | None:
    """Parse a line; return None when it is not a message.

    Lone surrogates, which JavaScript writes when it has cut a text inside of a character, and bytes that are not UTF-8
    become U+FFFD. A response that violates the protocol becomes an error with the same id, so that its request ends.

    Args:
        line: the line, without its end.
    """
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        pass
    try:
        document = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, Mapping) or document.get("jsonrpc") != "2.0":
        return None
    try:
        return jsonrpc_message_adapter.validate_json(_replace_surrogates(document), by_name=False)
    except ValueError:
        return _invalid_response(document)


def _replace_surrogates(document: Mapping[str, object]) -> bytes:
    utf16 = json.dumps(document, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return utf16.decode("utf-16", "replace").encode()


def _invalid_response(document: Mapping[str, object]) -> JSONRPCError | None:
    request_id = document.get("id")
    # Only responses have a request that waits for them.
    if "method" in document or not isinstance(request_id, str | int):
        return None
    return JSONRPCError(
        jsonrpc="2.0", id=request_id, error=ErrorData(code=PARSE_ERROR, message="its answer is not of the protocol")
    )
