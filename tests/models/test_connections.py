"""Tests of connections: which ones are opened, how long they are reused, and that none is leaked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from attrs import evolve, frozen

from agentloop import AgentLoop, ToolCallingDriver, tool
from agentloop.contracts.can_infer import FailedAttempt
from agentloop.errors import BadRequest, ConfigurationError, InferenceError, InvalidResponse, ProviderUnavailable
from agentloop.models import HttpInference
from agentloop.models.connections import (
    IDLE_SECONDS,
    MAX_IDLE_CONNECTIONS,
    _make_tls_context,
    close_idle_connections,
    proxies,
)
from agentloop.models.http_client import in_process_client
from agentloop.values.policies import RetryPolicy
from tests.limits import jump, over_time, turns_of_the_event_loop
from tests.models.chat_stream import stream_text
from tests.models.loopback import (
    Reply,
    completion,
    echo,
    hang_up,
    head,
    loopback,
    respond,
    respond_chunked,
    respond_json,
    respond_text,
    stall,
)
from tests.models.loopback_inference import QUESTION, bound, config_for, inference_for

ONCE = RetryPolicy(max_attempts=1)
TIMEOUT = 900.0
"""Seconds that pass on the clock of the event loop only."""


async def test_a_scope_reuses_one_connection_for_successive_requests() -> None:
    """Within an execution one connection is opened, which is closed with the scope."""
    async with loopback(*[respond_text()] * 3) as server:
        async with bound(inference_for(server)) as (inference,):
            for _ in range(3):
                await inference.infer(QUESTION)
            assert (server.connections, server.open_connections) == (1, 1)
        await server.all_closed()


async def test_copies_of_one_inference_share_the_connections_of_a_scope() -> None:
    """Copies of an inference, bound again or with a retry report, use the same connection."""
    async with loopback(*[respond_text()] * 3) as server:
        inference = inference_for(server)
        async with bound(inference, inference) as (first, second):
            await first.infer(QUESTION)
            await second.infer(QUESTION)
            await second.with_retry_report(lambda _: None).infer(QUESTION)
        assert server.connections == 1


async def test_a_copy_with_another_configuration_calls_its_own_model() -> None:
    """A changed copy of an inference does not call the model of the original."""
    async with loopback(respond_text(), respond_text()) as server:
        small = inference_for(server)
        large = evolve(small, config=config_for(server).with_settings(model="large"))
        async with bound(small, large) as inferences:
            for inference in inferences:
                await inference.infer(QUESTION)
        assert [request.json["model"] for request in server.requests] == ["loopback", "large"]


async def test_requests_outside_of_a_scope_share_a_connection() -> None:
    """An unbound inference leaves one idle connection, which the next one uses."""
    async with loopback(respond_text(), respond_text()) as server:
        for _ in range(2):
            await inference_for(server).infer(QUESTION)
        assert (server.connections, server.open_connections) == (1, 1)
        await close_idle_connections()
        await server.all_closed()


async def test_binding_leaves_the_inference_itself_unbound() -> None:
    """Binding returns a copy, and the original is unchanged."""
    inference = inference_for("http://model.invalid/v1")
    async with bound(inference) as (copy,):
        assert (copy._endpoint is None, inference._endpoint) == (False, None)


async def test_concurrent_requests_open_connections_that_are_reused() -> None:
    """Concurrent requests open one connection each, which later requests reuse."""
    async with loopback(*[echo] * 20) as server:
        async with bound(inference_for(server)) as (inference,):
            await asyncio.gather(*[inference.infer(QUESTION) for _ in range(10)])
            opened = server.connections
            await asyncio.gather(*[inference.infer(QUESTION) for _ in range(10)])
            assert (server.connections, opened) == (opened, 10)
        await server.all_closed()


async def test_an_http_error_does_not_close_the_connection() -> None:
    """The next attempt after an HTTP error uses the same connection."""
    async with loopback(respond(429), respond(400, b"no"), respond_text()) as server:
        async with bound(inference_for(server)) as (inference,):
            with pytest.raises(BadRequest):
                await inference.infer(QUESTION)
            await inference.infer(QUESTION)
        assert server.connections == 1


@pytest.mark.parametrize(
    ("reply", "seconds"),
    [
        pytest.param(stall(), TIMEOUT, id="stalls"),
        pytest.param(stall(head(200, {"content-length": "9"}) + b"{"), TIMEOUT, id="stalls in the body"),
        pytest.param(hang_up(head(200, {"content-length": "9"}) + b"{"), 0, id="closed in the body"),
        pytest.param(hang_up(b"what?\r\n\r\n"), 0, id="garbage"),
        pytest.param(respond(200, b"x" * 3000), 0, id="too large"),
        pytest.param(respond_chunked([b"x" * 900] * 4), 0, id="too large in chunks"),
        pytest.param(stall(head(200, {"content-length": "9", "content-encoding": "gzip"}) + b"{" * 9), 0, id="no gzip"),
    ],
)
async def test_a_failed_connection_is_closed_and_not_reused(reply: Reply, seconds: float) -> None:
    """After a failure of a connection, the next request opens a new one."""
    async with loopback(reply, respond_text("a new one")) as server:
        settings = {"timeout": TIMEOUT, "max_response_bytes": 2000, "retry": ONCE}
        async with bound(inference_for(server, **settings)) as (inference,):
            task = asyncio.create_task(inference.infer(QUESTION))
            await server.received(1)
            with pytest.raises(InferenceError):
                await over_time(task, seconds)
            await server.all_closed()
            assert (await inference.infer(QUESTION)).text == "a new one"
        assert server.connections == 2


async def test_a_connection_that_the_server_closed_costs_no_attempt() -> None:
    """An idle connection that the server closed is detected before it is used."""
    attempts: list[FailedAttempt] = []
    replies = respond_text(), respond_text("as if nothing had happened")
    async with loopback(*replies) as server, bound(inference_for(server)) as (inference,):
        await inference.infer(QUESTION)
        server.close_connections()
        await server.all_closed()
        response = await inference.with_retry_report(attempts.append).infer(QUESTION)
        assert (response.text, attempts) == ("as if nothing had happened", [])


async def test_a_connection_in_use_when_the_scope_ends_is_idle_later() -> None:
    """An inference that outlives its scope leaves its connection to others."""
    delayed: list[Callable[[], None]] = []

    def hold(connection: Any, request: Any) -> None:
        delayed.append(lambda: respond_text("late")(connection, request))

    async with loopback(hold) as server:
        async with bound(inference_for(server)) as (inference,):
            task = asyncio.create_task(inference.infer(QUESTION))
            await server.received(1)
        delayed[0]()
        assert (await task).text == "late"
        assert server.open_connections == 1
        jump(IDLE_SECONDS)
        await server.all_closed()


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(stall(), id="before the answer"),
        pytest.param(stall(head(200, {"content-length": "9"}) + b"{"), id="in the middle of the body"),
    ],
)
@pytest.mark.parametrize("in_scope", [True, False])
async def test_cancellation_leaves_no_task_and_no_open_socket(reply: Reply, *, in_scope: bool) -> None:
    """A request that is cancelled while it waits for the server leaves no task and no socket."""
    async with loopback(reply) as server:
        before = asyncio.all_tasks()
        async with bound(inference_for(server)) as (inside,):
            task = asyncio.create_task((inside if in_scope else inference_for(server)).infer(QUESTION))
            await server.received(1)
            await turns_of_the_event_loop()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert asyncio.all_tasks() == before
            await server.all_closed()


async def test_cancellation_between_two_attempts_ends_the_wait() -> None:
    """A request that is cancelled while it waits for a retry ends at once."""
    async with loopback(respond_json(429, {}, {"retry-after": "60"})) as server:
        before = asyncio.all_tasks()
        waiting = asyncio.Event()
        inference = inference_for(server).with_retry_report(lambda _: waiting.set())
        task = asyncio.create_task(inference.infer(QUESTION))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == before
        assert (len(server.requests), server.open_connections) == (1, 1)  # an answer that was read completely


@pytest.mark.parametrize("reply", [respond_text(), respond(500), hang_up(), respond_chunked([b"x" * 900] * 4)])
async def test_an_inference_leaves_no_task_however_it_ends(reply: Reply) -> None:
    """No task remains after a success or any failure."""
    async with loopback(reply) as server:
        before = asyncio.all_tasks()
        inference = inference_for(server, max_response_bytes=2000, retry=ONCE)
        await asyncio.gather(inference.infer(QUESTION), return_exceptions=True)
        await turns_of_the_event_loop()
        assert asyncio.all_tasks() == before


def test_one_inference_serves_any_number_of_event_loops() -> None:
    """Each execution has connections of its own, so an inference can be used in several event loops in turn."""
    holder: list[HttpInference] = []

    async def execution() -> str:
        async with loopback(respond_text("from here"), respond_text("and again")) as server:
            holder.append(inference_for(server) if not holder else evolve(holder[0], config=config_for(server)))
            async with bound(holder[-1]) as (inference,):
                await inference.infer(QUESTION)
                return (await inference.infer(QUESTION)).text

    assert [asyncio.run(execution()) for _ in range(3)] == ["and again"] * 3


async def test_a_supplied_client_is_used_and_stays_open() -> None:
    """A supplied client keeps its connections beyond the scope, sends its own headers, and is not closed."""
    async with (
        loopback(respond_text(), respond_text()) as server,
        httpx.AsyncClient(headers={"x-mine": "yes"}) as client,
    ):
        inference = inference_for(server, client=client)
        for _ in range(2):
            async with bound(inference) as (copy,):
                assert (await copy.infer(QUESTION)).text == "hello"
        assert not client.is_closed
        assert (server.connections, server.open_connections) == (1, 1)
        assert server.requests[0].headers["x-mine"] == "yes"
        assert server.requests[0].headers["authorization"].startswith("Bearer sk-")


async def test_a_supplied_client_does_not_follow_redirects_with_the_key() -> None:
    """Redirects are not followed, whatever the settings of the client are."""
    async with loopback(respond_text("stolen")) as target:
        redirect = respond(307, b"", {"location": f"{target.url}/x"})
        async with loopback(redirect) as server, httpx.AsyncClient(follow_redirects=True) as client:
            with pytest.raises(InvalidResponse, match="HTTP 307"):
                await inference_for(server, client=client).infer(QUESTION)
        assert target.requests == []


async def test_the_configured_timeouts_apply_to_a_supplied_client() -> None:
    """The timeouts of the configuration override those of the client."""
    async with loopback(stall()) as server, httpx.AsyncClient(timeout=None) as client:  # what is tested
        with pytest.raises(ProviderUnavailable, match=r"for 0\.03 seconds"):
            await inference_for(server, client=client, timeout=0.03, retry=ONCE).infer(QUESTION)


class _CustomClient(httpx.AsyncClient):
    """A subclass of a client in another module, as larger programs have them."""


@frozen(eq=False)
class _Wrapper:
    """A client of an unknown package, with the two methods that are used."""

    inner: httpx.AsyncClient

    def build_request(self, method: str, url: str, **how: Any) -> httpx.Request:
        return self.inner.build_request(method, url, **how)

    def send(self, request: httpx.Request, **how: Any) -> Awaitable[httpx.Response]:
        return self.inner.send(request, **how)


@pytest.mark.parametrize("kind", ["httpx2", "a subclass", "a wrapper"])
async def test_a_client_with_the_same_interface_works_and_its_errors_are_translated(kind: str) -> None:
    """Any client with the interface of httpx can be supplied, and its errors are translated too."""
    package: Any = pytest.importorskip("httpx2") if kind == "httpx2" else httpx
    client_type = _CustomClient if kind == "a subclass" else package.AsyncClient
    broken = hang_up(head(200, {"content-length": "9"}) + b"{")
    async with loopback(hang_up(), respond_text("it works"), broken, stall()) as server, client_type() as inner:
        client = _Wrapper(inner) if kind == "a wrapper" else inner
        attempts: list[FailedAttempt] = []
        inference = inference_for(server, client=client)
        assert (await inference.with_retry_report(attempts.append).infer(QUESTION)).text == "it works"
        assert [type(failed.error) for failed in attempts] == [ProviderUnavailable]
        impatient = inference_for(server, client=client, timeout=TIMEOUT, retry=ONCE)
        with pytest.raises(InvalidResponse, match="broke off"):
            await impatient.infer(QUESTION)
        task = asyncio.create_task(impatient.infer(QUESTION))
        await server.received(4)
        with pytest.raises(ProviderUnavailable, match="no response"):
            await over_time(task, TIMEOUT)


async def test_an_in_process_client_needs_no_network() -> None:
    """An in-process client responds with a function of path and body."""

    def provider(path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        return 200, {}, completion(f"{path} was asked of {json.loads(body)['model']}")

    inference = inference_for("http://nowhere/v1", client=in_process_client(provider))
    assert (await inference.infer(QUESTION)).text == "/v1/chat/completions was asked of loopback"


async def test_a_proxy_in_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """With HTTP_PROXY set, requests with absolute URLs go to the proxy, whose connection is reused and closed."""
    async with loopback(respond_text("through the proxy"), respond_text()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with bound(inference_for("http://model.invalid/v1")) as (inference,):
            assert (await inference.infer(QUESTION)).text == "through the proxy"
            await inference.infer(QUESTION)
            assert proxy.connections == 1
        await proxy.all_closed()
        assert proxy.requests[0].target == "http://model.invalid/v1/chat/completions"
        assert proxy.requests[0].headers["host"] == "model.invalid"


async def test_no_proxy_is_honored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host in NO_PROXY is called without the proxy."""
    async with loopback(respond_text("directly")) as server, loopback() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert (await inference_for(server).infer(QUESTION)).text == "directly"
        assert proxy.connections == 0


@pytest.mark.parametrize("http", ["", "http://127.0.0.1:9"])
@pytest.mark.parametrize(
    "exempt",
    [
        "",
        "*",
        "model.example.com",
        "example.com",
        ".example.com",
        "ample.com",
        "other.org, EXAMPLE.com ,",
        "example.com:8080",
        "example.com:9",
        "https://model.example.com",
        "http://model.example.com",
        "127.0.0.1",
        "127.0.0.0/8",
        "::1",
        "localhost",
    ],
)
def test_the_proxies_that_apply_are_those_of_httpx(exempt: str, http: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request goes through a client of httpx if, and only if, that client would send it through a proxy."""
    monkeypatch.setenv("NO_PROXY", exempt)
    if http:
        monkeypatch.setenv("HTTP_PROXY", http)
    client = httpx.AsyncClient()
    hosts = ["model.example.com:8080", "example.com", "127.0.0.1:1", "[::1]:1", "localhost", "xexample.com", "other"]
    for url in [httpx.URL(f"{scheme}://{host}/v1") for scheme in ("http", "https") for host in hosts]:
        is_proxied = client._transport_for_url(url) is not client._transport
        assert bool(proxies(url)) is is_proxied, (url, exempt)


async def test_a_proxy_serves_more_concurrent_requests_than_a_default_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hundreds of executions behind a proxy do not wait for each other."""
    count = 120
    async with loopback(*[echo] * count) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with bound(inference_for("http://model.invalid/v1")) as (inference,):
            await asyncio.gather(*[inference.infer(QUESTION) for _ in range(count)])
            assert proxy.connections == count


async def test_an_invalid_proxy_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for an invalid proxy URL does not contain its password."""
    monkeypatch.setenv("HTTP_PROXY", "gopher://me:secret@proxy")
    with pytest.raises(ConfigurationError, match="a proxy in the environment is invalid") as caught:
        await inference_for("http://model.invalid/v1").infer(QUESTION)
    assert "secret" not in str(caught.value)


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CALL = completion(None, tool_calls=[{"id": "c1", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}])


async def test_a_second_execution_costs_no_connection() -> None:
    """Executions of several steps, run or streamed, use one connection, which `aclose` of the loop closes."""
    async with loopback(*[respond(200, CALL), echo] * 3, stream_text("streamed"), stream_text("streamed")) as server:
        loop = AgentLoop(ToolCallingDriver(inference_for(server)), [add])
        assert (await loop.execute("1 + 2?")).final_text == "answer to 3"
        assert await loop.run("1 + 2?") == "answer to 3"
        assert [event async for event in loop.stream("1 + 2?")]
        for _ in range(2):
            assert [text async for text in loop.stream_text("Hello?")] == ["streamed"]
        assert (server.connections, server.open_connections) == (1, 1)
        await loop.aclose()
        await server.all_closed()


async def test_models_at_one_address_share_their_connections() -> None:
    """Loops with different models and keys use the connection to an address in turn."""
    async with loopback(*[respond_text()] * 4) as server:
        for number in range(4):
            config = config_for(server).with_settings(model=f"model-{number}", api_key=f"sk-{number}")
            await AgentLoop(ToolCallingDriver(HttpInference(config))).run("Hello?")
        assert server.connections == 1
        keys = [request.headers["authorization"] for request in server.requests]
        assert keys == [f"Bearer sk-{number}" for number in range(4)]


async def test_a_sub_agent_leaves_its_connections_to_the_loop_of_its_caller() -> None:
    """To close the outer loop closes the idle connections of the inner one, too."""
    call = {"id": "c1", "function": {"name": "help", "arguments": '{"task": "?"}'}}
    asks = respond(200, completion(None, tool_calls=[call]))
    async with loopback(asks, respond_text("done")) as server, loopback(respond_text("helped")) as other:
        helper = AgentLoop(ToolCallingDriver(inference_for(other))).as_tool("help", "Help.")
        loop = AgentLoop(ToolCallingDriver(inference_for(server)), [helper])
        assert await loop.run("Help!") == "done"
        assert (server.open_connections, other.open_connections) == (1, 1)
        await loop.aclose()
        await server.all_closed()
        await other.all_closed()


async def test_no_more_than_ten_idle_connections_remain() -> None:
    """After many executions at once, ten connections are kept; while they run, all are."""
    count = 3 * MAX_IDLE_CONNECTIONS
    async with loopback(*[echo] * 3 * count) as server:
        async with AgentLoop(ToolCallingDriver(inference_for(server))) as loop:
            for _ in range(2):
                await asyncio.gather(*[loop.run("Hello?") for _ in range(count)])
            assert (server.connections, server.open_connections) == (count, count)
        await server.all_closed()
        await asyncio.gather(*[loop.run("Hello?") for _ in range(count)])
        await turns_of_the_event_loop()
        assert server.open_connections == MAX_IDLE_CONNECTIONS


async def test_an_idle_connection_is_closed_after_thirty_seconds() -> None:
    """What was used in the meantime is idle from then on; nothing else keeps a connection."""
    async with loopback(*[respond_text()] * 3) as server:
        inference = inference_for(server)
        await inference.infer(QUESTION)
        jump(IDLE_SECONDS - 1)
        await inference.infer(QUESTION)
        jump(IDLE_SECONDS - 1)
        await turns_of_the_event_loop()
        assert (server.connections, server.open_connections) == (1, 1)
        jump(1)
        await server.all_closed()
        await inference.infer(QUESTION)
        assert server.connections == 2


async def test_an_entered_loop_reuses_its_connection_across_executions() -> None:
    """Executions of an entered loop use the same connection, which is closed on exit."""
    async with loopback(respond_text(), respond_text()) as server:
        async with AgentLoop(ToolCallingDriver(inference_for(server))) as loop:
            for _ in range(2):
                await loop.execute("hello?")
            assert (server.connections, server.open_connections) == (1, 1)
        await server.all_closed()


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), ("no certificate", "NO_CERTIFICATE")])
async def test_the_error_for_unreadable_certificates_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None, reason: str
) -> None:
    """A missing or invalid file in SSL_CERT_FILE is a configuration error."""
    certificates = tmp_path / "ca.pem"
    if content is not None:
        certificates.write_text(content, encoding="utf-8")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates))
    _make_tls_context.cache_clear()
    with pytest.raises(ConfigurationError, match=f"{reason}.*SSL_CERT_FILE={certificates}"):
        await inference_for("https://model.invalid/v1").infer(QUESTION)
