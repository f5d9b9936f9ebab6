"""Recorded exchanges of services with the formats of OpenAI, and helpers to decode and compare them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentloop.errors import InferenceError
from agentloop.models.wire_formats.wire_format import WireFormat, wire_format
from agentloop.values import InferenceDelta, InferenceResponse
from tests.corpus.adapter import output_tokens

Exchange = Mapping[str, Any]
Decoded = tuple[list[InferenceDelta], InferenceResponse | InferenceError]


def load_exchanges(corpus: Path, *names: str) -> Iterator[Exchange]:
    """Yield the recorded exchanges of these files."""
    for name in names:
        with (corpus / "exchanges" / name).open() as lines:
            yield from map(json.loads, lines)


def has_expectation(exchange: Exchange) -> bool:
    """Return whether the recording contains an undisputed expectation."""
    expect = exchange["expect"]
    return bool(expect) and not expect.get("disputed") and "unusual" not in expect


def decode_stream(
    wire_format: WireFormat, raw: bytes, step: int = 0, headers: Mapping[str, str] | None = None
) -> Decoded:
    """Decode a stream in chunks of this many bytes, or in one chunk for 0."""
    decoder, deltas = wire_format.stream_decoder(headers or {}), []
    try:
        for start in range(0, len(raw), step or max(1, len(raw))):
            deltas += decoder.feed(raw[start : start + (step or len(raw))])
        return deltas, decoder.close()
    except InferenceError as error:
        return deltas, error


def decode_exchange(name: str, exchange: Exchange) -> InferenceResponse | InferenceError:
    """Decode the response of an exchange, which is complete or a stream."""
    response = exchange["response"]
    headers = {key.lower(): value for key, value in response["headers"].items()}
    if "raw" in response and response["status"] == 200:
        return decode_stream(wire_format(name), response["raw"].encode(), 0, headers)[1]
    body = response["raw"] if "raw" in response else json.dumps(response["body"], ensure_ascii=False)
    try:
        return wire_format(name).decode_response(response["status"], headers, body.encode())
    except InferenceError as error:
        return error


def differences(format_name: str, exchange: Exchange) -> Iterator[str]:
    """Yield the differences between the decoded response and the one that the provider's package decoded."""
    expect, decoded = exchange["expect"], decode_exchange(format_name, exchange)
    if isinstance(decoded, InferenceError) or "raises" in expect:
        status = expect.get("status")
        if not isinstance(decoded, InferenceError) or "raises" not in expect or status not in {None, decoded.status}:
            yield f"{decoded!r} instead of {expect}"
        return
    usage, outputs = expect.get("usage") or {}, output_tokens(exchange["wire_format"], decoded)
    compared = {
        "text": (decoded.text, expect["text"] or expect["refusal"] or ""),
        "reasoning": (decoded.reasoning, expect["reasoning"] or ""),
        "calls": ([*map(_call, decoded.tool_calls)], [*map(_expected_call, expect["tool_calls"] or ())]),
        "input tokens": (decoded.usage.input_tokens, usage.get("input_tokens", decoded.usage.input_tokens)),
        "output tokens": (outputs, usage.get("output_tokens", outputs)),
        "finish reason": (decoded.provider_finish_reason or "", expect["finish"] or ""),
    }
    yield from (
        f"{name}: {actual!r} instead of {expected!r}"
        for name, (actual, expected) in compared.items()
        if actual != expected
    )


def _call(call: Any) -> tuple[str, str, Any]:
    return call.id, call.name, _parsed(call.arguments_json)


def _expected_call(call: Mapping[str, Any]) -> tuple[str, str, Any]:
    return call["id"] or "", call["name"], _parsed(call["arguments_raw"])


def _parsed(arguments: str | None) -> Any:
    """Return the arguments parsed if they are JSON; an empty object if there are none."""
    try:
        return json.loads(arguments or "{}") or {}
    except ValueError:
        return arguments


def joined_text(deltas: list[InferenceDelta], kind: str) -> str:
    """Return the joined texts, or arguments, of the deltas of this kind."""
    return "".join(delta.text or delta.arguments for delta in deltas if delta.kind == kind)


def comparable(decoded: Decoded) -> object:
    """Return what is equal for all chunkings of a stream: deltas and response, or the type and message of the error."""
    deltas, result = decoded
    return (type(result), str(result)) if isinstance(result, InferenceError) else (deltas, result)
