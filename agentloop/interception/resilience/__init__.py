"""The layers around a tool: one file each, usable alone, and together as `Resilience`."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
