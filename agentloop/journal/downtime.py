"""The time between an interruption and the recovery from it, which no limit of time counts."""

from __future__ import annotations

from datetime import datetime

from attrs import evolve

from agentloop.values.agent_state import AgentState


def downtime(last: datetime, now: datetime) -> float:
    """Return the seconds from the last record to now; none when a clock went back."""
    return max((now - last).total_seconds(), 0.0)


def with_downtime(state: AgentState, seconds: float) -> AgentState:
    """Return the state with this time noted as waited."""
    execution = state.execution
    if execution is None or not seconds:
        return state
    return evolve(state, execution=evolve(execution, waited_seconds=execution.waited_seconds + seconds))
