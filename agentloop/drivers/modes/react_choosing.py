"""Which notation of the ReAct pattern a model is asked in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_tell_model import CanTellModel
from agentloop.contracts.can_use_mode import CanUseMode
from agentloop.drivers.modes.react_decision import ReActDecision
from agentloop.drivers.modes.react_mode import ReActJsonMode, ReActTextMode
from agentloop.drivers.modes.react_prompt import ReActPrompt
from agentloop.errors import ConfigurationError
from agentloop.inference.model_table.capabilities import capabilities
from agentloop.inference.model_table.capability_row import CapabilityRow, StructuredOutput


def react_mode_for(
    output: CanUseMode | str,
    inference: CanInfer,
    rows: Sequence[CapabilityRow] = (),
    *,
    decision_type: type[ReActDecision] = ReActDecision,
    prompt: ReActPrompt | None = None,
) -> CanUseMode:
    """Return the mode to ask a model in: JSON where its answers can be kept to it, else text, when it is left to `auto`.

    Args:
        output: a mode, `json`, `text` or `auto`.
        inference: the model.
        rows: what models are able to do, before what is known of the published ones.
        decision_type: the class of the decisions.
        prompt: makes the system prompt; None for the one of the notation.

    Raises:
        ConfigurationError: for an output of another name.
    """
    if isinstance(output, CanUseMode):
        return output
    if output not in {"auto", "json", "text"}:
        raise ConfigurationError(f"there is no output {output!r} of ReAct decisions; known are auto, json, text")
    able = _structured_output(inference, rows)
    if output == "text" or (output == "auto" and able is None):
        return ReActTextMode(decision_type=decision_type, prompt=prompt)
    return ReActJsonMode(decision_type=decision_type, prompt=prompt, constrain=able)


def _structured_output(inference: CanInfer, rows: Sequence[CapabilityRow]) -> StructuredOutput | None:
    """Say what a model's answers can be kept to; of one that does not tell its name the best is thought."""
    if not isinstance(inference, CanTellModel) or not inference.model_name:
        return "json_schema"
    return _looked_up(inference.model_name, inference.wire_format_name, tuple(rows))


@lru_cache(maxsize=256)
def _looked_up(model: str, wire_format: str, rows: tuple[CapabilityRow, ...]) -> StructuredOutput | None:
    return capabilities(model, wire_format=wire_format, rows=rows).structured_output
