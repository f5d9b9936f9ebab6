"""Tests of the decoding of responses of the Converse API, compared with what botocore reads from the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
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
from agentloop.models import LLMConfig
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import (
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    Message,
    ProviderPart,
    Reasoning,
    Text,
    ToolCall,
    ToolSpec,
    Usage,
    from_json,
    thaw,
    to_json,
)
from tests.models.generated_requests import json_values
from tests.models.wire_formats.bedrock_converse.aws_model import read_answer
from tests.models.wire_formats.recorded_responses import decode_exchange, has_expectation, load_exchanges

FORMAT = wire_format("bedrock-converse")
CONFIG = LLMConfig(model="m", base_url="https://bedrock", wire_format="bedrock-converse")
CALL = {"toolUse": {"toolUseId": "t", "name": "add", "input": {"a": 1}, "type": "tool_use"}}
SERVER_CALL = {"toolUse": {"toolUseId": "s", "name": "search", "input": {"q": "x"}, "type": "server_tool_use"}}
SERVER_RESULT = {"toolResult": {"toolUseId": "s", "content": [{"json": {"n": 1}}], "status": "success"}}
REASONING = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "sig"}}}
REDACTED = {"reasoningContent": {"redactedContent": "AAE="}}
CITED = {"citationsContent": {"content": [{"text": "It is "}, {"text": "4."}], "citations": [{"title": "a"}]}}


def answer(*blocks: Any, reason: object = "end_turn", **entries: Any) -> dict[str, Any]:
    """Return a complete response."""
    return {"output": {"message": {"role": "assistant", "content": list(blocks)}}, "stopReason": reason, **entries}


def decode(*blocks: Any, **entries: Any) -> InferenceResponse:
    """Decode a complete response."""
    return FORMAT.decode_response(200, {}, json.dumps(answer(*blocks, **entries)).encode())


def test_blocks_become_parts_in_their_order() -> None:
    """Reasoning keeps its signature; what has no neutral form remains a provider part."""
    response = decode(REASONING, REDACTED, {"text": "so"}, SERVER_CALL, SERVER_RESULT, CITED, CALL, {"new": {"a": 1}})
    assert response.parts == (
        Reasoning("hm", provider_data={"bedrock-converse": {"signature": "sig"}}),
        ProviderPart("bedrock-converse", REDACTED),
        Text("so"),
        ProviderPart("bedrock-converse", SERVER_CALL),
        ProviderPart("bedrock-converse", SERVER_RESULT),
        Text("It is 4.", provider_data={"bedrock-converse": {"block": CITED}}),
        ToolCall("t", "add", '{"a":1}'),
        ProviderPart("bedrock-converse", {"new": {"a": 1}}),
    )
    assert response.finish_reason is FinishReason.TOOL_CALLS


def test_what_the_provider_needs_back_is_sent_back() -> None:
    """The blocks of a decoded answer are those of the next request; citations may have no text."""
    bare = {"citationsContent": {"citations": [{"title": "b"}]}}
    response = decode(REASONING, REDACTED, SERVER_CALL, SERVER_RESULT, CITED, bare)
    message = Message.of_response(response.parts, [])
    tools = (ToolSpec("add", "", {}),)
    body = json.loads(FORMAT.encode_request(InferenceRequest((message,), tools=tools), CONFIG).body)
    assert body["messages"][0]["content"] == [REASONING, REDACTED, SERVER_CALL, SERVER_RESULT, CITED, bare]


def test_input_tokens_include_those_of_the_cache() -> None:
    """Bedrock counts tokens that were read from or written to the cache separately."""
    usage = {"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 100, "cacheWriteInputTokens": 7}
    assert decode(usage={**usage, "totalTokens": 122}).usage == Usage(117, 5, 100, 7)
    assert decode(usage={"inputTokens": 10, "outputTokens": 5}).usage == Usage(10, 5)
    assert decode(usage=None).usage == decode().usage == Usage()


def test_request_id_and_routed_model_are_read() -> None:
    """The id is in the headers; only the trace of a prompt router names the model."""
    trace = {"promptRouter": {"invokedModelId": "arn:model"}}
    body = json.dumps(answer({"text": "so"}, trace=trace)).encode()
    response = FORMAT.decode_response(200, {"x-amzn-requestid": "r-1"}, body)
    assert (response.id, response.model) == ("r-1", "arn:model")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("tool_use", FinishReason.TOOL_CALLS),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("guardrail_intervened", FinishReason.CONTENT_FILTER),
        ("content_filtered", FinishReason.CONTENT_FILTER),
        ("malformed_model_output", FinishReason.ERROR),
        ("malformed_tool_use", FinishReason.ERROR),
        ("something_else", FinishReason.OTHER),
        (None, FinishReason.UNKNOWN),
    ],
)
def test_stop_reasons_are_translated(reason: object, expected: FinishReason) -> None:
    """The provider's own reason is kept."""
    response = decode({"text": "so"}, reason=reason)
    assert (response.finish_reason, response.provider_finish_reason) == (expected, reason)


@pytest.mark.parametrize("reason", ["max_tokens", "content_filtered", "malformed_tool_use"])
def test_the_last_call_of_an_answer_that_was_cut_off_does_not_run(reason: str) -> None:
    """An object does not show whether the rest of it is missing; calls before the last block are complete."""
    first, last = decode(CALL, CALL, reason=reason).tool_calls
    assert (bool(first.rejection), bool(last.rejection)) == (False, True)
    assert not decode(CALL, {"text": "so"}, reason=reason).tool_calls[0].rejection


@pytest.mark.parametrize(
    ("status", "header", "body", "kind"),
    [
        (400, "ValidationException", {"message": "bad"}, BadRequest),
        (
            400,
            "ValidationException:http://aws/",
            {"message": "Input is too long for requested model."},
            ContextLengthExceeded,
        ),
        (400, "", {"__type": "com.amazon.coral.service#ThrottlingException", "message": "slow down"}, RateLimited),
        (400, "ExpiredTokenException", {"message": "The token has expired"}, AuthenticationError),
        (400, "ServiceQuotaExceededException", {"message": "m"}, RateLimited),
        (403, "AccessDeniedException", {"Message": "not authorized"}, AuthenticationError),
        (403, "UnrecognizedClientException", {"message": "invalid token"}, AuthenticationError),
        (404, "ResourceNotFoundException", {"message": "no model"}, BadRequest),
        (408, "ModelTimeoutException", {"message": "m"}, ProviderUnavailable),
        (424, "ModelErrorException", {"message": "m"}, ProviderUnavailable),
        (429, "ThrottlingException", {"message": "m"}, RateLimited),
        (429, "ModelNotReadyException", {"message": "m"}, ProviderUnavailable),
        (500, "InternalServerException", {"message": "m"}, ProviderUnavailable),
        (503, "ServiceUnavailableException", {}, ProviderUnavailable),
        (502, "", None, ProviderUnavailable),
    ],
)
def test_errors_are_typed_by_status_and_error_type(
    status: int, header: str, body: object, kind: type[InferenceError]
) -> None:
    """The error type is in a header or in the body, and the error names it."""
    headers = {"x-amzn-requestid": "r", **({"x-amzn-errortype": header} if header else {})}
    with pytest.raises(InferenceError) as caught:
        FORMAT.decode_response(status, headers, json.dumps(body).encode())
    assert (type(caught.value), caught.value.status, caught.value.request_id) == (kind, status, "r")
    assert header.partition(":")[0] in str(caught.value)


def test_an_error_with_a_success_status_is_an_error() -> None:
    """Gateways may send one."""
    with pytest.raises(RateLimited, match="slow"):
        FORMAT.decode_response(200, {}, b'{"__type": "ThrottlingException", "message": "slow: too many requests"}')


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b'{"output": {}}',
        b'{"output": {"message": {}}}',
        b'{"output": {"message": {"content": 5}}}',
        b'{"output": {"message": {"content": [5]}}}',
        b'{"output": {"message": {"content": [{"toolUse": 5}]}}}',
        b'{"output": {"message": {"content": [{"reasoningContent": null}]}}}',
        b"<html></html>",
        b"[" * 100_000,
    ],
)
def test_an_invalid_body_is_an_invalid_response(body: bytes) -> None:
    """The error quotes the body, truncated."""
    with pytest.raises(InvalidResponse) as caught:
        FORMAT.decode_response(200, {"x-amzn-requestid": "r"}, body)
    assert (caught.value.status, caught.value.request_id) == (200, "r")
    assert len(str(caught.value)) < 800


# --- compared with botocore and with recordings --------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.sampled_from(["add", "get_weather-2"])
blocks = st.one_of(
    st.fixed_dictionaries({"text": texts}),
    st.fixed_dictionaries(
        {
            "toolUse": st.fixed_dictionaries(
                {
                    "toolUseId": st.sampled_from(["t1", "t2"]),
                    "name": names,
                    "input": st.dictionaries(texts, st.integers()),
                }
            )
        }
    ),
    st.builds(lambda text: {"reasoningContent": {"reasoningText": {"text": text, "signature": "s"}}}, texts),
    st.just(REDACTED),
)


@given(st.lists(blocks, max_size=4), st.sampled_from(["end_turn", "tool_use"]), st.integers(0, 10**6))
def test_answers_are_read_as_botocore_reads_them(content: list[Any], reason: str, tokens: int) -> None:
    """Text, reasoning, calls, stop reason and tokens are those of boto3."""
    usage = {"inputTokens": tokens, "outputTokens": 2, "totalTokens": tokens + 2}
    body = json.dumps(answer(*content, reason=reason, usage=usage, metrics={"latencyMs": 1})).encode()
    theirs, ours = read_answer(body), FORMAT.decode_response(200, {}, body)
    read = theirs["output"]["message"]["content"]
    assert ours.text == "".join(block.get("text", "") for block in read)
    thoughts = [block["reasoningContent"].get("reasoningText", {}) for block in read if "reasoningContent" in block]
    assert ours.reasoning == "".join(thought.get("text", "") for thought in thoughts)
    calls = [(call.id, call.name, thaw(call.arguments)) for call in ours.tool_calls]
    assert calls == [
        (block["toolUse"]["toolUseId"], block["toolUse"]["name"], block["toolUse"]["input"])
        for block in read
        if "toolUse" in block
    ]
    assert ours.provider_finish_reason == theirs["stopReason"]
    assert (ours.usage.input_tokens, ours.usage.output_tokens) == (theirs["usage"]["inputTokens"], 2)


def test_recorded_answers_are_decoded_as_boto3_does(more_corpus: Path) -> None:
    """Text, reasoning, calls, stop reason and tokens of recorded answers are those that boto3 decoded."""
    exchanges = load_exchanges(more_corpus, "other_formats.json.jsonl")
    judged = [row for row in exchanges if row["wire_format"] == "bedrock_converse" and has_expectation(row)]
    found = [f"{exchange['id']}: {difference}" for exchange in judged for difference in differences(exchange)]
    assert len(judged) > 5
    assert not found, "\n".join(found)


def differences(exchange: Mapping[str, Any]) -> list[str]:
    """Return the differences between a decoded answer and what boto3 made of it."""
    decoded, expect = decode_exchange(FORMAT, exchange), exchange["expect"]
    if isinstance(decoded, InferenceError) or "raises" in expect:
        is_expected = isinstance(decoded, InferenceError) and "raises" in expect
        return [] if is_expected else [f"{decoded!r} instead of {expect}"]
    payloads = [part.payload if isinstance(part, ProviderPart) else None for part in decoded.parts]
    server_calls = [p["toolUse"]["toolUseId"] for p in payloads if isinstance(p, dict) and "toolUse" in p]
    calls = [(call.id, call.name, thaw(call.arguments)) for call in decoded.tool_calls]
    uncached = (decoded.usage.input_tokens or 0) - (decoded.usage.cached_input_tokens or 0)
    compared = {
        "text": (decoded.text, expect["text"] or ""),
        "reasoning": (decoded.reasoning, expect["reasoning"] or ""),
        "calls": (
            calls,
            [(c["id"], c["name"], c["arguments"]) for c in expect["tool_calls"] if c["id"] not in server_calls],
        ),
        "finish": (decoded.provider_finish_reason, expect["finish"]),
        "input": (uncached - (decoded.usage.cache_write_tokens or 0), expect["usage"]["input_tokens"]),
        "output": (decoded.usage.output_tokens, expect["usage"]["output_tokens"]),
    }
    return [f"{name}: {ours!r} instead of {theirs!r}" for name, (ours, theirs) in compared.items() if ours != theirs]


# --- hostile bytes -----------------------------------------------------------------------------------------------------


def any_of(*likely: Any, **entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generate objects with some of these entries, or sometimes any other value."""
    return st.one_of(st.fixed_dictionaries({}, optional=entries), st.sampled_from(likely), json_values)


any_blocks = any_of(
    *(CALL, REASONING, REDACTED, CITED, SERVER_CALL),
    text=json_values,
    toolUse=any_of(None, toolUseId=json_values, name=json_values, input=json_values, type=json_values),
    toolResult=json_values,
    reasoningContent=any_of(None, reasoningText=any_of(None, text=json_values, signature=json_values)),
    citationsContent=any_of(None, content=json_values, citations=json_values),
)
bodies = any_of(
    {},
    output=any_of({}, message=any_of({}, content=st.lists(any_blocks, max_size=3) | json_values)),
    stopReason=st.sampled_from(["tool_use", "max_tokens"]) | json_values,
    usage=any_of({}, inputTokens=json_values, cacheReadInputTokens=json_values),
    trace=json_values,
    error=json_values,
)


@given(bodies)
@example(answer({"text": "\ud800"}))
@example(answer(usage={"inputTokens": 10**400}))
def test_any_body_is_a_response_or_an_inference_error(data: Any) -> None:
    """No malformed body raises another error, and what is decoded can be stored."""
    try:
        response = FORMAT.decode_response(200, {}, json.dumps(data).encode())
    except InferenceError:
        return
    assert from_json(to_json(response), InferenceResponse) == response


@given(st.integers(100, 599), st.binary())
def test_any_bytes_are_a_response_or_an_inference_error(status: int, body: bytes) -> None:
    """No bytes raise another error."""
    try:
        FORMAT.decode_response(status, {}, body)
    except InferenceError:
        return
