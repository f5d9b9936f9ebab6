"""Ensembles: groups of tools that are configured, enabled and disabled together, and the sandboxes in which they run programs."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
