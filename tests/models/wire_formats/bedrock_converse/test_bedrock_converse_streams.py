"""Tests of AWS event streams and of the streams of the Converse API, compared with what botocore reads from the same bytes."""

from __future__ import annotations

import json
import struct
from binascii import crc32
from typing import Any

import pytest
from botocore.eventstream import ChecksumMismatch, EventStreamBuffer
from botocore.exceptions import EventStreamError
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import (
    BadRequest,
    ContextLengthExceeded,
    InferenceError,
    InvalidResponse,
    ProviderUnavailable,
    RateLimited,
)
from agentloop.models.wire_formats.framing import DAMAGE, AwsEventStream, ServerSentEvent
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import FinishReason, InferenceResponse, ProviderPart, Reasoning, Text, ToolCall, Usage, thaw
from agentloop.values.json import format_json
from tests.models.generated_requests import json_values
from tests.models.wire_formats.aws_events import aws_event, aws_frame, aws_header, aws_message
from tests.models.wire_formats.bedrock_converse.aws_model import folded, read_stream
from tests.models.wire_formats.bedrock_converse.test_bedrock_converse_responses import (
    CALL,
    REASONING,
    SERVER_CALL,
    SERVER_RESULT,
    answer,
    blocks,
)
from tests.models.wire_formats.recorded_responses import decode_stream, joined_deltas, joined_parts

FORMAT = wire_format("bedrock-converse")
USAGE = {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5}


def fragments(index: int, *deltas: Any) -> list[tuple[str, Any]]:
    """Return the events of the deltas of a block."""
    return [("contentBlockDelta", {"contentBlockIndex": index, "delta": delta, "p": "abc"}) for delta in deltas]


def block_events(index: int, block: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the events that Bedrock sends for a block."""
    end = ("contentBlockStop", {"contentBlockIndex": index})
    if "text" in block:
        return [*fragments(index, *[{"text": character} for character in block["text"]]), end]
    if "reasoningContent" in block:
        thought = block["reasoningContent"].get("reasoningText")
        if thought is None:
            return [*fragments(index, {"reasoningContent": block["reasoningContent"]}), end]
        parts = [{"text": thought["text"]}, {"signature": thought["signature"]}]
        return [*fragments(index, *[{"reasoningContent": part} for part in parts]), end]
    kind, content = next(iter(block.items()))
    start = {name: value for name, value in content.items() if name not in {"input", "content"}}
    started = ("contentBlockStart", {"contentBlockIndex": index, "start": {kind: start}})
    if kind == "toolResult":
        return [started, *fragments(index, {kind: content["content"]}), end]
    text = format_json(content["input"]).decode()
    pieces = [text[start : start + 7] for start in range(0, len(text), 7)] if content["input"] else []
    return [started, *fragments(index, *[{"toolUse": {"input": piece}} for piece in pieces]), end]


def stream(*content: Any, reason: str = "end_turn", usage: Any = USAGE) -> bytes:
    """Return a stream with these blocks."""
    events: list[tuple[str, Any]] = [("messageStart", {"role": "assistant"})]
    for index, block in enumerate(content):
        events += block_events(index, block)
    events.append(("messageStop", {"stopReason": reason}))
    events.append(("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}))
    return b"".join(aws_event(name, data) for name, data in events)


def decode(data: bytes, size: int = 1 << 30) -> InferenceResponse:
    """Decode a stream whose deltas add up to the response."""
    deltas, response = decode_stream(FORMAT, data, size)
    assert isinstance(response, InferenceResponse), response
    text, reasoning, calls = joined_deltas(deltas)
    # A call without arguments has no fragments.
    assert (text, reasoning, [(*call[:2], call[2] or "{}") for call in calls]) == joined_parts(response)
    return response


def error_of(data: bytes) -> InferenceError:
    """Decode a stream that contains an error."""
    _, error = decode_stream(FORMAT, data, 1 << 30)
    assert isinstance(error, InferenceError), error
    return error


# --- answers -----------------------------------------------------------------------------------------------------------


def test_a_streamed_answer_has_all_parts() -> None:
    """Blocks of all kinds are joined; the last event has the token counts."""
    response = decode(stream(REASONING, {"text": "só"}, SERVER_CALL, SERVER_RESULT, CALL, reason="tool_use"), 5)
    assert response.parts == (
        Reasoning("hm", provider_data={"bedrock-converse": {"signature": "sig"}}),
        Text("só"),
        ProviderPart("bedrock-converse", SERVER_CALL),
        ProviderPart("bedrock-converse", SERVER_RESULT),
        ToolCall("t", "add", '{"a":1}'),
    )
    assert (response.finish_reason, response.usage) == (FinishReason.TOOL_CALLS, Usage(3, 2))


def test_citations_and_split_redactions_are_joined() -> None:
    """A text with citations is one block; fragments of encrypted reasoning are bytes, not text."""
    events = [
        *fragments(
            0, {"reasoningContent": {"redactedContent": "AA=="}}, {"reasoningContent": {"redactedContent": "AQ=="}}
        ),
        *fragments(1, {"text": "It is "}, {"citation": {"title": "a"}}, {"text": "4."}),
        ("contentBlockStart", {"contentBlockIndex": 2, "start": {"image": {"format": "png"}}}),
        *fragments(2, {"image": {"source": {"bytes": "AA=="}}}),
        ("messageStop", {"stopReason": "end_turn"}),
    ]
    response = decode(b"".join(aws_event(name, data) for name, data in events))
    cited = {"citationsContent": {"content": [{"text": "It is 4."}], "citations": [{"title": "a"}]}}
    assert response.parts == (
        ProviderPart("bedrock-converse", {"reasoningContent": {"redactedContent": "AAE="}}),
        Text("It is 4.", provider_data={"bedrock-converse": {"block": cited}}),
        ProviderPart("bedrock-converse", {"image": {"format": "png", "source": {"bytes": "AA=="}}}),
    )


@given(st.lists(blocks, max_size=4), st.sampled_from(["end_turn", "tool_use"]), st.integers(1, 60))
def test_streams_are_read_as_botocore_reads_them(content: list[Any], reason: str, size: int) -> None:
    """Text, reasoning, calls, stop reason and tokens are those of boto3, and the response is that of the same answer in one piece."""
    data = stream(*content, reason=reason)
    ours, theirs = decode(data, size), folded(read_stream(data))
    calls = [(call.id, call.name, thaw(call.arguments)) for call in ours.tool_calls]
    assert (ours.text, ours.reasoning, calls) == (theirs["text"], theirs["reasoning"], theirs["calls"])
    assert (ours.provider_finish_reason, ours.usage.input_tokens) == (theirs["end"], theirs["usage"]["inputTokens"])
    whole = json.dumps(answer(*content, reason=reason, usage=USAGE), ensure_ascii=False).encode()
    assert ours == FORMAT.decode_response(200, {}, whole)


def test_a_call_that_was_cut_off_does_not_run() -> None:
    """A call without fragments has no arguments, and a beginning of JSON is no object."""
    empty, partial = (
        decode(
            b"".join(
                [
                    aws_event("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": {"name": "wipe"}}}),
                    *[aws_event(*event) for event in fragments(0, *deltas)],
                    aws_event("messageStop", {"stopReason": "max_tokens"}),
                ]
            )
        )
        for deltas in ([], [{"toolUse": {"input": '{"a": '}}])
    )
    assert empty.tool_calls[0].rejection
    assert partial.tool_calls[0].arguments_json == '{"a": '


def test_a_service_that_does_not_stream_is_understood() -> None:
    """A complete body in place of a stream is decoded."""
    assert decode_stream(FORMAT, json.dumps(answer({"text": "so"})).encode(), 7)[1] == FORMAT.decode_response(
        200, {}, json.dumps(answer({"text": "so"})).encode()
    )


# --- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "kind", "status"),
    [
        ("throttlingException", {"message": "slow"}, RateLimited, 429),
        ("validationException", {"message": "bad"}, BadRequest, 400),
        ("validationException", {"message": "Input is too long for requested model"}, ContextLengthExceeded, 400),
        ("internalServerException", {"message": "m"}, ProviderUnavailable, 500),
        ("serviceUnavailableException", {"message": "m"}, ProviderUnavailable, 503),
        ("modelStreamErrorException", {"message": "m"}, ProviderUnavailable, 424),
        ("modelStreamErrorException", {"originalStatusCode": 429, "originalMessage": "m"}, RateLimited, 429),
        ("newException", {"message": "m"}, ProviderUnavailable, 200),
    ],
)
def test_an_exception_in_a_stream_is_typed(name: str, data: Any, kind: type[InferenceError], status: int) -> None:
    """Also after an answer that is complete; boto3 raises for the same bytes."""
    for before in (b"", stream({"text": "so"})):
        body = before + aws_event(name, data, "exception")
        error = error_of(body)
        assert (type(error), error.status) == (kind, status)
        assert name in str(error)
        with pytest.raises(EventStreamError):
            read_stream(body)


def test_an_error_message_of_the_transport_is_an_error() -> None:
    """It has code and message in its headers."""
    headers = {":message-type": "error", ":error-code": "InternalServerException", ":error-message": "it broke"}
    error = error_of(stream({"text": "so"}) + aws_message(headers))
    assert isinstance(error, ProviderUnavailable)
    assert "it broke (InternalServerException)" in str(error)


def test_a_payload_that_is_no_json_is_an_invalid_response() -> None:
    """An exception without JSON has its text as the message."""
    headers = {":message-type": "event", ":event-type": "contentBlockDelta"}
    assert "is not JSON" in str(error_of(aws_message(headers, b"oops")))
    headers = {":message-type": "exception", ":exception-type": "throttlingException"}
    assert "oops" in str(error_of(aws_message(headers, b"oops")))


# --- framing -----------------------------------------------------------------------------------------------------------

GOOD = stream(REASONING, {"text": "só"}, CALL, reason="tool_use")
FIRST = aws_event("messageStart", {"role": "assistant"})


def read(data: bytes, size: int = 1 << 30) -> list[ServerSentEvent]:
    """Return the events of an event stream that arrives in chunks of this many bytes."""
    framing = AwsEventStream()
    events = [event for start in range(0, len(data), size) for event in framing.feed(data[start : start + size])]
    return [*events, *framing.close()]


def test_a_stream_may_be_cut_at_every_byte() -> None:
    """Events and response do not depend on where chunks end."""
    expected, whole = decode(GOOD), read(GOOD)
    for cut in range(len(GOOD) + 1):
        framing, decoder = AwsEventStream(), FORMAT.stream_decoder()
        assert [*framing.feed(GOOD[:cut]), *framing.feed(GOOD[cut:]), *framing.close()] == whole
        decoder.feed(GOOD[:cut])
        decoder.feed(GOOD[cut:])
        assert decoder.close() == expected


def test_a_stream_that_ends_too_early_is_retried() -> None:
    """Wherever it ends before the message does; the token counts may be missing."""
    end = len(GOOD) - len(aws_event("metadata", {"usage": USAGE, "metrics": {"latencyMs": 1}}))
    for cut in range(end):
        error = error_of(GOOD[:cut])
        assert isinstance(error, InvalidResponse), cut
        assert error.retryable
    assert decode(GOOD[:end]).usage == Usage()


def test_every_damaged_byte_is_found() -> None:
    """A changed byte anywhere is an invalid response that is retried, and events before it are still processed."""
    for position in range(len(GOOD)):
        damaged = bytearray(GOOD)
        damaged[position] ^= 0x20
        for size in (1 << 30, 11):
            _, error = decode_stream(FORMAT, bytes(damaged), size)
            assert isinstance(error, InvalidResponse), position
            assert error.retryable
    body = aws_event("throttlingException", {"message": "slow"}, "exception") + b"\0" * 20
    assert [type(decode_stream(FORMAT, body, size)[1]) for size in (1, 1 << 30)] == [RateLimited, RateLimited]


def test_the_checksums_are_those_that_botocore_checks() -> None:
    """A message with a wrong checksum is refused by both."""
    lengths = struct.pack("!II", len(FIRST), 99)
    for wrong in (FIRST[:-1] + b"\0", lengths + struct.pack("!I", crc32(lengths) ^ 1) + FIRST[12:]):
        buffer = EventStreamBuffer()
        buffer.add_data(wrong)
        with pytest.raises(ChecksumMismatch):
            next(iter(buffer))
        (event,) = read(wrong)
        assert (event.event, "checksum" in event.data) == (DAMAGE, True)


@pytest.mark.parametrize(
    "message",
    [
        aws_message({":message-type": "weather"}),
        aws_message({}),
        aws_frame(aws_header("a", 12, b""), b""),
        aws_frame(b"\x05a", b""),
        aws_frame(aws_header("a", 7, b"\xff\xff"), b""),
        aws_frame(aws_header("a", 5, b"\0"), b""),
        aws_frame(b"\x01a\x07\0", b""),
        struct.pack("!II", 1 << 31, 0) + struct.pack("!I", crc32(struct.pack("!II", 1 << 31, 0))),
        struct.pack("!II", 12, 0) + struct.pack("!I", crc32(struct.pack("!II", 12, 0))),
    ],
)
def test_a_message_that_cannot_be_read_is_damage(message: bytes) -> None:
    """A wrong length is found before the message is buffered; nothing after it is read."""
    assert [event.event for event in read(FIRST + message + FIRST, 3)] == ["messageStart", DAMAGE]


def test_headers_of_all_types_are_skipped() -> None:
    """Only text headers are used; botocore reads the same message."""
    values = [b"", b"", b"\1", b"\0\1", b"\0" * 4, b"\0" * 8, b"\0\2ab", b"\0\2cd", b"\0" * 8, b"\0" * 16]
    more = b"".join(aws_header(f"h{kind}", kind, value) for kind, value in enumerate(values))
    message = aws_message({":message-type": "event", ":event-type": "ping"}, b'{"a": 1}', more)
    assert read(message) == [ServerSentEvent('{"a": 1}', "ping")]
    buffer = EventStreamBuffer()
    buffer.add_data(message)
    assert next(iter(buffer)).payload == b'{"a": 1}'


# --- hostile bytes -----------------------------------------------------------------------------------------------------

event_names = st.sampled_from(
    [
        "messageStart",
        "contentBlockStart",
        "contentBlockDelta",
        "contentBlockStop",
        "messageStop",
        "metadata",
        "",
        DAMAGE,
    ]
)
inner = st.fixed_dictionaries(
    {},
    optional={
        "text": json_values,
        "toolUse": st.fixed_dictionaries({}, optional={"input": json_values, "name": json_values, "type": json_values})
        | json_values,
        "toolResult": json_values,
        "reasoningContent": st.fixed_dictionaries(
            {}, optional={"text": json_values, "signature": json_values, "redactedContent": json_values}
        )
        | json_values,
        "citation": json_values,
        "image": json_values,
    },
)
event_data = st.fixed_dictionaries(
    {},
    optional={
        "contentBlockIndex": st.integers(0, 1) | json_values,
        "start": inner | json_values,
        "delta": inner | json_values,
        "stopReason": st.just("max_tokens") | json_values,
        "usage": json_values,
        "error": json_values,
    },
)


@given(
    st.lists(
        st.tuples(event_names, event_data | json_values, st.sampled_from(["event", "event", "exception"])), max_size=5
    ),
    st.integers(1, 50),
)
def test_any_events_are_a_response_or_an_inference_error(events: list[tuple[str, Any, str]], size: int) -> None:
    """No malformed event raises another error, and the outcome does not depend on the chunks."""
    data = b"".join(aws_event(*event) for event in events)
    deltas, result = decode_stream(FORMAT, data, size)
    at_once = decode_stream(FORMAT, data, 1 << 30)
    assert at_once[0] == deltas[: len(at_once[0])]  # an error discards the other deltas of its chunk
    assert type(at_once[1]) is type(result)
    if isinstance(result, InferenceResponse):
        assert at_once == (deltas, result)


@given(st.binary(max_size=200), st.integers(0, len(GOOD)), st.integers(1, 50))
def test_any_bytes_after_a_stream_are_a_response_or_an_inference_error(tail: bytes, cut: int, size: int) -> None:
    """No bytes raise another error."""
    outcomes = [decode_stream(FORMAT, GOOD[:cut] + tail, step)[1] for step in (size, 1 << 30)]
    assert type(outcomes[0]) is type(outcomes[1])
