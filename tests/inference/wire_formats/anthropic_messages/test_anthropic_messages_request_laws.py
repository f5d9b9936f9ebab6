"""Laws of requests of Messages, over generated conversations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.inference.wire_formats.anthropic_messages import requests as messages
from agentloop.values import InferenceOptions, InferenceRequest, Message, ToolCall, to_json
from agentloop.values.json import format_json
from tests.inference.wire_formats.anthropic_messages.generated_messages import (
    ADD,
    conversations,
    encoded,
    exchange,
    requests,
    spelled,
    unpaired,
)

ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")


@given(requests)
def test_calls_and_results_pair_up_under_ids_of_their_own(request: InferenceRequest) -> None:
    """Law 2: each turn's calls are answered first thing in the next message; no id comes twice in a conversation."""
    before = to_json(request)
    sent = spelled(request)["messages"]
    calls = [block for message in sent for block in message["content"] if block["type"] == "tool_use"]
    assert not unpaired(sent)
    assert len(calls) == sum(len(message.exchanges) for message in request.messages)
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(ID.match(call["id"]) and NAME.match(call["name"]) and type(call["input"]) is dict for call in calls)
    assert to_json(request) == before


def test_the_judge_of_pairs_can_say_no() -> None:
    """A result that is missing, or does not come first, is noticed."""
    said, results = spelled(InferenceRequest((Message.assistant(exchange(ToolCall("c", "add"), 1)),)))["messages"]
    late = {"role": "user", "content": [{"type": "text", "text": "a"}, *results["content"]]}
    assert not unpaired([said, results])
    assert all(map(unpaired, ([said], [results], [said, said, results], [said, late])))


@given(requests)
def test_nothing_blank_or_empty_is_sent(request: InferenceRequest) -> None:
    """The API refuses messages without content, blank texts, and messages of the assistant that end with thoughts."""
    for message in spelled(request)["messages"]:
        assert message["content"]
        assert all(block["text"].strip() for block in message["content"] if block["type"] == "text")
        assert message["role"] != "assistant" or "thinking" not in message["content"][-1]["type"]


@given(conversation=conversations, system_prompt=st.text(), cached=st.booleans(), length=st.integers(0, 6))
def test_the_segments_of_a_longer_request_extend_those_of_the_shorter(
    conversation: list[Message], system_prompt: str, *, cached: bool, length: int
) -> None:
    """Law 13: to go on with a conversation leaves the bytes before as they were, so that prompt caches serve them."""
    options = InferenceOptions(cache_prompt=cached)
    shorter, longer = (
        encoded(InferenceRequest(tuple(told), system_prompt, (ADD,), options=options))
        for told in (conversation[:length], conversation)
    )
    end = b'],"max_tokens":16384' + (b',"cache_control":{"type":"ephemeral"}' if cached else b"") + b"}"
    assert shorter.endswith(end)
    assert longer.endswith(end)
    assert longer.startswith(shorter.removesuffix(end))


@given(conversations)
def test_a_conversation_is_encoded_the_same_whatever_was_encoded_before(conversation: list[Message]) -> None:
    """Kept segments do not leak into requests where a message stands at another place."""
    copies = [Message(message.role, message.parts) for message in conversation]
    encoded(InferenceRequest((*conversation, *conversation)))
    assert encoded(InferenceRequest(tuple(conversation))) == encoded(InferenceRequest(tuple(copies)))


def test_each_message_is_encoded_once_over_growing_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 20: over a run of n requests, what is written is one history, twice where an id has to be told apart."""
    written: list[bytes] = []

    def counted(value: object) -> bytes:
        written.append(format_json(value))
        return written[-1]

    monkeypatch.setattr(messages, "format_json", counted)
    ids = [*(f"c{number}" for number in range(30)), "c0"]
    told = [Message.assistant(exchange(ToolCall(call_id, "add"), 1)) for call_id in ids]
    for length in range(len(told) + 1):
        encoded(InferenceRequest(tuple(told[:length])))
    messages_written = [entry for entry in written if entry.startswith(b'{"role"')]
    assert len(messages_written) == 2 * (len(told) + 1)
    encoded(InferenceRequest(tuple(told)))
    messages_written = [entry for entry in written if entry.startswith(b'{"role"')]
    assert len(messages_written) == 2 * (len(told) + 1)


@given(request=requests, stream=st.booleans())
def test_a_request_is_what_the_providers_own_package_says_a_request_is(
    request: InferenceRequest, *, stream: bool
) -> None:
    """Requests satisfy the types that Anthropic publishes for them, without an entry that these do not know.

    Its package has no name for sampling options any more; the API takes them for the models that have them.
    """
    kind, judge = judged_by(stream=stream)
    body = spelled(request, stream=stream)
    assert body.keys() - {"temperature", "top_p"} <= get_type_hints(kind).keys()
    walk(judge.validate_python(body))


def test_a_request_that_anthropic_would_refuse_does_not_satisfy_its_types() -> None:
    """The judge of the test above can say no."""
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    _, judge = judged_by(stream=False)
    body = spelled(InferenceRequest((Message.assistant(exchange(ToolCall("c", "add"), 1)),)))
    walk(judge.validate_python(json.loads(json.dumps(body))))
    body["messages"][1]["content"][0].pop("tool_use_id")
    with pytest.raises(pydantic.ValidationError):
        walk(judge.validate_python(body))


ADAPTERS: dict[bool, tuple[Any, Any]] = {}


def judged_by(*, stream: bool) -> tuple[Any, Any]:
    """Return the provider's type of a request and what validates it, made once."""
    params = pytest.importorskip("anthropic.types.message_create_params", reason="anthropic is not installed")
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    if stream not in ADAPTERS:
        kind = params.MessageCreateParamsStreaming if stream else params.MessageCreateParamsNonStreaming
        ADAPTERS[stream] = kind, pydantic.TypeAdapter(kind)
    return ADAPTERS[stream]


def walk(value: Any) -> None:
    """Go through what pydantic validates as it is gone through."""
    if isinstance(value, Mapping):
        for item in value.values():
            walk(item)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for item in value:
            walk(item)
