"""Fuzz tests of the decoding of responses of the Messages API."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import InferenceError
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import InferenceResponse
from tests.models.generated_requests import json_objects, json_values
from tests.models.wire_formats.anthropic_messages.generated_messages import FORMAT
from tests.models.wire_formats.anthropic_messages.sample_messages import (
    BLOCKS,
    assistant_message,
    decode,
    events,
    stream,
)

ODD = st.one_of(json_values, st.sampled_from(["text", "tool_use", "thinking", "message_start", "content_block_delta"]))
odd_blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "tool_use", "x"]) | ODD},
    optional=dict.fromkeys(["text", "thinking", "signature", "id", "name", "input", "citations"], ODD),
)
odd_events = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("message_start"), "message": st.just(assistant_message(stop_reason=None)) | ODD}
    ),
    st.fixed_dictionaries(
        {"type": st.just("content_block_start"), "index": st.integers(0, 1) | ODD, "content_block": odd_blocks | ODD}
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("content_block_delta"),
            "index": st.integers(0, 1),
            "delta": st.dictionaries(st.sampled_from(["type", "text", "partial_json", "citation", "input", "x"]), ODD),
        }
    ),
    st.sampled_from([{"type": "message_stop"}, {"type": "content_block_stop", "index": 0}, {"type": []}]),
    json_objects,
)


@given(st.lists(odd_blocks | ODD, max_size=3), json_objects)
def test_anything_like_a_message_is_a_response_or_an_inference_error(blocks: list[Any], more: dict[str, Any]) -> None:
    """No structure of a response raises another error."""
    for data in (
        {**assistant_message(*blocks), **more},
        {**assistant_message(), "content": blocks and blocks[0], "usage": more},
    ):
        try:
            assert isinstance(decode(data), InferenceResponse)
        except InferenceError:
            continue


@given(st.lists(odd_events, max_size=6))
def test_anything_like_a_stream_is_a_response_or_an_inference_error(stream_events: list[dict[str, Any]]) -> None:
    """No order and no structure of events raises another error."""
    try:
        assert isinstance(
            stream([{"type": "message_start", "message": assistant_message()}, *stream_events])[1], InferenceResponse
        )
    except InferenceError:
        return


@given(st.data())
def test_damaged_bytes_are_a_response_or_an_inference_error(data: st.DataObject) -> None:
    """Random bytes, truncated responses and changed responses raise no other error."""
    complete = json.dumps(assistant_message(*BLOCKS)).encode()
    streamed = b"".join(
        b"data: " + json.dumps(event).encode() + b"\n\n" for event in events(assistant_message(*BLOCKS))
    )
    body = bytearray(data.draw(st.sampled_from([complete, streamed])))
    position = data.draw(st.integers(0, len(body) - 1))
    body[position : position + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    for damaged in (bytes(body), bytes(body[:position]), data.draw(st.binary())):
        for decode_bytes in (decode_complete, decode_streamed):
            try:
                assert isinstance(decode_bytes(damaged), InferenceResponse)
            except InferenceError:
                continue


def decode_complete(body: bytes) -> InferenceResponse:
    """Decode bytes as a complete response."""
    return wire_format(FORMAT).decode_response(200, {}, body)


def decode_streamed(body: bytes) -> InferenceResponse:
    """Decode bytes as a stream."""
    decoder = wire_format(FORMAT).stream_decoder()
    decoder.feed(body)
    return decoder.close()
