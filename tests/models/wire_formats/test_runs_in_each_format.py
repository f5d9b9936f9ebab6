"""Executions over each wire format: calls, results and final texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentloop import AgentLoop, ToolCallingDriver, tool
from agentloop.models import HttpInference, LLMConfig
from agentloop.models.http_client import in_process_client
from tests.models.wire_formats.aws_events import aws_event

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


def openai_response(body: dict[str, Any], *, streams: bool) -> bytes:
    """Respond as OpenAI's Chat Completions: with two calls, then with their results."""
    tool_calls = [
        {
            "index": index,
            "id": f"c{index}",
            "type": "function",
            "function": {
                "name": body["tools"][0]["function"]["name"],
                "arguments": json.dumps({"a": index + 1, "b": 1}),
            },
        }
        for index in (0, 1)
    ]
    results = {sent["tool_call_id"]: json.loads(sent["content"]) for sent in body["messages"] if sent["role"] == "tool"}
    message = {"content": f"{[results['c0'], results['c1']]}"} if results else {"tool_calls": tool_calls}
    finish = "stop" if results else "tool_calls"
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    if not streams:
        return json.dumps({"choices": [{"message": message, "finish_reason": finish}], "usage": usage}).encode()
    chunks = [{"choices": [{"delta": message}]}, {"choices": [{"delta": {}, "finish_reason": finish}], "usage": usage}]
    return _events(*[json.dumps(chunk) for chunk in chunks], "[DONE]")


def anthropic_response(body: dict[str, Any], *, streams: bool) -> bytes:
    """Respond as Anthropic's Messages API: with two calls, then with their results."""
    name = body["tools"][0]["name"]
    last = body["messages"][-1]["content"]
    results = {block["tool_use_id"]: block["content"] for block in last if block["type"] == "tool_result"}
    blocks: list[dict[str, Any]] = [
        {"type": "tool_use", "id": f"t{a}", "name": name, "input": {"a": a, "b": 1}} for a in (1, 2)
    ]
    if results:
        numbers = [json.loads(results[f"t{a}"][0]["text"]) for a in (1, 2)]
        blocks = [{"type": "text", "text": f"{numbers}"}]
    reason, usage = "end_turn" if results else "tool_use", {"input_tokens": 3, "output_tokens": 2}
    if not streams:
        return json.dumps(
            {"type": "message", "role": "assistant", "content": blocks, "stop_reason": reason, "usage": usage}
        ).encode()
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"usage": {"input_tokens": 3}}}]
    for index, block in enumerate(blocks):
        is_text = block["type"] == "text"
        kind, key, text = (
            ("text_delta", "text", block["text"])
            if is_text
            else ("input_json_delta", "partial_json", json.dumps(block["input"]))
        )
        empty = {"type": "text", "text": ""} if is_text else {**block, "input": {}}
        events += [
            {"type": "content_block_start", "index": index, "content_block": empty},
            {"type": "content_block_delta", "index": index, "delta": {"type": kind, key: text}},
            {"type": "content_block_stop", "index": index},
        ]
    end = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 2}}
    return _events(*[json.dumps(event) for event in [*events, end, {"type": "message_stop"}]])


def responses_response(body: dict[str, Any], *, streams: bool) -> bytes:
    """Respond as OpenAI's Responses API: with two calls, then with their results."""
    name = body["tools"][0]["name"]
    results = {item["call_id"]: item["output"] for item in body["input"] if item.get("type") == "function_call_output"}
    output: list[dict[str, Any]] = [
        {"type": "function_call", "call_id": f"c{a}", "name": name, "arguments": json.dumps({"a": a, "b": 1})}
        for a in (1, 2)
    ]
    if results:
        text = f"{[json.loads(results[f'c{a}']) for a in (1, 2)]}"
        output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]
    response = {"status": "completed", "output": output, "usage": {"input_tokens": 3, "output_tokens": 2}}
    if not streams:
        return json.dumps(response).encode()
    done = [
        {"type": "response.output_item.done", "output_index": index, "item": item} for index, item in enumerate(output)
    ]
    return _events(*[json.dumps(event) for event in [*done, {"type": "response.completed", "response": response}]])


def converse_response(body: dict[str, Any], *, streams: bool) -> bytes:
    """Respond as Bedrock: with two calls, then with their results."""
    results = {
        block["toolResult"]["toolUseId"]: json.loads(block["toolResult"]["content"][0]["text"])
        for block in body["messages"][-1]["content"]
        if "toolResult" in block
    }
    name = body["toolConfig"]["tools"][0]["toolSpec"]["name"]
    calls = [({"toolUseId": f"t{a}", "name": name}, {"a": a, "b": 1}) for a in (1, 2)]
    usage, reason = {"inputTokens": 3, "outputTokens": 2}, "end_turn" if results else "tool_use"
    text = f"{[results['t1'], results['t2']]}" if results else ""
    if not streams:
        content = [{"text": text}] if results else [{"toolUse": {**call, "input": made}} for call, made in calls]
        return json.dumps({"output": {"message": {"content": content}}, "stopReason": reason, "usage": usage}).encode()
    events: list[tuple[str, dict[str, Any]]] = [("messageStart", {"role": "assistant"})]
    for index, (call, made) in enumerate([] if results else calls):
        events.append(("contentBlockStart", {"contentBlockIndex": index, "start": {"toolUse": call}}))
        delta = {"toolUse": {"input": json.dumps(made)}}
        events.append(("contentBlockDelta", {"contentBlockIndex": index, "delta": delta}))
    if results:
        events.append(("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": text}}))
    events += [("messageStop", {"stopReason": reason}), ("metadata", {"usage": usage})]
    return b"".join(aws_event(*event) for event in events)


def cohere_response(body: dict[str, Any], *, streams: bool) -> bytes:
    """Respond as Cohere: with two calls, then with their results."""
    assert body["stream"] is streams
    name = body["tools"][0]["function"]["name"]
    results = {sent["tool_call_id"]: json.loads(sent["content"]) for sent in body["messages"] if sent["role"] == "tool"}
    calls = [
        {"id": f"c{a}", "type": "function", "function": {"name": name, "arguments": json.dumps({"a": a, "b": 1})}}
        for a in (1, 2)
    ]
    usage = {"tokens": {"input_tokens": 3, "output_tokens": 2}}
    finish = "COMPLETE" if results else "TOOL_CALL"
    item = {"type": "text", "text": f"{[results['c1'], results['c2']]}" if results else ""}
    if not streams:
        message = {"content": [item]} if results else {"tool_plan": "I add.", "tool_calls": calls}
        return json.dumps({"id": "r", "message": message, "finish_reason": finish, "usage": usage}).encode()
    sent: list[dict[str, Any]] = [{"type": "message-start", "id": "r"}]
    if results:
        sent.append({"type": "content-start", "index": 0, "delta": {"message": {"content": item}}})
    else:
        sent += [
            {"type": "tool-call-start", "index": index, "delta": {"message": {"tool_calls": call}}}
            for index, call in enumerate(calls)
        ]
    sent.append({"type": "message-end", "delta": {"finish_reason": finish, "usage": usage}})
    return _events(*[json.dumps(event) for event in sent])


def _events(*data: str) -> bytes:
    return b"".join(f"data: {text}\n\n".encode() for text in data)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("wire_format", "respond", "path"),
    [
        ("openai-chat", openai_response, "/chat/completions"),
        ("openai-responses", responses_response, "/responses"),
        ("anthropic-messages", anthropic_response, "/messages"),
        ("gemini", gemini_response, "/models/m:"),
        ("ollama", ollama_response, "/api/chat"),
        ("bedrock-converse", converse_response, "/model/m/converse"),
        ("cohere-v2", cohere_response, "/v2/chat"),
    ],
)
async def test_a_run_calls_tools_and_ends_with_their_results(
    wire_format: str, respond: Any, path: str, *, streaming: bool
) -> None:
    """Parallel calls, with or without ids, of a tool whose name is encoded, are matched with their tool and results."""
    paths: list[str] = []

    def provider(requested: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        paths.append(requested)
        return 200, {}, respond(json.loads(body), streams=streaming)

    config = LLMConfig(model="m", base_url="http://provider", wire_format=wire_format, api_key="k")
    inference = HttpInference(config, client=in_process_client(provider))
    state = await AgentLoop(ToolCallingDriver(inference, streaming=streaming, mode="native"), [add]).execute("add")
    assert (state.final_text, state.step_count) == ("[2, 3]", 2)
    assert (state.usage.input_tokens, state.usage.output_tokens, len(paths)) == (6, 4, 2)
    assert path in paths[0]
