"""Tests of the decoding of responses of the Responses API."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
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
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import FinishReason, InferenceResponse, ProviderPart, Reasoning, Text, Usage
from tests.models.generated_requests import json_values
from tests.models.wire_formats.openai_responses.generated_items import Item, outputs, response

FORMAT = wire_format("openai-responses")
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": '{"a":1}'}


def decode(data: object, status: int = 200) -> InferenceResponse:
    """Decode a response object."""
    return FORMAT.decode_response(status, {}, json.dumps(data).encode())


def message(*content: Item, **entries: object) -> Item:
    """Return a message item."""
    return {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [*content],
        **entries,
    }


def output_text(text: str) -> Item:
    """Return a text content."""
    return {"type": "output_text", "text": text, "annotations": []}


def test_parts_have_the_order_of_the_items() -> None:
    """Reasoning, texts, calls and the items of the provider's own tools are decoded."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    decoded = decode(response([thought, search, message(output_text("a"), output_text("b")), CALL]))
    assert [type(part) for part in decoded.parts[:4]] == [Reasoning, ProviderPart, Text, Text]
    assert (decoded.reasoning, decoded.text) == ("hm", "ab")
    assert [(call.id, call.name, call.arguments_json) for call in decoded.tool_calls] == [("c1", "add", '{"a":1}')]
    assert (decoded.id, decoded.model, decoded.provider_finish_reason) == ("resp_1", "m", "completed")
    assert decoded.finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({}, FinishReason.STOP),
        ({"status": "complete"}, FinishReason.STOP),
        ({"status": None}, FinishReason.UNKNOWN),
        ({"status": "queued", "output": []}, FinishReason.OTHER),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, FinishReason.LENGTH),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, FinishReason.CONTENT_FILTER),
        ({"status": "incomplete", "incomplete_details": None}, FinishReason.ERROR),
        ({"output": [message({"type": "refusal", "refusal": "no"})]}, FinishReason.CONTENT_FILTER),
        ({"output": [CALL]}, FinishReason.TOOL_CALLS),
        (
            {"output": [CALL], "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            FinishReason.LENGTH,
        ),
    ],
)
def test_finish_reasons_are_translated(entries: dict[str, Any], reason: FinishReason) -> None:
    """Status, incomplete details, refusals and calls determine the finish reason."""
    decoded = decode({**response([message(output_text("a"))]), **entries})
    assert decoded.finish_reason is reason
    assert decoded.provider_finish_reason == entries.get("status", "completed")


def test_a_refusal_is_text() -> None:
    """The refusal is the text of the response."""
    assert decode(response([message({"type": "refusal", "refusal": "I can't."})])).text == "I can't."


def test_token_counts_are_decoded() -> None:
    """A count that is not reported is None."""
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 3},
    }
    assert decode(response([], usage=usage)).usage == Usage(10, 5, 4, 2, 3)
    assert decode(response([], usage={"input_tokens": 10, "output_tokens": None})).usage == Usage(10)
    assert decode(response([])).usage == Usage()


@pytest.mark.parametrize(("total", "expected"), [(42, 32), (22, 12), (None, 12)])
def test_reasoning_that_is_counted_apart_is_output(total: object, expected: int) -> None:
    """The total shows whether the output includes the reasoning."""
    details = {"reasoning_tokens": 20}
    usage = {"input_tokens": 10, "output_tokens": 12, "total_tokens": total, "output_tokens_details": details}
    assert decode(response([], usage=usage)).usage == Usage(10, expected, None, None, 20)


def test_texts_of_one_reasoning_item_are_joined_by_line_feeds() -> None:
    """Reasoning is a summary, or the full text of open models."""
    contents = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    full = [{"type": "reasoning_text", "text": "c"}]
    assert decode(response([{"type": "reasoning", "id": "r", "summary": contents}])).reasoning == "a\nb"
    assert decode(response([{"type": "reasoning", "id": "r", "summary": [], "content": full}])).reasoning == "c"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "server_error", "message": "Something broke."}, ProviderUnavailable),
        ({"code": "rate_limit_exceeded", "message": "Slow down."}, RateLimited),
        (
            {"code": "context_length_exceeded", "message": "Your input exceeds the context window."},
            ContextLengthExceeded,
        ),
        ({"code": "invalid_prompt", "message": "No."}, BadRequest),
        (None, ProviderUnavailable),
    ],
)
def test_a_failed_response_is_a_typed_error(error: object, kind: type[InferenceError]) -> None:
    """A failure has a success status and reports the error in the body."""
    with pytest.raises(kind):
        decode({**response([]), "status": "failed", "error": error})


@pytest.mark.parametrize(
    "data", [[], {}, {"output": None}, {"output": [1]}, {"output": {"a": 1}}, "so", 5, {"choices": []}]
)
def test_an_invalid_body_is_an_invalid_response(data: object) -> None:
    """A body of another API raises `InvalidResponse`."""
    with pytest.raises(InvalidResponse):
        decode(data)


def test_simplified_items_are_decoded() -> None:
    """Services may send arguments as an object, content as text, and no ids."""
    item = {"type": "function_call", "id": "fc_1", "name": "add", "arguments": {"a": 1}}
    decoded = decode({"output": [{"type": "message", "content": "hi"}, item]})
    assert decoded.text == "hi"
    assert [(call.id, call.arguments_json) for call in decoded.tool_calls] == [("fc_1", '{"a":1}')]


def check(body: bytes, status: int = 200) -> None:
    """Check that a body is decoded to a response or an inference error."""
    with suppress(InferenceError):
        assert isinstance(FORMAT.decode_response(status, {}, body), InferenceResponse)


@given(st.integers(100, 599), st.binary() | json_values.map(lambda data: json.dumps(data).encode()))
def test_any_bytes_are_a_response_or_an_inference_error(status: int, body: bytes) -> None:
    """No bytes raise another error."""
    check(body, status)


def any_of(*likely: Any, **entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generate objects with some of these entries, or sometimes any other value."""
    return st.one_of(st.fixed_dictionaries({}, optional=entries), st.sampled_from(likely), json_values)


contents = any_of(
    {}, type=st.sampled_from(["output_text", "refusal"]), text=json_values, refusal=json_values, annotations=json_values
)
odd_items = any_of(
    {},
    type=st.sampled_from(["message", "reasoning", "function_call", "custom_tool_call", "web_search_call"])
    | json_values,
    id=json_values,
    call_id=json_values,
    name=json_values,
    arguments=json_values,
    input=json_values,
    content=st.lists(contents, max_size=2) | json_values,
    summary=st.lists(contents, max_size=2) | json_values,
)
odd_responses = any_of(
    {},
    output=st.lists(odd_items, max_size=3) | json_values,
    status=st.sampled_from(["completed", "failed", "incomplete"]) | json_values,
    incomplete_details=any_of(None, reason=json_values),
    usage=any_of(None, input_tokens=json_values, input_tokens_details=json_values),
    error=json_values,
    id=json_values,
    model=json_values,
)


@given(odd_responses)
def test_any_object_is_a_response_or_an_inference_error(data: Any) -> None:
    """No malformed response raises another error."""
    check(json.dumps(data).encode())


@given(outputs, st.data())
def test_damaged_bytes_are_a_response_or_an_inference_error(output: list[Item], data: st.DataObject) -> None:
    """Truncated and changed responses raise no other error."""
    body = json.dumps(response(output)).encode()
    position = data.draw(st.integers(0, len(body) - 1))
    check(body[:position])
    check(body[:position] + data.draw(st.binary(min_size=1, max_size=3)) + body[position + 1 :])
