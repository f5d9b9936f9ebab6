"""The state of resilience layers, in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import cast

from attrs import define, field

from agentloop.contracts.can_keep_state import CanKeepState, Namespace, R, S, Transition
from agentloop.values.value import Value

_MIN_SWEEP_SIZE = 64


class MemoryStore(CanKeepState):
    """Stores states in memory, for all executions and threads that share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, _Entries] = {}

    @property
    def is_shared(self) -> bool:
        """False: the states end with the process."""
        return False

    async def update(self, namespace: Namespace, key: str, now: float, transition: Transition[S, R]) -> R:
        """Replace one state by what the transition returns."""
        # A thread lock, not an asyncio lock: executions in other threads may share the store, and nothing here awaits.
        with self._lock:
            entries = self._entries.setdefault(namespace.name, _Entries())
            state, expires_at = entries.states.get(key, (None, now))
            update = transition(cast("S", state) if expires_at > now else None)
            if update.state is None:
                entries.states.pop(key, None)
            else:
                entries.states[key] = (update.state, update.expires_at)
                entries.states.move_to_end(key)
                entries.make_room(namespace.max_entries, now)
            return update.result

    def __len__(self) -> int:
        return sum(len(entries.states) for entries in self._entries.values())


@define(eq=False)
class _Entries:
    """The states of one namespace with their expiry, the least recently used first."""

    states: OrderedDict[str, tuple[Value, float]] = field(factory=OrderedDict)
    sweep_size: int = _MIN_SWEEP_SIZE

    def make_room(self, max_entries: int | None, now: float) -> None:
        """Delete expired states whenever their number has doubled, and evict those that are too many."""
        # Sweeping only when the number has doubled makes the cost of an update constant on average.
        if len(self.states) >= self.sweep_size:
            for key in [key for key, (_, expires_at) in self.states.items() if expires_at <= now]:
                del self.states[key]
            self.sweep_size = 2 * len(self.states) + _MIN_SWEEP_SIZE
        while max_entries is not None and len(self.states) > max_entries:
            self.states.popitem(last=False)
