"""Tool-calling modes: how tools are offered to a model, and how its calls are read back."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
