"""Recorded responses of real services, and helpers to decode and compare them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentloop.errors import InferenceError
from agentloop.models.wire_formats.wire_format import WireFormat
from agentloop.values import InferenceDelta, InferenceResponse, thaw

CHUNK_SIZES = (1, 5, 1 << 30)
"""The sizes of the chunks that streams are split into, in bytes."""


def load_exchanges(corpus: Path, name: str) -> list[Mapping[str, Any]]:
    """Return the recorded exchanges of a file."""
    with (corpus / "exchanges" / name).open() as lines:
        return [json.loads(line) for line in lines]


def has_expectation(exchange: Mapping[str, Any]) -> bool:
    """Return whether the recording contains an undisputed expectation."""
    return bool(exchange["expect"]) and not exchange["expect"].get("disputed")


def decode_exchange(wire_format: WireFormat, exchange: Mapping[str, Any]) -> InferenceResponse | InferenceError:
    """Decode a complete response to a response or an error."""
    response = exchange["response"]
    headers = {name.lower(): value for name, value in response["headers"].items()}
    body = json.dumps(response["body"], ensure_ascii=False).encode()
    try:
        return wire_format.decode_response(response["status"], headers, body)
    except InferenceError as error:
        return error


def decode_stream(
    wire_format: WireFormat, body: bytes, size: int
) -> tuple[list[InferenceDelta], InferenceResponse | InferenceError]:
    """Decode a stream in chunks of this many bytes, to its deltas and a response or an error."""
    decoder = wire_format.stream_decoder()
    deltas: list[InferenceDelta] = []
    try:
        for start in range(0, len(body), size):
            deltas += decoder.feed(body[start : start + size])
        return deltas, decoder.close()
    except InferenceError as error:
        return deltas, error


def joined_deltas(deltas: list[InferenceDelta]) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Return the text, the reasoning, and id, name and arguments of each call that the deltas contain."""
    calls = [[delta.call_id, delta.name, ""] for delta in deltas if delta.kind == "tool_call"]
    for delta in deltas:
        if delta.kind == "arguments":
            calls[delta.index][2] += delta.arguments
    texts = ["".join(delta.text for delta in deltas if delta.kind == kind) for kind in ("text", "reasoning")]
    return texts[0], texts[1], [(call[0], call[1], call[2]) for call in calls]


def joined_parts(response: InferenceResponse) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Return the same parts of a response."""
    calls = [(call.id, call.name, call.arguments_json) for call in response.tool_calls]
    return response.text, response.reasoning, calls


def differences(
    decoded: InferenceResponse | InferenceError, expect: Mapping[str, Any], usage: tuple[int | None, int | None]
) -> Iterator[str]:
    """Yield the differences between a decoded response and the one that the provider's package decoded.

    Args:
        decoded: the decoded response or error.
        expect: the recorded expectation.
        usage: the tokens of the response, by the provider's way of counting.
    """
    if isinstance(decoded, InferenceError) or "raises" in expect:
        if not isinstance(decoded, InferenceError) or "raises" not in expect or decoded.status != expect["status"]:
            yield f"{decoded!r} instead of {expect}"
        return
    calls = [(call.id or None, call.name, thaw(call.arguments)) for call in decoded.tool_calls]
    expected_calls = expect["tool_calls"]
    expected_usage = expect["usage"]["input_tokens"], expect["usage"]["output_tokens"]
    compared = {
        "text": (decoded.text, expect["text"] or ""),
        "reasoning": (decoded.reasoning, expect["reasoning"] or ""),
        "calls": (calls, [(call["id"], call["name"], call["arguments"]) for call in expected_calls or []]),
        "tokens": (usage, expected_usage),
        "finish reason": (decoded.provider_finish_reason, expect["finish"] or decoded.provider_finish_reason),
    }
    if expected_calls is None:
        del compared["calls"]
    yield from (
        f"{name}: {actual!r} instead of {expected!r}"
        for name, (actual, expected) in compared.items()
        if actual != expected
    )
