"""Ids of calls on their way back to a provider."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.values.tool_execution import ToolExchange


def turn_ids(exchanges: Sequence[ToolExchange]) -> list[str]:
    """Return one id per call of a turn, different from each other: the model's own, else one made from the position."""
    ids: list[str] = []
    for place, exchange in enumerate(exchanges):
        wanted = exchange.call.id or f"call_{place}"
        while wanted in ids:
            wanted = f"{wanted}_{place}"
        ids.append(wanted)
    return ids
