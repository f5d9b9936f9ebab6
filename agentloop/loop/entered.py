"""What a loop holds open while it is entered."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from agentloop.contracts.execution_scope import Resources


class Entered:
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
