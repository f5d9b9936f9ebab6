"""What an execution on its way has come to, and what speaks for stopping it."""

from __future__ import annotations

from attrs import define, field

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.drivers.open_turns import closed
from agentloop.events.execution_events import StopSignalReceived
from agentloop.loop.bound_parts import BoundParts
from agentloop.loop.handing_over import Handoffs
from agentloop.values.agent_state import AgentState
from agentloop.values.stop import NO_SIGNALS, Continuation, StopReason, StopSignal


@define(eq=False)
class RunSignals:
    """What an execution on its way has come to.

    Attributes:
        state: the state, after everything that has happened so far.
        parts: the parts of the loop that the conversation is with, bound.
        handoffs: gives the parts of another loop when the conversation is handed over.
        step_number: the number of the step that is being taken, or was the last.
        signals_told: how many of the signals have been told.
    """

    state: AgentState = field(kw_only=True)
    parts: BoundParts = field(kw_only=True)
    handoffs: Handoffs = field(kw_only=True)
    events: CanHandleEvents = field(init=False)
    scope: ExecutionScope = field(init=False)
    step_number: int = field(default=0, init=False)
    signals_told: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.events, self.scope = self.handoffs.events, self.handoffs.scope

    def signal(self, reason: StopReason, message: str) -> None:
        """Note a reason to stop, in the driver's name."""
        signal = StopSignal(reason, message, type(self.parts.driver).__name__)
        self.state = self.state.with_stop_signal(signal)

    async def tell_signals(self) -> None:
        """Emit what speaks for stopping, each reason once."""
        signals = self.continuation.signals
        for signal in signals[self.signals_told :]:
            self.signals_told += 1
            if self.events.due(StopSignalReceived):
                head = self.events.head(self.state, step_number=self.step_number)
                await self.events.emit(StopSignalReceived(head, signal))

    @property
    def continuation(self) -> Continuation:
        """What speaks for stopping and for going on."""
        return self.state.execution.continuation if self.state.execution is not None else NO_SIGNALS

    @property
    def must_stop(self) -> bool:
        """Whether anything speaks for stopping that is not overridden; the last step's calls do not matter any more."""
        return self.continuation.should_stop(has_tool_executions=True)

    def close_open_turn(self, reason: str) -> None:
        """Settle the calls that wait, as cancelled."""
        self.state = closed(self.state, reason, self.scope.clock.now(), self.scope.ids)
