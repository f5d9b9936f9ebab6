"""Recorded answers of Gemini, decoded and compared with what Google's own package read in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentloop.errors import InferenceError
from agentloop.inference.wire_formats.wire_format import wire_format
from agentloop.values import InferenceResponse, ProviderPart, thaw
from tests.inference.wire_formats.recorded_responses import (
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
    """Return the chunks of an answer."""
    if "body" in exchange["response"]:
        return [exchange["response"]["body"]]
    lines = exchange["response"]["raw"].splitlines()
    return [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]


def counted(
    found: InferenceResponse | InferenceError, chunks: list[Mapping[str, Any]]
) -> tuple[int | None, int | None]:
    """Return tokens as Google's package shows them: without thoughts and the prompts of its own tools."""
    if isinstance(found, InferenceError):
        return None, None
    usage = [chunk["usageMetadata"] for chunk in chunks if "usageMetadata" in chunk][-1]
    read, written = found.usage.input_tokens, found.usage.output_tokens
    if read is not None:
        read -= usage.get("toolUsePromptTokenCount", 0)
    if written is not None:
        written -= found.usage.reasoning_tokens or 0
    return read, None if "candidatesTokenCount" not in usage and not written else written


def test_recorded_answers_are_read_as_the_sdk_reads_them(corpus: Path) -> None:
    """Text, thoughts, calls, tokens and errors of every recorded answer are what Google's own package found."""
    judged = [exchange for exchange in load_exchanges(corpus, "gemini.json.jsonl") if has_expectation(exchange)]
    found: list[str] = []
    for exchange in judged:
        got = decode_exchange(FORMAT, exchange)
        found += [
            f"{exchange['id']}: {what}"
            for what in differences(got, exchange["expect"], counted(got, chunks_of(exchange)))
        ]
    assert len(judged) > 100
    assert not found, "\n".join(found)


def test_recorded_streams_are_read_as_the_sdk_reads_them(corpus: Path) -> None:
    """So are those of every recorded stream, however its bytes are cut; the deltas tell what the response says."""
    judged = [exchange for exchange in load_exchanges(corpus, "gemini.stream.jsonl") if has_expectation(exchange)]
    found: list[str] = []
    for exchange in judged:
        body = exchange["response"]["raw"].encode()
        outcomes = [decode_stream(FORMAT, body, size) for size in CHUNK_SIZES]
        deltas, got = outcomes[0]
        assert all(other == outcomes[0] for other in outcomes), exchange["id"]
        assert isinstance(got, InferenceResponse), exchange["id"]
        assert joined_deltas(deltas) == joined_parts(got), exchange["id"]
        wrong = differences(got, exchange["expect"], counted(got, chunks_of(exchange)))
        found += [f"{exchange['id']}: {what}" for what in wrong]
    assert len(judged) > 10
    assert not found, "\n".join(found)


def test_a_recorded_stream_says_what_its_chunks_say_as_one_array(corpus: Path) -> None:
    """A service that answers with an array instead of events is read to the same response."""
    for exchange in load_exchanges(corpus, "gemini.stream.jsonl"):
        _, got = decode_stream(FORMAT, exchange["response"]["raw"].encode(), 1 << 30)
        body = json.dumps(chunks_of(exchange)).encode()
        assert decode_stream(FORMAT, body, 100)[1] == FORMAT.decode_response(200, {}, body) == got


def test_what_only_gemini_understands_is_kept(corpus: Path) -> None:
    """Every part of a recorded answer that is no text and no call is kept as it came, and every signature with its part."""
    for exchange in load_exchanges(corpus, "gemini.json.jsonl"):
        got = decode_exchange(FORMAT, exchange)
        if isinstance(got, InferenceResponse):
            candidates = exchange["response"]["body"].get("candidates") or [{}]
            parts = candidates[0].get("content", {}).get("parts", [])
            opaque = [part for part in parts if part and "text" not in part and "functionCall" not in part]
            assert [thaw(part.payload) for part in got.parts if isinstance(part, ProviderPart)] == opaque
            signed = [part["thoughtSignature"] for part in parts if "thoughtSignature" in part and part not in opaque]
            kept = [part.provider_data for part in got.parts if not isinstance(part, ProviderPart)]
            assert [data["gemini"]["thoughtSignature"] for data in kept if data] == signed
