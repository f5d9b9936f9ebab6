"""Laws of requests for the Messages API, checked with generated conversations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.models.wire_formats.anthropic_messages import requests as messages
from agentloop.values import InferenceOptions, InferenceRequest, Message, ToolCall, to_json
from agentloop.values.json import format_json
from tests.models.wire_formats.anthropic_messages.generated_messages import (
    ADD,
    conversations,
    encode,
    encode_json,
    exchange,
    find_unpaired,
    requests,
)

ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")


@given(requests)
def test_calls_and_results_are_paired_with_unique_ids(request: InferenceRequest) -> None:
    """Law 2: the results of each turn come first in the next message; ids are unique in the conversation."""
    before = to_json(request)
    sent = encode_json(request)["messages"]
    calls = [block for message in sent for block in message["content"] if block["type"] == "tool_use"]
    assert not find_unpaired(sent)
    assert len(calls) == sum(len(message.exchanges) for message in request.messages)
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(ID.match(call["id"]) and NAME.match(call["name"]) and type(call["input"]) is dict for call in calls)
    assert to_json(request) == before


def test_the_check_of_pairs_detects_violations() -> None:
    """A missing result, and one that does not come first, are detected."""
    assistant, results = encode_json(InferenceRequest((Message.assistant(exchange(ToolCall("c", "add"), 1)),)))[
        "messages"
    ]
    late = {"role": "user", "content": [{"type": "text", "text": "a"}, *results["content"]]}
    assert not find_unpaired([assistant, results])
    assert all(map(find_unpaired, ([assistant], [results], [assistant, assistant, results], [assistant, late])))


@given(requests)
def test_nothing_blank_or_empty_is_sent(request: InferenceRequest) -> None:
    """The API refuses messages without content, blank texts, and assistant messages that end with thinking."""
    for message in encode_json(request)["messages"]:
        assert message["content"]
        assert all(block["text"].strip() for block in message["content"] if block["type"] == "text")
        assert message["role"] != "assistant" or "thinking" not in message["content"][-1]["type"]


@given(conversation=conversations, system_prompt=st.text(), cached=st.booleans(), length=st.integers(0, 6))
def test_a_longer_conversation_extends_the_bytes_of_a_shorter_one(
    conversation: list[Message], system_prompt: str, *, cached: bool, length: int
) -> None:
    """Law 13: continuing a conversation does not change the bytes before, so that prompt caches apply."""
    options = InferenceOptions(cache_prompt=cached)
    shorter, longer = (
        encode(InferenceRequest(tuple(part), system_prompt, (ADD,), options=options))
        for part in (conversation[:length], conversation)
    )
    end = b'],"max_tokens":16384' + (b',"cache_control":{"type":"ephemeral"}' if cached else b"") + b"}"
    assert shorter.endswith(end)
    assert longer.endswith(end)
    assert longer.startswith(shorter.removesuffix(end))


@given(conversations)
def test_cached_encodings_do_not_affect_other_conversations(conversation: list[Message]) -> None:
    """A message at another position is encoded for that position."""
    copies = [Message(message.role, message.parts) for message in conversation]
    encode(InferenceRequest((*conversation, *conversation)))
    assert encode(InferenceRequest(tuple(conversation))) == encode(InferenceRequest(tuple(copies)))


def test_each_message_is_encoded_once_over_growing_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 20: over n growing requests, each message is encoded once, or twice if one of its ids is replaced."""
    written: list[bytes] = []

    def counted(value: object) -> bytes:
        written.append(format_json(value))
        return written[-1]

    monkeypatch.setattr(messages, "format_json", counted)
    ids = [*(f"c{number}" for number in range(30)), "c0"]
    conversation = [Message.assistant(exchange(ToolCall(call_id, "add"), 1)) for call_id in ids]
    for length in range(len(conversation) + 1):
        encode(InferenceRequest(tuple(conversation[:length])))
    messages_written = [entry for entry in written if entry.startswith(b'{"role"')]
    assert len(messages_written) == 2 * (len(conversation) + 1)
    encode(InferenceRequest(tuple(conversation)))
    messages_written = [entry for entry in written if entry.startswith(b'{"role"')]
    assert len(messages_written) == 2 * (len(conversation) + 1)


@given(request=requests, stream=st.booleans())
def test_requests_have_the_types_of_the_anthropic_package(request: InferenceRequest, *, stream: bool) -> None:
    """Requests satisfy the types that Anthropic publishes and have no unknown entries.

    The package no longer declares the sampling options, which the API accepts for the models that have them.
    """
    kind, validator = request_type(stream=stream)
    body = encode_json(request, stream=stream)
    assert body.keys() - {"temperature", "top_p"} <= get_type_hints(kind).keys()
    walk(validator.validate_python(body))


def test_an_invalid_request_does_not_have_the_types_of_the_anthropic_package() -> None:
    """The validation detects a missing entry."""
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    _, validator = request_type(stream=False)
    body = encode_json(InferenceRequest((Message.assistant(exchange(ToolCall("c", "add"), 1)),)))
    walk(validator.validate_python(json.loads(json.dumps(body))))
    body["messages"][1]["content"][0].pop("tool_use_id")
    with pytest.raises(pydantic.ValidationError):
        walk(validator.validate_python(body))


ADAPTERS: dict[bool, tuple[Any, Any]] = {}


def request_type(*, stream: bool) -> tuple[Any, Any]:
    """Return the type of a request and its cached validator."""
    params = pytest.importorskip("anthropic.types.message_create_params", reason="anthropic is not installed")
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    if stream not in ADAPTERS:
        kind = params.MessageCreateParamsStreaming if stream else params.MessageCreateParamsNonStreaming
        ADAPTERS[stream] = kind, pydantic.TypeAdapter(kind)
    return ADAPTERS[stream]


def walk(value: Any) -> None:
    """Iterate over nested values, since pydantic validates iterables lazily."""
    if isinstance(value, Mapping):
        for item in value.values():
            walk(item)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for item in value:
            walk(item)
