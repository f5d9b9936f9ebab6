"""A limit on time."""

from __future__ import annotations

import asyncio
from typing import Self

from attrs import evolve, field, frozen
from attrs.validators import gt

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.interception.interceptor import Interceptor
from agentloop.interception.step_limit import LIMIT_PRIORITY
from agentloop.values.agent_state import AgentState
from agentloop.values.clock import Clock, SystemClock
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.json_value import JsonObject
from agentloop.values.points import (
    AfterToolUse,
    AroundInference,
    AroundToolUse,
    BeforeStep,
    ProceedInference,
    ProceedToolUse,
)
from agentloop.values.stop import AgentStop, StopReason
from agentloop.values.tool_execution import ToolExecution, ToolStatus


@frozen
class TimeLimit(Interceptor, CanAcceptExecutionScope):
    """Stops an execution that has lasted this long, also in the middle of an inference or of a tool call.

    An inference that is cut off is not in the state; calls that are cut off end as timed out, and their siblings are
    kept.

    Attributes:
        seconds: the most seconds of one execution, from its beginning; the time it was suspended does not count.
    """

    seconds: float = field(validator=gt(0))
    priority: int = LIMIT_PRIORITY
    _clock: Clock = field(factory=SystemClock, repr=False, eq=False)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Take the time from the clock of the loop."""
        return evolve(self, clock=scope.clock)

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Stop instead of beginning a step after the end."""
        if self._left(point.state) > 0:
            return point
        return point.stop(self._why, reason=StopReason.TIME_LIMIT, context=self._context)

    async def around_inference(self, point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        """Cut the inference off at the end."""
        try:
            async with asyncio.timeout(max(self._left(point.state), 0)) as limit:
                return await proceed()
        except TimeoutError:
            if not limit.expired():
                raise
            raise AgentStop(self._why, reason=StopReason.TIME_LIMIT, context=self._context) from None

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Cut the call off at the end."""
        try:
            async with asyncio.timeout(max(self._left(point.state), 0)) as limit:
                return await proceed()
        except TimeoutError:
            if not limit.expired():
                raise
            return point.fail(self._why, type="ToolTimedOut", status=ToolStatus.TIMED_OUT)

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Stop when a call was cut off, or the end has come meanwhile."""
        if self._left(point.state) > 0:
            return point
        return point.stop(self._why, reason=StopReason.TIME_LIMIT, context=self._context)

    @property
    def _why(self) -> str:
        return f"the limit of {self.seconds:g} {'second' if self.seconds == 1 else 'seconds'} is reached"

    @property
    def _context(self) -> JsonObject:
        return JsonObject(limit=self.seconds)

    def _left(self, state: AgentState) -> float:
        execution = state.execution
        if execution is None:
            return self.seconds
        return self.seconds + execution.waited_seconds - (self._clock.now() - execution.started_at).total_seconds()
