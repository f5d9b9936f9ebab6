"""Executions on many processes and machines: workers, queues, schedules, and the client that submits work."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
