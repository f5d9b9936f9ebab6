"""Leaving a tool alone that keeps failing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeAlias

from attrs import evolve, field, frozen

from agentloop.contracts.can_keep_state import CanKeepState, Namespace, Update
from agentloop.events.resilience import CircuitClosed, CircuitHalfOpened, CircuitOpened, ToolCallShortCircuited
from agentloop.interception.resilience.layer import CIRCUIT, MemoryStore, ResilienceLayer
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.policies import CircuitPolicy
from agentloop.values.tool_calls import ToolExecution, ToolStatus
from agentloop.values.value import Value


class CircuitStatus(StrEnum):
    """Whether a circuit lets calls through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@frozen(eq=False, repr=False)
class Circuit(Value):
    """A circuit: closed it lets every call through, open none, half-open a number of probes.

    What came of a call counts only in the period in which it was let through: a straggler of an earlier one neither opens
    nor closes anything.

    Attributes:
        status: whether it lets calls through.
        failures: how many calls failed in a row while it was closed.
        opened_at: when it was last opened, in seconds.
        let_through: how many probes were let through while it was half-open.
        succeeded: how many of them succeeded.
        period: counts the changes of the status.
    """

    status: CircuitStatus = CircuitStatus.CLOSED
    failures: int = 0
    opened_at: float = 0.0
    let_through: int = 0
    succeeded: int = 0
    period: int = 0

    def wait(self, policy: CircuitPolicy, now: float) -> float:
        """Return the seconds until an open circuit lets a call through; 0 for one that does now."""
        return max(0.0, self.opened_at + policy.seconds - now) if self.status is CircuitStatus.OPEN else 0.0

    def admits(self, policy: CircuitPolicy, now: float) -> bool:
        """Say whether a call would be let through."""
        if self.status is CircuitStatus.HALF_OPEN:
            return self.let_through < policy.probes
        return self.wait(policy, now) == 0.0

    def with_admitted(self, policy: CircuitPolicy, now: float) -> Circuit:
        """Return the circuit after a call was let through; one that was refused changes nothing."""
        if self.status is CircuitStatus.CLOSED or not self.admits(policy, now):
            return self
        if self.status is CircuitStatus.HALF_OPEN:
            return evolve(self, let_through=self.let_through + 1)
        return Circuit(CircuitStatus.HALF_OPEN, opened_at=self.opened_at, let_through=1, period=self.period + 1)

    def with_success(self, policy: CircuitPolicy, period: int) -> Circuit:
        """Return the circuit after a call succeeded that was let through in this period."""
        if period != self.period:
            return self
        if self.status is CircuitStatus.CLOSED:
            return evolve(self, failures=0)
        if self.succeeded + 1 < policy.probes:
            return evolve(self, succeeded=self.succeeded + 1)
        return Circuit(period=self.period + 1)

    def with_failure(self, policy: CircuitPolicy, period: int, now: float) -> Circuit:
        """Return the circuit after a call failed that was let through in this period."""
        if period != self.period:
            return self
        if self.status is CircuitStatus.CLOSED and self.failures + 1 < policy.failures:
            return evolve(self, failures=self.failures + 1)
        return Circuit(CircuitStatus.OPEN, opened_at=now, period=self.period + 1)

    def with_return(self, period: int) -> Circuit:
        """Return the circuit after a call of this period ended in a way that says nothing, such as cancelled."""
        if period != self.period or self.status is not CircuitStatus.HALF_OPEN:
            return self
        return evolve(self, let_through=self.let_through - 1)


_CIRCUITS = Namespace("circuits")
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

        def changed(kept: Circuit | None) -> Update[Circuit, _Changed]:
            before = kept or _NEW
            after = change(before)
            return Update(after, now + policy.seconds + _QUIET_SECONDS, (before, after))

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
