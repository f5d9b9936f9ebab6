"""The calls that are under way, and those that have succeeded and may come again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable

from attrs import define, evolve, field

from agentloop.values.deduplicator import Deduplicator, SeenCall
from agentloop.values.tool_execution import ToolExecution


@define(eq=False)
class Flight:
    """A call that runs or has run.

    Attributes:
        call: the call.
        key: its idempotency key.
        group: its group.
        outcome: its execution, if it succeeded.
        in_doubt: whether it was cut off in a way that leaves open what it did.
    """

    call: SeenCall
    key: str
    group: Hashable
    outcome: ToolExecution | None = None
    in_doubt: bool = False
    _landed: asyncio.Event | None = None

    async def land(self) -> None:
        """Wait until the call has ended."""
        if self.call.ended is None:
            if self._landed is None:
                self._landed = asyncio.Event()
            await self._landed.wait()

    def end(self, at: float) -> None:
        """Note that the call has ended, and wake those who wait for it."""
        self.call = evolve(self.call, ended=at)
        if self._landed is not None:
            self._landed.set()


@define(eq=False)
class SeenCalls:
    """The flights of one execution, or of all executions on one event loop.

    Attributes:
        most: how many that have ended are kept; the oldest go first.
    """

    most: int
    _groups: dict[Hashable, list[Flight]] = field(factory=dict)
    _ended: OrderedDict[Flight, None] = field(factory=OrderedDict)

    def find(self, call: SeenCall, group: Hashable, deduplicator: Deduplicator) -> Flight | None:
        """Return the newest flight that this call is the same as."""
        for flight in reversed(self._groups.get(group, ())):
            if deduplicator.same(call, flight.call):
                return flight
        return None

    def begin(self, call: SeenCall, key: str, group: Hashable) -> Flight:
        """Note a call that is going to run."""
        flight = Flight(call, key, group)
        self._groups.setdefault(group, []).append(flight)
        return flight

    def end(self, flight: Flight, at: float, *, keep: bool) -> None:
        """Note that a call has ended; it is kept if it may come again."""
        flight.end(at)
        if not keep:
            self._drop(flight)
            return
        self._ended[flight] = None
        if len(self._ended) > self.most:
            self._drop(self._ended.popitem(last=False)[0])

    def clear(self) -> None:
        """Forget everything."""
        self._groups.clear()
        self._ended.clear()

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def _drop(self, flight: Flight) -> None:
        group = self._groups.get(flight.group, [])
        if flight in group:
            group.remove(flight)
        if not group:
            self._groups.pop(flight.group, None)
