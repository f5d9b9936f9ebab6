"""Responses of Chat Completions, with the oddities of the services that speak it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloop.errors import BadRequest, InferenceError, InvalidResponse, ProviderUnavailable, RateLimited
from agentloop.inference.wire_formats.wire_format import wire_format
from agentloop.values import FinishReason, InferenceResponse, Reasoning, Text, ToolCall, Usage, from_json, to_json
from tests.inference.generated_requests import json_values

FORMAT = wire_format("openai-chat")


def decoded(message: object, finish_reason: object = None, **entries: object) -> InferenceResponse:
    """Decode a completion of one choice."""
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return FORMAT.decode_response(200, {}, json.dumps({"choices": [choice], **entries}).encode())


def test_a_completion_is_read_whole() -> None:
    """Text, model, id, reason and every count of tokens are taken over."""
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    response = decoded({"role": "assistant", "content": "hello"}, "stop", id="chatcmpl-1", model="m-2026", usage=usage)
    assert response == InferenceResponse(
        (Text("hello"),), FinishReason.STOP, Usage(10, 5, 4, 3, 2), "m-2026", "chatcmpl-1", "stop"
    )


@pytest.mark.parametrize("content", [None, "", [], {}, [""], [{}], [{"type": "text", "text": ""}]])
def test_no_content_is_no_text(content: object) -> None:
    """However a service spells that there is no text, there is none."""
    assert decoded({"content": content}).parts == ()
    assert decoded({}).parts == ()


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
    """Parts of text and thoughts are read in their order, and what is neither is passed over."""
    assert list(decoded({"content": content}).parts) == parts


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_stand_before_the_answer(name: str) -> None:
    """Services that show thoughts beside the content are read in the order of thinking and saying."""
    assert decoded({"content": "so", name: "hm"}).parts == (Reasoning("hm"), Text("so"))
    assert decoded({"content": "so", name: None}).parts == (Text("so"),)


def test_thoughts_that_are_there_twice_are_read_once() -> None:
    """A service that shows its thoughts under both names thought once."""
    assert decoded({"reasoning_content": "hm", "reasoning": "hm"}).parts == (Reasoning("hm"),)


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
def test_arguments_are_kept_as_they_came(arguments: object, text: str) -> None:
    """Text stays text byte by byte; what a service sends as an object becomes the text of it."""
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}
    assert decoded({"content": None, "tool_calls": [call]}).parts == (ToolCall("c", "add", text),)


@pytest.mark.parametrize("arguments", ["", None, {}, "{}", "null"])
def test_no_arguments_are_no_arguments(arguments: object) -> None:
    """However a service spells that there are none, a tool gets none."""
    call = {"id": "c", "function": {"name": "add", "arguments": arguments}}
    (found,) = decoded({"tool_calls": [call]}).tool_calls
    assert dict(found.arguments) == {}
    (found,) = decoded({"tool_calls": [{"id": "c", "function": {"name": "add"}}]}).tool_calls
    assert dict(found.arguments) == {}


@pytest.mark.parametrize(("given_id", "kept"), [("c", "c"), ("", ""), (None, ""), (7, "7"), ([], "")])
def test_ids_may_be_missing_or_odd(given_id: object, kept: str) -> None:
    """A call without an id is a call; one with a number keeps it as text."""
    call = {"id": given_id, "function": {"name": "add", "arguments": "{}"}}
    assert decoded({"tool_calls": [call]}).tool_calls == (ToolCall(kept, "add"),)


def test_calls_keep_their_order_their_doubled_ids_and_stand_after_the_text() -> None:
    """What a model said comes before what it asked for, in the order it asked, under the ids it gave."""
    calls = [{"id": "c", "function": {"name": name, "arguments": "{}"}} for name in ("b", "a", "b")]
    response = decoded({"content": "so", "tool_calls": calls}, "tool_calls")
    assert response.parts == (Text("so"), ToolCall("c", "b"), ToolCall("c", "a"), ToolCall("c", "b"))


def test_a_single_call_may_stand_without_a_list() -> None:
    """A service that sends one call as an object is understood."""
    call = {"id": "c", "function": {"name": "add", "arguments": "{}"}}
    assert decoded({"tool_calls": call}).tool_calls == (ToolCall("c", "add"),)


def test_a_call_may_be_spelled_flat() -> None:
    """A call whose name and arguments stand beside its id is understood."""
    assert decoded({"tool_calls": [{"id": "c", "name": "add", "arguments": {}}]}).tool_calls == (ToolCall("c", "add"),)


def test_the_older_spelling_of_a_call_is_no_call() -> None:
    """Nobody who is offered `tools` is asked by `function_call`, which the provider's own SDK does not take for a tool call."""
    response = decoded({"content": "so", "function_call": {"name": "add", "arguments": '{"a":1}'}})
    assert response.parts == (Text("so"),)


@pytest.mark.parametrize(
    ("reason", "meant"),
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
        (5, FinishReason.UNKNOWN),
        ([], FinishReason.UNKNOWN),
        ({}, FinishReason.UNKNOWN),
    ],
)
def test_finish_reasons_are_put_into_common_words(reason: object, meant: FinishReason) -> None:
    """Known words are translated, unknown ones are other, and the provider's own word is kept."""
    response = decoded({"content": "so"}, reason)
    assert response.finish_reason is meant
    assert response.provider_finish_reason == (reason if isinstance(reason, str) else None)


@pytest.mark.parametrize(
    ("reason", "meant"),
    [
        ("stop", FinishReason.TOOL_CALLS),
        ("", FinishReason.TOOL_CALLS),
        (None, FinishReason.TOOL_CALLS),
        ([], FinishReason.TOOL_CALLS),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
    ],
)
def test_an_answer_with_calls_ends_for_them_unless_it_was_cut(reason: object, meant: FinishReason) -> None:
    """Services that say `stop` or nothing beside calls mean the calls; a cut answer is still a cut answer."""
    call = {"id": "c", "function": {"name": "add", "arguments": "{}"}}
    assert decoded({"tool_calls": [call]}, reason).finish_reason is meant


def test_a_refusal_is_text_that_was_held_back() -> None:
    """The words of a refusal are what there is to show, and the finish reason tells that they are one."""
    response = decoded({"content": None, "refusal": "I will not."}, "stop")
    assert response.text == "I will not."
    assert (response.finish_reason, response.provider_finish_reason) == (FinishReason.CONTENT_FILTER, "stop")


def test_no_refusal_changes_nothing() -> None:
    """An empty refusal, as many services send one, is none; and text goes before a refusal."""
    for nothing in ("", None):
        assert decoded({"content": "so", "refusal": nothing}, "stop").finish_reason is FinishReason.STOP
    assert decoded({"content": "so", "refusal": "no"}, "stop").text == "so"


@pytest.mark.parametrize(
    ("usage", "counted"),
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
def test_tokens_that_are_not_reported_are_unknown(usage: object, counted: Usage) -> None:
    """What is counted is taken over wherever services put it, and what is not stays unknown, never zero."""
    assert decoded({"content": "so"}, "stop", usage=usage).usage == counted
    assert decoded({"content": "so"}).usage == Usage()


def test_only_the_first_choice_is_read() -> None:
    """An answer is one answer."""
    body = {"choices": [{"message": {"content": "one"}}, {"message": {"content": "two"}}]}
    assert FORMAT.decode_response(200, {}, json.dumps(body).encode()).text == "one"


def test_a_message_may_be_called_a_delta() -> None:
    """A service that answers a plain request in the shape of a stream is understood."""
    body = {"choices": [{"delta": {"content": "one"}}]}
    assert FORMAT.decode_response(200, {}, json.dumps(body).encode()).text == "one"


@pytest.mark.parametrize("status", [200, 201, 202, 203])
def test_any_success_is_one(status: int) -> None:
    """Gateways that answer with another status of success are understood; a byte order mark does not matter."""
    body = b'\xef\xbb\xbf{"choices": [{"message": {"content": "so"}}]}'
    assert FORMAT.decode_response(status, {}, body).text == "so"


@pytest.mark.parametrize(
    ("data", "kind", "told"),
    [
        ({"error": {"message": "busy", "code": 503}}, ProviderUnavailable, "busy"),
        ({"error": {"message": "busy", "code": 503}, "choices": []}, ProviderUnavailable, "busy"),
        ({"error": "slow down: rate limit"}, RateLimited, "slow down"),
        (
            {"choices": [{"error": {"message": "upstream gone", "code": 502}, "message": {"content": ""}}]},
            ProviderUnavailable,
            "upstream gone",
        ),
        ({"error": {"message": "no such thing"}}, BadRequest, "no such thing"),
    ],
)
def test_an_error_in_a_success_is_raised(data: object, kind: type[InferenceError], told: str) -> None:
    """Routers tell errors under status 200, in the answer or in its choice."""
    with pytest.raises(kind, match=told):
        FORMAT.decode_response(200, {}, json.dumps(data).encode())


def test_a_warning_beside_an_answer_is_not_an_error() -> None:
    """An answer with choices is an answer, also with an error entry that is empty or beside them."""
    errors: list[object] = [None, "", {}, {"message": "a warning"}]
    assert [decoded({"content": "so"}, error=error).text for error in errors] == ["so"] * 4


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
def test_what_is_no_completion_is_an_invalid_response(body: bytes) -> None:
    """Bytes and JSON of another shape are refused with what came, shortened."""
    with pytest.raises(InvalidResponse, match=r"the response (is not JSON|does not have the structure)") as caught:
        FORMAT.decode_response(200, {"x-request-id": "r"}, body)
    assert (caught.value.status, caught.value.request_id) == (200, "r")
    assert len(str(caught.value)) < 800


def check(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Decode; what comes of it is a response that can be stored, or an inference error."""
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
    """Make objects with some of these entries, and now and then something else."""
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
    """No completion with something odd in any of its places raises another error."""
    check(200, {}, json.dumps(data).encode())


def test_a_number_without_end_is_not_a_number_of_tokens() -> None:
    """What JSON can spell and no integer can hold is an invalid response or unknown, not another error."""
    check(200, {}, b'{"choices": [{"message": {"content": "so"}}], "usage": {"prompt_tokens": 1e999}}')
