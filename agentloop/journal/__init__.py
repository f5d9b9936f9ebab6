"""Journals: recording executions, storing and verifying the records, and resuming, forking or exporting from them."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
