"""Calls as they are compared, and what says which are the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import TypeAlias

from attrs import frozen

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
