"""How an execution that is written down begins, or goes on."""

from __future__ import annotations

import asyncio

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_log import RunLog
from agentloop.events.execution_events import AgentExecutionStarted
from agentloop.loop.inbox import Inboxes
from agentloop.values.agent_state import AgentState
from agentloop.values.message import Message


async def opened(log: RunLog | None, state: AgentState, inboxes: Inboxes) -> None:
    """Take messages for the execution; where there is a log, write down the beginning, and from then on every message.

    Raises:
        JournalError: when it cannot be written, or somebody else drives the execution.
    """
    if log is None:
        inboxes.open(state.execution_id)
        return
    execution_id, loop = state.execution_id, asyncio.get_running_loop()
    try:
        await log.begin(state)
    except asyncio.CancelledError:
        if log.has_begun:  # then its end takes what waits
            _open(inboxes, log, execution_id)
        raise
    _open(inboxes, log, execution_id)

    def note(message: Message) -> None:
        if inboxes.note(execution_id, message):  # what a step has taken meanwhile is written down with the step
            log.note_sent(message)

    def note_soon(message: Message) -> None:
        loop.call_soon_threadsafe(note, message)

    inboxes.open(execution_id, note_soon)


def _open(inboxes: Inboxes, log: RunLog, execution_id: str) -> None:
    inboxes.open(execution_id)
    inboxes.restore(execution_id, log.waiting_messages())


async def tell_begun(events: CanHandleEvents, state: AgentState, step_number: int, *, resumed: bool) -> None:
    """Emit the event that begins a run."""
    if events.due(AgentExecutionStarted):
        newest = state.messages[-1] if state.messages else None
        await events.emit(AgentExecutionStarted(events.head(state, step_number=step_number), newest, resumed))
