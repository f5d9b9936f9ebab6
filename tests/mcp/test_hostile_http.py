"""Servers over HTTP that misbehave: told as what they are and in time, and nothing else suffers from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentloop.contracts import ToolPolicy
from agentloop.mcp import McpEnsemble
from agentloop.values import ToolStatus
from tests.limits import LONGEST
from tests.mcp.running import PATIENT
from tests.mcp.test_hostile_servers import SETTINGS, TIMEOUT, own
from tests.tools.ensembles.running import executions, run_calls

JSON, EVENTS = "application/json", "text/event-stream"


def response(status: str, kind: str, body: bytes, length: int | None = None) -> bytes:
    """Return an HTTP response, with another length than its own if given."""
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {size}\r\n\r\n".encode() + body


HANGS = b""
TO_ANOTHER = response("200 OK", JSON, b'{"jsonrpc": "2.0", "id": 999, "result": {}}')
SILENT = (HANGS, TO_ANOTHER)
"""Answers after which only a limit of time helps."""
BROKEN = {
    "no HTTP": b"garbage\r\n\r\n",
    "a web page": response("200 OK", "text/html", b"<html>"),
    "an error": response("500 Internal Server Error", "text/plain", b"oh"),
    "no JSON": response("200 OK", JSON, b"hi"),
    "JSON of another kind": response("200 OK", JSON, b"[1]"),
    "a body that is cut off": response("200 OK", JSON, b"{", 200),
    "events that are no messages": response("200 OK", EVENTS, b"data: x\n\n"),
    "events without an answer": response("200 OK", EVENTS, b": nothing\n\n"),
    "a huge body": response("200 OK", JSON, b" " * 20_000_000),
    "an endless event": response("200 OK", EVENTS, b"data: " + b"x" * 20_000_000, 10**12),
    "accepted": response("202 Accepted", JSON, b""),
    "a redirect elsewhere": b"HTTP/1.1 307 X\r\nlocation: http://elsewhere.example/\r\ncontent-length: 0\r\n\r\n",
    "nothing": HANGS,
    "an answer to another": TO_ANOTHER,
}
"""Answers that are none."""


@asynccontextmanager
async def answering(answer: bytes, *, calls_only: bool) -> AsyncIterator[McpEnsemble]:
    """Serve this answer, to everything or to calls only; return the ensemble of that server."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            asked = json.loads(await reader.readexactly(length) or b"{}")
            given = polite(asked) if calls_only and asked.get("method") != "tools/call" else answer
            writer.write(given)
            await writer.drain()
            if given is HANGS:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client went away
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = {**PATIENT, **SETTINGS}
    if answer in SILENT:
        settings |= {"policy": ToolPolicy(timeout=TIMEOUT)} if calls_only else {"connect_timeout": TIMEOUT}
    async with server:
        yield McpEnsemble.http(f"http://127.0.0.1:{port}/mcp", name="hostile", **settings)


def polite(asked: dict[str, Any]) -> bytes:
    """Return a proper answer to all that comes before calls."""
    results: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "hostile", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "act", "inputSchema": {"type": "object"}}]},
    }
    result = results.get(asked.get("method", ""))
    if result is None:
        return response("404 Not Found" if "id" in asked else "202 Accepted", "text/plain", b"")
    return response("200 OK", JSON, json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode())


@pytest.mark.parametrize("manner", BROKEN)
async def test_a_server_that_cannot_be_asked_offers_nothing(manner: str, caplog: pytest.LogCaptureFixture) -> None:
    """The execution begins in time without its tools, and the log says why."""
    async with asyncio.timeout(LONGEST), answering(BROKEN[manner], calls_only=False) as server:
        state = await run_calls([own, server], [("act", {}), ("own", {})])
    unknown, mine = executions(state)
    assert unknown.error is not None
    assert unknown.error.type == "UnknownTool"
    assert mine.value == "mine"
    assert "the MCP server hostile" in caplog.text
    assert ("it answered 500 Internal Server Error" in caplog.text) is (manner == "an error")


@pytest.mark.parametrize("manner", BROKEN)
async def test_a_call_ends_in_time_and_typed(manner: str) -> None:
    """Its siblings and the next step go on as if nothing had been."""
    async with asyncio.timeout(LONGEST), answering(BROKEN[manner], calls_only=True) as server:
        state = await run_calls([own, server], [("act", {}), ("own", {})], ("own", {}))
    bad, sibling, later = executions(state)
    assert bad.error is not None
    expected = {
        ToolStatus.FAILED: {"ToolFailed"},
        ToolStatus.IN_DOUBT: {"ToolInDoubt"},
        ToolStatus.TIMED_OUT: {"ToolTimedOut"},
    }
    assert bad.error.type in expected[bad.status], bad.error
    assert sibling.value == later.value == "mine"


REFUSALS = {
    "200 OK": -32000,
    "500 Internal Server Error": -32000,
    "400 Bad Request": -32602,
}
"""Ways in which a server that is well may refuse a call."""


@pytest.mark.parametrize("status", REFUSALS)
async def test_a_refusal_is_no_loss(status: str) -> None:
    """The call fails with what the server says, and is not sent again."""
    error = {"jsonrpc": "2.0", "id": 0, "error": {"code": REFUSALS[status], "message": "not today"}}
    told = json.dumps(error).encode()
    answer = (
        response(status, EVENTS, b"data: " + told + b"\n\n") if status == "200 OK" else response(status, JSON, told)
    )
    async with answering(answer, calls_only=True) as server:
        refused = executions(await run_calls([server], ("act", {})))[0]
    assert (refused.status, refused.error_message) == (
        ToolStatus.FAILED,
        f"the MCP server 'hostile' refused: not today (code {REFUSALS[status]})",
    )


async def test_keys_are_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Neither in the ensemble nor in what is told of a header that cannot be sent (law 18)."""
    url = "http://me:hidden-1@127.0.0.1:1/mcp?key=hidden-2"
    server = McpEnsemble.http(url, {"Authorization": "Bearer hidden-3\n"}, name="secret", **PATIENT)
    with_env = McpEnsemble.stdio("no-such-program", env={"KEY": "hidden-4"}, name="other")
    async with server, with_env:
        told = [repr(server), repr(with_env), server.diagnose(), with_env.diagnose(), caplog.text]
    assert not [text for text in told if "hidden" in text]
    assert all(told)
