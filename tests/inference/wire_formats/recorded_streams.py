"""Recorded exchanges, and ways to read their streams."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentloop.errors import InferenceError
from agentloop.inference.wire_formats.wire_format import WireFormat, wire_format
from agentloop.values import InferenceDelta, InferenceResponse

Exchange = Mapping[str, Any]
Told = tuple[list[InferenceDelta], InferenceResponse | InferenceError]


def rows(corpus: Path, *names: str) -> Iterator[Exchange]:
    """Go through the recorded exchanges of these files."""
    for name in names:
        with (corpus / "exchanges" / name).open() as lines:
            yield from map(json.loads, lines)


def is_judged(exchange: Exchange) -> bool:
    """Say whether it is known what an exchange means."""
    expect = exchange["expect"]
    return bool(expect) and not expect.get("disputed") and "unusual" not in expect


def read(form: WireFormat, raw: bytes, step: int = 0, headers: Mapping[str, str] | None = None) -> Told:
    """Read a stream in pieces of this many bytes; whole for 0."""
    decoder, found = form.stream_decoder(headers or {}), []
    try:
        for place in range(0, len(raw), step or max(1, len(raw))):
            found += decoder.feed(raw[place : place + (step or len(raw))])
        return found, decoder.close()
    except InferenceError as error:
        return found, error


def outcome(name: str, exchange: Exchange) -> InferenceResponse | InferenceError:
    """Read the answer of an exchange, whether it came whole or as a stream."""
    response = exchange["response"]
    headers = {key.lower(): value for key, value in response["headers"].items()}
    if "raw" in response and response["status"] == 200:
        return read(wire_format(name), response["raw"].encode(), 0, headers)[1]
    body = response["raw"] if "raw" in response else json.dumps(response["body"], ensure_ascii=False)
    try:
        return wire_format(name).decode_response(response["status"], headers, body.encode())
    except InferenceError as error:
        return error


def differences(name: str, exchange: Exchange) -> Iterator[str]:
    """Compare what was read with what the provider's own package read."""
    expect, found = exchange["expect"], outcome(name, exchange)
    if isinstance(found, InferenceError) or "raises" in expect:
        status = expect.get("status")
        if not isinstance(found, InferenceError) or "raises" not in expect or status not in {None, found.status}:
            yield f"{found!r} instead of {expect}"
        return
    usage = expect.get("usage") or {}
    compared = {
        "text": (found.text, expect["text"] or expect["refusal"] or ""),
        "reasoning": (found.reasoning, expect["reasoning"] or ""),
        "calls": ([*map(_call, found.tool_calls)], [*map(_expected_call, expect["tool_calls"] or ())]),
        "input tokens": (found.usage.input_tokens, usage.get("input_tokens", found.usage.input_tokens)),
        "output tokens": (found.usage.output_tokens, usage.get("output_tokens", found.usage.output_tokens)),
        "finish reason": (found.provider_finish_reason or "", expect["finish"] or ""),
    }
    yield from (f"{what}: {got!r} instead of {wanted!r}" for what, (got, wanted) in compared.items() if got != wanted)


def _call(call: Any) -> tuple[str, str, Any]:
    return call.id, call.name, _parsed(call.arguments_json)


def _expected_call(call: Mapping[str, Any]) -> tuple[str, str, Any]:
    return call["id"] or "", call["name"], _parsed(call["arguments_raw"])


def _parsed(arguments: str | None) -> Any:
    """Parse arguments as far as they are JSON; none are an empty object."""
    try:
        return json.loads(arguments or "{}") or {}
    except ValueError:
        return arguments


def spoken(deltas: list[InferenceDelta], kind: str) -> str:
    """Join the deltas of a kind."""
    return "".join(delta.text for delta in deltas if delta.kind == kind)


def meaning(told: Told) -> object:
    """Return what two readings of one stream have in common, however it was cut: of an error, what it says."""
    deltas, found = told
    return (type(found), str(found)) if isinstance(found, InferenceError) else (deltas, found)
