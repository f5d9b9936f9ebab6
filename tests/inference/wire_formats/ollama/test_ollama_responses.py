"""Answers of Ollama's own chat API, whole and in lines: what is read, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloop.errors import BadRequest, ContextLengthExceeded, InferenceError, InvalidResponse, ProviderUnavailable
from agentloop.inference import LLMConfig
from agentloop.inference.wire_formats.wire_format import wire_format
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
from tests.inference.generated_requests import json_values
from tests.inference.wire_formats.recorded_responses import decode_stream, joined_deltas, joined_parts

FORMAT = wire_format("ollama")
OWN = {"ollama": {"thinking": True}}


def line(content: object = "", *, done: object = False, **entries: object) -> dict[str, Any]:
    """Make a line of an answer."""
    message = {name: entries.pop(name) for name in ("thinking", "tool_calls") if name in entries}
    return {"model": "m", "message": {"role": "assistant", "content": content, **message}, "done": done, **entries}


def decoded(content: object = "", **entries: object) -> InferenceResponse:
    """Decode an answer in one piece."""
    data = line(content, done=True, **{"done_reason": "stop", **entries})
    return FORMAT.decode_response(200, {}, json.dumps(data).encode())


def lines(*data: Any) -> bytes:
    """Spell a stream."""
    return b"".join(json.dumps(item).encode() + b"\n" for item in data)


def read(*data: Any) -> tuple[list[InferenceDelta], InferenceResponse]:
    """Decode a stream."""
    deltas, found = decode_stream(FORMAT, lines(*data), 7)
    assert isinstance(found, InferenceResponse), found
    assert joined_deltas(deltas) == joined_parts(found)
    return deltas, found


ADD = {"function": {"name": "add", "arguments": {"a": 1.5, "b": None}}}


def test_thoughts_stand_before_the_answer_and_calls_after_it() -> None:
    """An answer is read in the order of thinking, saying and asking; its model, tokens and words are kept."""
    response = decoded(
        "so", thinking="hm", tool_calls=[ADD, {"id": "c", **ADD}], prompt_eval_count=3, eval_count=2, total_duration=1
    )
    assert response == InferenceResponse(
        (
            Reasoning("hm", provider_data=OWN),
            Text("so"),
            ToolCall("", "add", '{"a":1.5,"b":null}'),
            ToolCall("c", "add", '{"a":1.5,"b":null}'),
        ),
        FinishReason.TOOL_CALLS,
        Usage(3, 2),
        "m",
        provider_finish_reason="stop",
    )


def test_a_stream_says_what_it_would_say_in_one_piece() -> None:
    """Thoughts and texts are put together; each call comes whole."""
    deltas, response = read(
        line(thinking="h"),
        line(thinking="m"),
        line("s"),
        line("o", tool_calls=[ADD]),
        line(tool_calls=[{"id": "c", **ADD}]),
        line(done=True, done_reason="stop", prompt_eval_count=3, eval_count=2),
    )
    assert response == decoded(
        "so", thinking="hm", tool_calls=[ADD, {"id": "c", **ADD}], prompt_eval_count=3, eval_count=2
    )
    kinds = ["reasoning", "reasoning", "text", "text", *["tool_call", "arguments"] * 2]
    assert [delta.kind for delta in deltas] == kinds


def test_a_model_may_think_again() -> None:
    """Thoughts after a text are thoughts of their own."""
    _, response = read(line(thinking="a"), line("b"), line(thinking="c"), line("d", done=True))
    assert [part.text for part in response.parts if isinstance(part, Text | Reasoning)] == ["a", "b", "c", "d"]


def test_thoughts_go_back_to_the_model() -> None:
    """What was read goes back as it came."""
    message = Message.of_response(decoded("so", thinking="hm").parts, [])
    config = LLMConfig(model="m", base_url="http://localhost:11434", wire_format="ollama")
    body = FORMAT.encode_request(InferenceRequest((message,)), config).body
    assert json.loads(body)["messages"] == [{"role": "assistant", "content": "so", "thinking": "hm"}]


@pytest.mark.parametrize(
    ("reason", "meant"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("load", FinishReason.OTHER),
        ("", FinishReason.UNKNOWN),
        (None, FinishReason.UNKNOWN),
        (5, FinishReason.UNKNOWN),
    ],
)
def test_finish_reasons_are_put_into_common_words(reason: object, meant: FinishReason) -> None:
    """Known words are translated, unknown ones are other, and Ollama's own word is kept."""
    response = decoded("so", done_reason=reason)
    assert response.finish_reason is meant
    assert response.provider_finish_reason == (reason if isinstance(reason, str) and reason else None)


@pytest.mark.parametrize(
    ("reason", "meant"),
    [("stop", FinishReason.TOOL_CALLS), (None, FinishReason.TOOL_CALLS), ("length", FinishReason.LENGTH)],
)
def test_an_answer_with_calls_ends_for_them_unless_it_was_cut(reason: object, meant: FinishReason) -> None:
    """Ollama has no word for calls; a cut answer is still a cut answer."""
    assert decoded(tool_calls=[ADD], done_reason=reason).finish_reason is meant


@pytest.mark.parametrize(("arguments", "text"), [({}, "{}"), (None, "{}"), ('{"a": 1}', '{"a": 1}'), ("", "{}")])
def test_arguments_may_be_missing_or_text(arguments: object, text: str) -> None:
    """However arguments are spelled, a tool gets them."""
    call = {"function": {"name": "add", "arguments": arguments}}
    assert decoded(tool_calls=[call]).tool_calls == (ToolCall("", "add", text),)


def test_an_error_in_a_stream_is_raised() -> None:
    """An error on a line of its own ends the stream, also when the line has no end."""
    body = lines(line("so")) + b'{"error": "an internal error was encountered"}'
    deltas, found = decode_stream(FORMAT, body, 7)
    assert [delta.text for delta in deltas] == ["so"]
    assert isinstance(found, ProviderUnavailable)
    assert "internal error was encountered" in str(found)
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
    """Status and message say what went wrong."""
    with pytest.raises(kind, match=message[:20]) as caught:
        FORMAT.decode_response(status, {}, json.dumps({"error": message}).encode())
    assert caught.value.status == status


def test_a_stream_that_was_cut_is_no_answer() -> None:
    """Without a line that says that it is done, more was to come."""
    body = lines(line("so"), line("on"))
    for cut in (0, 10, len(body)):
        assert isinstance(decode_stream(FORMAT, body[:cut], 7)[1], InvalidResponse)


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
def test_what_is_no_answer_is_an_invalid_response(body: bytes) -> None:
    """Bytes and JSON of another shape are refused with what came, shortened, also where a stream was asked for."""
    with pytest.raises(InvalidResponse) as caught:
        FORMAT.decode_response(200, {"x-request-id": "r"}, body)
    assert (caught.value.status, caught.value.request_id) == (200, "r")
    assert len(str(caught.value)) < 800
    assert isinstance(decode_stream(FORMAT, body, 1000)[1], InvalidResponse)


def any_of(*likely: Any, **entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Make objects with some of these entries, and now and then something else."""
    return st.one_of(st.fixed_dictionaries({}, optional=entries), st.sampled_from(likely), json_values)


functions = any_of(None, name=st.text() | json_values, arguments=json_values)
calls = any_of({}, id=st.text() | json_values, function=functions)
messages = any_of(
    {},
    content=st.text() | json_values,
    thinking=st.text() | json_values,
    tool_calls=st.lists(calls, max_size=3) | json_values,
)
answers = any_of(
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
    """Check that a response can be stored."""
    assert from_json(to_json(response), InferenceResponse) == response


@given(st.lists(answers, max_size=3), st.integers(1, 40))
@example([line("\ud800", done=True)], 5)
@example([line("so", done=True, eval_count=10**400)], 5)
def test_anything_like_an_answer_is_a_response_or_an_inference_error(data: list[Any], size: int) -> None:
    """No answer with something odd in any of its places raises another error."""
    deltas, found = decode_stream(FORMAT, lines(*data), size)
    assert decode_stream(FORMAT, lines(*data), 1 << 30)[0] == deltas
    if isinstance(found, InferenceResponse):
        check(found)
        assert joined_deltas(deltas) == joined_parts(found)
    for item in data:
        try:
            check(FORMAT.decode_response(200, {}, json.dumps(item).encode()))
        except InferenceError:
            continue


GOOD = lines(line(thinking="é"), line("so", tool_calls=[ADD]), line(done=True, done_reason="stop", eval_count=2))


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
