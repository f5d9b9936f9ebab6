"""Recorded exchanges of Anthropic, decoded and compared with what its own package read in them, and their histories."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from agentloop.errors import InferenceError
from agentloop.inference.wire_formats.anthropic_messages.history import export_messages, import_messages
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

FORMAT = wire_format("anthropic-messages")
PLAIN, STREAMED = "anthropic_messages.json.jsonl", "anthropic_messages.stream.jsonl"


def counted(found: InferenceResponse | InferenceError) -> tuple[int | None, int | None]:
    """Return the tokens of a response as Anthropic counts them, without those of its cache."""
    if isinstance(found, InferenceError):
        return None, None
    usage = found.usage
    cached = (usage.cached_input_tokens or 0) + (usage.cache_write_tokens or 0)
    return None if usage.input_tokens is None else usage.input_tokens - cached, usage.output_tokens


def test_recorded_answers_are_read_as_the_sdk_reads_them(corpus: Path) -> None:
    """Text, thoughts, calls, tokens and errors of every recorded answer are what Anthropic's own package found."""
    judged = [exchange for exchange in load_exchanges(corpus, PLAIN) if has_expectation(exchange)]
    found: list[str] = []
    for exchange in judged:
        got = decode_exchange(FORMAT, exchange)
        found += [f"{exchange['id']}: {what}" for what in differences(got, exchange["expect"], counted(got))]
    assert len(judged) > 100
    assert not found, "\n".join(found)


def test_recorded_streams_are_read_as_the_sdk_reads_them(corpus: Path) -> None:
    """So are those of every recorded stream, however its bytes are cut; the deltas tell what the response says."""
    judged = [exchange for exchange in load_exchanges(corpus, STREAMED) if has_expectation(exchange)]
    found: list[str] = []
    for exchange in judged:
        outcomes = [decode_stream(FORMAT, exchange["response"]["raw"].encode(), size) for size in CHUNK_SIZES]
        deltas, got = outcomes[-1]
        assert all(other == outcomes[0] for other in outcomes), exchange["id"]
        assert isinstance(got, InferenceResponse), exchange["id"]
        text, reasoning, calls = joined_deltas(deltas)
        assert (text, reasoning, [(*call[:2], call[2] or "{}") for call in calls]) == joined_parts(got), exchange["id"]
        found += [f"{exchange['id']}: {what}" for what in differences(got, exchange["expect"], counted(got))]
    assert len(judged) > 20
    assert not found, "\n".join(found)


def test_disputed_streams_are_a_response_or_an_inference_error(corpus: Path) -> None:
    """What two decoders read differently raises nothing else."""
    for exchange in load_exchanges(corpus, STREAMED):
        if not has_expectation(exchange):
            _, got = decode_stream(FORMAT, exchange["response"]["raw"].encode(), 5)
            assert isinstance(got, InferenceResponse | InferenceError), exchange["id"]


def test_recorded_conversations_survive_import_and_export(corpus: Path) -> None:
    """What is exported of an imported history says the same as the history did."""
    bodies = [
        exchange["request"]["body"]
        for name in (PLAIN, STREAMED)
        for exchange in load_exchanges(corpus, name)
        if exchange["request"]
    ]
    for body in bodies:
        _, imported = import_messages(body["messages"], system=body.get("system"))
        assert meaning(export_messages(imported)) == meaning(body["messages"])
    assert len(bodies) > 100


def meaning(messages: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Reduce messages to what they mean to the provider: turns of blocks, results first, without what is blank."""
    found = []
    for role, held in groupby(messages, lambda message: str(message["role"])):
        blocks = [reduced(block) for message in held for block in listed(message["content"])]
        kept = [block for block in blocks if block["type"] != "text" or block.get("text", "").strip()]
        if kept:
            found.append((role, sorted(kept, key=lambda block: block["type"] != "tool_result")))
    return found


def reduced(block: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a block what says nothing."""
    made = {
        name: value for name, value in block.items() if name != "cache_control" and value not in (None, "", [], False)
    }
    if made["type"] == "tool_result":
        made["content"] = [reduced(held) for held in listed(made.get("content") or [])]
    return made


def listed(content: Any) -> list[dict[str, Any]]:
    """Spell content as blocks."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
