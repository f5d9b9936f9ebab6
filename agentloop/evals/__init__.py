"""Evals: agents compared on cases, without touching the world, with numbers that say how sure they are; the statistics need the extra `evals`."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
