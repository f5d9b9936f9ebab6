"""How many calls a state counts, and whether its step only settles what waited."""

from __future__ import annotations

from agentloop.values.agent_state import AgentState


def is_settling(state: AgentState) -> bool:
    """Say whether the next step only settles calls that waited for a decision: no new step, and no inference."""
    last = state.last_step
    return last is not None and last.open_turn is not None


def calls_before(state: AgentState) -> int:
    """Return how many calls the steps before the current one made."""
    last = state.last_step
    open_calls = len(last.open_turn.slots) if last is not None and last.open_turn is not None else 0
    return state.tool_call_count - open_calls
