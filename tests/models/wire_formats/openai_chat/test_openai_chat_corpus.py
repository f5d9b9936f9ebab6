"""Recorded responses of real services, compared with what the OpenAI package decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentloop.errors import InferenceError
from agentloop.values import InferenceResponse, thaw
from tests.corpus.adapter import output_tokens
from tests.models.wire_formats.recorded_streams import decode_exchange, has_expectation, load_exchanges


def exchanges(corpus: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the recorded exchanges without streams."""
    for exchange in load_exchanges(corpus, "openai_chat.json.jsonl", "llama_server.jsonl"):
        if exchange["wire_format"] == "openai_chat" and "raw" not in exchange["response"]:
            yield exchange


def expected_calls(exchange: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Return the expected calls of a response."""
    return [(call["id"], call["name"], call["arguments"]) for call in exchange["expect"]["tool_calls"] or []]


def differences(exchange: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between the decoded response and the expected one."""
    expect, decoded = exchange["expect"], decode_exchange("openai-chat", exchange)
    if isinstance(decoded, InferenceError) or "raises" in expect:
        if not isinstance(decoded, InferenceError) or "raises" not in expect or decoded.status != expect["status"]:
            yield f"{decoded!r} instead of {expect}"
        return
    usage, outputs = expect.get("usage") or {}, output_tokens(exchange["wire_format"], decoded)
    calls = [(call.id, call.name, thaw(call.arguments)) for call in decoded.tool_calls]
    compared = {
        "text": (decoded.text, expect["text"] or expect["refusal"] or ""),
        "reasoning": (decoded.reasoning, expect["reasoning"] or decoded.reasoning),
        "calls": (calls, expected_calls(exchange)),
        "input tokens": (decoded.usage.input_tokens, usage.get("input_tokens", decoded.usage.input_tokens)),
        "output tokens": (outputs, usage.get("output_tokens", outputs)),
        "finish reason": (decoded.provider_finish_reason or "", expect["finish"] or ""),
    }
    yield from (
        f"{name}: {actual!r} instead of {expected!r}"
        for name, (actual, expected) in compared.items()
        if actual != expected
    )


def test_recorded_responses_are_decoded_like_the_sdk_does(corpus: Path) -> None:
    """Text, refusal, reasoning, calls, tokens and errors of every recorded response are those of the OpenAI package."""
    judged = [exchange for exchange in exchanges(corpus) if has_expectation(exchange)]
    found = [f"{exchange['id']}: {difference}" for exchange in judged for difference in differences(exchange)]
    assert len(judged) > 100
    assert not found, "\n".join(found)


def test_every_recorded_response_is_decoded_or_an_inference_error(corpus: Path) -> None:
    """Disputed and unusual responses are not compared, but raise no other error than an inference error."""
    results = [decode_exchange("openai-chat", exchange) for exchange in exchanges(corpus)]
    assert all(isinstance(result, InferenceResponse | InferenceError) for result in results)
