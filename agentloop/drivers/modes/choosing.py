"""Which mode a model is asked in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_tell_model import CanTellModel
from agentloop.contracts.can_use_mode import CanUseMode
from agentloop.drivers.modes.native import NativeMode
from agentloop.drivers.modes.structured import StructuredMode
from agentloop.drivers.modes.text_mode import TextMode
from agentloop.errors import ConfigurationError
from agentloop.inference.model_table.capabilities import capabilities
from agentloop.inference.model_table.capability_row import Capabilities, CapabilityRow

_ABLE = Capabilities("native", parallel_tool_calls=True, structured_output="json_schema")
"""What is taken for granted of an inference that does not tell its model."""


def mode_for(mode: CanUseMode | str, inference: CanInfer, rows: Sequence[CapabilityRow] = ()) -> CanUseMode:
    """Return the mode to ask a model in: the one that is given, or for `auto` the one that suits the model.

    Args:
        mode: a mode, or the name of one.
        inference: the model.
        rows: what models are able to do, before what is known of the published ones.

    Raises:
        ConfigurationError: for a name that is none.
    """
    if isinstance(mode, CanUseMode):
        return mode
    if not isinstance(inference, CanTellModel) or not inference.model_name:
        return _made(mode, _ABLE)
    return _chosen(mode, inference.model_name, inference.wire_format_name, tuple(rows))


def mode_named(name: str) -> CanUseMode:
    """Return the mode of this name, for a model that is able to do whatever the mode asks of it.

    Raises:
        ConfigurationError: when there is none.
    """
    return _made(name, _ABLE)


@lru_cache(maxsize=256)
def _chosen(mode: str, model: str, wire_format: str, rows: tuple[CapabilityRow, ...]) -> CanUseMode:
    return _made(mode, capabilities(model, wire_format=wire_format, rows=rows))


@lru_cache(maxsize=256)
def _made(name: str, known: Capabilities) -> CanUseMode:
    name = known.mode if name == "auto" else name
    if name == "native":
        return NativeMode(output="format" if known.structured_output == "json_schema" else "tool")
    if name == "structured":
        return StructuredMode(variant="json_object" if known.structured_output == "json_object" else "json_schema")
    if name in {"validated", "parsed"}:
        return TextMode(asks_again=name == "validated")
    raise ConfigurationError(
        f"there is no tool-calling mode {name!r}; known are auto, native, structured, validated, parsed"
    )
