"""Tests of the decoding of answers and streams of Cohere's chat API, compared with what its package reads from the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloop.errors import (
    AuthenticationError,
    BadRequest,
    ContextLengthExceeded,
    InferenceError,
    InvalidResponse,
    ProviderUnavailable,
    RateLimited,
)
from agentloop.models import LLMConfig
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import (
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    Message,
    ProviderPart,
    Reasoning,
    Text,
    ToolCall,
    ToolExchange,
    Usage,
    from_json,
    to_json,
)
from tests.models.generated_requests import execution_of, json_values
from tests.models.wire_formats.cohere_v2.cohere_types import USAGE, events, read_answer, read_stream, stream_events
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

FORMAT = wire_format("cohere-v2")
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
THINKING = {"type": "thinking", "thinking": "hm"}
TEXT = {"type": "text", "text": "só"}
CITATIONS: list[dict[str, Any]] = [
    {"start": 0, "end": 2, "text": "só", "sources": [], "content_index": 1, "type": "TEXT_CONTENT"},
    {"start": 0, "end": 2, "text": "hm", "sources": [], "content_index": 0, "type": "THINKING_CONTENT"},
    {"start": 0, "end": 1, "text": "I", "sources": [], "type": "PLAN"},
    {"start": 1, "end": 2, "text": "ó", "sources": []},
]


def answer(*content: Any, reason: object = "COMPLETE", **message: Any) -> dict[str, Any]:
    """Return a complete answer."""
    whole = {"role": "assistant", "content": list(content), **message}
    return {"id": "r", "message": whole, "finish_reason": reason, "usage": USAGE}


def decode(*content: Any, **entries: Any) -> InferenceResponse:
    """Decode a complete answer."""
    return FORMAT.decode_response(200, {}, json.dumps(answer(*content, **entries)).encode())


def test_plan_thinking_text_and_calls_are_parts_in_this_order() -> None:
    """Reasoning remembers where it came from, and each citation is with its part; one without an index is with the first text."""
    response = decode(
        THINKING, TEXT, {"type": "new"}, tool_plan="I add.", tool_calls=[CALL], citations=CITATIONS, reason="TOOL_CALL"
    )
    plan, thinking, text = ({"entry": "tool_plan", "citations": [CITATIONS[2]]}, {"entry": "thinking", "citations": [CITATIONS[1]]}, {"citations": [CITATIONS[3], CITATIONS[0]]})  # fmt: skip
    assert response == InferenceResponse(
        (
            Reasoning("I add.", provider_data={"cohere-v2": plan}),
            Reasoning("hm", provider_data={"cohere-v2": thinking}),
            Text("só", provider_data={"cohere-v2": text}),
            ProviderPart("cohere-v2", {"type": "new"}),
            ToolCall("c1", "add", '{"a": 1}'),
        ),
        FinishReason.TOOL_CALLS,
        Usage(9, 2),
        "",
        "r",
        "TOOL_CALL",
    )


def test_what_cohere_needs_back_is_sent_back() -> None:
    """The encoding of a decoded answer equals the original."""
    parts = decode(THINKING, TEXT, tool_plan="I add.", citations=CITATIONS[1:3]).parts
    call = ToolCall("c1", "add", '{"a": 1}')
    message = Message.assistant(*parts, ToolExchange(call, execution_of(call, value=1)))  # type: ignore[arg-type]  # no calls among them
    config = LLMConfig(model="m", base_url="https://cohere", wire_format="cohere-v2")
    sent = json.loads(FORMAT.encode_request(InferenceRequest((message,)), config).body)["messages"][0]
    assert sorted(sent.pop("citations"), key=lambda citation: str(citation["type"])) == [CITATIONS[2], CITATIONS[1]]
    assert sent == {"role": "assistant", "tool_plan": "I add.", "content": [THINKING, TEXT], "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("COMPLETE", FinishReason.STOP),
        ("STOP_SEQUENCE", FinishReason.STOP),
        ("MAX_TOKENS", FinishReason.LENGTH),
        ("TOOL_CALL", FinishReason.TOOL_CALLS),
        ("ERROR", FinishReason.ERROR),
        ("TIMEOUT", FinishReason.ERROR),
        ("ERROR_TOXIC", FinishReason.CONTENT_FILTER),
        ("SOMETHING", FinishReason.OTHER),
        (None, FinishReason.UNKNOWN),
    ],
)
def test_finish_reasons_are_translated(reason: object, expected: FinishReason) -> None:
    """Cohere's own reason is kept."""
    response = decode(TEXT, reason=reason)
    assert (response.finish_reason, response.provider_finish_reason) == (expected, reason)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (USAGE, Usage(9, 2)),
        ({**USAGE, "cached_tokens": 4}, Usage(9, 2, 4)),
        ({"billed_units": {"input_tokens": 1, "output_tokens": 2}}, Usage(1, 2)),
        ({}, Usage()),
        (None, Usage()),
    ],
)
def test_tokens_are_those_of_the_model_and_else_those_that_are_billed(usage: Any, expected: Usage) -> None:
    """A count that is missing is unknown."""
    data = {**answer(TEXT), "usage": usage}
    assert FORMAT.decode_response(200, {}, json.dumps(data).encode()).usage == expected


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "invalid request: message must be at least 1 token long", BadRequest),
        (400, "too many tokens: total number of tokens exceeds the context length", ContextLengthExceeded),
        (401, "invalid api token", AuthenticationError),
        (403, "forbidden", AuthenticationError),
        (404, "model 'x' not found", BadRequest),
        (422, "unprocessable", BadRequest),
        (429, "You are using a Trial key", RateLimited),
        (498, "invalid token", AuthenticationError),
        (500, "internal server error", ProviderUnavailable),
        (504, "timeout", ProviderUnavailable),
    ],
)
def test_errors_are_typed(status: int, message: str, kind: type[InferenceError]) -> None:
    """Status and message determine the class."""
    with pytest.raises(InferenceError, match=message[:12]) as caught:
        FORMAT.decode_response(status, {}, json.dumps({"id": "e", "message": message}).encode())
    assert (type(caught.value), caught.value.status) == (kind, status)


def test_an_error_at_the_end_of_a_stream_is_raised() -> None:
    """The last event may have one; it is no answer then."""
    sent = stream_events([TEXT])
    sent[-1]["delta"] = {"error": "an internal error occurred", "finish_reason": "ERROR"}
    deltas, error = decode_stream(FORMAT, events(*sent), 7)
    assert "".join(delta.text for delta in deltas) == "só"
    assert isinstance(error, ProviderUnavailable)
    assert "an internal error occurred" in str(error)


def test_a_stream_without_its_end_is_retried() -> None:
    """Only `message-end` ends an answer."""
    sent = stream_events([TEXT], [("c", "add", "{}")])
    for count in range(len(sent)):
        error = decode_stream(FORMAT, events(*sent[:count]), 1 << 30)[1]
        assert isinstance(error, InvalidResponse)
        assert error.retryable


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b'{"message": null}',
        b'{"message": {"content": 5}}',
        b'{"message": {"content": [5]}}',
        b'{"message": {"content": [{}]}}',
        b'{"message": {"tool_calls": [5]}}',
        b'{"message": {"tool_calls": [{"function": 5}]}}',
        b'{"message": {"citations": [5]}}',
        b"<html></html>",
    ],
)
def test_an_invalid_body_is_an_invalid_response(body: bytes) -> None:
    """The error quotes the body."""
    with pytest.raises(InvalidResponse) as caught:
        FORMAT.decode_response(200, {}, body)
    assert len(str(caught.value)) < 800


# --- compared with Cohere's package and with recordings ----------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
items = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.builds(lambda text: {"type": "thinking", "thinking": text}, texts),
)
calls = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["add", "look"]),
        st.dictionaries(texts, st.integers()).map(json.dumps),
    ),
    max_size=3,
)


@given(
    st.lists(items, max_size=3),
    calls,
    texts,
    st.sampled_from(["COMPLETE", "TOOL_CALL", "MAX_TOKENS"]),
    st.integers(1, 60),
)
def test_answers_and_streams_are_read_as_the_package_reads_them(
    content: list[Any], made: list[Any], plan: str, reason: str, size: int
) -> None:
    """Text, reasoning, calls, finish reason and tokens are those of Cohere's package, and a stream is the answer in one piece."""
    tool_calls = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in made]
    body = json.dumps(answer(*content, tool_plan=plan, tool_calls=tool_calls, reason=reason)).encode()
    whole = FORMAT.decode_response(200, {}, body)
    data = events(*stream_events(content, made, plan=plan, finish=reason))
    deltas, streamed = decode_stream(FORMAT, data, size)
    assert streamed == whole
    assert isinstance(streamed, InferenceResponse)
    assert joined_deltas(deltas) == joined_parts(streamed)
    ours = {
        "text": whole.text,
        "reasoning": whole.reasoning,
        "calls": [(call.id, call.name, call.arguments_json) for call in whole.tool_calls],
        "finish": whole.provider_finish_reason,
        "tokens": whole.usage.input_tokens,
    }
    assert ours == read_answer(body) == read_stream(data)


def test_citations_of_a_stream_are_those_of_the_answer() -> None:
    """They arrive one by one."""
    data = events(*stream_events([THINKING, TEXT], plan="I", citations=CITATIONS))
    whole = decode(THINKING, TEXT, tool_plan="I", citations=CITATIONS)
    assert [decode_stream(FORMAT, data, size)[1] for size in CHUNK_SIZES] == [whole] * 3


def test_recorded_answers_are_decoded_as_the_package_does(more_corpus: Path) -> None:
    """Text, reasoning, calls, tokens and errors of recorded answers and streams are those of Cohere's package."""
    judged = [
        exchange
        for name in ("json", "stream")
        for exchange in load_exchanges(more_corpus, f"other_formats.{name}.jsonl")
        if exchange["wire_format"] == "cohere_v2" and has_expectation(exchange)
    ]
    found: list[str] = []
    for exchange in judged:
        raw = exchange["response"].get("raw")
        decoded = decode_exchange(FORMAT, exchange) if raw is None else decode_stream(FORMAT, raw.encode(), 5)[1]
        usage = decoded.usage if isinstance(decoded, InferenceResponse) else Usage()
        found += differences(decoded, exchange["expect"], (usage.input_tokens, usage.output_tokens))
    assert len(judged) > 5
    assert not found, "\n".join(found)


# --- hostile bytes -----------------------------------------------------------------------------------------------------


def any_of(*likely: Any, **entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generate objects with some of these entries, or sometimes any other value."""
    return st.one_of(st.fixed_dictionaries({}, optional=entries), st.sampled_from(likely), json_values)


any_items = any_of(TEXT, THINKING, type=st.sampled_from(["text", "thinking"]) | json_values, text=json_values)
any_calls = any_of(CALL, id=json_values, function=any_of(None, name=json_values, arguments=json_values))
any_citations = any_of(
    *CITATIONS,
    type=st.sampled_from(["PLAN", "THINKING_CONTENT"]) | json_values,
    content_index=st.integers(0, 2) | json_values,
)
messages = any_of(
    {},
    content=st.lists(any_items, max_size=3) | any_items,
    tool_plan=json_values,
    tool_calls=st.lists(any_calls, max_size=2) | any_calls,
    citations=st.lists(any_citations, max_size=3) | any_citations,
)
reasons = st.sampled_from(["COMPLETE", "MAX_TOKENS"]) | json_values
bodies = any_of({}, message=messages, finish_reason=reasons, usage=json_values, id=json_values, error=json_values)
kinds = st.sampled_from(
    sorted({str(event["type"]) for event in stream_events([TEXT], [("c", "n", "{}")], citations=[{}])})
)
stream_data = any_of(
    *({}, stream_events()[-1]),
    type=kinds,
    index=st.integers(0, 1) | json_values,
    delta=any_of({}, message=messages, finish_reason=reasons, usage=json_values, error=json_values),
    id=json_values,
)


def check(response: InferenceResponse) -> None:
    """Check that a response can be serialized."""
    assert from_json(to_json(response), InferenceResponse) == response


@given(bodies)
@example(answer({"type": "text", "text": "\ud800"}))
def test_any_body_is_a_response_or_an_inference_error(data: Any) -> None:
    """No malformed body raises another error."""
    try:
        check(FORMAT.decode_response(200, {}, json.dumps(data).encode()))
    except InferenceError:
        return


@given(st.lists(stream_data, max_size=5), st.integers(1, 40))
def test_any_events_are_a_response_or_an_inference_error(data: list[Any], size: int) -> None:
    """No malformed event raises another error, and the outcome does not depend on the chunks."""
    raw = b"".join(f"data: {json.dumps(item)}\n\n".encode() for item in data)
    deltas, result = decode_stream(FORMAT, raw, size)
    at_once = decode_stream(FORMAT, raw, 1 << 30)
    assert at_once[0] == deltas[: len(at_once[0])]  # an error discards the other deltas of its chunk
    assert type(at_once[1]) is type(result)
    if isinstance(result, InferenceResponse):
        assert at_once == (deltas, result)
        check(result)


@given(st.integers(100, 599), st.binary())
def test_any_bytes_are_a_response_or_an_inference_error(status: int, body: bytes) -> None:
    """No bytes raise another error."""
    decode_stream(FORMAT, body, 3)
    try:
        check(FORMAT.decode_response(status, {}, body))
    except InferenceError:
        return
