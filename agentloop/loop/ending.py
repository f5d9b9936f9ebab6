"""How executions end: from the weightiest signal to a status and an event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.errors import InvalidOutput
from agentloop.events.execution_events import (
    AgentExecutionCompleted,
    AgentExecutionFailed,
    AgentExecutionStopped,
    AgentExecutionSuspended,
)
from agentloop.values.agent_state import AgentState
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.stop import StopReason, StopSignal

_STATUSES: Mapping[StopReason, ExecutionStatus] = {
    StopReason.COMPLETED: ExecutionStatus.COMPLETED,
    StopReason.SUSPENDED: ExecutionStatus.SUSPENDED,
    StopReason.ERROR: ExecutionStatus.FAILED,
}


def status_of(signal: StopSignal | None) -> ExecutionStatus:
    """Return the status of an execution that stops by this signal: what is neither an answer nor an error is `stopped`."""
    return _STATUSES.get(signal.reason, ExecutionStatus.STOPPED) if signal is not None else ExecutionStatus.COMPLETED


def with_output_read(state: AgentState, read: Callable[[str], Any]) -> AgentState:
    """Return a final state with its answer in the type that was asked for, also when a limit made it the last one."""
    if not state.has_final_response or state.status not in {ExecutionStatus.COMPLETED, ExecutionStatus.STOPPED}:
        return state
    try:
        return state.with_output(read(state.final_text))
    except InvalidOutput:
        if state.status is ExecutionStatus.COMPLETED:
            raise
        return state  # an answer that was to be gone on from, and of which nobody asked that it have the type


async def tell_end(events: CanHandleEvents, state: AgentState) -> None:
    """Emit the event that ends a run."""
    number, signal, steps, usage = state.step_count, state.stop_signal, state.step_count, state.usage
    if state.status is ExecutionStatus.COMPLETED:
        if events.due(AgentExecutionCompleted):
            head = events.head(state, step_number=number)
            await events.emit(AgentExecutionCompleted(head, signal, steps, usage, state.final_text))
    elif state.status is ExecutionStatus.SUSPENDED:
        if events.due(AgentExecutionSuspended):
            head = events.head(state, step_number=number)
            await events.emit(AgentExecutionSuspended(head, signal, steps, usage, state.pending))
    elif state.status is ExecutionStatus.FAILED:
        if events.due(AgentExecutionFailed):
            head = events.head(state, step_number=number)
            error = state.errors[-1] if state.errors else None
            await events.emit(AgentExecutionFailed(head, signal, steps, usage, error))
    elif events.due(AgentExecutionStopped):
        head = events.head(state, step_number=number)
        await events.emit(AgentExecutionStopped(head, signal, steps, usage))
