"""Tests of log probabilities: in each wire format that has them, in one piece and streamed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agentloop import AgentLoop, LLMConfig
from agentloop.durable import MemoryJournal
from agentloop.models import HttpInference
from agentloop.models.http_client import in_process_client
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import InferenceResponse
from agentloop.values.inference import TokenLogprob
from agentloop.values.serialization import from_json, to_json

_EXPECTED = (
    TokenLogprob("He", -0.25, b"He", (TokenLogprob("He", -0.25, b"He"), TokenLogprob("Hi", -2.0, b"Hi"))),
    TokenLogprob("y", 0.0, b"y"),
)
_ITEMS: list[dict[str, Any]] = [
    {
        "token": "He",
        "logprob": -0.25,
        "bytes": [72, 101],
        "top_logprobs": [
            {"token": "He", "logprob": -0.25, "bytes": [72, 101]},
            {"token": "Hi", "logprob": -2, "bytes": [72, 105]},
        ],
    },
    {"token": "y", "logprob": 0, "bytes": [121], "top_logprobs": []},
]
_GEMINI: Mapping[str, list[Any]] = {
    "chosenCandidates": [{"token": "He", "tokenId": 1, "logProbability": -0.25}, {"token": "y", "tokenId": 2}],
    "topCandidates": [
        {"candidates": [{"token": "He", "logProbability": -0.25}, {"token": "Hi", "logProbability": -2}]},
        {},
    ],
}
_END = {"done": True, "done_reason": "stop"}
_MESSAGE = {"type": "message", "id": "m1", "content": [{"type": "output_text", "text": "Hey", "logprobs": _ITEMS}]}
_COMPLETED = {"status": "completed", "output": [_MESSAGE]}


def _gemini(text: str, tokens: slice, **end: str) -> dict[str, Any]:
    result = {name: entries[tokens] for name, entries in _GEMINI.items()}
    return {"candidates": [{"content": {"parts": [{"text": text}]}, "logprobsResult": result, **end}]}


_RESPONSES: Mapping[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "openai-chat": (
        {
            "choices": [
                {"message": {"content": "Hey"}, "finish_reason": "stop", "logprobs": {"content": _ITEMS}},
            ]
        },
        [
            {"choices": [{"delta": {"content": "He"}, "logprobs": {"content": _ITEMS[:1]}}]},
            {"choices": [{"delta": {"content": "y"}, "logprobs": {"content": _ITEMS[1:], "refusal": None}}]},
            {"choices": [{"delta": {}, "finish_reason": "stop", "logprobs": None}]},
        ],
    ),
    "openai-responses": (
        _COMPLETED,
        [
            {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hey"},
            {"type": "response.output_item.done", "output_index": 0, "item": _MESSAGE},
            {"type": "response.completed", "response": {"status": "completed", "output": []}},
        ],
    ),
    "gemini": (
        _gemini("Hey", slice(2), finishReason="STOP"),
        [_gemini("He", slice(1)), _gemini("y", slice(1, 2), finishReason="STOP")],
    ),
    "ollama": (
        {"message": {"content": "Hey"}, "logprobs": _ITEMS, **_END},
        [
            {"message": {"content": "He"}, "logprobs": _ITEMS[:1], "done": False},
            {"message": {"content": "y"}, "logprobs": _ITEMS[1:], "done": False},
            {"message": {"content": ""}, **_END},
        ],
    ),
}
"""A response and the events of its stream."""


def _decode_stream(name: str, events: list[dict[str, Any]]) -> InferenceResponse:
    decoder = wire_format(name).stream_decoder()
    for event in events:
        line = json.dumps(event).encode() + b"\n"
        decoder.feed(line if name == "ollama" else b"data: " + line + b"\n")
    return decoder.close()


def _without_bytes(logprob: TokenLogprob) -> TokenLogprob:
    return TokenLogprob(logprob.token, logprob.logprob, None, tuple(map(_without_bytes, logprob.top)))


@pytest.mark.parametrize("name", _RESPONSES)
def test_log_probabilities_are_read(name: str) -> None:
    """Each token of the text has its log probability and the alternatives, also in a stream; Gemini reports no bytes."""
    body, events = _RESPONSES[name]
    expected = tuple(map(_without_bytes, _EXPECTED)) if name == "gemini" else _EXPECTED
    whole = wire_format(name).decode_response(200, {}, json.dumps(body).encode())
    assert (whole.text, whole.logprobs) == ("Hey", expected)
    streamed = _decode_stream(name, events)
    assert (streamed.text, streamed.logprobs) == ("Hey", expected)
    assert from_json(to_json(whole), InferenceResponse) == whole


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        "text",
        [None, 1, "x", []],
        [{"token": 1, "logprob": -1}, {"token": "a"}, {"token": "a", "logprob": "0"}, {"token": "a", "logprob": True}],
        [{"token": "a", "logprob": 10**400}],
    ],
)
def test_what_is_no_log_probability_is_left_out(damaged: object) -> None:
    """An answer is not lost for a damaged report about its tokens."""
    body: dict[str, Any] = {"message": {"content": "Hey"}, "logprobs": damaged, **_END}
    response = wire_format("ollama").decode_response(200, {}, json.dumps(body).encode())
    assert (response.text, response.logprobs) == ("Hey", ())


def test_odd_details_of_a_token_are_left_out() -> None:
    """Bytes out of range and alternatives of another form cost no token; there are at most 20 alternatives."""
    token = {"token": "a", "logprob": -1}
    items = [{**token, "bytes": [300], "top_logprobs": "x"}, {**token, "bytes": ["a"], "top_logprobs": [token] * 50}]
    body: dict[str, Any] = {"message": {"content": "aa"}, "logprobs": items, **_END}
    first, second = wire_format("ollama").decode_response(200, {}, json.dumps(body).encode()).logprobs
    assert first == TokenLogprob("a", -1.0)
    assert (second.data, len(second.top)) == (None, 20)


async def test_the_journal_keeps_log_probabilities() -> None:
    """A loop asks for them, and the recorded response has them."""

    def provider(_: str, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        assert json.loads(sent)["top_logprobs"] == 2
        return 200, {}, json.dumps(_RESPONSES["openai-chat"][0]).encode()

    config = LLMConfig(model="m", base_url="http://provider", api_key="k")
    journal = MemoryJournal()
    inference = HttpInference(config, client=in_process_client(provider))
    loop = AgentLoop.for_model(inference, options={"top_logprobs": 2}, journal=journal)
    state = await loop.execute("hi", execution_id="e1")
    assert state.final_text == "Hey"
    bodies = [str(record.body) for record in await journal.read("e1")]
    assert any('"logprob":-0.25' in body for body in bodies)
