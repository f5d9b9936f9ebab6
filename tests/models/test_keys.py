"""Tests of keys that a function returns."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.identity import get_bearer_token_provider

from agentloop.contracts.can_infer import FailedAttempt
from agentloop.errors import AuthenticationError, ConfigurationError, InferenceError, ProviderUnavailable
from agentloop.models import HttpInference, LLMConfig, RecordingInference
from agentloop.testing import run_in_virtual_time
from agentloop.values import InferenceResponse, Secret
from tests.models.chat_stream import stream_text
from tests.models.loopback import KEY, Reply, loopback, respond, respond_json, respond_text
from tests.models.loopback_inference import NO_WAIT, QUESTION
from tests.models.test_secrecy import ECHOES, STALL, contents_of

TOKEN = "token-9876543210fedcba"


def counting(calls: list[str]) -> Callable[[], str]:
    """Return a function that returns a new token at each call."""

    def next_token() -> str:
        calls.append(f"{TOKEN}-{len(calls) + 1}")
        return calls[-1]

    return next_token


def inference_with(url: str, key: Any, model: str = "openai:m", **settings: Any) -> HttpInference:
    """Return an inference with this key."""
    config = LLMConfig.parse(model, base_url=url, api_key=key, environment={}, **{"retry": NO_WAIT, **settings})
    return HttpInference(config, jitter=lambda: 0.0)


async def test_the_function_is_called_for_each_attempt() -> None:
    """A token that was renewed in the meantime is sent with the next attempt, and with the next request."""
    calls: list[str] = []
    async with loopback(respond(503), respond_text("a"), respond_text("b")) as server:
        inference = inference_with(server.url, counting(calls))
        assert [(await inference.infer(QUESTION)).text for _ in range(2)] == ["a", "b"]
        assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {key}" for key in calls]
        assert len(calls) == 3


async def test_a_plain_function_runs_in_a_thread_and_an_async_one_in_the_event_loop() -> None:
    """A plain function may block; asynchronous ones of any kind may use the event loop."""
    threads: list[int] = []

    def plain() -> str:
        threads.append(threading.get_ident())
        return TOKEN

    async def function() -> Secret:
        asyncio.get_running_loop()
        threads.append(threading.get_ident())
        return Secret(TOKEN)

    class Source:
        async def __call__(self) -> str:
            return (await function()).reveal()

    def returns_awaitable() -> Awaitable[Secret]:
        return function()

    kinds: list[Any] = [plain, function, Source(), partial(function), returns_awaitable]
    async with loopback(*[respond_text() for _ in kinds]) as server:
        for kind in kinds:
            await inference_with(server.url, kind).infer(QUESTION)
        assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {TOKEN}"}
    assert [ident == threading.get_ident() for ident in threads] == [False, True, True, True, True]


async def complete(inference: HttpInference, *, stream: bool) -> InferenceResponse:
    """Return the response, by a stream or in one piece."""
    if not stream:
        return await inference.infer(QUESTION)
    items = [item async for item in inference.stream(QUESTION)]
    assert isinstance(items[-1], InferenceResponse)
    return items[-1]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_key_is_asked_for_once_more(*, stream: bool) -> None:
    """The request is sent again with the new key, and that is no failed attempt; a second refusal is an error."""
    refusal = respond_json(401, {"error": "expired"})
    answer = stream_text("now") if stream else respond_text("now")
    calls: list[str] = []
    attempts: list[FailedAttempt] = []
    async with loopback(refusal, answer, refusal, refusal) as server:
        inference = inference_with(server.url, counting(calls)).with_retry_report(attempts.append)
        assert (await complete(inference, stream=stream)).text == "now"
        with pytest.raises(AuthenticationError, match="expired"):
            await complete(inference, stream=stream)
        assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {key}" for key in calls]
        assert (len(server.requests), attempts) == (4, [])


@pytest.mark.parametrize("status", [401, 403])
async def test_the_same_key_is_not_sent_again(status: int) -> None:
    """A function that returns the refused key again ends the inference, and so does any other refusal."""
    refusal = respond_json(status, {"error": "no"})
    calls: list[str] = []
    async with loopback(refusal, refusal) as server:
        with pytest.raises(AuthenticationError):
            await inference_with(server.url, lambda: TOKEN).infer(QUESTION)
        assert len(server.requests) == 1
        if status == 403:
            with pytest.raises(AuthenticationError):
                await inference_with(server.url, counting(calls)).infer(QUESTION)
            assert (len(server.requests), len(calls)) == (2, 1)


@pytest.mark.parametrize("reply", [reply for reply in ECHOES if reply.values[0] is not STALL])
async def test_no_error_contains_the_key_of_a_function(reply: Reply) -> None:
    """A provider may echo the key anywhere in its response."""
    attempts: list[FailedAttempt] = []
    async with loopback(reply, reply) as server:
        inference = inference_with(server.url, lambda: KEY, max_response_bytes=3000).with_retry_report(attempts.append)
        with pytest.raises(InferenceError) as caught:
            await inference.infer(QUESTION)
        await server.received(1)
        assert server.requests[0].headers["authorization"].endswith(KEY)
    assert KEY[:8] not in contents_of(caught.value)
    assert KEY[:8] not in "".join(f"{failed!r} {contents_of(failed.error)}" for failed in attempts)


class Refused(Exception):
    """What a library of tokens raises, with the request."""

    def __init__(self) -> None:
        super().__init__("please sign in")
        self.request = f"POST secret={TOKEN}"


def raise_refused() -> str:
    raise Refused


class Unspeakable(Exception):
    """An error whose text fails."""

    def __str__(self) -> str:
        raise ValueError


def raise_unspeakable() -> str:
    raise Unspeakable


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (raise_refused, "Refused: please sign in"),
        (raise_unspeakable, "Unspeakable"),
        (iter(()).__next__, "raised StopIteration"),
        (lambda: 5, "returned int and not a text"),
        (lambda: " ", "empty text"),
        (lambda: f"{TOKEN}\x00", "control character"),
    ],
)
async def test_a_function_that_fails_is_an_authentication_error(function: Any, problem: str) -> None:
    """The error names the model and the problem, and shows neither the key nor what the function raised with it."""
    async with loopback() as server:
        with pytest.raises(AuthenticationError, match=f"there is no key for openai:m, .*{problem}") as caught:
            await inference_with(server.url, function).infer(QUESTION)
        assert not server.requests
    assert TOKEN[:8] not in contents_of(caught.value)


def test_a_function_counts_against_the_deadline() -> None:
    """A function that does not return ends with the deadline of the inference."""

    async def never() -> str:
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> float:
        with pytest.raises(ProviderUnavailable, match="within 5 seconds; raise deadline"):
            await inference_with("http://provider", never, deadline=5).infer(QUESTION)
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(run()) == 5


async def test_a_cancelled_inference_cancels_its_function() -> None:
    """The cancellation is not taken for a failure of the function."""
    started = asyncio.Event()

    async def never() -> str:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.create_task(inference_with("http://provider", never).infer(QUESTION))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_function_that_somebody_else_cancels_fails() -> None:
    """A cancellation of what the function awaits is an error of the function, not of the caller."""

    async def cancelled() -> str:
        raise asyncio.CancelledError

    with pytest.raises(AuthenticationError, match="CancelledError"):
        await inference_with("http://provider", cancelled).infer(QUESTION)


def test_the_repr_of_a_configuration_does_not_show_what_is_bound_to_the_function() -> None:
    """Neither the repr nor the errors of other settings show it."""

    def bound(secret: str) -> str:
        return secret

    config = LLMConfig.parse("openai:m", api_key=partial(bound, TOKEN), environment={})
    assert "api_key=<function>" in repr(config)
    assert TOKEN not in repr(HttpInference(config))
    assert config.secrets == ()
    with pytest.raises(ConfigurationError, match="a key is text, a Secret, or a function") as caught:
        config.with_settings(api_key=[TOKEN])
    assert TOKEN not in str(caught.value)


async def test_recordings_do_not_contain_the_keys_of_a_function(tmp_path: Path) -> None:
    """A service may echo a key in an answer; each of the keys that the function has returned is masked."""
    calls: list[str] = []

    class Keys:
        def next_token(self) -> str:
            return counting(calls)()

    async with loopback(respond_text(f"you sent {TOKEN}-1"), respond_text(f"not {TOKEN}-1 but {TOKEN}-2")) as server:
        recording = RecordingInference(inference_with(server.url, Keys().next_token), tmp_path / "run.json")
        for _ in range(2):
            await recording.infer(QUESTION)
    recorded = (tmp_path / "run.json").read_text()
    assert "you sent ***" in recorded
    assert TOKEN[:8] not in recorded


async def test_a_function_that_cannot_be_referenced_weakly_works() -> None:
    """Only that its keys are not masked in recordings."""

    class Source:
        __slots__ = ()

        def __call__(self) -> str:
            return TOKEN

    async with loopback(respond_text()) as server:
        inference = inference_with(server.url, Source())
        await inference.infer(QUESTION)
        assert server.requests[0].headers["authorization"] == f"Bearer {TOKEN}"
        assert inference.config.secrets == ()


class StaticCredential:
    """A credential of Azure, which needs its cloud otherwise."""

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken(TOKEN, int(time.time()) + 3600)


async def test_entra_tokens_of_azure_identity_are_sent_as_bearer_tokens() -> None:
    """What `get_bearer_token_provider` returns is a key of the provider `azure`; a text is sent as its API key."""
    provider = get_bearer_token_provider(StaticCredential(), "https://cognitiveservices.azure.com/.default")
    async with loopback(respond_text(), respond_text()) as server:
        await inference_with(server.url, provider, "azure:deployment").infer(QUESTION)
        await inference_with(server.url, "text", "azure:deployment").infer(QUESTION)
        assert server.requests[0].headers["authorization"] == f"Bearer {TOKEN}"
        assert "api-key" not in server.requests[0].headers
        assert server.requests[1].headers["api-key"] == "text"
