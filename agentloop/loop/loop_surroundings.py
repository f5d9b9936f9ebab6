"""What a loop tells, takes and holds open besides its executions."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from attrs import frozen

from agentloop.contracts.can_handle_events import E, Listener, Subscription
from agentloop.loop.inbox import Inbox
from agentloop.loop.loop_parts import LoopParts
from agentloop.values.event import Event


@frozen(eq=False)
class LoopSurroundings(LoopParts):
    """A loop with its listeners, its inboxes and what it holds open."""

    def inbox(self, execution_id: str) -> Inbox:
        """Return where messages for one execution are put, before it begins or while it runs: `inbox(id).send("…")`."""
        return Inbox(execution_id, self._inboxes)

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Tell the listener, plain or async, every event of this loop and its changed copies; cancel the subscription to end."""
        return self.events.wiretap(listener)

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Tell the listener, plain or async, the events of one class; cancel the subscription to end."""
        return self.events.on(kind, listener)

    async def __aenter__(self) -> Self:
        resources = self._entered.enter()
        if self.tools.groups:
            from agentloop.loop.groups import hold_groups

            try:
                await hold_groups(self.tools.groups, resources)
            except BaseException:  # a loop that could not be entered is not left by anybody else
                await self._entered.leave()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._entered.leave()

    async def aclose(self) -> None:
        """Close what this loop and its changed copies hold open in the running event loop."""
        await self._entered.close()
