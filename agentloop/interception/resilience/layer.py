"""What the layers around a tool have in common."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Self, TypeAlias, cast

from attrs import define, evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptLifecycle
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_keep_state import A, CanKeepState, Namespace, S, Transition
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.events.resilience import ToolCallDecided
from agentloop.interception.interceptor import Interceptor
from agentloop.values.batches import parse_key
from agentloop.values.points import AroundToolUse
from agentloop.values.time_and_ids import Clock, SystemClock
from agentloop.values.tool_calls import Effect
from agentloop.values.value import Value

DEDUPLICATE, CACHE, DEADLINE, RETRY, CIRCUIT, RATE_LIMIT, ATTEMPT = range(-1000, -1700, -100)
"""The priorities of the layers: used one by one, they stand in the same order as in `Resilience`, and inside of all else."""


@frozen
class ResilienceLayer(Interceptor, CanAcceptExecutionScope, CanAcceptLifecycle):
    """A layer around a tool that takes its time from the loop's clock and tells what it decides."""

    _clock: Clock = field(factory=SystemClock, repr=False, eq=False, kw_only=True)
    _events: CanHandleEvents | None = field(default=None, repr=False, eq=False, kw_only=True)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that takes the time from the clock of the loop."""
        return evolve(self, clock=scope.clock)

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:  # noqa: ARG002  # it asks no other interceptor
        """Return a copy that tells what it decides to this bus."""
        return evolve(self, events=events)

    async def _tell(self, kind: type[ToolCallDecided], point: AroundToolUse, *details: object) -> None:
        if self._events is None or not self._events.due(kind):
            return
        place = parse_key(point.key)
        head = self._events.head(point.state, step_number=place[0] if place is not None else None)
        build: Any = kind
        await self._events.emit(build(head, point.key, point.call.name, *details))


def may_repeat(point: AroundToolUse) -> bool:
    """Say whether running the tool another time, or not at all, is as good as running it once."""
    return point.tool.effect is not Effect.EFFECT


CallerOf: TypeAlias = Callable[[AroundToolUse], str]
"""Names whom a call is made for: what was found out for one caller is never shown to another."""


def calling_agent(point: AroundToolUse) -> str:
    """Name the agent: calls of other agents are other calls."""
    return point.state.agent_id


def any_caller(point: AroundToolUse) -> str:  # noqa: ARG001  # that it does not look is the point
    """Make no difference between callers; for tools that answer everyone alike."""
    return ""


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

    async def update(self, shelf: Namespace, key: str, now: float, transition: Transition[S, A]) -> A:
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
