"""A call's time in all."""

from __future__ import annotations

import asyncio

from attrs import field, frozen
from attrs.validators import gt, optional

from agentloop.events.resilience import ToolAttemptTimedOut, ToolCallDeadlineExceeded
from agentloop.interception.resilience.layer import ATTEMPT, DEADLINE, ResilienceLayer
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.tool_calls import ToolExecution, ToolStatus


@frozen
class Deadline(ResilienceLayer):
    """Cuts a call off that has taken its time, with the waits and repetitions inside of it.

    The call ends as timed out; unless its tool is pure or had not begun, an effect cannot be excluded.

    Attributes:
        seconds: the time of calls whose tool declares none; None for no end.
        priority: where it stands among the interceptors.
    """

    seconds: float | None = field(default=None, validator=optional(gt(0)))
    priority: int = field(default=DEADLINE, kw_only=True)

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Cut the call off at the end of its time."""
        seconds = point.policy.deadline or self.seconds
        if seconds is None:
            return await proceed()
        try:
            async with asyncio.timeout(seconds) as limit:
                return await proceed()
        except TimeoutError:
            if not limit.expired():
                raise
        await self._tell(ToolCallDeadlineExceeded, point, seconds)
        return point.fail(
            f"the call of {point.call.name!r} did not end within its deadline of {seconds:g} seconds",
            type="ToolTimedOut",
            status=ToolStatus.TIMED_OUT,
        )


@frozen
class AttemptTimeout(ResilienceLayer):
    """Cuts one attempt off that takes too long, and tells of those that the executor cut off.

    The `timeout` that a tool declares is kept by the executor, which stands inside of this: the shorter one counts.

    Attributes:
        seconds: the most seconds of one attempt of any tool; None for what the tools declare only.
        priority: where it stands among the interceptors.
    """

    seconds: float | None = field(default=None, validator=optional(gt(0)))
    priority: int = field(default=ATTEMPT, kw_only=True)

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Cut the attempt off when its time is up."""
        execution = await (proceed() if self.seconds is None else self._within(self.seconds, point, proceed))
        if execution.status is ToolStatus.TIMED_OUT:
            await self._tell(ToolAttemptTimedOut, point)
        return execution

    async def _within(self, seconds: float, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await proceed()
        except TimeoutError:
            if not limit.expired():
                raise
        return point.fail(
            f"the tool {point.call.name!r} did not end within {seconds:g} seconds",
            type="ToolTimedOut",
            status=ToolStatus.TIMED_OUT,
        )
