"""Tests of the decoding of responses of the Messages API, complete and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
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
from agentloop.values import (
    FinishReason,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
    Message,
    ProviderPart,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    freeze,
)
from tests.models.generated_requests import execution_of, json_objects
from tests.models.wire_formats.anthropic_messages.generated_messages import (
    FORMAT,
    anthropic_data,
    citation,
    encode_json,
    encode_messages,
)
from tests.models.wire_formats.anthropic_messages.sample_messages import (
    BLOCKS,
    USAGE,
    assistant_message,
    decode,
    events,
    stream,
)
from tests.models.wire_formats.recorded_responses import joined_deltas, joined_parts


def test_a_complete_message_is_decoded() -> None:
    """The parts have the order of the blocks and the provider data that the provider expects back."""
    response = decode(assistant_message(*BLOCKS, stop_reason="tool_use"))
    assert response == InferenceResponse(
        (
            Reasoning("hm", provider_data=anthropic_data(signature="s")),
            ProviderPart(FORMAT, freeze(BLOCKS[1])),
            Text("so", provider_data=anthropic_data(citations=[citation])),
            ProviderPart(FORMAT, freeze(BLOCKS[3])),
            ProviderPart(FORMAT, freeze(BLOCKS[4])),
            ToolCall("t1", "add", '{"a":1}', provider_data=anthropic_data(caller={"type": "direct"})),
        ),
        FinishReason.TOOL_CALLS,
        Usage(3, 5),
        "m",
        "msg_1",
        "tool_use",
    )


def test_a_response_is_sent_back_unchanged() -> None:
    """Signatures, redacted thinking, citations and unknown blocks are echoed in their order."""
    response = decode(assistant_message(*BLOCKS))
    message = Message.of_response(response.parts, [execution_of(response.tool_calls[0], value=2)])
    assert encode_messages(message)[0] == {"role": "assistant", "content": BLOCKS}


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("tool_use", FinishReason.TOOL_CALLS),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("refusal", FinishReason.CONTENT_FILTER),
        ("pause_turn", FinishReason.OTHER),
        ("compaction", FinishReason.OTHER),
        (None, FinishReason.UNKNOWN),
    ],
)
def test_stop_reasons_are_translated(reason: str | None, expected: FinishReason) -> None:
    """The provider's own reason is kept."""
    response = decode(assistant_message(stop_reason=reason))
    assert (response.finish_reason, response.provider_finish_reason) == (expected, reason)


def test_a_response_with_calls_has_finish_reason_tool_calls_unless_truncated() -> None:
    """Some services report `end_turn` or nothing for a response with calls."""
    response = [
        decode(assistant_message(BLOCKS[-1], stop_reason=reason)).finish_reason
        for reason in ("end_turn", None, "max_tokens")
    ]
    assert response == [FinishReason.TOOL_CALLS, FinishReason.TOOL_CALLS, FinishReason.LENGTH]


def test_input_tokens_include_those_of_the_cache() -> None:
    """The provider counts cache reads and writes separately; an unknown count is None."""
    usage = {
        "cache_read_input_tokens": 10,
        "cache_creation_input_tokens": 100,
        "output_tokens_details": {"thinking_tokens": 2},
    }
    assert decode(assistant_message(usage={**USAGE, **usage})).usage == Usage(113, 5, 10, 100, 2)
    assert decode(assistant_message(usage={**usage, "output_tokens": "5"})).usage == Usage(None, None, 10, 100, 2)
    assert decode(assistant_message(usage=None)).usage == Usage()


@pytest.mark.parametrize("size", [1, 5, 1 << 30])
def test_a_stream_is_decoded_like_a_complete_message(size: int) -> None:
    """Chunk boundaries do not matter."""
    message = assistant_message(*BLOCKS, stop_reason="tool_use")
    deltas, response = stream(events(message), size)
    assert response == decode(message)
    assert joined_deltas(deltas) == joined_parts(response)


@given(
    st.lists(
        st.one_of(
            st.builds(lambda text: {"type": "text", "text": text}, st.text()),
            st.builds(
                lambda text, sign: {"type": "thinking", "thinking": text, "signature": sign}, st.text(), st.text()
            ),
            st.builds(lambda arguments: {"type": "tool_use", "id": "t", "name": "n", "input": arguments}, json_objects),
            st.builds(lambda arguments: {"type": "mcp_tool_use", "id": "t", "input": arguments}, json_objects),
            st.sampled_from(BLOCKS),
        ),
        max_size=5,
    )
)
def test_any_stream_is_decoded_like_a_complete_message(blocks: list[dict[str, Any]]) -> None:
    """Generated messages are equal, except for the formatting of inputs."""
    message = assistant_message(*blocks)
    _, response = stream(events(message))
    complete = decode(message)
    assert [normalized(part) for part in response.parts] == [normalized(part) for part in complete.parts]
    assert response.with_parts(()) == complete.with_parts(())


def normalized(part: object) -> object:
    """Return a part that compares calls by their parsed arguments."""
    return (part.id, part.name, part.arguments) if isinstance(part, ToolCall) else part


def test_a_message_may_start_with_its_blocks() -> None:
    """Some services send all content with the first event."""
    message = assistant_message(BLOCKS[2], BLOCKS[-1], stop_reason="tool_use")
    deltas, response = stream([{"type": "message_start", "message": message}, {"type": "message_stop"}])
    assert response == decode(message)
    assert joined_deltas(deltas) == joined_parts(response)


def test_unknown_events_are_ignored_and_unknown_deltas_kept() -> None:
    """Deltas of unknown blocks become entries of the block; events after the end are ignored."""
    initial = {"type": "compaction", "content": None, "n": 1}
    stream_events: list[dict[str, Any]] = [
        {"type": "message_start", "message": assistant_message(stop_reason=None)},
        {"type": "message_start", "message": assistant_message(id="again")},
        {"type": "unheard_of"},
        {"type": "content_block_start", "index": 7, "content_block": initial},
        *[
            {"type": "content_block_delta", "index": 7, "delta": {"type": "compaction_delta", **delta}}
            for delta in ({"content": "a"}, {"content": "b", "n": 2})
        ],
        {"type": "message_stop"},
        {"type": "content_block_delta", "index": 7, "delta": {"type": "compaction_delta", "content": "late"}},
    ]
    assert stream(stream_events)[1].parts == (ProviderPart(FORMAT, {"type": "compaction", "content": "ab", "n": 2}),)
    assert stream(stream_events)[1].id == "msg_1"


def test_truncated_arguments_are_kept() -> None:
    """A response that ran out of tokens within a call contains the arguments received so far."""
    all_events = events(assistant_message(BLOCKS[-1], stop_reason="max_tokens"))
    truncated = [event for event in all_events if '}"' not in json.dumps(event.get("delta"))]
    assert [call.arguments_json for call in stream(truncated)[1].tool_calls] == ['{"a']


def test_a_stream_without_an_end_is_truncated() -> None:
    """Without a stop reason and `message_stop`, the stream is an invalid response."""
    all_events = events(assistant_message(*BLOCKS))
    assert stream(all_events[:-1])[1] == stream(all_events)[1]
    for length in range(len(all_events) - 1):
        with pytest.raises(InvalidResponse):
            stream(all_events[:length])


@pytest.mark.parametrize(
    ("kind", "message", "error"),
    [
        ("overloaded_error", "Overloaded", ProviderUnavailable),
        ("api_error", "Internal server error", ProviderUnavailable),
        ("rate_limit_error", "slow down", RateLimited),
        ("authentication_error", "invalid x-api-key", AuthenticationError),
        ("permission_error", "not yours", AuthenticationError),
        ("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", ContextLengthExceeded),
        ("invalid_request_error", "max_tokens: field required", BadRequest),
    ],
)
def test_errors_in_streams_and_under_status_200_are_typed(kind: str, message: str, error: type[InferenceError]) -> None:
    """The error type determines the class, and the error has the provider's request id."""
    error_event = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    for decode_error in (
        lambda: decode(error_event),
        lambda: stream([*events(assistant_message(*BLOCKS))[:6], error_event]),
    ):
        with pytest.raises(error, match=message) as raised:
            decode_error()
        assert (type(raised.value), raised.value.request_id) == (error, "req_1")


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "invalid_request_error", BadRequest),
        (401, "authentication_error", AuthenticationError),
        (403, "permission_error", AuthenticationError),
        (404, "not_found_error", BadRequest),
        (413, "request_too_large", BadRequest),
        (429, "rate_limit_error", RateLimited),
        (500, "api_error", ProviderUnavailable),
        (529, "overloaded_error", ProviderUnavailable),
    ],
)
def test_errors_are_typed_by_status(status: int, kind: str, error: type[InferenceError]) -> None:
    """The error has the provider's message and request id."""
    data = {"type": "error", "error": {"type": kind, "message": "so it is"}, "request_id": "req_1"}
    with pytest.raises(error, match="so it is") as raised:
        decode(data, status)
    assert (type(raised.value), raised.value.status, raised.value.request_id) == (error, status, "req_1")


@pytest.mark.parametrize("reason", ["pause_turn", "compaction"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_provider_goes_on_after_a_pause(reason: str, *, is_streamed: bool) -> None:
    """It has paused its tools, or summarized the conversation, and waits for the message."""
    message = assistant_message({"type": "compaction", "content": "so far"}, stop_reason=reason)
    response = stream(events(message))[1] if is_streamed else decode(message)
    assert response.wants_to_continue


FROM_CODE = {**BLOCKS[5], "caller": {"type": "code_execution_20250825", "tool_id": "s1"}}
CONTAINER = {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("blocks", [[BLOCKS[3], FROM_CODE], [BLOCKS[3]]])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_container_that_waits_goes_back(blocks: list[Any], *, is_streamed: bool) -> None:
    """Code that has called a tool waits for its result in a container, and so does a paused tool."""
    message = assistant_message(*blocks, container=CONTAINER)
    response = stream(events(message))[1] if is_streamed else decode(message)
    answered = Message.of_response(response.parts, [execution_of(call, value=1) for call in response.tool_calls])
    body = encode_json(InferenceRequest([answered]))
    assert body["container"] == "container_1"
    assert [block["type"] for block in body["messages"][0]["content"]] == [block["type"] for block in blocks]
    skills = InferenceOptions(extra={"container": {"skills": ["pptx"]}})
    with_skills = encode_json(InferenceRequest([answered], options=skills))["container"]
    assert with_skills == {"id": "container_1", "skills": ["pptx"]}
    other = InferenceOptions(extra={"container": "container_2"})
    assert encode_json(InferenceRequest([answered], options=other))["container"] == "container_2"


def test_a_container_that_does_not_wait_stays_away() -> None:
    """It may have expired by the time of a result, or of the next message of the user."""
    response = decode(assistant_message(BLOCKS[3], BLOCKS[5], container=CONTAINER))
    direct = Message.of_response(response.parts, [execution_of(call, value=1) for call in response.tool_calls])
    finished = Message.of_response(decode(assistant_message(BLOCKS[3], container=CONTAINER)).parts, [])
    for messages in ([direct], [finished, Message.user("And?")]):
        assert "container" not in encode_json(InferenceRequest(messages))
