"""States kept in the memory of this process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import cast

from attrs import define, field

from agentloop.contracts.can_keep_state import A, CanKeepState, S, Shelf, Transition
from agentloop.values.value import Value

_SPARE = 64


@define
class _Kept:
    """The states of one shelf, the one not used for longest first, each with the moment up to which it is kept."""

    states: OrderedDict[str, tuple[Value, float]] = field(factory=OrderedDict)
    sweep_at: int = _SPARE


class MemoryStore(CanKeepState):
    """Keeps states in memory, for all executions and threads that share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shelves: dict[str, _Kept] = {}

    async def update(self, shelf: Shelf, key: str, now: float, transition: Transition[S, A]) -> A:
        """Replace one state by what the transition makes of it."""
        with self._lock:
            kept = self._shelves.get(shelf.name)
            if kept is None:
                kept = self._shelves[shelf.name] = _Kept()
            state, until = kept.states.get(key, (None, now))
            change = transition(cast("S", state) if until > now else None)
            if change.state is None:
                kept.states.pop(key, None)
            else:
                kept.states[key] = (change.state, change.until)
                kept.states.move_to_end(key)
                _make_room(kept, shelf.most, now)
            return change.answer

    def __len__(self) -> int:
        return sum(len(kept.states) for kept in self._shelves.values())


def _make_room(kept: _Kept, most: int | None, now: float) -> None:
    """Forget what is too much, and, each time that the shelf has doubled, what is no longer to be kept."""
    states = kept.states
    if len(states) >= kept.sweep_at:
        for key in [key for key, (_, until) in states.items() if until <= now]:
            del states[key]
        kept.sweep_at = 2 * len(states) + _SPARE
    while most is not None and len(states) > most:
        states.popitem(last=False)
