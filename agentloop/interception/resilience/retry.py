"""Another attempt for calls that failed."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from attrs import evolve, field, frozen
from attrs.validators import gt, optional

from agentloop.events.resilience_events import ToolCallRetried
from agentloop.interception.resilience.attempts import Repetition, repeated
from agentloop.interception.resilience.layer import RETRY, ResilienceLayer, may_repeat
from agentloop.values.call_policy import RetryPolicy
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.tool_execution import ToolExecution, ToolStatus

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
        if policy is None or policy.attempts == 1:
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
            backoff = policy.first_wait * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS)
            return min(backoff, policy.longest_wait) * (0.5 + self.jitter() / 2)

        def in_time(delay: float) -> bool:
            return deadline is None or self._clock.monotonic() - began + delay < deadline

        async def report(attempt: int, failed: ToolExecution, delay: float) -> None:
            await self._tell(ToolCallRetried, point, attempt, failed.error, delay)

        return Repetition(policy.attempts, partial(_again, policy), wait, in_time, report)


def _again(policy: RetryPolicy, execution: ToolExecution) -> bool:
    if execution.status not in _WORTH_ANOTHER or execution.error is None:
        return False
    return policy.speaks_of(execution.error.type)


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
