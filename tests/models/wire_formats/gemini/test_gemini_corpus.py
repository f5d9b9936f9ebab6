"""Recorded responses of Gemini, compared with what Google's package decoded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentloop.errors import InferenceError
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import InferenceResponse, ProviderPart, thaw
from tests.models.wire_formats.recorded_responses import (
    CHUNK_SIZES,
    decode_exchange,
    decode_stream,
    differences,
    has_expectation,
    joined_deltas,
    joined_parts,
    load_exchanges,
)

FORMAT = wire_format("gemini")


def chunks_of(exchange: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the chunks of a response."""
    if "body" in exchange["response"]:
        return [exchange["response"]["body"]]
    lines = exchange["response"]["raw"].splitlines()
    return [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]


def tokens_of(
    result: InferenceResponse | InferenceError, chunks: list[Mapping[str, Any]]
) -> tuple[int | None, int | None]:
    """Return the token counts as Google's package reports them: without thoughts and the prompts of its own tools."""
    if isinstance(result, InferenceError):
        return None, None
    usage = [chunk["usageMetadata"] for chunk in chunks if "usageMetadata" in chunk][-1]
    inputs, outputs = result.usage.input_tokens, result.usage.output_tokens
    if inputs is not None:
        inputs -= usage.get("toolUsePromptTokenCount", 0)
    if outputs is not None:
        outputs -= result.usage.reasoning_tokens or 0
    return inputs, None if "candidatesTokenCount" not in usage and not outputs else outputs


def test_recorded_responses_are_decoded_like_the_sdk_does(corpus: Path) -> None:
    """Text, thoughts, calls, tokens and errors of every recorded response are those of Google's package."""
    judged = [exchange for exchange in load_exchanges(corpus, "gemini.json.jsonl") if has_expectation(exchange)]
    found: list[str] = []
    for exchange in judged:
        decoded = decode_exchange(FORMAT, exchange)
        found += [
            f"{exchange['id']}: {difference}"
            for difference in differences(decoded, exchange["expect"], tokens_of(decoded, chunks_of(exchange)))
        ]
    assert len(judged) > 100
    assert not found, "\n".join(found)


def test_recorded_streams_are_decoded_like_the_sdk_does(corpus: Path) -> None:
    """Streams are decoded like Google's package does for all chunk sizes, and the deltas add up to the response."""
    judged = [exchange for exchange in load_exchanges(corpus, "gemini.stream.jsonl") if has_expectation(exchange)]
    found: list[str] = []
    for exchange in judged:
        body = exchange["response"]["raw"].encode()
        outcomes = [decode_stream(FORMAT, body, size) for size in CHUNK_SIZES]
        deltas, decoded = outcomes[0]
        assert all(other == outcomes[0] for other in outcomes), exchange["id"]
        assert isinstance(decoded, InferenceResponse), exchange["id"]
        assert joined_deltas(deltas) == joined_parts(decoded), exchange["id"]
        all_differences = differences(decoded, exchange["expect"], tokens_of(decoded, chunks_of(exchange)))
        found += [f"{exchange['id']}: {difference}" for difference in all_differences]
    assert len(judged) > 10
    assert not found, "\n".join(found)


def test_a_recorded_stream_is_decoded_like_an_array_of_its_chunks(corpus: Path) -> None:
    """A response that is an array instead of a stream is decoded to the same response."""
    for exchange in load_exchanges(corpus, "gemini.stream.jsonl"):
        _, decoded = decode_stream(FORMAT, exchange["response"]["raw"].encode(), 1 << 30)
        body = json.dumps(chunks_of(exchange)).encode()
        assert decode_stream(FORMAT, body, 100)[1] == FORMAT.decode_response(200, {}, body) == decoded


def test_opaque_parts_and_signatures_are_kept(corpus: Path) -> None:
    """Every part that is not a text or a call is kept unchanged, and every signature stays with its part."""
    for exchange in load_exchanges(corpus, "gemini.json.jsonl"):
        decoded = decode_exchange(FORMAT, exchange)
        if isinstance(decoded, InferenceResponse):
            candidates = exchange["response"]["body"].get("candidates") or [{}]
            parts = candidates[0].get("content", {}).get("parts", [])
            opaque = [part for part in parts if part and "text" not in part and "functionCall" not in part]
            assert [thaw(part.payload) for part in decoded.parts if isinstance(part, ProviderPart)] == opaque
            signed = [part["thoughtSignature"] for part in parts if "thoughtSignature" in part and part not in opaque]
            provider_data = [part.provider_data for part in decoded.parts if not isinstance(part, ProviderPart)]
            assert [
                data["gemini"]["thoughtSignature"]
                for data in provider_data
                if "thoughtSignature" in data.get("gemini", {})
            ] == signed
