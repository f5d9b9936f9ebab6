"""Ids of calls on their way back to a provider."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.values.tool_execution import ToolExchange


def turn_ids(exchanges: Sequence[ToolExchange]) -> list[str]:
    """Return one id per call of a turn, different from each other: the model's own, else one made from the position."""
    own = {exchange.call.id for exchange in exchanges}
    ids: list[str] = []
    given: set[str] = set()
    for place, exchange in enumerate(exchanges):
        wanted = exchange.call.id
        if not wanted or wanted in given:
            wanted = f"{wanted or 'call'}_{place}"
            while wanted in own or wanted in given:
                wanted = f"{wanted}_{place}"
        ids.append(wanted)
        given.add(wanted)
    return ids
