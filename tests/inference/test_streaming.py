"""Answers in pieces, over real sockets: what is told, when it is asked for again, and that nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from agentloop.contracts import FailedAttempt
from agentloop.errors import (
    AuthenticationError,
    BadRequest,
    InferenceError,
    InvalidResponse,
    ProviderUnavailable,
    RateLimited,
)
from agentloop.inference import HttpInference
from agentloop.inference.wire_formats.fields import wire_name
from agentloop.values import Effect, FinishReason, InferenceDelta, InferenceResponse, ToolCall, ToolSpec
from agentloop.values.policies import RetryPolicy
from tests.inference.chat_stream import CALLS_END, call_chunk, chunk, stream_text, text_stream
from tests.inference.loopback import (
    KEY,
    Reply,
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
from tests.inference.loopback_inference import QUESTION, bound, client_signaling_heads, inference_for, reporting_to
from tests.limits import jump, over_time


async def pieces_of(inference: HttpInference) -> list[InferenceDelta | InferenceResponse]:
    """Ask for an answer in pieces, and collect them."""
    return [piece async for piece in inference.stream(QUESTION)]


def texts(pieces: Sequence[InferenceDelta | InferenceResponse]) -> list[str]:
    """Return the texts of the deltas."""
    return [piece.text for piece in pieces if isinstance(piece, InferenceDelta)]


async def test_an_answer_comes_in_pieces_and_then_whole() -> None:
    """The deltas come in order, and the response that ends them says the same."""
    async with loopback(stream_text("Hel", "lo", " you")) as server:
        *deltas, response = await pieces_of(inference_for(server))
        assert texts(deltas) == ["Hel", "lo", " you"]
        assert isinstance(response, InferenceResponse)
        assert (response.text, response.finish_reason, response.usage.output_tokens) == (
            "Hello you",
            FinishReason.STOP,
            3,
        )
        assert server.requests[0].json["stream"] is True
        assert server.requests[0].json["stream_options"] == {"include_usage": True}


async def test_calls_come_in_pieces() -> None:
    """A call is told when it begins, and its arguments as they come."""
    pieces = [
        chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a"'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}),
        call_chunk(1, "add", "{}", "c2"),
        *CALLS_END,
    ]
    async with loopback(respond_chunked(pieces)) as server:
        *deltas, response = await pieces_of(inference_for(server))
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
async def test_how_the_bytes_are_cut_changes_nothing(step: int) -> None:
    """Chunks that cut lines, JSON and characters give the same answer."""
    body = b"".join(text_stream("Grüße, ", "日本 ", "🙂!"))
    async with loopback(respond_chunked([body[at : at + step] for at in range(0, len(body), step)])) as server:
        *deltas, response = await pieces_of(inference_for(server))
        assert "".join(texts(deltas)) == "Grüße, 日本 🙂!"
        assert isinstance(response, InferenceResponse)
        assert response.text == "Grüße, 日本 🙂!"


@pytest.mark.parametrize(
    "reply", [respond_gzipped(b"".join(text_stream("so"))), respond_and_close(b"".join(text_stream("so")))]
)
async def test_compressed_answers_and_those_without_a_length_are_read(reply: Reply) -> None:
    """How the body is wrapped is a matter of HTTP."""
    async with loopback(reply) as server:
        assert texts(await pieces_of(inference_for(server))) == ["so"]


async def test_a_service_that_does_not_stream_is_understood() -> None:
    """An answer that comes whole is an answer."""
    async with loopback(respond_text("all at once")) as server:
        (response,) = await pieces_of(inference_for(server))
        assert isinstance(response, InferenceResponse)
        assert response.text == "all at once"


@pytest.mark.parametrize(
    "trouble",
    [
        respond_json(429, {"error": {"message": "slow down"}}),
        respond_json(500, {}),
        hang_up(),
        reset(),
        hang_up(head(200, {"transfer-encoding": "chunked"})),
        respond_chunked([chunk({"role": "assistant"})], ends=False),
    ],
    ids=["429", "500", "hangs up", "resets", "ends after the head", "ends before a piece"],
)
async def test_what_fails_before_the_first_piece_is_tried_again(trouble: Reply) -> None:
    """Nothing was told yet, so that the answer can begin anew."""
    attempts: list[FailedAttempt] = []
    async with loopback(trouble, stream_text("so")) as server:
        pieces = await pieces_of(reporting_to(attempts, inference_for(server)))
        assert (texts(pieces), len(server.requests)) == (["so"], 2)
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
        (respond_chunked([chunk({"content": "so"}), b"data: no JSON\n\n"]), InvalidResponse),
        (respond_chunked([chunk({"content": "so"}), b'data: {"choices": 5}\n\n']), InvalidResponse),
    ],
    ids=["cut", "reset", "error event", "no JSON", "another shape"],
)
async def test_what_fails_after_the_first_piece_is_raised(reply: Reply, kind: type[InferenceError]) -> None:
    """Pieces that were told cannot be taken back; the error is typed, and nothing is asked again."""
    told: list[str] = []
    async with loopback(reply, stream_text("never")) as server:
        with pytest.raises(kind):  # noqa: PT012  # the pieces before the error are the point
            async for piece in inference_for(server).stream(QUESTION):
                assert isinstance(piece, InferenceDelta)
                told.append(piece.text)
        assert (told, len(server.requests)) == (["so"], 1)
        await server.all_closed()


@pytest.mark.parametrize(
    ("reply", "kind", "says_what"),
    [
        (
            respond_json(401, {"error": {"message": f"bad key {KEY}"}}, {"x-request-id": "r1"}),
            AuthenticationError,
            "bad key",
        ),
        (respond_json(400, {"error": {"message": "no"}}, {"x-request-id": "r1"}), BadRequest, "no"),
        (respond_json(429, {}, {"x-request-id": "r1", "retry-after": "3600"}), RateLimited, "429"),
        (respond(200, b"<html><title>Sign in</title>", {"x-request-id": "r1"}), InvalidResponse, "Sign in"),
        (respond_json(200, {"error": {"message": "broken"}}, {"x-request-id": "r1"}), BadRequest, "broken"),
        (respond(200, b"", {"x-request-id": "r1"}), InvalidResponse, "it contains no events"),
        (respond(200, b": only a comment\n\n", {"x-request-id": "r1"}), InvalidResponse, "it contains no events"),
        (respond(200, b'data: {"choices": []}\n\n', {"x-request-id": "r1"}), InvalidResponse, "it contains no choices"),
        (respond(200, b'data: {"error": "caf\xc3', {"x-request-id": "r1"}), InvalidResponse, "not JSON"),
    ],
    ids=["key", "request", "limit", "page", "error in 200", "empty", "comments", "no choices", "half a character"],
)
async def test_what_is_no_answer_is_a_typed_error(reply: Reply, kind: type[InferenceError], says_what: str) -> None:
    """Errors say what came, with the provider's id of the request and without the key."""
    async with loopback(reply) as server:
        with pytest.raises(kind, match=says_what) as caught:
            await pieces_of(inference_for(server, retry=RetryPolicy(max_attempts=1)))
        assert caught.value.request_id == "r1"
        assert KEY not in str(caught.value)


async def test_an_endless_stream_is_given_up_at_the_limit() -> None:
    """A body over the limit is a typed error, however small its pieces."""
    many = [chunk({"content": "and so on "})] * 200
    async with loopback(respond_chunked(many)) as server:
        with pytest.raises(InvalidResponse, match="larger than 5,000 bytes"):
            await pieces_of(inference_for(server, max_response_bytes=5000))
        await server.all_closed()


async def test_a_stream_that_stops_is_given_up_in_time() -> None:
    """Silence longer than the timeout ends the answer."""
    sent = head(200, {"transfer-encoding": "chunked"})
    head_came = asyncio.Event()
    async with loopback(stall(sent)) as server, client_signaling_heads(head_came) as client:
        once = RetryPolicy(max_attempts=1)
        reading = asyncio.create_task(pieces_of(inference_for(server, client=client, timeout=900, retry=once)))
        await head_came.wait()
        with pytest.raises(ProviderUnavailable, match=r"stalled for 900 seconds"):
            await over_time(reading, 900)
        await server.all_closed()


async def test_the_deadline_holds_for_the_whole_answer() -> None:
    """A stream that goes on too long is given up, also between its pieces."""
    piece = chunk({"content": "slow"})
    sent = head(200, {"transfer-encoding": "chunked"}) + b"%x\r\n%s\r\n" % (len(piece), piece)
    told = []
    async with loopback(stall(sent)) as server:
        with pytest.raises(ProviderUnavailable, match=r"within 900 seconds"):  # noqa: PT012  # the piece before counts
            async for one in inference_for(server, deadline=900, timeout=9000).stream(QUESTION):
                assert isinstance(one, InferenceDelta)
                told.append(one.text)
                jump(900)
        assert told == ["slow"]
        await server.all_closed()


async def test_leaving_early_closes_the_connection() -> None:
    """Whoever stops reading leaves no task and no socket, and the connection is not used again."""
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
        assert texts(await pieces_of(inference)) == ["b"]
        assert server.connections == 2


async def test_answers_of_one_scope_share_a_connection() -> None:
    """A streamed answer that was read to its end leaves its connection for the next one."""
    async with loopback(stream_text("a"), stream_text("b"), respond_text("c")) as server:
        async with bound(inference_for(server)) as (inference,):
            await pieces_of(inference)
            await pieces_of(inference)
            await inference.infer(QUESTION)
            assert server.connections == 1
        await server.all_closed()


async def test_names_of_tools_are_given_back_in_pieces_too() -> None:
    """A tool whose name the provider refuses has its own name in deltas and response."""
    spec = ToolSpec("math.add", "Add.", {"type": "object", "properties": {}}, Effect.PURE)
    async with loopback(respond_chunked([call_chunk(0, wire_name("math.add"), "{}"), *CALLS_END])) as server:
        stream = inference_for(server).stream(QUESTION.with_tools(spec))
        delta, _, response = [piece async for piece in stream]
        assert isinstance(delta, InferenceDelta)
        assert isinstance(response, InferenceResponse)
        assert (delta.name, response.tool_calls[0].name) == ("math.add", "math.add")
