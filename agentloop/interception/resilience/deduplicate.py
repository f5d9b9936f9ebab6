"""The same call runs once."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Hashable
from contextvars import ContextVar
from typing import Self
from weakref import WeakKeyDictionary

from attrs import define, evolve, field, frozen
from attrs.validators import ge

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.events.resilience import ToolCallDeduplicated
from agentloop.interception.resilience.layer import DEDUPLICATE, CallerOf, ResilienceLayer, calling_agent, may_repeat
from agentloop.values.batches import parse_key
from agentloop.values.json import canonical_json
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.policies import DeduplicatePolicy, Deduplicator, SeenCall, Similarity
from agentloop.values.tool_calls import ToolExecution, ToolStatus


@frozen
class ExactCalls(Deduplicator):
    """The same tool with the same arguments, in whatever order and spelling."""

    def group(self, call: SeenCall) -> Hashable:
        """Group by tool, caller and arguments."""
        return call.name, call.caller, canonical_json(call.arguments)

    def is_same(self, call: SeenCall, earlier: SeenCall) -> bool:
        """All calls of a group are the same."""
        del call, earlier
        return True


@frozen
class SimilarCalls(Deduplicator):
    """What a function of your own takes for the same.

    Attributes:
        similar: the function.
    """

    similar: Similarity

    def group(self, call: SeenCall) -> Hashable:
        """Group by tool and caller."""
        return call.name, call.caller

    def is_same(self, call: SeenCall, earlier: SeenCall) -> bool:
        """Ask the function."""
        return self.similar(call, earlier)


@frozen
class _Narrowed(Deduplicator):
    """Another deduplicator under a further condition.

    Attributes:
        of: says which calls are the same.
    """

    of: Deduplicator = field(factory=ExactCalls, kw_only=True)

    def group(self, call: SeenCall) -> Hashable:
        """Group as the other one does."""
        return self.of.group(call)

    def is_same(self, call: SeenCall, earlier: SeenCall) -> bool:
        """Ask for the condition, then the other one."""
        return self._near(call, earlier) and self.of.is_same(call, earlier)

    @abstractmethod
    def _near(self, call: SeenCall, earlier: SeenCall) -> bool:
        """Say whether the calls are near enough to each other."""


@frozen
class InFlight(_Narrowed):
    """Calls that are under way at the same time: they run once."""

    @property
    def remembers(self) -> bool:
        """No: what has ended is over."""
        return False

    def _near(self, call: SeenCall, earlier: SeenCall) -> bool:
        del call
        return earlier.ended is None


@frozen
class WithinSeconds(_Narrowed):
    """Calls of which one comes while the other is under way, or at most this long after it ended.

    Attributes:
        seconds: how long.
    """

    seconds: float = field(validator=ge(0))

    def _near(self, call: SeenCall, earlier: SeenCall) -> bool:
        return earlier.ended is None or call.began - earlier.ended <= self.seconds


@frozen
class WithinSteps(_Narrowed):
    """Calls of one execution that are at most this many steps apart; 0 for those of one message.

    Attributes:
        steps: how many.
    """

    steps: int = field(validator=ge(0))

    def _near(self, call: SeenCall, earlier: SeenCall) -> bool:
        return call.execution_id == earlier.execution_id and call.step - earlier.step <= self.steps


def deduplicator_of(policy: DeduplicatePolicy) -> Deduplicator:
    """Return what says which calls are the same, as a policy asks for."""
    by = ExactCalls() if policy.by is None else policy.by
    found = by if isinstance(by, Deduplicator) else SimilarCalls(by)
    if policy.seconds is not None:
        found = WithinSeconds(policy.seconds, of=found)
    if policy.steps is not None:
        found = WithinSteps(policy.steps, of=found)
    return InFlight() if policy.by is None and policy.seconds is None and policy.steps is None else found


@define(eq=False)
class Flight:
    """A call that runs or has run.

    Attributes:
        call: the call.
        key: its idempotency key.
        group: its group.
        outcome: its execution, if it succeeded.
        in_doubt: whether it was cut off in a way that leaves open what it did.
    """

    call: SeenCall
    key: str
    group: Hashable
    outcome: ToolExecution | None = None
    in_doubt: bool = False
    _landed: asyncio.Event | None = None

    async def land(self) -> None:
        """Wait until the call has ended."""
        if self.call.ended is None:
            if self._landed is None:
                self._landed = asyncio.Event()
            await self._landed.wait()

    def end(self, at: float) -> None:
        """Note that the call has ended, and wake those who wait for it."""
        self.call = evolve(self.call, ended=at)
        if self._landed is not None:
            self._landed.set()


@define(eq=False)
class SeenCalls:
    """The flights of one execution, or of all executions on one event loop.

    Attributes:
        most: how many that have ended are kept; the oldest go first.
    """

    most: int
    _groups: dict[Hashable, list[Flight]] = field(factory=dict)
    _ended: OrderedDict[Flight, None] = field(factory=OrderedDict)

    def find(self, call: SeenCall, group: Hashable, deduplicator: Deduplicator) -> Flight | None:
        """Return the newest flight that this call is the same as."""
        for flight in reversed(self._groups.get(group, ())):
            if deduplicator.is_same(call, flight.call):
                return flight
        return None

    def begin(self, call: SeenCall, key: str, group: Hashable) -> Flight:
        """Note a call that is going to run."""
        flight = Flight(call, key, group)
        self._groups.setdefault(group, []).append(flight)
        return flight

    def end(self, flight: Flight, at: float, *, keep: bool) -> None:
        """Note that a call has ended; it is kept if it may come again."""
        flight.end(at)
        if not keep:
            self._drop(flight)
            return
        self._ended[flight] = None
        if len(self._ended) > self.most:
            self._drop(self._ended.popitem(last=False)[0])

    def clear(self) -> None:
        """Forget everything."""
        self._groups.clear()
        self._ended.clear()

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def _drop(self, flight: Flight) -> None:
        group = self._groups.get(flight.group, [])
        if flight in group:
            group.remove(flight)
        if not group:
            self._groups.pop(flight.group, None)


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
        here = scope.local_resources.open(object(), self._nothing_seen, SeenCalls.clear)
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
        place = parse_key(point.key)
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
