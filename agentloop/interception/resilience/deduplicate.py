"""The same call runs once."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Self
from weakref import WeakKeyDictionary

from attrs import evolve, field, frozen
from attrs.validators import ge

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.events.resilience_events import ToolCallDeduplicated
from agentloop.interception.resilience.call_identity import CallerOf, calling_agent
from agentloop.interception.resilience.deduplicators import InFlight, SimilarCalls, deduplicator_of
from agentloop.interception.resilience.layer import DEDUPLICATE, ResilienceLayer, may_repeat
from agentloop.interception.resilience.seen_calls import Flight, SeenCalls
from agentloop.values.deduplicator import Deduplicator, SeenCall, Similarity
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.tool_execution import ToolExecution, ToolStatus
from agentloop.values.tool_executions import key_place

_OPEN_FLIGHTS: ContextVar[tuple[Flight, ...]] = ContextVar("agentloop_open_flights", default=())
"""The flights inside of which this code runs: a call that is made inside of a flight must not wait for it."""

_CUT_OFF = frozenset({ToolStatus.CANCELLED, ToolStatus.TIMED_OUT, ToolStatus.IN_DOUBT})


def _as_deduplicator(by: Deduplicator | Similarity) -> Deduplicator:
    if isinstance(by, Deduplicator):
        return by
    if callable(by):
        return SimilarCalls(by)
    raise TypeError(f"a deduplicator is a Deduplicator or a function of two calls, not {by!r}")


@frozen
class Deduplicate(ResilienceLayer):
    """Lets one of several calls that are the same run, and gives its result to the others (single flight).

    Only a success is given on: when the one that ran did not succeed, the next runs itself, one at a time. Of tools that ask
    for no deduplication, it speaks of those that are pure or idempotent, unless told otherwise.

    Attributes:
        by: which calls are the same, of tools that do not say so; those of one tool with the same arguments while one is
            under way when left out. A function of two calls will do.
        caller: names whom a call is made for; the agent when left out. `any_caller` makes calls of all callers the same.
        across_executions: whether calls of different executions can be the same, of tools that do not say so. Those that wait
            for each other are on one event loop.
        effects: whether `by` speaks of tools with an effect too, whose calls then do not all run. If one of them was cut off,
            so that it may have run, the others fail instead of running.
        most: how many calls that have ended are remembered.
        priority: where it stands among the interceptors.
    """

    by: Deduplicator = field(factory=InFlight, converter=_as_deduplicator)
    caller: CallerOf = field(default=calling_agent, kw_only=True)
    across_executions: bool = field(default=False, kw_only=True)
    effects: bool = field(default=False, kw_only=True)
    most: int = field(default=1000, validator=ge(1), kw_only=True)
    priority: int = field(default=DEDUPLICATE, kw_only=True)
    _everywhere: WeakKeyDictionary[asyncio.AbstractEventLoop, SeenCalls] = field(
        factory=WeakKeyDictionary, repr=False, eq=False, kw_only=True
    )
    _here: SeenCalls | None = field(default=None, repr=False, eq=False, kw_only=True)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that takes the time from the clock of the loop, and remembers the calls of this execution."""
        here = scope.own.open(object(), self._nothing_seen, SeenCalls.clear)
        return evolve(self, clock=scope.clock, here=here)

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Run the call, or wait for the one that it is the same as."""
        asked = point.policy.deduplicate
        if asked is None and not (self.effects or may_repeat(point)):
            return await proceed()
        by = self.by if asked is None else deduplicator_of(asked)
        seen = self._seen(everywhere=self.across_executions if asked is None else asked.across_executions)
        call = self._seen_call(point)
        group = by.group(call)
        while True:
            earlier = seen.find(call, group, by)
            if earlier is None or earlier in _OPEN_FLIGHTS.get():
                flight = seen.begin(call, point.key, group)
                return await self._run(proceed, seen, flight, remembers=by.remembers)
            await earlier.land()
            if earlier.outcome is not None:
                await self._tell(ToolCallDeduplicated, point, earlier.key)
                return point.succeed(earlier.outcome.value, earlier.outcome.content)
            if earlier.in_doubt and not may_repeat(point):
                return _in_doubt(point)

    async def _run(self, proceed: ProceedToolUse, seen: SeenCalls, flight: Flight, *, remembers: bool) -> ToolExecution:
        token = _OPEN_FLIGHTS.set((*_OPEN_FLIGHTS.get(), flight))
        flight.in_doubt = True  # until it is known how it ended
        try:
            execution = await proceed()
            flight.in_doubt = execution.may_have_run or execution.status in _CUT_OFF
            if execution.succeeded:
                flight.outcome = execution
            return execution
        finally:
            _OPEN_FLIGHTS.reset(token)
            keep = remembers and flight.outcome is not None
            seen.end(flight, self._clock.monotonic(), keep=keep)

    def _seen(self, *, everywhere: bool) -> SeenCalls:
        if self._here is not None and not everywhere:
            return self._here
        loop = asyncio.get_running_loop()
        seen = self._everywhere.get(loop)
        if seen is None:
            seen = self._everywhere[loop] = self._nothing_seen()
        return seen

    def _nothing_seen(self) -> SeenCalls:
        return SeenCalls(self.most)

    def _seen_call(self, point: AroundToolUse) -> SeenCall:
        place = key_place(point.key)
        return SeenCall(
            name=point.call.name,
            arguments=point.arguments,
            caller=self.caller(point),
            execution_id=point.state.execution_id,
            step=place[0] if place is not None else point.state.step_count + 1,
            began=self._clock.monotonic(),
        )


def _in_doubt(point: AroundToolUse) -> ToolExecution:
    execution = point.fail(
        f"the same call of {point.call.name!r} was cut off and may have run: not run again; find out what it did first",
        type="DuplicateInDoubt",
    )
    return evolve(execution, may_have_run=True)
