"""Single flight: of several calls that are the same, one runs."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Self
from weakref import WeakKeyDictionary

from attrs import define, evolve, field, frozen
from attrs.converters import optional as none_or
from attrs.validators import ge

from agentloop.contracts.can_tell_controls import Control
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.run_log import CallLog
from agentloop.events.resilience import ToolCallDeduplicated
from agentloop.policies.resilience.layer import (
    DEDUPLICATE_PRIORITY,
    CallerOf,
    ResilienceLayer,
    calling_agent,
    check_caller,
    is_repeatable,
    name_caller,
    step_of,
)
from agentloop.tools.fitting import comparable_arguments
from agentloop.values.batches import settled_calls
from agentloop.values.decisions import CallSuspended
from agentloop.values.json import canonical_json, freeze_object
from agentloop.values.owners import Asker
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.policies import CallPolicy, DeduplicatePolicy, Deduplicator, SeenCall, Similarity
from agentloop.values.tool_calls import ToolExecution, ToolSpec, ToolStatus
from agentloop.values.value import instance_of

# --- which calls are the same -----------------------------------------------------------------------------------


@frozen
class ExactCalls(Deduplicator):
    """Calls are the same if they have the same tool, caller and arguments."""

    def group(self, call: SeenCall) -> Hashable:
        """Group by tool, caller and arguments."""
        return call.name, call.caller, canonical_json(call.arguments)

    def is_same(self, call: SeenCall, earlier: SeenCall) -> bool:
        """Return True: all calls of a group are the same."""
        del call, earlier
        return True


@frozen
class SimilarCalls(Deduplicator):
    """Calls of one tool and caller are the same if a function says so.

    Attributes:
        similar: the function.
    """

    similar: Similarity

    def group(self, call: SeenCall) -> Hashable:
        """Group by tool and caller."""
        return call.name, call.caller

    def is_same(self, call: SeenCall, earlier: SeenCall) -> bool:
        """Call the function.

        Raises:
            TypeError: it returned neither True nor False.
        """
        verdict: object = self.similar(call, earlier)
        # Not its truth value: that of a coroutine is true, so that no two calls would be different.
        if not isinstance(verdict, bool):
            raise TypeError(f"the function that compares calls returned {verdict!r:.100}; it returns True or False")
        return verdict


@frozen
class _Narrowed(Deduplicator):
    """The base class of deduplicators that add a condition to another one.

    Attributes:
        inner: the other deduplicator.
    """

    inner: Deduplicator = field(factory=ExactCalls, kw_only=True)

    def group(self, call: SeenCall) -> Hashable:
        """Group as the inner deduplicator does."""
        return self.inner.group(call)

    def is_same(self, call: SeenCall, earlier: SeenCall) -> bool:
        """Check the condition, then the inner deduplicator."""
        return self._is_near(call, earlier) and self.inner.is_same(call, earlier)

    @abstractmethod
    def _is_near(self, call: SeenCall, earlier: SeenCall) -> bool:
        """Return whether the calls are near enough to each other."""


@frozen
class InFlight(_Narrowed):
    """Calls are the same while one of them is running, and if they belong to one answer of a model.

    Whether equal calls of one answer run once does not depend on how many run at the same time, nor on which ends first.
    """

    @property
    def remembers(self) -> bool:
        """False: a call that has ended is not the same as one of a later answer."""
        return False

    def _is_near(self, call: SeenCall, earlier: SeenCall) -> bool:
        is_same_step = call.execution_id == earlier.execution_id and call.step == earlier.step
        return earlier.ended is None or is_same_step


@frozen
class WithinSeconds(_Narrowed):
    """Calls are the same while one of them is running, and for some seconds after it has ended.

    Attributes:
        seconds: how long.
    """

    seconds: float = field(validator=ge(0))

    def _is_near(self, call: SeenCall, earlier: SeenCall) -> bool:
        return earlier.ended is None or call.began - earlier.ended <= self.seconds


@frozen
class WithinSteps(_Narrowed):
    """Calls of one execution are the same if they are at most so many steps apart.

    Attributes:
        steps: the maximum distance; 0 for calls of one step.
    """

    steps: int = field(validator=ge(0))

    def _is_near(self, call: SeenCall, earlier: SeenCall) -> bool:
        return call.execution_id == earlier.execution_id and call.step - earlier.step <= self.steps


def create_deduplicator(policy: DeduplicatePolicy) -> Deduplicator:
    """Return the deduplicator that a policy describes."""
    by = None if isinstance(policy.by, str) else policy.by
    if by is None and policy.seconds is None and policy.steps is None:
        return InFlight()
    deduplicator = ExactCalls() if by is None else _as_deduplicator(by)
    if policy.seconds is not None:
        deduplicator = WithinSeconds(policy.seconds, inner=deduplicator)
    if policy.steps is not None:
        deduplicator = WithinSteps(policy.steps, inner=deduplicator)
    return deduplicator


def asker_in(policy: DeduplicatePolicy) -> Asker | None:
    """Return for whom calls are the same; None for what the layer says."""
    return policy.by if isinstance(policy.by, str) else None


def _as_deduplicator(by: Deduplicator | Similarity) -> Deduplicator:
    if isinstance(by, Deduplicator):
        return by
    if callable(by):
        return SimilarCalls(by)
    raise TypeError(f"a deduplicator is a Deduplicator or a function of two calls, not {by!r}")


# --- the calls --------------------------------------------------------------------------------------------------


@define(eq=False)
class TrackedCall:
    """A call that is running, or has run and is remembered.

    Attributes:
        call: the call.
        key: its idempotency key.
        group: its group.
        outcome: its execution; None while it is running, and if it did not succeed.
        is_in_doubt: whether it may have had an effect although it did not succeed. It counts as a call that is running, since it
            is unknown whether it has ended.
        is_suspended: whether its tool has suspended it. It is in doubt for others until it has ended.
    """

    call: SeenCall
    key: str
    group: Hashable
    outcome: ToolExecution | None = None
    is_in_doubt: bool = False
    is_suspended: bool = False
    _has_ended: asyncio.Event | None = None

    async def wait(self) -> None:
        """Wait until the call has ended."""
        # Created on demand: most calls have no duplicate that waits for them.
        if self.call.ended is None and not self.is_in_doubt:
            if self._has_ended is None:
                self._has_ended = asyncio.Event()
            await self._has_ended.wait()

    def end(self, at: float) -> None:
        """Mark the call as ended, unless it is in doubt, and wake those that wait for it."""
        if not self.is_in_doubt:
            self.call = evolve(self.call, ended=at)
        if self._has_ended is not None:
            self._has_ended.set()


@define(eq=False)
class TrackedCalls:
    """The calls of one execution, or of all executions on one event loop.

    Attributes:
        max_remembered: the maximum number of calls that have succeeded, and of calls in doubt; the oldest are forgotten first.
    """

    max_remembered: int
    _log: CallLog | None = None
    _earlier: Sequence[ToolExecution] | None = None
    _restored: set[str] = field(factory=set)
    _in_doubt: OrderedDict[TrackedCall, None] = field(factory=OrderedDict)
    _groups: dict[Hashable, list[TrackedCall]] = field(factory=dict)
    _ended: OrderedDict[TrackedCall, None] = field(factory=OrderedDict)
    # The calls that are remembered for their step alone, and where each is tracked.
    _ended_in_step: list[tuple[TrackedCall, TrackedCalls]] = field(factory=list)

    def executions_before(self, point: AroundToolUse) -> Sequence[ToolExecution]:
        """Return the calls of a tool that began before the first call in this scope, at the first call of the tool.

        They were tracked in another scope, before the execution was suspended or interrupted. Those of the interrupted step are
        in the journal alone; one without an outcome may have run.
        """
        if self._earlier is None:
            recorded = () if self._log is None else self._log.recorded_calls()
            settled = [execution for step in point.state.steps for execution in settled_calls(step)]
            self._earlier = [*settled, *[call.to_execution() for call in recorded]]
        if not self._earlier or point.call.name in self._restored:
            return ()
        self._restored.add(point.call.name)
        return [execution for execution in self._earlier if execution.name == point.call.name]

    def find(self, call: SeenCall, group: Hashable, deduplicator: Deduplicator) -> TrackedCall | None:
        """Return the newest call that is the same as this one."""
        # The newest first: of calls within a time or a number of steps, it is the most likely match.
        for tracked in reversed(self._groups.get(group, ())):
            if deduplicator.is_same(call, tracked.call):
                return tracked
        return None

    def begin_step(self, step: int) -> None:
        """Forget the calls that were remembered for another step of the execution."""
        if self._ended_in_step and self._ended_in_step[0][0].call.step != step:
            self._forget_step()

    def keep_in_step(self, tracked: TrackedCall, calls: TrackedCalls) -> None:
        """Remember a call of this execution, which is tracked among these calls, for its step."""
        self._ended_in_step.append((tracked, calls))

    def start(self, call: SeenCall, key: str, group: Hashable) -> TrackedCall:
        """Add a call that is about to run."""
        tracked = TrackedCall(call, key, group)
        self._groups.setdefault(group, []).append(tracked)
        return tracked

    def end(self, tracked: TrackedCall, at: float, *, remember: bool, own: TrackedCalls | None = None) -> None:
        """Mark a call as ended; forget it at once, in the next step, or when there are too many.

        Args:
            tracked: the call.
            at: the time.
            remember: whether to remember it, as long as there are not too many.
            own: the calls of its execution, to remember it at least for its step; None to forget it at once.
        """
        tracked.end(at)
        if not remember:
            if own is not None:
                own.keep_in_step(tracked, self)
            else:
                self.forget(tracked)
            return
        # Counted apart, so that successes do not displace a call that must not run again.
        remembered = self._in_doubt if tracked.is_in_doubt else self._ended
        remembered[tracked] = None
        if len(remembered) > self.max_remembered:
            self.forget(remembered.popitem(last=False)[0])

    def clear(self) -> None:
        """Forget all calls."""
        self._forget_step()
        self._groups.clear()
        self._ended.clear()
        self._in_doubt.clear()

    def _forget_step(self) -> None:
        for tracked, calls in self._ended_in_step:
            calls.forget(tracked)
        self._ended_in_step.clear()

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def forget(self, tracked: TrackedCall) -> None:
        """Forget a call."""
        self._in_doubt.pop(tracked, None)
        group = self._groups.get(tracked.group, [])
        if tracked in group:
            group.remove(tracked)
        if not group:
            self._groups.pop(tracked.group, None)


# --- the layer --------------------------------------------------------------------------------------------------

_ENCLOSING_CALLS: ContextVar[tuple[TrackedCall, ...]] = ContextVar("agentloop enclosing calls", default=())
"""The tracked calls inside which this code runs: a call that one of them makes must not wait for it."""


@frozen
class Deduplicate(ResilienceLayer):
    """Runs one of several calls that are the same, and gives its result to the others (single flight).

    Only a successful result is shared: when the call that ran did not succeed, the next one runs itself, one at a time. Calls of
    a tool with an effect are an exception: after one that may have run, the others fail instead of running, at any later time. If
    a tool declares no deduplication, `by` applies to it if it is pure or idempotent.

    Attributes:
        by: which calls of tools that do not declare it are the same: a deduplicator, or a function of two calls. By default,
            calls with the same arguments of one answer, or while one of them is running; None for no calls.
        caller: on whose behalf a call is made: what a function of the point returns, by default the agent; or the `principal` or
            the `tenant` who asks. `any_caller` makes calls of all callers the same. These words as the `by` of a policy take
            precedence.
        across_executions: whether calls of different executions can be the same, for tools that do not declare it. Calls wait
            for each other only on one event loop.
        effects: whether `by` applies to tools with an effect too; some of their calls then do not run.
        max_remembered: the maximum number of remembered calls that have ended.
        priority: the position among other interceptors.
    """

    by: Deduplicator | None = field(factory=InFlight, converter=none_or(_as_deduplicator))
    caller: CallerOf = field(default=calling_agent, kw_only=True, validator=check_caller)
    across_executions: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    effects: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    max_remembered: int = field(default=1000, validator=ge(1), kw_only=True)
    priority: int = field(default=DEDUPLICATE_PRIORITY, kw_only=True)
    _calls_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, TrackedCalls] = field(
        factory=WeakKeyDictionary, repr=False, eq=False, kw_only=True
    )
    _calls_of_execution: TrackedCalls | None = field(default=None, repr=False, eq=False, kw_only=True)
    writes = ("outcome",)  # type: tuple[str, ...]  # an annotation would be a field

    @property
    def allows_eager_start(self) -> bool:
        """Whether it joins only equal calls that run at the same time in one execution, of which one alone starts early."""
        return self.by is None or (self.by == InFlight() and not self.across_executions)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that uses the clock of the loop and tracks the calls of this execution."""
        # The key is a new object, so that two layers in one stack do not share their calls.
        create = partial(TrackedCalls, self.max_remembered, scope.log)
        calls = scope.local_resources.open(object(), create, TrackedCalls.clear)
        return evolve(self, clock=scope.clock, calls_of_execution=calls)

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # the tool alone counts
        """Return which calls are answered with the result of another call."""
        of = "" if policy.deduplicate is not None else "undeclared"
        if of and self._by_for(tool) is None:
            return []
        return [Control("reuses", "results of calls that are the same", of=of, is_sure=False)]

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Run the call, or wait for the result of one that is the same."""
        policy = point.policy.deduplicate
        by = create_deduplicator(policy) if policy is not None else self._by_for(point.tool)
        if by is None:
            return await proceed()
        calls = self._calls(across_executions=self.across_executions if policy is None else policy.across_executions)
        caller = self.caller if policy is None else asker_in(policy) or self.caller
        call = self._seen_call(point, caller)
        if self._calls_of_execution is not None:
            self._calls_of_execution.begin_step(call.step)
            self._restore(point, self._calls_of_execution.executions_before(point), calls, by, caller)
        group = by.group(call)
        # Searched again after each wait: when a call has failed, one of those that waited runs, and the others wait for it.
        while True:
            earlier = calls.find(call, group, by)
            if earlier is not None and earlier.is_suspended and earlier.key == point.key:
                calls.forget(earlier)  # it is resumed
                continue
            if earlier is None or earlier in _ENCLOSING_CALLS.get():
                tracked = calls.start(call, point.key, group)
                return await self._run(point, proceed, calls, tracked, remember=by.remembers)
            await earlier.wait()
            if earlier.outcome is not None:
                self._report_end(ToolCallDeduplicated, point, earlier.key)
                same = earlier.outcome
                return point.succeed(same.value, same.content, label=same.label)
            if earlier.is_in_doubt:
                return _in_doubt(point)

    def _by_for(self, tool: ToolSpec) -> Deduplicator | None:
        """Return the deduplicator for calls of a tool that declares none."""
        return self.by if self.effects or is_repeatable(tool) else None

    async def _run(
        self,
        point: AroundToolUse,
        proceed: ProceedToolUse,
        calls: TrackedCalls,
        tracked: TrackedCall,
        *,
        remember: bool,
    ) -> ToolExecution:
        token = _ENCLOSING_CALLS.set((*_ENCLOSING_CALLS.get(), tracked))
        in_doubt = False
        try:
            execution = await proceed()
            if execution.succeeded:
                tracked.outcome = execution
            else:
                in_doubt = _may_have_had_effect(execution)
                tracked.is_suspended = execution.error is not None and execution.error.type == CallSuspended.__name__
            return execution
        finally:
            _ENCLOSING_CALLS.reset(token)
            if tracked.outcome is None:
                # Also when this task is cancelled, or a layer inside this one has replaced the outcome or raised.
                tracked.is_in_doubt = (in_doubt or point.may_have_run) and not is_repeatable(point.tool)
            remember = tracked.is_in_doubt or (remember and tracked.outcome is not None)
            own = None if tracked.outcome is None else self._calls_of_execution
            calls.end(tracked, self._clock.monotonic(), remember=remember, own=own)

    def _restore(  # the calls, and what compares them
        self,
        point: AroundToolUse,
        executions: Sequence[ToolExecution],
        calls: TrackedCalls,
        by: Deduplicator,
        caller: CallerOf,
    ) -> None:
        """Track calls of the tool that began before the execution was resumed."""
        for execution in executions:
            in_doubt = _may_have_had_effect(execution) and not is_repeatable(point.tool)
            earlier_point = evolve(point, call=execution.call, key=execution.key)
            in_step = step_of(earlier_point) == step_of(point)
            remember = in_doubt or by.remembers
            if not in_doubt and not (execution.succeeded and (remember or in_step)):
                continue
            age = (self._clock.now() - execution.ended_at).total_seconds()
            earlier = self._seen_call(earlier_point, caller)
            call = evolve(earlier, began=earlier.began - age)
            tracked = calls.start(call, execution.key, by.group(call))
            tracked.outcome, tracked.is_in_doubt = None if in_doubt else execution, in_doubt
            tracked.is_suspended = in_doubt  # a call whose outcome is not recorded may itself run again
            calls.end(tracked, call.began, remember=remember, own=self._calls_of_execution)

    def _calls(self, *, across_executions: bool) -> TrackedCalls:
        if self._calls_of_execution is not None and not across_executions:
            return self._calls_of_execution
        # Calls of another event loop, in another thread, could not be waited for.
        loop = asyncio.get_running_loop()
        calls = self._calls_of_loops.get(loop)
        if calls is None:
            calls = self._calls_of_loops[loop] = TrackedCalls(self.max_remembered)
        return calls

    def _seen_call(self, point: AroundToolUse, caller: CallerOf) -> SeenCall:
        step = step_of(point)
        return SeenCall(
            name=point.call.name,
            arguments=freeze_object(comparable_arguments(point.arguments, point.tool)),
            caller=name_caller(caller, point),
            execution_id=point.state.execution_id,
            step=step if step is not None else point.state.step_count + 1,
            began=self._clock.monotonic(),
        )


def _may_have_had_effect(execution: ToolExecution) -> bool:
    # The status alone is what a layer says that has asked elsewhere, of a tool that has not begun here.
    return execution.may_have_run or execution.status is ToolStatus.IN_DOUBT


def _in_doubt(point: AroundToolUse) -> ToolExecution:
    execution = point.fail(
        f"the same call of {point.call.name!r} did not succeed and may have run: not run again; find out what it did first",
        type="DuplicateInDoubt",
    )
    return evolve(execution, may_have_run=True)
