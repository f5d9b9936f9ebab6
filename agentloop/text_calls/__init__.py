"""Tool calls that models write as text: the reader, its notations, and what a reading gives."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
