"""Tests of the decoding of responses of Ollama's native chat API, complete and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloop.errors import BadRequest, ContextLengthExceeded, InferenceError, InvalidResponse, ProviderUnavailable
from agentloop.models import LLMConfig
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import (
    FinishReason,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    Message,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    from_json,
    to_json,
)
from tests.models.generated_requests import json_values
from tests.models.wire_formats.recorded_responses import decode_stream, joined_deltas, joined_parts

FORMAT = wire_format("ollama")
THINKING_DATA = {"ollama": {"thinking": True}}


def line(content: object = "", *, done: object = False, **entries: object) -> dict[str, Any]:
    """Return a line of a response."""
    message = {name: entries.pop(name) for name in ("thinking", "tool_calls") if name in entries}
    return {"model": "m", "message": {"role": "assistant", "content": content, **message}, "done": done, **entries}


def decode(content: object = "", **entries: object) -> InferenceResponse:
    """Decode a complete response."""
    data = line(content, done=True, **{"done_reason": "stop", **entries})
    return FORMAT.decode_response(200, {}, json.dumps(data).encode())


def lines(*data: Any) -> bytes:
    """Return a stream of lines."""
    return b"".join(json.dumps(item).encode() + b"\n" for item in data)


def decode_lines(*data: Any) -> tuple[list[InferenceDelta], InferenceResponse]:
    """Decode a stream of lines."""
    deltas, response = decode_stream(FORMAT, lines(*data), 7)
    assert isinstance(response, InferenceResponse), response
    assert joined_deltas(deltas) == joined_parts(response)
    return deltas, response


ADD = {"function": {"name": "add", "arguments": {"a": 1.5, "b": None}}}


def test_reasoning_precedes_the_text_and_calls_follow_it() -> None:
    """Model, tokens and finish reason are decoded too."""
    response = decode(
        "so", thinking="hm", tool_calls=[ADD, {"id": "c", **ADD}], prompt_eval_count=3, eval_count=2, total_duration=1
    )
    assert response == InferenceResponse(
        (
            Reasoning("hm", provider_data=THINKING_DATA),
            Text("so"),
            ToolCall("", "add", '{"a":1.5,"b":null}'),
            ToolCall("c", "add", '{"a":1.5,"b":null}'),
        ),
        FinishReason.TOOL_CALLS,
        Usage(3, 2),
        "m",
        provider_finish_reason="stop",
    )


def test_a_stream_is_decoded_like_a_complete_response() -> None:
    """Fragments of reasoning and text are joined; each call is complete."""
    deltas, response = decode_lines(
        line(thinking="h"),
        line(thinking="m"),
        line("s"),
        line("o", tool_calls=[ADD]),
        line(tool_calls=[{"id": "c", **ADD}]),
        line(done=True, done_reason="stop", prompt_eval_count=3, eval_count=2),
    )
    assert response == decode(
        "so", thinking="hm", tool_calls=[ADD, {"id": "c", **ADD}], prompt_eval_count=3, eval_count=2
    )
    kinds = ["reasoning", "reasoning", "text", "text", *["tool_call", "arguments"] * 2]
    assert [delta.kind for delta in deltas] == kinds


def test_reasoning_may_follow_text() -> None:
    """Reasoning after a text is a part of its own."""
    _, response = decode_lines(line(thinking="a"), line("b"), line(thinking="c"), line("d", done=True))
    assert [part.text for part in response.parts if isinstance(part, Text | Reasoning)] == ["a", "b", "c", "d"]


def test_reasoning_is_sent_back_to_the_model() -> None:
    """The encoding of a decoded response equals the original."""
    message = Message.of_response(decode("so", thinking="hm").parts, [])
    config = LLMConfig(model="m", base_url="http://localhost:11434", wire_format="ollama")
    body = FORMAT.encode_request(InferenceRequest((message,)), config).body
    assert json.loads(body)["messages"] == [{"role": "assistant", "content": "so", "thinking": "hm"}]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("load", FinishReason.ERROR),
        ("", FinishReason.UNKNOWN),
        (None, FinishReason.UNKNOWN),
        (5, FinishReason.OTHER),
    ],
)
def test_finish_reasons_are_translated(reason: object, expected: FinishReason) -> None:
    """Unknown reasons become OTHER, and Ollama's own reason is kept."""
    response = decode("so", done_reason=reason)
    assert response.finish_reason is expected
    assert response.provider_finish_reason == ("5" if reason == 5 else reason or None)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("stop", FinishReason.TOOL_CALLS), (None, FinishReason.TOOL_CALLS), ("length", FinishReason.LENGTH)],
)
def test_a_response_with_calls_has_finish_reason_tool_calls_unless_truncated(
    reason: object, expected: FinishReason
) -> None:
    """Ollama reports `stop` for a response with calls."""
    assert decode(tool_calls=[ADD], done_reason=reason).finish_reason is expected


@pytest.mark.parametrize(("arguments", "text"), [({}, "{}"), (None, "{}"), ('{"a": 1}', '{"a": 1}'), ("", "{}")])
def test_arguments_may_be_missing_or_text(arguments: object, text: str) -> None:
    """All representations of arguments are supported."""
    call = {"function": {"name": "add", "arguments": arguments}}
    assert decode(tool_calls=[call]).tool_calls == (ToolCall("", "add", text),)


def test_an_error_in_a_stream_is_raised() -> None:
    """An error line ends the stream, also without a line end."""
    body = lines(line("so")) + b'{"error": "an internal error was encountered"}'
    deltas, response = decode_stream(FORMAT, body, 7)
    assert [delta.text for delta in deltas] == ["so"]
    assert isinstance(response, ProviderUnavailable)
    assert "internal error was encountered" in str(response)
    with pytest.raises(BadRequest, match="does not support"):
        FORMAT.decode_response(200, {}, b'{"error": "the model does not support tools"}')


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (404, "model 'm' not found", BadRequest),
        (400, "the input length exceeds the context length", ContextLengthExceeded),
        (500, "llama runner process has terminated", ProviderUnavailable),
        (503, "server busy, please try again", ProviderUnavailable),
    ],
)
def test_errors_are_typed(status: int, message: str, kind: type[InferenceError]) -> None:
    """Status and message determine the class."""
    with pytest.raises(kind, match=message[:20]) as caught:
        FORMAT.decode_response(status, {}, json.dumps({"error": message}).encode())
    assert caught.value.status == status


def test_a_truncated_stream_is_an_invalid_response() -> None:
    """Without a line that says `done`, the stream is incomplete."""
    body = lines(line("so"), line("on"))
    for length in (0, 10, len(body)):
        assert isinstance(decode_stream(FORMAT, body[:length], 7)[1], InvalidResponse)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"5",
        b'{"message": null}',
        b'{"message": 5}',
        b'{"message": {"tool_calls": 5}}',
        b'{"message": {"tool_calls": [5]}}',
        b'{"message": {"tool_calls": [{"function": 5}]}}',
        b"<html></html>",
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_an_invalid_body_is_an_invalid_response(body: bytes) -> None:
    """The error quotes the body, truncated; the same applies to streams."""
    with pytest.raises(InvalidResponse) as caught:
        FORMAT.decode_response(200, {"x-request-id": "r"}, body)
    assert (caught.value.status, caught.value.request_id) == (200, "r")
    assert len(str(caught.value)) < 800
    assert isinstance(decode_stream(FORMAT, body, 1000)[1], InvalidResponse)


def any_of(*likely: Any, **entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generate objects with some of these entries, or sometimes any other value."""
    return st.one_of(st.fixed_dictionaries({}, optional=entries), st.sampled_from(likely), json_values)


functions = any_of(None, name=st.text() | json_values, arguments=json_values)
calls = any_of({}, id=st.text() | json_values, function=functions)
messages = any_of(
    {},
    content=st.text() | json_values,
    thinking=st.text() | json_values,
    tool_calls=st.lists(calls, max_size=3) | json_values,
)
bodies = any_of(
    {},
    message=messages,
    done=st.booleans() | json_values,
    done_reason=json_values,
    model=json_values,
    prompt_eval_count=json_values,
    eval_count=json_values,
    error=json_values,
)


def check(response: InferenceResponse) -> None:
    """Check that a response can be serialized."""
    assert from_json(to_json(response), InferenceResponse) == response


@given(st.lists(bodies, max_size=3), st.integers(1, 40))
@example([line("\ud800", done=True)], 5)
@example([line("so", done=True, eval_count=10**400)], 5)
def test_any_lines_are_a_response_or_an_inference_error(data: list[Any], size: int) -> None:
    """No malformed line raises another error."""
    deltas, response = decode_stream(FORMAT, lines(*data), size)
    at_once = decode_stream(FORMAT, lines(*data), 1 << 30)[0]
    assert at_once == deltas[: len(at_once)]  # an error discards the other deltas of its chunk
    if isinstance(response, InferenceResponse):
        assert at_once == deltas
        check(response)
        assert joined_deltas(deltas) == joined_parts(response)
    for item in data:
        try:
            check(FORMAT.decode_response(200, {}, json.dumps(item).encode()))
        except InferenceError:
            continue


GOOD = lines(line(thinking="é"), line("so", tool_calls=[ADD]), line(done=True, done_reason="stop", eval_count=2))


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
