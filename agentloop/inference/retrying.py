"""Trying again: the one file that knows tenacity, which is loaded with the first failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from agentloop.contracts.can_infer import FailedAttempt, RetryReport
from agentloop.errors import InferenceError
from agentloop.values.policies import RetryPolicy

if TYPE_CHECKING:
    from tenacity import RetryCallState


T = TypeVar("T")

_MOST_DOUBLINGS = 64


def worth_retrying(error: BaseException, policy: RetryPolicy) -> bool:
    """Say whether the same request may succeed when it is sent again, after a wait that is not too long."""
    if not isinstance(error, InferenceError) or not error.retryable or policy.max_attempts == 1:
        return False
    if not policy.matches(type(error).__name__):
        return False
    return error.retry_after is None or error.retry_after <= policy.max_wait


async def retried(
    first_error: InferenceError,
    attempt: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    *,
    jitter: Callable[[], float],
    report: RetryReport,
) -> T:
    """Go on trying after a first attempt that failed.

    Args:
        first_error: why the first attempt failed.
        attempt: makes another attempt.
        policy: how often and how long.
        jitter: a number from 0 to 1 each time, so that clients that failed together do not come back together.
        report: told before each repetition.

    Raises:
        InferenceError: that of the last attempt.
    """
    import tenacity

    errors = [first_error]

    async def next_attempt() -> T:
        if errors:
            raise errors.pop()
        return await attempt()

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.retry_after if isinstance(error, InferenceError) else None
        doublings = min(state.attempt_number - 1, _MOST_DOUBLINGS)
        backoff = min(policy.initial_wait * 2**doublings, policy.max_wait)
        return asked if asked is not None else backoff * (0.5 + jitter() / 2)

    def tell(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, Exception):
            report(FailedAttempt(state.attempt_number, error, state.upcoming_sleep))

    retrying = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(policy.max_attempts),
        wait=wait,
        retry=tenacity.retry_if_exception(lambda error: worth_retrying(error, policy)),
        before_sleep=tell,
        reraise=True,
    )
    return await retrying(next_attempt)
