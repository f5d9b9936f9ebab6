"""Interceptors that come with the package: budgets, resilience, guardrails, summaries, the search for tools."""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
