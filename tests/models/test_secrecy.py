"""Tests of law 18: no configured key appears in an event, error, repr or log."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import ssl
import traceback
from collections.abc import Iterator
from typing import Any

import attrs
import httpx
import pytest

from agentloop import AgentLoop, ToolCallingDriver
from agentloop.contracts.can_infer import FailedAttempt
from agentloop.errors import AuthenticationError, ConfigurationError, InferenceError
from agentloop.models import HttpInference, LLMConfig
from agentloop.values import to_json
from agentloop.values.policies import RetryPolicy
from tests.limits import LONGEST, over_time
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
    respond_json,
    stall,
)
from tests.models.loopback_inference import QUESTION, bound, config_for, inference_for

KEY_PREFIX = KEY[:8]
"""Even this much of the key must not be shown."""
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that reach servers of this machine without TLS; it trusts nobody, and loads no certificates."""

STALL = stall()

ECHOES = [
    pytest.param(respond_json(401, {"error": {"message": f"Incorrect API key provided: {KEY}."}}), id="in the message"),
    pytest.param(respond_json(400, {"error": {"message": "x", "code": KEY}}), id="in the code"),
    pytest.param(respond_json(400, {"error": {"message": "." * 485 + KEY}}), id="cut off with the message"),
    pytest.param(respond_json(400, {"error": KEY}), id="as the message"),
    pytest.param(respond_json(400, {"error": {"message": [{"key": KEY}]}}), id="deep in the message"),
    pytest.param(
        respond_json(429, {"error": {"message": "x", "metadata": {"raw": KEY}}}),
        id="in the message of an upstream service",
    ),
    pytest.param(
        respond_json(400, {"request": {"headers": {"authorization": f"Bearer {KEY}"}}}), id="somewhere in JSON"
    ),
    pytest.param(respond(500, f"<html><title>{KEY}".encode()), id="in the title of a page"),
    pytest.param(respond(502, f"bad gateway for {KEY}".encode()), id="in plain text"),
    pytest.param(respond(503, b"." * 490 + KEY.encode()), id="cut off with plain text"),
    pytest.param(respond(400, b"{}", {"x-request-id": f"req-{KEY}"}), id="in the request id"),
    pytest.param(respond_json(400, {"request_id": KEY}), id="in the request id of the body"),
    pytest.param(respond(302, b"", {"location": f"http://x/?key={KEY}"}), id="in the target of a redirect"),
    pytest.param(respond_json(200, {"error": {"message": f"no such key {KEY}"}}), id="in an error of status 200"),
    pytest.param(respond_json(200, {"you sent": KEY}), id="in another structure"),
    pytest.param(respond(200, f"you sent {KEY}".encode()), id="in text that is not JSON"),
    pytest.param(respond(200, b'"' + KEY.encode() + b"\xff"), id="in bytes that are not text"),
    pytest.param(respond(200, b"{" + KEY.encode(), {"content-encoding": "gzip"}), id="in an invalid compression"),
    pytest.param(respond(200, KEY.encode() * 200), id="in a body that is too large"),
    pytest.param(hang_up(f"{KEY} is not HTTP\r\n\r\n".encode()), id="instead of HTTP"),
    pytest.param(hang_up(f"HTTP/1.1 200 OK\r\n{KEY} no header\r\n\r\n".encode()), id="instead of a header"),
    pytest.param(hang_up(head(200, {"transfer-encoding": "chunked"}) + f"{KEY}\r\n".encode()), id="instead of a chunk"),
    pytest.param(hang_up(head(500, {"content-length": "999"}) + KEY.encode()), id="in a response that breaks off"),
    pytest.param(
        respond_and_close(f'{{"choices": [{{"message": {{"content": "{KEY}'.encode()), id="in a truncated response"
    ),
    pytest.param(reset(), id="nowhere, the connection is reset"),
    pytest.param(STALL, id="nowhere, the server stalls"),
]


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes and contexts."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def contents_of(error: BaseException) -> str:
    """Return everything that an error contains: texts, arguments, attributes and their attributes, along the whole chain."""
    texts = [*traceback.format_exception(error)]
    for link in error_chain(error):
        texts += [str(link), repr(link), repr(link.args), repr(vars(link))]
        texts += [repr(getattr(value, "__dict__", value)) for value in vars(link).values()]
    return "\n".join(texts)


@pytest.mark.parametrize("auth", ["bearer", "x-api-key"])
@pytest.mark.parametrize("with_client", [True, False])
@pytest.mark.parametrize("reply", ECHOES)
async def test_no_error_retry_report_or_log_contains_the_key(
    reply: Reply, auth: str, caplog: pytest.LogCaptureFixture, *, with_client: bool
) -> None:
    """A provider may echo the key anywhere in its response."""
    caplog.set_level(logging.DEBUG, logger="agentloop")
    attempts: list[FailedAttempt] = []
    settings = {
        "timeout": LONGEST,
        "max_response_bytes": 3000,
        "auth": auth,
        "retry": RetryPolicy(max_attempts=2, initial_wait=0),
    }
    async with loopback(reply, reply) as server, httpx.AsyncClient(verify=NO_TLS) as client:
        inference = inference_for(server, client=client if with_client else None, **settings)
        running = asyncio.ensure_future(inference.with_retry_report(attempts.append).infer(QUESTION))
        await server.received(1)
        with pytest.raises(InferenceError) as caught:
            await (over_time(running, LONGEST) if reply is STALL else running)
        assert server.requests[0].headers["authorization" if auth == "bearer" else auth].endswith(KEY)
    assert KEY_PREFIX not in contents_of(caught.value)
    assert KEY_PREFIX not in "".join(f"{failed!r} {contents_of(failed.error)}" for failed in attempts)
    assert KEY_PREFIX not in "".join(
        record.getMessage() for record in caplog.records if record.name.startswith("agentloop")
    )


async def test_an_error_without_the_key_keeps_its_cause() -> None:
    """The cause of an error is kept unless it contains the key."""
    async with loopback(respond(200, b"not JSON"), reset()) as server:
        inference = inference_for(server, retry=RetryPolicy(max_attempts=1))
        for _ in range(2):
            with pytest.raises(InferenceError) as caught:
                await inference.infer(QUESTION)
            assert caught.value.__cause__ is not None


async def test_no_logger_shows_the_key(caplog: pytest.LogCaptureFixture) -> None:
    """Even at level DEBUG, no logger, including those of httpx, shows the key."""
    caplog.set_level(logging.DEBUG)
    async with (
        loopback(respond(200, completion()), respond(200, completion())) as server,
        httpx.AsyncClient(verify=NO_TLS) as client,
    ):
        await inference_for(server, auth="x-api-key").infer(QUESTION)
        await inference_for(server, auth="x-api-key", client=client).infer(QUESTION)
    assert caplog.records
    assert KEY_PREFIX not in caplog.text


async def test_no_object_with_a_configuration_shows_its_key() -> None:
    """Configuration, inference and endpoint do not show the key when printed or converted, and cannot be pickled."""
    async with bound(inference_for("http://provider")) as (inference,):
        for holder in (inference.config, inference, inference._endpoint):
            assert holder is not None
            shown = [repr(holder), str(holder), f"{holder}", repr(attrs.asdict(holder)), repr(attrs.astuple(holder))]
            assert KEY not in "".join(shown)
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(holder)


def test_keys_in_headers_and_in_the_query_of_the_base_url_are_not_shown() -> None:
    """A repr contains the names of headers without their values, and the base URL without its query."""
    shown = repr(config_for(f"http://provider/v1?key={KEY}", headers={"X-Gateway-Key": KEY}))
    assert "headers={'x-gateway-key': '***'}" in shown
    assert "base_url='http://provider/v1'" in shown
    assert KEY_PREFIX not in shown


async def test_errors_do_not_contain_keys_of_headers_and_queries() -> None:
    """Echoed secrets are redacted, and other values are kept."""
    body = {"error": {"message": "bad token hdr-0123456789 or qry-0123456789 for version 2024-10-21"}}
    async with loopback(respond_json(401, body)) as server:
        inference = inference_for(
            f"{server.url}?api-version=2024-10-21&api-key=qry-0123456789",
            headers={"Authorization": "Bearer hdr-0123456789"},
        )
        with pytest.raises(AuthenticationError, match=r"bad token .* or .* for version 2024-10-21") as caught:
            await inference.infer(QUESTION)
    assert "0123456789" not in contents_of(caught.value)


def test_a_configuration_can_be_copied() -> None:
    """Copies in memory keep the key."""
    config = config_for("http://provider")
    assert copy.deepcopy(config) == config
    assert config.auth_headers()["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "settings", [{"timeout": -1}, {"tiemout": 1}, {"headers": {"x": f"{KEY}\n{KEY}"}}, {"auth": 1}]
)
def test_configuration_errors_do_not_contain_the_key(settings: dict[str, Any]) -> None:
    """A configuration error describes the problem without the key."""
    with pytest.raises(ConfigurationError) as caught:
        LLMConfig.parse("openai:m", api_key=KEY, base_url="http://provider", **settings)
    assert KEY_PREFIX not in contents_of(caught.value)


@pytest.mark.parametrize("reply", [ECHOES[0], ECHOES[5], ECHOES[15]])
async def test_no_event_or_state_of_an_execution_contains_the_key(reply: Reply) -> None:
    """A failed execution reports its error in events and in its state, without the key."""
    texts: list[str] = []
    async with loopback(reply, reply, reply) as server:
        loop = AgentLoop(ToolCallingDriver(inference_for(server)))
        loop.wiretap(lambda event: texts.append(repr(event)))
        state = await loop.execute("hello?")
    texts += [repr(state), state.explain(), to_json(state).decode(), repr(loop)]
    assert "InferenceFailed" in "".join(texts)
    assert KEY_PREFIX not in "".join(texts)


async def test_responses_are_not_redacted() -> None:
    """Only errors are redacted: local servers accept any word as a key, and responses may contain that word."""
    async with loopback(respond(200, completion("the ollama eats"))) as server:
        inference = HttpInference(LLMConfig.parse("ollama:m", base_url=server.url, api_key="ollama"))
        assert (await inference.infer(QUESTION)).text == "the ollama eats"
