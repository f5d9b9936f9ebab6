"""How many calls a state counts, and whether its step only settles what waited."""

from __future__ import annotations

from agentloop.values.agent_state import AgentState
from agentloop.values.pending_call import PendingCall


def is_settling(state: AgentState) -> bool:
    """Say whether the next step only settles calls that waited for a decision: no new step, and no inference."""
    last = state.last_step
    return last is not None and last.open_turn is not None


def calls_before(state: AgentState) -> int:
    """Return how many calls the steps before the current one made."""
    last = state.last_step
    open_calls = len(last.open_turn.slots) if last is not None and last.open_turn is not None else 0
    return state.tool_call_count - open_calls


def calls_admitted(state: AgentState) -> int:
    """Return how many calls were made, without those at the end of an open turn that only wait for their turn."""
    last = state.last_step
    slots = last.open_turn.slots if last is not None and last.open_turn is not None else ()
    admitted = [
        place
        for place, slot in enumerate(slots, start=1)
        if not (isinstance(slot, PendingCall) and slot.waits_for and not slot.begun)
    ]
    return calls_before(state) + max(admitted, default=0)
