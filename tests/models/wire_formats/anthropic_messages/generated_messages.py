"""Strategies and helpers for conversations with everything that the Messages API supports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from agentloop.models import LLMConfig
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import (
    Document,
    ErrorInfo,
    Image,
    InferenceRequest,
    Message,
    ProviderPart,
    Reasoning,
    ResponseFormat,
    Text,
    ToolCall,
    ToolExchange,
    ToolSpec,
)
from tests.models.generated_requests import (
    execution_of,
    options,
    system_messages,
    tool_choices,
    tool_exchanges,
    tool_names,
    tool_specs,
    without_unsupported,
)

FORMAT = "anthropic-messages"
CONFIG = LLMConfig(model="m", base_url="http://localhost/v1", wire_format=FORMAT, auth="x-api-key", api_key="k")
HELLO = Message.user("hello")
ADD = ToolSpec("add", "Add numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})


def anthropic_data(**data: object) -> dict[str, Any]:
    """Return provider data of Anthropic."""
    return {FORMAT: data}


def encode(request: InferenceRequest, config: LLMConfig = CONFIG, *, stream: bool = False) -> bytes:
    """Return the body of a request."""
    return wire_format(FORMAT).encode_request(request, config, stream=stream).body


def encode_json(request: InferenceRequest, config: LLMConfig = CONFIG, *, stream: bool = False) -> dict[str, Any]:
    """Return the parsed body of a request."""
    body: dict[str, Any] = json.loads(encode(request, config, stream=stream))
    return body


def encode_messages(*messages: Message) -> list[dict[str, Any]]:
    """Return the encoded messages of a conversation."""
    encoded: list[dict[str, Any]] = encode_json(InferenceRequest(messages))["messages"]
    return encoded


def exchange(call: ToolCall, value: object = None, error: ErrorInfo | None = None) -> ToolExchange:
    """Return a call with its execution."""
    return ToolExchange(call, execution_of(call, value=value, error=error))


def exchange_with_content(*content: Text | Image | Document) -> ToolExchange:
    """Return a call whose result has this content."""
    call = ToolCall("c", "add")
    return ToolExchange(call, evolve(execution_of(call), content=content))


def find_unpaired(messages: Sequence[dict[str, Any]]) -> str:
    """Return where calls and results are not paired as the provider requires; empty if they are."""
    unanswered: list[str] = []
    for number, message in enumerate(messages):
        results = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        if results != unanswered or any(block["type"] != "tool_result" for block in message["content"][: len(results)]):
            return f"messages[{number}] has the results {results} for the calls {unanswered}"
        unanswered = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    return f"no results for {unanswered}" if unanswered else ""


media: st.SearchStrategy[Image | Document] = st.one_of(
    st.builds(Image, media_type=st.sampled_from(["image/png", "image/jpg", "IMAGE/WEBP"]), data=st.binary()),
    st.builds(Image, url=st.just("https://example.com/a.png")),
    st.builds(Image, file_id=st.just("file_1")),
    st.builds(Document, media_type=st.just("application/pdf"), data=st.binary(), name=st.text(max_size=9)),
    st.builds(Document, media_type=st.just("text/markdown"), data=st.text().map(lambda text: text.encode())),
    st.builds(Document, url=st.just("https://example.com/a.pdf")),
    st.builds(Document, file_id=st.just("file_2"), provider_data=st.just(anthropic_data(citations={"enabled": True}))),
)
blocks = st.sampled_from(
    [
        {"type": "redacted_thinking", "data": "abc"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [
                {"type": "web_search_result", "title": "A", "url": "https://example.com", "encrypted_content": "e"}
            ],
        },
    ]
)
citation = {"type": "char_location", "cited_text": "a", "document_index": 0, "document_title": None} | {
    "start_char_index": 0,
    "end_char_index": 1,
}
parts = st.one_of(
    st.builds(Text, st.text()),
    st.builds(Text, st.text(), provider_data=st.just(anthropic_data(citations=[citation]))),
    st.builds(Reasoning, st.text()),
    st.builds(Reasoning, st.text(), provider_data=st.just({"gemini": {"signature": "theirs"}})),
    st.builds(Reasoning, st.text(), provider_data=st.text(min_size=1).map(lambda text: anthropic_data(signature=text))),
    st.builds(ProviderPart, st.just(FORMAT), blocks),
    st.builds(ProviderPart, st.just("gemini"), blocks),
    tool_exchanges(),
    st.lists(st.builds(Text, st.text()) | media, max_size=3).map(lambda content: exchange_with_content(*content)),
)
messages = st.one_of(
    st.lists(st.text() | media, max_size=3).map(lambda content: Message.user(*content)),
    system_messages,
    st.lists(parts, max_size=5).map(lambda items: Message.assistant(*items)),
)
conversations = st.lists(messages, max_size=6)
response_formats = st.none() | st.builds(
    ResponseFormat, st.just({"type": "object", "properties": {"a": {"type": "object"}}}), tool_names, st.booleans()
)
requests = st.builds(
    lambda *parts: without_unsupported(InferenceRequest(*parts), wire_format(FORMAT), CONFIG),
    conversations,
    st.text(),
    tool_specs,
    tool_choices,
    st.none() | st.booleans(),
    response_formats,
    st.builds(
        lambda base, cached: evolve(base, extra={"metadata": {"user_id": "me"}}, cache_prompt=cached),
        options,
        st.booleans(),
    ),
)
