"""Streams of Chat Completions: recorded ones, and what real services do to them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import InferenceError, InvalidResponse, ProviderUnavailable, RateLimited
from agentloop.inference import LLMConfig
from agentloop.inference.wire_formats.wire_format import wire_format
from agentloop.values import FinishReason, InferenceDelta, InferenceRequest, InferenceResponse, Usage
from tests.inference.generated_requests import arguments, inference_requests, json_values
from tests.inference.openai_types import check_request
from tests.inference.wire_formats.recorded_streams import (
    Decoded,
    Exchange,
    comparable,
    decode_exchange,
    decode_stream,
    differences,
    has_expectation,
    joined_text,
    load_exchanges,
)

FORMAT = wire_format("openai-chat")
Chunk = dict[str, Any]


def recorded(corpus: Path) -> list[Exchange]:
    """Return the recorded streams."""
    exchanges = load_exchanges(corpus, "openai_chat.stream.jsonl", "llama_server.jsonl")
    return [row for row in exchanges if row["wire_format"] == "openai_chat" and "raw" in row["response"]]


def test_recorded_streams_are_read_as_the_sdk_reads_them(corpus: Path) -> None:
    """Text, refusal, thoughts, calls, tokens and errors of every recorded stream are what OpenAI's own package found."""
    judged = [exchange for exchange in recorded(corpus) if has_expectation(exchange)]
    found = [f"{exchange['id']}: {what}" for exchange in judged for what in differences("openai-chat", exchange)]
    assert len(judged) > 100
    assert not found, "\n".join(found)


@pytest.mark.parametrize("step", [1, 5])
def test_how_a_recorded_stream_is_cut_makes_no_difference(corpus: Path, step: int) -> None:
    """Deltas and response of every recorded stream are the same when it comes in small pieces."""
    for exchange in recorded(corpus):
        raw = exchange["response"]["raw"].encode()
        assert comparable(decode_stream(FORMAT, raw, step)) == comparable(decode_stream(FORMAT, raw)), exchange["id"]


def test_the_deltas_of_a_recorded_stream_are_its_response(corpus: Path) -> None:
    """Who joins the pieces has what the response says."""
    for exchange in recorded(corpus):
        deltas, found = decode_stream(FORMAT, exchange["response"]["raw"].encode())
        if isinstance(found, InferenceResponse) and exchange["response"]["status"] == 200:
            assert (joined_text(deltas, "text"), joined_text(deltas, "reasoning")) == (found.text, found.reasoning), (
                exchange["id"]
            )
            assert isinstance(decode_exchange("openai-chat", exchange), InferenceResponse)


def test_a_recorded_stream_that_is_cut_off_is_never_another_error(corpus: Path) -> None:
    """A connection may break anywhere."""
    for exchange in recorded(corpus):
        raw = exchange["response"]["raw"].encode()
        for share in range(1, 10):
            decode_stream(FORMAT, raw[: len(raw) * share // 10])


def sse(chunks: Iterable[object], end: str = "\n\n") -> bytes:
    """Spell chunks as server-sent events."""
    return "".join(f"data: {json.dumps(chunk, ensure_ascii=False)}{end}" for chunk in chunks).encode()


def chunk(finish: str | None = None, **delta: object) -> Chunk:
    """Make a chunk."""
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def told(*chunks: object) -> Decoded:
    """Read a stream of these chunks."""
    return decode_stream(FORMAT, sse(chunks) + b"data: [DONE]\n\n")


def answer(*chunks: object) -> InferenceResponse:
    """Read a stream of these chunks that is an answer."""
    found = told(*chunks)[1]
    assert isinstance(found, InferenceResponse), found
    return found


def call(index: int | None, call_id: str | None = None, name: str | None = None, text: object = None) -> Chunk:
    """Make a chunk with a piece of a call; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", text)) if value is not None}
    entries = {"index": index, "id": call_id, "function": function}
    return chunk(tool_calls=[{key: value for key, value in entries.items() if value is not None}])


@pytest.mark.parametrize(
    "chunks",
    [
        [call(0, "a", "f", ""), call(0, None, None, '{"x"'), call(0, None, None, ":1}"), call(1, "b", "g", "{}")],
        [call(0, "a", "f", '{"x":1}'), call(0, "b", "g", "{}")],
        [call(None, "a", "f", '{"x":1}'), call(None, "b", "g", "{}")],
        [call(None, "a", "f", '{"x"'), call(None, None, None, ":1}"), call(None, "b", "g")],
        [call(0, "a", "f", '{"x"'), call(1, "b", "g"), call(0, None, None, ":1}")],
        [call(3, "a", "f", '{"x"'), call(3, "a", "f", ":1}"), call(5, "b", "g", {})],
        [call(0, None, "f", '{"x":1}'), call(0, "a"), call(1, "b", "g")],
    ],
)
def test_the_pieces_of_calls_are_joined_as_each_service_means_them(chunks: list[Chunk]) -> None:
    """By index, by id, or one after the other, whole or in pieces."""
    deltas, found = told(*chunks, chunk("tool_calls"))
    assert isinstance(found, InferenceResponse)
    calls = [(made.id, made.name, made.arguments_json) for made in found.tool_calls]
    assert calls == [("a", "f", '{"x":1}'), ("b", "g", "{}")]
    assert [delta.index for delta in deltas if delta.kind == "tool_call"] == [0, 1]
    first = [delta for delta in deltas if delta.kind == "arguments" and delta.index == 0]
    assert joined_text(first, "arguments") == '{"x":1}'


def test_thoughts_words_and_calls_are_told_as_they_come() -> None:
    """Each kind has a delta of its own."""
    deltas, found = told(chunk(reasoning_content="hm"), chunk(content="so"), call(0, "a", "f", "{}"), chunk("stop"))
    assert deltas == [
        InferenceDelta("reasoning", "hm"),
        InferenceDelta("text", "so"),
        InferenceDelta("tool_call", call_id="a", name="f"),
        InferenceDelta("arguments", "{}"),
    ]
    assert isinstance(found, InferenceResponse)
    assert (found.finish_reason, found.provider_finish_reason) == (FinishReason.TOOL_CALLS, "stop")


USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk("stop", content="a"), {"choices": [], "usage": USAGE}],
        [{**chunk("stop", content="a"), "usage": USAGE}],
        [{**chunk(content="a"), "usage": None}, {**chunk("stop"), "x_groq": {"usage": USAGE}}],
        [chunk(content="a"), {"choices": [{"delta": {}, "finish_reason": "stop", "usage": USAGE}]}],
    ],
)
def test_tokens_are_counted_wherever_a_service_tells_them(chunks: list[Chunk]) -> None:
    """In a chunk of their own or beside the last piece."""
    assert answer(*chunks).usage == Usage(3, 2)


def test_what_ends_or_separates_a_stream_does_not_matter() -> None:
    """With or without a last word, comments, CRLF and a last empty line."""
    chunks = [chunk(content="hé"), chunk("stop")]
    wanted = told(*chunks)
    for raw in (
        sse(chunks),
        sse(chunks, "\r\n\r\n"),
        b": comment\n\n" + sse(chunks),
        sse(chunks).rstrip(),
        b"\xef\xbb\xbf" + sse(chunks),
    ):
        assert decode_stream(FORMAT, raw) == wanted
        assert decode_stream(FORMAT, raw, 1) == wanted


def test_a_body_that_is_no_stream_is_read_whole() -> None:
    """Some services ignore the wish for a stream."""
    whole = {"id": "c", "model": "m", "choices": [{"message": {"content": "so"}, "finish_reason": "stop"}]}
    found = decode_stream(FORMAT, json.dumps(whole).encode(), 3)[1]
    assert isinstance(found, InferenceResponse)
    assert found.text == "so"
    assert isinstance(decode_stream(FORMAT, b"<html><title>Busy</title></html>")[1], InvalidResponse)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}, RateLimited),
        ({"error": {"message": "Overloaded", "code": 503}}, ProviderUnavailable),
        ({"choices": [{"error": {"message": "Overloaded", "code": 502}, "delta": {}}]}, ProviderUnavailable),
    ],
)
def test_an_error_in_the_stream_is_a_typed_error(error: Chunk, kind: type[InferenceError]) -> None:
    """Also after pieces of an answer."""
    assert isinstance(told(error)[1], kind)
    assert isinstance(told(chunk(content="a"), error)[1], kind)


@pytest.mark.parametrize(
    "raw", [b"", b"\n\n", b"data: [DONE]\n\n", b": comment\n\n", sse([{"choices": []}]), b"data: {\n\n"]
)
def test_a_stream_without_any_piece_of_an_answer_is_none(raw: bytes) -> None:
    """Nothing is not an empty answer."""
    assert isinstance(decode_stream(FORMAT, raw)[1], InvalidResponse)


@given(st.lists(st.text()), st.lists(arguments, max_size=3), st.sampled_from([0, 1, 3]))
def test_a_stream_is_read_as_the_completion_in_one_piece(texts: list[str], calls: list[str], step: int) -> None:
    """Text and calls are the same in both, however the stream is cut."""
    made = [{"id": f"c{at}", "function": {"name": f"f{at}", "arguments": text}} for at, text in enumerate(calls)]
    message = {"content": "".join(texts), "tool_calls": made}
    whole = {"id": "c", "model": "m", "choices": [{"message": message, "finish_reason": "stop"}]}
    pieces = [chunk(content=text) for text in texts]
    for at, text in enumerate(calls):
        pieces.append(call(at, f"c{at}", f"f{at}", text[:3]))
        pieces.append(call(at, None, None, text[3:]))
    found = decode_stream(FORMAT, sse([*pieces, chunk("stop")]), step)[1]
    wanted = FORMAT.decode_response(200, {}, json.dumps(whole).encode())
    assert isinstance(found, InferenceResponse)
    assert (found.text, found.finish_reason) == (wanted.text, wanted.finish_reason)
    assert [made.id for made in found.tool_calls] == [made.id for made in wanted.tool_calls]
    assert [made.arguments_json or "{}" for made in wanted.tool_calls] == [
        made.arguments_json for made in found.tool_calls
    ]


@given(inference_requests)
def test_a_request_for_a_stream_is_what_the_providers_own_package_says_it_is(request: InferenceRequest) -> None:
    """It satisfies the types that OpenAI publishes, without an entry that these do not know."""
    config = LLMConfig(model="m", base_url="http://localhost/v1", wire_format="openai-chat")
    body = json.loads(FORMAT.encode_request(request, config, stream=True).body)
    assert body["stream"] is True
    check_request("openai-chat", body)


functions = st.fixed_dictionaries({}, optional={"name": json_values, "arguments": json_values}) | json_values
odd_calls = st.fixed_dictionaries(
    {}, optional={"index": st.integers(-1, 2) | json_values, "id": json_values, "function": functions}
)
deltas = st.fixed_dictionaries(
    {},
    optional={
        "content": json_values,
        "reasoning": json_values,
        "refusal": json_values,
        "tool_calls": st.lists(odd_calls | json_values, max_size=3) | json_values,
        "function_call": functions,
    },
)
choices = st.fixed_dictionaries(
    {"delta": deltas | json_values}, optional={"index": json_values, "finish_reason": json_values}
)
odd_chunks = st.fixed_dictionaries(
    {"choices": st.lists(choices | json_values, max_size=2) | json_values},
    optional={"usage": json_values, "error": json_values, "model": json_values, "x_groq": json_values},
)


@given(st.lists(odd_chunks | json_values, max_size=6))
def test_anything_like_a_stream_is_an_answer_or_an_inference_error(chunks: list[object]) -> None:
    """No chunk with something odd in any of its places raises another error."""
    assert isinstance(told(*chunks)[1], InferenceResponse | InferenceError)


@given(st.binary(), st.integers(0, 500), st.binary(max_size=4))
def test_damaged_bytes_are_an_answer_or_an_inference_error(noise: bytes, place: int, other: bytes) -> None:
    """Random bytes, a stream that is cut off, and one with other bytes in it."""
    raw = sse([chunk(content="Zähler"), call(0, "a", "f", '{"x"'), call(0, None, None, ":1}"), chunk("tool_calls")])
    for damaged in (noise, raw[:place], raw[:place] + other + raw[place + 1 :]):
        assert isinstance(decode_stream(FORMAT, damaged)[1], InferenceResponse | InferenceError)
