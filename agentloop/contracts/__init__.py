"""The abstract contracts: what a driver, an executor, a tool and the others promise each other."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
