"""Tests of the options of requests for the Messages API: sampling, effort, response formats, prompt caching and extra entries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentloop.errors import BadRequest, ConfigurationError
from agentloop.models import LLMConfig, Quirks
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import InferenceOptions, InferenceRequest, ResponseFormat, ToolChoice
from tests.models.wire_formats.anthropic_messages.generated_messages import (
    ADD,
    CONFIG,
    FORMAT,
    HELLO,
    encode,
    encode_json,
)

BREAKPOINT = {"type": "ephemeral"}


def with_options(**options: Any) -> dict[str, Any]:
    """Return the encoded body of a request with these options."""
    return encode_json(InferenceRequest((HELLO,), options=InferenceOptions(**options)))


def test_options_are_sent_under_the_names_of_the_provider() -> None:
    """The required limit of tokens has a default in the quirks."""
    assert with_options(temperature=0.5, top_p=0.1, stop=("x",), max_tokens=7, model="n") == {
        "model": "n",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.1,
        "stop_sequences": ["x"],
    }
    config = CONFIG.with_settings(quirks=Quirks(default_max_tokens=9), options=InferenceOptions(top_p=0.2))
    body = encode_json(InferenceRequest((HELLO,)), config, stream=True)
    assert (body["max_tokens"], body["top_p"], body["stream"]) == (9, 0.2, True)


@pytest.mark.parametrize(
    ("effort", "thinking", "config"),
    [
        ("none", {"type": "disabled"}, None),
        ("minimal", {"type": "adaptive"}, {"effort": "low"}),
        ("high", {"type": "adaptive"}, {"effort": "high"}),
        ("max", {"type": "adaptive"}, {"effort": "max"}),
    ],
)
def test_a_reasoning_effort_sets_effort_and_thinking(effort: Any, thinking: object, config: object) -> None:
    """Thinking is not enabled with a forced call, which the provider does not allow."""
    options = InferenceOptions(reasoning_effort=effort)
    body = encode_json(InferenceRequest((HELLO,), options=options))
    assert (body["thinking"], body.get("output_config")) == (thinking, config)
    forced = encode_json(InferenceRequest((HELLO,), "", (ADD,), ToolChoice.required(), options=options))
    assert forced.get("thinking") == (thinking if effort == "none" else None)


BINDING = "thinking-binding-controls-2026-08-01"


@pytest.mark.parametrize("configured", ["", "context-1m-2025-08-07", f"a,{BINDING}"])
@pytest.mark.parametrize("effort", [None, "high"])
@pytest.mark.parametrize(
    ("model", "is_bound"),
    [
        ("claude-opus-5-5", True),
        ("claude-sonnet-5-5", True),
        ("claude-haiku-5-5-20261001", True),
        ("claude-fable-5-1", True),
        ("claude-fable-5", False),
        ("claude-opus-5", False),
        ("claude-sonnet-4-5", False),
        ("m", False),
    ],
)
def test_thinking_that_a_changed_conversation_made_invalid_is_dropped(
    model: str, effort: Any, configured: str, *, is_bound: bool
) -> None:
    """A model that knows the setting gets it, with the header that it needs beside the configured ones; no other model does."""
    config = CONFIG.with_settings(headers={"Anthropic-Beta": configured} if configured else {})
    options = InferenceOptions(model=model, reasoning_effort=effort)
    encoded = wire_format(FORMAT).encode_request(InferenceRequest((HELLO,), options=options), config)
    thinking = json.loads(encoded.body).get("thinking", {})
    assert thinking.get("block_binding") == ({"prefix_mismatch_behavior": "drop_block"} if is_bound else None)
    assert thinking.get("type") == ("adaptive" if is_bound or effort else None)
    expected = [*dict.fromkeys([*filter(None, configured.split(",")), BINDING])] if is_bound else None
    sent = encoded.headers.get("anthropic-beta")
    assert (None if sent is None else sent.split(",")) == expected


def test_thinking_of_the_extra_entries_replaces_the_setting() -> None:
    """The extra entries override options, and the header is sent for the setting only."""
    options = InferenceOptions(model="claude-opus-5-5", extra={"thinking": {"type": "adaptive", "display": "updates"}})
    encoded = wire_format(FORMAT).encode_request(InferenceRequest((HELLO,), options=options), CONFIG)
    assert json.loads(encoded.body)["thinking"] == {"type": "adaptive", "display": "updates"}
    assert "anthropic-beta" not in encoded.headers


def test_a_response_format_is_a_schema_without_additional_properties() -> None:
    """Objects are closed at every depth; data, and properties named like keywords, are unchanged."""
    inner = {"type": "object", "additionalProperties": True}
    schema = {
        "type": "object",
        "properties": {"default": {"type": "array", "items": {"type": "object"}}, "b": inner},
        "enum": [{"type": "object"}],
    }
    body = encode_json(
        InferenceRequest(
            (HELLO,),
            response_format=ResponseFormat(schema),
            options=InferenceOptions(extra={"output_config": {"effort": "low"}}),
        )
    )
    closed = {"type": "object", "additionalProperties": False}
    assert body["output_config"] == {
        "format": {
            "type": "json_schema",
            "schema": {
                **closed,
                "properties": {"default": {"type": "array", "items": closed}, "b": inner},
                "enum": [{"type": "object"}],
            },
        },
        "effort": "low",
    }
    with pytest.raises(BadRequest, match="schema"):
        encode(InferenceRequest((HELLO,), response_format=ResponseFormat()))


def test_cache_breakpoints_are_at_the_ends_and_never_in_messages() -> None:
    """A breakpoint for the whole conversation keeps the bytes of earlier requests valid."""
    request = InferenceRequest((HELLO,), "Be kind.", (ADD, ADD), options=InferenceOptions(cache_prompt=True))
    body = encode_json(request)
    assert [tool.get("cache_control") for tool in body["tools"]] == [None, BREAKPOINT]
    assert body["system"] == [{"type": "text", "text": "Be kind.", "cache_control": BREAKPOINT}]
    assert body["cache_control"] == BREAKPOINT
    assert "cache_control" not in json.dumps(body["messages"])
    assert b"cache_control" not in encode(request.with_options(InferenceOptions()))


@pytest.mark.parametrize("name", ["model", "messages", "tools", "system"])
def test_an_extra_entry_must_not_repeat_an_entry_of_the_body(name: str) -> None:
    """Duplicates are refused; other extra entries override options."""
    extra = {name: [], "top_k": 3, "max_tokens": 5}
    with pytest.raises((BadRequest, ConfigurationError), match=name):
        encode(InferenceRequest((HELLO,), "Be kind.", (ADD,), options=InferenceOptions(extra=extra)))
    body = encode_json(InferenceRequest((HELLO,), options=InferenceOptions(extra={"tools": [1], "max_tokens": 5})))
    assert (body["tools"], body["max_tokens"]) == ([1], 5)


def test_the_key_is_sent_in_the_header_of_the_provider() -> None:
    """A configuration without a preset can set the header."""
    config = LLMConfig(model="m", base_url="http://a.b/v1", wire_format=FORMAT, auth="x-api-key", api_key="k")
    assert config.auth_headers() == {"x-api-key": "k"}
    assert config.url("/messages") == "http://a.b/v1/messages"
