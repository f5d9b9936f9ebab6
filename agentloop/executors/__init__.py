"""Executors: what runs a batch of tool calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.executors.tool_executor import ToolExecutor as ToolExecutor
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.executors.tool_executor": "ToolExecutor",
        },
    )
