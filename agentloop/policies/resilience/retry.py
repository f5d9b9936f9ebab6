"""Retries of failed calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from attrs import evolve, field, frozen
from attrs.validators import gt, instance_of, optional

from agentloop.contracts.can_tell_controls import Control
from agentloop.events.resilience import ToolCallRetried
from agentloop.policies.resilience.layer import RETRY_PRIORITY, ResilienceLayer, is_repeatable
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.policies import CallPolicy, RetryPolicy
from agentloop.values.tool_calls import ToolExecution, ToolSpec, ToolStatus

if TYPE_CHECKING:
    import tenacity

_RETRYABLE = frozenset({ToolStatus.FAILED, ToolStatus.TIMED_OUT})


@frozen
class Retry(ResilienceLayer):
    """Retries a call that failed or timed out, with exponential backoff and jitter.

    If a tool declares no retries, only calls of pure and idempotent tools are retried. A call that was blocked, rejected or
    cancelled is not retried. An attempt that could only start after the deadline is not made.

    Attributes:
        policy: the policy of tools that declare none; None for no retries.
        effects: whether `policy` applies to tools with an effect too, which may then take place more than once.
        deadline: the seconds from the start of the first attempt after which no attempt starts, for tools that declare none.
        jitter: returns a number from 0 to 1 for each wait, which is then between half and all of the backoff, so that calls
            that failed together are not retried together.
        priority: the position among other interceptors.
    """

    policy: RetryPolicy | None = field(factory=RetryPolicy)
    effects: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    deadline: float | None = field(default=None, validator=optional(gt(0)), kw_only=True)
    jitter: Callable[[], float] = field(default=random.random, kw_only=True, repr=False)
    priority: int = field(default=RETRY_PRIORITY, kw_only=True)
    allows_eager_start = True  # the call that started early is the first attempt
    repeats_effects = True  # if a policy in code says so
    writes = ("outcome",)  # type: tuple[str, ...]  # an annotation would be a field

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # the tool alone counts
        """Return how failed calls of a tool are tried again."""
        found = self._policy(tool, policy)
        if found is None or found.max_attempts == 1:
            return []
        return [Control("repeats", f"up to {found.max_attempts} attempts", of="attempts", is_sure=False)]

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Make the attempts."""
        policy = self._policy(point.tool, point.policy)
        if policy is None or policy.max_attempts == 1:
            return await proceed()
        started = self._clock.monotonic()
        # Outside tenacity: calls that succeed at once, which is most of them, do not load it.
        first = await proceed()
        if not _is_retryable(policy, first):
            return first
        attempts: list[ToolExecution] = []

        async def attempt() -> ToolExecution:
            # The first attempt was made before tenacity was loaded; it is attempt 1 of tenacity's count as well.
            attempts.append(await proceed() if attempts else first)
            return attempts[-1]

        await self._retrying(policy, point, started)(attempt)
        return _combine(attempts)

    def _policy(self, tool: ToolSpec, declared: CallPolicy) -> RetryPolicy | None:
        if declared.retry is not None:
            return declared.retry
        return self.policy if self.effects or is_repeatable(tool) else None

    def _retrying(self, policy: RetryPolicy, point: AroundToolUse, started: float) -> tenacity.AsyncRetrying:
        import tenacity

        deadline = point.policy.deadline or self.deadline

        def wait(state: tenacity.RetryCallState) -> float:
            return policy.backoff(state.attempt_number, self.jitter())

        def stop(state: tenacity.RetryCallState) -> bool:
            if state.attempt_number >= policy.max_attempts:
                return True
            # An attempt that could only start after the deadline is not waited for.
            return deadline is not None and self._clock.monotonic() - started + state.upcoming_sleep >= deadline

        async def report(state: tenacity.RetryCallState) -> None:
            error = _last_execution(state).error
            await self._report(ToolCallRetried, point, state.attempt_number, error, state.upcoming_sleep)

        return tenacity.AsyncRetrying(
            sleep=asyncio.sleep,
            wait=wait,
            stop=stop,
            retry=tenacity.retry_if_result(lambda execution: _is_retryable(policy, execution)),
            before_sleep=report,
            retry_error_callback=_last_execution,
        )


def _is_retryable(policy: RetryPolicy, execution: ToolExecution) -> bool:
    if execution.status not in _RETRYABLE or execution.error is None:
        return False
    return policy.matches(execution.error.type)


def _last_execution(state: tenacity.RetryCallState) -> ToolExecution:
    assert state.outcome is not None  # noqa: S101  # tenacity calls this after an attempt
    execution: ToolExecution = state.outcome.result()
    return execution


def _combine(attempts: list[ToolExecution]) -> ToolExecution:
    """Return the outcome of all attempts: the last one, or if that was refused, the last one that ran."""
    last = attempts[-1]
    if last.succeeded:
        return last
    # A refused attempt says why there was no retry, but not why the call failed: the error has both.
    ran = next(attempt for attempt in reversed(attempts) if attempt.status is not ToolStatus.BLOCKED)
    error = ran.error
    if last.status is ToolStatus.BLOCKED and error is not None:
        error = evolve(error, message=f"{error.message}; not tried again: {last.error_message}")
    return evolve(ran, error=error, may_have_run=any(attempt.may_have_run for attempt in attempts))
