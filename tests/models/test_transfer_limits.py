"""Limits on the time and the size of responses, compressed or not, and tracebacks without keys."""

from __future__ import annotations

import asyncio
import gzip
import traceback
import zlib
from collections.abc import AsyncIterator
from math import inf
from typing import Any

import httpx
import pytest

from agentloop import AgentLoop, Bounds, ToolCallingDriver
from agentloop.errors import AgentLoopError, ConfigurationError, InferenceError, InvalidResponse
from agentloop.models import LLMConfig
from agentloop.testing import run_in_virtual_time
from agentloop.values import InferenceResponse
from agentloop.values.bounds import DEFAULT_BOUNDS
from agentloop.values.policies import RetryPolicy
from tests.models.chat_stream import chunk, text_stream
from tests.models.loopback import (
    KEY,
    Reply,
    completion,
    hang_up,
    head,
    loopback,
    reset,
    respond,
    respond_chunked,
    respond_json,
)
from tests.models.loopback_inference import QUESTION, inference_for

ONCE = RetryPolicy(max_attempts=1)
LARGE = b" " * 100_000 + completion()


def compressed(coding: str, body: bytes, status: int = 200) -> Reply:
    """Return a reply with a compressed body."""
    packed = zlib.compress(body) if coding == "deflate" else gzip.compress(body)
    return respond(status, packed, {"content-encoding": coding})


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "x-gzip", "deflate", "identity"])
async def test_one_coding_is_decoded(coding: str) -> None:
    """Responses may be compressed once, whatever the client asked for."""
    reply = respond(200, LARGE, {"content-encoding": "identity"}) if coding == "identity" else compressed(coding, LARGE)
    async with loopback(reply) as server:
        assert (await inference_for(server, max_response_bytes=len(LARGE)).infer(QUESTION)).text == "hello"


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("coding", ["gzip, gzip", "gzip,deflate", "br", "zstd", "compress"])
async def test_other_codings_are_refused(coding: str, status: int) -> None:
    """Several codings, and those that the client does not ask for, are refused before anything is decompressed."""
    async with loopback(
        respond(status, gzip.compress(LARGE), {"content-encoding": coding, "x-request-id": "r"})
    ) as server:
        with pytest.raises(InvalidResponse, match=f"compressed as '{coding}'") as raised:
            await inference_for(server).infer(QUESTION)
        assert (raised.value.status, raised.value.request_id, len(server.requests)) == (status, "r", 1)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_decompressed_bytes_are_counted(coding: str, status: int, *, streaming: bool) -> None:
    """The limit holds for answers, streams and bodies of errors."""
    async with loopback(compressed(coding, LARGE, status)) as server:
        inference = inference_for(server, max_response_bytes=5000)
        with pytest.raises(InvalidResponse, match="larger than 5,000 bytes; raise max_response_bytes"):
            await (consume(inference.stream(QUESTION)) if streaming else inference.infer(QUESTION))
        await server.all_closed()


async def consume(stream: AsyncIterator[object]) -> InferenceResponse:
    """Return the response of a stream."""
    *_, last = [item async for item in stream]
    assert isinstance(last, InferenceResponse)
    return last


async def test_a_compressed_body_without_its_end_is_retried() -> None:
    """A body that was cut within the compressed data is incomplete, even if it seems to be complete."""
    whole = gzip.compress(b"".join(text_stream("so")))
    cut = respond(200, whole[:-6], {"content-encoding": "gzip"})
    async with loopback(cut, respond(200, whole, {"content-encoding": "gzip"})) as server:
        inference = inference_for(server).with_retry_report(lambda _: None)
        assert (await consume(inference.stream(QUESTION))).text == "so"
        assert len(server.requests) == 2


class Body(httpx.AsyncByteStream):
    """A body whose chunks arrive after these seconds."""

    def __init__(self, *chunks: tuple[float, bytes]) -> None:
        self.chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for seconds, data in self.chunks:
            await asyncio.sleep(seconds)
            yield data


def exchange(first_wait: float, body: Body, bounds: Bounds, **settings: Any) -> tuple[str, float]:
    """Run a loop with a slow model; return its answer or error, and the seconds."""

    async def respond_late(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(first_wait)
        return httpx.Response(200, stream=body)

    async def run() -> tuple[str, float]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(respond_late)) as client:
            inference = inference_for("http://127.0.0.1:1/v1", client=client, **{"retry": ONCE, **settings})
            loop = AgentLoop(ToolCallingDriver(inference), bounds=bounds)
            state = await loop.execute("go")
            text = state.errors[0].message if state.errors else state.final_text or ""
            return text, asyncio.get_running_loop().time()

    return run_in_virtual_time(run())


WHOLE = completion()
DRIPPING = Body(*[(100.0, b" ")] * 100, (0.0, WHOLE))
ENDLESS = Bounds(first_byte_seconds=10, idle_seconds=inf, inference_seconds=inf)


@pytest.mark.parametrize(
    ("first_wait", "body", "settings", "expected"),
    [
        (599, Body((599, WHOLE)), {}, ("hello", 1198)),
        (601, Body((0, WHOLE)), {}, ("Bounds.first_byte_seconds", 600)),
        (0, Body((601, WHOLE)), {}, ("Bounds.first_byte_seconds", 600)),
        (0, Body((1, WHOLE[:5]), (119, WHOLE[5:])), {}, ("hello", 120)),
        (0, Body((1, WHOLE[:5]), (121, WHOLE[5:])), {}, ("Bounds.idle_seconds", 121)),
        (0, Body((1, WHOLE[:5]), (9000, WHOLE[5:])), {"bounds": ENDLESS}, ("hello", 9001)),
        (0, Body((9, WHOLE[:5]), (9000, WHOLE[5:])), {"bounds": ENDLESS, "deadline": 5000}, ("raise deadline", 5000)),
        (0, DRIPPING, {}, ("Bounds.inference_seconds", 1800)),
        (0, DRIPPING, {"bounds": Bounds(inference_seconds=500)}, ("Bounds.inference_seconds", 500)),
        (0, DRIPPING, {"bounds": Bounds(inference_seconds=500), "deadline": 700}, ("raise deadline", 700)),
        (0, DRIPPING, {"deadline": float("inf")}, ("hello", 10_000)),
        (0, DRIPPING, {"bounds": Bounds(idle_seconds=50)}, ("Bounds.idle_seconds", 150)),
        (0, DRIPPING, {"timeout": 50}, ("raise timeout", 50)),
        (0, Body((0, WHOLE)), {"bounds": Bounds(response_bytes=50)}, ("Bounds.response_bytes", 0)),
        (0, Body((0, WHOLE)), {"bounds": Bounds(response_bytes=50), "max_response_bytes": 5000}, ("hello", 0)),
        (0, Body((0, WHOLE)), {"max_response_bytes": 50}, ("raise max_response_bytes", 0)),
    ],
)
def test_responses_are_limited_by_settings_or_bounds(
    first_wait: float, body: Body, settings: dict[str, Any], expected: tuple[str, float]
) -> None:
    """A setting that is not None takes precedence over the bound of the loop, and the error names what to change."""
    text, seconds = exchange(first_wait, body, **{"bounds": DEFAULT_BOUNDS, **settings})
    assert expected[0] in text
    assert seconds == expected[1]


def test_waits_between_attempts_do_not_count() -> None:
    """The bound limits the time of attempts, so that a provider that asks to wait does not end the inference."""

    async def run() -> tuple[str, float]:
        replies = [
            httpx.Response(429, headers={"retry-after": "50"}, stream=Body((60, b""))),
            httpx.Response(200, stream=Body((30, WHOLE))),
        ]
        async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: replies.pop(0))) as client:
            inference = inference_for("http://127.0.0.1:1/v1", client=client)
            state = await AgentLoop(ToolCallingDriver(inference), bounds=Bounds(inference_seconds=100)).execute("go")
            return state.final_text or "", asyncio.get_running_loop().time()

    assert run_in_virtual_time(run()) == ("hello", 140)


# --- tracebacks ----------------------------------------------------------------------------------------------------


def shown(error: BaseException) -> str:
    """Return the traceback with local variables, as error trackers record it."""
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


@pytest.mark.parametrize("auth", ["bearer", "x-api-key"])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "reply",
    [
        hang_up(),
        hang_up(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        hang_up(head(200, {"content-length": "99"}) + b"{"),
        reset(head(200, {"content-length": "99"}) + b"{"),
        respond_json(401, {"error": {"message": f"bad key {KEY}"}}),
        respond(200, b"not gzip", {"content-encoding": "gzip"}),
        respond(200, b"x", {"content-encoding": "br"}),
        respond_chunked([chunk({"content": "so"})], ends=False),
        respond(200, b" " * 5000),
    ],
)
async def test_a_traceback_with_locals_shows_no_key(reply: Reply, auth: str, *, streaming: bool) -> None:
    """Neither the frames of this library nor those of the HTTP library show the headers."""
    async with loopback(reply) as server:
        inference = inference_for(server, auth=auth, retry=ONCE, max_response_bytes=2000)
        with pytest.raises(InferenceError) as raised:
            await (consume(inference.stream(QUESTION)) if streaming else inference.infer(QUESTION))
    assert KEY not in shown(raised.value)


async def test_the_traceback_of_a_cancelled_inference_shows_no_key_in_frames_of_this_library() -> None:
    """The frames of a task that is cancelled while it waits have no headers in their local variables."""
    async with loopback(lambda *_: None) as server:
        task = asyncio.create_task(inference_for(server, auth="x-api-key").infer(QUESTION))
        await server.received(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
    assert KEY not in shown(raised.value)


@pytest.mark.parametrize(
    "settings", [{"timeout": -1}, {"base_url": "nowhere"}, {"colour": 1}, {"headers": {"x y": "1"}}], ids=str
)
def test_the_traceback_of_an_invalid_configuration_shows_no_key(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the key nor the environment is in a local variable of `parse`."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for text in ("openai:m", "nobody:m", "azure:m"):
        if text == "openai:m" or not settings.get("base_url"):
            with pytest.raises(AgentLoopError) as raised:
                LLMConfig.parse(text, **settings)
            assert isinstance(raised.value, ConfigurationError)
            assert KEY not in shown(raised.value)
