"""Responses of the Responses API."""

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
from agentloop.inference.wire_formats.wire_format import wire_format
from agentloop.values import FinishReason, InferenceResponse, ProviderPart, Reasoning, Text, Usage
from tests.inference.generated_requests import json_values
from tests.inference.wire_formats.openai_responses.generated_items import Item, outputs, response

FORMAT = wire_format("openai-responses")
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": '{"a":1}'}


def decode(data: object, status: int = 200) -> InferenceResponse:
    """Decode a response object."""
    return FORMAT.decode_response(status, {}, json.dumps(data).encode())


def message(*content: Item, **entries: object) -> Item:
    """Make a message item."""
    return {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [*content],
        **entries,
    }


def said(text: str) -> Item:
    """Make a piece of text."""
    return {"type": "output_text", "text": text, "annotations": []}


def test_the_parts_come_in_the_order_of_the_items() -> None:
    """Thoughts, words, calls and what the provider's own tools did."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    found = decode(response([thought, search, message(said("a"), said("b")), CALL]))
    assert [type(part) for part in found.parts[:4]] == [Reasoning, ProviderPart, Text, Text]
    assert (found.reasoning, found.text) == ("hm", "ab")
    assert [(call.id, call.name, call.arguments_json) for call in found.tool_calls] == [("c1", "add", '{"a":1}')]
    assert (found.id, found.model, found.provider_finish_reason) == ("resp_1", "m", "completed")
    assert found.finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({}, FinishReason.STOP),
        ({"status": "complete"}, FinishReason.STOP),
        ({"status": None}, FinishReason.UNKNOWN),
        ({"status": "queued"}, FinishReason.OTHER),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, FinishReason.LENGTH),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, FinishReason.CONTENT_FILTER),
        ({"status": "incomplete", "incomplete_details": None}, FinishReason.OTHER),
        ({"output": [message({"type": "refusal", "refusal": "no"})]}, FinishReason.CONTENT_FILTER),
        ({"output": [CALL]}, FinishReason.TOOL_CALLS),
        (
            {"output": [CALL], "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            FinishReason.LENGTH,
        ),
    ],
)
def test_why_the_model_stopped_is_told_in_common_words(entries: dict[str, Any], reason: FinishReason) -> None:
    """The status, what is incomplete, a refusal and calls all count."""
    found = decode({**response([message(said("a"))]), **entries})
    assert found.finish_reason is reason
    assert found.provider_finish_reason == entries.get("status", "completed")


def test_a_refusal_is_text() -> None:
    """A program that shows the text shows why there is none."""
    assert decode(response([message({"type": "refusal", "refusal": "I can't."})])).text == "I can't."


def test_tokens_are_read_where_they_are_told() -> None:
    """What is not told stays unknown."""
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 3},
    }
    assert decode(response([], usage=usage)).usage == Usage(10, 5, 4, 2, 3)
    assert decode(response([], usage={"input_tokens": 10, "output_tokens": None})).usage == Usage(10)
    assert decode(response([])).usage == Usage()


def test_thoughts_of_one_item_stand_on_lines_of_their_own() -> None:
    """A summary comes in pieces, and so does what open models show in full."""
    pieces = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    full = [{"type": "reasoning_text", "text": "c"}]
    assert decode(response([{"type": "reasoning", "id": "r", "summary": pieces}])).reasoning == "a\nb"
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
def test_a_response_that_failed_is_a_typed_error(error: object, kind: type[InferenceError]) -> None:
    """Failure comes with a status of success and says so inside."""
    with pytest.raises(kind):
        decode({**response([]), "status": "failed", "error": error})


@pytest.mark.parametrize(
    "data", [[], {}, {"output": None}, {"output": [1]}, {"output": {"a": 1}}, "so", 5, {"choices": []}]
)
def test_what_is_no_response_is_told_as_such(data: object) -> None:
    """Another API behind the same address is not taken for this one."""
    with pytest.raises(InvalidResponse):
        decode(data)


def test_a_service_may_be_sloppy() -> None:
    """Arguments as an object, text as text, no ids: it is understood all the same."""
    call = {"type": "function_call", "id": "fc_1", "name": "add", "arguments": {"a": 1}}
    found = decode({"output": [{"type": "message", "content": "hi"}, call]})
    assert found.text == "hi"
    assert [(made.id, made.arguments_json) for made in found.tool_calls] == [("fc_1", '{"a":1}')]


def check(body: bytes, status: int = 200) -> None:
    """Check that a body is a response or an inference error."""
    with suppress(InferenceError):
        assert isinstance(FORMAT.decode_response(status, {}, body), InferenceResponse)


@given(st.integers(100, 599), st.binary() | json_values.map(lambda data: json.dumps(data).encode()))
def test_any_bytes_are_a_response_or_an_inference_error(status: int, body: bytes) -> None:
    """No bytes raise another error."""
    check(body, status)


def any_of(*likely: Any, **entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Make objects with some of these entries, and now and then something else."""
    return st.one_of(st.fixed_dictionaries({}, optional=entries), st.sampled_from(likely), json_values)


pieces = any_of(
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
    content=st.lists(pieces, max_size=2) | json_values,
    summary=st.lists(pieces, max_size=2) | json_values,
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
def test_anything_like_a_response_is_one_or_an_inference_error(data: Any) -> None:
    """No response with something odd in any of its places raises another error."""
    check(json.dumps(data).encode())


@given(outputs, st.data())
def test_damaged_bytes_are_a_response_or_an_inference_error(output: list[Item], data: st.DataObject) -> None:
    """Cut off or changed anywhere."""
    body = json.dumps(response(output)).encode()
    place = data.draw(st.integers(0, len(body) - 1))
    check(body[:place])
    check(body[:place] + data.draw(st.binary(min_size=1, max_size=3)) + body[place + 1 :])
