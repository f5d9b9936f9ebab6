"""Tests of the decoding of responses of Chat Completions, including the irregularities of its implementations."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import FinishReason, InferenceResponse, Reasoning, Text, ToolCall, Usage, from_json, to_json
from tests.models.generated_requests import json_values

FORMAT = wire_format("openai-chat")


BARE_ERRORS: list[tuple[object, type[InferenceError], str]] = [
    ({"code": "rate_limit_daily", "message": "Error code: 429 - daily limit"}, RateLimited, "daily limit"),
    ({"choices": None, "base_resp": {"status_code": 1002, "status_msg": "rpm"}}, RateLimited, "rpm"),
    ({"choices": [], "base_resp": {"status_code": 1002, "status_msg": "rpm"}}, RateLimited, "rpm"),
    ({"base_resp": {"status_code": 1004, "status_msg": "login fail"}}, AuthenticationError, "login fail"),
    ({"base_resp": {"status_code": 2013, "status_msg": "params"}}, BadRequest, "params"),
    ({"base_resp": {"status_code": 1000, "status_msg": "unknown"}}, ProviderUnavailable, "unknown"),
    ({"error": None, "message": "slow down", "status": 429}, RateLimited, "slow down"),
    ({"statusCode": 503, "message": "busy"}, ProviderUnavailable, "busy"),
    ({"code": 429, "msg": "too fast"}, RateLimited, "too fast"),
    ({"code": "1302", "msg": "rate limit"}, RateLimited, "rate limit"),
    ({"errorCode": "429", "errorMessage": "wait"}, RateLimited, "wait"),
    ({"error_code": 18, "error_msg": "qps request limit reached"}, RateLimited, "qps"),
    ({"errors": [{"message": "too many requests"}]}, RateLimited, "too many"),
    ({"success": False, "message": "quota exceeded"}, RateLimited, "quota"),
    ({"success": False, "result": None, "errors": []}, ProviderUnavailable, "no reason"),
    ({"detail": "Rate limit exceeded"}, RateLimited, "Rate limit"),
    ({"detail": {"message": "later", "code": 429}}, RateLimited, "later"),
    ({"detail": [{"loc": ["body"], "msg": "field required"}]}, BadRequest, "field required"),
    ({"type": "about:blank", "title": "Too Many Requests", "status": 429}, RateLimited, "Too Many"),
]
"""Errors without an error entry, as services of this format send them."""


def decode(message: object, finish_reason: object = None, **entries: object) -> InferenceResponse:
    """Decode a completion with one choice."""
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return FORMAT.decode_response(200, {}, json.dumps({"choices": [choice], **entries}).encode())


def test_a_complete_completion_is_decoded() -> None:
    """Text, model, id, finish reason and all token counts are read."""
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    response = decode({"role": "assistant", "content": "hello"}, "stop", id="chatcmpl-1", model="m-2026", usage=usage)
    assert response == InferenceResponse(
        (Text("hello"),), FinishReason.STOP, Usage(10, 5, 4, 3, 2), "m-2026", "chatcmpl-1", "stop"
    )


@pytest.mark.parametrize("content", [None, "", [], {}, [""], [{}], [{"type": "text", "text": ""}]])
def test_empty_content_is_no_text(content: object) -> None:
    """No representation of missing text yields a part."""
    assert decode({"content": content}).parts == ()
    assert decode({}).parts == ()


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (["a", "b"], [Text("a"), Text("b")]),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], [Text("a"), Text("b")]),
        ({"type": "text", "text": "a"}, [Text("a")]),
        ([{"type": "refusal", "refusal": "no"}], [Text("no")]),
        (
            [{"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"text": "m"}]}, {"text": "so"}],
            [Reasoning("hm"), Text("so")],
        ),
        ([{"type": "thinking", "thinking": "hm"}], [Reasoning("hm")]),
        ([{"type": "image", "image": "x"}, {"text": "so"}], [Text("so")]),
    ],
)
def test_content_may_be_a_list_of_parts(content: object, parts: list[object]) -> None:
    """Text and thinking parts are read in order, and other parts are ignored."""
    assert list(decode({"content": content}).parts) == parts


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_precedes_the_text(name: str) -> None:
    """Services send reasoning in an entry of its own."""
    assert decode({"content": "so", name: "hm"}).parts == (Reasoning("hm"), Text("so"))
    assert decode({"content": "so", name: None}).parts == (Text("so"),)


def test_repeated_reasoning_is_read_once() -> None:
    """A service may send the same reasoning under both names."""
    assert decode({"reasoning_content": "hm", "reasoning": "hm"}).parts == (Reasoning("hm"),)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"a": 1,  "b":2}', '{"a": 1,  "b":2}'),
        ("", ""),
        (None, "{}"),
        ({}, "{}"),
        ({"a": [1, {"b": None}]}, '{"a":[1,{"b":null}]}'),
        ("{broken", "{broken"),
        ([1], "[1]"),
    ],
)
def test_arguments_are_kept_unchanged(arguments: object, text: str) -> None:
    """Text is kept byte by byte, and an object is converted to text."""
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}
    assert decode({"content": None, "tool_calls": [call]}).parts == (ToolCall("c", "add", text),)


@pytest.mark.parametrize("arguments", ["", None, {}, "{}", "null"])
def test_missing_arguments_are_empty(arguments: object) -> None:
    """No representation of missing arguments yields arguments."""
    sent = {"id": "c", "function": {"name": "add", "arguments": arguments}}
    (call,) = decode({"tool_calls": [sent]}).tool_calls
    assert dict(call.arguments) == {}
    (call,) = decode({"tool_calls": [{"id": "c", "function": {"name": "add"}}]}).tool_calls
    assert dict(call.arguments) == {}


@pytest.mark.parametrize(("sent_id", "call_id"), [("c", "c"), ("", ""), (None, ""), (7, "7"), ([], "")])
def test_ids_may_be_missing_or_malformed(sent_id: object, call_id: str) -> None:
    """A call does not need an id, and a number is converted to text."""
    call = {"id": sent_id, "function": {"name": "add", "arguments": "{}"}}
    assert decode({"tool_calls": [call]}).tool_calls == (ToolCall(call_id, "add"),)


def test_calls_follow_the_text_in_order_with_repeated_ids() -> None:
    """Calls keep their order and their ids."""
    calls = [{"id": "c", "function": {"name": name, "arguments": "{}"}} for name in ("b", "a", "b")]
    response = decode({"content": "so", "tool_calls": calls}, "tool_calls")
    assert response.parts == (Text("so"), ToolCall("c", "b"), ToolCall("c", "a"), ToolCall("c", "b"))


def test_a_single_call_may_be_sent_without_a_list() -> None:
    """A service may send one call as an object."""
    call = {"id": "c", "function": {"name": "add", "arguments": "{}"}}
    assert decode({"tool_calls": call}).tool_calls == (ToolCall("c", "add"),)


def test_a_call_may_be_sent_without_a_function_object() -> None:
    """Name and arguments may be entries of the call itself."""
    assert decode({"tool_calls": [{"id": "c", "name": "add", "arguments": {}}]}).tool_calls == (ToolCall("c", "add"),)


CUSTOM = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}


def test_a_custom_call_has_its_name_and_its_text() -> None:
    """The text need not be JSON; a cut one does not show that it is cut."""
    (call,) = decode({"tool_calls": [CUSTOM]}, "tool_calls").tool_calls
    assert (call.id, call.name, call.arguments_json, call.rejection) == ("c", "sql", "SELECT 1", "")
    (cut,) = decode({"tool_calls": [CUSTOM]}, "length").tool_calls
    assert cut.rejection


def test_an_empty_entry_of_the_other_kind_does_not_hide_a_call() -> None:
    """Some services write both entries of a call and leave one empty."""
    empty = {"name": "", "input": "", "arguments": ""}
    plain = {"id": "f", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    found = decode({"tool_calls": [{**plain, "custom": empty}, {**CUSTOM, "function": empty}]}, "tool_calls").tool_calls
    assert [(call.name, call.arguments_json) for call in found] == [("add", '{"a":1}'), ("sql", "SELECT 1")]


def test_a_deprecated_function_call_is_ignored() -> None:
    """The SDK of the provider does not read `function_call` as a tool call either."""
    response = decode({"content": "so", "function_call": {"name": "add", "arguments": '{"a":1}'}})
    assert response.parts == (Text("so"),)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", FinishReason.STOP),
        ("STOP", FinishReason.STOP),
        ("eos", FinishReason.STOP),
        ("end_turn", FinishReason.STOP),
        ("tool_calls", FinishReason.TOOL_CALLS),
        ("tool_use", FinishReason.TOOL_CALLS),
        ("length", FinishReason.LENGTH),
        ("max_tokens", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("error", FinishReason.ERROR),
        ("something new", FinishReason.OTHER),
        ("", FinishReason.UNKNOWN),
        (None, FinishReason.UNKNOWN),
        (5, FinishReason.OTHER),
        ([], FinishReason.UNKNOWN),
        ({}, FinishReason.UNKNOWN),
    ],
)
def test_finish_reasons_are_translated(reason: object, expected: FinishReason) -> None:
    """Unknown reasons become OTHER, and the provider's own reason is kept."""
    response = decode({"content": "so"}, reason)
    assert response.finish_reason is expected
    assert response.provider_finish_reason == ("5" if reason == 5 else reason if isinstance(reason, str) else None)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", FinishReason.TOOL_CALLS),
        ("", FinishReason.TOOL_CALLS),
        (None, FinishReason.TOOL_CALLS),
        ([], FinishReason.TOOL_CALLS),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
    ],
)
def test_a_response_with_calls_has_finish_reason_tool_calls_unless_truncated(
    reason: object, expected: FinishReason
) -> None:
    """Services may report `stop` or nothing for a response with calls."""
    call = {"id": "c", "function": {"name": "add", "arguments": "{}"}}
    assert decode({"tool_calls": [call]}, reason).finish_reason is expected


def test_a_refusal_is_text_with_finish_reason_content_filter() -> None:
    """The refusal is the text of the response."""
    response = decode({"content": None, "refusal": "I will not."}, "stop")
    assert response.text == "I will not."
    assert (response.finish_reason, response.provider_finish_reason) == (FinishReason.CONTENT_FILTER, "stop")


def test_an_empty_refusal_is_ignored() -> None:
    """Many services send an empty refusal; text takes precedence over a refusal."""
    for refusal in ("", None):
        assert decode({"content": "so", "refusal": refusal}, "stop").finish_reason is FinishReason.STOP
    assert decode({"content": "so", "refusal": "no"}, "stop").text == "so"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Usage()),
        ({}, Usage()),
        ([], Usage()),
        ({"prompt_tokens": 0, "completion_tokens": 0}, Usage(0, 0)),
        ({"prompt_tokens": 3.0}, Usage(3)),
        ({"prompt_tokens": "3", "completion_tokens": True}, Usage()),
        ({"prompt_tokens": -1}, Usage()),
        ({"prompt_tokens": 1, "prompt_tokens_details": None}, Usage(1)),
        ({"prompt_tokens": 1, "prompt_tokens_details": [], "completion_tokens_details": "x"}, Usage(1)),
        ({"prompt_tokens_details": {"cached_tokens": 2}}, Usage(cached_input_tokens=2)),
        ({"prompt_cache_hit_tokens": 2, "prompt_cache_miss_tokens": 1}, Usage(cached_input_tokens=2)),
        ({"cached_tokens": 2}, Usage(cached_input_tokens=2)),
        ({"prompt_tokens_details": {"cached_tokens": 0}, "cached_tokens": 2}, Usage(cached_input_tokens=0)),
    ],
)
def test_missing_token_counts_are_none(usage: object, expected: Usage) -> None:
    """Counts are read from all known places; a missing one is None and not zero."""
    assert decode({"content": "so"}, "stop", usage=usage).usage == expected
    assert decode({"content": "so"}).usage == Usage()


@pytest.mark.parametrize(("total", "expected"), [(42, 32), (22, 12), (40, 12), (None, 12), ("42", 12)])
def test_reasoning_that_is_counted_apart_is_output(total: object, expected: int) -> None:
    """The total shows whether the completion includes the reasoning."""
    details = {"reasoning_tokens": 20}
    usage = {"prompt_tokens": 10, "completion_tokens": 12, "total_tokens": total, "completion_tokens_details": details}
    assert decode({"content": "so"}, "stop", usage=usage).usage == Usage(10, expected, None, None, 20)


def test_only_the_first_choice_is_read() -> None:
    """Further choices are ignored."""
    body = {"choices": [{"message": {"content": "one"}}, {"message": {"content": "two"}}]}
    assert FORMAT.decode_response(200, {}, json.dumps(body).encode()).text == "one"


def test_a_message_may_be_sent_as_a_delta() -> None:
    """A service may send a complete response with the structure of a chunk."""
    body = {"choices": [{"delta": {"content": "one"}}]}
    assert FORMAT.decode_response(200, {}, json.dumps(body).encode()).text == "one"


@pytest.mark.parametrize("status", [200, 201, 202, 203])
def test_any_success_status_is_accepted(status: int) -> None:
    """Gateways may respond with another success status; a byte order mark is ignored."""
    body = b'\xef\xbb\xbf{"choices": [{"message": {"content": "so"}}]}'
    assert FORMAT.decode_response(status, {}, body).text == "so"


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        ({"error": {"message": "busy", "code": 503}}, ProviderUnavailable, "busy"),
        ({"error": {"message": "busy", "code": 503}, "choices": []}, ProviderUnavailable, "busy"),
        ({"error": "slow down: rate limit"}, RateLimited, "slow down"),
        (
            {"choices": [{"error": {"message": "upstream gone", "code": 502}, "message": {"content": ""}}]},
            ProviderUnavailable,
            "upstream gone",
        ),
        ({"error": {"message": "no such model"}}, BadRequest, "no such model"),
        ({"error": {"message": "something"}}, ProviderUnavailable, "something"),
        ({"object": "error", "message": "too long", "code": 400}, BadRequest, "too long"),
        *BARE_ERRORS,
    ],
)
def test_an_error_under_status_200_is_raised(data: object, kind: type[InferenceError], message: str) -> None:
    """Routers report errors under status 200, in the body or in a choice."""
    with pytest.raises(kind, match=message):
        FORMAT.decode_response(200, {}, json.dumps(data).encode())


def test_an_empty_error_entry_is_ignored() -> None:
    """A body with choices is a response if its error entry is empty."""
    errors: list[object] = [None, "", {}, []]
    assert [decode({"content": "so"}, error=error).text for error in errors] == ["so"] * 4


@pytest.mark.parametrize(
    "entries",
    [
        {"code": 0, "message": "success"},
        {"code": 429, "message": "rate limit"},
        {"code": "x1", "msg": "m", "detail": "d", "title": "t", "status": "completed"},
        {"success": True},
        {"success": False, "ok": False},
        {"base_resp": {"status_code": 0, "status_msg": "success"}},
    ],
)
def test_an_answer_with_entries_of_errors_is_an_answer(entries: dict[str, object]) -> None:
    """Codes and messages beside an answer take nothing from it."""
    body = {"choices": [{"message": {"content": "so"}, "finish_reason": "stop"}], **entries}
    assert FORMAT.decode_response(200, {}, json.dumps(body).encode()).text == "so"


@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        ({"code": 429, "message": "slow", "retry_after": 7}, 7),
        ({"error": {"code": 429, "message": "slow", "retry_after_ms": 500}}, 0.5),
        ({"error": {"code": 429, "message": "Limit reached. Please try again in 1m2.5s."}}, 62.5),
        ({"error": {"code": 429, "message": "Please retry after 20 seconds."}}, 20),
        ({"error": {"code": 429, "message": "Please retry in 300ms"}}, 0.3),
        ({"error": {"code": 429, "message": "Try again later, with 3 requests"}}, None),
    ],
)
def test_the_time_to_wait_is_read_from_the_body(data: object, seconds: float | None) -> None:
    """Services that report errors under status 200 say in the body how long to wait."""
    with pytest.raises(RateLimited) as caught:
        FORMAT.decode_response(200, {}, json.dumps(data).encode())
    assert caught.value.retry_after == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"5",
        b'"text"',
        b"{}",
        b'{"choices": null}',
        b'{"choices": []}',
        b'{"choices": {}}',
        b'{"choices": [null]}',
        b'{"choices": [5]}',
        b'{"choices": [{"message": 5}]}',
        b'{"choices": [{"message": {"content": 5}}]}',
        b'{"choices": [{"message": {"content": [5]}}]}',
        b'{"choices": [{"message": {"tool_calls": 5}}]}',
        b'{"choices": [{"message": {"tool_calls": [5]}}]}',
        b'{"choices": [{"message": {"tool_calls": [{"function": 5}]}}]}',
        b'data: {"choices": []}\n\n',
        b"<html></html>",
        b"\xff\xfe",
        b'{"choices": NaN}',
        b"[" * 100_000,
        b'{"choices": [{"message": {"content": ' + b"[" * 5000 + b"]" * 5000 + b"}}]}",
    ],
)
def test_an_invalid_body_is_an_invalid_response(body: bytes) -> None:
    """The error quotes the body, truncated."""
    with pytest.raises(InvalidResponse, match=r"the response (is not JSON|does not have the structure)") as caught:
        FORMAT.decode_response(200, {"x-request-id": "r"}, body)
    assert (caught.value.status, caught.value.request_id) == (200, "r")
    assert len(str(caught.value)) < 800


def check(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Decode, and check that the result is a response that can be serialized, or an inference error."""
    try:
        response = FORMAT.decode_response(status, headers, body)
    except InferenceError:
        return
    assert all(isinstance(part, Text | Reasoning | ToolCall) for part in response.parts)
    assert from_json(to_json(response), InferenceResponse) == response


@given(st.integers(100, 599), st.dictionaries(st.sampled_from(["retry-after", "date"]), st.text()), st.binary())
def test_any_bytes_are_a_response_or_an_inference_error(status: int, headers: dict[str, str], body: bytes) -> None:
    """No bytes raise another error."""
    check(status, headers, body)


@given(st.sampled_from([200, 400]), json_values)
def test_any_json_is_a_response_or_an_inference_error(status: int, data: Any) -> None:
    """No JSON raises another error."""
    check(status, {}, json.dumps(data).encode())


def any_of(*likely: Any, **entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generate objects with some of these entries, or sometimes any other value."""
    return st.one_of(st.fixed_dictionaries({}, optional=entries), st.sampled_from(likely), json_values)


functions = any_of(None, name=st.text() | json_values, arguments=st.just("{}") | json_values)
calls = any_of({}, id=st.text() | json_values, function=functions, name=json_values)
pieces = any_of(
    "", type=st.just("text"), text=json_values, thinking=json_values | st.lists(json_values), refusal=json_values
)
messages = any_of(
    {},
    content=st.one_of(st.none(), st.text(), st.lists(pieces), pieces),
    tool_calls=st.one_of(st.none(), st.lists(calls), calls),
    function_call=functions,
    refusal=json_values,
    reasoning=json_values,
    reasoning_content=json_values,
)
choices = any_of(None, message=messages, delta=messages, finish_reason=json_values | st.just("stop"), error=json_values)
counts = any_of({}, cached_tokens=json_values, reasoning_tokens=json_values)
usages = any_of(
    None,
    prompt_tokens=json_values,
    completion_tokens=json_values,
    prompt_tokens_details=counts,
    cached_tokens=json_values,
)
completions = any_of(
    {},
    choices=st.lists(choices, max_size=2) | choices,
    usage=usages,
    model=json_values,
    id=json_values,
    error=json_values,
)


@given(completions)
@example({"choices": [{"message": {"tool_calls": [{"function": {"name": "f"}}]}, "finish_reason": []}]})
@example({"choices": [{"message": {"content": "\ud800"}}]})
@example({"choices": [{"message": {}}], "usage": {"prompt_tokens": 10**400}})
@example({"error": {"code": "9" * 5000}})
def test_anything_like_a_completion_is_a_response_or_an_inference_error(data: Any) -> None:
    """No malformed completion raises another error."""
    check(200, {}, json.dumps(data).encode())


def test_an_infinite_number_is_not_a_token_count() -> None:
    """A number that no integer can represent does not raise another error."""
    check(200, {}, b'{"choices": [{"message": {"content": "so"}}], "usage": {"prompt_tokens": 1e999}}')
