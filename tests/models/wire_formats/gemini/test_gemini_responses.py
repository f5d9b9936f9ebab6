"""Tests of the decoding of responses of generateContent, complete and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloop.errors import (
    AuthenticationError,
    BadRequest,
    InferenceError,
    InvalidResponse,
    ProviderUnavailable,
    RateLimited,
)
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import (
    FinishReason,
    InferenceDelta,
    InferenceResponse,
    ProviderPart,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    from_json,
    to_json,
)
from tests.models.generated_requests import json_values
from tests.models.wire_formats.recorded_responses import decode_stream, joined_deltas, joined_parts

FORMAT = wire_format("gemini")
SIGNATURE = {"thoughtSignature": "c2ln"}
SIGNED_DATA = {"gemini": {"thoughtSignature": "c2ln"}}


def chunk(*parts: Any, reason: object = None, **entries: object) -> dict[str, Any]:
    """Return a chunk with one candidate."""
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": reason}], **entries}


def decode(*parts: Any, reason: object = "STOP", **entries: object) -> InferenceResponse:
    """Decode a complete response."""
    return FORMAT.decode_response(200, {}, json.dumps(chunk(*parts, reason=reason, **entries)).encode())


def events(*chunks: Any) -> bytes:
    """Return a stream of events."""
    return b"".join(b"data: " + json.dumps(data).encode() + b"\r\n\r\n" for data in chunks)


def decode_chunks(*chunks: Any) -> tuple[list[InferenceDelta], InferenceResponse]:
    """Decode a stream of chunks."""
    deltas, response = decode_stream(FORMAT, events(*chunks), 7)
    assert isinstance(response, InferenceResponse), response
    assert joined_deltas(deltas) == joined_parts(response)
    return deltas, response


def test_parts_are_decoded_in_order() -> None:
    """Thoughts, texts, calls and opaque parts keep their order, and signatures stay with their part."""
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    response = decode(
        {"text": "hm", "thought": True},
        {"text": "so", **SIGNATURE},
        {"functionCall": {"id": "c", "name": "add", "args": {"a": 1.5, "b": None}}, **SIGNATURE},
        {"functionCall": {"name": "add"}},
        code,
    )
    assert response.parts == (
        Reasoning("hm"),
        Text("so", provider_data=SIGNED_DATA),
        ToolCall("c", "add", '{"a":1.5,"b":null}', provider_data=SIGNED_DATA),
        ToolCall("", "add", "{}"),
        ProviderPart("gemini", code),
    )


def test_texts_are_joined_up_to_a_signature() -> None:
    """Consecutive texts are one part; a signed text is a part of its own."""
    parts = [{"text": "a"}, {"text": "b"}, {"text": "c", **SIGNATURE}, {"text": "d"}, {"text": "e"}]
    joined = (Text("ab"), Text("c", provider_data=SIGNED_DATA), Text("de"))
    assert decode(*parts).parts == joined
    assert decode_chunks(*[chunk(part) for part in parts], chunk(reason="STOP"))[1].parts == joined


def test_a_signature_may_come_with_an_empty_text() -> None:
    """A signed empty text is kept; an unsigned one is dropped."""
    _, response = decode_chunks(
        chunk({"text": "so"}), chunk({"text": ""}), chunk({"text": "", **SIGNATURE}, reason="STOP")
    )
    assert response.parts == (Text("so"), Text("", provider_data=SIGNED_DATA))


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("STOP", FinishReason.STOP),
        ("MAX_TOKENS", FinishReason.LENGTH),
        ("SAFETY", FinishReason.CONTENT_FILTER),
        ("RECITATION", FinishReason.CONTENT_FILTER),
        ("PROHIBITED_CONTENT", FinishReason.CONTENT_FILTER),
        ("MALFORMED_FUNCTION_CALL", FinishReason.ERROR),
        ("OTHER", FinishReason.OTHER),
        ("SOMETHING_NEW", FinishReason.OTHER),
        ("FINISH_REASON_UNSPECIFIED", FinishReason.UNKNOWN),
        (None, FinishReason.UNKNOWN),
        (5, FinishReason.OTHER),
    ],
)
def test_finish_reasons_are_translated(reason: object, expected: FinishReason) -> None:
    """Unknown reasons become OTHER, and the provider's own reason is kept."""
    response = decode({"text": "so"}, reason=reason)
    assert response.finish_reason is expected
    assert response.provider_finish_reason == ("5" if reason == 5 else reason)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("STOP", FinishReason.TOOL_CALLS),
        (None, FinishReason.TOOL_CALLS),
        ("MAX_TOKENS", FinishReason.LENGTH),
        ("UNEXPECTED_TOOL_CALL", FinishReason.ERROR),
    ],
)
def test_a_response_with_calls_has_finish_reason_tool_calls_unless_truncated(
    reason: object, expected: FinishReason
) -> None:
    """Gemini reports STOP for a response with calls."""
    assert decode({"functionCall": {"name": "add"}}, reason=reason).finish_reason is expected


def test_a_blocked_prompt_is_filtered_content() -> None:
    """A response without a candidate has the block reason as its finish reason."""
    data = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}
    complete = FORMAT.decode_response(200, {}, json.dumps(data).encode())
    assert complete == InferenceResponse((), "content_filter", Usage(3), provider_finish_reason="SAFETY")
    assert decode_chunks(data)[1] == complete


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({}, Usage()),
        (
            {"promptTokenCount": 10, "candidatesTokenCount": 5, "thoughtsTokenCount": 3, "cachedContentTokenCount": 4},
            Usage(10, 8, 4, None, 3),
        ),
        ({"promptTokenCount": 10, "toolUsePromptTokenCount": 2, "thoughtsTokenCount": 3}, Usage(12, 3, None, None, 3)),
        ({"promptTokenCount": "10", "candidatesTokenCount": True, "thoughtsTokenCount": -1}, Usage()),
    ],
)
def test_output_tokens_include_thoughts(usage: object, expected: Usage) -> None:
    """A count that is not reported is None."""
    assert decode({"text": "so"}, usageMetadata=usage).usage == expected


def test_the_last_token_counts_of_a_stream_decide() -> None:
    """Token counts are cumulative; model and id are those of the first chunk."""
    _, response = decode_chunks(
        chunk({"text": "a"}, usageMetadata={"promptTokenCount": 1}, modelVersion="gemini", responseId="r"),
        chunk({"text": "b"}, reason="STOP", usageMetadata={"promptTokenCount": 1, "candidatesTokenCount": 2}),
    )
    assert (response.usage, response.model, response.id) == (Usage(1, 2), "gemini", "r")


def test_only_the_first_candidate_is_decoded() -> None:
    """Further candidates are ignored."""
    data = chunk({"text": "one"}, reason="STOP")
    data["candidates"].append({"index": 1, "content": {"parts": [{"text": "two"}]}, "finishReason": "OTHER"})
    assert decode_chunks(data)[1].text == FORMAT.decode_response(200, {}, json.dumps(data).encode()).text == "one"


def fragment(path: str, value: object = None, *, more: bool = False, **other: object) -> dict[str, Any]:
    """Return a chunk with a fragment of a call's arguments."""
    entries = other or {"stringValue": value}
    partial = {"jsonPath": path, **entries, **({"willContinue": True} if more else {})}
    return chunk({"functionCall": {"partialArgs": [partial], "willContinue": True}})


def test_fragments_of_arguments_are_joined_by_their_paths() -> None:
    """Each value is set at its path, and a string may arrive in fragments; the start of a call is reported when its name is known."""
    deltas, response = decode_chunks(
        chunk({"functionCall": {"id": "c", "name": "cook", "willContinue": True}, **SIGNATURE}),
        fragment("$.name", "las", more=True),
        chunk({"text": ""}),
        fragment("$.name", "agna", more=True),
        fragment("$.name", ""),
        chunk({"functionCall": {"willContinue": True}}),
        fragment("$.steps[0].text", "boil"),
        fragment("$.steps[0].minutes", numberValue=10),
        fragment("$.steps[1]['odd \\'key']", boolValue=True),
        fragment('$.steps[1]["odd \\"key"]', nullValue="NULL_VALUE"),
        fragment("$['grid'][0][0]", numberValue=1.5),
        fragment("$.grid[0][1]", "x", more=True),
        fragment("$.grid[0][2]", "y", more=True),
        chunk({"functionCall": {}}),
        chunk({"functionCall": {"name": "add", "args": {"a": 1}}}, reason="STOP"),
    )
    cooked, added = response.tool_calls
    assert json.loads(cooked.arguments_json) == {
        "name": "lasagna",
        "steps": [{"text": "boil", "minutes": 10}, {"odd 'key": True, 'odd "key': None}],
        "grid": [[1.5, "x", "y"]],
    }
    assert (cooked.id, cooked.name, cooked.provider_data) == (
        "c",
        "cook",
        ToolCall("", "", provider_data=SIGNED_DATA).provider_data,
    )
    assert added == ToolCall("", "add", '{"a":1}')
    assert [delta.name for delta in deltas] == ["cook", "", "add", ""]


@pytest.mark.parametrize(
    "ending", [chunk(reason="STOP"), chunk({"text": "so"}, reason="STOP"), chunk({"executableCode": {}}, reason="STOP")]
)
def test_another_part_ends_an_open_call(ending: dict[str, Any]) -> None:
    """A call that announces more is complete when another part arrives, or the response ends."""
    beginning = chunk({"functionCall": {"name": "add", "willContinue": True}}), fragment("$.a", "1", more=True)
    (call,) = decode_chunks(*beginning, ending)[1].tool_calls
    assert call.arguments_json == '{"a":"1"}'


def test_another_name_or_id_starts_another_call() -> None:
    """A service need not report where a call ends."""
    calls = [{"name": "a", "willContinue": True}, {"name": "b", "willContinue": True}, {"id": "c", "name": "b"}]
    _, response = decode_chunks(chunk(*[{"functionCall": call} for call in calls]), chunk(reason="STOP"))
    assert [(call.id, call.name) for call in response.tool_calls] == [("", "a"), ("", "b"), ("c", "b")]


@pytest.mark.parametrize(
    "path", ["", "$", "a", "$..a", "$.a[", "$.a[1]", "$[0]", "$.a[*]", "$.s.t", "$.s[0]", "$" + ".a" * 300, 5, None]
)
def test_an_invalid_path_is_an_invalid_response(path: Any) -> None:
    """A fragment whose path does not fit the arguments makes the response invalid."""
    beginning = chunk({"functionCall": {"name": "add", "willContinue": True}}), fragment("$.s", "text")
    _, response = decode_stream(FORMAT, events(*beginning, fragment(path, "x"), chunk(reason="STOP")), 100)
    assert isinstance(response, InvalidResponse)


ERROR = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}


def test_an_error_in_a_stream_is_raised() -> None:
    """An error among the chunks ends the stream; the same applies to an array of chunks."""
    deltas, response = decode_stream(FORMAT, events(chunk({"text": "so"}), ERROR), 7)
    assert [delta.text for delta in deltas] == ["so"]
    assert isinstance(response, ProviderUnavailable)
    with pytest.raises(ProviderUnavailable, match="overloaded"):
        FORMAT.decode_response(200, {}, json.dumps([chunk({"text": "so"}), ERROR]).encode())


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"code": 400, "message": "API key not valid. Please pass a valid API key."}, AuthenticationError),
        (400, {"code": 400, "message": "Bad schema", "status": "INVALID_ARGUMENT"}, BadRequest),
        (429, {"code": 429, "message": "Quota", "status": "RESOURCE_EXHAUSTED"}, RateLimited),
        (503, {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}, ProviderUnavailable),
    ],
)
def test_errors_are_typed(status: int, error: object, kind: type[InferenceError]) -> None:
    """Status and message determine the class; the error may be in an array."""
    for data in ({"error": error}, [{"error": error}]):
        with pytest.raises(kind) as caught:
            FORMAT.decode_response(status, {}, json.dumps(data).encode())
        assert caught.value.status == status


@pytest.mark.parametrize(
    ("headers", "delay", "wait"),
    [
        ({}, "34.4s", 34.4),
        ({}, "2s", 2.0),
        ({"retry-after": "7"}, "34.4s", 7.0),
        ({}, "soon", None),
        ({}, 5, None),
        ({}, "٣s", None),
    ],
)
def test_the_wait_may_be_in_the_body(headers: dict[str, str], delay: object, wait: float | None) -> None:
    """Google's services put the wait into the details of an error; a header overrides it."""
    details = [None, {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]
    body = json.dumps({"error": {"code": 429, "message": "Quota", "details": details}}).encode()
    with pytest.raises(RateLimited) as caught:
        FORMAT.decode_response(429, headers, body)
    assert caught.value.retry_after == wait
    with pytest.raises(RateLimited) as caught:
        FORMAT.decode_response(200, headers, body)
    assert caught.value.retry_after == wait


def test_a_truncated_stream_is_an_invalid_response() -> None:
    """Without a finish reason, the stream is incomplete."""
    body = events(chunk({"text": "so"}), chunk({"text": "on"}))
    for length in (0, 10, len(body)):
        assert isinstance(decode_stream(FORMAT, body[:length], 7)[1], InvalidResponse)
    with pytest.raises(InvalidResponse, match="no candidate, or an incomplete one"):
        FORMAT.decode_response(200, {}, json.dumps([chunk({"text": "so"})]).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"5",
        b'{"candidates": []}',
        b'{"candidates": 5}',
        b'{"candidates": [5]}',
        b'{"candidates": [{"content": 5}]}',
        b'{"candidates": [{"content": {"parts": [5]}}]}',
        b'{"candidates": [{"content": {"parts": ["text"]}}]}',
        b'{"candidates": [{"content": {"parts": [{"functionCall": 5}]}}]}',
        b'{"candidates": [{"content": {"parts": [{"functionCall": {"args": 5}}]}}]}',
        b'{"candidates": [{"content": {"parts": [{"functionCall": {"partialArgs": [5]}}]}}]}',
        b'{"promptFeedback": 5}',
        b"<html></html>",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"candidates": [{"content": {"parts": [{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}]}}]}",
        b'{"candidates": [{"content": {"parts": [{"a": ' + b"[" * 250 + b"]" * 250 + b"}]}}]}",
    ],
)
def test_an_invalid_body_is_an_invalid_response(body: bytes) -> None:
    """The error quotes the body, truncated."""
    with pytest.raises(InvalidResponse) as caught:
        FORMAT.decode_response(200, {"x-request-id": "r"}, body)
    assert (caught.value.status, caught.value.request_id) == (200, "r")
    assert len(str(caught.value)) < 800


def any_of(*likely: Any, **entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generate objects with some of these entries, or sometimes any other value."""
    return st.one_of(st.fixed_dictionaries({}, optional=entries), st.sampled_from(likely), json_values)


paths = st.lists(st.sampled_from([".a", ".b", "[0]", "[1]", "['c']", '["d"]', "[x]"]), max_size=4).map(
    lambda steps: "$" + "".join(steps)
)
fragments = any_of(
    {},
    jsonPath=paths | json_values,
    stringValue=st.text() | json_values,
    numberValue=json_values,
    willContinue=json_values,
)
calls = any_of(
    {},
    id=st.text() | json_values,
    name=st.text() | json_values,
    args=json_values,
    partialArgs=st.lists(fragments, max_size=3),
    willContinue=st.booleans() | json_values,
)
parts = any_of(
    {"text": ""},
    text=st.text() | json_values,
    thought=st.booleans() | json_values,
    thoughtSignature=st.just("c2ln") | json_values,
    functionCall=calls,
    inlineData=json_values,
)
contents = any_of(None, parts=st.lists(parts, max_size=3) | json_values)
candidates = any_of(None, content=contents, finishReason=st.just("STOP") | json_values, index=json_values)
bodies = any_of(
    {},
    candidates=st.lists(candidates, max_size=2) | json_values,
    promptFeedback=any_of(None, blockReason=json_values),
    usageMetadata=any_of(None, promptTokenCount=json_values, thoughtsTokenCount=json_values),
    modelVersion=json_values,
    responseId=json_values,
    error=json_values,
)


def check(response: InferenceResponse) -> None:
    """Check that a response can be serialized."""
    assert from_json(to_json(response), InferenceResponse) == response


@given(st.lists(bodies, max_size=3), st.integers(1, 40))
@example([chunk({"text": "\ud800"}, reason="STOP")], 5)
@example([chunk({"text": "so"}, reason="STOP", usageMetadata={"promptTokenCount": 10**400})], 5)
def test_any_chunks_are_a_response_or_an_inference_error(chunks: list[Any], size: int) -> None:
    """No malformed chunk raises another error, and all representations are decoded alike."""
    deltas, response = decode_stream(FORMAT, events(*chunks), size)
    at_once = decode_stream(FORMAT, events(*chunks), 1 << 30)[0]
    assert at_once == deltas[: len(at_once)]  # an error discards the other deltas of its chunk
    if isinstance(response, InferenceResponse):
        assert at_once == deltas
        check(response)
        assert joined_deltas(deltas) == joined_parts(response)
        complete = FORMAT.decode_response(200, {}, json.dumps(chunks).encode())
        assert complete == response
    for data in chunks:
        try:
            check(FORMAT.decode_response(200, {}, json.dumps(data).encode()))
        except InferenceError:
            continue


GOOD = events(
    chunk({"text": "hm", "thought": True}),
    chunk({"functionCall": {"name": "add", "willContinue": True}, **SIGNATURE}),
    fragment("$.a[0]", "é", more=True),
    fragment("$.a[0]", ""),
    chunk({"functionCall": {}}, reason="STOP"),
)


@given(st.lists(st.tuples(st.integers(0, len(GOOD)), st.binary(max_size=3)), max_size=4), st.integers(0, len(GOOD)))
def test_damaged_streams_are_a_response_or_an_inference_error(changes: list[tuple[int, bytes]], end: int) -> None:
    """Changed and truncated streams raise no other error, whatever the chunk size."""
    body = bytearray(GOOD[:end])
    for position, change in changes:
        body[position : position + len(change)] = change
    results = [decode_stream(FORMAT, bytes(body), size)[1] for size in (1, 13, 1 << 30)]
    assert len({type(result) for result in results}) == 1
    if isinstance(results[0], InferenceResponse):
        assert results[0] == results[1] == results[2]


@given(st.integers(100, 599), st.binary())
def test_any_bytes_are_a_response_or_an_inference_error(status: int, body: bytes) -> None:
    """No bytes raise another error."""
    decode_stream(FORMAT, body, 3)
    try:
        check(FORMAT.decode_response(status, {}, body))
    except InferenceError:
        return
