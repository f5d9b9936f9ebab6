"""Options of requests of Messages: sampling, effort, the form of the answer, prompt caching and extra entries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentloop.errors import BadRequest
from agentloop.inference import LLMConfig, Quirks
from agentloop.values import InferenceOptions, InferenceRequest, ResponseFormat, ToolChoice
from tests.inference.wire_formats.anthropic_messages.generated_messages import (
    ADD,
    CONFIG,
    FORMAT,
    HELLO,
    encoded,
    spelled,
)

MARK = {"type": "ephemeral"}


def with_options(**options: Any) -> dict[str, Any]:
    """Encode a request with these options."""
    return spelled(InferenceRequest((HELLO,), options=InferenceOptions(**options)))


def test_options_are_spelled_as_the_provider_wants_them() -> None:
    """A seed has no place; the limit of tokens, which has to be there, is that of the quirks where none is set."""
    assert with_options(temperature=0.5, top_p=0.1, stop=("x",), max_tokens=7, seed=3, model="n") == {
        "model": "n",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.1,
        "stop_sequences": ["x"],
    }
    config = CONFIG.with_settings(quirks=Quirks(default_max_tokens=9), options=InferenceOptions(top_p=0.2))
    body = spelled(InferenceRequest((HELLO,)), config, stream=True)
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
def test_effort_is_effort_and_thinking(effort: Any, thinking: object, config: object) -> None:
    """Thinking is not asked for beside a forced call, which excludes it."""
    options = InferenceOptions(reasoning_effort=effort)
    body = spelled(InferenceRequest((HELLO,), options=options))
    assert (body["thinking"], body.get("output_config")) == (thinking, config)
    forced = spelled(InferenceRequest((HELLO,), "", (ADD,), ToolChoice.required(), options=options))
    assert forced.get("thinking") == (thinking if effort == "none" else None)


def test_a_response_format_is_a_schema_whose_objects_are_closed() -> None:
    """Objects are closed at every depth, data and names that look like keywords are left alone."""
    inner = {"type": "object", "additionalProperties": True}
    schema = {
        "type": "object",
        "properties": {"default": {"type": "array", "items": {"type": "object"}}, "b": inner},
        "enum": [{"type": "object"}],
    }
    body = spelled(
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
        encoded(InferenceRequest((HELLO,), response_format=ResponseFormat()))


def test_cache_breakpoints_stand_at_the_ends_and_never_in_messages() -> None:
    """The end of the conversation is marked for all, so that bytes sent before stay as they were."""
    request = InferenceRequest((HELLO,), "Be kind.", (ADD, ADD), options=InferenceOptions(cache_prompt=True))
    body = spelled(request)
    assert [tool.get("cache_control") for tool in body["tools"]] == [None, MARK]
    assert body["system"] == [{"type": "text", "text": "Be kind.", "cache_control": MARK}]
    assert body["cache_control"] == MARK
    assert "cache_control" not in json.dumps(body["messages"])
    assert b"cache_control" not in encoded(request.with_options(InferenceOptions()))


@pytest.mark.parametrize("name", ["model", "messages", "tools", "system"])
def test_an_extra_entry_never_stands_beside_the_one_of_the_request(name: str) -> None:
    """Which of the two a service would read cannot be known; other entries go before what is made of options."""
    options = InferenceOptions(extra={name: [], "top_k": 3, "max_tokens": 5})
    with pytest.raises(BadRequest, match=name):
        encoded(InferenceRequest((HELLO,), "Be kind.", (ADD,), options=options))
    body = spelled(InferenceRequest((HELLO,), options=InferenceOptions(extra={"tools": [1], "max_tokens": 5})))
    assert (body["tools"], body["max_tokens"]) == ([1], 5)


def test_the_key_goes_in_the_header_of_the_provider() -> None:
    """A configuration that is spelled out needs no preset."""
    config = LLMConfig(model="m", base_url="http://a.b/v1", wire_format=FORMAT, auth="x-api-key", api_key="k")
    assert config.auth_headers() == {"x-api-key": "k"}
    assert config.url("/messages") == "http://a.b/v1/messages"
