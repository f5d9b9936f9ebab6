"""Tests of tools of servers whose schemas are of older drafts, or have small faults."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall
from agentloop.mcp import McpEnsemble

SERVER = """
import json, sys
tools = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    if message.get("id") is None:
        continue
    method, answer = message["method"], None
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        answer = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        answer = {"tools": tools}
    elif method == "tools/call":
        answer = {"content": [{"type": "text", "text": json.dumps(message["params"].get("arguments") or {})}]}
    body = {"error": {"code": -32601, "message": "no"}} if answer is None else {"result": answer}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)
"""
TEXT = {"type": "string"}
SCHEMAS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "null_required": ({"type": "object", "properties": {"a": TEXT}, "required": None}, {"a": "x"}, "required is null"),
    "null_enum": ({"type": "object", "properties": {"a": {"enum": None}}}, {"a": "x"}, "enum is null"),
    "null_items": (
        {"type": "object", "properties": {"a": {"type": "array", "items": None}}},
        {"a": ["x"]},
        "items is null",
    ),
    "null_type": ({"type": None, "properties": {"a": TEXT}}, {"a": "x"}, ""),
    "null_schema": (None, {}, ""),
    "no_properties": ({"type": "object", "properties": []}, {}, ""),
    "tuple": ({"type": "object", "properties": {"a": {"items": [TEXT, TEXT]}}}, {"a": ["x", "y"]}, ""),
    "draft_4": (
        {"type": "object", "properties": {"a": {"minimum": 0, "exclusiveMinimum": True}}},
        {"a": 5},
        "exclusiveMinimum is true",
    ),
    "letters": ({"type": "object", "properties": {"a": {"pattern": r"^[\p{L}\p{M}]+$"}}}, {"a": "Zoë"}, ""),
    "lookbehind": ({"type": "object", "properties": {"a": {"pattern": "(?<=x)y"}}}, {"a": "z"}, "it is not checked"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of a server with the tools that it is started with."""
    path = tmp_path_factory.mktemp("server") / "server.py"
    path.write_text(SERVER)
    return path


async def test_small_faults_and_older_drafts_cost_no_tool(server: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each tool is offered and can be called, and the log says what was wrong with its schema."""
    tools: list[dict[str, Any]] = [{"name": name, "inputSchema": schema} for name, (schema, _, _) in SCHEMAS.items()]
    tools.append({"name": "absent"})
    tools += [
        {"name": "bad", "inputSchema": {"properties": 5}},
        {"name": "worse", "inputSchema": {"required": {"a": 1}}},
    ]
    calls = [ToolCall(name, name, json.dumps(arguments)) for name, (_, arguments, _) in SCHEMAS.items()]
    model = ScriptedInference([*calls, ToolCall("absent", "absent", "{}")], "done")
    ensemble = McpEnsemble.stdio(sys.executable, ["-S", str(server), json.dumps(tools)], name="srv")
    with caplog.at_level(logging.WARNING, "agentloop.mcp"):
        async with AgentLoop.for_model(model, tools=[ensemble]) as loop:
            state = await loop.execute("Go.")
    outcomes = {each.call.name: each for each in state.steps[0].executions}
    for name, (_, arguments, repair) in SCHEMAS.items():
        assert json.loads(outcomes[name].text) == arguments
        logged = [record.getMessage() for record in caplog.records if repr(name) in record.getMessage()]
        assert [repair in line for line in logged] == [True] * bool(repair)
    assert outcomes["absent"].text == "{}"
    shown = {spec.name: spec for spec in model.requests[0].tools}
    assert shown["lookbehind"].parameters["properties"]["a"] == {"description": "(pattern: (?<=x)y)"}
    assert shown.keys() == {*SCHEMAS, "absent"}
    assert not any("$schema" in spec.parameters for spec in shown.values())


async def test_arguments_are_checked_by_what_was_read(server: Path) -> None:
    """A bound and a pattern hold as the server has meant them."""
    names = ("draft_4", "letters")
    tools = [{"name": name, "inputSchema": SCHEMAS[name][0]} for name in names]
    model = ScriptedInference([ToolCall("1", "draft_4", '{"a": 0}'), ToolCall("2", "letters", '{"a": "a1"}')], "done")
    ensemble = McpEnsemble.stdio(sys.executable, ["-S", str(server), json.dumps(tools)], name="srv")
    async with AgentLoop.for_model(model, tools=[ensemble]) as loop:
        state = await loop.execute("Go.")
    assert ["InvalidArguments" in each.text for each in state.steps[0].executions] == [True, True]


ZOD = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["png", "jpeg"], "default": "png"},
        "element": {"type": "string"},
        "all": {"type": "boolean", "default": False},
    },
    "required": ["type", "all"],
    "additionalProperties": False,
    "$schema": "http://json-schema.org/draft-07/schema#",
}


async def test_a_required_parameter_with_a_default_may_be_left_out(server: Path) -> None:
    """The server gets the default that it declares, and no null where its schema takes none; a wrong value is rejected."""
    tools = [{"name": "shoot", "inputSchema": ZOD}]
    written = ["{}", '{"type": "jpeg", "element": null}', '{"type": null, "all": "true"}', '{"type": "gif"}']
    calls = [ToolCall(str(number), "shoot", text) for number, text in enumerate(written)]
    model = ScriptedInference(calls, "done")
    ensemble = McpEnsemble.stdio(sys.executable, ["-S", str(server), json.dumps(tools)], name="srv")
    async with AgentLoop.for_model(model, tools=[ensemble]) as loop:
        state = await loop.execute("Go.")
    *sent, wrong = state.steps[0].executions
    assert [json.loads(each.text) for each in sent] == [
        {"type": "png", "all": False},
        {"type": "jpeg", "all": False},
        {"type": "png", "all": True},
    ]
    assert "InvalidArguments" in wrong.text
    assert [*model.requests[0].tools[0].parameters["required"]] == ["type", "all"]  # as the server wrote it
