"""Models and modes for drivers, which load this module by its name: `CanProvideModels`, as functions."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_use_mode import CanUseMode
from agentloop.models.http_inference import inference_of as inference_of
from agentloop.models.modes.selection import ModeInference
from agentloop.models.modes.selection import explain_mode as explain_mode
from agentloop.models.modes.selection import get_mode as get_mode
from agentloop.models.modes.selection import select_mode as select_mode
from agentloop.values.bounds import Bounds
from agentloop.values.capabilities import CapabilityRow
from agentloop.values.state import AgentState


def in_mode(inference: CanInfer, mode: CanUseMode, bounds: Bounds, *, asks_for_answer: bool = False) -> CanInfer:
    """Return a model that is called in a mode, with bounds on its answers; `asks_for_answer` leaves it no call."""
    return ModeInference(inference, mode, asks_for_answer=asks_for_answer, bounds=bounds)


def asked(called: CanInfer, rows: Sequence[CapabilityRow], state: AgentState) -> CanInfer:
    """Return a model of `in_mode` that asks its server before it is called by the tool API."""
    from agentloop.models.modes.asked_server import asked_inference

    return asked_inference(called, rows, state)
