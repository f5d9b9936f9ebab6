"""Executions over wire formats that differ from Chat Completions: calls, results and final texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentloop import AgentLoop, ToolCallingDriver, tool
from agentloop.inference import HttpInference, LLMConfig
from agentloop.inference.http_client import in_process_client

USAGE = {"promptTokenCount": 3, "candidatesTokenCount": 2}


@tool(name="1.add", effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def gemini_response(body: dict[str, Any], *, streams: bool) -> bytes:
    """Respond as Gemini: with two calls, then with their results."""
    name = body["tools"][0]["functionDeclarations"][0]["name"]
    calls = [{"functionCall": {"name": name, "args": {"a": a, "b": 1}}} for a in (1, 2)]
    results = [
        part["functionResponse"]["response"]["result"] for part in body["contents"][-1]["parts"] if "text" not in part
    ]
    parts = [{"text": f"{results}"}] if results else calls
    response = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}], "usageMetadata": USAGE}
    data = json.dumps(response).encode()
    return b"data: " + data + b"\r\n\r\n" if streams else data


def ollama_response(body: dict[str, Any], *, streams: bool) -> bytes:
    """Respond as Ollama: with two calls, then with their results."""
    assert body["stream"] is streams
    name = body["tools"][0]["function"]["name"]
    calls = [{"function": {"name": name, "arguments": {"a": a, "b": 1}}} for a in (1, 2)]
    results = [json.loads(sent["content"]) for sent in body["messages"] if sent["role"] == "tool"]
    message = {"content": f"{results}"} if results else {"content": "", "tool_calls": calls}
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 2}
    if not streams:
        return json.dumps({"message": message, **end}).encode()
    return b"".join(json.dumps(line).encode() + b"\n" for line in ({"message": message}, {"message": {}, **end}))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("wire_format", "respond"), [("gemini", gemini_response), ("ollama", ollama_response)])
async def test_a_run_calls_tools_and_ends_with_their_results(
    wire_format: str, respond: Any, *, streaming: bool
) -> None:
    """Parallel calls without ids, of a tool whose name is encoded, are matched with their tool and results."""
    paths: list[str] = []

    def provider(path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        paths.append(path)
        return 200, {}, respond(json.loads(body), streams=streaming)

    config = LLMConfig(model="m", base_url="http://provider", wire_format=wire_format, api_key="k")
    inference = HttpInference(config, client=in_process_client(provider))
    state = await AgentLoop(ToolCallingDriver(inference, streaming=streaming, mode="native"), [add]).execute("add")
    assert (state.final_text, state.step_count) == ("[2, 3]", 2)
    assert (state.usage.input_tokens, state.usage.output_tokens, len(paths)) == (6, 4, 2)
    assert paths[0].startswith("/api/chat" if wire_format == "ollama" else "/models/m:")
