"""Tool-calling modes: how tools are offered to a model and how its calls are read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.drivers.modes.choosing import mode_for as mode_for
    from agentloop.drivers.modes.choosing import mode_named as mode_named
    from agentloop.drivers.modes.mode_inference import ModeInference as ModeInference
    from agentloop.drivers.modes.native import NativeMode as NativeMode
    from agentloop.drivers.modes.react_mode import ReActJsonMode as ReActJsonMode
    from agentloop.drivers.modes.react_mode import ReActMode as ReActMode
    from agentloop.drivers.modes.react_mode import ReActTextMode as ReActTextMode
    from agentloop.drivers.modes.strict_schema import NotStrict as NotStrict
    from agentloop.drivers.modes.strict_schema import strict_schema as strict_schema
    from agentloop.drivers.modes.structured import StructuredMode as StructuredMode
    from agentloop.drivers.modes.text_mode import TextMode as TextMode
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.drivers.modes.choosing": "mode_for mode_named",
            "agentloop.drivers.modes.mode_inference": "ModeInference",
            "agentloop.drivers.modes.native": "NativeMode",
            "agentloop.drivers.modes.react_mode": "ReActJsonMode ReActMode ReActTextMode",
            "agentloop.drivers.modes.strict_schema": "NotStrict strict_schema",
            "agentloop.drivers.modes.structured": "StructuredMode",
            "agentloop.drivers.modes.text_mode": "TextMode",
        },
    )
