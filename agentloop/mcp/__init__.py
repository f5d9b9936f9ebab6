"""Tools of servers that speak the Model Context Protocol; one ensemble per server."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
