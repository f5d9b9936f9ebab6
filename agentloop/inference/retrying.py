"""Trying again: the one file that knows tenacity, which is loaded with the first failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from attrs import field, frozen
from attrs.validators import ge

from agentloop.contracts.can_infer import FailedAttempt, RetryReport
from agentloop.errors import InferenceError
from agentloop.values.value import Value

if TYPE_CHECKING:
    from tenacity import RetryCallState


T = TypeVar("T")

_MOST_DOUBLINGS = 64


@frozen(eq=False, repr=False, kw_only=True)
class Patience(Value):
    """How often and how long to try.

    Attributes:
        attempts: how often to try; 1 for no retry.
        first_wait: seconds before the second attempt; doubled with each further one.
        longest_wait: the most seconds to wait before an attempt. A provider that asks for more is not asked again.
    """

    attempts: int = field(default=3, validator=ge(1))
    first_wait: float = field(default=0.5, validator=ge(0))
    longest_wait: float = field(default=60.0, validator=ge(0))


def worth_retrying(error: BaseException, patience: Patience) -> bool:
    """Say whether the same request may succeed when it is sent again, after a wait that is not too long."""
    if not isinstance(error, InferenceError) or not error.retryable or patience.attempts == 1:
        return False
    return error.retry_after is None or error.retry_after <= patience.longest_wait


async def retried(
    first_error: InferenceError,
    attempt: Callable[[], Awaitable[T]],
    patience: Patience,
    *,
    jitter: Callable[[], float],
    report: RetryReport,
) -> T:
    """Go on trying after a first attempt that failed.

    Args:
        first_error: why the first attempt failed.
        attempt: makes another attempt.
        patience: how often and how long.
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
        backoff = min(patience.first_wait * 2**doublings, patience.longest_wait)
        return asked if asked is not None else backoff * (0.5 + jitter() / 2)

    def tell(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, Exception):
            report(FailedAttempt(state.attempt_number, error, state.upcoming_sleep))

    retrying = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(patience.attempts),
        wait=wait,
        retry=tenacity.retry_if_exception(lambda error: worth_retrying(error, patience)),
        before_sleep=tell,
        reraise=True,
    )
    return await retrying(next_attempt)
