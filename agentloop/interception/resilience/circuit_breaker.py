"""Leaving a tool alone that keeps failing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from attrs import field, frozen

from agentloop.contracts.can_keep_state import CanKeepState, Change, Shelf
from agentloop.events.resilience_events import (
    CircuitClosed,
    CircuitHalfOpened,
    CircuitOpened,
    ToolCallShortCircuited,
)
from agentloop.interception.resilience.circuit import Circuit, CircuitStatus
from agentloop.interception.resilience.layer import CIRCUIT, ResilienceLayer
from agentloop.interception.resilience.memory_store import MemoryStore
from agentloop.values.call_policy import CircuitPolicy
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.tool_execution import ToolExecution, ToolStatus

_CIRCUITS = Shelf("circuits")
_NEW = Circuit()
_QUIET_SECONDS = 3600.0
_SUCCEEDED: Mapping[ToolStatus, bool] = {
    ToolStatus.SUCCEEDED: True,
    ToolStatus.FAILED: False,
    ToolStatus.TIMED_OUT: False,
}

_Changed: TypeAlias = tuple[Circuit, Circuit]


@frozen
class CircuitBreaker(ResilienceLayer):
    """Refuses calls of a tool, or of a dependency that several tools share, after it has failed some times in a row.

    After a while a bounded number of probes is let through: if all succeed calls run again, if one fails they are refused
    for another while. An attempt that failed or timed out is a failure; one that was cancelled or refused says nothing.
    A circuit that nobody has used for an hour longer than it stays open is forgotten.

    Attributes:
        policy: the policy of tools that declare none; None for no circuit.
        store: where the circuits are.
        priority: where it stands among the interceptors.
    """

    policy: CircuitPolicy | None = None
    store: CanKeepState = field(factory=MemoryStore, kw_only=True, repr=False)
    priority: int = field(default=CIRCUIT, kw_only=True)

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Refuse, or let through and note what comes of it."""
        policy = point.policy.circuit or self.policy
        if policy is None:
            return await proceed()
        name = policy.dependency or f"tool {point.call.name}"
        now = self._clock.monotonic()
        before, after = await self._change(name, policy, lambda circuit: circuit.with_admitted(policy, now))
        if not before.admits(policy, now):
            delay = before.wait(policy, now)
            await self._tell(ToolCallShortCircuited, point, name, delay)
            return _refusal(point, name, delay)
        succeeded: bool | None = None
        try:
            if after.status is not before.status:
                await self._tell(CircuitHalfOpened, point, name)
            execution = await proceed()
            succeeded = _SUCCEEDED.get(execution.status)
        finally:
            before, after = await self._change(name, policy, self._verdict(policy, after.period, succeeded))
        if after.status is not before.status:
            opened = after.status is CircuitStatus.OPEN
            await (
                self._tell(CircuitOpened, point, name, policy.seconds)
                if opened
                else self._tell(CircuitClosed, point, name)
            )
        return execution

    def _verdict(self, policy: CircuitPolicy, period: int, succeeded: bool | None) -> Callable[[Circuit], Circuit]:  # noqa: FBT001  # three-valued
        if succeeded is None:
            return lambda circuit: circuit.with_return(period)
        if succeeded:
            return lambda circuit: circuit.with_success(policy, period)
        now = self._clock.monotonic()
        return lambda circuit: circuit.with_failure(policy, period, now)

    async def _change(self, name: str, policy: CircuitPolicy, change: Callable[[Circuit], Circuit]) -> _Changed:
        """Change a circuit; return it as it was before and after."""
        now = self._clock.monotonic()

        def changed(kept: Circuit | None) -> Change[Circuit, _Changed]:
            before = kept or _NEW
            after = change(before)
            return Change(after, now + policy.seconds + _QUIET_SECONDS, (before, after))

        return await self.store.update(_CIRCUITS, name, now, changed)


def _refusal(point: AroundToolUse, circuit: str, delay: float) -> ToolExecution:
    when = (
        f"call it again in {delay:.1f} seconds or later" if delay else "it is being tried just now; call it again later"
    )
    return point.fail(
        f"the tool {point.call.name!r} was not run, because its last calls failed ({circuit}): {when}, or do without it",
        type="CircuitOpen",
        status=ToolStatus.BLOCKED,
    )
