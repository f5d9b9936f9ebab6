"""Messages that a running execution takes."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.events.execution_events import MessageReceived
from agentloop.values.agent_state import AgentState
from agentloop.values.message import Message


def with_received(state: AgentState, messages: Sequence[Message]) -> AgentState:
    """Return the state with these messages at the end of its conversation."""
    for message in messages:
        state = state.with_message(message)
    return state


async def tell_received(
    state: AgentState, messages: Sequence[Message], events: CanHandleEvents, step_number: int
) -> None:
    """Emit an event for each of these messages.

    Args:
        state: the state with them.
        messages: the messages, in the order in which they were sent.
        events: where it is told.
        step_number: the step that takes them.
    """
    for message in messages:
        if events.due(MessageReceived):
            await events.emit(MessageReceived(events.head(state, step_number=step_number), message))
