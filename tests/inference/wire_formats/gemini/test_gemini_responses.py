"""Answers of generateContent, whole and in pieces: what is read, and what is refused."""

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
from agentloop.inference.wire_formats.wire_format import wire_format
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
from tests.inference.generated_requests import json_values
from tests.inference.wire_formats.recorded_responses import decode_stream, joined_deltas, joined_parts

FORMAT = wire_format("gemini")
SIGNATURE = {"thoughtSignature": "c2ln"}
SIGNED = {"gemini": {"thoughtSignature": "c2ln"}}


def chunk(*parts: Any, reason: object = None, **entries: object) -> dict[str, Any]:
    """Make a chunk with one candidate."""
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": reason}], **entries}


def decoded(*parts: Any, reason: object = "STOP", **entries: object) -> InferenceResponse:
    """Decode an answer in one piece."""
    return FORMAT.decode_response(200, {}, json.dumps(chunk(*parts, reason=reason, **entries)).encode())


def events(*chunks: Any) -> bytes:
    """Spell a stream."""
    return b"".join(b"data: " + json.dumps(data).encode() + b"\r\n\r\n" for data in chunks)


def read(*chunks: Any) -> tuple[list[InferenceDelta], InferenceResponse]:
    """Decode a stream."""
    deltas, found = decode_stream(FORMAT, events(*chunks), 7)
    assert isinstance(found, InferenceResponse), found
    assert joined_deltas(deltas) == joined_parts(found)
    return deltas, found


def test_parts_are_read_in_their_order() -> None:
    """Thoughts, texts, calls and what only Gemini knows stay in the order they came, signatures with their part."""
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    response = decoded(
        {"text": "hm", "thought": True},
        {"text": "so", **SIGNATURE},
        {"functionCall": {"id": "c", "name": "add", "args": {"a": 1.5, "b": None}}, **SIGNATURE},
        {"functionCall": {"name": "add"}},
        code,
    )
    assert response.parts == (
        Reasoning("hm"),
        Text("so", provider_data=SIGNED),
        ToolCall("c", "add", '{"a":1.5,"b":null}', provider_data=SIGNED),
        ToolCall("", "add", "{}"),
        ProviderPart("gemini", code),
    )


def test_texts_are_joined_up_to_a_signature() -> None:
    """Pieces of one text are one part; a signature stands with exactly the piece that it came with."""
    parts = [{"text": "a"}, {"text": "b"}, {"text": "c", **SIGNATURE}, {"text": "d"}, {"text": "e"}]
    joined = (Text("ab"), Text("c", provider_data=SIGNED), Text("de"))
    assert decoded(*parts).parts == joined
    assert read(*[chunk(part) for part in parts], chunk(reason="STOP"))[1].parts == joined


def test_a_signature_may_come_with_an_empty_text() -> None:
    """A stream may end with one, which goes back as it came; an empty text without a signature is nothing."""
    _, response = read(chunk({"text": "so"}), chunk({"text": ""}), chunk({"text": "", **SIGNATURE}, reason="STOP"))
    assert response.parts == (Text("so"), Text("", provider_data=SIGNED))


@pytest.mark.parametrize(
    ("reason", "meant"),
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
        (5, FinishReason.UNKNOWN),
    ],
)
def test_finish_reasons_are_put_into_common_words(reason: object, meant: FinishReason) -> None:
    """Known words are translated, unknown ones are other, and the provider's own word is kept."""
    response = decoded({"text": "so"}, reason=reason)
    assert response.finish_reason is meant
    assert response.provider_finish_reason == (reason if isinstance(reason, str) else None)


@pytest.mark.parametrize(
    ("reason", "meant"),
    [
        ("STOP", FinishReason.TOOL_CALLS),
        (None, FinishReason.TOOL_CALLS),
        ("MAX_TOKENS", FinishReason.LENGTH),
        ("UNEXPECTED_TOOL_CALL", FinishReason.ERROR),
    ],
)
def test_an_answer_with_calls_ends_for_them_unless_it_was_cut(reason: object, meant: FinishReason) -> None:
    """Gemini has no word for calls; a cut answer is still a cut answer."""
    assert decoded({"functionCall": {"name": "add"}}, reason=reason).finish_reason is meant


def test_a_blocked_prompt_is_held_back_content() -> None:
    """An answer without a candidate says why there is none, whole and in a stream."""
    data = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}
    whole = FORMAT.decode_response(200, {}, json.dumps(data).encode())
    assert whole == InferenceResponse((), "content_filter", Usage(3), provider_finish_reason="SAFETY")
    assert read(data)[1] == whole


@pytest.mark.parametrize(
    ("usage", "counted"),
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
def test_tokens_are_counted_with_thoughts(usage: object, counted: Usage) -> None:
    """Output is everything that was written, thoughts included; what is not reported is unknown."""
    assert decoded({"text": "so"}, usageMetadata=usage).usage == counted


def test_the_last_count_of_a_stream_counts() -> None:
    """Each chunk counts up to itself; model and id are those of the answer."""
    _, response = read(
        chunk({"text": "a"}, usageMetadata={"promptTokenCount": 1}, modelVersion="gemini", responseId="r"),
        chunk({"text": "b"}, reason="STOP", usageMetadata={"promptTokenCount": 1, "candidatesTokenCount": 2}),
    )
    assert (response.usage, response.model, response.id) == (Usage(1, 2), "gemini", "r")


def test_only_the_first_candidate_is_read() -> None:
    """An answer is one answer."""
    data = chunk({"text": "one"}, reason="STOP")
    data["candidates"].append({"index": 1, "content": {"parts": [{"text": "two"}]}, "finishReason": "OTHER"})
    assert read(data)[1].text == FORMAT.decode_response(200, {}, json.dumps(data).encode()).text == "one"


def fragment(path: str, value: object = None, *, more: bool = False, **other: object) -> dict[str, Any]:
    """Make a chunk with a fragment of a call's arguments."""
    spelled = other or {"stringValue": value}
    partial = {"jsonPath": path, **spelled, **({"willContinue": True} if more else {})}
    return chunk({"functionCall": {"partialArgs": [partial], "willContinue": True}})


def test_fragments_of_arguments_are_joined_by_their_paths() -> None:
    """Each value lands where its path says; a text may come in pieces; the call is told when its name is known."""
    deltas, response = read(
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
        ToolCall("", "", provider_data=SIGNED).provider_data,
    )
    assert added == ToolCall("", "add", '{"a":1}')
    assert [delta.name for delta in deltas] == ["cook", "", "add", ""]


@pytest.mark.parametrize(
    "ending", [chunk(reason="STOP"), chunk({"text": "so"}, reason="STOP"), chunk({"executableCode": {}}, reason="STOP")]
)
def test_an_open_call_ends_with_what_comes_after_it(ending: dict[str, Any]) -> None:
    """A call of which more was announced is whole when something else comes, or the answer ends."""
    beginning = chunk({"functionCall": {"name": "add", "willContinue": True}}), fragment("$.a", "1", more=True)
    (call,) = read(*beginning, ending)[1].tool_calls
    assert call.arguments_json == '{"a":"1"}'


def test_a_call_of_another_name_or_id_is_another_call() -> None:
    """A service that does not say where a call ends tells by what begins."""
    calls = [{"name": "a", "willContinue": True}, {"name": "b", "willContinue": True}, {"id": "c", "name": "b"}]
    _, response = read(chunk(*[{"functionCall": call} for call in calls]), chunk(reason="STOP"))
    assert [(call.id, call.name) for call in response.tool_calls] == [("", "a"), ("", "b"), ("c", "b")]


@pytest.mark.parametrize(
    "path", ["", "$", "a", "$..a", "$.a[", "$.a[1]", "$[0]", "$.a[*]", "$.s.t", "$.s[0]", "$" + ".a" * 300, 5, None]
)
def test_a_path_that_leads_nowhere_is_no_answer(path: Any) -> None:
    """Arguments are never guessed: a fragment without a place of its own makes the answer invalid."""
    beginning = chunk({"functionCall": {"name": "add", "willContinue": True}}), fragment("$.s", "text")
    _, found = decode_stream(FORMAT, events(*beginning, fragment(path, "x"), chunk(reason="STOP")), 100)
    assert isinstance(found, InvalidResponse)


ERROR = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}


def test_an_error_in_a_stream_is_raised() -> None:
    """An error among the chunks ends the stream, as does one in an array of them."""
    deltas, found = decode_stream(FORMAT, events(chunk({"text": "so"}), ERROR), 7)
    assert [delta.text for delta in deltas] == ["so"]
    assert isinstance(found, ProviderUnavailable)
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
    """Status and message say what went wrong, also when the error stands in an array as for streams."""
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
def test_the_wait_may_be_told_in_the_body(headers: dict[str, str], delay: object, wait: float | None) -> None:
    """Google's services say how long to wait in the details of an error; a header goes before."""
    details = [None, {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]
    body = json.dumps({"error": {"code": 429, "message": "Quota", "details": details}}).encode()
    with pytest.raises(RateLimited) as caught:
        FORMAT.decode_response(429, headers, body)
    assert caught.value.retry_after == wait
    with pytest.raises(RateLimited) as caught:
        FORMAT.decode_response(200, headers, body)
    assert caught.value.retry_after == wait


def test_a_stream_that_was_cut_is_no_answer() -> None:
    """Without the reason for which the model stopped, more was to come."""
    body = events(chunk({"text": "so"}), chunk({"text": "on"}))
    for cut in (0, 10, len(body)):
        assert isinstance(decode_stream(FORMAT, body[:cut], 7)[1], InvalidResponse)
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
def test_what_is_no_answer_is_an_invalid_response(body: bytes) -> None:
    """Bytes and JSON of another shape are refused with what came, shortened."""
    with pytest.raises(InvalidResponse) as caught:
        FORMAT.decode_response(200, {"x-request-id": "r"}, body)
    assert (caught.value.status, caught.value.request_id) == (200, "r")
    assert len(str(caught.value)) < 800


def any_of(*likely: Any, **entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Make objects with some of these entries, and now and then something else."""
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
answers = any_of(
    {},
    candidates=st.lists(candidates, max_size=2) | json_values,
    promptFeedback=any_of(None, blockReason=json_values),
    usageMetadata=any_of(None, promptTokenCount=json_values, thoughtsTokenCount=json_values),
    modelVersion=json_values,
    responseId=json_values,
    error=json_values,
)


def check(response: InferenceResponse) -> None:
    """Check that a response can be stored."""
    assert from_json(to_json(response), InferenceResponse) == response


@given(st.lists(answers, max_size=3), st.integers(1, 40))
@example([chunk({"text": "\ud800"}, reason="STOP")], 5)
@example([chunk({"text": "so"}, reason="STOP", usageMetadata={"promptTokenCount": 10**400})], 5)
def test_anything_like_an_answer_is_a_response_or_an_inference_error(chunks: list[Any], size: int) -> None:
    """No answer with something odd in any of its places raises another error, and all ways to read it agree."""
    deltas, found = decode_stream(FORMAT, events(*chunks), size)
    assert decode_stream(FORMAT, events(*chunks), 1 << 30)[0] == deltas
    if isinstance(found, InferenceResponse):
        check(found)
        assert joined_deltas(deltas) == joined_parts(found)
        whole = FORMAT.decode_response(200, {}, json.dumps(chunks).encode())
        assert whole == found
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
    """Streams with other bytes in them, or cut anywhere, raise nothing else, however they are cut."""
    body = bytearray(GOOD[:end])
    for place, change in changes:
        body[place : place + len(change)] = change
    found = [decode_stream(FORMAT, bytes(body), size)[1] for size in (1, 13, 1 << 30)]
    assert len({type(outcome) for outcome in found}) == 1
    if isinstance(found[0], InferenceResponse):
        assert found[0] == found[1] == found[2]


@given(st.integers(100, 599), st.binary())
def test_any_bytes_are_a_response_or_an_inference_error(status: int, body: bytes) -> None:
    """No bytes raise another error."""
    decode_stream(FORMAT, body, 3)
    try:
        check(FORMAT.decode_response(status, {}, body))
    except InferenceError:
        return
