"""A circuit breaker as a value: the automaton, without a clock or a tool."""

from __future__ import annotations

from enum import StrEnum

from attrs import evolve, frozen

from agentloop.values.call_policy import CircuitPolicy
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
