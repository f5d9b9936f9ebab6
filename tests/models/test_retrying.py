"""Tests of retries: which errors are retried, how often, after which waits, and how they are reported."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pytest
from attrs import frozen

from agentloop.contracts.can_infer import FailedAttempt
from agentloop.errors import BadRequest, InferenceError, ProviderUnavailable, RateLimited
from agentloop.models import HttpInference
from agentloop.models.http_client import in_process_client
from agentloop.testing import run_in_virtual_time
from agentloop.values.policies import RetryPolicy
from tests.models.loopback import completion, hang_up, loopback, reset, respond, respond_json, respond_text
from tests.models.loopback_inference import QUESTION, config_for, inference_for

Response: TypeAlias = tuple[int, Mapping[str, str], bytes]

FINE: Response = (200, {}, completion("at last"))
BUSY: Response = (503, {}, b"")


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
async def test_a_transient_status_is_retried(status: int) -> None:
    """The same request is sent again after a status that may be transient."""
    async with loopback(respond_json(status, {"error": "not now"}), respond_text("now")) as server:
        assert (await inference_for(server).infer(QUESTION)).text == "now"
        first, second = server.requests
        assert (second.body, second.headers) == (first.body, first.headers)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
async def test_a_permanent_status_is_not_retried(status: int) -> None:
    """Any other error status raises after the first attempt."""
    async with loopback(respond_json(status, {"error": "never"}), respond_text("now")) as server:
        with pytest.raises(InferenceError, match="never"):
            await inference_for(server).infer(QUESTION)
        assert len(server.requests) == 1


async def test_every_kind_of_broken_connection_is_retried() -> None:
    """Broken connections are retried like transient statuses."""
    async with loopback(hang_up(), reset(), hang_up(b"HTTP/1.1 200"), respond_text("now")) as server:
        assert (
            await inference_for(server, retry=RetryPolicy(max_attempts=4, initial_wait=0)).infer(QUESTION)
        ).text == "now"
        assert len(server.requests) == 4


@pytest.mark.parametrize("attempts", [1, 2, 5])
async def test_the_number_of_attempts_is_limited(attempts: int) -> None:
    """The number of requests is `max_attempts`, and the error is that of the last attempt."""
    async with loopback(*[respond_json(503, {"error": f"busy {number}"}) for number in range(1, 9)]) as server:
        with pytest.raises(ProviderUnavailable, match=f"busy {attempts}$"):
            await inference_for(server, retry=RetryPolicy(max_attempts=attempts, initial_wait=0)).infer(QUESTION)
        assert len(server.requests) == attempts


async def test_the_policy_limits_which_errors_are_retried() -> None:
    """An error that `on` leaves out or `not_on` names is raised after the first attempt."""
    for policy in (RetryPolicy(on=[RateLimited], initial_wait=0), RetryPolicy(not_on=[ProviderUnavailable])):
        async with loopback(respond(503), respond_text("now")) as server:
            with pytest.raises(ProviderUnavailable):
                await inference_for(server, retry=policy).infer(QUESTION)
            assert len(server.requests) == 1


async def test_a_permanent_failure_ends_the_attempts() -> None:
    """The error of the last attempt decides, not that of the first."""
    async with loopback(respond(503), respond(400, b"so that is wrong"), respond_text("now")) as server:
        with pytest.raises(BadRequest, match="so that is wrong"):
            await inference_for(server).infer(QUESTION)
        assert len(server.requests) == 2


async def test_each_retry_is_reported_with_number_error_and_delay() -> None:
    """Each failed attempt that is repeated is reported, and no other."""
    attempts: list[FailedAttempt] = []
    retry_soon = {"retry-after-ms": "1"}
    async with loopback(
        hang_up(), respond_json(429, {"error": "slow down"}, retry_soon), respond_text("now")
    ) as server:
        inference = inference_for(server)
        await inference.with_retry_report(attempts.append).infer(QUESTION)
        assert [(failed.attempt, type(failed.error), failed.delay) for failed in attempts] == [
            (1, ProviderUnavailable, 0.0),
            (2, RateLimited, 0.001),
        ]


async def test_the_last_failure_is_raised_and_not_reported() -> None:
    """Neither the last attempt nor a successful one is reported."""
    attempts: list[FailedAttempt] = []
    async with loopback(respond(503), respond(503), respond_text()) as server:
        inference = inference_for(server, retry=RetryPolicy(max_attempts=2, initial_wait=0))
        reporting = inference.with_retry_report(attempts.append)
        with pytest.raises(ProviderUnavailable):
            await reporting.infer(QUESTION)
        await reporting.infer(QUESTION)
        assert [failed.attempt for failed in attempts] == [1]


async def test_a_retry_report_belongs_to_its_copy() -> None:
    """`with_retry_report` does not change the original inference."""
    attempts: list[FailedAttempt] = []
    async with loopback(respond(503), respond_text()) as server:
        inference = inference_for(server)
        inference.with_retry_report(attempts.append)
        await inference.infer(QUESTION)
        assert attempts == []


@frozen
class Exchange:
    """The outcome of an inference in virtual time.

    Attributes:
        times: when the requests were sent, in seconds.
        outcome: the text, or the error.
        ended: when the inference ended, in seconds.
    """

    times: Sequence[float]
    outcome: str | InferenceError
    ended: float


def infer_virtually(*responses: Response, jitter: float = 1.0, **settings: Any) -> Exchange:
    """Call a provider that sends these replies, repeating the last one, in virtual time."""
    times: list[float] = []

    def provider(path: str, body: bytes) -> Response:
        times.append(asyncio.get_running_loop().time())
        return responses[min(len(times), len(responses)) - 1]

    async def run() -> Exchange:
        inference = HttpInference(
            config_for("http://provider", **settings), client=in_process_client(provider), jitter=lambda: jitter
        )
        try:
            outcome: str | InferenceError = (await inference.infer(QUESTION)).text
        except InferenceError as error:
            outcome = error
        return Exchange(times, outcome, asyncio.get_running_loop().time())

    return run_in_virtual_time(run())


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        pytest.param({"retry-after": "7"}, 7.0, id="seconds"),
        pytest.param({"retry-after": "0"}, 0.0, id="at once"),
        pytest.param({"retry-after": "2.5"}, 2.5, id="a fraction"),
        pytest.param({"retry-after-ms": "1500"}, 1.5, id="milliseconds"),
        pytest.param({"retry-after-ms": "1500", "retry-after": "9"}, 1.5, id="milliseconds override seconds"),
        pytest.param(
            {"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT", "date": "Thu, 01 Jan 2026 00:00:00 GMT"},
            30.0,
            id="a date by the provider's clock",
        ),
        pytest.param(
            {"retry-after": "Thu, 01 Jan 2026 00:00:00 GMT", "date": "Thu, 01 Jan 2026 00:00:30 GMT"},
            0.0,
            id="a past date",
        ),
        pytest.param({"retry-after": "soon"}, 4.0, id="not a time"),
        pytest.param({"retry-after": "-5"}, 4.0, id="negative"),
        pytest.param({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT"}, 4.0, id="a date without a clock"),
        pytest.param({}, 4.0, id="nothing"),
    ],
)
def test_the_provider_determines_the_wait(headers: Mapping[str, str], seconds: float) -> None:
    """The wait is the one that the provider asks for, or else the initial wait."""
    exchange = infer_virtually((429, headers, b""), FINE, retry=RetryPolicy(initial_wait=4))
    assert (exchange.outcome, exchange.times) == ("at last", [0.0, seconds])


def test_waits_double_up_to_the_maximum() -> None:
    """Each wait is twice the previous one, up to `max_wait`."""
    exchange = infer_virtually(BUSY, retry=RetryPolicy(max_attempts=6, initial_wait=1, max_wait=5))
    assert exchange.times == [0, 1, 3, 7, 12, 17]


def test_jitter_shortens_a_wait_by_up_to_half() -> None:
    """A wait is between half of the backoff and all of it."""
    policy = RetryPolicy(max_attempts=3, initial_wait=8)
    assert infer_virtually(BUSY, retry=policy, jitter=0.0).times == [0, 4, 12]
    assert infer_virtually(BUSY, retry=policy, jitter=0.5).times == [0, 6, 18]


def test_jitter_is_random_by_default() -> None:
    """Without `jitter`, waits differ between calls."""

    def first_wait() -> float:
        times: list[float] = []

        def provider(path: str, body: bytes) -> Response:
            times.append(asyncio.get_running_loop().time())
            return BUSY

        async def run() -> None:
            config = config_for("http://provider", retry=RetryPolicy(max_attempts=2, initial_wait=1))
            with pytest.raises(ProviderUnavailable):
                await HttpInference(config, client=in_process_client(provider)).infer(QUESTION)

        run_in_virtual_time(run())
        return times[1]

    waits = {first_wait() for _ in range(5)}
    assert len(waits) > 1
    assert all(0.5 <= wait <= 1 for wait in waits)


def test_a_wait_longer_than_the_maximum_is_an_error() -> None:
    """A provider that asks for more than `max_wait` raises at once, with `retry_after`."""
    exchange = infer_virtually((429, {"retry-after": "61"}, b""), FINE)
    assert isinstance(exchange.outcome, RateLimited)
    assert (exchange.outcome.retry_after, exchange.times, exchange.ended) == (61.0, [0.0], 0.0)


def test_a_wait_beyond_the_deadline_is_an_error() -> None:
    """A provider that asks for more than the deadline raises at once, not at the deadline."""
    exchange = infer_virtually((429, {"retry-after": "40"}, b""), FINE, deadline=30)
    assert isinstance(exchange.outcome, RateLimited)
    assert (exchange.times, exchange.ended) == ([0.0], 0.0)


def test_the_deadline_ends_a_wait() -> None:
    """The deadline includes the waits between attempts."""
    exchange = infer_virtually(BUSY, deadline=25, retry=RetryPolicy(max_attempts=9, initial_wait=10))
    assert isinstance(exchange.outcome, ProviderUnavailable)
    assert "within 25 seconds" in str(exchange.outcome)
    assert (exchange.times, exchange.ended) == ([0, 10], 25)


def test_any_number_of_attempts_is_possible() -> None:
    """The backoff does not overflow after a thousand attempts."""
    exchange = infer_virtually(*[BUSY] * 1100, FINE, retry=RetryPolicy(max_attempts=1101, initial_wait=0))
    assert (exchange.outcome, len(exchange.times)) == ("at last", 1101)


def test_a_transient_error_under_status_200_is_retried() -> None:
    """The error object decides, not the status: an overloaded model behind a router is retried."""
    overloaded = json.dumps({"error": {"message": "the model is overloaded"}}).encode()
    malformed = json.dumps({"error": {"message": "no such parameter"}}).encode()
    assert infer_virtually((200, {}, overloaded), FINE, retry=RetryPolicy(initial_wait=1)).outcome == "at last"
    assert len(infer_virtually((200, {}, malformed), FINE).times) == 1
