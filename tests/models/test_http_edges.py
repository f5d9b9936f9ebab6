"""Tests of responses that are valid HTTP and unusual, or just beyond it; they are the same with each transport."""

from __future__ import annotations

import asyncio

import pytest

from agentloop.errors import InferenceError, InvalidResponse
from agentloop.values import InferenceRequest, Message
from agentloop.values.policies import RetryPolicy
from tests.models.loopback import Connection, Reply, completion, head, loopback, respond, respond_text
from tests.models.loopback_inference import QUESTION, bound, inference_for

ONCE = RetryPolicy(max_attempts=1)
HELLO = head(200, {"content-length": str(len(completion()))}) + completion()
CHUNKED = head(200, {"transfer-encoding": "chunked"})
MEGABYTE = 1024 * 1024


def send(*pieces: bytes) -> Reply:
    """Send pieces as they are, one per turn of the event loop."""

    def reply(connection: Connection, _: object) -> None:
        def send_next(remaining: tuple[bytes, ...]) -> None:
            connection.transport.write(remaining[0])
            if remaining[1:] and not connection.transport.is_closing():
                asyncio.get_running_loop().call_soon(send_next, remaining[1:])

        send_next(pieces)

    return reply


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(send(head(103, {"link": "</style.css>"}) + HELLO), id="an interim response before it"),
        pytest.param(send(head(100, {}), HELLO), id="an interim response of its own"),
        pytest.param(send(*[HELLO[at : at + 1] for at in range(len(HELLO))]), id="byte by byte"),
        pytest.param(
            send(CHUNKED, b"%x;name=value\r\n%s\r\n" % (len(completion()), completion()), b"0\r\nx-sum: 1\r\n\r\n"),
            id="extensions and trailers",
        ),
        pytest.param(send(HELLO.replace(b"HTTP/1.1 200 Whatever", b"HTTP/1.1 200")), id="no reason"),
        pytest.param(send(HELLO.replace(b"\r\n\r\n", b"\r\nx-many: a\r\nX-Many: b\r\n\r\n", 1)), id="a header twice"),
        pytest.param(send(HELLO.replace(b"\r\n\r\n", b"\r\nx-name: caf\xe9\r\n\r\n", 1)), id="a header in Latin-1"),
    ],
)
async def test_unusual_responses_are_read(reply: Reply) -> None:
    """They are answers, and their connection is used again."""
    async with loopback(reply, respond_text("again")) as server, bound(inference_for(server)) as (inference,):
        assert (await inference.infer(QUESTION)).text == "hello"
        assert (await inference.infer(QUESTION)).text == "again"
        assert server.connections == 1


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(send(HELLO.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)), id="the last one"),
        pytest.param(send(HELLO.replace(b"HTTP/1.1", b"HTTP/1.0")), id="of an old server"),
    ],
)
async def test_a_connection_is_not_used_again_after_some_responses(reply: Reply) -> None:
    """They are answers; the next request has a connection of its own, and an answer of its own."""
    async with loopback(reply, respond_text("again")) as server, bound(inference_for(server)) as (inference,):
        assert (await inference.infer(QUESTION)).text == "hello"
        assert (await inference.infer(QUESTION)).text == "again"
        assert server.connections == 2


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(send(head(200, {"x-large": "x" * MEGABYTE})[:-2]), id="a head without end"),
        pytest.param(send(CHUNKED, b"1;" + b"x" * MEGABYTE), id="an extension without end"),
        pytest.param(send(CHUNKED, b"0\r\n", b"x-trailer: 1\r\n" * 50_000), id="trailers without end"),
        pytest.param(send(CHUNKED, b"what\r\n"), id="no size"),
        pytest.param(send(head(200, {"transfer-encoding": "gzip"}) + b"x"), id="another transfer encoding"),
        pytest.param(send(head(101, {"upgrade": "x", "connection": "upgrade"}) + b"x"), id="another protocol"),
        pytest.param(send(b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n"), id="no header"),
    ],
)
async def test_what_is_no_response_is_refused(reply: Reply) -> None:
    """It ends at once, without a timeout, and with an error of ours; nothing of it is left."""
    async with loopback(reply, respond_text("again")) as server:
        async with bound(inference_for(server, retry=ONCE)) as (inference,):
            with pytest.raises(InferenceError):
                await inference.infer(QUESTION)
            await server.all_closed()
            assert (await inference.infer(QUESTION)).text == "again"
        assert server.connections == 2


@pytest.mark.parametrize("more", [b"more", HELLO, HELLO[:30]])
async def test_what_follows_a_response_is_no_answer_to_the_next_request(more: bytes) -> None:
    """With httptools, a response that comes with more than it should is the last one of its connection."""
    pytest.importorskip("httptools", reason="needs the extra `fast`")
    async with (
        loopback(send(HELLO + more), respond_text("again")) as server,
        bound(inference_for(server, transport="httptools")) as (inference,),
    ):
        assert (await inference.infer(QUESTION)).text == "hello"
        assert (await inference.infer(QUESTION)).text == "again"
        assert server.connections == 2


async def test_interim_responses_have_an_end() -> None:
    """With httptools, they count as one head, which has a limit."""
    pytest.importorskip("httptools", reason="needs the extra `fast`")
    interim = [head(103, {"link": "x" * 1000})] * 300
    async with loopback(send(*interim)) as server:
        with pytest.raises(InvalidResponse, match="too large"):
            await inference_for(server, transport="httptools", retry=ONCE).infer(QUESTION)


async def test_what_an_idle_connection_sends_is_no_answer() -> None:
    """A server that sends a response before it is asked loses its connection; the next request has another one."""
    async with loopback(respond_text(), respond_text("right")) as server, bound(inference_for(server)) as (inference,):
        await inference.infer(QUESTION)
        for connection in server._open:
            connection.transport.write(HELLO.replace(b"hello", b"wrong"))
        assert (await inference.infer(QUESTION)).text == "right"
        assert server.connections == 2


async def test_large_requests_and_responses_arrive() -> None:
    """Several megabytes go either way, also while the reader takes its time."""
    text = "x" * (4 * MEGABYTE)
    async with loopback(respond(200, completion(text))) as server:
        response = await inference_for(server).infer(InferenceRequest((Message.user(text),)))
        assert response.text == text
        assert len(server.requests[0].body) > len(text)


async def test_a_response_without_a_length_ends_with_its_connection_only_if_it_is_whole() -> None:
    """A body that ends with the connection is complete; one that has a length and is shorter is not."""
    short = head(200, {"content-length": "99999"}) + completion()
    whole = head(200, {"connection": "close"}) + completion()

    def closing(data: bytes) -> Reply:
        def reply(connection: Connection, _: object) -> None:
            connection.transport.write(data)
            connection.transport.close()

        return reply

    async with loopback(closing(whole), closing(short)) as server:
        inference = inference_for(server, retry=ONCE)
        assert (await inference.infer(QUESTION)).text == "hello"
        with pytest.raises(InvalidResponse, match="broke off"):
            await inference.infer(QUESTION)
