"""The tools of the team."""

from __future__ import annotations

from agentloop import tool


@tool
def deploy(service: str) -> str:
    """Deploy a service to production."""
    return f"{service} is live"
