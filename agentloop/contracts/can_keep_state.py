"""The contract of stores for the state that interceptors keep between calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from attrs import frozen

from agentloop.values.value import Value

S = TypeVar("S", bound=Value)
R = TypeVar("R")


@frozen(eq=False, repr=False)
class Namespace(Value):
    """A part of a store for states of one kind.

    Attributes:
        name: the name; users of a store that use the same name share the states.
        max_entries: the maximum number of states; one more evicts the least recently used state. None for no limit.
    """

    name: str
    max_entries: int | None = None


@frozen(eq=False, repr=False)
class Update(Value, Generic[S, R]):
    """A state after a transition, and what the caller of the transition gets.

    Attributes:
        state: the new state; None to delete it.
        expires_at: when the state expires, in seconds of the clock that `now` was read from.
        result: what `CanKeepState.update` returns.
    """

    state: S | None
    expires_at: float
    result: R


Transition: TypeAlias = Callable[[S | None], Update[S, R]]
"""A pure function from the stored state, or None, to its update."""


class CanKeepState(ABC):
    """Stores small immutable states by name, such as the level of a token bucket, for one execution or for many.

    An implementer keeps these laws:

    - Updates of one state are serialized: each transition receives what the previous one returned.
    - A state that has expired is never passed to a transition.
    - Before it expires, a state is deleted only when its namespace is full, and then the least recently used one.
    """

    @property
    def is_shared(self) -> bool:
        """Whether other processes, or later ones, may read the states; by default true.

        The times of shared states are seconds since 1970, which mean the same everywhere. The times of other states are seconds of
        a monotonic clock. That clock never jumps, but starts anew on each machine and after each reboot.
        """
        return True

    @abstractmethod
    async def update(self, namespace: Namespace, key: str, now: float, transition: Transition[S, R]) -> R:
        """Replace one state by what the transition returns.

        A store that other processes write to may call the transition more than once.

        Args:
            namespace: the part of the store.
            key: the name of the state in the namespace.
            now: the current time, in seconds of the loop's clock: since 1970 if the store is shared, else monotonic.
            transition: returns the new state for the old one.

        Returns:
            The result of the transition that took effect.
        """
