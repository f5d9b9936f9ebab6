"""Which calls are the same call, and for how long."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable

from attrs import field, frozen
from attrs.validators import ge

from agentloop.interception.resilience.call_identity import canonical
from agentloop.values.call_policy import DeduplicatePolicy
from agentloop.values.deduplicator import Deduplicator, SeenCall, Similarity


@frozen
class ExactCalls(Deduplicator):
    """The same tool with the same arguments, in whatever order and spelling."""

    def group(self, call: SeenCall) -> Hashable:
        """Group by tool, caller and arguments."""
        return call.name, call.caller, canonical(call.arguments)

    def same(self, call: SeenCall, earlier: SeenCall) -> bool:
        """All calls of a group are the same."""
        del call, earlier
        return True


@frozen
class SimilarCalls(Deduplicator):
    """What a function of your own takes for the same.

    Attributes:
        similar: the function.
    """

    similar: Similarity

    def group(self, call: SeenCall) -> Hashable:
        """Group by tool and caller."""
        return call.name, call.caller

    def same(self, call: SeenCall, earlier: SeenCall) -> bool:
        """Ask the function."""
        return self.similar(call, earlier)


@frozen
class _Narrowed(Deduplicator):
    """Another deduplicator under a further condition.

    Attributes:
        of: says which calls are the same.
    """

    of: Deduplicator = field(factory=ExactCalls, kw_only=True)

    def group(self, call: SeenCall) -> Hashable:
        """Group as the other one does."""
        return self.of.group(call)

    def same(self, call: SeenCall, earlier: SeenCall) -> bool:
        """Ask for the condition, then the other one."""
        return self._near(call, earlier) and self.of.same(call, earlier)

    @abstractmethod
    def _near(self, call: SeenCall, earlier: SeenCall) -> bool:
        """Say whether the calls are near enough to each other."""


@frozen
class InFlight(_Narrowed):
    """Calls that are under way at the same time: they run once."""

    @property
    def remembers(self) -> bool:
        """No: what has ended is over."""
        return False

    def _near(self, call: SeenCall, earlier: SeenCall) -> bool:
        del call
        return earlier.ended is None


@frozen
class WithinSeconds(_Narrowed):
    """Calls of which one comes while the other is under way, or at most this long after it ended.

    Attributes:
        seconds: how long.
    """

    seconds: float = field(validator=ge(0))

    def _near(self, call: SeenCall, earlier: SeenCall) -> bool:
        return earlier.ended is None or call.began - earlier.ended <= self.seconds


@frozen
class WithinSteps(_Narrowed):
    """Calls of one execution that are at most this many steps apart; 0 for those of one message.

    Attributes:
        steps: how many.
    """

    steps: int = field(validator=ge(0))

    def _near(self, call: SeenCall, earlier: SeenCall) -> bool:
        return call.execution_id == earlier.execution_id and call.step - earlier.step <= self.steps


def deduplicator_of(policy: DeduplicatePolicy) -> Deduplicator:
    """Return what says which calls are the same, as a policy asks for."""
    by = ExactCalls() if policy.by is None else policy.by
    found = by if isinstance(by, Deduplicator) else SimilarCalls(by)
    if policy.seconds is not None:
        found = WithinSeconds(policy.seconds, of=found)
    if policy.steps is not None:
        found = WithinSteps(policy.steps, of=found)
    return InFlight() if policy.by is None and policy.seconds is None and policy.steps is None else found
