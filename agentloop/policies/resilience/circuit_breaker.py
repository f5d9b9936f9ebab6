"""Refusal of calls to tools that keep failing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from attrs import evolve, field, frozen

from agentloop.contracts.can_keep_state import CanKeepState, Namespace, Update
from agentloop.contracts.can_tell_controls import Control
from agentloop.events.resilience import CircuitClosed, CircuitHalfOpened, CircuitOpened, ToolCallShortCircuited
from agentloop.policies.resilience.layer import CIRCUIT_PRIORITY, ResilienceLayer
from agentloop.policies.resilience.memory_store import MemoryStore
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.policies import CallPolicy, CircuitPolicy
from agentloop.values.tool_calls import ToolExecution, ToolSpec, ToolStatus
from agentloop.values.value import Value

# --- the state machine ------------------------------------------------------------------------------------------


class CircuitStatus(StrEnum):
    """Whether a circuit admits calls."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@frozen(eq=False, repr=False)
class Circuit(Value):
    """A circuit: a closed one admits every call, an open one none, a half-open one a number of probes.

    The outcome of a call counts only in the period in which the call was admitted: a late outcome of an earlier period
    neither opens nor closes the circuit.

    Attributes:
        status: whether it admits calls.
        failures: the number of consecutive failures while it was closed.
        opened_at: when it was last opened, in seconds of the loop's clock.
        admitted: the number of probes that were admitted while it was half-open.
        successes: the number of probes that succeeded.
        period: the number of changes of the status.
        probed_at: when the last probe was admitted, in seconds of the loop's clock.
    """

    status: CircuitStatus = CircuitStatus.CLOSED
    failures: int = 0
    opened_at: float = 0.0
    admitted: int = 0
    successes: int = 0
    period: int = 0
    probed_at: float = 0.0

    def wait(self, policy: CircuitPolicy, now: float) -> float:
        """Return the seconds until an open circuit admits a call; 0 for any other circuit."""
        return max(0.0, self.opened_at + policy.seconds - now) if self.status is CircuitStatus.OPEN else 0.0

    def admits(self, policy: CircuitPolicy, now: float) -> bool:
        """Return whether the circuit admits a call now."""
        if self.status is CircuitStatus.HALF_OPEN:
            return self.admitted < policy.probes or self._has_lost_probes(policy, now)
        return self.wait(policy, now) == 0.0

    def with_request(self, policy: CircuitPolicy, now: float) -> Circuit:
        """Return the circuit after a call has arrived; one that is refused changes nothing."""
        if self.status is CircuitStatus.CLOSED or not self.admits(policy, now):
            return self
        if self.status is CircuitStatus.HALF_OPEN:
            admitted = 0 if self._has_lost_probes(policy, now) else self.admitted
            return evolve(self, admitted=admitted + 1, probed_at=now)
        # An open circuit has no timer: the first call after its time makes it half-open and is the first probe.
        return Circuit(
            CircuitStatus.HALF_OPEN, opened_at=self.opened_at, admitted=1, period=self.period + 1, probed_at=now
        )

    def with_success(self, policy: CircuitPolicy, period: int) -> Circuit:
        """Return the circuit after the success of a call that was admitted in this period."""
        if period != self.period:
            return self
        if self.status is CircuitStatus.CLOSED:
            return evolve(self, failures=0)
        if self.successes + 1 < policy.probes:
            return evolve(self, successes=self.successes + 1)
        return Circuit(period=self.period + 1)

    def with_failure(self, policy: CircuitPolicy, period: int, now: float) -> Circuit:
        """Return the circuit after the failure of a call that was admitted in this period."""
        if period != self.period:
            return self
        if self.status is CircuitStatus.CLOSED and self.failures + 1 < policy.failures:
            return evolve(self, failures=self.failures + 1)
        return Circuit(CircuitStatus.OPEN, opened_at=now, period=self.period + 1)

    def with_no_verdict(self, period: int) -> Circuit:
        """Return the circuit after a call of this period ended neither as a success nor as a failure, such as cancelled."""
        if period != self.period or self.status is not CircuitStatus.HALF_OPEN:
            return self
        # Another probe takes its place, or the circuit would stay half-open forever.
        return evolve(self, admitted=max(self.admitted - 1, 0))

    def _has_lost_probes(self, policy: CircuitPolicy, now: float) -> bool:
        """Return whether no probe was admitted for so long that those without an outcome may never have one.

        Their process may have died, or their tool hangs; the circuit would stay half-open forever.
        """
        return now - self.probed_at >= policy.seconds


# --- the layer --------------------------------------------------------------------------------------------------

_CIRCUITS = Namespace("circuits")
_NEW_CIRCUIT = Circuit()
_IDLE_SECONDS = 3600.0
_IS_SUCCESS: Mapping[ToolStatus, bool] = {
    ToolStatus.SUCCEEDED: True,
    ToolStatus.FAILED: False,
    ToolStatus.TIMED_OUT: False,
}
"""Whether an outcome is a success or a failure; the others are neither."""


@frozen
class CircuitBreaker(ResilienceLayer):
    """Refuses calls of a tool, or of a dependency that several tools share, after a number of consecutive failures.

    After some time a number of probes is admitted: if all succeed, calls run again; if one fails, calls are refused for the
    same time again, and one that takes longer than that makes room for another. An attempt that failed or timed out is a
    failure; one that was cancelled or refused is neither a failure nor a success. A circuit that was not used for an hour
    longer than it stays open is deleted.

    Attributes:
        policy: the policy of tools that declare none; None for no circuit.
        store: where the circuits are stored.
        priority: the position among other interceptors.
    """

    policy: CircuitPolicy | None = None
    store: CanKeepState = field(factory=MemoryStore, kw_only=True, repr=False)
    priority: int = field(default=CIRCUIT_PRIORITY, kw_only=True)
    writes = ("outcome",)  # type: tuple[str, ...]  # an annotation would be a field

    @property
    def allows_eager_start(self) -> bool:  # a call of a tool with a circuit never starts early
        """Whether it stops only calls of tools that declare it."""
        return self.policy is None

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # the tool alone counts
        """Return after how many failures calls are refused."""
        found = policy.circuit or self.policy
        if found is None:
            return []
        return [Control("limits", f"none for {found.seconds:g} seconds after {found.failures} failures", of="failures")]

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Refuse the call, or run it and record its outcome."""
        policy = point.policy.circuit or self.policy
        if policy is None:
            return await proceed()
        # The prefix keeps a tool apart from a dependency of the same name.
        name = policy.dependency or f"tool {point.call.name}"
        now = self._time(self.store)
        before, after = await self._update(name, policy, lambda circuit: circuit.with_request(policy, now))
        if not before.admits(policy, now):
            delay = before.wait(policy, now)
            await self._report(ToolCallShortCircuited, point, name, delay)
            return _refuse(point, name, delay)
        is_success: bool | None = None
        try:
            if after.status is not before.status:
                await self._report(CircuitHalfOpened, point, name)
            execution = await proceed()
            is_success = _IS_SUCCESS.get(execution.status)
        finally:
            # Also when the call is cancelled, so that every admitted call is accounted for.
            before, after = await self._update(name, policy, self._with_outcome(policy, after.period, is_success))
        if after.status is CircuitStatus.OPEN and before.status is not CircuitStatus.OPEN:
            await self._report(CircuitOpened, point, name, policy.seconds)
        elif after.status is not before.status:
            await self._report(CircuitClosed, point, name)
        return execution

    def _with_outcome(
        self,
        policy: CircuitPolicy,
        period: int,
        is_success: bool | None,  # noqa: FBT001  # three-valued
    ) -> Callable[[Circuit], Circuit]:
        if is_success is None:
            return lambda circuit: circuit.with_no_verdict(period)
        if is_success:
            return lambda circuit: circuit.with_success(policy, period)
        now = self._time(self.store)
        return lambda circuit: circuit.with_failure(policy, period, now)

    async def _update(
        self, name: str, policy: CircuitPolicy, change: Callable[[Circuit], Circuit]
    ) -> tuple[Circuit, Circuit]:
        """Change a stored circuit; return it as it was before and after."""
        now = self._time(self.store)

        def transition(stored: Circuit | None) -> Update[Circuit, tuple[Circuit, Circuit]]:
            before = stored or _NEW_CIRCUIT
            after = change(before)
            # A circuit must not expire while it is open: a new one would be closed.
            return Update(after, now + policy.seconds + _IDLE_SECONDS, (before, after))

        return await self.store.update(_CIRCUITS, name, now, transition)


def _refuse(point: AroundToolUse, circuit: str, delay: float) -> ToolExecution:
    when = (
        f"call it again in {delay:.1f} seconds or later"
        if delay
        else "it is being tried right now; call it again later"
    )
    return point.fail(
        f"the tool {point.call.name!r} was not run, because its last calls failed ({circuit}): {when}, or do without it",
        type="CircuitOpen",
        status=ToolStatus.BLOCKED,
    )
