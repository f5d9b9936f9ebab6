"""Responses of Messages, whole and in streams."""

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
    InferenceResponse,
    Message,
    ProviderPart,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    freeze,
)
from tests.inference.generated_requests import execution_of, json_objects
from tests.inference.wire_formats.anthropic_messages.generated_messages import FORMAT, citation, messages_of, own
from tests.inference.wire_formats.anthropic_messages.spelled_answers import (
    BLOCKS,
    USAGE,
    answer,
    decoded,
    events,
    stream,
)
from tests.inference.wire_formats.recorded_responses import joined_deltas, joined_parts


def test_a_message_is_read_whole() -> None:
    """Parts come in the order of the blocks; what the provider wants back is kept with them."""
    found = decoded(answer(*BLOCKS, stop_reason="tool_use"))
    assert found == InferenceResponse(
        (
            Reasoning("hm", provider_data=own(signature="s")),
            ProviderPart(FORMAT, freeze(BLOCKS[1])),
            Text("so", provider_data=own(citations=[citation])),
            ProviderPart(FORMAT, freeze(BLOCKS[3])),
            ProviderPart(FORMAT, freeze(BLOCKS[4])),
            ToolCall("t1", "add", '{"a":1}', provider_data=own(caller={"type": "direct"})),
        ),
        FinishReason.TOOL_CALLS,
        Usage(3, 5),
        "m",
        "msg_1",
        "tool_use",
    )


def test_what_was_said_goes_back_as_it_came() -> None:
    """Signatures, redacted thoughts, citations and unknown blocks are echoed exactly, in their order."""
    found = decoded(answer(*BLOCKS))
    message = Message.of_response(found.parts, [execution_of(found.tool_calls[0], value=2)])
    assert messages_of(message)[0] == {"role": "assistant", "content": BLOCKS}


@pytest.mark.parametrize(
    ("reason", "meant"),
    [
        ("end_turn", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("tool_use", FinishReason.TOOL_CALLS),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("refusal", FinishReason.CONTENT_FILTER),
        ("pause_turn", FinishReason.OTHER),
        (None, FinishReason.UNKNOWN),
    ],
)
def test_stop_reasons_are_put_into_common_words(reason: str | None, meant: FinishReason) -> None:
    """The provider's own word is kept."""
    found = decoded(answer(stop_reason=reason))
    assert (found.finish_reason, found.provider_finish_reason) == (meant, reason)


def test_calls_count_as_such_whatever_the_reason_says() -> None:
    """Unless the answer was cut."""
    found = [
        decoded(answer(BLOCKS[-1], stop_reason=reason)).finish_reason for reason in ("end_turn", None, "max_tokens")
    ]
    assert found == [FinishReason.TOOL_CALLS, FinishReason.TOOL_CALLS, FinishReason.LENGTH]


def test_input_is_everything_that_was_read() -> None:
    """The provider counts what its cache read and wrote beside the input; unknown stays unknown."""
    usage = {
        "cache_read_input_tokens": 10,
        "cache_creation_input_tokens": 100,
        "output_tokens_details": {"thinking_tokens": 2},
    }
    assert decoded(answer(usage={**USAGE, **usage})).usage == Usage(113, 5, 10, 100, 2)
    assert decoded(answer(usage={**usage, "output_tokens": "5"})).usage == Usage(None, None, 10, 100, 2)
    assert decoded(answer(usage=None)).usage == Usage()


@pytest.mark.parametrize("size", [1, 5, 1 << 30])
def test_a_stream_gives_the_message_that_would_have_come_whole(size: int) -> None:
    """However its bytes are cut."""
    message = answer(*BLOCKS, stop_reason="tool_use")
    deltas, found = stream(events(message), size)
    assert found == decoded(message)
    assert joined_deltas(deltas) == joined_parts(found)


@given(
    st.lists(
        st.one_of(
            st.builds(lambda text: {"type": "text", "text": text}, st.text()),
            st.builds(
                lambda text, sign: {"type": "thinking", "thinking": text, "signature": sign}, st.text(), st.text()
            ),
            st.builds(lambda given: {"type": "tool_use", "id": "t", "name": "n", "input": given}, json_objects),
            st.builds(lambda given: {"type": "mcp_tool_use", "id": "t", "input": given}, json_objects),
            st.sampled_from(BLOCKS),
        ),
        max_size=5,
    )
)
def test_every_stream_gives_the_message_that_would_have_come_whole(blocks: list[dict[str, Any]]) -> None:
    """Generated messages say the same whole and streamed; inputs may differ in how they are written."""
    message = answer(*blocks)
    _, found = stream(events(message))
    whole = decoded(message)
    assert [meaning(part) for part in found.parts] == [meaning(part) for part in whole.parts]
    assert found.with_parts() == whole.with_parts()


def meaning(part: object) -> object:
    """Compare calls by what their arguments say."""
    return (part.id, part.name, part.arguments) if isinstance(part, ToolCall) else part


def test_a_message_may_begin_with_its_blocks() -> None:
    """Services that have the answer already send it with the first event."""
    message = answer(BLOCKS[2], BLOCKS[-1], stop_reason="tool_use")
    deltas, found = stream([{"type": "message_start", "message": message}, {"type": "message_stop"}])
    assert found == decoded(message)
    assert joined_deltas(deltas) == joined_parts(found)


def test_unknown_events_and_deltas_are_passed_over_or_kept() -> None:
    """New kinds of events say nothing; new deltas of unknown blocks become fields of theirs; what follows the end is not read."""
    begun = {"type": "compaction", "content": None, "n": 1}
    made: list[dict[str, Any]] = [
        {"type": "message_start", "message": answer(stop_reason=None)},
        {"type": "message_start", "message": answer(id="again")},
        {"type": "unheard_of"},
        {"type": "content_block_start", "index": 7, "content_block": begun},
        *[
            {"type": "content_block_delta", "index": 7, "delta": {"type": "compaction_delta", **delta}}
            for delta in ({"content": "a"}, {"content": "b", "n": 2})
        ],
        {"type": "message_stop"},
        {"type": "error", "error": {"message": "late"}},
    ]
    assert stream(made)[1].parts == (ProviderPart(FORMAT, {"type": "compaction", "content": "ab", "n": 2}),)
    assert stream(made)[1].id == "msg_1"


def test_cut_arguments_are_kept_as_they_came() -> None:
    """An answer that ran out of tokens in the middle of a call is one, with the text of the arguments as far as it goes."""
    made = events(answer(BLOCKS[-1], stop_reason="max_tokens"))
    cut_short = [event for event in made if '}"' not in json.dumps(event.get("delta"))]
    assert [call.arguments_json for call in stream(cut_short)[1].tool_calls] == ['{"a']


def test_a_stream_without_an_end_is_cut_short() -> None:
    """Neither a stop reason nor the last event came: what was said so far is not an answer."""
    made = events(answer(*BLOCKS))
    assert stream(made[:-1])[1] == stream(made)[1]
    for length in range(len(made) - 1):
        with pytest.raises(InvalidResponse):
            stream(made[:length])


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
def test_errors_in_streams_and_successes_are_typed(kind: str, message: str, error: type[InferenceError]) -> None:
    """By the words in which the provider tells them, with its id of the request."""
    told_error = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    for ask in (lambda: decoded(told_error), lambda: stream([*events(answer(*BLOCKS))[:6], told_error])):
        with pytest.raises(error, match=message) as raised:
            ask()
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
    """With the message and the id of the request."""
    data = {"type": "error", "error": {"type": kind, "message": "so it is"}, "request_id": "req_1"}
    with pytest.raises(error, match="so it is") as raised:
        decoded(data, status)
    assert (type(raised.value), raised.value.status, raised.value.request_id) == (error, status, "req_1")
