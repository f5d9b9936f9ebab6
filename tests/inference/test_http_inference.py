"""Asking over HTTP: what is sent, what is read, and what goes wrong in which words."""

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
from agentloop.inference import EncodedRequest, HttpInference, LLMConfig
from agentloop.inference.wire_formats.openai_chat import OpenAIChat
from agentloop.values import InferenceRequest, InferenceResponse, Message
from agentloop.values.policies import RetryPolicy
from tests.inference.loopback import (
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
from tests.inference.loopback_inference import QUESTION, client_signaling_heads, config_for, inference_for
from tests.limits import over_time

ONCE = RetryPolicy(max_attempts=1)
TIMEOUT = 900.0
"""Seconds that pass on the clock of the event loop only."""
LONG = b"x" * 3000


async def test_a_request_is_a_post_of_json_with_the_key_to_the_path_of_the_wire_format() -> None:
    """What goes over the wire is one POST with host, length, key and JSON, below the base URL."""
    async with loopback(respond_text()) as server:
        await inference_for(server, headers={"X-Title": "tests", "User-Agent": "mine"}).infer(QUESTION)
        (request,) = server.requests
        assert request.line == "POST /v1/chat/completions HTTP/1.1"
        assert request.headers == {
            "host": f"127.0.0.1:{server.port}",
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "gzip, deflate",
            "user-agent": "mine",
            "authorization": f"Bearer {KEY}",
            "x-title": "tests",
            "content-length": str(len(request.body)),
        }
        assert request.json == {"model": "loopback", "messages": [{"role": "user", "content": "How are you?"}]}


async def test_headers_of_the_wire_format_are_sent_besides_those_of_the_configuration() -> None:
    """A wire format's own headers go out with each request, before those of the configuration."""

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
    """What a wire format cannot send is refused, once, and without the key that was to go with it."""

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
async def test_the_key_goes_into_the_header_that_the_configuration_names(auth: str) -> None:
    """A service that wants its key in a header of its own gets it there, and no bearer token."""
    async with loopback(respond_text()) as server:
        await inference_for(server, auth=auth).infer(QUESTION)
        assert server.requests[0].headers[auth] == KEY
        assert "authorization" not in server.requests[0].headers


async def test_no_key_is_sent_when_there_is_none() -> None:
    """Without a key no header claims one."""
    async with loopback(respond_text()) as server:
        await HttpInference(LLMConfig.parse("vllm:m", base_url=server.url)).infer(QUESTION)
        assert "authorization" not in server.requests[0].headers


async def test_a_header_of_the_configuration_goes_before_the_one_that_carries_the_key() -> None:
    """A header given by hand is sent once, whatever its case, instead of the one that would be made."""
    async with loopback(respond_text()) as server:
        await inference_for(server, headers={"Authorization": "Basic abc"}).infer(QUESTION)
        assert server.requests[0].headers["authorization"] == "Basic abc"


async def test_the_query_of_a_base_url_comes_after_the_path() -> None:
    """A base URL with a query, as some gateways want it, keeps both path and query intact."""
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
async def test_an_answer_is_read_however_it_is_framed(reply: Reply) -> None:
    """Chunks, compression, closing and pieces make no difference to what is read."""
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
async def test_an_error_has_its_type_status_message_and_request_id(status: int, kind: type[InferenceError]) -> None:
    """Each HTTP status becomes one type of error, which tells the provider's words, code and request id."""
    told = respond_json(status, {"error": {"message": "so it is", "code": "its_code"}}, {"x-request-id": "req-7"})
    async with loopback(told) as server:
        with pytest.raises(InferenceError) as caught:
            await inference_for(server, retry=ONCE).infer(QUESTION)
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.request_id, caught.value.retry_after) == (status, "req-7", None)
    assert str(caught.value) == f"the provider responded with HTTP {status}: so it is (its_code)"


async def test_a_conversation_that_is_too_long_is_told_apart_from_other_bad_requests() -> None:
    """A context that is too long is an error that a program can act on."""
    message = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens."
    async with loopback(respond_json(400, {"error": {"message": message}})) as server:
        with pytest.raises(ContextLengthExceeded, match="maximum context length is 8192"):
            await inference_for(server).infer(QUESTION)


async def test_a_redirect_is_an_error_and_not_followed() -> None:
    """Where requests go comes from the configuration, never from an answer."""
    async with loopback(respond_text("stolen")) as other:
        async with loopback(respond(302, b"", {"location": f"{other.url}/chat/completions"})) as server:
            with pytest.raises(InvalidResponse, match="HTTP 302") as caught:
                await inference_for(server).infer(QUESTION)
        assert caught.value.status == 302
        assert other.requests == []


@pytest.mark.parametrize(
    ("reply", "kind", "told"),
    [
        pytest.param(hang_up(), ProviderUnavailable, "failed: Server disconnected", id="hangs up"),
        pytest.param(hang_up(b"HTTP/1.1 200 O"), ProviderUnavailable, "disconnected", id="hangs up in the head"),
        pytest.param(reset(), ProviderUnavailable, "the connection to", id="resets"),
        pytest.param(
            hang_up(head(200, {"content-length": "999", "x-request-id": "req-7"}) + b'{"choi'),
            InvalidResponse,
            "broke off",
            id="hangs up in the body",
        ),
        pytest.param(
            reset(head(200, {"content-length": "9999", "x-request-id": "req-7"}) + LONG),
            InvalidResponse,
            "broke off",
            id="resets in the body",
        ),
        pytest.param(
            respond_chunked([b'{"choices"'], ends=False), InvalidResponse, "broke off", id="hangs up between chunks"
        ),
    ],
)
async def test_a_connection_that_breaks_is_a_typed_error_that_is_worth_another_attempt(
    reply: Reply, kind: type[InferenceError], told: str
) -> None:
    """A connection that breaks at any point is told as such, and the next attempt may well succeed."""
    async with loopback(reply, reply, respond_text("back again")) as server:
        with pytest.raises(kind, match=told) as caught:
            await inference_for(server, retry=ONCE).infer(QUESTION)
        assert caught.value.retryable
        assert (await inference_for(server).infer(QUESTION)).text == "back again"
        assert len(server.requests) == 3


async def test_an_answer_that_breaks_off_keeps_its_status_and_request_id() -> None:
    """What is known of an answer that broke off is in the error."""
    broken = hang_up(head(200, {"content-length": "999", "x-request-id": "req-7"}) + b"{")
    async with loopback(broken) as server:
        with pytest.raises(InvalidResponse) as caught:
            await inference_for(server, retry=ONCE).infer(QUESTION)
    assert (caught.value.status, caught.value.request_id) == (200, "req-7")


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        pytest.param(hang_up(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "is not HTTP", id="another protocol"),
        pytest.param(hang_up(b"\x15\x03\x01\x00\x02\x02\x28\r\n\r\n"), "is not HTTP", id="binary"),
        pytest.param(
            respond(200, b"<html><title>Sign in</title>"), "not JSON.*HTML page titled 'Sign in'", id="a page"
        ),
        pytest.param(respond(200, b""), "not JSON", id="nothing"),
        pytest.param(respond(204, b""), "not JSON", id="no content"),
        pytest.param(respond(200, b'{"choices": [{"mess'), "not JSON", id="cut JSON"),
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
async def test_what_is_no_answer_is_an_invalid_response_and_not_asked_for_again(reply: Reply, told: str) -> None:
    """Garbage in any place is told with what came, once: the same request would bring the same."""
    async with loopback(reply) as server:
        with pytest.raises(InvalidResponse, match=told):
            await inference_for(server, max_response_bytes=2000).infer(QUESTION)
        assert len(server.requests) == 1


async def test_an_answer_of_exactly_the_largest_size_is_read() -> None:
    """The limit is the most bytes that are read, not one less."""
    body = completion("hello")
    async with loopback(respond(200, body), respond(200, body)) as server:
        assert (await inference_for(server, max_response_bytes=len(body)).infer(QUESTION)).text == "hello"
        with pytest.raises(InvalidResponse, match="larger than"):
            await inference_for(server, max_response_bytes=len(body) - 1).infer(QUESTION)


async def test_an_error_object_in_an_answer_of_status_200_is_raised() -> None:
    """A service that tells its errors under status 200 is understood, status and waiting time included."""
    told = respond_json(
        200, {"error": {"message": "slow down", "code": 429}}, {"retry-after": "3", "x-request-id": "req-7"}
    )
    async with loopback(told) as server:
        with pytest.raises(RateLimited, match="slow down") as caught:
            await inference_for(server, retry=ONCE).infer(QUESTION)
    assert (caught.value.status, caught.value.retry_after, caught.value.request_id) == (429, 3.0, "req-7")


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        pytest.param(stall(), "no response from .* for 900 seconds", id="before the answer"),
        pytest.param(stall(head(200, {"content-length": "9"}) + b"{"), "stalled for 900 seconds", id="in the answer"),
    ],
)
async def test_a_server_that_stalls_is_given_up_after_the_timeout(reply: Reply, told: str) -> None:
    """Silence lasts as long as the configuration allows, and is worth another attempt."""
    head_came = asyncio.Event()
    async with loopback(reply, respond_text("awake")) as server, client_signaling_heads(head_came) as client:
        asking = asyncio.create_task(inference_for(server, client=client, timeout=TIMEOUT, retry=ONCE).infer(QUESTION))
        await (head_came.wait() if "stopped" in told else server.received(1))
        with pytest.raises(ProviderUnavailable, match=told):
            await over_time(asking, TIMEOUT)
        await server.all_closed()
        assert (await inference_for(server).infer(QUESTION)).text == "awake"


async def test_nobody_at_the_address_is_told_with_the_address() -> None:
    """A refused connection names the address and what to look at."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        with pytest.raises(
            ProviderUnavailable, match=f"no connection to {url}: .*is the address correct and the server running"
        ):
            await inference_for(url, retry=ONCE).infer(QUESTION)


async def test_a_host_that_takes_no_connection_is_given_up_after_the_connect_timeout() -> None:
    """A host that does not even take connections costs the connect timeout, not the read timeout."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.settimeout(0)
            one.connect_ex(address)
        try:
            with pytest.raises(ProviderUnavailable, match=r"no connection to .* within 0.05 seconds"):
                await inference_for(
                    f"http://127.0.0.1:{address[1]}", connect_timeout=0.05, timeout=60, retry=ONCE
                ).infer(QUESTION)
        finally:
            for one in waiting:
                one.close()


async def test_a_server_without_tls_behind_an_https_address_is_unavailable() -> None:
    """A failed TLS handshake is a connection that failed, told as such."""
    async with loopback(respond_text()) as server:
        url = server.url.replace("http:", "HTTPS:")
        with pytest.raises(ProviderUnavailable, match=r"no connection to https://127.0.0.1"):
            await inference_for(url, retry=ONCE).infer(QUESTION)


async def test_the_deadline_ends_an_inference_with_all_its_attempts() -> None:
    """At the deadline the inference ends, whatever attempt it is at, and closes its connection."""
    async with loopback(respond_json(503, {}), stall()) as server:
        asking = asyncio.create_task(inference_for(server, deadline=TIMEOUT).infer(QUESTION))
        await server.received(2)
        with pytest.raises(ProviderUnavailable, match=r"within 900 seconds"):
            await over_time(asking, TIMEOUT)
        await server.all_closed()
        assert len(server.requests) == 2


async def test_a_quick_answer_is_not_touched_by_the_deadline() -> None:
    """A deadline that is not reached changes nothing."""
    async with loopback(respond_text("in time")) as server:
        assert (await inference_for(server, deadline=60).infer(QUESTION)).text == "in time"


async def test_a_wire_format_that_does_not_exist_is_a_configuration_error() -> None:
    """An unknown wire format is refused by name before anything is sent."""
    with pytest.raises(ConfigurationError, match=r"no wire format 'morse'; the known ones are .*openai-chat"):
        await inference_for("http://127.0.0.1:9", wire_format="morse").infer(QUESTION)


async def test_a_host_that_no_dns_name_can_be_made_of_is_a_configuration_error() -> None:
    """What only the HTTP library can tell to be no address is still a configuration error."""
    with pytest.raises(ConfigurationError, match="is not a valid URL"):
        await inference_for("http://☃.net").infer(QUESTION)


async def test_concurrent_inferences_get_their_own_answers() -> None:
    """Many at once over one inference never see each other's answers."""
    async with loopback(*[echo] * 30) as server:
        inference = inference_for(server)
        questions = [InferenceRequest((Message.user(f"question {number}"),)) for number in range(30)]
        responses = await asyncio.gather(*[inference.infer(question) for question in questions])
        assert [response.text for response in responses] == [f"answer to question {number}" for number in range(30)]
