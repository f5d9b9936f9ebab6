"""The modes that an execution has chosen for its models, kept in its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.values.inference import ModeChoice
from agentloop.values.state import AgentState

CHOICES = "agentloop.modes"
"""The owner of the choices of an execution among the extensions of its state."""


def mode_choice(state: AgentState, model: str) -> ModeChoice | None:
    """Return the mode that the current execution has chosen for a model in place of the assumed one; None if it has none."""
    choice = _choices(state).get(model)
    return None if choice is None else ModeChoice(model, choice["mode"], choice["reason"])


def with_mode_choice(state: AgentState, choice: ModeChoice) -> AgentState:
    """Return the state with a mode that holds for the rest of its execution.

    A further execution of the agent decides anew, since the server may have been configured in the meantime.
    """
    models = {**_choices(state), choice.model: {"mode": choice.mode, "reason": choice.reason}}
    return state.with_extension(CHOICES, {"execution": state.execution_id, "models": models})


def _choices(state: AgentState) -> Mapping[str, Any]:
    stored: Any = state.extension(CHOICES)
    if stored is None or stored["execution"] != state.execution_id:
        return {}
    models: Mapping[str, Any] = stored["models"]
    return models
