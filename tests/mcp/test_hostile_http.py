"""HTTP servers that misbehave: each failure is reported in time and by its type, and affects nothing else."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.contracts import ToolPolicy
from agentloop.mcp import McpEnsemble
from agentloop.mcp.sdk.names import httpx2
from agentloop.mcp.sdk.transports import EventSplitter, _BoundedStream
from agentloop.mcp.session import RequestStatus
from agentloop.values import ToolStatus
from tests.limits import LONGEST
from tests.mcp.running import NO_TIMEOUTS
from tests.mcp.test_hostile_servers import SETTINGS, TIMEOUT, local
from tests.toolkits.running import executions, run_calls

JSON, EVENTS = "application/json", "text/event-stream"


def response(status: str, kind: str, body: bytes, length: int | None = None) -> bytes:
    """Return an HTTP response, with another content length if one is passed."""
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {size}\r\n\r\n".encode() + body


HANGS = b""
OTHER_ID = response("200 OK", JSON, b'{"jsonrpc": "2.0", "id": 999, "result": {}}')
SILENT = (HANGS, OTHER_ID)
"""Responses after which only a timeout ends the request."""
BROKEN = {
    "not HTTP": b"garbage\r\n\r\n",
    "a web page": response("200 OK", "text/html", b"<html>"),
    "an error": response("500 Internal Server Error", "text/plain", b"oh"),
    "not JSON": response("200 OK", JSON, b"hi"),
    "JSON of another kind": response("200 OK", JSON, b"[1]"),
    "a body that is cut off": response("200 OK", JSON, b"{", 200),
    "events that are no messages": response("200 OK", EVENTS, b"data: x\n\n"),
    "events without an answer": response("200 OK", EVENTS, b": nothing\n\n"),
    "a huge body": response("200 OK", JSON, b" " * 20_000_000),
    "an endless event": response("200 OK", EVENTS, b"data: " + b"x" * 20_000_000, 10**12),
    "accepted": response("202 Accepted", JSON, b""),
    "a redirect elsewhere": b"HTTP/1.1 307 X\r\nlocation: http://elsewhere.example/\r\ncontent-length: 0\r\n\r\n",
    "nothing": HANGS,
    "an answer to another": OTHER_ID,
}
"""Invalid responses."""


@asynccontextmanager
async def server_with(answer: bytes, *, calls_only: bool) -> AsyncIterator[McpEnsemble]:
    """Serve this response, to all requests or to calls only; yield the ensemble of the server."""
    settings: dict[str, Any] = {"required": calls_only}
    if answer in SILENT:
        settings |= {"policy": ToolPolicy(timeout=TIMEOUT)} if calls_only else {"connect_timeout": TIMEOUT}

    def respond(request: dict[str, Any]) -> bytes:
        return valid_response(request) if calls_only and request.get("method") != "tools/call" else answer

    async with server_that(respond, **settings) as ensemble:
        yield ensemble


@asynccontextmanager
async def server_that(respond: Callable[[dict[str, Any]], bytes], **settings: Any) -> AsyncIterator[McpEnsemble]:
    """Serve what this function returns for each request; yield the ensemble of the server."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            request = json.loads(await reader.readexactly(length) or b"{}")
            body = respond(request)
            writer.write(body)
            await writer.drain()
            if body is HANGS:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client has disconnected
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield McpEnsemble.http(
            f"http://127.0.0.1:{port}/mcp", name="hostile", **{**NO_TIMEOUTS, **SETTINGS, **settings}
        )


def valid_response(request: dict[str, Any]) -> bytes:
    """Return a valid response to the requests before calls."""
    results: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "hostile", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "act", "inputSchema": {"type": "object"}}]},
    }
    result = results.get(request.get("method", ""))
    if result is None:
        return response("404 Not Found" if "id" in request else "202 Accepted", "text/plain", b"")
    return response_with(request, json.dumps(result).encode(), JSON)


def response_with(request: dict[str, Any], result: bytes, kind: str) -> bytes:
    """Return a response with a result in JSON, as a body or as an event."""
    message = b'{"jsonrpc": "2.0", "id": %b, "result": %b}' % (json.dumps(request["id"]).encode(), result)
    return response("200 OK", kind, b"event: message\ndata: %b\n\n" % message if kind == EVENTS else message)


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_server_that_does_not_list_its_tools_offers_nothing(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The execution begins in time without the server's tools, and the log says why."""
    async with asyncio.timeout(LONGEST), server_with(BROKEN[kind], calls_only=False) as server:
        state = await run_calls([local, server], [("act", {}), ("local", {})])
    unknown, sibling = executions(state)
    assert unknown.error is not None
    assert unknown.error.type == "UnknownTool"
    assert sibling.value == "local"
    assert "the MCP server hostile" in caplog.text
    assert ("it answered 500 Internal Server Error" in caplog.text) is (kind == "an error")


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_call_ends_in_time_with_a_typed_error(kind: str) -> None:
    """A call with an invalid response fails in time, and other calls and the next step succeed."""
    async with asyncio.timeout(LONGEST), server_with(BROKEN[kind], calls_only=True) as server:
        state = await run_calls([local, server], [("act", {}), ("local", {})], ("local", {}))
    bad, sibling, later = executions(state)
    assert bad.error is not None
    expected = {
        ToolStatus.FAILED: {"ToolFailed"},
        ToolStatus.IN_DOUBT: {"ToolInDoubt"},
        ToolStatus.TIMED_OUT: {"ToolTimedOut"},
    }
    assert bad.error.type in expected[bad.status], bad.error
    assert sibling.value == later.value == "local"


@pytest.mark.parametrize("kind", [JSON, EVENTS])
async def test_invalid_text_is_replaced(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Half a character and bytes that are not UTF-8 become U+FFFD, in a list of tools and in results; a deep tool is left out."""
    deep = b'{"name": "deep", "inputSchema": {"type": "object", "not": %b{}%b}}' % (b'{"not": ' * 250, b"}" * 250)
    results = {
        "tools/list": b'{"tools": [{"name": "act", "description": "cut \\uD83d", "inputSchema": {"type": "object"}}, %b]}'
        % deep,
        "tools/call": b'{"content": [{"type": "text", "text": "cut \\ud83d, caf\xe9, \\ud83d\\ude00"}]}',
    }

    def respond(request: dict[str, Any]) -> bytes:
        result = results.get(request.get("method", ""))
        return valid_response(request) if result is None else response_with(request, result, kind)

    async with asyncio.timeout(LONGEST), server_that(respond) as server:
        state = await run_calls([server], ("act", {}))
        assert [(tool.name, tool.description) for tool in server.offered] == [("act", "cut \ufffd")]
    assert executions(state)[0].value == "cut \ufffd, caf\ufffd, \U0001f600"
    assert "the tool 'deep' of the MCP server hostile is left out" in caplog.text


LIMIT = 2048
"""The maximum size of a message, in bytes."""
DONE = b'{"content": [{"type": "text", "text": "done"}]}'
PROGRESS = b'{"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1, "message": "%b"}}'
SHORT_EVENT = b"event: message\nid: 7\ndata: %b\n\n" % (PROGRESS % (b"x" * 200))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("before", [SHORT_EVENT * 60, b": still here\n" * 1_000])
async def test_an_event_stream_may_be_longer_than_a_message(before: bytes, end: bytes) -> None:
    """The limit is for each message: any number of short ones, and of comments, can precede the answer."""

    def respond(request: dict[str, Any]) -> bytes:
        if request.get("method") != "tools/call":
            return valid_response(request)
        answer = response_with(request, DONE, EVENTS).partition(b"\r\n\r\n")[2]
        return response("200 OK", EVENTS, (before + answer).replace(b"\n", end))

    async with asyncio.timeout(LONGEST), server_that(respond, max_message_bytes=LIMIT) as server:
        assert executions(await run_calls([server], ("act", {})))[0].value == "done"


TOO_LONG = {
    "a body": response("200 OK", JSON, b" " * (LIMIT + 1)),
    "an event": response("200 OK", EVENTS, SHORT_EVENT + b"data: %b\n\n" % (b"x" * LIMIT)),
    "an event of many lines": response("200 OK", EVENTS, SHORT_EVENT + b"data: x\r\n" * 500 + b"\r\n"),
    "an event that does not end": response("200 OK", EVENTS, SHORT_EVENT + b"data: x\r" * 500, 10**12),
    "a comment that does not end": response("200 OK", EVENTS, SHORT_EVENT + b":" * (LIMIT + 1), 10**12),
}
"""Responses with a message that is longer than the limit."""


@pytest.mark.parametrize("kind", TOO_LONG)
async def test_a_message_over_the_limit_ends_its_call(kind: str) -> None:
    """The call may have run, so that it is in doubt; the message names the limit."""

    def respond(request: dict[str, Any]) -> bytes:
        return TOO_LONG[kind] if request.get("method") == "tools/call" else valid_response(request)

    async with asyncio.timeout(LONGEST), server_that(respond, max_message_bytes=LIMIT) as server:
        execution = executions(await run_calls([server], ("act", {})))[0]
    assert execution.status is ToolStatus.IN_DOUBT
    assert f"it sent an answer of more than {LIMIT} bytes" in execution.error_message


LINES = st.binary(min_size=1, max_size=8).filter(lambda line: not {*b"\r\n"} & {*line})


@given(
    groups=st.lists(st.lists(LINES | LINES.map(lambda line: b":" + line))),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    sizes=st.lists(st.integers(1, 20)),
)
def test_events_are_found_wherever_the_stream_is_cut(groups: list[list[bytes]], end: bytes, sizes: list[int]) -> None:
    """With each end of line, with comments and further empty lines, and in pieces of any size, the events are the same."""
    stream = b"".join([line + end for group in groups for line in [*group, b""]])
    splitter, found = EventSplitter(), list[bytes]()
    for size in [*sizes, len(stream)]:
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    events = [b"".join([line + b"\n" for line in group if not line.startswith(b":")]) for group in groups]
    assert found == [event for event in events if event]
    assert splitter.pending_bytes == 0


REJECTIONS = {
    "200 OK": -32000,
    "500 Internal Server Error": -32000,
    "400 Bad Request": -32602,
}
"""The ways in which a working server may reject a call."""


@pytest.mark.parametrize("status", REJECTIONS)
async def test_a_rejected_call_is_not_repeated(status: str) -> None:
    """A rejected call fails with the message of the server, and is not sent again."""
    error = {"jsonrpc": "2.0", "id": 0, "error": {"code": REJECTIONS[status], "message": "not today"}}
    body = json.dumps(error).encode()
    answer = (
        response(status, EVENTS, b"data: " + body + b"\n\n") if status == "200 OK" else response(status, JSON, body)
    )
    async with server_with(answer, calls_only=True) as server:
        rejected = executions(await run_calls([server], ("act", {})))[0]
    assert (rejected.status, rejected.error_message) == (
        ToolStatus.FAILED,
        f"the MCP server 'hostile' refused: not today (code {REJECTIONS[status]})",
    )


async def test_keys_are_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the ensemble nor the error for an invalid header shows a key (law 18)."""
    url = "http://me:hidden-1@127.0.0.1:1/mcp?key=hidden-2"
    server = McpEnsemble.http(url, {"Authorization": "Bearer hidden-3\n"}, name="secret", required=False, **NO_TIMEOUTS)
    with_env = McpEnsemble.stdio("no-such-program", env={"KEY": "hidden-4"}, name="other", required=False)
    async with server, with_env:
        texts = [repr(server), repr(with_env), server.diagnose(), with_env.diagnose(), caplog.text]
    assert not [text for text in texts if "hidden" in text]
    assert all(texts)


class _Sent(httpx2.AsyncByteStream):
    """A body that arrives in one packet."""

    def __init__(self, packet: bytes) -> None:
        self._packet = packet

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._packet

    async def aclose(self) -> None:
        """Close it."""


async def test_other_tasks_go_on_between_the_pieces_of_a_compressed_answer() -> None:
    """One packet can hold megabytes, which are read in pieces of 64 KiB."""
    turns = size = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    packet = gzip.compress(b": a comment\n" * 400_000)
    async for piece in _BoundedStream(_Sent(packet), ["gzip"], 1e9, RequestStatus()):
        size += len(piece)
    counting.cancel()
    assert size == 12 * 400_000
    assert turns >= size // 65_536
