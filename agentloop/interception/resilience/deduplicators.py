"""Which calls are the same call, and for how long."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import TypeAlias

from attrs import field, frozen
from attrs.validators import ge

from agentloop.interception.resilience.call_identity import canonical
from agentloop.values.json_value import JsonObject
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class SeenCall(Value):
    """A call as a deduplicator sees it.

    Attributes:
        name: the name of the tool.
        arguments: its arguments.
        caller: whom it is made for.
        execution_id: the execution that it belongs to.
        step: the step of the execution.
        began: when it came, in seconds of the loop's clock.
        ended: when it ended; None for a call that is under way.
    """

    name: str
    arguments: JsonObject
    caller: str
    execution_id: str
    step: int
    began: float
    ended: float | None = None


Similarity: TypeAlias = Callable[[SeenCall, SeenCall], bool]
"""Says whether a call asks for the same as an earlier one; both are of the same tool and caller."""


class Deduplicator(ABC):
    """Says which calls are the same call. It keeps nothing: the calls themselves are kept by `Deduplicate`.

    An implementer keeps these laws:

    - Calls of different tools or callers are in different groups.
    - The same two calls always get the same answer.
    """

    @property
    def remembers(self) -> bool:
        """Whether a call that has ended can be the same as a later one."""
        return True

    @abstractmethod
    def group(self, call: SeenCall) -> Hashable:
        """Return the group of a call; calls of different groups are never compared."""

    @abstractmethod
    def same(self, call: SeenCall, earlier: SeenCall) -> bool:
        """Say whether a call is the same as an earlier one of its group, which is under way or has succeeded."""


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
