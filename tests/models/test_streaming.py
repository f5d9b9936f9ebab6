"""Tests of streaming over real sockets: deltas, retries, errors and leaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from agentloop.contracts.can_infer import FailedAttempt
from agentloop.errors import (
    AuthenticationError,
    BadRequest,
    InferenceError,
    InvalidResponse,
    ProviderUnavailable,
    RateLimited,
)
from agentloop.models import HttpInference
from agentloop.models.wire_formats import decoding, errors
from agentloop.models.wire_formats.fields import wire_name
from agentloop.values import Effect, FinishReason, InferenceDelta, InferenceResponse, ToolCall, ToolSpec
from agentloop.values.policies import RetryPolicy
from tests.limits import jump, over_time
from tests.models.chat_stream import CALLS_END, call_chunk, chunk, stream_text, text_stream
from tests.models.loopback import (
    KEY,
    Reply,
    completion,
    hang_up,
    head,
    loopback,
    reset,
    respond,
    respond_and_close,
    respond_chunked,
    respond_gzipped,
    respond_json,
    respond_text,
    stall,
)
from tests.models.loopback_inference import QUESTION, bound, client_signaling_heads, inference_for, reporting_to


async def collect(inference: HttpInference) -> list[InferenceDelta | InferenceResponse]:
    """Stream a response and return its items."""
    return [item async for item in inference.stream(QUESTION)]


def texts(items: Sequence[InferenceDelta | InferenceResponse]) -> list[str]:
    """Return the texts of the deltas."""
    return [item.text for item in items if isinstance(item, InferenceDelta)]


async def test_a_response_is_streamed_as_deltas_and_then_complete() -> None:
    """The deltas arrive in order, and the final response contains the same text."""
    async with loopback(stream_text("Hel", "lo", " you")) as server:
        *deltas, response = await collect(inference_for(server))
        assert texts(deltas) == ["Hel", "lo", " you"]
        assert isinstance(response, InferenceResponse)
        assert (response.text, response.finish_reason, response.usage.output_tokens) == (
            "Hello you",
            FinishReason.STOP,
            3,
        )
        assert server.requests[0].json["stream"] is True
        assert server.requests[0].json["stream_options"] == {"include_usage": True}


async def test_calls_are_streamed_in_fragments() -> None:
    """A delta reports the start of a call, and further deltas its arguments."""
    chunks = [
        chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a"'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}),
        call_chunk(1, "add", "{}", "c2"),
        *CALLS_END,
    ]
    async with loopback(respond_chunked(chunks)) as server:
        *deltas, response = await collect(inference_for(server))
        assert deltas == [
            InferenceDelta("tool_call", call_id="c1", name="add"),
            InferenceDelta("arguments", '{"a"'),
            InferenceDelta("arguments", ": 1}"),
            InferenceDelta("tool_call", index=1, call_id="c2", name="add"),
            InferenceDelta("arguments", "{}", 1),
        ]
        assert isinstance(response, InferenceResponse)
        assert response.tool_calls == (ToolCall("c1", "add", '{"a": 1}'), ToolCall("c2", "add", "{}"))


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000])
async def test_chunk_boundaries_do_not_matter(step: int) -> None:
    """Chunks that split lines, JSON and characters give the same response."""
    body = b"".join(text_stream("Grüße, ", "日本 ", "🙂!"))
    async with loopback(respond_chunked([body[at : at + step] for at in range(0, len(body), step)])) as server:
        *deltas, response = await collect(inference_for(server))
        assert "".join(texts(deltas)) == "Grüße, 日本 🙂!"
        assert isinstance(response, InferenceResponse)
        assert response.text == "Grüße, 日本 🙂!"


@pytest.mark.parametrize(
    "reply", [respond_gzipped(b"".join(text_stream("so"))), respond_and_close(b"".join(text_stream("so")))]
)
async def test_compressed_responses_and_those_without_a_length_are_read(reply: Reply) -> None:
    """The framing of the body does not matter."""
    async with loopback(reply) as server:
        assert texts(await collect(inference_for(server))) == ["so"]


async def test_a_service_that_does_not_stream_is_supported() -> None:
    """A complete response to a streaming request is decoded."""
    async with loopback(respond_text("all at once")) as server:
        (response,) = await collect(inference_for(server))
        assert isinstance(response, InferenceResponse)
        assert response.text == "all at once"


@pytest.mark.parametrize(
    "failure",
    [
        respond_json(429, {"error": {"message": "slow down"}}),
        respond_json(500, {}),
        hang_up(),
        reset(),
        hang_up(head(200, {"transfer-encoding": "chunked"})),
        respond_chunked([chunk({"role": "assistant"})], ends=False),
    ],
    ids=["429", "500", "closed", "reset", "closed after the head", "closed before a delta"],
)
async def test_a_failure_before_the_first_delta_is_retried(failure: Reply) -> None:
    """Before the first delta, a failed attempt is reported and repeated."""
    attempts: list[FailedAttempt] = []
    async with loopback(failure, stream_text("so")) as server:
        items = await collect(reporting_to(attempts, inference_for(server)))
        assert (texts(items), len(server.requests)) == (["so"], 2)
    assert [failed.attempt for failed in attempts] == [1]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (respond_chunked([chunk({"content": "so"})], ends=False), InvalidResponse),
        (reset(head(200, {"content-length": "999"}) + chunk({"content": "so"})), InvalidResponse),
        (
            respond_chunked([chunk({"content": "so"}), b'data: {"error": {"message": "overloaded", "code": 503}}\n\n']),
            ProviderUnavailable,
        ),
        (respond_chunked([chunk({"content": "so"}), b"data: not JSON\n\n"]), InvalidResponse),
        (respond_chunked([chunk({"content": "so"}), b'data: {"choices": 5}\n\n']), InvalidResponse),
    ],
    ids=["closed", "reset", "error event", "not JSON", "another structure"],
)
async def test_a_failure_after_the_first_delta_is_raised(reply: Reply, kind: type[InferenceError]) -> None:
    """After the first delta, the error is raised, and no further request is sent."""
    streamed: list[str] = []
    async with loopback(reply, stream_text("never")) as server:
        with pytest.raises(kind):  # noqa: PT012  # the deltas before the error matter
            async for delta in inference_for(server).stream(QUESTION):
                assert isinstance(delta, InferenceDelta)
                streamed.append(delta.text)
        assert (streamed, len(server.requests)) == (["so"], 1)
        await server.all_closed()


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (
            respond_json(401, {"error": {"message": f"bad key {KEY}"}}, {"x-request-id": "r1"}),
            AuthenticationError,
            "bad key",
        ),
        (respond_json(400, {"error": {"message": "no"}}, {"x-request-id": "r1"}), BadRequest, "no"),
        (respond_json(429, {}, {"x-request-id": "r1", "retry-after": "3600"}), RateLimited, "429"),
        (respond(200, b"<html><title>Sign in</title>", {"x-request-id": "r1"}), InvalidResponse, "Sign in"),
        (respond_json(200, {"error": {"message": "broken"}}, {"x-request-id": "r1"}), ProviderUnavailable, "broken"),
        (respond(200, b"", {"x-request-id": "r1"}), InvalidResponse, "it contains no events"),
        (respond(200, b": only a comment\n\n", {"x-request-id": "r1"}), InvalidResponse, "it contains no events"),
        (respond(200, b'data: {"choices": []}\n\n', {"x-request-id": "r1"}), InvalidResponse, "it contains no choices"),
        (respond(200, b'data: {"error": "caf\xc3', {"x-request-id": "r1"}), InvalidResponse, "not JSON"),
    ],
    ids=["key", "request", "limit", "page", "error in 200", "empty", "comments", "no choices", "half a character"],
)
async def test_an_invalid_stream_is_a_typed_error(reply: Reply, kind: type[InferenceError], message: str) -> None:
    """The error contains the provider's request id, and not the key."""
    async with loopback(reply) as server:
        with pytest.raises(kind, match=message) as caught:
            await collect(inference_for(server, retry=RetryPolicy(max_attempts=1)))
        assert caught.value.request_id == "r1"
        assert KEY not in str(caught.value)


async def test_an_endless_stream_ends_at_the_size_limit() -> None:
    """A body over the limit is an error, however small its chunks are."""
    chunks = [chunk({"content": "and so on "})] * 200
    async with loopback(respond_chunked(chunks)) as server:
        with pytest.raises(InvalidResponse, match="larger than 5,000 bytes"):
            await collect(inference_for(server, max_response_bytes=5000))
        await server.all_closed()


async def test_the_read_timeout_ends_a_stream() -> None:
    """A stream that stalls for `timeout` seconds is an error."""
    sent = head(200, {"transfer-encoding": "chunked"})
    head_received = asyncio.Event()
    async with loopback(stall(sent)) as server, client_signaling_heads(head_received) as client:
        once = RetryPolicy(max_attempts=1)
        stream_task = asyncio.create_task(collect(inference_for(server, client=client, timeout=900, retry=once)))
        await head_received.wait()
        with pytest.raises(ProviderUnavailable, match=r"stalled for 900 seconds"):
            await over_time(stream_task, 900)
        await server.all_closed()


async def test_a_complete_answer_counts_although_the_end_of_its_stream_does_not_come() -> None:
    """A server may keep the connection open, send signs of life or hang up; the connection is not used again."""
    data = b"".join(text_stream("so"))
    sent = head(200, {"transfer-encoding": "chunked"}) + b"%x\r\n%s\r\n" % (len(data), data)
    replies = [stall(sent), stall(sent + b"7\r\n: on\r\n\r\n\r\n"), hang_up(sent), hang_up(sent + b"no chunk")]
    async with (
        loopback(*replies, stream_text("b"), stream_text("c")) as server,
        bound(inference_for(server)) as (inference,),
    ):
        for _ in replies:
            streaming = asyncio.create_task(collect(inference))
            await server.received(len(server.requests) + 1)
            await over_time(streaming, 1)
            assert texts(streaming.result()) == ["so"]
        assert texts([*await collect(inference), *await collect(inference)]) == ["b", "c"]
        assert (len(server.requests), server.connections) == (len(replies) + 2, len(replies) + 1)


async def test_the_deadline_includes_the_whole_stream() -> None:
    """At the deadline the stream ends, also between its deltas."""
    data = chunk({"content": "slow"})
    sent = head(200, {"transfer-encoding": "chunked"}) + b"%x\r\n%s\r\n" % (len(data), data)
    streamed = []
    async with loopback(stall(sent)) as server:
        with pytest.raises(ProviderUnavailable, match=r"within 900 seconds"):  # noqa: PT012  # the delta before matters
            async for delta in inference_for(server, deadline=900, timeout=9000).stream(QUESTION):
                assert isinstance(delta, InferenceDelta)
                streamed.append(delta.text)
                jump(900)
        assert streamed == ["slow"]
        await server.all_closed()


async def test_closing_a_stream_early_closes_the_connection() -> None:
    """A stream that is closed early leaves no task and no socket, and its connection is not reused."""
    before = asyncio.all_tasks()
    async with (
        loopback(stall(head(200, {"content-length": "9999"}) + chunk({"content": "so"})), stream_text("b")) as server,
        bound(inference_for(server)) as (inference,),
    ):
        stream = inference.stream(QUESTION)
        assert isinstance(await anext(stream), InferenceDelta)
        await stream.aclose()
        await server.all_closed()
        assert asyncio.all_tasks() == before
        assert texts(await collect(inference)) == ["b"]
        assert server.connections == 2


async def test_streams_of_one_scope_share_a_connection() -> None:
    """A stream that was read to its end returns its connection to the pool."""
    async with loopback(stream_text("a"), stream_text("b"), respond_text("c")) as server:
        async with bound(inference_for(server)) as (inference,):
            await collect(inference)
            await collect(inference)
            await inference.infer(QUESTION)
            assert server.connections == 1
        await server.all_closed()


async def test_deltas_have_the_original_tool_names() -> None:
    """A tool that is sent under another name has its own name in deltas and response."""
    spec = ToolSpec("math.add", "Add.", {"type": "object", "properties": {}}, Effect.PURE)
    async with loopback(respond_chunked([call_chunk(0, wire_name("math.add"), "{}"), *CALLS_END])) as server:
        stream = inference_for(server).stream(QUESTION.with_tools([spec]))
        delta, _, response = [item async for item in stream]
        assert isinstance(delta, InferenceDelta)
        assert isinstance(response, InferenceResponse)
        assert (delta.name, response.tool_calls[0].name) == ("math.add", "math.add")


# --- long ones ------------------------------------------------------------------------------------------------------

LONG = "a" * 200_000


@pytest.mark.parametrize(
    "reply",
    [
        stream_text("Hi", LONG),
        stream_text(LONG),
        respond_text(LONG),
        respond_json(400, {"error": {"message": LONG}}),
        respond(200, completion(LONG)),
    ],
    ids=["after a delta", "first", "not a stream", "an error", "without a type"],
)
async def test_what_is_long_is_parsed_in_a_thread(reply: Reply, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks go on while a long event, body or error is parsed."""
    threads: list[int] = []
    for module in (decoding, errors):
        monkeypatch.setattr(module, "parse_json", _noting(module.parse_json, threads))
    async with loopback(reply) as server:
        with suppress(BadRequest):
            await collect(inference_for(server))
    assert threads
    assert threading.get_ident() not in threads


def _noting(parse: Any, threads: list[int]) -> Any:
    def noting(text: str | bytes, *args: Any) -> Any:
        if len(text) >= len(LONG):
            threads.append(threading.get_ident())
        return parse(text, *args)

    return noting


async def test_other_tasks_go_on_while_a_short_compressed_stream_becomes_a_long_one() -> None:
    """One packet can hold megabytes, which are read in pieces of 64 KiB."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    body = b": a comment\n" * 400_000 + b"".join(text_stream("so"))
    async with loopback(respond_gzipped(body)) as server, asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(count())
        assert texts(await collect(inference_for(server))) == ["so"]
        counting.cancel()
    assert turns >= len(body) // 65_536


@pytest.mark.parametrize("text", ["[],", '{"a":1},', '"a","b",'])
async def test_an_event_or_a_body_with_very_many_entries_is_not_parsed(text: str) -> None:
    """They would take gigabytes and seconds; the error says how many there may be."""
    document = b'{"choices": [' + text.encode() * 200_001 + b"1]}"
    async with loopback(respond_chunked([b"data: " + document + b"\n\n"]), respond(200, document)) as server:
        for _ in range(2):
            with pytest.raises(InvalidResponse, match="has more than 200,000 entries in its lists and objects"):
                await collect(inference_for(server))


async def test_commas_and_brackets_in_a_text_are_no_entries() -> None:
    """A long table in an answer is a text."""
    table = "[1, 2], {3},\\" * 100_000
    async with loopback(respond_text(table)) as server:
        (response,) = await collect(inference_for(server))
        assert isinstance(response, InferenceResponse)
        assert response.text == table
