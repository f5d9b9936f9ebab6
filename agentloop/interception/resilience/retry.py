"""Another attempt for calls that failed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

from attrs import evolve, field, frozen
from attrs.validators import gt, optional

from agentloop.events.resilience import ToolCallRetried
from agentloop.interception.resilience.layer import RETRY, ResilienceLayer, may_repeat
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.policies import RetryPolicy
from agentloop.values.tool_calls import ToolExecution, ToolStatus

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


_WORTH_ANOTHER = frozenset({ToolStatus.FAILED, ToolStatus.TIMED_OUT})
_MOST_DOUBLINGS = 64


@frozen
class Retry(ResilienceLayer):
    """Tries a call again that failed or timed out, after waits that double and are spread by chance.

    Of tools that declare no retries, only pure and idempotent ones are tried again. A call that was blocked, rejected or
    cancelled is not. No attempt begins after the deadline, and none is waited for that would.

    Attributes:
        policy: for tools that declare none; None for no retries.
        effects: whether `policy` speaks of tools with an effect too, which may then take place more than once.
        deadline: the seconds from the first attempt after which no other begins, for tools that declare no deadline.
        jitter: a number from 0 to 1 for each wait, which is then between half and all of what the policy says, so that calls
            that failed together do not come back together.
        priority: where it stands among the interceptors.
    """

    policy: RetryPolicy | None = field(factory=RetryPolicy)
    effects: bool = field(default=False, kw_only=True)
    deadline: float | None = field(default=None, validator=optional(gt(0)), kw_only=True)
    jitter: Callable[[], float] = field(default=random.random, kw_only=True, repr=False)
    priority: int = field(default=RETRY, kw_only=True)

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Make the attempts."""
        policy = self._policy(point)
        if policy is None or policy.max_attempts == 1:
            return await proceed()
        began = self._clock.monotonic()
        first = await proceed()
        if not _again(policy, first):
            return first
        made = [first]

        async def attempt() -> ToolExecution:
            made.append(await proceed())
            return made[-1]

        await repeated(first, attempt, self._repetition(policy, point, began))
        return _account(made)

    def _policy(self, point: AroundToolUse) -> RetryPolicy | None:
        if point.policy.retry is not None:
            return point.policy.retry
        return self.policy if self.effects or may_repeat(point) else None

    def _repetition(self, policy: RetryPolicy, point: AroundToolUse, began: float) -> Repetition[ToolExecution]:
        deadline = point.policy.deadline or self.deadline

        def wait(attempt: int) -> float:
            backoff = policy.initial_wait * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS)
            return min(backoff, policy.max_wait) * (0.5 + self.jitter() / 2)

        def in_time(delay: float) -> bool:
            return deadline is None or self._clock.monotonic() - began + delay < deadline

        async def report(attempt: int, failed: ToolExecution, delay: float) -> None:
            await self._tell(ToolCallRetried, point, attempt, failed.error, delay)

        return Repetition(policy.max_attempts, partial(_again, policy), wait, in_time, report)


def _again(policy: RetryPolicy, execution: ToolExecution) -> bool:
    if execution.status not in _WORTH_ANOTHER or execution.error is None:
        return False
    return policy.matches(execution.error.type)


def _account(made: list[ToolExecution]) -> ToolExecution:
    """Return what came of all attempts: the last one, unless that was refused; then the last one that ran."""
    last = made[-1]
    if last.succeeded:
        return last
    refused = last.status is ToolStatus.BLOCKED
    ran = next(one for one in reversed(made) if one.status is not ToolStatus.BLOCKED)
    error = ran.error
    if refused and error is not None:
        error = evolve(error, message=f"{error.message}; not tried again: {last.error_message}")
    return evolve(ran, error=error, may_have_run=any(one.may_have_run for one in made))
