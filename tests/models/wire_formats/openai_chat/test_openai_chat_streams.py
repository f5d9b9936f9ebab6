"""Tests of the decoding of streams of Chat Completions: recorded ones, and the irregularities of real services."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import InferenceError, InvalidResponse, ProviderUnavailable, RateLimited
from agentloop.models import LLMConfig
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import (
    FinishReason,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    Reasoning,
    ToolCall,
    Usage,
)
from agentloop.values.messages import Message, ResponsePart
from tests.limits import processor_seconds
from tests.models.generated_requests import arguments, execution_of, json_values
from tests.models.openai_types import check_request
from tests.models.wire_formats.openai_chat.test_openai_chat_requests import encode_messages, supported_requests
from tests.models.wire_formats.openai_chat.test_openai_chat_responses import BARE_ERRORS
from tests.models.wire_formats.recorded_streams import (
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


def test_recorded_streams_are_decoded_like_the_sdk_does(corpus: Path) -> None:
    """Text, refusal, reasoning, calls, tokens and errors of every recorded stream are those of the OpenAI package."""
    judged = [exchange for exchange in recorded(corpus) if has_expectation(exchange)]
    found = [
        f"{exchange['id']}: {difference}" for exchange in judged for difference in differences("openai-chat", exchange)
    ]
    assert len(judged) > 100
    assert not found, "\n".join(found)


@pytest.mark.parametrize("step", [1, 5])
def test_chunk_boundaries_of_recorded_streams_do_not_matter(corpus: Path, step: int) -> None:
    """Deltas and response of every recorded stream are the same for all chunk sizes."""
    for exchange in recorded(corpus):
        raw = exchange["response"]["raw"].encode()
        assert comparable(decode_stream(FORMAT, raw, step)) == comparable(decode_stream(FORMAT, raw)), exchange["id"]


def test_the_deltas_of_a_recorded_stream_add_up_to_its_response(corpus: Path) -> None:
    """The joined deltas equal the text and reasoning of the response."""
    for exchange in recorded(corpus):
        deltas, response = decode_stream(FORMAT, exchange["response"]["raw"].encode())
        if isinstance(response, InferenceResponse) and exchange["response"]["status"] == 200:
            assert (joined_text(deltas, "text"), joined_text(deltas, "reasoning")) == (
                response.text,
                response.reasoning,
            ), exchange["id"]
            assert isinstance(decode_exchange("openai-chat", exchange), InferenceResponse)


def test_a_truncated_recorded_stream_raises_no_other_error(corpus: Path) -> None:
    """A connection may break anywhere."""
    for exchange in recorded(corpus):
        raw = exchange["response"]["raw"].encode()
        for share in range(1, 10):
            decode_stream(FORMAT, raw[: len(raw) * share // 10])


def sse(chunks: Iterable[object], end: str = "\n\n") -> bytes:
    """Return chunks as server-sent events."""
    return "".join(f"data: {json.dumps(chunk, ensure_ascii=False)}{end}" for chunk in chunks).encode()


def chunk(finish: str | None = None, **delta: object) -> Chunk:
    """Return a chunk."""
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def decode(*chunks: object) -> Decoded:
    """Decode a stream of these chunks."""
    return decode_stream(FORMAT, sse(chunks) + b"data: [DONE]\n\n")


def decode_response(*chunks: object) -> InferenceResponse:
    """Decode a stream of these chunks to a response."""
    response = decode(*chunks)[1]
    assert isinstance(response, InferenceResponse), response
    return response


def call(index: int | None, call_id: str | None = None, name: str | None = None, text: object = None) -> Chunk:
    """Return a chunk with a fragment of a call; entries that are None are left out."""
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
        [call(0, "a", "f", ""), call(0, "c", None, '{"x"'), call(0, "d", "", ":1}"), call(1, "b", "g", "{}")],
        [call(0, "a", "f", '{"x"'), call(0, "c", None, ":1}"), call(0, "b", "g"), call(0, "d", None, "{}")],
    ],
)
def test_fragments_of_calls_are_joined_whatever_the_service_sends(chunks: list[Chunk]) -> None:
    """Services identify calls by index, by id or by order, and send them complete or in fragments."""
    deltas, response = decode(*chunks, chunk("tool_calls"))
    assert isinstance(response, InferenceResponse)
    calls = [(call.id, call.name, call.arguments_json) for call in response.tool_calls]
    assert calls == [("a", "f", '{"x":1}'), ("b", "g", "{}")]
    assert [delta.index for delta in deltas if delta.kind == "tool_call"] == [0, 1]
    first = [delta for delta in deltas if delta.kind == "arguments" and delta.index == 0]
    assert joined_text(first, "arguments") == '{"x":1}'


@pytest.mark.parametrize(
    ("chunks", "calls"),
    [
        (
            [call(0, "a", "edit_ex", ""), call(0, None, "isting_file"), call(0, None, None, "{}")],
            [("edit_existing_file", "{}")],
        ),
        ([call(0, "a", "f"), call(0, "a", "f", '{"x"'), call(0, "a", "f", ":1}")], [("f", '{"x":1}')]),
        ([call(0, "a", "f", '{"x"'), call(0, "a", "g", ":1}")], [("f", '{"x":1}')]),
        ([call(0, "a"), call(0, None, "f", "{}")], [("f", "{}")]),
        ([call(0, "a", None, '{"x"'), call(0, None, "f", ":1}")], [("f", '{"x":1}')]),
        ([call(0, None, "f", '{"x":1}'), call(0, None, "g", '{"y":2}')], [("f", '{"x":1}'), ("g", '{"y":2}')]),
        ([call(0, None, "f", '{"x":1}'), call(0, None, "f", '{"x":2}')], [("f", '{"x":1}'), ("f", '{"x":2}')]),
        (
            [call(0, None, "f", '{"x"'), call(0, None, None, ":1}"), call(0, None, "g"), call(0, None, None, "{}")],
            [("f", '{"x":1}'), ("g", "{}")],
        ),
        ([call(0, None, "f", {"x": 1}), call(0, None, "f", {})], [("f", '{"x":1}'), ("f", "{}")]),
    ],
    ids=[
        "name in pieces",
        "name in each chunk",
        "other name within the arguments",
        "name after the id",
        "name within the arguments",
        "whole calls",
        "whole calls of one tool",
        "calls in pieces",
        "objects",
    ],
)
def test_names_of_calls_are_joined_and_begin_calls(chunks: list[Chunk], calls: list[tuple[str, str]]) -> None:
    """A name may come in pieces, or again with each piece of the arguments; after complete arguments it begins a call."""
    deltas, response = decode(*chunks, chunk("tool_calls"))
    assert isinstance(response, InferenceResponse)
    assert [(found.name, found.arguments_json) for found in response.tool_calls] == calls
    assert [delta.index for delta in deltas if delta.kind == "tool_call"] == list(range(len(calls)))


@pytest.mark.parametrize(
    ("chunks", "calls"),
    [
        ([call(0, "a", "f", ""), call(0, None, None, '{"x":1}'), call(1, "a", "f", '{"x":1}')], ['{"x":1}']),
        ([call(0, "a", "f", ""), call(1, "a", "f", '{"x":1}')], ['{"x":1}']),
        ([call(0, "a", "f", "{}"), call(1, "a", "f", "{}")], ["{}"]),
        ([call(0, "a", "f", '{"x":1}'), call(1, "a", "f", '{"x":2}')], ['{"x":1}', '{"x":2}']),
        ([call(0, "a", "f", '{"x":1}'), call(1, "b", "f", '{"x":1}')], ['{"x":1}', '{"x":1}']),
        ([call(0, None, "f", '{"x":1}'), call(1, None, "f", '{"x":1}')], ['{"x":1}', '{"x":1}']),
        ([call(0, "a", "f", "{}"), call(1, "a", "g", "{}")], ["{}", "{}"]),
    ],
    ids=["again", "completed", "again without", "other arguments", "other id", "no id", "other tool"],
)
def test_a_call_that_is_sent_twice_is_one_call(chunks: list[Chunk], calls: list[str]) -> None:
    """It has the same id, name and arguments under another index, or none at first; its effect must not happen twice."""
    response = decode_response(*chunks, chunk("tool_calls"))
    assert [found.arguments_json for found in response.tool_calls] == calls


def test_the_fragments_of_a_custom_call_are_joined() -> None:
    """As those of a function call, and a request returns the call as a custom one."""
    begun = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "sql", "input": ""}}
    more = [{"index": 0, "custom": {"input": text}} for text in ("SELECT", " 1")]
    chunks = [chunk(tool_calls=[fragment]) for fragment in (begun, *more)]
    (call,) = decode_response(*chunks, chunk("tool_calls")).tool_calls
    assert (call.id, call.name, call.arguments_json) == ("c", "sql", "SELECT 1")
    assert decode_response(*chunks, chunk("length")).tool_calls[0].rejection
    sent, result = encode_messages(Message.of_response((call,), (execution_of(call, value="one"),)))
    assert sent["tool_calls"] == [{"id": "c", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}]
    assert result == {"role": "tool", "tool_call_id": "c", "content": "one"}


def test_names_and_details_cost_time_that_is_linear_in_the_length_of_the_stream() -> None:
    """Neither are arguments parsed again for each piece that has a name, nor details joined again for each fragment."""

    def seconds(count: int) -> float:
        pieces = [call(0, None, "f", '{"x":"'), *[call(0, None, "f", "{}" * 50)] * count, call(0, None, "f", '"}')]
        thoughts = [chunk(reasoning_details=[thought(0, text="x" * 200)])] * count
        raw = sse([*thoughts, *pieces, chunk("tool_calls")])
        return processor_seconds(lambda: decode_stream(FORMAT, raw))

    assert seconds(4000) < 24 * max(seconds(500), 0.01)


def test_reasoning_text_and_calls_have_deltas_of_their_own() -> None:
    """Each fragment yields a delta of its kind."""
    deltas, response = decode(
        chunk(reasoning_content="hm"), chunk(content="so"), call(0, "a", "f", "{}"), chunk("stop")
    )
    assert deltas == [
        InferenceDelta("reasoning", "hm"),
        InferenceDelta("text", "so"),
        InferenceDelta("tool_call", call_id="a", name="f"),
        InferenceDelta("arguments", "{}"),
    ]
    assert isinstance(response, InferenceResponse)
    assert (response.finish_reason, response.provider_finish_reason) == (FinishReason.TOOL_CALLS, "stop")


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
def test_token_counts_are_read_from_all_known_places(chunks: list[Chunk]) -> None:
    """Token counts arrive in a chunk of their own or with the last choice."""
    assert decode_response(*chunks).usage == Usage(3, 2)


def test_separators_and_the_end_marker_do_not_matter() -> None:
    """Streams may lack `[DONE]` or the last empty line, and contain comments and CRLF."""
    chunks = [chunk(content="hé"), chunk("stop")]
    expected = decode(*chunks)
    for raw in (
        sse(chunks),
        sse(chunks, "\r\n\r\n"),
        b": comment\n\n" + sse(chunks),
        sse(chunks).rstrip(),
        b"\xef\xbb\xbf" + sse(chunks),
    ):
        assert decode_stream(FORMAT, raw) == expected
        assert decode_stream(FORMAT, raw, 1) == expected


def test_a_body_that_is_not_a_stream_is_decoded_as_a_complete_response() -> None:
    """Some services do not stream although the request asks for it."""
    complete = {"id": "c", "model": "m", "choices": [{"message": {"content": "so"}, "finish_reason": "stop"}]}
    response = decode_stream(FORMAT, json.dumps(complete).encode(), 3)[1]
    assert isinstance(response, InferenceResponse)
    assert response.text == "so"
    assert isinstance(decode_stream(FORMAT, b"<html><title>Busy</title></html>")[1], InvalidResponse)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}, RateLimited),
        ({"error": {"message": "Overloaded", "code": 503}}, ProviderUnavailable),
        ({"choices": [{"error": {"message": "Overloaded", "code": 502}, "delta": {}}]}, ProviderUnavailable),
        *[(error, kind) for error, kind, _ in BARE_ERRORS],
    ],
)
def test_an_error_in_the_stream_is_a_typed_error(error: Chunk, kind: type[InferenceError]) -> None:
    """Errors may follow deltas."""
    assert isinstance(decode(error)[1], kind)
    assert isinstance(decode(chunk(content="a"), error)[1], kind)


@pytest.mark.parametrize(
    "note", [{"status": "processing", "message": "queued"}, {"message": "working"}, {"code": 0}, {}]
)
def test_a_note_in_the_stream_is_no_error(note: Chunk) -> None:
    """An event without choices that does not say what failed changes nothing."""
    response = decode(chunk(content="a"), note, chunk(finish="stop"))[1]
    assert isinstance(response, InferenceResponse)
    assert response.text == "a"


@pytest.mark.parametrize(
    "raw", [b"", b"\n\n", b"data: [DONE]\n\n", b": comment\n\n", sse([{"choices": []}]), b"data: {\n\n"]
)
def test_a_stream_without_choices_is_an_invalid_response(raw: bytes) -> None:
    """An empty stream is not an empty response."""
    assert isinstance(decode_stream(FORMAT, raw)[1], InvalidResponse)


@given(st.lists(st.text()), st.lists(arguments, max_size=3), st.sampled_from([0, 1, 3]))
def test_a_stream_is_decoded_like_a_complete_response(texts: list[str], calls: list[str], step: int) -> None:
    """Text and calls are equal, whatever the chunk size."""
    complete_calls = [
        {"id": f"c{index}", "function": {"name": f"f{index}", "arguments": text}} for index, text in enumerate(calls)
    ]
    message = {"content": "".join(texts), "tool_calls": complete_calls}
    complete = {"id": "c", "model": "m", "choices": [{"message": message, "finish_reason": "stop"}]}
    chunks = [chunk(content=text) for text in texts]
    for index, text in enumerate(calls):
        chunks.append(call(index, f"c{index}", f"f{index}", text[:3]))
        chunks.append(call(index, None, None, text[3:]))
    response = decode_stream(FORMAT, sse([*chunks, chunk("stop")]), step)[1]
    expected = FORMAT.decode_response(200, {}, json.dumps(complete).encode())
    assert isinstance(response, InferenceResponse)
    assert (response.text, response.finish_reason) == (expected.text, expected.finish_reason)
    assert [tool_call.id for tool_call in response.tool_calls] == [tool_call.id for tool_call in expected.tool_calls]
    assert [tool_call.arguments_json or "{}" for tool_call in expected.tool_calls] == [
        tool_call.arguments_json for tool_call in response.tool_calls
    ]


@given(supported_requests)
def test_requests_for_streams_have_the_types_of_the_openai_package(request: InferenceRequest) -> None:
    """Requests satisfy the types that OpenAI publishes and have no unknown entries."""
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
def test_any_chunks_are_a_response_or_an_inference_error(chunks: list[object]) -> None:
    """No malformed chunk raises another error."""
    assert isinstance(decode(*chunks)[1], InferenceResponse | InferenceError)


@given(st.binary(), st.integers(0, 500), st.binary(max_size=4))
def test_damaged_bytes_are_a_response_or_an_inference_error(noise: bytes, position: int, replacement: bytes) -> None:
    """Random bytes, a truncated stream and one with replaced bytes raise no other error."""
    raw = sse([chunk(content="Zähler"), call(0, "a", "f", '{"x"'), call(0, None, None, ":1}"), chunk("tool_calls")])
    for damaged in (noise, raw[:position], raw[:position] + replacement + raw[position + 1 :]):
        assert isinstance(decode_stream(FORMAT, damaged)[1], InferenceResponse | InferenceError)


def parts_of(*chunks: object) -> tuple[ResponsePart, ...]:
    """Return the parts of the response of a stream."""
    _, response = decode(*chunks)
    assert isinstance(response, InferenceResponse)
    return response.parts


def thought(index: int | None = None, **entries: object) -> Chunk:
    """Return a detail of the reasoning, or a fragment of one."""
    return {"type": "reasoning.text", **({} if index is None else {"index": index}), **entries}


def encrypted(data: str, **entries: object) -> Chunk:
    """Return an encrypted detail of the reasoning."""
    return {"type": "reasoning.encrypted", "data": data, **entries}


def summary(text: str, **entries: object) -> Chunk:
    """Return a summary among the details of the reasoning."""
    return {"type": "reasoning.summary", "summary": text, **entries}


def test_streamed_details_of_the_reasoning_are_one_list() -> None:
    """The details stay in the order of their arrival, also those that come after the calls."""
    parts = parts_of(
        chunk(reasoning="h", reasoning_details=[thought(text="h")]),
        chunk(reasoning="m", reasoning_details=[thought(text="m")]),
        call(0, "a", "f", "{}"),
        chunk(reasoning=None, reasoning_details=[encrypted("gAAA")]),
        chunk("tool_calls"),
    )
    details = [thought(text="hm"), encrypted("gAAA")]
    assert parts == (
        Reasoning("hm", provider_data={"openai-chat": {"reasoning_details": details}}),
        ToolCall("a", "f"),
    )


@pytest.mark.parametrize(
    ("fragments", "details"),
    [
        (
            [thought(0, text="", signature=""), thought(0, text="so"), thought(0, text=None, signature="sig")],
            [thought(0, text="so", signature="sig")],
        ),
        (
            [summary("a", index=0), encrypted("x", index=0, id="r"), summary("b", index=0, id=None)],
            [summary("ab", index=0, id=None), encrypted("x", index=0, id="r")],
        ),
        (
            [encrypted("x", index=0, id="call_1"), encrypted("y", index=0, id="call_2")],
            [encrypted("x", index=0, id="call_1"), encrypted("y", index=0, id="call_2")],
        ),
        (
            [thought(0, text="a"), thought(1, text="b"), thought(0, text="c", format="f")],
            [thought(0, text="ac", format="f"), thought(1, text="b")],
        ),
        ([encrypted("x"), encrypted("y")], [encrypted("x"), encrypted("y")]),
        (
            [thought(text="a"), thought(signature="s"), thought(text="b"), thought(signature="t")],
            [thought(text="a", signature="s"), thought(text="b", signature="t")],
        ),
        ([thought(text="a"), summary("s"), thought(text="b")], [thought(text="a"), summary("s"), thought(text="b")]),
        (["a", 1, {}, {}, [thought(0)]], ["a", 1, {}, {}, [thought(0)]]),
        ([{"type": [], "index": {}, "text": 1}], [{"type": [], "index": {}, "text": 1}]),
    ],
    ids=[
        "signature last",
        "same index, other types",
        "same index, other ids",
        "interleaved",
        "encrypted without index",
        "signed without index",
        "apart without index",
        "no objects",
        "odd values",
    ],
)
def test_fragments_of_a_detail_are_joined(fragments: list[object], details: list[object]) -> None:
    """A provider accepts a signature only beside the whole text that it has signed."""
    chunks = [chunk(reasoning_details=[fragment]) for fragment in fragments]
    assert parts_of(*chunks, chunk("stop")) == (
        Reasoning("", provider_data={"openai-chat": {"reasoning_details": details}}),
    )


@given(
    st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["reasoning.text", "reasoning.summary", "reasoning.encrypted"])},
            optional={
                "text": st.text() | st.none(),
                "summary": st.text(),
                "data": st.text(),
                "signature": st.text() | st.none(),
                "id": st.none() | st.text(),
                "format": json_values,
            },
        ),
        max_size=4,
    ),
    st.data(),
)
def test_streamed_details_are_those_of_a_complete_response(entries: list[Chunk], data: st.DataObject) -> None:
    """Details that are cut anywhere, with their signature last, are joined to what they were."""
    details = [{**entry, "index": index} for index, entry in enumerate(entries)]
    fragments: list[list[Chunk]] = []
    for detail in details:
        common: Chunk = {name: detail[name] for name in ("type", "index", "id") if name in detail}
        texts = {name: detail[name] for name in ("text", "summary", "data") if isinstance(detail.get(name), str)}
        cut = data.draw(st.integers(0, 5))
        first = {name: value[:cut] for name, value in texts.items()}
        last = {**detail, **{name: value[cut:] for name, value in texts.items()}}
        fragments.append([{**common, **first}, last])
    # Fragments of different details may be interleaved.
    order = data.draw(st.permutations([position for position, _ in enumerate(details) for _ in range(2)]))
    chunks = [chunk(reasoning_details=[fragments[position].pop(0)]) for position in order]
    message = {"content": "so", "reasoning_details": [details[position] for position in dict.fromkeys(order)]}
    complete = {"choices": [{"message": message, "finish_reason": "stop"}]}
    whole = FORMAT.decode_response(200, {}, json.dumps(complete).encode())
    assert parts_of(*chunks, chunk("stop", content="so")) == whole.parts


def test_a_streamed_call_keeps_the_data_of_its_model() -> None:
    """Gemini behind this API sends a signature with the first fragment of a call."""
    extra = {"google": {"thought_signature": "sig"}}
    fragment = {"index": 0, "id": "a", "extra_content": extra, "function": {"name": "f", "arguments": "{}"}}
    parts = parts_of(chunk(tool_calls=[fragment]), chunk("tool_calls"))
    assert parts == (ToolCall("a", "f", provider_data={"openai-chat": {"extra_content": extra}}),)


def test_a_streamed_call_may_have_no_function() -> None:
    """Name and arguments may be entries of the call itself, as in a complete response."""
    parts = parts_of(chunk(tool_calls=[{"index": 0, "id": "a", "name": "f", "arguments": "{}"}]), chunk("tool_calls"))
    assert parts == (ToolCall("a", "f"),)
