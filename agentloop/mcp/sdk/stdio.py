"""The messages of a server that is a process, as the streams that the SDK reads and writes."""

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
from agentloop.mcp.session import SENDING, ConnectionLost, Ending, Sending


def message_of(line: bytes) -> JSONRPCMessage | None:
    """Return the message that a line is; None when it is none.

    Half a character of two, as JavaScript writes where it has cut a text, and bytes that are no text become U+FFFD. What is
    an answer but not of the protocol becomes an error under its id, so that nobody waits for it.

    Args:
        line: what was written.
    """
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        pass
    try:
        told = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, Mapping) or told.get("jsonrpc") != "2.0":
        return None
    try:
        return jsonrpc_message_adapter.validate_json(_whole(told), by_name=False)
    except ValueError:
        return _unusable(told)


def _whole(told: Mapping[str, object]) -> bytes:
    halves = json.dumps(told, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return halves.decode("utf-16", "replace").encode()


def _unusable(told: Mapping[str, object]) -> JSONRPCError | None:
    asked = told.get("id")
    if "method" in told or not isinstance(asked, str | int):
        return None
    return JSONRPCError(
        jsonrpc="2.0", id=asked, error=ErrorData(code=PARSE_ERROR, message="its answer is not of the protocol")
    )


_LOG = logging.getLogger("agentloop.mcp.server")
_MOST_WAITING = 1_000
_MOST_NOISE = 1_000


class Outgoing:
    """Messages on their way to a server; what sends one does not wait for the server to read it."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending
        self.waiting: asyncio.Queue[tuple[SessionMessage, Sending | None]] = asyncio.Queue(_MOST_WAITING)
        self._closed = False

    async def send(self, item: SessionMessage, /) -> None:
        """Put a message at the end, together with what wants to know when it leaves us."""
        if self._closed:
            raise anyio.ClosedResourceError
        try:
            self.waiting.put_nowait((item, SENDING.get()))
        except asyncio.QueueFull:
            self._ending.end(f"it does not read: {_MOST_WAITING} messages wait for it")
            raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        """Take no more messages."""
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


@asynccontextmanager
async def stdio_streams(
    name: str, server: StdioServer, longest: int, ending: Ending
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[SessionMessage | Exception], Outgoing]]:
    """Start a server and speak with it; it is stopped at the end.

    Args:
        name: what it is called in the log.
        server: its command.
        longest: the most bytes of a message.
        ending: is told when it ends by itself.

    Raises:
        ConfigurationError: when there is no such program.
    """
    process = await ServerProcess.start(name, server, {**get_default_environment(), **server.env})
    heard, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing = Outgoing(ending)
    tasks = (
        asyncio.create_task(_hear(name, process, longest, heard, ending)),
        asyncio.create_task(_tell(process, outgoing, ending)),
    )
    try:
        yield incoming, outgoing
    finally:
        for task in tasks:
            task.cancel()
        stopped = asyncio.gather(process.stop(), *tasks, return_exceptions=True)
        try:
            await asyncio.shield(stopped)
        except asyncio.CancelledError:
            await asyncio.wait((stopped,))
            raise
        finally:
            heard.close()
            incoming.close()


async def _hear(
    name: str,
    process: ServerProcess,
    longest: int,
    heard: MemoryObjectSendStream[SessionMessage | Exception],
    ending: Ending,
) -> None:
    noise = 0
    async with heard:  # closed when the reason is known: that wakes those who wait for an answer
        try:
            async for line in process.lines(longest):
                message = message_of(line)
                noise = 0 if message is not None else _noted(name, line, noise)
                if message is not None:
                    await heard.send(SessionMessage(message))
            reason, ending.said = await process.last_words("its output was closed")
        except ConnectionLost as lost:
            reason = str(lost)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            reason = "its output was closed"
        ending.end(reason)


def _noted(name: str, line: bytes, noise: int) -> int:
    """Log a line that is no message; return how many there were in a row.

    Raises:
        ConnectionLost: when there were too many.
    """
    if not line.strip():
        return noise
    if not noise:
        _LOG.warning("%s: writes to its standard output what is no message: %.200r", name, line)
    if noise >= _MOST_NOISE:
        raise ConnectionLost(f"it wrote {_MOST_NOISE} lines that are no messages")
    return noise + 1


async def _tell(process: ServerProcess, outgoing: Outgoing, ending: Ending) -> None:
    while True:
        item, sending = await outgoing.waiting.get()
        if ending.ended.is_set():
            continue
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        if sending is not None:
            sending.sent = True
        try:
            await process.write(line)
        except OSError:
            reason, said = await process.last_words("it does not read its input")
            if not ending.ended.is_set():
                ending.said = said
            ending.end(reason)
