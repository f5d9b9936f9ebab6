"""Which mode a model is asked in."""

from __future__ import annotations

from functools import cache

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_use_mode import CanUseMode
from agentloop.drivers.modes.native import NativeMode
from agentloop.drivers.modes.structured import StructuredMode
from agentloop.drivers.modes.text_mode import TextMode
from agentloop.errors import ConfigurationError


@cache
def mode_named(name: str) -> CanUseMode:
    """Return the mode of this name, as it is without settings.

    Raises:
        ConfigurationError: when there is none.
    """
    if name == "native":
        return NativeMode()
    if name == "structured":
        return StructuredMode()
    if name in {"validated", "parsed"}:
        return TextMode(asks_again=name == "validated")
    raise ConfigurationError(
        f"there is no tool-calling mode {name!r}; known are auto, native, structured, validated, parsed"
    )


def mode_for(mode: CanUseMode | str, inference: CanInfer) -> CanUseMode:  # noqa: ARG001  # XX
    """Return the mode to ask a model in: the one that is given, or for `auto` the one that suits the model.

    Raises:
        ConfigurationError: for a name that is none.
    """
    if isinstance(mode, CanUseMode):
        return mode
    return mode_named("native" if mode == "auto" else mode)
