"""Tests of tools that a provider runs itself, beside those of the loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from attrs import evolve

from agentloop import AgentLoop, tool
from agentloop.errors import ConfigurationError, UnsupportedOption
from agentloop.models import HttpInference, LLMConfig
from agentloop.models.http_client import in_process_client
from agentloop.models.wire_formats.wire_format import WIRE_FORMATS, wire_format
from agentloop.values import (
    HostedTool,
    InferenceOptions,
    InferenceRequest,
    Message,
    ProviderPart,
    Text,
    ToolChoice,
    ToolSpec,
    Usage,
)
from agentloop.values.json import freeze
from agentloop.values.serialization import from_json, to_json

_SEARCH: Mapping[str, list[dict[str, Any]]] = {
    "anthropic-messages": [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "height"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [
                {"type": "web_search_result", "url": "https://a.org", "title": "A", "encrypted_content": "e"},
            ],
        },
    ],
    "gemini": [
        {"toolCall": {"id": "s1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["height"]}}},
        {"toolResponse": {"id": "s1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"found": 1}}},
    ],
    "openai-responses": [
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "height"},
        },
    ],
}
"""What each provider sends of a search that it ran."""

_CITED: Mapping[str, dict[str, Any]] = {
    "anthropic-messages": {
        "type": "text",
        "text": "It is 330 m high.",
        "citations": [{"type": "web_search_result_location", "url": "https://a.org", "cited_text": "330 m"}],
    },
    "gemini": {"text": "It is 330 m high."},
    "openai-responses": {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "content": [
            {
                "type": "output_text",
                "text": "It is 330 m high.",
                "annotations": [{"type": "url_citation", "url": "https://a.org"}],
            }
        ],
    },
}
_CALLS: Mapping[str, dict[str, Any]] = {
    "anthropic-messages": {"type": "tool_use", "id": "t1", "name": "double", "input": {"number": 330}},
    "gemini": {"functionCall": {"id": "t1", "name": "double", "args": {"number": 330}}},
    "openai-responses": {
        "type": "function_call",
        "call_id": "t1",
        "name": "double",
        "arguments": '{"number": 330}',
    },
}
_GROUNDING = {"webSearchQueries": ["height"], "groundingChunks": [{"web": {"uri": "https://a.org", "title": "A"}}]}


def _response(name: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a response of this provider with these items, and its report of one search."""
    if name == "anthropic-messages":
        usage = {"input_tokens": 3, "output_tokens": 2, "server_tool_use": {"web_search_requests": 1}}
        reason = "tool_use" if _CALLS[name] in items else "end_turn"
        return {"type": "message", "role": "assistant", "content": items, "stop_reason": reason, "usage": usage}
    if name == "gemini":
        candidate = {"content": {"parts": items}, "finishReason": "STOP", "groundingMetadata": _GROUNDING}
        return {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2}}
    return {"status": "completed", "output": items, "usage": {"input_tokens": 3, "output_tokens": 2}}


@tool(effect="pure")
def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


def _sent_search(name: str, body: dict[str, Any]) -> list[Any]:
    """Return the items of a search in a request."""
    if name == "openai-responses":
        return [item for item in body["input"] if item["type"] == "web_search_call"]
    entries = body["messages" if name == "anthropic-messages" else "contents"]
    key = "content" if name == "anthropic-messages" else "parts"
    return [block for entry in entries for block in entry[key] if block in _SEARCH[name]]


@pytest.mark.parametrize("name", _SEARCH)
async def test_a_provider_searches_beside_the_tools_of_the_loop(name: str) -> None:
    """Its search is no call of ours, is sent back unchanged, and leaves tools and conversation a prefix of the next request."""
    bodies: list[dict[str, Any]] = []

    def provider(_: str, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        bodies.append(json.loads(sent))
        items = [*_SEARCH[name], _CITED[name], _CALLS[name]] if len(bodies) == 1 else [_CITED[name]]
        return 200, {}, json.dumps(_response(name, items)).encode()

    config = LLMConfig(model="m", base_url="http://provider", wire_format=name, api_key="k")
    loop = AgentLoop.for_model(
        HttpInference(config, client=in_process_client(provider)),
        tools=[double],
        options={"hosted_tools": [HostedTool.web_search()]},
        mode="native",
    )
    state = await loop.execute("How high are two Eiffel Towers?")

    assert state.final_text == "It is 330 m high."
    (execution,) = [exchange.execution for message in state.messages for exchange in message.exchanges]
    assert (execution.name, execution.value) == ("double", 660)
    assert _sent_search(name, bodies[1]) == _SEARCH[name]
    assert bodies[1]["tools"] == bodies[0]["tools"]
    key = {"openai-responses": "input", "gemini": "contents"}.get(name, "messages")
    assert bodies[1][key][: len(bodies[0][key])] == bodies[0][key]
    parts = [part for part in state.messages[1].parts if isinstance(part, ProviderPart)]
    assert [(part.wire_format, part.payload) for part in parts] == [(name, freeze(item)) for item in _SEARCH[name]]
    if name == "anthropic-messages":
        assert state.usage.hosted_tool_calls == 2
    assert from_json(to_json(state), type(state)) == state
    # In the conversation with another provider, the search is left out and the text remains.
    for other in WIRE_FORMATS.keys() - {name}:
        messages = InferenceRequest(state.messages)
        moved = wire_format(other).encode_request(messages, evolve(config, wire_format=other)).body
        assert b"It is 330 m high." in moved
        assert not any(mark in moved for mark in (b"web_search", b"toolCall", b"a.org"))


@pytest.mark.parametrize("name", _SEARCH)
def test_the_sources_of_a_text_are_kept_with_it(name: str) -> None:
    """Citations are provider data of the text that they belong to."""
    body = json.dumps(_response(name, [*_SEARCH[name], _CITED[name]])).encode()
    response = wire_format(name).decode_response(200, {}, body)
    (text,) = [part for part in response.parts if isinstance(part, Text)]
    assert response.text == "It is 330 m high."
    assert "https://a.org" in json.dumps(text.provider_data)
    assert not response.tool_calls


def test_the_sources_of_gemini_come_with_the_last_chunks_of_a_stream() -> None:
    """A stream gives the same response as the answer in one piece, and its sources are not sent back."""
    gemini = wire_format("gemini")
    body = _response("gemini", [{"text": "It is "}, {"text": "330 m high."}])
    whole = gemini.decode_response(200, {}, json.dumps(body).encode())
    chunks = [
        {"candidates": [{"content": {"parts": [{"text": "It is "}]}}]},
        {**body, "candidates": [{**body["candidates"][0], "content": {"parts": [{"text": "330 m high."}]}}]},
    ]
    decoder = gemini.stream_decoder()
    for chunk in chunks:
        decoder.feed(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    assert decoder.close() == whole
    (text,) = whole.parts
    assert isinstance(text, Text)
    assert text.provider_data == freeze({"gemini": {"groundingMetadata": _GROUNDING}})
    config = LLMConfig(model="m", base_url="http://provider", wire_format="gemini", api_key="k")
    request = InferenceRequest((Message.user("?"), Message.of_response(whole.parts, [])))
    assert b"a.org" not in gemini.encode_request(request, config).body


@pytest.mark.parametrize("name", WIRE_FORMATS)
def test_any_tool_of_a_provider_can_be_offered_in_its_format_alone(name: str) -> None:
    """`HostedTool.of` is sent as it is written, and refused by every other format."""
    config = LLMConfig(model="m", base_url="http://provider", wire_format=name, api_key="k")
    own = HostedTool.of(name, {"type": "of_its_own"})
    spec = ToolSpec("double", "Double.", {"type": "object"})
    for tools in ((), (spec,)):
        request = InferenceRequest((Message.user("hi"),), tools=tools, options=InferenceOptions(hosted_tools=[own]))
        sent = json.loads(wire_format(name).encode_request(request, config).body)
        assert sent.get("tools", sent.get("toolConfig", {}).get("tools"))[-1] == {"type": "of_its_own"}
    foreign = InferenceOptions(hosted_tools=[HostedTool.of("another", {"type": "of_its_own"})])
    with pytest.raises(UnsupportedOption, match="hosted_tools=written for another; remove it, or use a model of"):
        wire_format(name).encode_request(InferenceRequest((Message.user("hi"),), options=foreign), config)


@pytest.mark.parametrize("name", ["anthropic-messages", "openai-responses"])
def test_a_tool_choice_holds_for_hosted_tools_alone(name: str) -> None:
    """A call can be required of a model that has hosted tools only."""
    config = LLMConfig(model="m", base_url="http://provider", wire_format=name, api_key="k")
    options = InferenceOptions(hosted_tools=["web_search"])
    request = InferenceRequest((Message.user("hi"),), tool_choice=ToolChoice.required(), options=options)
    assert json.loads(wire_format(name).encode_request(request, config).body)["tool_choice"] in (
        {"type": "any"},
        "required",
    )


def test_the_cache_covers_hosted_tools() -> None:
    """The breakpoint after the tools is at the last one, which may be hosted."""
    config = LLMConfig(model="m", base_url="http://provider", wire_format="anthropic-messages", api_key="k")
    options = InferenceOptions(hosted_tools=["web_search"], cache_prompt=True)
    request = InferenceRequest((Message.user("hi"),), tools=(ToolSpec("double", "", {}),), options=options)
    own, hosted = json.loads(wire_format("anthropic-messages").encode_request(request, config).body)["tools"]
    assert "cache_control" not in own
    assert hosted["cache_control"] == {"type": "ephemeral"}


def test_contradictory_hosted_tools_are_refused() -> None:
    """A search has one list of domains; only a tool of one provider has a wire format."""
    with pytest.raises(ConfigurationError, match="either allowed_domains or blocked_domains"):
        HostedTool.web_search(allowed_domains="a.org", blocked_domains="b.org")
    for kind, name in (("provider", ""), ("web_search", "gemini")):
        with pytest.raises(ConfigurationError, match=r"use HostedTool\.of"):
            HostedTool(kind, {}, name)  # type: ignore[arg-type]  # a kind from a list


def test_a_hosted_tool_that_is_not_known_is_refused() -> None:
    """A name stands for a tool that needs no settings; a file search needs its stores."""
    with pytest.raises(ConfigurationError, match=r"'web_serch' is no hosted tool .*, did you mean 'web_search'"):
        InferenceOptions(hosted_tools=["web_serch"])  # type: ignore[list-item]  # misspelled
    with pytest.raises(ConfigurationError, match=r"those are web_search, code_execution$"):
        InferenceOptions(hosted_tools=["file_search"])
    with pytest.raises(ConfigurationError, match="needs the ids of its stores"):
        HostedTool.file_search()


def test_the_usage_of_hosted_tools_is_summed() -> None:
    """Executions report the hosted calls of all their inferences."""
    assert (Usage(1, 1, hosted_tool_calls=2) + Usage(hosted_tool_calls=1)).hosted_tool_calls == 3
