"""Recorded sessions with real servers, replayed message by message."""

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
from agentloop.values import Audio, Effect, Image, Text
from agentloop.values.json import format_json, thaw
from agentloop.values.schema_drafts import modern_schema
from tests.mcp.running import NO_TIMEOUTS, SINCE_2026

SERVER = str(Path(__file__).with_name("replaying_server.py"))


@SINCE_2026
async def test_recorded_sessions_can_be_replayed(corpus: Path, tmp_path: Path) -> None:
    """Every message of the server is understood, and our messages are those of the recorded client."""
    path = corpus / "mcp" / "stdio_sessions.jsonl"
    sessions = [json.loads(line) for line in path.read_text().splitlines()]
    assert sessions
    for session in sessions:
        received = tmp_path / session["session"]
        arguments = ["-S", SERVER, str(path), session["session"], str(received)]
        server = McpEnsemble.stdio(
            sys.executable, arguments, name=session["session"], **NO_TIMEOUTS, trust_annotations=True
        )
        async with server:
            check_tools(server, session)
            for call, answer in exchanges(session, "tools/call"):
                await check_call(server, call["params"], answer["result"])
        check_written([json.loads(line) for line in received.read_text().splitlines()], session["messages"])


def check_written(written: list[dict[str, Any]], recorded: list[dict[str, Any]]) -> None:
    """Check that the written messages are the recorded ones; in addition, tools are listed again after each change."""
    changes = [entry for entry in recorded if entry["msg"].get("method") == "notifications/tools/list_changed"]
    expected = [normalize(entry["msg"]) for entry in recorded if entry["dir"] == "client_to_server"]
    actual = [normalize(message) for message in written]
    listing = next(message for message in expected if message[0] == "tools/list")
    in_addition = 0  # anywhere, since the calls go on while the tools are listed
    for message in actual:
        if expected and message == expected[0]:
            del expected[0]
        else:
            assert message == listing
            in_addition += 1
    assert expected == []
    assert in_addition <= len(changes)
    ids = [message["id"] for message in written if "id" in message]
    assert len(set(ids)) == len(ids)


def normalize(message: dict[str, Any]) -> tuple[Any, ...]:
    """Return a message without the parts that differ between clients."""
    params = dict(message.get("params") or {})
    version = params.pop("_meta", {}).get("io.modelcontextprotocol/protocolVersion")
    for key in ("clientInfo", "capabilities"):
        params.pop(key, None)
    return message["method"], "id" in message, version, params


def exchanges(session: dict[str, Any], method: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the requests of a method, each with its response."""
    messages = session["messages"]
    answers = {
        entry["msg"]["id"]: entry["msg"]
        for entry in messages
        if entry["dir"] == "server_to_client" and "id" in entry["msg"]
    }
    requests = [
        entry["msg"] for entry in messages if entry["dir"] == "client_to_server" and entry["msg"]["method"] == method
    ]
    return [(request, answers[request["id"]]) for request in requests]


def check_tools(server: McpEnsemble, session: dict[str, Any]) -> None:
    """Check that the tools are offered as the server listed them, in the draft of schemas that the library knows."""
    listed = [tool for _, answer in exchanges(session, "tools/list") for tool in answer["result"]["tools"]]
    assert len(server.offered) == session["tools"]
    assert [tool.name for tool in server.offered] == [tool["name"] for tool in listed]
    for tool, description in zip(server.offered, listed, strict=True):
        hints = description.get("annotations", {})
        expected = (
            Effect.PURE
            if hints.get("readOnlyHint")
            else Effect.IDEMPOTENT
            if hints.get("idempotentHint")
            else Effect.EFFECT
        )
        assert tool.effect is expected
        assert tool.spec.parameters == modern_schema(description["inputSchema"]).schema


async def check_call(server: McpEnsemble, params: dict[str, Any], response: dict[str, Any]) -> None:
    """Check the result of one call; its arguments are sent unchanged, even when they are invalid."""
    first = server.offered[0]
    assert isinstance(first, McpTool)
    tool = evolve(first, request=tool_request(params["name"]))
    texts = [block["text"] for block in response["content"] if block["type"] == "text"]
    if response.get("isError"):
        with pytest.raises(ToolFailed) as failed:
            await tool.use(**params["arguments"])
        assert str(failed.value) == "\n".join(texts)
        return
    result = await tool.use(**params["arguments"])
    media = [part for part in result.content or () if isinstance(part, Image | Audio)]
    assert [part.data for part in media] == [
        b64decode(block["data"]) for block in response["content"] if "data" in block
    ]
    if "structuredContent" in response:
        assert thaw(result.value) == response["structuredContent"]
        shown = "".join([part.text for part in result.content or () if isinstance(part, Text)])
        assert shown.startswith("\n".join(texts)) or format_json(result.value).decode() == "\n".join(texts)
    elif not media:
        assert isinstance(result.value, str)
        assert all(text in result.value for text in texts)
