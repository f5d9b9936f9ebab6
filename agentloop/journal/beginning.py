"""What a list of executions shows of one that begins."""

from __future__ import annotations

from datetime import datetime

from agentloop.contracts.can_journal import CanJournal
from agentloop.journal.masked import masked_text
from agentloop.values.agent_state import AgentState
from agentloop.values.journal_record import ExecutionHead

_SHOWN_CHARACTERS = 200


def new_head(state: AgentState, at: datetime, journal: CanJournal) -> ExecutionHead:
    """Return what is known of an execution that begins with this state, as the journal may hold it."""
    return ExecutionHead(
        execution_id=state.execution_id,
        agent_id=state.agent_id,
        parent_agent_id=state.parent_agent_id,
        number=state.execution_count,
        status=state.status,
        step_count=state.step_count,
        input=masked_text(_input_of(state), journal)[:_SHOWN_CHARACTERS],
        started_at=at,
        updated_at=at,
    )


def _input_of(state: AgentState) -> str:
    asked = next((message for message in reversed(state.messages) if message.role == "user"), None)
    return asked.text if asked is not None else ""
