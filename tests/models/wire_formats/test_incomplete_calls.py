"""Calls of answers that did not end normally: without their arguments they do not run, in any wire format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolCallingDriver
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.tools import tool
from agentloop.values import ExecutionStatus, FinishReason, InferenceResponse
from tests.models.wire_formats.aws_events import aws_event

WHOLE = '{"pattern": "a*"}'
MISSING = object()
"""Stands for arguments that are not in the answer."""
CUT = [MISSING, None, "", " ", "null", *[WHOLE[:length] for length in range(1, len(WHOLE))]]


def events(*datas: Mapping[str, Any]) -> bytes:
    """Encode a stream."""
    return b"".join([b"data: " + json.dumps(data).encode() + b"\n\n" for data in datas])


def chat(arguments: object, reason: str, *, streamed: bool) -> bytes:
    """Return an answer of Chat Completions."""
    function = {"name": "wipe"} if arguments is MISSING else {"name": "wipe", "arguments": arguments}
    content = {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]}
    if streamed:
        chunks = [{"index": 0, "delta": content}, {"index": 0, "delta": {}, "finish_reason": reason}]
        return events(*[{"id": "r", "choices": [chunk]} for chunk in chunks])
    return json.dumps({"choices": [{"message": content, "finish_reason": reason}]}).encode()


def responses(arguments: object, reason: str | None, *, streamed: bool) -> bytes:
    """Return an incomplete answer of the Responses API."""
    item = {"type": "function_call", "id": "f", "call_id": "c", "name": "wipe", "status": "incomplete"}
    if arguments is not MISSING:
        item["arguments"] = arguments  # type: ignore[assignment]  # of any type
    whole = {"id": "r", "status": "incomplete", "output": [item], "incomplete_details": {"reason": reason}}
    if not streamed:
        return json.dumps(whole).encode()
    return events(
        {"type": "response.created", "response": {**whole, "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}},
        {"type": "response.incomplete", "response": whole},
    )


def messages(arguments: object, reason: str, *, streamed: bool) -> bytes:
    """Return an answer of the Messages API; in one piece, the arguments are an object."""
    block = {"type": "tool_use", "id": "c", "name": "wipe", "input": {}}
    message: dict[str, Any] = {"id": "m", "role": "assistant", "content": [], "stop_reason": None}
    if not streamed:
        given = arguments if isinstance(arguments, dict) else {}
        return json.dumps({**message, "content": [{**block, "input": given}], "stop_reason": reason}).encode()
    fragment = {"type": "input_json_delta", "partial_json": arguments}
    return events(
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *([{"type": "content_block_delta", "index": 0, "delta": fragment}] if isinstance(arguments, str) else []),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason}},
        {"type": "message_stop"},
    )


def converse(arguments: object, reason: str, *, streamed: bool) -> bytes:
    """Return an answer of Bedrock; in one piece, the input is an object."""
    call = {"toolUseId": "c", "name": "wipe"}
    if not streamed:
        given = {} if arguments is MISSING else {"input": arguments}
        return json.dumps(
            {"output": {"message": {"content": [{"toolUse": {**call, **given}}]}}, "stopReason": reason}
        ).encode()
    fragment = {"contentBlockIndex": 0, "delta": {"toolUse": {"input": arguments}}}
    return b"".join(
        [
            aws_event("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": call}}),
            *([aws_event("contentBlockDelta", fragment)] if isinstance(arguments, str) else []),
            aws_event("contentBlockStop", {"contentBlockIndex": 0}),
            aws_event("messageStop", {"stopReason": reason}),
        ]
    )


def cohere(arguments: object, reason: str, *, streamed: bool) -> bytes:
    """Return an answer of Cohere."""
    function = {"name": "wipe"} if arguments is MISSING else {"name": "wipe", "arguments": arguments}
    call = {"id": "c", "type": "function", "function": function}
    if not streamed:
        return json.dumps({"id": "r", "message": {"tool_calls": [call]}, "finish_reason": reason}).encode()
    return events(
        {"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": call}}},
        {"type": "message-end", "delta": {"finish_reason": reason}},
    )


def decode(name: str, body: bytes, *, streamed: bool) -> InferenceResponse:
    """Decode an answer."""
    if not streamed:
        return wire_format(name).decode_response(200, {}, body)
    decoder = wire_format(name).stream_decoder()
    decoder.feed(body)
    return decoder.close()


def wiped(response: InferenceResponse) -> list[str]:
    """Return the patterns that a tool received whose argument is optional; check that no call was lost."""
    received: list[str] = []

    @tool
    def wipe(pattern: str = "*") -> str:
        """Delete files."""
        received.append(pattern)
        return "deleted"

    driver = ToolCallingDriver(ScriptedInference(response, "I could not."), mode="native")
    state = AgentLoop(driver, [wipe]).execute_sync("Clean up.")
    assert [execution.name for execution in state.steps[0].executions] == ["wipe"]
    return received


streams = pytest.mark.parametrize("streamed", [False, True], ids=["body", "stream"])
cuts = pytest.mark.parametrize("cut", CUT, ids=lambda cut: "missing" if cut is MISSING else repr(cut))


@streams
@cuts
@pytest.mark.parametrize("reason", ["length", "content_filter", "abort"])
def test_a_call_of_chat_completions_without_all_arguments_does_not_run(
    cut: object, reason: str, *, streamed: bool
) -> None:
    """Missing arguments are not `{}`, and every beginning of JSON is cut off."""
    assert wiped(decode("openai-chat", chat(cut, reason, streamed=streamed), streamed=streamed)) == []


@streams
@cuts
@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter", "something_new", None])
def test_a_call_of_responses_without_all_arguments_does_not_run(
    cut: object, reason: str | None, *, streamed: bool
) -> None:
    """An incomplete response did not end normally, whatever the reason is called."""
    body = responses(cut, reason, streamed=streamed)
    assert wiped(decode("openai-responses", body, streamed=streamed)) == []


@cuts
@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "model_context_window_exceeded"])
def test_a_call_of_a_message_without_all_arguments_does_not_run(cut: object, reason: str) -> None:
    """A block without fragments has no arguments."""
    body = messages(cut, reason, streamed=True)
    assert wiped(decode("anthropic-messages", body, streamed=True)) == []


@pytest.mark.parametrize("given", [{}, {"pattern": "a"}], ids=str)
def test_the_last_call_of_a_message_that_was_cut_off_does_not_run(given: object) -> None:
    """An object does not show whether the rest of it is missing."""
    body = messages(given, "max_tokens", streamed=False)
    assert wiped(decode("anthropic-messages", body, streamed=False)) == []


@cuts
@pytest.mark.parametrize("reason", ["max_tokens", "content_filtered", "malformed_tool_use"])
def test_a_call_of_bedrock_without_all_arguments_does_not_run(cut: object, reason: str) -> None:
    """A block without fragments has no arguments."""
    assert wiped(decode("bedrock-converse", converse(cut, reason, streamed=True), streamed=True)) == []


@pytest.mark.parametrize(
    "given", [MISSING, None, {}, {"pattern": "a"}], ids=["missing", "null", "no arguments", "an argument"]
)
def test_the_last_call_of_bedrock_that_was_cut_off_does_not_run(given: object) -> None:
    """An object does not show whether the rest of it is missing."""
    assert wiped(decode("bedrock-converse", converse(given, "max_tokens", streamed=False), streamed=False)) == []


@cuts
def test_a_call_in_a_stream_without_a_finish_reason_does_not_run_without_its_arguments(cut: object) -> None:
    """A proxy sends `[DONE]` also when the service behind it has failed."""
    raw = chat(cut, "", streamed=True) + b"data: [DONE]\n\n"
    assert wiped(decode("openai-chat", raw, streamed=True)) == []


@pytest.mark.parametrize(("arguments", "expected"), [(WHOLE, ["a*"]), ("{}", ["*"])])
def test_whole_calls_run_although_the_stream_has_no_finish_reason(arguments: str, expected: list[str]) -> None:
    """Some services send none."""
    raw = chat(arguments, "", streamed=True) + b"data: [DONE]\n\n"
    assert wiped(decode("openai-chat", raw, streamed=True)) == expected


@streams
@cuts
@pytest.mark.parametrize("reason", ["MAX_TOKENS", "ERROR", "TIMEOUT"])
def test_a_call_of_cohere_without_all_arguments_does_not_run(cut: object, reason: str, *, streamed: bool) -> None:
    """Missing arguments are not `{}`, and every beginning of JSON is cut off."""
    assert wiped(decode("cohere-v2", cohere(cut, reason, streamed=streamed), streamed=streamed)) == []


@streams
@pytest.mark.parametrize("reason", ["MAX_TOKENS", "SAFETY", "MALFORMED_FUNCTION_CALL", "LANGUAGE", "OTHER"])
@pytest.mark.parametrize(
    "call",
    [
        {"name": "wipe"},
        {"name": "wipe", "args": {}},
        {"name": "wipe", "args": {"pattern": "a"}, "willContinue": True},
        {"name": "wipe", "partialArgs": [{"jsonPath": "$.pattern", "stringValue": "a", "willContinue": True}]},
    ],
    ids=str,
)
def test_an_unfinished_call_of_gemini_does_not_run(call: dict[str, Any], reason: str, *, streamed: bool) -> None:
    """Neither a call without arguments nor one of which more was announced."""
    body = {"candidates": [{"content": {"parts": [{"functionCall": call}]}, "finishReason": reason}]}
    data = events(body) if streamed else json.dumps(body).encode()
    assert wiped(decode("gemini", data, streamed=streamed)) == []


@streams
@pytest.mark.parametrize("arguments", [MISSING, None, "", {}], ids=["missing", "null", "text", "object"])
def test_a_call_of_ollama_without_arguments_does_not_run(arguments: object, *, streamed: bool) -> None:
    """Ollama sends arguments as an object."""
    function = {"name": "wipe"} if arguments is MISSING else {"name": "wipe", "arguments": arguments}
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
    line = json.dumps({"model": "m", "message": message, "done": True, "done_reason": "length"}).encode()
    assert wiped(decode("ollama", line + b"\n", streamed=streamed)) == []


def ollama(arguments: object, reason: str, *, streamed: bool) -> bytes:  # a line of JSON is both
    """Return an answer of Ollama; the arguments are an object."""
    call = {"function": {"name": "wipe", "arguments": json.loads(str(arguments))}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    return json.dumps({"model": "m", "message": message, "done": True, "done_reason": reason}).encode() + b"\n"


def gemini(arguments: object, reason: str, *, streamed: bool) -> bytes:
    """Return an answer of Gemini; the arguments are an object."""
    part = {"functionCall": {"name": "wipe", "args": json.loads(str(arguments))}}
    body = {"candidates": [{"content": {"parts": [part]}, "finishReason": reason}]}
    return events(body) if streamed else json.dumps(body).encode()


def read_messages(arguments: object, reason: str, *, streamed: bool) -> bytes:
    """Return an answer of the Messages API with the arguments as that API sends them."""
    return messages(arguments if streamed else json.loads(str(arguments)), reason, streamed=streamed)


def read_converse(arguments: object, reason: str, *, streamed: bool) -> bytes:
    """Return an answer of Bedrock with the arguments as that API sends them."""
    return converse(arguments if streamed else json.loads(str(arguments)), reason, streamed=streamed)


FORMATS: dict[str, tuple[Callable[..., bytes], str, str]] = {
    "openai-chat": (chat, "tool_calls", "length"),
    "anthropic-messages": (read_messages, "tool_use", "max_tokens"),
    "gemini": (gemini, "STOP", "MAX_TOKENS"),
    "ollama": (ollama, "stop", "length"),
    "bedrock-converse": (read_converse, "tool_use", "max_tokens"),
    "cohere-v2": (cohere, "TOOL_CALL", "MAX_TOKENS"),
}
"""For each format an encoder, the reason of a normal end and that of the limit of tokens; Responses has no reasons of its own."""
formats = pytest.mark.parametrize("name", FORMATS)


@streams
@formats
def test_a_call_that_was_cut_off_before_its_arguments_is_cut_off_in_every_format(name: str, *, streamed: bool) -> None:
    """Gateways hand it on with an empty object, which is that of a call without arguments only in an answer that is whole."""
    encode, normal, limit = FORMATS[name]
    assert wiped(decode(name, encode("{}", limit, streamed=streamed), streamed=streamed)) == []
    assert wiped(decode(name, encode("{}", normal, streamed=streamed), streamed=streamed)) == ["*"]


@streams
@formats
@pytest.mark.parametrize(
    "reason", ["error", "ERROR", "generation_broke", "something new", "content_filter", "network lost"]
)
def test_a_reason_that_is_not_known_to_be_a_normal_end_is_none(name: str, reason: str, *, streamed: bool) -> None:
    """No call of such an answer runs, also if its arguments are complete; a reason of a normal end lets it run."""
    encode, normal, _ = FORMATS[name]
    response = decode(name, encode(WHOLE, reason, streamed=streamed), streamed=streamed)
    assert response.finish_reason.is_incomplete
    assert wiped(response) == []
    assert wiped(decode(name, encode(WHOLE, normal, streamed=streamed), streamed=streamed)) == ["a*"]


@streams
@formats
@pytest.mark.parametrize("reason", [{"type": "error"}, ["stop"], 7, True])
def test_a_reason_that_is_no_text_is_no_normal_end(name: str, reason: Any, *, streamed: bool) -> None:
    """No format has such reasons."""
    encode, _, _ = FORMATS[name]
    assert wiped(decode(name, encode(WHOLE, reason, streamed=streamed), streamed=streamed)) == []


@pytest.mark.parametrize("second", ["stop", "tool_calls", ""])
def test_a_normal_end_behind_another_one_does_not_make_a_stream_whole(second: str) -> None:
    """Gateways end every stream with their own reason."""
    raw = chat(WHOLE, "error", streamed=True)
    raw += events({"id": "r", "choices": [{"index": 0, "delta": {}, "finish_reason": second}]})
    assert wiped(decode("openai-chat", raw, streamed=True)) == []
    part = {"candidates": [{"content": {"parts": []}, "finishReason": second.upper()}]}
    raw = gemini(WHOLE, "MALFORMED_FUNCTION_CALL", streamed=True) + events(part)
    assert wiped(decode("gemini", raw, streamed=True)) == []


@streams
def test_an_object_of_chat_completions_does_not_show_that_the_rest_of_it_is_missing(*, streamed: bool) -> None:
    """Some services send arguments as an object; that of the last call may be cut off."""
    given = {"pattern": "a"}
    assert wiped(decode("openai-chat", chat(given, "length", streamed=streamed), streamed=streamed)) == []
    assert wiped(decode("openai-chat", chat(given, "tool_calls", streamed=streamed), streamed=streamed)) == ["a"]


@pytest.mark.parametrize(
    "word", ["stop", "eos", "eos_token", "STOP", "complete", "tool_calls", "function_call", "", None]
)
@streams
def test_normal_ends_of_services_let_calls_run(word: str | None, *, streamed: bool) -> None:
    """Chat Completions has many implementers, whose words are known."""
    raw = chat(WHOLE, word, streamed=streamed)  # type: ignore[arg-type]  # as services send it
    assert wiped(decode("openai-chat", raw + b"data: [DONE]\n\n" * streamed, streamed=streamed)) == ["a*"]


@streams
def test_whole_calls_run_although_the_answer_was_cut_off(*, streamed: bool) -> None:
    """The limit of tokens cuts off what is behind a call with complete arguments, and a call that another one follows is whole."""
    for name in ("openai-chat", "cohere-v2"):
        encode, _, limit = FORMATS[name]
        assert wiped(decode(name, encode(WHOLE, limit, streamed=streamed), streamed=streamed)) == ["a*"]
    for name in ("bedrock-converse", "anthropic-messages"):
        encode, _, limit = FORMATS[name]
        assert wiped(decode(name, encode(WHOLE, limit, streamed=True), streamed=True)) == ["a*"]
    calls = ToolCall("1", "wipe", "{}"), ToolCall("2", "wipe", "{}")
    received: list[str] = []

    @tool
    def wipe(pattern: str = "*") -> str:
        """Delete files."""
        received.append(pattern)
        return "deleted"

    model = ScriptedInference(InferenceResponse(calls, FinishReason.LENGTH), "I could not.")
    state = AgentLoop.for_model(model, tools=[wipe]).execute_sync("Clean up.")
    assert received == ["*"]
    assert [execution.status.value for execution in state.steps[0].executions] == ["succeeded", "rejected"]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("gemini", {"candidates": [{"content": {"parts": []}, "finishReason": "OTHER"}]}),
        ("ollama", {"model": "m", "message": {"content": ""}, "done": True, "done_reason": "load"}),
        ("openai-responses", {"id": "r", "status": "queued", "output": []}),
        ("openai-responses", {"id": "r", "status": "incomplete", "output": []}),
    ],
)
def test_an_empty_answer_that_did_not_end_normally_completes_nothing(name: str, body: Mapping[str, Any]) -> None:
    """The execution fails, after another attempt where one can help."""
    response = decode(name, json.dumps(body).encode(), streamed=False)
    state = AgentLoop(ToolCallingDriver(ScriptedInference(*[response] * 3), mode="native")).execute_sync("Go.")
    assert state.status is ExecutionStatus.FAILED


@streams
def test_a_pause_of_the_provider_is_followed_by_another_step(*, streamed: bool) -> None:
    """The provider gets the message back and goes on."""
    block = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
    message = {"id": "m", "role": "assistant", "content": [block], "stop_reason": "pause_turn"}
    stream = events({"type": "message_start", "message": message}, {"type": "message_stop"})
    paused = decode("anthropic-messages", stream if streamed else json.dumps(message).encode(), streamed=streamed)
    state = AgentLoop(ToolCallingDriver(ScriptedInference(paused, "Found."), mode="native")).execute_sync("Search.")
    assert (state.final_text, state.step_count) == ("Found.", 2)
