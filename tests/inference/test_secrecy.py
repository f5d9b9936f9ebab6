"""Law 18: no configured key appears in any event, error, repr or log."""

from __future__ import annotations

import copy
import logging
import pickle
import traceback
from collections.abc import Iterator
from typing import Any

import attrs
import httpx
import pytest

from agentloop import AgentLoop, ToolCallingDriver
from agentloop.contracts import FailedAttempt
from agentloop.errors import AuthenticationError, ConfigurationError, InferenceError
from agentloop.inference import HttpInference, LLMConfig
from agentloop.values import to_json
from agentloop.values.policies import RetryPolicy
from tests.inference.loopback import (
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
from tests.inference.loopback_inference import QUESTION, bound, config_for, inference_for
from tests.limits import LONGEST

TELLING = KEY[:8]
"""Whoever sees this much of the key sees too much."""

STALLS = stall()

ECHOES = [
    pytest.param(respond_json(401, {"error": {"message": f"Incorrect API key provided: {KEY}."}}), id="in the message"),
    pytest.param(respond_json(400, {"error": {"message": "x", "code": KEY}}), id="in the code"),
    pytest.param(respond_json(400, {"error": {"message": "." * 485 + KEY}}), id="cut off with the message"),
    pytest.param(respond_json(400, {"error": KEY}), id="as the message"),
    pytest.param(respond_json(400, {"error": {"message": [{"key": KEY}]}}), id="deep in the message"),
    pytest.param(respond_json(429, {"error": {"message": "x", "metadata": {"raw": KEY}}}), id="passed on by a router"),
    pytest.param(
        respond_json(400, {"request": {"headers": {"authorization": f"Bearer {KEY}"}}}), id="somewhere in JSON"
    ),
    pytest.param(respond(500, f"<html><title>{KEY}".encode()), id="in the title of a page"),
    pytest.param(respond(502, f"bad gateway for {KEY}".encode()), id="in plain text"),
    pytest.param(respond(503, b"." * 490 + KEY.encode()), id="cut off with plain text"),
    pytest.param(respond(400, b"{}", {"x-request-id": f"req-{KEY}"}), id="in the request id"),
    pytest.param(respond_json(400, {"request_id": KEY}), id="in the request id of the body"),
    pytest.param(respond(302, b"", {"location": f"http://x/?key={KEY}"}), id="in the place of a redirect"),
    pytest.param(respond_json(200, {"error": {"message": f"no such key {KEY}"}}), id="in an error of status 200"),
    pytest.param(respond_json(200, {"you sent": KEY}), id="in another shape"),
    pytest.param(respond(200, f"you sent {KEY}".encode()), id="in what is not JSON"),
    pytest.param(respond(200, b'"' + KEY.encode() + b"\xff"), id="in what is not even text"),
    pytest.param(respond(200, b"{" + KEY.encode(), {"content-encoding": "gzip"}), id="in what is not compressed"),
    pytest.param(respond(200, KEY.encode() * 200), id="in what is too large"),
    pytest.param(hang_up(f"{KEY} is not HTTP\r\n\r\n".encode()), id="instead of HTTP"),
    pytest.param(hang_up(f"HTTP/1.1 200 OK\r\n{KEY} no header\r\n\r\n".encode()), id="instead of a header"),
    pytest.param(hang_up(head(200, {"transfer-encoding": "chunked"}) + f"{KEY}\r\n".encode()), id="instead of a chunk"),
    pytest.param(hang_up(head(500, {"content-length": "999"}) + KEY.encode()), id="in an answer that breaks off"),
    pytest.param(
        respond_and_close(f'{{"choices": [{{"message": {{"content": "{KEY}'.encode()), id="in an answer that is cut"
    ),
    pytest.param(reset(), id="nowhere, the connection is reset"),
    pytest.param(STALLS, id="nowhere, the server stalls"),
]


def links(error: BaseException | None) -> Iterator[BaseException]:
    """Go through an error and all that came before it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def told_by(error: BaseException) -> str:
    """Everything that an error tells: texts, arguments, attributes and those of attributes, along the whole chain."""
    told = [*traceback.format_exception(error)]
    for link in links(error):
        told += [str(link), repr(link), repr(link.args), repr(vars(link))]
        told += [repr(getattr(held, "__dict__", held)) for held in vars(link).values()]
    return "\n".join(told)


@pytest.mark.parametrize("auth", ["bearer", "x-api-key"])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("reply", ECHOES)
async def test_no_error_report_or_log_tells_the_key(
    reply: Reply, auth: str, caplog: pytest.LogCaptureFixture, *, given: bool
) -> None:
    """A provider may echo the key wherever it likes: neither error nor report of a retry nor log shows it."""
    caplog.set_level(logging.DEBUG, logger="agentloop")
    attempts: list[FailedAttempt] = []
    settings = {
        "timeout": 0.03 if reply is STALLS else LONGEST,
        "max_response_bytes": 3000,
        "auth": auth,
        "retry": RetryPolicy(max_attempts=2, initial_wait=0),
    }
    async with loopback(reply, reply) as server, httpx.AsyncClient() as client:
        inference = inference_for(server, client=client if given else None, **settings)
        with pytest.raises(InferenceError) as caught:
            await inference.with_retry_report(attempts.append).infer(QUESTION)
        await server.received(1)
        assert server.requests[0].headers["authorization" if auth == "bearer" else auth].endswith(KEY)
    assert TELLING not in told_by(caught.value)
    assert TELLING not in "".join(f"{failed!r} {told_by(failed.error)}" for failed in attempts)
    assert TELLING not in "".join(
        record.getMessage() for record in caplog.records if record.name.startswith("agentloop")
    )


async def test_an_error_without_the_key_keeps_its_cause() -> None:
    """Where nothing tells the key, the cause of an error is kept for those who look into it."""
    async with loopback(respond(200, b"no JSON"), reset()) as server:
        inference = inference_for(server, retry=RetryPolicy(max_attempts=1))
        for _ in range(2):
            with pytest.raises(InferenceError) as caught:
                await inference.infer(QUESTION)
            assert caught.value.__cause__ is not None


async def test_no_logger_tells_the_key_that_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    """With every logger at its most talkative, those of the HTTP library included, a request does not show its key."""
    caplog.set_level(logging.DEBUG)
    async with (
        loopback(respond(200, completion()), respond(200, completion())) as server,
        httpx.AsyncClient() as client,
    ):
        await inference_for(server, auth="x-api-key").infer(QUESTION)
        await inference_for(server, auth="x-api-key", client=client).infer(QUESTION)
    assert caplog.records
    assert TELLING not in caplog.text


async def test_nothing_that_holds_a_configuration_shows_its_key() -> None:
    """Configuration, inference and endpoint hide the key from whoever prints, takes apart or stores them."""
    async with bound(inference_for("http://provider")) as (inference,):
        for holder in (inference.config, inference, inference._endpoint):
            assert holder is not None
            shown = [repr(holder), str(holder), f"{holder}", repr(attrs.asdict(holder)), repr(attrs.astuple(holder))]
            assert KEY not in "".join(shown)
            with pytest.raises(TypeError, match="not written"):
                pickle.dumps(holder)


def test_keys_in_headers_and_in_the_query_of_the_address_are_not_shown() -> None:
    """A repr names the headers without their values, and the address without its query."""
    shown = repr(config_for(f"http://provider/v1?key={KEY}", headers={"X-Gateway-Key": KEY}))
    assert "headers={'x-gateway-key': '***'}" in shown
    assert "base_url='http://provider/v1'" in shown
    assert TELLING not in shown


async def test_keys_in_headers_and_in_the_query_are_not_told_by_errors() -> None:
    """What a provider repeats of them is taken out, and what is no secret stays."""
    told = {"error": {"message": "bad token hdr-0123456789 or qry-0123456789 for version 2024-10-21"}}
    async with loopback(respond_json(401, told)) as server:
        asking = inference_for(
            f"{server.url}?api-version=2024-10-21&api-key=qry-0123456789",
            headers={"Authorization": "Bearer hdr-0123456789"},
        )
        with pytest.raises(AuthenticationError, match=r"bad token .* or .* for version 2024-10-21") as caught:
            await asking.infer(QUESTION)
    assert "0123456789" not in told_by(caught.value)


def test_a_configuration_can_be_copied() -> None:
    """Copies in memory keep the key, so that what holds a configuration can be copied."""
    config = config_for("http://provider")
    assert copy.deepcopy(config) == config
    assert config.auth_headers()["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "settings", [{"timeout": -1}, {"tiemout": 1}, {"headers": {"x": f"{KEY}\n{KEY}"}}, {"auth": 1}]
)
def test_errors_of_configuration_do_not_show_the_key(settings: dict[str, Any]) -> None:
    """What is wrong with a configuration is told without its key."""
    with pytest.raises(ConfigurationError) as caught:
        LLMConfig.parse("openai:m", api_key=KEY, base_url="http://provider", **settings)
    assert TELLING not in told_by(caught.value)


@pytest.mark.parametrize("reply", [ECHOES[0], ECHOES[5], ECHOES[15]])
async def test_no_event_state_or_report_of_an_execution_tells_the_key(reply: Reply) -> None:
    """A failed execution tells of its error in events and in its state, without the key."""
    told: list[str] = []
    async with loopback(reply, reply, reply) as server:
        loop = AgentLoop(ToolCallingDriver(inference_for(server)))
        loop.wiretap(lambda event: told.append(repr(event)))
        state = await loop.execute("hello?")
    told += [repr(state), state.explain(), to_json(state).decode(), repr(loop)]
    assert "InferenceFailed" in "".join(told)
    assert TELLING not in "".join(told)


async def test_an_answer_may_say_what_the_key_says() -> None:
    """Only errors are redacted: with a key of an everyday word, as local servers take any, answers keep the word."""
    async with loopback(respond(200, completion("the ollama eats"))) as server:
        inference = HttpInference(LLMConfig.parse("ollama:m", base_url=server.url, api_key="ollama"))
        assert (await inference.infer(QUESTION)).text == "the ollama eats"
