"""Ensembles: groups of tools that are configured, enabled and disabled together, and those that come with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.tools.ensembles.tool_override import ToolOverride as ToolOverride
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.tools.ensembles.tool_override": "ToolOverride",
        },
    )
