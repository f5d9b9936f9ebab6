"""An answer counts when all of it has arrived: errors in answers, and answers without their end, in every wire format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from attrs import frozen

from agentloop.errors import (
    AuthenticationError,
    BadRequest,
    ContextLengthExceeded,
    InferenceError,
    InvalidResponse,
    ProviderUnavailable,
    RateLimited,
)
from agentloop.models.wire_formats.wire_format import WIRE_FORMATS, wire_format
from agentloop.values import FinishReason, InferenceResponse
from tests.models.wire_formats.aws_events import aws_event

Event = tuple[str, Mapping[str, Any]]


@frozen
class Sample:
    """A streamed answer with one call, in a wire format.

    Attributes:
        before: the events up to and including the complete call.
        end: the events that end the answer.
        body: the same answer in one piece.
        framing: how the stream is split into events: server-sent events, lines of JSON, or messages of AWS.
    """

    before: tuple[Event, ...]
    end: tuple[Event, ...]
    body: Mapping[str, Any]
    framing: Literal["events", "lines", "aws"] = "events"

    def encode(self, *events: Event | bytes) -> bytes:
        """Encode events; bytes are sent unchanged."""
        return b"".join([event if isinstance(event, bytes) else self._encode(*event) for event in events])

    def _encode(self, name: str, data: Mapping[str, Any]) -> bytes:
        text = json.dumps(data)
        if self.framing == "lines":
            return f"{text}\n".encode()
        if self.framing == "aws":
            return aws_event(name, data)
        return f"event: {name}\ndata: {text}\n\n".encode() if name else f"data: {text}\n\n".encode()


def _responses_event(kind: str, **data: Any) -> Event:
    return kind, {"type": kind, **data}


def _messages_event(kind: str, **data: Any) -> Event:
    return kind, {"type": kind, **data}


def _chunk(delta: Mapping[str, Any], finish: str | None = None) -> Event:
    return "", {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


ARGUMENTS = '{"to": "Bob"}'
_CHAT_CALL = {"index": 0, "id": "c0", "type": "function", "function": {"name": "pay", "arguments": ARGUMENTS}}
_ITEM = {
    "type": "function_call",
    "id": "f",
    "call_id": "c0",
    "name": "pay",
    "arguments": ARGUMENTS,
    "status": "completed",
}
_RESPONSE = {"id": "r", "object": "response", "status": "completed", "model": "m", "output": [_ITEM]}
_BLOCK = {"type": "tool_use", "id": "c0", "name": "pay"}
_MESSAGE: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
_GEMINI_PARTS = {"role": "model", "parts": [{"functionCall": {"name": "pay", "args": {"to": "Bob"}}}]}
_OLLAMA_MESSAGE = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"function": {"name": "pay", "arguments": {"to": "Bob"}}}],
}
_CONVERSE_CALL = {"toolUseId": "c0", "name": "pay"}
_COHERE_START = {"id": "c0", "type": "function", "function": {"name": "pay", "arguments": ""}}
_COHERE_FRAGMENT = {"function": {"arguments": ARGUMENTS}}
SAMPLES = {
    "openai-chat": Sample(
        (_chunk({"content": "I pay "}), _chunk({"tool_calls": [_CHAT_CALL]})),
        (_chunk({}, "tool_calls"),),
        {"choices": [{"message": {"content": "I pay ", "tool_calls": [_CHAT_CALL]}, "finish_reason": "tool_calls"}]},
    ),
    "openai-responses": Sample(
        (
            _responses_event("response.created", response={**_RESPONSE, "status": "in_progress", "output": []}),
            _responses_event("response.output_item.added", output_index=0, item={**_ITEM, "arguments": ""}),
            _responses_event("response.output_item.done", output_index=0, item=_ITEM),
        ),
        (_responses_event("response.completed", response=_RESPONSE),),
        _RESPONSE,
    ),
    "anthropic-messages": Sample(
        (
            _messages_event("message_start", message=_MESSAGE),
            _messages_event("content_block_start", index=0, content_block={**_BLOCK, "input": {}}),
            _messages_event(
                "content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": ARGUMENTS}
            ),
            _messages_event("content_block_stop", index=0),
        ),
        (_messages_event("message_delta", delta={"stop_reason": "tool_use"}), _messages_event("message_stop")),
        {**_MESSAGE, "content": [{**_BLOCK, "input": {"to": "Bob"}}], "stop_reason": "tool_use"},
    ),
    "gemini": Sample(
        (("", {"candidates": [{"index": 0, "content": _GEMINI_PARTS}]}),),
        (("", {"candidates": [{"index": 0, "content": {"parts": [{"text": ""}]}, "finishReason": "STOP"}]}),),
        {"candidates": [{"content": _GEMINI_PARTS, "finishReason": "STOP"}]},
    ),
    "ollama": Sample(
        (("", {"model": "m", "message": _OLLAMA_MESSAGE, "done": False}),),
        (("", {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}),),
        {"model": "m", "message": _OLLAMA_MESSAGE, "done": True, "done_reason": "stop"},
        framing="lines",
    ),
    "bedrock-converse": Sample(
        (
            ("messageStart", {"role": "assistant"}),
            ("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": _CONVERSE_CALL}}),
            ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"toolUse": {"input": ARGUMENTS}}}),
            ("contentBlockStop", {"contentBlockIndex": 0}),
        ),
        (("messageStop", {"stopReason": "tool_use"}),),
        {
            "output": {
                "message": {"role": "assistant", "content": [{"toolUse": {**_CONVERSE_CALL, "input": {"to": "Bob"}}}]}
            },
            "stopReason": "tool_use",
        },
        framing="aws",
    ),
    "cohere-v2": Sample(
        (
            _messages_event("message-start", id="r", delta={"message": {"role": "assistant", "tool_plan": ""}}),
            _messages_event("tool-plan-delta", delta={"message": {"tool_plan": "I pay "}}),
            _messages_event("tool-call-start", index=0, delta={"message": {"tool_calls": _COHERE_START}}),
            _messages_event("tool-call-delta", index=0, delta={"message": {"tool_calls": _COHERE_FRAGMENT}}),
            _messages_event("tool-call-end", index=0),
        ),
        (_messages_event("message-end", delta={"finish_reason": "TOOL_CALL"}),),
        {
            "id": "r",
            "message": {
                "tool_plan": "I pay ",
                "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "pay", "arguments": ARGUMENTS}}],
            },
            "finish_reason": "TOOL_CALL",
        },
    ),
}

ERRORS: list[tuple[Any, type[InferenceError]]] = [
    ({"code": 502, "message": "the upstream has gone away"}, ProviderUnavailable),
    ({"code": "503", "message": "m"}, ProviderUnavailable),
    ({"status": 529, "message": "m"}, ProviderUnavailable),
    ({"type": "overloaded_error", "message": "m"}, ProviderUnavailable),
    ({"message": "an error was encountered while running the model: unexpected EOF"}, ProviderUnavailable),
    ("llama runner process has terminated: exit status 2", ProviderUnavailable),
    ({"code": 429, "message": "m"}, RateLimited),
    ({"type": "rate_limit_error", "message": "m"}, RateLimited),
    ({"code": 401, "message": "m"}, AuthenticationError),
    ({"code": "context_length_exceeded", "message": "m"}, ContextLengthExceeded),
    ({"type": "invalid_request_error", "message": "m"}, BadRequest),
    ({"code": 400, "message": "m"}, BadRequest),
]

formats = pytest.mark.parametrize("name", WIRE_FORMATS)
errors = pytest.mark.parametrize(("error", "kind"), ERRORS)


def outcome(name: str, stream: bytes) -> InferenceResponse | InferenceError:
    """Decode a stream."""
    decoder = wire_format(name).stream_decoder()
    try:
        decoder.feed(stream)
        return decoder.close()
    except InferenceError as error:
        return error


def outcome_of_body(name: str, body: Mapping[str, Any]) -> InferenceResponse | InferenceError:
    """Decode a complete response."""
    try:
        return wire_format(name).decode_response(200, {}, json.dumps(body).encode())
    except InferenceError as error:
        return error


@formats
def test_the_samples_are_whole_answers(name: str) -> None:
    """The stream and the body contain one call."""
    sample = SAMPLES[name]
    for decoded in (outcome(name, sample.encode(*sample.before, *sample.end)), outcome_of_body(name, sample.body)):
        assert isinstance(decoded, InferenceResponse)
        assert ([call.name for call in decoded.tool_calls], decoded.finish_reason) == (["pay"], FinishReason.TOOL_CALLS)


@formats
@errors
def test_an_error_anywhere_in_a_stream_is_typed(name: str, error: Any, kind: type[InferenceError]) -> None:
    """It is raised at the start, after a complete call, next to the end of the answer, and after it."""
    sample = SAMPLES[name]
    event, before, end = ("", {"error": error}), sample.before, sample.end
    last_name, last = end[-1]
    streams: list[list[Event]] = [
        [event],
        [*before[:1], event],
        [*before, event],
        [*before, event, *end],
        [*before, *end[:-1], (last_name, {**last, "error": error})],
        [*before, *end, event],
    ]
    for events in streams:
        assert type(outcome(name, sample.encode(*events))) is kind


@formats
@errors
def test_an_error_next_to_an_answer_in_one_piece_is_typed(name: str, error: Any, kind: type[InferenceError]) -> None:
    """A body with an error is no answer, whatever else it contains."""
    assert type(outcome_of_body(name, {**SAMPLES[name].body, "error": error})) is kind


@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if sample.framing == "events"])
@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b'event: error\ndata: {"code": 429, "message": "m", "type": "rate_limit_error"}\n\n', RateLimited),
        (b'event: error\ndata: "slow down: rate limit"\n\n', RateLimited),
        (b"event: error\ndata: upstream timeout\n\n", ProviderUnavailable),
        (b"event: error\ndata: [1]\n\n", ProviderUnavailable),
        (b"event: error\ndata:\n\n", ProviderUnavailable),
        (b"event: error\n\n", ProviderUnavailable),
        (b'event: response.error\ndata: {"message": "internal"}\n\n', ProviderUnavailable),
        (b'error: {"code": 500, "message": "m", "type": "server_error"}\n\n', ProviderUnavailable),
        (b'{"error": {"code": 503, "message": "m"}}\n\n', ProviderUnavailable),
        (json.dumps({"error": {"code": 429, "message": "m", "status": "x"}}, indent=2).encode() + b"\n\n", RateLimited),
        (b'{\r\n  "error": {\r\n    "code": 401,\r\n    "message": "m"\r\n  }\r\n}\r\n\r\n', AuthenticationError),
        (b'data: {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}\n\n', ProviderUnavailable),
        (b'data: {"object": "error", "code": 429, "message": "m"}\n\n', RateLimited),
    ],
)
def test_an_event_named_error_is_an_error(name: str, raw: bytes, kind: type[InferenceError]) -> None:
    """The name of an event decides, whatever its data are; some services send errors in forms of their own."""
    sample = SAMPLES[name]
    for before, after in ((sample.before[:1], ()), (sample.before, sample.end), (sample.before + sample.end, ())):
        assert type(outcome(name, sample.encode(*before, raw, *after))) is kind


@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if sample.framing == "events"])
def test_an_error_of_several_lines_is_an_error_wherever_it_ends(name: str) -> None:
    """A service may end the stream after it, or the connection may break in it."""
    sample = SAMPLES[name]
    raw = json.dumps({"error": {"code": 429, "message": "Resource exhausted: quota"}}, indent=2).encode()
    for size in (len(raw), len(raw) - 1, raw.index(b'"message"')):
        error = outcome(name, sample.encode(*sample.before, raw[:size]))
        assert type(error) is (RateLimited if b"quota" in raw[:size] else ProviderUnavailable)


@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if sample.framing == "events"])
@pytest.mark.parametrize(
    "raw",
    [
        b"data:\n\n",
        b"data: \n\n",
        b"data\n\n",
        b"data:\ndata: \n\n",
        b"event: ping\ndata:\n\n",
        b"id: 7\r\nevent: keepalive\r\ndata: \r\n\r\n",
        b': alive\n{\n  "status": "alive"\n}\n\n',
    ],
)
def test_an_event_without_data_is_skipped(name: str, raw: bytes) -> None:
    """Proxies send such events to keep a connection open, anywhere in a stream; they do not make an answer of nothing."""
    sample = SAMPLES[name]
    events = [*sample.before, *sample.end]
    whole = outcome(name, sample.encode(*events))
    assert isinstance(whole, InferenceResponse)
    for position in range(len(events) + 1):
        assert outcome(name, sample.encode(*events[:position], raw, *events[position:])) == whole
    nothing = outcome(name, raw)
    assert isinstance(nothing, InvalidResponse)
    assert nothing.retryable


@formats
def test_a_stream_without_its_end_is_an_invalid_response(name: str) -> None:
    """Another attempt may bring the whole answer; complete calls do not show that it is whole."""
    sample = SAMPLES[name]
    for count in range(len(sample.before) + 1):
        cut = outcome(name, sample.encode(*sample.before[:count]))
        assert isinstance(cut, InvalidResponse)
        assert cut.retryable


_LAST_EVENTS: Mapping[str, tuple[Event | bytes, ...]] = {
    "openai-chat": (b"data: [DONE]\n\n",),
    "bedrock-converse": (("metadata", {"usage": {"inputTokens": 1, "outputTokens": 1}}),),
}
"""What follows the end of some samples and is the last event of the service."""


@pytest.mark.parametrize("name", [name for name in WIRE_FORMATS if name != "gemini"])
def test_the_last_event_of_a_service_says_that_the_answer_is_complete(name: str) -> None:
    """Nothing before it does: the token counts may follow the finish reason, as they always may in Gemini."""
    sample = SAMPLES[name]
    events: list[Event | bytes] = [*sample.before, *sample.end, *_LAST_EVENTS.get(name, ())]
    *before, last = events
    decoder = wire_format(name).stream_decoder()
    for event in before:
        decoder.feed(sample.encode(event))
        assert not decoder.is_done
    decoder.feed(sample.encode(last))
    assert decoder.is_done
    assert decoder.close() == outcome(name, sample.encode(*before, last))


@formats
def test_a_stream_that_was_cut_anywhere_is_whole_or_retried(name: str) -> None:
    """The connection may break within an event, which is not seen where its end is that of the body."""
    sample = SAMPLES[name]
    stream = sample.encode(*sample.before, *sample.end, *_LAST_EVENTS.get(name, ()))
    whole = outcome(name, stream)
    assert isinstance(whole, InferenceResponse)
    for size in range(len(stream)):
        cut = outcome(name, stream[:size])
        if isinstance(cut, InferenceResponse):
            assert cut.parts == whole.parts
        else:
            assert isinstance(cut, InvalidResponse)
            assert cut.retryable, stream[:size]


@formats
def test_a_body_without_its_end_is_an_invalid_response(name: str) -> None:
    """JSON that ends early is retried, other bytes that are not JSON are not."""
    body = json.dumps(SAMPLES[name].body).encode()
    for data, is_retryable in ((body[:-1], True), (body[: len(body) // 2], True), (body + b"}", False), (b"no", False)):
        with pytest.raises(InvalidResponse) as raised:
            wire_format(name).decode_response(200, {}, data)
        assert raised.value.retryable is is_retryable


@pytest.mark.parametrize("status", ["cancelled", "in_progress", "queued", "expired"])
def test_a_response_that_did_not_end_is_an_invalid_response(status: str) -> None:
    """The calls of a response that was cancelled, or is still in progress, are not returned."""
    sample, ended = SAMPLES["openai-responses"], {**_RESPONSE, "status": status}
    last = _responses_event(f"response.{status if status == 'cancelled' else 'completed'}", response=ended)
    for decoded in (
        outcome("openai-responses", sample.encode(*sample.before, last)),
        outcome_of_body("openai-responses", ended),
    ):
        assert isinstance(decoded, InvalidResponse)
        assert decoded.retryable


@pytest.mark.parametrize(
    ("name", "entry", "word", "reason"),
    [
        ("openai-chat", "finish_reason", "function_call_filter: MALFORMED_FUNCTION_CALL", FinishReason.ERROR),
        ("openai-chat", "finish_reason", "insufficient_system_resource", FinishReason.ERROR),
        ("openai-chat", "finish_reason", "abort", FinishReason.ERROR),
        ("openai-chat", "finish_reason", "network_error", FinishReason.ERROR),
        ("openai-chat", "finish_reason", "sensitive", FinishReason.CONTENT_FILTER),
        ("openai-chat", "finish_reason", "MAX_TOKENS", FinishReason.LENGTH),
        ("gemini", "finishReason", "MALFORMED_FUNCTION_CALL", FinishReason.ERROR),
        ("gemini", "finishReason", "MALFORMED_SOMETHING", FinishReason.ERROR),
        ("gemini", "finishReason", "IMAGE_OTHER", FinishReason.OTHER),
        ("anthropic-messages", "stop_reason", "error", FinishReason.ERROR),
        ("ollama", "done_reason", "aborted", FinishReason.ERROR),
        ("bedrock-converse", "stopReason", "malformed_something", FinishReason.ERROR),
        ("cohere-v2", "finish_reason", "ERROR_SOMETHING", FinishReason.ERROR),
    ],
)
def test_finish_reasons_that_report_a_failure_are_not_normal_ends(
    name: str, entry: str, word: str, reason: FinishReason
) -> None:
    """Reasons that a format does not define are classified by their words, also beside calls."""

    def replaced(value: Any) -> Any:
        if isinstance(value, list):
            return [replaced(item) for item in value]
        return {k: word if k == entry else replaced(v) for k, v in value.items()} if isinstance(value, dict) else value

    decoded = outcome_of_body(name, replaced(dict(SAMPLES[name].body)))
    assert isinstance(decoded, InferenceResponse)
    assert decoded.finish_reason is reason


def test_an_answer_with_far_too_many_parts_is_invalid() -> None:
    """An answer has at most 10,000 parts: each is built, checked and recorded."""
    content = [{"type": "tool_use", "id": str(number), "name": "a", "input": {}} for number in range(10_001)]
    body = json.dumps({"type": "message", "role": "assistant", "content": content, "stop_reason": "tool_use"})
    with pytest.raises(InvalidResponse) as caught:
        wire_format("anthropic-messages").decode_response(200, {}, body.encode())
    assert "more than 10,000 parts" in f"{caught.value} {caught.value.__cause__}"
