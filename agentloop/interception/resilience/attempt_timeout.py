"""The time of one attempt."""

from __future__ import annotations

import asyncio

from attrs import field, frozen
from attrs.validators import gt, optional

from agentloop.events.resilience_events import ToolAttemptTimedOut
from agentloop.interception.resilience.layer import ATTEMPT, ResilienceLayer
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.tool_execution import ToolExecution, ToolStatus


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
