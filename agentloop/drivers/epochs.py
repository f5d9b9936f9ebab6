"""Telling where the requests of an execution stop extending each other."""

from __future__ import annotations

from attrs import define

from agentloop.contracts.can_compile_messages import CanCompileMessages, CanTellEpoch
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.events.context_events import ContextEpochBegan
from agentloop.values.agent_state import AgentState
from agentloop.values.epoch import NO_EPOCH, Epoch


@define(eq=False)
class EpochTeller:
    """Knows in which epoch a driver asked last; it lives as long as the bound driver."""

    _latest: Epoch = NO_EPOCH

    async def tell(self, compiler: CanCompileMessages, state: AgentState, events: CanHandleEvents) -> None:
        """Emit `ContextEpochBegan` if this state stands in another epoch than the one before."""
        if not isinstance(compiler, CanTellEpoch):
            return
        epoch = compiler.epoch(state)
        if epoch == self._latest:
            return
        self._latest = epoch
        if events.due(ContextEpochBegan):
            head = events.head(state)
            await events.emit(ContextEpochBegan(head, epoch.reason, epoch.dropped, epoch.kept, epoch.superseded))
