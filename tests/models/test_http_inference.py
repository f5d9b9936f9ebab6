"""Tests of inference over HTTP: requests, responses and errors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

import pytest

from agentloop.errors import (
    AuthenticationError,
    BadRequest,
    ConfigurationError,
    ContextLengthExceeded,
    InferenceError,
    InvalidResponse,
    ProviderUnavailable,
    RateLimited,
)
from agentloop.models import EncodedRequest, HttpInference, LLMConfig
from agentloop.models.wire_formats.openai_chat import OpenAIChat
from agentloop.values import InferenceRequest, InferenceResponse, Message
from agentloop.values.policies import RetryPolicy
from tests.limits import over_time
from tests.models.loopback import (
    KEY,
    Reply,
    completion,
    echo,
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
from tests.models.loopback_inference import QUESTION, client_signaling_heads, config_for, inference_for

ONCE = RetryPolicy(max_attempts=1)
TIMEOUT = 900.0
"""Seconds of the event loop's clock; no real time passes."""
LONG = b"x" * 3000


async def test_a_request_is_a_json_post_with_the_key() -> None:
    """The client sends one POST with host, length, key and JSON to the path of the wire format below the base URL."""
    async with loopback(respond_text()) as server:
        await inference_for(server, headers={"X-Title": "tests", "User-Agent": "mine"}).infer(QUESTION)
        (request,) = server.requests
        assert request.line == "POST /v1/chat/completions HTTP/1.1"
        assert request.headers == {
            "host": f"127.0.0.1:{server.port}",
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "gzip",
            "user-agent": "mine",
            "authorization": f"Bearer {KEY}",
            "x-title": "tests",
            "content-length": str(len(request.body)),
        }
        assert request.json == {"model": "loopback", "messages": [{"role": "user", "content": "How are you?"}]}


async def test_headers_of_the_wire_format_override_those_of_the_configuration() -> None:
    """The headers of a wire format are sent with each request."""

    class Dated(OpenAIChat):
        @property
        def name(self) -> str:
            return "dated"

        def encode_request(
            self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False
        ) -> EncodedRequest:
            return EncodedRequest("/dated", b"{}", headers={"x-version": "2026-01-01", "accept": "text/plain"})

        def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
            return InferenceResponse(())

    async with loopback(respond_text()) as server:
        await HttpInference(config_for(server), wire_format=Dated()).infer(QUESTION)
        sent = server.requests[0].headers
        assert (sent["x-version"], sent["accept"], sent["authorization"]) == (
            "2026-01-01",
            "text/plain",
            f"Bearer {KEY}",
        )


async def test_a_header_that_is_not_http_is_a_bad_request() -> None:
    """An invalid header raises without an attempt, and the error does not contain the key."""

    class Broken(OpenAIChat):
        @property
        def name(self) -> str:
            return "broken"

        def encode_request(
            self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False
        ) -> EncodedRequest:
            return EncodedRequest("/", b"{}", headers={"x-broken": f"a\n{KEY}"})

        def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
            return InferenceResponse(())

    async with loopback() as server:
        with pytest.raises(BadRequest, match="is not valid HTTP") as caught:
            await HttpInference(config_for(server), wire_format=Broken()).infer(QUESTION)
        assert server.requests == []
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("auth", ["x-api-key", "api-key", "x-goog-api-key"])
async def test_the_key_is_sent_in_the_configured_header(auth: str) -> None:
    """With `auth` set to a header, the key is sent there and not as a bearer token."""
    async with loopback(respond_text()) as server:
        await inference_for(server, auth=auth).infer(QUESTION)
        assert server.requests[0].headers[auth] == KEY
        assert "authorization" not in server.requests[0].headers


async def test_without_a_key_no_authorization_is_sent() -> None:
    """A configuration without a key sends no authorization header."""
    async with loopback(respond_text()) as server:
        await HttpInference(LLMConfig.parse("vllm:m", base_url=server.url)).infer(QUESTION)
        assert "authorization" not in server.requests[0].headers


async def test_a_configured_header_overrides_the_one_with_the_key() -> None:
    """A configured authorization header is sent once, whatever the case of its name."""
    async with loopback(respond_text()) as server:
        await inference_for(server, headers={"Authorization": "Basic abc"}).infer(QUESTION)
        assert server.requests[0].headers["authorization"] == "Basic abc"


async def test_the_query_of_a_base_url_comes_after_the_path() -> None:
    """A base URL with a query, as some gateways require it, keeps both path and query."""
    async with loopback(respond_text()) as server:
        await inference_for(f"{server.url}/?api-version=1").infer(QUESTION)
        assert server.requests[0].target == "/v1/chat/completions?api-version=1"


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(respond_text("hello"), id="plain"),
        pytest.param(respond_and_close(completion("hello")), id="until the connection ends"),
        pytest.param(respond_chunked([completion("hello")]), id="one chunk"),
        pytest.param(respond_chunked([bytes([byte]) for byte in completion("hello")]), id="byte by byte"),
        pytest.param(respond_gzipped(completion("hello")), id="compressed"),
        pytest.param(respond(201, completion("hello")), id="created"),
        pytest.param(respond_text("hello", {"connection": "close"}), id="last of its connection"),
    ],
)
async def test_a_response_is_read_however_it_is_framed(reply: Reply) -> None:
    """Chunks, compression and closed connections do not change the response."""
    async with loopback(reply) as server:
        response = await inference_for(server).infer(QUESTION)
        assert response.text == "hello"
        assert (response.usage.input_tokens, response.usage.output_tokens) == (7, 3)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequest),
        (401, AuthenticationError),
        (402, BadRequest),
        (403, AuthenticationError),
        (404, BadRequest),
        (408, ProviderUnavailable),
        (409, ProviderUnavailable),
        (413, BadRequest),
        (422, BadRequest),
        (429, RateLimited),
        (500, ProviderUnavailable),
        (502, ProviderUnavailable),
        (503, ProviderUnavailable),
        (529, ProviderUnavailable),
    ],
)
async def test_an_error_has_a_type_status_message_and_request_id(status: int, kind: type[InferenceError]) -> None:
    """Each HTTP error status maps to one type, whose message contains the provider's message and code."""
    reply = respond_json(status, {"error": {"message": "so it is", "code": "its_code"}}, {"x-request-id": "req-7"})
    async with loopback(reply) as server:
        url = f"{server.url}/chat/completions"
        with pytest.raises(InferenceError) as caught:
            await inference_for(server, retry=ONCE).infer(QUESTION)
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.request_id, caught.value.retry_after) == (status, "req-7", None)
    located = f"; the request went to {url}, is the base URL right?" if status == 404 else ""
    assert str(caught.value) == f"the provider responded with HTTP {status}: so it is (its_code){located}"


async def test_where_nothing_is_found_is_said_without_the_query() -> None:
    """Also in a stream; the query of the base URL may have a key."""
    async with loopback(respond_json(404, {})) as server:
        inference = inference_for(server, retry=ONCE)
        config = inference.config.with_settings(base_url=f"{server.url}?key=secret")
        with pytest.raises(BadRequest, match=f"{server.url}/chat/completions, is the") as caught:
            _ = [item async for item in HttpInference(config).stream(QUESTION)]
    assert "secret" not in str(caught.value)


async def test_a_conversation_that_is_too_long_has_an_error_of_its_own() -> None:
    """A context that is too long raises `ContextLengthExceeded`."""
    message = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens."
    async with loopback(respond_json(400, {"error": {"message": message}})) as server:
        with pytest.raises(ContextLengthExceeded, match="maximum context length is 8192"):
            await inference_for(server).infer(QUESTION)


async def test_a_redirect_is_an_error_and_not_followed() -> None:
    """A redirect raises, names its target without the query, and no request is sent there."""
    async with loopback(respond_text("stolen")) as other:
        target = f"{other.url}/chat/completions"
        reply = respond(302, b"<html><title>Found</title>", {"location": f"{target}?token=t"})
        async with loopback(reply) as server:
            with pytest.raises(InvalidResponse, match=rf"HTTP 302: it redirects to {target}, which is not") as caught:
                await inference_for(server).infer(QUESTION)
        assert caught.value.status == 302
        assert other.requests == []


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        pytest.param(hang_up(), ProviderUnavailable, "failed: Server disconnected", id="closed"),
        pytest.param(hang_up(b"HTTP/1.1 200 O"), ProviderUnavailable, "disconnected", id="closed in the head"),
        pytest.param(reset(), ProviderUnavailable, "the connection to", id="reset"),
        pytest.param(
            hang_up(head(200, {"content-length": "999", "x-request-id": "req-7"}) + b'{"choi'),
            InvalidResponse,
            "broke off",
            id="closed in the body",
        ),
        pytest.param(
            reset(head(200, {"content-length": "9999", "x-request-id": "req-7"}) + LONG),
            InvalidResponse,
            "broke off",
            id="reset in the body",
        ),
        pytest.param(
            respond_chunked([b'{"choices"'], ends=False), InvalidResponse, "broke off", id="closed between chunks"
        ),
    ],
)
async def test_a_broken_connection_is_a_retryable_error(reply: Reply, kind: type[InferenceError], message: str) -> None:
    """A connection that breaks at any point raises a typed error, and the next attempt succeeds."""
    async with loopback(reply, reply, respond_text("back again")) as server:
        with pytest.raises(kind, match=message) as caught:
            await inference_for(server, retry=ONCE).infer(QUESTION)
        assert caught.value.retryable
        assert (await inference_for(server).infer(QUESTION)).text == "back again"
        assert len(server.requests) == 3


async def test_a_body_that_ends_early_is_retried() -> None:
    """JSON without its end is a response that was cut off, also when its length was announced."""
    async with loopback(respond(200, b'{"choices": [{"mess'), respond_text("whole")) as server:
        assert (await inference_for(server).infer(QUESTION)).text == "whole"


async def test_the_error_for_an_incomplete_response_has_status_and_request_id() -> None:
    """The error contains what the head of the response says."""
    broken = hang_up(head(200, {"content-length": "999", "x-request-id": "req-7"}) + b"{")
    async with loopback(broken) as server:
        with pytest.raises(InvalidResponse) as caught:
            await inference_for(server, retry=ONCE).infer(QUESTION)
    assert (caught.value.status, caught.value.request_id) == (200, "req-7")


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        pytest.param(hang_up(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "is not HTTP", id="another protocol"),
        pytest.param(hang_up(b"\x15\x03\x01\x00\x02\x02\x28\r\n\r\n"), "is not HTTP", id="binary"),
        pytest.param(
            respond(200, b"<html><title>Sign in</title>"), "not JSON.*HTML page titled 'Sign in'", id="a page"
        ),
        pytest.param(respond(200, b""), "not JSON", id="nothing"),
        pytest.param(respond(204, b""), "not JSON", id="no content"),
        pytest.param(respond(200, b'{"choices": [{mess]'), "not JSON", id="broken JSON"),
        pytest.param(
            respond_json(200, {"detail": "hm"}), "not have the structure of a chat completion.*hm", id="other JSON"
        ),
        pytest.param(respond_json(200, {"choices": []}), "not have the structure of a chat completion", id="no choice"),
        pytest.param(respond(200, b"not gzip", {"content-encoding": "gzip"}), "cannot be decompressed", id="no gzip"),
        pytest.param(respond(200, LONG), "larger than 2,000 bytes", id="too large"),
        pytest.param(respond_gzipped(LONG), "larger than 2,000 bytes", id="too large when decompressed"),
        pytest.param(respond_chunked([LONG[:900]] * 4), "larger than 2,000 bytes", id="too large in chunks"),
    ],
)
async def test_an_invalid_response_is_an_error_that_is_not_retried(reply: Reply, message: str) -> None:
    """The error describes what was received; the same request would bring the same response."""
    async with loopback(reply) as server:
        with pytest.raises(InvalidResponse, match=message):
            await inference_for(server, max_response_bytes=2000).infer(QUESTION)
        assert len(server.requests) == 1


async def test_a_response_of_exactly_the_maximum_size_is_read() -> None:
    """`max_response_bytes` is inclusive."""
    body = completion("hello")
    async with loopback(respond(200, body), respond(200, body)) as server:
        assert (await inference_for(server, max_response_bytes=len(body)).infer(QUESTION)).text == "hello"
        with pytest.raises(InvalidResponse, match="larger than"):
            await inference_for(server, max_response_bytes=len(body) - 1).infer(QUESTION)


async def test_an_error_object_in_a_response_of_status_200_is_raised() -> None:
    """The error has the status in its object and the wait in the headers."""
    reply = respond_json(
        200, {"error": {"message": "slow down", "code": 429}}, {"retry-after": "3", "x-request-id": "req-7"}
    )
    async with loopback(reply) as server:
        with pytest.raises(RateLimited, match="slow down") as caught:
            await inference_for(server, retry=ONCE).infer(QUESTION)
    assert (caught.value.status, caught.value.retry_after, caught.value.request_id) == (429, 3.0, "req-7")


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        pytest.param(stall(), "no response from .* for 900 seconds", id="before the response"),
        pytest.param(
            stall(head(200, {"content-length": "9"}) + b"{"), "stalled for 900 seconds", id="within the response"
        ),
    ],
)
async def test_the_read_timeout_ends_a_request(reply: Reply, message: str) -> None:
    """A server that sends nothing for `timeout` seconds is a retryable error."""
    head_received = asyncio.Event()
    async with loopback(reply, respond_text("awake")) as server, client_signaling_heads(head_received) as client:
        inference_task = asyncio.create_task(
            inference_for(server, client=client, timeout=TIMEOUT, retry=ONCE).infer(QUESTION)
        )
        await (head_received.wait() if "stalled" in message else server.received(1))
        with pytest.raises(ProviderUnavailable, match=message):
            await over_time(inference_task, TIMEOUT)
        await server.all_closed()
        assert (await inference_for(server).infer(QUESTION)).text == "awake"


async def test_the_error_for_a_refused_connection_names_the_address() -> None:
    """The error also suggests what to check."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        with pytest.raises(
            ProviderUnavailable, match=f"no connection to {url}: .*is the address correct and the server running"
        ):
            await inference_for(url, retry=ONCE).infer(QUESTION)


async def test_the_connect_timeout_ends_a_connection_attempt() -> None:
    """A host that does not accept connections costs the connect timeout, not the read timeout."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for connection in waiting:
            connection.settimeout(0)
            connection.connect_ex(address)
        try:
            with pytest.raises(ProviderUnavailable, match=r"no connection to .* within 0.05 seconds"):
                await inference_for(
                    f"http://127.0.0.1:{address[1]}", connect_timeout=0.05, timeout=60, retry=ONCE
                ).infer(QUESTION)
        finally:
            for connection in waiting:
                connection.close()


async def test_a_failed_tls_handshake_is_a_failed_connection() -> None:
    """A server without TLS behind an https URL raises `ProviderUnavailable`."""
    async with loopback(respond_text()) as server:
        url = server.url.replace("http:", "HTTPS:")
        with pytest.raises(ProviderUnavailable, match=r"no connection to https://127.0.0.1"):
            await inference_for(url, retry=ONCE).infer(QUESTION)


async def test_the_deadline_ends_an_inference_during_any_attempt() -> None:
    """At the deadline the inference raises and closes its connection."""
    async with loopback(respond_json(503, {}), stall()) as server:
        inference_task = asyncio.create_task(inference_for(server, deadline=TIMEOUT, timeout=9000).infer(QUESTION))
        await server.received(2)
        with pytest.raises(ProviderUnavailable, match=r"within 900 seconds"):
            await over_time(inference_task, TIMEOUT)
        await server.all_closed()
        assert len(server.requests) == 2


async def test_a_deadline_does_not_affect_a_quick_response() -> None:
    """A response before the deadline is returned as usual."""
    async with loopback(respond_text("in time")) as server:
        assert (await inference_for(server, deadline=60).infer(QUESTION)).text == "in time"


async def test_an_unknown_wire_format_is_a_configuration_error() -> None:
    """The error names the wire format and the known ones, and no request is sent."""
    with pytest.raises(ConfigurationError, match=r"no wire format 'morse'; the known ones are .*openai-chat"):
        await inference_for("http://127.0.0.1:9", wire_format="morse").infer(QUESTION)


async def test_a_host_that_is_not_a_dns_name_is_a_configuration_error() -> None:
    """A URL that only httpx recognizes as invalid is a configuration error too."""
    with pytest.raises(ConfigurationError, match="is not a valid URL"):
        await inference_for("http://☃.net").infer(QUESTION)


async def test_concurrent_inferences_get_their_own_responses() -> None:
    """Concurrent requests of one inference do not mix up their responses."""
    async with loopback(*[echo] * 30) as server:
        inference = inference_for(server)
        questions = [InferenceRequest((Message.user(f"question {number}"),)) for number in range(30)]
        responses = await asyncio.gather(*[inference.infer(question) for question in questions])
        assert [response.text for response in responses] == [f"answer to question {number}" for number in range(30)]
