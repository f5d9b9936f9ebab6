"""Runs written down: what a journal holds, where it is kept, and how an execution goes on from it."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
