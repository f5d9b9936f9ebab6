"""The contract of stores for what interceptors remember between calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from attrs import frozen

from agentloop.values.value import Value

S = TypeVar("S", bound=Value)
A = TypeVar("A")


@frozen(eq=False, repr=False)
class Namespace(Value):
    """A place in a store for states of one kind.

    Attributes:
        name: the name of the place; the same name is the same place for everyone who shares the store.
        most: how many states it holds, the one not used for longest going first; None for no bound.
    """

    name: str
    most: int | None = None


@frozen(eq=False, repr=False)
class Update(Value, Generic[S, A]):
    """What is to become of a state.

    Attributes:
        state: the state to keep; None for none.
        until: the moment up to which it is kept, in seconds of the clock that `now` was read from.
        answer: what `update` returns.
    """

    state: S | None
    until: float
    answer: A


Transition: TypeAlias = Callable[[S | None], Update[S, A]]
"""A pure function from the state that is kept, or None, to what becomes of it."""


class CanKeepState(ABC):
    """Keeps small immutable states by name, such as the tokens of a bucket, for one execution or for many.

    An implementer keeps these laws:

    - One update of a state at a time: what an update is given is what the last one before it left.
    - A state is not given out at or after the moment up to which it is kept.
    - Before that it is forgotten only when its shelf is full.
    """

    @abstractmethod
    async def update(self, shelf: Namespace, key: str, now: float, transition: Transition[S, A]) -> A:
        """Replace one state by what the transition makes of it.

        A store that others write to as well may call the transition more than once.

        Args:
            shelf: where the state is.
            key: which one it is.
            now: the present moment, in seconds of the loop's clock.
            transition: makes the new state of the old one.

        Returns:
            The answer of the transition that took effect.
        """
