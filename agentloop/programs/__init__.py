"""Programs that a model writes to call tools: an interpreter in worker processes, and the tool that runs it."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
