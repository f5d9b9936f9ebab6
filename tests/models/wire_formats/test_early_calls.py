"""Calls that are read from the deltas of real streams before their answer is complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentloop.drivers.eager_start import CallReader
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import InferenceResponse, ToolCall
from tests.models.wire_formats.recorded_streams import decode_stream, load_exchanges

FORMATS = {
    "anthropic_messages": "anthropic-messages",
    "gemini": "gemini",
    "ollama_chat": "ollama",
    "openai_chat": "openai-chat",
    "openai_responses": "openai-responses",
}


def read_early(raw: bytes, format_name: str, headers: dict[str, str]) -> tuple[list[ToolCall], tuple[ToolCall, ...]]:
    """Return the calls that the deltas of a stream complete, and those of its final answer."""
    deltas, response = decode_stream(wire_format(format_name), raw, 0, headers)
    if not isinstance(response, InferenceResponse):
        return [], ()
    reader = CallReader()
    found = [call for delta in deltas if delta.kind in {"tool_call", "arguments"} for call in reader.feed(delta)]
    return found, response.tool_calls


@pytest.mark.parametrize(("recorded", "format_name"), FORMATS.items())
def test_calls_of_real_streams_are_read_early(corpus: Path, recorded: str, format_name: str) -> None:
    """Most calls are complete in the deltas, and those are the calls of the final answer, each in its place."""
    total = known = 0
    for exchange in load_exchanges(corpus, f"{recorded}.stream.jsonl"):
        response = exchange["response"]
        if response["status"] != 200 or "raw" not in response:
            continue
        headers = {key.lower(): value for key, value in response["headers"].items()}
        found, calls = read_early(response["raw"].encode(), format_name, headers)
        pairs = list(zip(found, calls, strict=False))
        assert all(one.name == other.name for one, other in pairs), exchange["id"]
        assert all(one.arguments_json.strip() == other.arguments_json.strip() for one, other in pairs), exchange["id"]
        total, known = total + len(calls), known + len(pairs)
    # The last call of an answer is not found if it has no arguments: nothing shows that none will come.
    assert known >= 0.7 * total
