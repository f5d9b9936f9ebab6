"""Recorded responses of Ollama, compared with what its package decoded."""

from __future__ import annotations

from pathlib import Path

from agentloop.errors import InferenceError
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import InferenceResponse
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

FORMAT = wire_format("ollama")


def tokens_of(result: InferenceResponse | InferenceError) -> tuple[int | None, int | None]:
    """Return the token counts of a response."""
    if isinstance(result, InferenceError):
        return None, None
    return result.usage.input_tokens, result.usage.output_tokens


def test_recorded_responses_are_decoded_like_the_sdk_does(corpus: Path) -> None:
    """Text, reasoning, calls, tokens and errors of every recorded response are those of Ollama's package."""
    judged = [exchange for exchange in load_exchanges(corpus, "ollama_chat.json.jsonl") if has_expectation(exchange)]
    found: list[str] = []
    for exchange in judged:
        decoded = decode_exchange(FORMAT, exchange)
        found += [
            f"{exchange['id']}: {difference}"
            for difference in differences(decoded, exchange["expect"], tokens_of(decoded))
        ]
    assert len(judged) > 5
    assert not found, "\n".join(found)


def test_recorded_streams_are_decoded_like_the_sdk_does(corpus: Path) -> None:
    """Streams are decoded like Ollama's package does for all chunk sizes, and the deltas add up to the response."""
    judged = [exchange for exchange in load_exchanges(corpus, "ollama_chat.stream.jsonl") if has_expectation(exchange)]
    found: list[str] = []
    for exchange in judged:
        outcomes = [decode_stream(FORMAT, exchange["response"]["raw"].encode(), size) for size in CHUNK_SIZES]
        deltas, decoded = outcomes[0]
        assert all(other == outcomes[0] for other in outcomes), exchange["id"]
        assert isinstance(decoded, InferenceResponse), exchange["id"]
        assert joined_deltas(deltas) == joined_parts(decoded), exchange["id"]
        found += [
            f"{exchange['id']}: {difference}"
            for difference in differences(decoded, exchange["expect"], tokens_of(decoded))
        ]
    assert len(judged) > 5
    assert not found, "\n".join(found)
