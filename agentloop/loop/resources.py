"""What a loop holds open while it is entered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from functools import partial
from weakref import WeakKeyDictionary

from agentloop.contracts.execution_scope import Resources
from agentloop.contracts.tool import CanDiscoverTools, ToolGroup
from agentloop.contracts.tools import Tools


class OpenResources:
    """The resources of a loop, one set for each event loop in which it is entered; shared by all its changed copies."""

    __slots__ = ("_depths", "_resources")

    def __init__(self) -> None:
        self._resources: WeakKeyDictionary[asyncio.AbstractEventLoop, Resources] = WeakKeyDictionary()
        self._depths: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()

    def enter(self) -> Resources:
        """Hold resources open in the running event loop; return them."""
        running = asyncio.get_running_loop()
        self._depths[running] = self._depths.get(running, 0) + 1
        if running not in self._resources:
            self._resources[running] = Resources()
        return self._resources[running]

    async def leave(self) -> None:
        """Close them when as often left as entered."""
        running = asyncio.get_running_loop()
        self._depths[running] = self._depths.get(running, 0) - 1
        if self._depths[running] <= 0:
            await self.close()

    async def close(self) -> None:
        """Close what is held open in the running event loop."""
        running = asyncio.get_running_loop()
        self._depths.pop(running, None)
        resources = self._resources.pop(running, None)
        if resources is not None:
            await resources.aclose()

    def resources(self) -> Resources | None:
        """Return what is held open in the running event loop; None when the loop is not entered there."""
        return self._resources.get(asyncio.get_running_loop())


async def hold_groups(groups: Iterable[ToolGroup], resources: Resources) -> None:
    """Hold groups in their order until the resources are closed, which releases them in reverse order; each once.

    Raises:
        asyncio.CancelledError: when cancelled meanwhile; what is held then is released with the resources.
    """
    for group in groups:
        key = (ToolGroup, id(group))
        if resources.holds(key):
            continue
        await group.hold()
        if resources.holds(key):  # another task was quicker
            await group.release()
        else:
            resources.open(key, partial(_itself, group), _release)


def must_discover(tools: Tools) -> bool:
    """Say whether some of the tools are known only when their group is held."""
    return any(isinstance(group, CanDiscoverTools) for group in tools.groups)


async def discovered(tools: Tools) -> Tools:
    """Ask the groups that discover their tools, all at once; return the set with what they found.

    Raises:
        asyncio.CancelledError: when cancelled meanwhile.
    """
    asked = [group for group in tools.groups if isinstance(group, CanDiscoverTools)]
    found = await asyncio.gather(*[group.discover() for group in asked])
    return tools.with_discovered(zip(asked, found, strict=True))


def _itself(group: ToolGroup) -> ToolGroup:
    return group


def _release(group: ToolGroup) -> Awaitable[None]:
    return group.release()
