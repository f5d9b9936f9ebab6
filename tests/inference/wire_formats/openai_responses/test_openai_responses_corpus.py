"""Recorded answers of the Responses API, read as the provider's own package reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentloop.errors import InferenceError
from agentloop.inference.wire_formats.wire_format import wire_format
from agentloop.values import InferenceResponse, Message, ProviderPart
from tests.inference.generated_requests import execution_of
from tests.inference.wire_formats.openai_responses.test_openai_responses_requests import items_of
from tests.inference.wire_formats.recorded_streams import (
    comparable,
    decode_exchange,
    decode_stream,
    differences,
    has_expectation,
    load_exchanges,
)

NAME = "openai-responses"
PLAIN, STREAMS = "openai_responses.json.jsonl", "openai_responses.stream.jsonl"


def test_recorded_answers_are_read_as_the_sdk_reads_them(corpus: Path) -> None:
    """Text, thoughts, calls, tokens, status and errors of every recorded answer are what OpenAI's own package found."""
    judged = [exchange for exchange in load_exchanges(corpus, PLAIN, STREAMS) if has_expectation(exchange)]
    found = [f"{exchange['id']}: {what}" for exchange in judged for what in differences(NAME, exchange)]
    assert len(judged) > 200
    assert not found, "\n".join(found)


def test_items_of_other_kinds_are_kept_as_they_came(corpus: Path) -> None:
    """What the provider's own tools did is there to be sent back."""
    for exchange in load_exchanges(corpus, PLAIN, STREAMS):
        found = decode_exchange(NAME, exchange)
        if isinstance(found, InferenceResponse) and has_expectation(exchange):
            kinds = [part.payload["type"] for part in found.parts if isinstance(part, ProviderPart)]  # type: ignore[index,call-overload]
            assert sorted(kinds) == sorted(exchange["expect"]["other_items"]), exchange["id"]


def test_every_recorded_answer_is_read_or_refused_as_one(corpus: Path) -> None:
    """Also what is disputed never raises anything else than an inference error."""
    for exchange in load_exchanges(corpus, PLAIN, STREAMS):
        assert isinstance(decode_exchange(NAME, exchange), InferenceResponse | InferenceError)


@pytest.mark.parametrize("step", [1, 5])
def test_how_a_recorded_stream_is_cut_makes_no_difference(corpus: Path, step: int) -> None:
    """Deltas and response of every recorded stream are the same when it comes in small pieces."""
    for exchange in load_exchanges(corpus, STREAMS):
        raw = exchange["response"]["raw"].encode()
        assert comparable(decode_stream(wire_format(NAME), raw, step)) == comparable(
            decode_stream(wire_format(NAME), raw)
        ), exchange["id"]


def test_a_recorded_stream_that_is_cut_off_is_never_another_error(corpus: Path) -> None:
    """A connection may break anywhere."""
    for exchange in load_exchanges(corpus, STREAMS):
        raw = exchange["response"]["raw"].encode()
        for share in range(1, 10):
            decode_stream(wire_format(NAME), raw[: len(raw) * share // 10])


def test_recorded_answers_go_back_as_they_came(corpus: Path) -> None:
    """Every item is sent as the provider told it, save what it refuses: a call nobody answered, thoughts it did not keep."""
    sent_back = 0
    for exchange in load_exchanges(corpus, PLAIN):
        found = decode_exchange(NAME, exchange)
        if not isinstance(found, InferenceResponse):
            continue
        told = [without_nulls(item) for item in exchange["response"]["body"]["output"]]
        sent = items_of(
            Message.of_response(found.parts, [execution_of(call, value="done") for call in found.tool_calls])
        )
        echoed = [without_nulls(item) for item in sent if item["type"] not in OUTPUTS]
        left_out = [item for item in told if item not in echoed]
        assert echoed == [item for item in told if item not in left_out], exchange["id"]
        for item in left_out:
            assert "encrypted_content" not in item or item is told[-1] or "call_id" in told[told.index(item) + 1]
            assert item["type"] == "reasoning" or "call_id" in item, exchange["id"]
        sent_back += len(echoed)
    assert sent_back > 200


OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})


def without_nulls(value: Any) -> Any:
    """Leave out what says nothing, what is asked for by name only, and the state of a custom call, which is no input."""
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    unsaid = {"logprobs", "status"} if value.get("type") == "custom_tool_call" else {"logprobs"}
    return {name: without_nulls(item) for name, item in value.items() if item is not None and name not in unsaid}
