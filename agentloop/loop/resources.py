"""What a loop and its executions hold open: connections and tool groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from functools import partial
from weakref import WeakKeyDictionary

from attrs import field, frozen

from agentloop.contracts.execution_scope import Resources
from agentloop.contracts.run_log import CanAnswerCalls
from agentloop.contracts.tool import CanDiscoverTools, ToolGroup
from agentloop.contracts.tools import Tools
from agentloop.loop.inbox import Inboxes


class OpenResources:
    """The resources of a loop, one set per event loop; a loop shares them with its changed copies.

    Re-entrant: the resources are closed when the outermost `async with` exits, together with what executions have kept.
    """

    __slots__ = ("_depths", "_kept", "_resources")

    def __init__(self) -> None:
        # Weak: an event loop that was closed without leaving this loop must not be kept alive.
        self._resources: WeakKeyDictionary[asyncio.AbstractEventLoop, Resources] = WeakKeyDictionary()
        self._depths: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
        self._kept: WeakKeyDictionary[asyncio.AbstractEventLoop, Resources] = WeakKeyDictionary()

    def enter(self) -> Resources:
        """Return the resources of the running event loop, which stay open until the matching `leave`."""
        running = asyncio.get_running_loop()
        self._depths[running] = self._depths.get(running, 0) + 1
        if running not in self._resources:
            self._resources[running] = Resources()
        return self._resources[running]

    async def leave(self) -> None:
        """Undo one `enter`; the outermost one closes the resources."""
        running = asyncio.get_running_loop()
        self._depths[running] = self._depths.get(running, 0) - 1
        if self._depths[running] <= 0:
            await self.close()

    async def close(self) -> None:
        """Close the resources of the running event loop, however often it was entered."""
        running = asyncio.get_running_loop()
        self._depths.pop(running, None)
        resources = self._resources.pop(running, None)
        try:
            if resources is not None:
                await resources.aclose()
        finally:
            kept = self._kept.pop(running, None)
            if kept is not None:
                await kept.aclose()

    def kept(self) -> Resources:
        """Return the resources that executions in the running event loop keep for later ones, entered or not."""
        running = asyncio.get_running_loop()
        kept = self._kept.get(running)
        if kept is None:
            kept = self._kept[running] = Resources()
        return kept

    def current(self) -> Resources | None:
        """Return the resources of the running event loop; None if the loop is not entered there."""
        return self._resources.get(asyncio.get_running_loop())


@frozen
class SharedParts:
    """What a loop shares with its changed copies.

    Attributes:
        resources: the connections and tool groups that are open.
        inboxes: the messages for executions.
        answers: answers calls in place of the tools; None where every tool runs.
    """

    resources: OpenResources = field(factory=OpenResources)
    inboxes: Inboxes = field(factory=Inboxes)
    answers: CanAnswerCalls | None = None


async def hold_groups(groups: Iterable[ToolGroup], resources: Resources) -> None:
    """Hold each group once, in order, until the resources are closed; they release the groups in reverse order.

    Raises:
        asyncio.CancelledError: if cancelled; the groups held by then are released with the resources.
    """
    for group in groups:
        key = (ToolGroup, id(group))
        if resources.is_open(key):
            continue
        await group.hold()
        if resources.is_open(key):  # another task held the group during the await
            await group.release()
        else:
            resources.open(key, partial(_itself, group), _release)


def has_discovery(tools: Tools) -> bool:
    """Whether a group knows some of its tools only when it is held."""
    return any(isinstance(group, CanDiscoverTools) for group in tools.groups)


async def discover_tools(tools: Tools) -> Tools:
    """Return the tools together with those that their groups discover; the groups are queried concurrently.

    Raises:
        asyncio.CancelledError: if cancelled.
    """
    groups = [group for group in tools.groups if isinstance(group, CanDiscoverTools)]
    discovered = await asyncio.gather(*[group.discover() for group in groups])
    return tools.with_discovered(zip(groups, discovered, strict=True))


def _itself(group: ToolGroup) -> ToolGroup:
    return group


def _release(group: ToolGroup) -> Awaitable[None]:
    return group.release()
