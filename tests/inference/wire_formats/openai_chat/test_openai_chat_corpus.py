"""Recorded answers of real services, decoded and compared with what the provider's own SDK read in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentloop.errors import InferenceError
from agentloop.inference.wire_formats.wire_format import wire_format
from agentloop.values import InferenceResponse, thaw


def exchanges(corpus: Path) -> Iterator[Mapping[str, Any]]:
    """Go through the recorded exchanges without a stream."""
    for name in ("openai_chat.json.jsonl", "llama_server.jsonl"):
        with (corpus / "exchanges" / name).open() as lines:
            for line in lines:
                exchange = json.loads(line)
                if exchange["wire_format"] == "openai_chat" and "raw" not in exchange["response"]:
                    yield exchange


def decode(exchange: Mapping[str, Any]) -> InferenceResponse:
    """Decode the answer of an exchange."""
    response = exchange["response"]
    headers = {name.lower(): value for name, value in response["headers"].items()}
    body = json.dumps(response["body"], ensure_ascii=False).encode()
    return wire_format("openai-chat").decode_response(response["status"], headers, body)


def expected_calls(exchange: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Return the calls of an answer."""
    return [(call["id"], call["name"], call["arguments"]) for call in exchange["expect"]["tool_calls"] or []]


def differences(exchange: Mapping[str, Any]) -> Iterator[str]:
    """Compare what was decoded with what was expected."""
    expect, found = exchange["expect"], outcome(exchange)
    if isinstance(found, InferenceError) or "raises" in expect:
        if not isinstance(found, InferenceError) or "raises" not in expect or found.status != expect["status"]:
            yield f"{found!r} instead of {expect}"
        return
    usage = expect.get("usage") or {}
    compared = {
        "text": (found.text, expect["text"] or expect["refusal"] or ""),
        "reasoning": (found.reasoning, expect["reasoning"] or found.reasoning),
        "calls": ([(call.id, call.name, thaw(call.arguments)) for call in found.tool_calls], expected_calls(exchange)),
        "input tokens": (found.usage.input_tokens, usage.get("input_tokens", found.usage.input_tokens)),
        "output tokens": (found.usage.output_tokens, usage.get("output_tokens", found.usage.output_tokens)),
        "finish reason": (found.provider_finish_reason or "", expect["finish"] or ""),
    }
    yield from (f"{name}: {got!r} instead of {wanted!r}" for name, (got, wanted) in compared.items() if got != wanted)


def test_recorded_answers_are_read_as_the_sdk_reads_them(corpus: Path) -> None:
    """Text, refusal, reasoning, calls, tokens and errors of every recorded answer are what OpenAI's own package found."""
    judged = [
        exchange
        for exchange in exchanges(corpus)
        if exchange["expect"] and not exchange["expect"].get("disputed") and "unusual" not in exchange["expect"]
    ]
    found = [f"{exchange['id']}: {what}" for exchange in judged for what in differences(exchange)]
    assert len(judged) > 100
    assert not found, "\n".join(found)


def test_every_recorded_answer_is_read_or_refused_as_one(corpus: Path) -> None:
    """Disputed and unusual answers are not compared, but they never raise anything else than an inference error."""
    assert all(isinstance(outcome(exchange), InferenceResponse | InferenceError) for exchange in exchanges(corpus))


def outcome(exchange: Mapping[str, Any]) -> InferenceResponse | InferenceError:
    """Decode the answer of an exchange to a response or an error."""
    try:
        return decode(exchange)
    except InferenceError as error:
        return error
