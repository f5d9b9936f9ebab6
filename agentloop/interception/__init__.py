"""Interceptors: the base class, the compiled stack, and those that come with the package."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
