"""What an execution's leases have used, written into its state so that it is not forgotten when the state is stored."""

from __future__ import annotations

from attrs import asdict

from agentloop.interception.budgeting.amounts import NOTHING, Amounts
from agentloop.values.agent_state import AgentState

_KEY = "agentloop.budget"


def delegated(state: AgentState, budget: str) -> Amounts:
    """Return what the state says that leases of its execution have used.

    Args:
        state: the state.
        budget: the name of the budget that gave the leases.
    """
    written = state.context.metadata.get(_KEY, {})
    if written.get("execution") != state.execution_id or budget not in written:
        return NOTHING
    return Amounts(**written[budget])


def with_delegated(state: AgentState, budget: str, amounts: Amounts) -> AgentState:
    """Return the state with what leases of its execution have used."""
    if amounts == delegated(state, budget):
        return state
    written = state.context.metadata.get(_KEY, {})
    others = written if written.get("execution") == state.execution_id else {}
    entry = {**others, "execution": state.execution_id, budget: asdict(amounts)}
    return state.with_metadata(**{_KEY: entry})
