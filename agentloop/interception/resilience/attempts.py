"""Trying a tool again: the one file of this room that knows tenacity, which is loaded with the first failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from attrs import frozen

T = TypeVar("T")


@frozen
class Repetition(Generic[T]):
    """When and how often an attempt is repeated.

    Attributes:
        attempts: how often to try, the first attempt included.
        again: says whether what came of an attempt is worth another one.
        wait: the seconds to wait after the attempt of this number, from 1.
        in_time: says whether another attempt may still begin after this many seconds.
        report: told before each wait: the number of the attempt, what came of it, and the seconds.
    """

    attempts: int
    again: Callable[[T], bool]
    wait: Callable[[int], float]
    in_time: Callable[[float], bool]
    report: Callable[[int, T, float], Awaitable[None]]


async def repeated(first: T, attempt: Callable[[], Awaitable[T]], repetition: Repetition[T]) -> T:
    """Go on trying after a first attempt that failed.

    Args:
        first: what came of the first attempt.
        attempt: makes another attempt.
        repetition: when and how often.

    Returns:
        What came of the last attempt.
    """
    import tenacity

    outcomes = [first]

    async def next_attempt() -> T:
        return outcomes.pop() if outcomes else await attempt()

    def result(state: tenacity.RetryCallState) -> T:
        assert state.outcome is not None  # noqa: S101  # an attempt has been made wherever this is called
        outcome: T = state.outcome.result()
        return outcome

    async def tell(state: tenacity.RetryCallState) -> None:
        await repetition.report(state.attempt_number, result(state), state.upcoming_sleep)

    retrying = tenacity.AsyncRetrying(
        sleep=asyncio.sleep,
        wait=lambda state: repetition.wait(state.attempt_number),
        stop=lambda state: state.attempt_number >= repetition.attempts or not repetition.in_time(state.upcoming_sleep),
        retry=tenacity.retry_if_result(repetition.again),
        before_sleep=tell,
        retry_error_callback=result,
    )
    return await retrying(next_attempt)
