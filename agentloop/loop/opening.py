"""How an execution that is written down begins, or goes on."""

from __future__ import annotations

import asyncio

from agentloop.contracts.execution_log import RunLog
from agentloop.loop.inbox import Inboxes
from agentloop.values.agent_state import AgentState
from agentloop.values.message import Message


async def open_log(log: RunLog, state: AgentState, inboxes: Inboxes) -> None:
    """Write down the beginning, and from then on every message that is sent to the execution.

    Raises:
        JournalError: when it cannot be written, or somebody else drives the execution.
    """
    await log.begin(state)
    execution_id, loop = state.execution_id, asyncio.get_running_loop()
    inboxes.open(execution_id)
    for message in log.waiting_messages():
        inboxes.put(execution_id, message)

    def note(message: Message) -> None:
        if inboxes.waits(execution_id, message):  # what a step has taken meanwhile is written down with the step
            log.note_sent(message)

    def note_soon(message: Message) -> None:
        loop.call_soon_threadsafe(note, message)

    inboxes.open(execution_id, note_soon)
