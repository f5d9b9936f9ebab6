"""The HTTP front: starting, following, deciding about and stopping executions from other programs and web pages."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
