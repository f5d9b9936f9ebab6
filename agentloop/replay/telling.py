"""Words for what a replay finds."""

from __future__ import annotations

from agentloop.values.agent_state import AgentState


def index_of(key: str) -> int:
    """Return the place of a call in its step, which its key names; 0 for a key of another form."""
    index = key.rpartition("/")[2]
    return int(index) if index.isdecimal() else 0


def why(state: AgentState) -> str:
    """Say why an execution stopped."""
    signal = state.stop_signal
    return signal.reason.value if signal is not None else state.status.value


def error_of(state: AgentState) -> str:
    """Return the last error of an execution, to stand at the end of a sentence; empty when it has none."""
    errors = state.errors
    return f"; {errors[-1].type}: {errors[-1].message}" if errors else ""
