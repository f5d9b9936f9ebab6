"""Another attempt for calls that failed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.contracts import ToolPolicy
from agentloop.events.resilience import ToolCallRetried
from agentloop.interception.resilience import CircuitBreaker, Deadline, Retry
from agentloop.values import CircuitPolicy, Effect, RetryPolicy
from tests.interception.resilience.at_work import Run, Worker, failing, seen, use


def retry(*args: Any, jitter: float = 1.0, **options: Any) -> Retry:
    return Retry(RetryPolicy(*args), jitter=lambda: jitter, **options)


def test_a_call_that_fails_is_tried_again_until_it_succeeds() -> None:
    """Waits double, each repetition is told with its reason, and the outcome is the success."""
    tool = Worker(failing(2))
    run = seen(tool, [retry(5)], [use(7)])
    assert [one.at for one in tool.runs] == [0.0, 0.5, 1.5]
    assert run.outcomes[0].value == 7
    told = run.told(ToolCallRetried)
    assert [(one.attempt, one.delay, one.error.type) for one in told] == [
        (1, 0.5, "ConnectionError"),
        (2, 1.0, "ConnectionError"),
    ]
    assert told[0].key == run.outcomes[0].key
    assert told[0].step_number == 1


@given(st.integers(1, 6), st.floats(0.01, 2), st.floats(0.01, 5), st.floats(0, 1))
def test_waits_grow_up_to_a_limit_and_are_spread_by_half(
    attempts: int, first: float, longest: float, jitter: float
) -> None:
    """The n-th wait is between half and all of first * 2**n, never beyond the longest; the last failure is the outcome."""
    tool = Worker(failing(99))
    layer = Retry(RetryPolicy(attempts, initial_wait=first, max_wait=longest), jitter=lambda: jitter)
    run = seen(tool, [layer], [use()])
    times = [one.at for one in tool.runs]
    assert len(times) == attempts
    for n, (before, after) in enumerate(pairwise(times)):
        full = min(first * 2**n, longest)
        assert after - before == pytest.approx(full * (0.5 + jitter / 2))
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
def test_an_effect_is_repeated_only_when_told(
    effect: Effect, policy: RetryPolicy | None, layer: Retry, runs: int
) -> None:
    """The tool's own declaration counts first; the layer's own policy speaks of effects only when it says so."""
    tool = Worker(failing(99), kind=effect, wants=ToolPolicy(retry=policy))
    seen(tool, [layer], [use()])
    assert len(tool.runs) == runs


class FlakyNetwork(ConnectionError):
    """A subclass."""


@pytest.mark.parametrize(
    ("error", "policy", "runs"),
    [
        (FlakyNetwork("down"), RetryPolicy(3, on=ConnectionError), 3),
        (FlakyNetwork("down"), RetryPolicy(3, on="FlakyNetwork"), 3),
        (FlakyNetwork("down"), RetryPolicy(3, on="ConnectionError"), 1),
        (FlakyNetwork("down"), RetryPolicy(3, not_on=[OSError]), 1),
        (RuntimeError("odd"), RetryPolicy(3, on=[ConnectionError]), 1),
        (RuntimeError("odd"), RetryPolicy(3), 3),
        (KeyError("no such order"), RetryPolicy(3), 1),
        (KeyError("no such order"), RetryPolicy(3, not_on=()), 3),
    ],
)
def test_errors_are_told_apart_by_their_class(error: Exception, policy: RetryPolicy, runs: int) -> None:
    """A class stands for its subclasses, a name for itself; wrong arguments and bugs are not tried again."""

    def does(_: Run) -> None:
        raise error

    tool = Worker(does)
    seen(tool, [Retry(policy)], [use()])
    assert len(tool.runs) == runs


def test_a_timeout_is_tried_again_and_its_doubt_is_kept() -> None:
    """An idempotent call that timed out and then failed may have run, whatever the last attempt says."""
    wants = ToolPolicy(timeout=1)
    tool = Worker(failing(9), lambda run: 5.0 if run.attempt == 1 else 0.0, kind=Effect.IDEMPOTENT, wants=wants)
    run = seen(tool, [retry(2)], [use()])
    assert [one.at for one in tool.runs] == [0.0, 1.5]
    assert run.statuses == ["failed"]
    assert run.outcomes[0].may_have_run


@given(st.floats(0.1, 20))
def test_no_attempt_begins_after_the_deadline(seconds: float) -> None:
    """The last failure is told instead of waiting in vain for the deadline."""
    tool = Worker(failing(99), wants=ToolPolicy(deadline=seconds))
    run = seen(tool, [retry(30), Deadline()], [use()])
    assert all(one.at < seconds for one in tool.runs)
    assert run.statuses == ["failed"]
    assert run.seconds < seconds


def test_a_repetition_that_is_refused_leaves_the_failure_standing() -> None:
    """The model is told why the call failed and why it was not tried again, not that it never ran."""
    tool = Worker(failing(99))
    run = seen(tool, [retry(5), CircuitBreaker(CircuitPolicy(2, 60))], [use()])
    assert len(tool.runs) == 2
    assert run.statuses == ["failed"]
    message = run.outcomes[0].error_message
    assert message.startswith("attempt 2 of")
    assert "not tried again" in message
