"""Recorded answers of Ollama, decoded and compared with what its own package read in them."""

from __future__ import annotations

from pathlib import Path

from agentloop.errors import InferenceError
from agentloop.inference.wire_formats.wire_format import wire_format
from agentloop.values import InferenceResponse
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

FORMAT = wire_format("ollama")


def counted(found: InferenceResponse | InferenceError) -> tuple[int | None, int | None]:
    """Return the tokens of a response."""
    if isinstance(found, InferenceError):
        return None, None
    return found.usage.input_tokens, found.usage.output_tokens


def test_recorded_answers_are_read_as_the_sdk_reads_them(corpus: Path) -> None:
    """Text, thoughts, calls, tokens and errors of every recorded answer are what Ollama's own package found."""
    judged = [exchange for exchange in load_exchanges(corpus, "ollama_chat.json.jsonl") if has_expectation(exchange)]
    found: list[str] = []
    for exchange in judged:
        got = decode_exchange(FORMAT, exchange)
        found += [f"{exchange['id']}: {what}" for what in differences(got, exchange["expect"], counted(got))]
    assert len(judged) > 5
    assert not found, "\n".join(found)


def test_recorded_streams_are_read_as_the_sdk_reads_them(corpus: Path) -> None:
    """So are those of every recorded stream, however its bytes are cut; the deltas tell what the response says."""
    judged = [exchange for exchange in load_exchanges(corpus, "ollama_chat.stream.jsonl") if has_expectation(exchange)]
    found: list[str] = []
    for exchange in judged:
        outcomes = [decode_stream(FORMAT, exchange["response"]["raw"].encode(), size) for size in CHUNK_SIZES]
        deltas, got = outcomes[0]
        assert all(other == outcomes[0] for other in outcomes), exchange["id"]
        assert isinstance(got, InferenceResponse), exchange["id"]
        assert joined_deltas(deltas) == joined_parts(got), exchange["id"]
        found += [f"{exchange['id']}: {what}" for what in differences(got, exchange["expect"], counted(got))]
    assert len(judged) > 5
    assert not found, "\n".join(found)
