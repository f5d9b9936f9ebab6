"""The contract of those who watch an execution that is replayed."""

from __future__ import annotations

from abc import ABC, abstractmethod

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tools import Tools
from agentloop.values.points import Point


class CanWitness(ABC):
    """Sees what each interceptor does, and keeps out what would touch the world. The log of a replay does."""

    @abstractmethod
    def admits(self, interceptor: CanIntercept) -> bool:
        """Say whether an interceptor stands in the execution."""

    @abstractmethod
    def entering(self, interceptor: str, point: str) -> None:
        """See that an interceptor is about to do its work at a point."""

    @abstractmethod
    def passed(self, interceptor: str, point: str, before: Point, after: Point) -> None:
        """See what an interceptor has made of a point."""

    @abstractmethod
    def known_tools(self, tools: Tools) -> Tools:
        """Return the tools with those that a group would have to be started for to know."""
