"""Recorded exchanges of Anthropic: responses compared with those of its package, and conversations imported and exported."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from agentloop.errors import InferenceError
from agentloop.models.wire_formats.anthropic_messages.history import export_messages, import_messages
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

FORMAT = wire_format("anthropic-messages")
COMPLETE, STREAMED = "anthropic_messages.json.jsonl", "anthropic_messages.stream.jsonl"


def tokens_of(result: InferenceResponse | InferenceError) -> tuple[int | None, int | None]:
    """Return the token counts as Anthropic reports them, without those of the cache."""
    if isinstance(result, InferenceError):
        return None, None
    usage = result.usage
    cached = (usage.cached_input_tokens or 0) + (usage.cache_write_tokens or 0)
    return None if usage.input_tokens is None else usage.input_tokens - cached, usage.output_tokens


def test_recorded_responses_are_decoded_like_the_sdk_does(corpus: Path) -> None:
    """Text, thinking, calls, tokens and errors of every recorded response are those of the Anthropic package."""
    judged = [exchange for exchange in load_exchanges(corpus, COMPLETE) if has_expectation(exchange)]
    found: list[str] = []
    for exchange in judged:
        decoded = decode_exchange(FORMAT, exchange)
        found += [
            f"{exchange['id']}: {difference}"
            for difference in differences(decoded, exchange["expect"], tokens_of(decoded))
        ]
    assert len(judged) > 100
    assert not found, "\n".join(found)


def test_recorded_streams_are_decoded_like_the_sdk_does(corpus: Path) -> None:
    """Streams are decoded like the Anthropic package does for all chunk sizes, and the deltas add up to the response."""
    judged = [exchange for exchange in load_exchanges(corpus, STREAMED) if has_expectation(exchange)]
    found: list[str] = []
    for exchange in judged:
        outcomes = [decode_stream(FORMAT, exchange["response"]["raw"].encode(), size) for size in CHUNK_SIZES]
        deltas, decoded = outcomes[-1]
        assert all(other == outcomes[0] for other in outcomes), exchange["id"]
        assert isinstance(decoded, InferenceResponse), exchange["id"]
        text, reasoning, calls = joined_deltas(deltas)
        assert (text, reasoning, [(*call[:2], call[2] or "{}") for call in calls]) == joined_parts(decoded), exchange[
            "id"
        ]
        found += [
            f"{exchange['id']}: {difference}"
            for difference in differences(decoded, exchange["expect"], tokens_of(decoded))
        ]
    assert len(judged) > 20
    assert not found, "\n".join(found)


def test_disputed_streams_are_a_response_or_an_inference_error(corpus: Path) -> None:
    """Streams that decoders disagree about raise no other error."""
    for exchange in load_exchanges(corpus, STREAMED):
        if not has_expectation(exchange):
            _, decoded = decode_stream(FORMAT, exchange["response"]["raw"].encode(), 5)
            assert isinstance(decoded, InferenceResponse | InferenceError), exchange["id"]


def test_recorded_conversations_survive_import_and_export(corpus: Path) -> None:
    """The export of an imported conversation is equivalent to the original."""
    bodies = [
        exchange["request"]["body"]
        for name in (COMPLETE, STREAMED)
        for exchange in load_exchanges(corpus, name)
        if exchange["request"]
    ]
    for body in bodies:
        _, imported = import_messages(body["messages"], system=body.get("system"))
        assert normalized(export_messages(imported)) == normalized(body["messages"])
    assert len(bodies) > 100


def normalized(messages: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return messages as turns of blocks, results first, without blank texts."""
    turns = []
    for role, group in groupby(messages, lambda message: str(message["role"])):
        blocks = [without_empty_entries(block) for message in group for block in as_blocks(message["content"])]
        remaining = [block for block in blocks if block["type"] != "text" or block.get("text", "").strip()]
        if remaining:
            turns.append((role, sorted(remaining, key=lambda block: block["type"] != "tool_result")))
    return turns


def without_empty_entries(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block without entries that are empty."""
    entries = {
        name: value for name, value in block.items() if name != "cache_control" and value not in (None, "", [], False)
    }
    if entries["type"] == "tool_result":
        entries["content"] = [without_empty_entries(item) for item in as_blocks(entries.get("content") or [])]
    return entries


def as_blocks(content: Any) -> list[dict[str, Any]]:
    """Return content as blocks."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
