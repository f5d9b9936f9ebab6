"""Tool-calling modes: how tools are offered to a model and how its calls are read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.modes.native import NativeMode as NativeMode
    from agentloop.modes.react_mode import ReActJsonMode as ReActJsonMode
    from agentloop.modes.react_mode import ReActMode as ReActMode
    from agentloop.modes.react_mode import ReActTextMode as ReActTextMode
    from agentloop.modes.selection import ModeInference as ModeInference
    from agentloop.modes.selection import mode_for as mode_for
    from agentloop.modes.selection import mode_named as mode_named
    from agentloop.modes.strict import NotStrict as NotStrict
    from agentloop.modes.strict import strict_schema as strict_schema
    from agentloop.modes.structured import StructuredMode as StructuredMode
    from agentloop.modes.text import TextMode as TextMode
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.modes.selection": "mode_for mode_named ModeInference",
            "agentloop.modes.native": "NativeMode",
            "agentloop.modes.react_mode": "ReActJsonMode ReActMode ReActTextMode",
            "agentloop.modes.strict": "NotStrict strict_schema",
            "agentloop.modes.structured": "StructuredMode",
            "agentloop.modes.text": "TextMode",
        },
    )
