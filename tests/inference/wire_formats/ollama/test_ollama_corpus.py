"""Recorded answers of Ollama, decoded and compared with what its own package read in them."""

from __future__ import annotations

from pathlib import Path

from agentloop.errors import InferenceError
from agentloop.inference.wire_formats.wire_format import wire_format
from agentloop.values import InferenceResponse
from tests.inference.wire_formats.recorded_answers import (
    PIECES,
    differences,
    is_judged,
    outcome,
    recorded,
    said,
    streamed,
    told,
)

FORMAT = wire_format("ollama")


def counted(found: InferenceResponse | InferenceError) -> tuple[int | None, int | None]:
    """Return the tokens of a response."""
    if isinstance(found, InferenceError):
        return None, None
    return found.usage.input_tokens, found.usage.output_tokens


def test_recorded_answers_are_read_as_the_sdk_reads_them(corpus: Path) -> None:
    """Text, thoughts, calls, tokens and errors of every recorded answer are what Ollama's own package found."""
    judged = [exchange for exchange in recorded(corpus, "ollama_chat.json.jsonl") if is_judged(exchange)]
    found: list[str] = []
    for exchange in judged:
        got = outcome(FORMAT, exchange)
        found += [f"{exchange['id']}: {what}" for what in differences(got, exchange["expect"], counted(got))]
    assert len(judged) > 5
    assert not found, "\n".join(found)


def test_recorded_streams_are_read_as_the_sdk_reads_them(corpus: Path) -> None:
    """So are those of every recorded stream, however its bytes are cut; the deltas tell what the response says."""
    judged = [exchange for exchange in recorded(corpus, "ollama_chat.stream.jsonl") if is_judged(exchange)]
    found: list[str] = []
    for exchange in judged:
        outcomes = [streamed(FORMAT, exchange["response"]["raw"].encode(), size) for size in PIECES]
        deltas, got = outcomes[0]
        assert all(other == outcomes[0] for other in outcomes), exchange["id"]
        assert isinstance(got, InferenceResponse), exchange["id"]
        assert told(deltas) == said(got), exchange["id"]
        found += [f"{exchange['id']}: {what}" for what in differences(got, exchange["expect"], counted(got))]
    assert len(judged) > 5
    assert not found, "\n".join(found)
