"""Trying again: when, how often, after how long, and telling of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pytest
from attrs import frozen

from agentloop.contracts import FailedAttempt
from agentloop.errors import BadRequest, InferenceError, ProviderUnavailable, RateLimited
from agentloop.inference import HttpInference
from agentloop.inference.http_client import in_process_client
from agentloop.testing import run_virtual
from agentloop.values.policies import RetryPolicy
from tests.inference.loopback import completion, hang_up, loopback, reset, respond, respond_json, respond_text
from tests.inference.loopback_inference import QUESTION, config_for, inference_for

Answer: TypeAlias = tuple[int, Mapping[str, str], bytes]

FINE: Answer = (200, {}, completion("at last"))
BUSY: Answer = (503, {}, b"")


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
async def test_a_passing_failure_is_asked_again(status: int) -> None:
    """A status that may pass is followed by the same request once more."""
    async with loopback(respond_json(status, {"error": "not now"}), respond_text("now")) as server:
        assert (await inference_for(server).infer(QUESTION)).text == "now"
        first, second = server.requests
        assert (second.body, second.headers) == (first.body, first.headers)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
async def test_a_lasting_failure_is_asked_once(status: int) -> None:
    """A status that will not pass is an error at once."""
    async with loopback(respond_json(status, {"error": "never"}), respond_text("now")) as server:
        with pytest.raises(InferenceError, match="never"):
            await inference_for(server).infer(QUESTION)
        assert len(server.requests) == 1


async def test_every_kind_of_broken_connection_is_asked_again() -> None:
    """Connections that break are repeated like statuses that pass."""
    async with loopback(hang_up(), reset(), hang_up(b"HTTP/1.1 200"), respond_text("now")) as server:
        assert (
            await inference_for(server, retry=RetryPolicy(max_attempts=4, initial_wait=0)).infer(QUESTION)
        ).text == "now"
        assert len(server.requests) == 4


@pytest.mark.parametrize("attempts", [1, 2, 5])
async def test_the_number_of_attempts_is_bounded(attempts: int) -> None:
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


async def test_another_kind_of_failure_ends_the_attempts() -> None:
    """What comes back at a later attempt counts, not what came first."""
    async with loopback(respond(503), respond(400, b"so that is wrong"), respond_text("now")) as server:
        with pytest.raises(BadRequest, match="so that is wrong"):
            await inference_for(server).infer(QUESTION)
        assert len(server.requests) == 2


async def test_each_repetition_is_reported_with_its_number_error_and_delay() -> None:
    """A listener hears of each attempt that failed and is repeated, and of no other."""
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
    """An attempt that is not repeated is no repetition to tell of; nor is one that succeeds."""
    attempts: list[FailedAttempt] = []
    async with loopback(respond(503), respond(503), respond_text()) as server:
        inference = inference_for(server, retry=RetryPolicy(max_attempts=2, initial_wait=0))
        listening = inference.with_retry_report(attempts.append)
        with pytest.raises(ProviderUnavailable):
            await listening.infer(QUESTION)
        await listening.infer(QUESTION)
        assert [failed.attempt for failed in attempts] == [1]


async def test_a_listener_belongs_to_the_copy_that_it_was_given_to() -> None:
    """To listen to one copy leaves the inference itself as it was."""
    attempts: list[FailedAttempt] = []
    async with loopback(respond(503), respond_text()) as server:
        inference = inference_for(server)
        inference.with_retry_report(attempts.append)
        await inference.infer(QUESTION)
        assert attempts == []


@frozen
class Asked:
    """What came of asking a provider in virtual time.

    Attributes:
        times: when the requests came, in seconds.
        outcome: the text, or the error.
        ended: when the inference ended, in seconds.
    """

    times: Sequence[float]
    outcome: str | InferenceError
    ended: float


def ask(*answers: Answer, jitter: float = 1.0, **settings: Any) -> Asked:
    """Ask a provider that gives these answers, the last of them again and again, in virtual time."""
    times: list[float] = []

    def provider(path: str, body: bytes) -> Answer:
        times.append(asyncio.get_running_loop().time())
        return answers[min(len(times), len(answers)) - 1]

    async def asking() -> Asked:
        inference = HttpInference(
            config_for("http://provider", **settings), client=in_process_client(provider), jitter=lambda: jitter
        )
        try:
            outcome: str | InferenceError = (await inference.infer(QUESTION)).text
        except InferenceError as error:
            outcome = error
        return Asked(times, outcome, asyncio.get_running_loop().time())

    return run_virtual(asking())


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        pytest.param({"retry-after": "7"}, 7.0, id="seconds"),
        pytest.param({"retry-after": "0"}, 0.0, id="at once"),
        pytest.param({"retry-after": "2.5"}, 2.5, id="a fraction"),
        pytest.param({"retry-after-ms": "1500"}, 1.5, id="milliseconds"),
        pytest.param({"retry-after-ms": "1500", "retry-after": "9"}, 1.5, id="milliseconds go before seconds"),
        pytest.param(
            {"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT", "date": "Thu, 01 Jan 2026 00:00:00 GMT"},
            30.0,
            id="a date, from the provider's own clock",
        ),
        pytest.param(
            {"retry-after": "Thu, 01 Jan 2026 00:00:00 GMT", "date": "Thu, 01 Jan 2026 00:00:30 GMT"},
            0.0,
            id="a date that is over",
        ),
        pytest.param({"retry-after": "soon"}, 4.0, id="no time at all"),
        pytest.param({"retry-after": "-5"}, 4.0, id="less than nothing"),
        pytest.param({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT"}, 4.0, id="a date without a clock"),
        pytest.param({}, 4.0, id="nothing"),
    ],
)
def test_the_provider_says_how_long_to_wait(headers: Mapping[str, str], seconds: float) -> None:
    """The next attempt comes when the provider asks for it; where it names no time, after the first wait."""
    asked = ask((429, headers, b""), FINE, retry=RetryPolicy(initial_wait=4))
    assert (asked.outcome, asked.times) == ("at last", [0.0, seconds])


def test_waits_double_up_to_the_longest() -> None:
    """Each wait is twice the one before, and none is longer than the longest."""
    asked = ask(BUSY, retry=RetryPolicy(max_attempts=6, initial_wait=1, max_wait=5))
    assert asked.times == [0, 1, 3, 7, 12, 17]


def test_jitter_takes_up_to_half_of_a_wait_away() -> None:
    """Clients that failed together come back at different times, none before half of the wait."""
    policy = RetryPolicy(max_attempts=3, initial_wait=8)
    assert ask(BUSY, retry=policy, jitter=0.0).times == [0, 4, 12]
    assert ask(BUSY, retry=policy, jitter=0.5).times == [0, 6, 18]


def test_jitter_is_random_when_none_is_given() -> None:
    """Without a jitter of its own, an inference waits between half of and the whole wait, not always the same."""

    def waited() -> float:
        times: list[float] = []

        def provider(path: str, body: bytes) -> Answer:
            times.append(asyncio.get_running_loop().time())
            return BUSY

        async def asking() -> None:
            config = config_for("http://provider", retry=RetryPolicy(max_attempts=2, initial_wait=1))
            with pytest.raises(ProviderUnavailable):
                await HttpInference(config, client=in_process_client(provider)).infer(QUESTION)

        run_virtual(asking())
        return times[1]

    waits = {waited() for _ in range(5)}
    assert len(waits) > 1
    assert all(0.5 <= wait <= 1 for wait in waits)


def test_a_wait_that_is_too_long_is_not_waited_for() -> None:
    """A provider that asks for more than the longest wait is told of at once, with what it asked for."""
    asked = ask((429, {"retry-after": "61"}, b""), FINE)
    assert isinstance(asked.outcome, RateLimited)
    assert (asked.outcome.retry_after, asked.times, asked.ended) == (61.0, [0.0], 0.0)


def test_a_wait_beyond_the_deadline_is_not_waited_for() -> None:
    """A provider that asks for more than the deadline allows is told of at once, not at the deadline."""
    asked = ask((429, {"retry-after": "40"}, b""), FINE, deadline=30)
    assert isinstance(asked.outcome, RateLimited)
    assert (asked.times, asked.ended) == ([0.0], 0.0)


def test_the_deadline_ends_a_wait() -> None:
    """The deadline counts the waits between attempts."""
    asked = ask(BUSY, deadline=25, retry=RetryPolicy(max_attempts=9, initial_wait=10))
    assert isinstance(asked.outcome, ProviderUnavailable)
    assert "within 25 seconds" in str(asked.outcome)
    assert (asked.times, asked.ended) == ([0, 10], 25)


def test_any_number_of_attempts_can_be_made() -> None:
    """Doubling the wait does not end in numbers that are too large to count with."""
    asked = ask(*[BUSY] * 1100, FINE, retry=RetryPolicy(max_attempts=1101, initial_wait=0))
    assert (asked.outcome, len(asked.times)) == ("at last", 1101)


def test_an_error_told_under_status_200_is_asked_again_when_it_may_pass() -> None:
    """What an answer tells counts, not only its status: an overloaded model behind a router is asked again."""
    overloaded = json.dumps({"error": {"message": "the model is overloaded"}}).encode()
    malformed = json.dumps({"error": {"message": "no such parameter"}}).encode()
    assert ask((200, {}, overloaded), FINE, retry=RetryPolicy(initial_wait=1)).outcome == "at last"
    assert len(ask((200, {}, malformed), FINE).times) == 1
