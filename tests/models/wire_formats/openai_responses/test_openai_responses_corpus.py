"""Recorded responses of the Responses API, compared with what OpenAI's package decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentloop.errors import InferenceError
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import InferenceResponse, Message, ProviderPart
from tests.models.generated_requests import execution_of
from tests.models.wire_formats.openai_responses.test_openai_responses_requests import encode_items
from tests.models.wire_formats.recorded_streams import (
    comparable,
    decode_exchange,
    decode_stream,
    differences,
    has_expectation,
    load_exchanges,
)

NAME = "openai-responses"
COMPLETE, STREAMED = "openai_responses.json.jsonl", "openai_responses.stream.jsonl"


def test_recorded_responses_are_decoded_like_the_sdk_does(corpus: Path) -> None:
    """Text, reasoning, calls, tokens, status and errors of every recorded response are those of the OpenAI package."""
    judged = [exchange for exchange in load_exchanges(corpus, COMPLETE, STREAMED) if has_expectation(exchange)]
    found = [f"{exchange['id']}: {difference}" for exchange in judged for difference in differences(NAME, exchange)]
    assert len(judged) > 200
    assert not found, "\n".join(found)


def test_items_of_other_types_are_kept_unchanged(corpus: Path) -> None:
    """The items of the provider's own tools become provider parts."""
    for exchange in load_exchanges(corpus, COMPLETE, STREAMED):
        response = decode_exchange(NAME, exchange)
        if isinstance(response, InferenceResponse) and has_expectation(exchange):
            kinds = [part.payload["type"] for part in response.parts if isinstance(part, ProviderPart)]  # type: ignore[index,call-overload]
            assert sorted(kinds) == sorted(exchange["expect"]["other_items"]), exchange["id"]


def test_every_recorded_response_is_decoded_or_an_inference_error(corpus: Path) -> None:
    """Disputed responses raise no other error."""
    for exchange in load_exchanges(corpus, COMPLETE, STREAMED):
        assert isinstance(decode_exchange(NAME, exchange), InferenceResponse | InferenceError)


@pytest.mark.parametrize("step", [1, 5])
def test_chunk_boundaries_of_recorded_streams_do_not_matter(corpus: Path, step: int) -> None:
    """Deltas and response of every recorded stream are the same for all chunk sizes."""
    for exchange in load_exchanges(corpus, STREAMED):
        raw = exchange["response"]["raw"].encode()
        assert comparable(decode_stream(wire_format(NAME), raw, step)) == comparable(
            decode_stream(wire_format(NAME), raw)
        ), exchange["id"]


def test_a_truncated_recorded_stream_raises_no_other_error(corpus: Path) -> None:
    """A connection may break anywhere."""
    for exchange in load_exchanges(corpus, STREAMED):
        raw = exchange["response"]["raw"].encode()
        for share in range(1, 10):
            decode_stream(wire_format(NAME), raw[: len(raw) * share // 10])


def test_recorded_responses_are_sent_back_unchanged(corpus: Path) -> None:
    """Every item is encoded unchanged, except those that the provider refuses: unanswered calls and trailing reasoning."""
    sent_back = 0
    for exchange in load_exchanges(corpus, COMPLETE):
        response = decode_exchange(NAME, exchange)
        if not isinstance(response, InferenceResponse):
            continue
        received = [normalized(item) for item in exchange["response"]["body"]["output"]]
        sent = encode_items(
            Message.of_response(response.parts, [execution_of(call, value="done") for call in response.tool_calls])
        )
        echoed = [normalized(item) for item in sent if item["type"] not in OUTPUTS]
        omitted = [item for item in received if item not in echoed]
        assert echoed == [item for item in received if item not in omitted], exchange["id"]
        for item in omitted:
            assert (
                "encrypted_content" not in item
                or item is received[-1]
                or "call_id" in received[received.index(item) + 1]
            )
            assert item["type"] == "reasoning" or "call_id" in item, exchange["id"]
        sent_back += len(echoed)
    assert sent_back > 200


OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})


def normalized(value: Any) -> Any:
    """Return JSON without nulls, log probabilities, and the status of custom calls, which requests do not contain."""
    if isinstance(value, list):
        return [normalized(item) for item in value]
    if not isinstance(value, dict):
        return value
    removed = {"logprobs", "status"} if value.get("type") == "custom_tool_call" else {"logprobs"}
    return {name: normalized(item) for name, item in value.items() if item is not None and name not in removed}
