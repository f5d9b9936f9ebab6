"""The contract of groups of tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import Tool


class ToolGroup(ABC):
    """Tools that are configured, started and stopped together; it stands in a list of tools like a single one.

    An implementer keeps these laws:

    - `offered` is the same for the life of the group, unless it is one that `CanDiscoverTools`; a group that is switched off
      offers nothing and costs nothing.
    - `hold` and `release` are called in pairs, by any number of executions at once and in any number of event loops: the
      first hold starts, the last release stops.
    - Neither raises when starting or stopping fails: that is reported, and calls of the group's tools fail with a
      `ToolUnavailable`, so that everything else goes on.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the group; a class attribute will do."""

    @property
    @abstractmethod
    def offered(self) -> Sequence[Tool]:
        """The tools that a model can call, in order."""

    @property
    @abstractmethod
    def interceptors(self) -> Sequence[CanIntercept]:
        """What the group does besides its tools' calls; stands in every loop that is given the group."""

    @abstractmethod
    async def hold(self) -> None:
        """Have it started in the running event loop until `release`.

        Raises:
            asyncio.CancelledError: when cancelled meanwhile; then it is not held.
        """

    @abstractmethod
    async def release(self) -> None:
        """Need it no more; stops it when nobody else holds it."""


class CanDiscoverTools(ToolGroup):
    """A group whose tools are known only while it is held, such as those of a server that has to be asked.

    An execution asks once, when it begins, and keeps what it was told until it ends. Two tools of one name are not an error
    here, since what a server offers is not in the program's hands: the one that was there first stays.

    An implementer keeps these laws besides those of `ToolGroup`:

    - `discover` is called while the group is held, by any number of executions at once.
    - It does not raise: what cannot be asked is reported, and offers what it offered last, or nothing.
    - `offered` is what was discovered last.
    """

    @abstractmethod
    async def discover(self) -> Sequence[Tool]:
        """Return the tools that a model can call from now on, in order.

        Raises:
            asyncio.CancelledError: when cancelled meanwhile.
        """
