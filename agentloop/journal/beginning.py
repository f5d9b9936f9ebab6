"""What a list of executions shows of one that begins."""

from __future__ import annotations

from datetime import datetime

from agentloop.values.agent_state import AgentState
from agentloop.values.journal_record import ExecutionHead

_SHOWN_CHARACTERS = 200


def new_head(state: AgentState, at: datetime) -> ExecutionHead:
    """Return what is known of an execution that begins with this state."""
    return ExecutionHead(
        execution_id=state.execution_id,
        agent_id=state.agent_id,
        parent_agent_id=state.parent_agent_id,
        number=state.execution_count,
        status=state.status,
        step_count=state.step_count,
        input=_input_of(state),
        started_at=at,
        updated_at=at,
    )


def _input_of(state: AgentState) -> str:
    asked = next((message for message in reversed(state.messages) if message.role == "user"), None)
    return asked.text[:_SHOWN_CHARACTERS] if asked is not None else ""
