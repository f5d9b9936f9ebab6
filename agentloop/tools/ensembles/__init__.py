"""Ensembles: groups of tools that are configured, enabled and disabled together, and those that come with the package."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
