"""Limits on the time of a call and of each of its attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from attrs import field, frozen
from attrs.validators import gt, optional

from agentloop.contracts.can_tell_controls import Control
from agentloop.events.resilience import ToolAttemptTimedOut, ToolCallDeadlineExceeded
from agentloop.policies.resilience.layer import ATTEMPT_PRIORITY, DEADLINE_PRIORITY, ResilienceLayer
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.policies import CallPolicy
from agentloop.values.tool_calls import ToolExecution, ToolSpec, ToolStatus


@frozen
class Deadline(ResilienceLayer):
    """Cancels a call at its deadline, including the waits and attempts inside it.

    The call ends as timed out; unless its tool is pure or had not started, it may have had an effect.

    Attributes:
        seconds: the deadline of calls whose tool declares none, in seconds from the start of the call; None for no deadline.
        priority: the position among other interceptors.
    """

    seconds: float | None = field(default=None, validator=optional(gt(0)))
    priority: int = field(default=DEADLINE_PRIORITY, kw_only=True)
    writes = ("outcome",)  # type: tuple[str, ...]  # an annotation would be a field

    @property
    def allows_eager_start(self) -> bool:
        """Whether it has no time of its own, which would begin after the tool."""
        return self.seconds is None

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # the tool alone counts
        """Return the deadline of a call."""
        seconds = policy.deadline or self.seconds
        return [] if seconds is None else [Control("limits", f"{seconds:g} seconds for a call", of="time")]

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Cancel the call at its deadline."""
        seconds = point.policy.deadline or self.seconds
        if seconds is None:
            return await proceed()
        execution = await _run_within(seconds, proceed)
        if execution is not None:
            return execution
        self._report_end(ToolCallDeadlineExceeded, point, seconds)
        return _timed_out(
            point, f"the call of {point.call.name!r} did not end within its deadline of {seconds:g} seconds"
        )


@frozen
class AttemptTimeout(ResilienceLayer):
    """Cancels an attempt that takes too long, and reports attempts that the executor has cancelled.

    The executor, which is inside this layer, enforces the `timeout` that a tool declares: the shorter one takes effect.

    Attributes:
        seconds: the maximum duration of one attempt of any tool in seconds; None to enforce only what the tools declare.
        priority: the position among other interceptors.
    """

    seconds: float | None = field(default=None, validator=optional(gt(0)))
    priority: int = field(default=ATTEMPT_PRIORITY, kw_only=True)
    writes = ("outcome",)  # type: tuple[str, ...]  # an annotation would be a field

    @property
    def allows_eager_start(self) -> bool:
        """Whether it has no time of its own, which would begin after the tool."""
        return self.seconds is None

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # the tool alone counts
        """Return the maximum time of an attempt."""
        return (
            [] if self.seconds is None else [Control("limits", f"{self.seconds:g} seconds for an attempt", of="time")]
        )

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Cancel the attempt when its time is up."""
        execution = await (proceed() if self.seconds is None else _run_within(self.seconds, proceed))
        if execution is None:
            execution = _timed_out(point, f"the tool {point.call.name!r} did not end within {self.seconds:g} seconds")
        # Attempts that the executor has cancelled are reported here as well: it knows calls, but no attempts.
        if execution.status is ToolStatus.TIMED_OUT:
            self._report_end(ToolAttemptTimedOut, point)
        return execution


async def _run_within(seconds: float, proceed: ProceedToolUse) -> ToolExecution | None:
    """Return what `proceed()` returns; None when it was cancelled after so many seconds."""
    try:
        async with asyncio.timeout(seconds) as timeout:
            return await proceed()
    except TimeoutError:
        # A timeout inside the operation is its own error.
        if not timeout.expired():
            raise
        return None


def _timed_out(point: AroundToolUse, message: str) -> ToolExecution:
    return point.fail(message, type="ToolTimedOut", status=ToolStatus.TIMED_OUT)
