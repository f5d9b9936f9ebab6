"""What the layers around a tool have in common."""

from __future__ import annotations

from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptLifecycle
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.events.resilience_events import ToolCallDecided
from agentloop.interception.interceptor import Interceptor
from agentloop.values.clock import Clock, SystemClock
from agentloop.values.points import AroundToolUse
from agentloop.values.tool_executions import key_place
from agentloop.values.tool_spec import Effect

DEDUPLICATE, CACHE, DEADLINE, RETRY, CIRCUIT, RATE_LIMIT, ATTEMPT = range(-1000, -1700, -100)
"""The priorities of the layers: used one by one, they stand in the same order as in `Resilience`, and inside of all else."""


@frozen
class ResilienceLayer(Interceptor, CanAcceptExecutionScope, CanAcceptLifecycle):
    """A layer around a tool that takes its time from the loop's clock and tells what it decides."""

    _clock: Clock = field(factory=SystemClock, repr=False, eq=False, kw_only=True)
    _events: CanHandleEvents | None = field(default=None, repr=False, eq=False, kw_only=True)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that takes the time from the clock of the loop."""
        return evolve(self, clock=scope.clock)

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:  # noqa: ARG002  # it asks no other interceptor
        """Return a copy that tells what it decides to this bus."""
        return evolve(self, events=events)

    async def _tell(self, kind: type[ToolCallDecided], point: AroundToolUse, *details: object) -> None:
        if self._events is None or not self._events.due(kind):
            return
        place = key_place(point.key)
        head = self._events.head(point.state, step_number=place[0] if place is not None else None)
        build: Any = kind
        await self._events.emit(build(head, point.key, point.call.name, *details))


def may_repeat(point: AroundToolUse) -> bool:
    """Say whether running the tool another time, or not at all, is as good as running it once."""
    return point.tool.effect is not Effect.EFFECT
