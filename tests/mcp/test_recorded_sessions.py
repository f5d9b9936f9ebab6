"""Recorded sessions with real servers, replayed: what the servers wrote arrives as values of ours, line by line."""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from agentloop.errors import ToolFailed
from agentloop.mcp import McpEnsemble
from agentloop.mcp.mcp_tool import McpTool, tool_request
from agentloop.values import Audio, Effect, Image
from agentloop.values.json import thaw
from tests.mcp.running import PATIENT

SERVER = str(Path(__file__).with_name("replaying_server.py"))


async def test_recorded_sessions_are_had_again(corpus: Path, tmp_path: Path) -> None:
    """What the server wrote is understood, line by line, and what we write is what the recorded client wrote."""
    path = corpus / "mcp" / "stdio_sessions.jsonl"
    sessions = [json.loads(line) for line in path.read_text().splitlines()]
    assert sessions
    for session in sessions:
        heard = tmp_path / session["session"]
        arguments = ["-S", SERVER, str(path), session["session"], str(heard)]
        server = McpEnsemble.stdio(sys.executable, arguments, name=session["session"], **PATIENT)
        async with server:
            check_tools(server, session)
            for call, answer in exchanges(session, "tools/call"):
                await check_call(server, call["params"], answer["result"])
        check_written([json.loads(line) for line in heard.read_text().splitlines()], session["messages"])


def check_written(written: list[dict[str, Any]], recorded: list[dict[str, Any]]) -> None:
    """Check that we wrote what the recorded client wrote; besides, we list tools again where the server says they changed."""
    changes = [one for one in recorded if one["msg"].get("method") == "notifications/tools/list_changed"]
    expected = [essence(one["msg"]) for one in recorded if one["dir"] == "client_to_server"]
    found = [essence(message) for message in written]
    listing = next(one for one in expected if one[0] == "tools/list")
    for _ in changes:
        if found.count(listing) > expected.count(listing):
            del found[len(found) - 1 - found[::-1].index(listing)]
    assert found == expected
    ids = [message["id"] for message in written if "id" in message]
    assert len(set(ids)) == len(ids)


def essence(message: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a message says, without what tells one client from another."""
    params = dict(message.get("params") or {})
    version = params.pop("_meta", {}).get("io.modelcontextprotocol/protocolVersion")
    for own in ("clientInfo", "capabilities"):
        params.pop(own, None)
    return message["method"], "id" in message, version, params


def exchanges(session: dict[str, Any], method: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the requests of a method, each with its answer."""
    messages = session["messages"]
    answers = {
        one["msg"]["id"]: one["msg"] for one in messages if one["dir"] == "server_to_client" and "id" in one["msg"]
    }
    asked = [one["msg"] for one in messages if one["dir"] == "client_to_server" and one["msg"]["method"] == method]
    return [(one, answers[one["id"]]) for one in asked]


def check_tools(server: McpEnsemble, session: dict[str, Any]) -> None:
    """Check that the tools are offered as they were told."""
    told = [tool for _, answer in exchanges(session, "tools/list") for tool in answer["result"]["tools"]]
    assert len(server.offered) == session["tools"]
    assert [tool.name for tool in server.offered] == [tool["name"] for tool in told]
    for tool, one in zip(server.offered, told, strict=True):
        hints = one.get("annotations", {})
        expected = (
            Effect.PURE
            if hints.get("readOnlyHint")
            else Effect.IDEMPOTENT
            if hints.get("idempotentHint")
            else Effect.EFFECT
        )
        assert tool.effect is expected
        assert thaw(tool.spec.parameters) == one["inputSchema"]


async def check_call(server: McpEnsemble, asked: dict[str, Any], told: dict[str, Any]) -> None:
    """Check what comes of one call; its arguments are sent as they were, also where they do not fit."""
    first = server.offered[0]
    assert isinstance(first, McpTool)
    tool = evolve(first, request=tool_request(asked["name"]))
    texts = [block["text"] for block in told["content"] if block["type"] == "text"]
    if told.get("isError"):
        with pytest.raises(ToolFailed) as failed:
            await tool.use(**asked["arguments"])
        assert str(failed.value) == "\n".join(texts)
        return
    result = await tool.use(**asked["arguments"])
    media = [part for part in result.content or () if isinstance(part, Image | Audio)]
    assert [part.data for part in media] == [b64decode(block["data"]) for block in told["content"] if "data" in block]
    if "structuredContent" in told:
        assert thaw(result.value) == told["structuredContent"]
    elif not media:
        assert isinstance(result.value, str)
        assert all(text in result.value for text in texts)
