"""Retries of failed calls."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.contracts import ToolPolicy
from agentloop.events.resilience import ToolCallRetried
from agentloop.policies import CircuitBreaker, Deadline, Retry
from agentloop.values import CircuitPolicy, Effect, RetryPolicy
from tests.policies.resilience.worker import Run, Worker, fail_first, run_loop, work


def retry(*args: Any, jitter: float = 1.0, **options: Any) -> Retry:
    return Retry(RetryPolicy(*args), jitter=lambda: jitter, **options)


def test_a_call_that_fails_is_retried_until_it_succeeds() -> None:
    """Waits double, each retry is an event with the error, and the outcome is the success."""
    worker = Worker(fail_first(2))
    run = run_loop(worker, [retry(5)], [work(7)])
    assert [attempt.at for attempt in worker.runs] == [0.0, 0.5, 1.5]
    assert run.outcomes[0].value == 7
    retries = run.events_of(ToolCallRetried)
    assert [(event.attempt, event.delay, event.error.type) for event in retries] == [
        (1, 0.5, "ConnectionError"),
        (2, 1.0, "ConnectionError"),
    ]
    assert retries[0].key == run.outcomes[0].key
    assert retries[0].step_number == 1


@given(st.integers(1, 6), st.floats(0.01, 2), st.floats(0.01, 5), st.floats(0, 1))
def test_waits_grow_up_to_a_maximum_and_have_jitter(
    attempts: int, initial: float, maximum: float, jitter: float
) -> None:
    """The n-th wait is between half and all of initial * 2**n and at most the maximum; the last failure is the outcome."""
    worker = Worker(fail_first(99))
    layer = Retry(RetryPolicy(attempts, initial_wait=initial, max_wait=maximum), jitter=lambda: jitter)
    run = run_loop(worker, [layer], [work()])
    starts = [attempt.at for attempt in worker.runs]
    assert len(starts) == attempts
    for n, (earlier, later) in enumerate(pairwise(starts)):
        full = min(initial * 2**n, maximum)
        assert later - earlier == pytest.approx(full * (0.5 + jitter / 2))
    assert run.outcomes[0].error_message.startswith(f"attempt {attempts} of")


@pytest.mark.parametrize(
    ("effect", "policy", "layer", "runs"),
    [
        (Effect.PURE, None, retry(3), 3),
        (Effect.IDEMPOTENT, None, retry(3), 3),
        (Effect.EFFECT, None, retry(3), 1),
        (Effect.EFFECT, None, retry(3, effects=True), 3),
        (Effect.EFFECT, RetryPolicy(2), retry(3), 2),
        (Effect.PURE, RetryPolicy(1), retry(3), 1),
        (Effect.PURE, None, Retry(None), 1),
    ],
)
def test_a_tool_with_an_effect_is_retried_only_if_a_policy_says_so(
    effect: Effect, policy: RetryPolicy | None, layer: Retry, runs: int
) -> None:
    """The tool's declaration takes precedence; the layer's policy applies to effects only with `effects=True`."""
    worker = Worker(fail_first(99), declared_effect=effect, declared_policy=ToolPolicy(retry=policy))
    run_loop(worker, [layer], [work()])
    assert len(worker.runs) == runs


class FlakyNetworkError(ConnectionError):
    """A subclass of a class that a policy names."""


@pytest.mark.parametrize(
    ("error", "policy", "runs"),
    [
        (FlakyNetworkError("down"), RetryPolicy(3, on=ConnectionError), 3),
        (FlakyNetworkError("down"), RetryPolicy(3, on="FlakyNetworkError"), 3),
        (FlakyNetworkError("down"), RetryPolicy(3, on="ConnectionError"), 1),
        (FlakyNetworkError("down"), RetryPolicy(3, not_on=[OSError]), 1),
        (RuntimeError("odd"), RetryPolicy(3, on=[ConnectionError]), 1),
        (RuntimeError("odd"), RetryPolicy(3), 3),
        (KeyError("no such order"), RetryPolicy(3), 1),
        (KeyError("no such order"), RetryPolicy(3, not_on=()), 3),
    ],
)
def test_a_policy_selects_errors_by_their_class(error: Exception, policy: RetryPolicy, runs: int) -> None:
    """A class includes its subclasses, a name does not; errors of wrong arguments and bugs are not retried."""

    def behavior(_: Run) -> None:
        raise error

    worker = Worker(behavior)
    run_loop(worker, [Retry(policy)], [work()])
    assert len(worker.runs) == runs


def test_an_attempt_that_timed_out_leaves_the_call_in_doubt() -> None:
    """An idempotent call of which any attempt timed out may have run, whatever the last attempt says."""
    policy = ToolPolicy(timeout=1)
    worker = Worker(
        fail_first(9),
        lambda run: 5.0 if run.attempt == 1 else 0.0,
        declared_effect=Effect.IDEMPOTENT,
        declared_policy=policy,
    )
    run = run_loop(worker, [retry(2)], [work()])
    assert [attempt.at for attempt in worker.runs] == [0.0, 1.5]
    assert run.statuses == ["failed"]
    assert run.outcomes[0].may_have_run


@given(st.floats(0.1, 20))
def test_no_attempt_starts_after_the_deadline(seconds: float) -> None:
    """The call ends with its last failure instead of waiting for the deadline."""
    worker = Worker(fail_first(99), declared_policy=ToolPolicy(deadline=seconds))
    run = run_loop(worker, [retry(30), Deadline()], [work()])
    assert all(attempt.at < seconds for attempt in worker.runs)
    assert run.statuses == ["failed"]
    assert run.seconds < seconds


def test_the_deadline_of_the_layer_applies_to_tools_that_declare_none() -> None:
    """It may be shorter than a second, and one that a tool declares takes precedence."""
    layer = Retry(RetryPolicy(30, initial_wait=0.25), jitter=lambda: 1.0, deadline=0.8)
    patient = Worker(fail_first(99), tool_name="patient", declared_policy=ToolPolicy(deadline=2.0))
    worker = Worker(fail_first(99))
    run_loop([worker, patient], [layer], [work(), work(name="patient")])
    assert [attempt.at for attempt in worker.runs] == [0.0, 0.25, 0.75]
    assert [attempt.at for attempt in patient.runs] == [0.0, 0.25, 0.75, 1.75]
    with pytest.raises(ValueError, match="'deadline' must be > 0"):
        Retry(deadline=0)


def test_a_retry_that_is_refused_leaves_the_failure_as_the_outcome() -> None:
    """The error has the failure of the call and the reason why it was not retried."""
    worker = Worker(fail_first(99))
    run = run_loop(worker, [retry(5), CircuitBreaker(CircuitPolicy(2, 60))], [work()])
    assert len(worker.runs) == 2
    assert run.statuses == ["failed"]
    message = run.outcomes[0].error_message
    assert message.startswith("attempt 2 of")
    assert "not tried again" in message


def test_a_policy_of_one_attempt_needs_no_wait() -> None:
    """The failure is the outcome, and nobody is asked how long to wait."""

    def jitter() -> float:
        raise AssertionError

    run = run_loop(Worker(fail_first(1)), [Retry(RetryPolicy(1), jitter=jitter)], [work(7)])
    assert run.statuses == ["failed"]
    assert run.outcomes[0].error_message == "attempt 1 of " + run.outcomes[0].key
