"""Recorded answers of real services, for the tests of several wire formats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentloop.errors import InferenceError
from agentloop.inference.wire_formats.wire_format import WireFormat
from agentloop.values import InferenceDelta, InferenceResponse, thaw

PIECES = (1, 5, 1 << 30)
"""Into how many bytes streams are cut."""


def recorded(corpus: Path, name: str) -> list[Mapping[str, Any]]:
    """Return the recorded exchanges of a file."""
    with (corpus / "exchanges" / name).open() as lines:
        return [json.loads(line) for line in lines]


def is_judged(exchange: Mapping[str, Any]) -> bool:
    """Say whether it is known what the provider's own package reads in an answer."""
    return bool(exchange["expect"]) and not exchange["expect"].get("disputed")


def outcome(spelling: WireFormat, exchange: Mapping[str, Any]) -> InferenceResponse | InferenceError:
    """Decode an answer that came whole to a response or an error."""
    response = exchange["response"]
    headers = {name.lower(): value for name, value in response["headers"].items()}
    body = json.dumps(response["body"], ensure_ascii=False).encode()
    try:
        return spelling.decode_response(response["status"], headers, body)
    except InferenceError as error:
        return error


def streamed(
    spelling: WireFormat, body: bytes, size: int
) -> tuple[list[InferenceDelta], InferenceResponse | InferenceError]:
    """Decode a stream that comes in pieces of this many bytes; adjacent deltas of one thing are joined."""
    decoder = spelling.stream_decoder()
    deltas: list[InferenceDelta] = []
    try:
        for start in range(0, len(body), size):
            deltas += decoder.feed(body[start : start + size])
        return deltas, decoder.close()
    except InferenceError as error:
        return deltas, error


def told(deltas: list[InferenceDelta]) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Put deltas together: text, reasoning, and id, name and arguments of each call."""
    calls = [[delta.call_id, delta.name, ""] for delta in deltas if delta.kind == "tool_call"]
    for delta in deltas:
        if delta.kind == "arguments":
            calls[delta.index][2] += delta.text
    texts = ["".join(delta.text for delta in deltas if delta.kind == kind) for kind in ("text", "reasoning")]
    return texts[0], texts[1], [(call[0], call[1], call[2]) for call in calls]


def said(response: InferenceResponse) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Return the same of a response."""
    calls = [(call.id, call.name, call.arguments_json) for call in response.tool_calls]
    return response.text, response.reasoning, calls


def differences(
    found: InferenceResponse | InferenceError, expect: Mapping[str, Any], usage: tuple[int | None, int | None]
) -> Iterator[str]:
    """Compare what was decoded with what the provider's own package read.

    Args:
        found: what was decoded.
        expect: what was expected.
        usage: the tokens that the response counts, in the provider's own way of counting.
    """
    if isinstance(found, InferenceError) or "raises" in expect:
        if not isinstance(found, InferenceError) or "raises" not in expect or found.status != expect["status"]:
            yield f"{found!r} instead of {expect}"
        return
    calls = [(call.id or None, call.name, thaw(call.arguments)) for call in found.tool_calls]
    wanted_calls = expect["tool_calls"]
    counted = expect["usage"]["input_tokens"], expect["usage"]["output_tokens"]
    compared = {
        "text": (found.text, expect["text"] or ""),
        "reasoning": (found.reasoning, expect["reasoning"] or ""),
        "calls": (calls, [(call["id"], call["name"], call["arguments"]) for call in wanted_calls or []]),
        "tokens": (usage, counted),
        "finish reason": (found.provider_finish_reason, expect["finish"] or found.provider_finish_reason),
    }
    if wanted_calls is None:
        del compared["calls"]
    yield from (f"{name}: {got!r} instead of {wanted!r}" for name, (got, wanted) in compared.items() if got != wanted)
