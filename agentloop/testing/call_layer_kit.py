"""The law suite of layers around calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime
from itertools import count
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

from attrs import define, evolve, field, frozen
from hypothesis import strategies as st

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import CanCallTools, InnerCalls, Tool
from agentloop.errors import ContractViolation
from agentloop.executors.admission import Admission, CanLayerCalls
from agentloop.executors.call import Call
from agentloop.executors.call_layers import Attempt, CallLayer, CallOutcome, RunCall, UseTool
from agentloop.executors.tool_executor import ExecutorBinding, ToolExecutor
from agentloop.interception.interceptor import Interceptor
from agentloop.testing.blocking import YIELDING, refuse_blocking
from agentloop.testing.executor_kit import BatchRun, BatchRunner, ExecutorKit, call_keys, with_turn
from agentloop.testing.journal_bench import CrashableJournal
from agentloop.testing.kit import LawNotChecked, checked_factory, find_difference, require
from agentloop.testing.scenario import waiting_calls
from agentloop.testing.surroundings import require_no_trace
from agentloop.testing.toys import (
    BATCHES,
    CANCELLATIONS,
    PARAMETERS,
    Doorkeeper,
    Gatekeeper,
    decide_toys,
    toy_call,
)
from agentloop.tools.validation import SchemaValidator
from agentloop.values.batches import ToolCalls, ready_calls
from agentloop.values.decisions import Answer, CallSuspended, Decision, Deny, PendingCall
from agentloop.values.json import JsonObject, thaw
from agentloop.values.points import AfterToolUse, AroundToolUse, BeforeToolUse, ProceedToolUse
from agentloop.values.records import RecordKind
from agentloop.values.serialization import to_plain
from agentloop.values.steps import SuspendedTurn
from agentloop.values.tool_calls import Effect, ToolCall, ToolExecution, ToolStatus

T = TypeVar("T")

NESTING = 58
"""The number of the law about layers."""
_AGENTS = ("ada", "bob")
_EFFECTS = st.sampled_from([Effect.EFFECT, Effect.IDEMPOTENT, Effect.PURE])
_CANCELLATIONS = 3
"""How often a batch is cancelled before another one runs inside of the same feature."""
_SECONDS_TO_STOP = 60.0
"""How long a layer may take to end what was cancelled."""
_MAX_DECISIONS = 12
"""How often a batch of a few calls can be suspended."""
_NAMES = ("echo", "fail", "keyed", "alone", "whoami", "broken", "defer", "hasty")
_CALLS = st.lists(
    st.builds(toy_call, st.sampled_from(_NAMES), st.integers(1, 30), seconds=st.sampled_from([0, 0.5, 2])),
    min_size=1,
    max_size=4,
)
"""Calls of which some fail, time out, or are suspended by their tools."""
_DELEGATED = st.lists(
    st.builds(toy_call, st.sampled_from(["delegate", "echo", "fail"]), st.integers(1, 30)), min_size=1, max_size=3
)
_PLAIN = ("echo", "whoami", "keyed", "fail")
_NAMED = ("echo", "whoami", "keyed")
"""Toys whose names no result has by accident."""
_BELATED = 0.25
"""How long a layer of the kit takes to note an outcome, where the batch is cancelled meanwhile."""
_MARK = 7001
"""The value of the first call of a batch in which each call has its own; no text has such a number by accident."""


class CallLayerKit(ExecutorKit):
    """Checks layers around calls against the laws of `CanLayerCalls`, between a layer outside and one inside of them.

    Layers that refuse calls, suspend them, answer them or change what they return keep the laws. A feature that keeps account of what
    has begun and not ended shows that to the kit:

        CallLayerKit(Spans, begun=lambda spans: spans.open_spans)

    Args:
        factory: creates the feature of a new execution.
        begun: returns what a feature has begun and not ended, such as a list of open spans; None for a feature that does not know.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (1, 8, 9, 10, 11, 14, 16, 17, 19, 21, 22, 25, 34, 35, 38, YIELDING, NESTING)
    sentences: ClassVar[Mapping[int, str]] = MappingProxyType(
        {
            14: "Effects: a layer proceeds once in `run`; it repeats no attempt that may have had an effect, and refuses no call "
            "that has begun before.",
            25: "Facts: no layer changes which call an outcome belongs to, when the call started, and whether it may have run.",
            35: "Points: a layer that uses the tool of a call proceeds to the layers inside.",
        }
    )

    def __init__(
        self,
        factory: Callable[[], CanLayerCalls],
        *,
        begun: Callable[[Any], object] | None = None,
        examples: int = 100,
    ) -> None:
        self.feature: Callable[[], CanLayerCalls] = checked_factory(factory)
        self.begun = begun
        super().__init__(lambda: LayeredExecutor(features=lambda: (self.feature(),)), examples=examples)

    def require_working(self) -> None:
        """Check that the feature can be created, and that a batch of one call ends.

        Raises:
            LawNotChecked: it cannot, or the batch raises an error.
        """
        self.feature()
        run = self._run(self._bench().run([toy_call("echo", 1)]))
        if run.error is not None:
            raise LawNotChecked(f"a batch of one call of the toy `echo` raised {run.error!r}")

    def _watch(self) -> _Watch:
        return _Watch(self.feature(), self.begun)

    def _watched(self, watch: _Watch, *interceptors: CanIntercept, effect: Effect = Effect.EFFECT) -> BatchRunner:
        bench = self._bench(*interceptors, executor=watch.executor, effect=effect)
        return evolve(bench, more=(_Delegating(),))

    def law_9(self) -> None:
        """A call has its own outcome, whatever runs beside it, and an execution the outcomes that it has alone."""
        super().law_9()
        self.for_all(st.lists(st.sampled_from(_PLAIN), min_size=2, max_size=5), self._check_traces)
        self.for_all(st.tuples(_CALLS, _EFFECTS), lambda example: self._run(self._check_alone(*example)))

    def _check_traces(self, names: Sequence[str]) -> None:
        """Check that no outcome has the value or the name of another call of its batch."""
        calls = [toy_call(name, _MARK + place, seconds=place % 2) for place, name in enumerate(names)]
        run = self._run(self._watched(self._watch()).run(calls))
        if len(run.executions) < len(calls):
            return
        for place, (call, outcome) in enumerate(zip(calls, run.executions, strict=True)):
            marks = [str(_MARK + other) for other in range(len(calls)) if other != place]
            marks += [name for name in _NAMED if name in names and name != call.name]
            if outcome.succeeded:
                require_no_trace(9, [outcome.text], marks, of=f"the outcome of {call.name} of {_MARK + place}")

    async def _check_alone(self, calls: Sequence[ToolCall], effect: Effect) -> None:
        """Check that executions give the same one after the other and while others have begun."""

        async def run(name: str, begins: float) -> dict[str, object]:
            await asyncio.sleep(begins)
            return _summary(await self._watched(self._watch(), effect=effect).run(calls, name=name))

        alone = [await run(name, 0) for name in _AGENTS]
        together = await asyncio.gather(*[run(name, place / 4) for place, name in enumerate(_AGENTS)])
        for name, *both in zip(_AGENTS, alone, together, strict=True):
            differs = find_difference(*both)
            require(9, not differs, f"beside another execution, that of {name} differs from the one alone at {differs}")

    def law_11(self) -> None:
        """A call at which an interceptor inside has raised does not run or succeed, and the batch raises."""

        def holds(example: tuple[list[ToolCall], str, Effect]) -> None:
            calls, point, effect = example
            raising = _Raising(point)
            run = self._run(self._bench(raising, effect=effect).run(calls))
            if not raising.keys:
                return
            require(11, point == "after_tool_use" or not run.ran, f"{point} raised, and these calls ran: {run.ran}")
            passed = [each.key for each in run.executions if each.succeeded and each.key in raising.keys]
            require(11, not passed, f"{point} raised at the calls {', '.join(passed)}, and they succeeded")
            require(11, run.error is not None, f"{point} raised, and the batch did not")

        batches = st.lists(st.builds(toy_call, st.sampled_from(_PLAIN), st.integers(0, 9)), min_size=1, max_size=3)
        points = st.sampled_from(["before_tool_use", "around_tool_use", "after_tool_use"])
        self.for_all(st.tuples(batches, points, _EFFECTS), holds)

    def law_14(self) -> None:
        """A call runs once, and an effect has one attempt; a call that began before a crash is in doubt, or has its outcome."""

        def holds(example: tuple[list[ToolCall], Effect]) -> None:
            calls, effect = example
            watch = self._watch()
            self._run(self._watched(watch, effect=effect).run(calls))
            for key, runs in Counter(each.key for each in watch.inside.of("run")).items():
                require(14, runs == 1, f"the call {key} ran {runs} times: `run` proceeded again")
            for key, uses in watch.uses().items() if effect is Effect.EFFECT else ():
                said = f"the tool of the call {key} has an effect, and was used {uses} times"
                require(14, uses == 1, said)

        self.for_all(st.tuples(_CALLS, _EFFECTS), holds)
        names = st.lists(st.sampled_from(["echo", "whoami", "alone", "keyed"]), min_size=1, max_size=4)
        self.for_all(st.tuples(names, st.floats(0, 1)), lambda example: self._run(self._check_interruption(*example)))

    async def _check_interruption(self, names: Sequence[str], share: float) -> None:
        """Execute a batch, discard the last records as a crash does, and execute the batch again."""
        calls = [toy_call(name, place) for place, name in enumerate(names)]
        journal = CrashableJournal()
        first = await self.run_journaled(calls, journal)
        survived = await journal.after_crash(1 + round(share * (len(journal.appended) - 1)))
        started = call_keys(survived, RecordKind.CALL_INTENT, "intent")
        ended = call_keys(survived, RecordKind.CALL_OUTCOME, "execution")
        watch = self._watch()
        second = await self.run_journaled(calls, survived, watch.executor)
        before, after = [{each.key: each for each in run.executions} for run in (first, second)]
        again = {key for key in watch.uses() if key in started}
        require(14, not again, f"the calls {sorted(again)} began before a crash, and their tools were used again")
        for key in sorted(started):
            outcome = after.get(key)
            if key in ended and key in before:
                same = outcome is not None and outcome.value == before[key].value
                require(14, same, f"the call {key} has the recorded outcome {before[key].value!r}, and gave {outcome}")
            else:
                doubt = outcome is not None and outcome.status is ToolStatus.IN_DOUBT
                require(14, doubt, f"the call {key} began before a crash, and is not in doubt: {outcome}")

    def law_16(self) -> None:
        """A call that waits goes on to wait until it is decided, and is then what was decided."""
        batches = waiting_calls("echo", "whoami", "keyed", "defer")
        self.for_all(batches, lambda calls: self._run(self._check_waiting(calls)))

    async def _check_waiting(self, calls: Sequence[ToolCall]) -> None:
        watch = self._watch()
        run = await self._watched(watch, Doorkeeper()).run(calls)
        keys, executions = ToolCalls.of(calls, run.state).keys, dict[str, ToolExecution]()
        decided: dict[str, Decision] = {}
        for _ in range(_MAX_DECISIONS):
            require(16, run.answer is not None, f"the batch raised {run.error!r}, and is lost")
            pending = {call.key: call for call in (run.answer.pending if run.answer is not None else ())}
            executions |= {each.key: each for each in run.executions}
            _require_waiting(watch, pending, decided)
            for key, decision in decided.items():
                is_used = bool(watch.uses()[key]) and isinstance(decision, Deny | Answer)
                require(16, not is_used, f"{decision!r} was decided about the call {key}, and its tool was used")
                if isinstance(decision, Deny):
                    status = executions[key].status if key in executions else None
                    require(16, status is ToolStatus.BLOCKED, f"the call {key} was denied, and its status is {status}")
            if not pending:
                return
            decided = decide_toys(tuple(pending.values()))
            slots = [evolve(call, decision=decided.get(call.key)) for call in pending.values()]
            turn = SuspendedTurn.of(tuple(calls), tuple(keys), tuple(executions.values()), tuple(slots))
            watch = self._watch()
            bench = self._watched(watch, Doorkeeper())
            run = await bench.run((), batch=ready_calls(turn), state=with_turn(run.after, turn))
        require(16, condition=False, reason=f"after {_MAX_DECISIONS} decisions, the calls still wait")

    def law_17(self) -> None:
        """Whatever a layer makes of a call, its tool gets arguments that satisfy the schema."""
        validator = SchemaValidator(PARAMETERS)

        def holds(example: tuple[list[ToolCall], Effect]) -> None:
            calls, effect = example
            for name, arguments in self._run(self._bench(effect=effect).run(calls)).ran:
                require(17, validator.accepts(arguments), f"{name} was called with {arguments}")

        self.for_all(st.tuples(BATCHES, _EFFECTS), holds)

    def law_25(self) -> None:
        """An outcome keeps its id, its key, its call and its start, what it says about effects, and the calls inside of it."""

        def holds(example: tuple[list[ToolCall], Effect]) -> None:
            calls, effect = example
            watch = self._watch()
            run = self._run(self._watched(watch, effect=effect).run([*calls, *calls[:2]]))
            outcomes = {each.key: each for each in run.executions}
            keys = [each.key for each in run.executions]
            require(25, len(outcomes) == len(keys), f"two outcomes of the batch have the same key, of {keys}")
            for key, call in watch.inside.calls.items():
                if key in outcomes:
                    _require_facts(outcomes[key], call, watch.inside.result_of(key))
            unknown = sorted(outcomes.keys() - watch.inside.calls.keys())
            require(25, not unknown, f"the batch has outcomes of {unknown}, which nobody has called")

        self.for_all(st.tuples(_CALLS, _EFFECTS), holds)
        self.for_all(st.tuples(_DELEGATED, _EFFECTS), holds)

    def law_34(self) -> None:
        """A cancellation leaves the layer as it came, nothing inside runs on, and the feature serves the next batch."""

        def holds(example: tuple[list[ToolCall], float]) -> None:
            self._run(self._check_cancelled(*example))

        times = st.sampled_from(CANCELLATIONS)
        self.for_all(st.tuples(waiting_calls("echo", "alone", "keyed").map(_slowed), times), holds)

    async def _check_cancelled(self, calls: Sequence[ToolCall], cancel_after: float) -> None:
        feature = self.feature()
        for _ in range(_CANCELLATIONS):  # each may leave something behind
            watch, cancelled_at = _Watch(feature, self.begun), asyncio.get_running_loop().time() + cancel_after
            run = await self._watched(watch).run(calls, cancel_after=cancel_after)
            if not run.was_cancelled:
                break
            open_ones = [f"`{each.hook}` of {each.key}" for each in watch.inside.passages if each.is_open]
            require(
                34, not open_ones, f"the batch was cancelled, and inside of the layer {', '.join(open_ones)} goes on"
            )
            is_raised = isinstance(run.error, asyncio.CancelledError)
            require(34, is_raised, f"the batch was cancelled, and gave {run.error!r}")
            require(34, not run.late, f"these calls began after the cancellation: {run.late}")
            said = f"the batch ended {run.seconds_to_end:g} seconds after its cancellation"
            require(34, run.seconds_to_end <= _SECONDS_TO_STOP, said)
            for passage in watch.inside.passages:
                if isinstance(passage.outcome, asyncio.CancelledError) and passage.ended_at >= cancelled_at:
                    outer = watch.outside.last(passage)
                    is_raised = outer is None or isinstance(outer.outcome, asyncio.CancelledError)
                    said = "" if outer is None else f"{outer.outcome!r:.200}"
                    require(
                        34, is_raised, f"`{passage.hook}` of {passage.key} was cancelled, and the layer gave {said}"
                    )
        again = await self._watched(_Watch(feature, self.begun)).run([toy_call("echo", 1)])
        require(34, again.error is None, f"a batch after one that was cancelled raised {again.error!r}")

    def law_35(self) -> None:
        """A tool is used by the layers inside, as often as they see it."""

        def holds(example: tuple[list[ToolCall], Effect]) -> None:
            calls, effect = example
            watch = self._watch()
            run = self._run(self._watched(watch, effect=effect).run(calls))
            ran = Counter(name for name, _ in run.ran)
            seen = Counter(watch.inside.calls[each.key].call.name for each in watch.inside.of("use"))
            beside = ran - seen
            require(35, not beside, f"these tools were used without the layers inside: {', '.join(sorted(beside))}")

        self.for_all(st.tuples(_CALLS, _EFFECTS), holds)

    def law_38(self) -> None:
        """A tool that stops the execution stops it."""

        def holds(effect: Effect) -> None:
            run = self._run(self._bench(effect=effect).run([toy_call("stop", 1)]))
            if run.ran:
                execution = run.after.execution
                signals = () if execution is None else execution.continuation.signals
                require(38, signals, "a tool raised AgentStop, and the state has no stop signal")

        self.for_all(_EFFECTS, holds)

    def law_45(self) -> None:
        """No layer blocks the event loop."""

        def holds(example: tuple[list[ToolCall], Effect]) -> None:
            calls, effect = example
            self._run(self._watched(self._watch(), Gatekeeper(), effect=effect).run(calls))

        self.for_all(st.tuples(_CALLS, _EFFECTS), refuse_blocking(holds))

    def law_58(self) -> None:
        """The layers inside have ended when the layer ends, in every hook, and so has what the layer has begun."""

        def holds(example: tuple[list[ToolCall], Effect, float | None]) -> None:
            calls, effect, cancel_after = example
            watch = self._watch()
            self._run(self._watched(watch, Gatekeeper(), effect=effect).run(calls, cancel_after=cancel_after))
            watch.require_nested()
            watch.require_ended()

        times = st.sampled_from([None, None, *CANCELLATIONS])
        self.for_all(st.tuples(st.one_of(_DELEGATED, _CALLS), _EFFECTS, times), holds)
        self.for_all(st.tuples(_CALLS, _EFFECTS), lambda example: self._run(self._check_second_end(*example)))
        self.for_all(_EFFECTS, lambda effect: self._run(self._check_overlap(effect)))

    async def _check_second_end(self, calls: Sequence[ToolCall], effect: Effect) -> None:
        """Cancel a batch while an outcome is noted: a layer that is told of the same end again changes nothing more."""
        watch = self._watch()
        watch.inside.is_cut_at_end = True
        await self._watched(watch, effect=effect).run(calls)
        for key in watch.inside.calls:
            noted = [_noted(each.given) for each in watch.inside.of("end") if each.key == key]
            differs = find_difference(noted[0], noted[-1]) if noted else ""
            require(
                NESTING, not differs, f"`end` was called again, and changed the outcome of {key} again, at {differs}"
            )

    async def _check_overlap(self, effect: Effect) -> None:
        """Compare what has begun while a call runs: beside one that has ended, and beside one that never ran."""
        if self.begun is None:
            return
        long, found = toy_call("echo", 1, seconds=2), []
        for short in (toy_call("echo", 2, seconds=0.5), toy_call("nobody", 2)):
            watch = self._watch()
            task = asyncio.ensure_future(self._watched(watch, effect=effect).run([short, long]))
            await asyncio.wait([task], timeout=1)
            found.append(watch.begun_now())
            await task
        said = f"has begun {found[0]!r}, and {found[1]!r} where the other one never ran"
        require(NESTING, found[0] == found[1], f"while one call runs and another one has ended, the feature {said}")


@frozen(eq=False, repr=False)
class LayeredExecutor(ToolExecutor):
    """An executor with more features: inside of journal, approval and pins, and outside of programs and interceptors.

    Attributes:
        features: returns the features of a new execution, outermost first.
    """

    features: Callable[[], Sequence[CanLayerCalls]] = field(kw_only=True)

    def _bound_to(self, scope: ExecutionScope) -> ExecutorBinding:
        known, bound = self._bound, super()._bound_to(scope)
        if bound is not known:
            usual = bound.features
            bound.features = evolve(usual, inside=(*self.features(), *usual.inside))
        return bound


# --- the layers outside and inside of the one under test --------------------------------------------------------------------


@define(eq=False, repr=False)
class LayeredHook:
    """One hook of one call, as one side saw it.

    Attributes:
        key: the key of the call.
        hook: the name of the hook.
        began: its place among all that both sides saw.
        ended: the place of its end; 0 as long as it runs.
        ended_at: when it ended, in seconds of the event loop.
        given: the outcome that `end` was given.
        outcome: what it returned or raised.
    """

    key: str
    hook: str
    began: int
    ended: int = 0
    ended_at: float = 0.0
    given: CallOutcome | None = None
    outcome: object = None

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return not self.ended


class CallSide(CanLayerCalls):
    """Notes what passes one side of the layer under test, and changes nothing.

    Attributes:
        passages: what has passed, in order.
        calls: the calls, by key.
        is_cut_at_end: whether the batch is cancelled when `end` is called first.
    """

    def __init__(self, count: Iterator[int]) -> None:
        self.passages: list[LayeredHook] = []
        self.calls: dict[str, Call] = {}
        self.is_cut_at_end: bool = False
        self._count = count
        self._batch: asyncio.Task[Any] | None = None

    def open(self, call: Call, batch: Admission) -> CallLayer:  # noqa: ARG002  # it does nothing to the batch
        """Return what notes the hooks of a call."""
        self.calls[call.key] = call
        self._batch = self._batch or asyncio.current_task()
        return _Noted(self, call.key)

    async def note(self, key: str, hook: str, proceed: Callable[[], Awaitable[T]]) -> T:
        """Note a hook, and what comes out of it."""
        passage = LayeredHook(key, hook, next(self._count))
        self.passages.append(passage)
        try:
            outcome = await proceed()
        except BaseException as error:
            passage.outcome = error
            raise
        else:
            passage.outcome = outcome
        finally:
            passage.ended, passage.ended_at = next(self._count), asyncio.get_running_loop().time()
        return outcome

    async def note_end(self, key: str, outcome: CallOutcome) -> None:
        """Note that a call has ended, and cancel the batch meanwhile if that is wanted."""
        self.passages.append(LayeredHook(key, "end", next(self._count), next(self._count), given=outcome))
        if self.is_cut_at_end and self._batch is not None:
            self.is_cut_at_end = False
            self._batch.cancel()
            await asyncio.sleep(_BELATED)

    def of(self, hook: str) -> list[LayeredHook]:
        """Return the passages of a hook."""
        return [each for each in self.passages if each.hook == hook]

    def last(self, other: LayeredHook) -> LayeredHook | None:
        """Return the passage of the same hook and call that had begun when the other one did; None without one."""
        found = [each for each in self.of(other.hook) if each.key == other.key and each.began < other.began]
        return found[-1] if found else None

    def result_of(self, key: str) -> CallOutcome | None:
        """Return the outcome with which a call has run; None if it has not, or was cut off."""
        found = [each.outcome for each in self.of("run") if each.key == key]
        return next((each for each in reversed(found) if isinstance(each, CallOutcome)), None)


class _Noted(CallLayer):
    __slots__ = ("_key", "_side")

    def __init__(self, side: CallSide, key: str) -> None:
        self._side = side
        self._key = key

    async def run(self, proceed: RunCall) -> CallOutcome:
        return await self._side.note(self._key, "run", proceed)

    async def around(self, started_at: datetime, proceed: Attempt) -> ToolExecution:  # noqa: ARG002
        return await self._side.note(self._key, "around", proceed)

    async def attempt(self, proceed: Attempt) -> ToolExecution:
        return await self._side.note(self._key, "attempt", proceed)

    async def use(self, proceed: UseTool) -> Any:
        return await self._side.note(self._key, "use", proceed)

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        await self._side.note_end(self._key, outcome)
        return outcome


class _Watch:
    """A feature between two that note what passes.

    Attributes:
        outside: the outer side.
        inside: the inner side.
        executor: an executor with the three.
    """

    def __init__(self, feature: CanLayerCalls, begun: Callable[[Any], object] | None) -> None:
        numbers = count(1)
        self.outside = CallSide(numbers)
        self.inside = CallSide(numbers)
        self._feature = feature
        self._begun = begun
        self._before = self.begun_now()
        self.executor = LayeredExecutor(features=lambda: (self.outside, feature, self.inside))

    def begun_now(self) -> object:
        """Return a copy of what the feature has begun and not ended; None if it does not know."""
        return None if self._begun is None else copy(self._begun(self._feature))

    def uses(self) -> Counter[str]:
        """Return how often the tool of each call was used, by key."""
        return Counter(each.key for each in self.inside.of("use"))

    def require_nested(self) -> None:
        """Check that each hook inside began and ended within the same hook outside."""
        for inner in self.inside.passages:
            if inner.hook == "end":
                continue
            outer = self.outside.last(inner)
            if outer is not None:
                is_nested = 0 < inner.ended < (outer.ended or inner.ended + 1)
                said = f"the layer has left `{inner.hook}` of the call {inner.key}, and the layers inside have not"
                require(NESTING, is_nested, said)

    def require_ended(self) -> None:
        """Check that the feature has ended what it has begun."""
        after = self.begun_now()
        said = f"before the batch, this had begun and not ended: {self._before!r}; and after it, {after!r}"
        require(NESTING, after == self._before, said)


class _Delegating(Tool, CanCallTools):
    """A toy that makes two calls of another one."""

    name = "delegate"
    description = "A toy that calls echo twice."
    parameters: JsonObject = PARAMETERS
    inner: InnerCalls | None = None

    def with_inner_calls(self, inner: InnerCalls) -> Self:
        """Return a copy that makes its calls by this."""
        bound = copy(self)
        bound.inner = inner
        return bound

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Return the values of two calls."""
        if self.inner is None:
            raise ContractViolation("a tool that makes calls is run by an executor")
        value = arguments["value"]
        made = await self.inner.execute([toy_call("echo", value), toy_call("echo", value + 1)])
        self.inner.check_complete()
        return [each.value for each in made]


class _Raising(Interceptor):
    """Raises at one point, and notes for which calls."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.keys: set[str] = set()

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return self._raise("before_tool_use", point.key, point)

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        self._raise("around_tool_use", point.key, point)
        return await proceed()

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        return self._raise("after_tool_use", point.execution.key, point)

    def _raise(self, name: str, key: str, point: T) -> T:
        if name == self.point:
            self.keys.add(key)
            raise RuntimeError(f"this interceptor raises at {name}")
        return point


# --- what has to be true ----------------------------------------------------------------------------------------------------


def _require_waiting(watch: _Watch, pending: Mapping[str, PendingCall], decided: Mapping[str, Decision]) -> None:
    """Check that each call waits that has to wait, and none that was decided (law 16)."""
    for passage in watch.inside.of("use"):
        is_lost = isinstance(passage.outcome, CallSuspended) and passage.key not in pending
        require(16, not is_lost, f"the tool of the call {passage.key} has suspended it, and the call does not wait")
    for passage in watch.outside.of("end"):
        waits = passage.given is not None and passage.given.pending is not None
        is_lost = waits and passage.key not in pending
        require(16, not is_lost, f"the call {passage.key} was suspended, and does not wait any more")
    again = [key for key in decided if key in pending and not pending[key].begun and not pending[key].waits_for]
    require(16, not again, f"the calls {', '.join(again)} were decided, and wait for the same again")


def _require_facts(outcome: ToolExecution, call: Call, ran: CallOutcome | None) -> None:
    """Check that an outcome has the facts of its call, and those with which it came from inside (law 25)."""
    facts = {"id": call.id, "key": call.key, "call": call.call}
    inner = None if ran is None else ran.execution
    if inner is not None:
        facts |= {"started_at": inner.started_at, "inner": inner.inner}
    for name, expected in facts.items():
        found = getattr(outcome, name)
        require(
            25, found == expected, f"the {name} of the call {call.key} is {found!r:.100}, and was {expected!r:.100}"
        )
    if inner is not None:
        hidden = inner.may_have_run and outcome.has_error and not outcome.may_have_run
        require(25, not hidden, f"the call {call.key} may have run, and its outcome says that it has not")


def _summary(run: BatchRun) -> dict[str, object]:
    """Return what does not depend on when a batch ran."""
    pending = () if run.answer is None else run.answer.pending
    outcomes = [(each.key, each.status.value, thaw(each.value), each.error_message) for each in run.executions]
    return {"outcomes": outcomes, "pending": [call.key for call in pending], "error": repr(run.error)}


def _noted(outcome: CallOutcome | None) -> object:
    """Return what an outcome says, as JSON."""
    return None if outcome is None else [to_plain(outcome.execution), to_plain(outcome.pending)]


def _slowed(calls: Sequence[ToolCall]) -> list[ToolCall]:
    return [call.with_arguments({**call.arguments, "seconds": 1 + place % 3}) for place, call in enumerate(calls)]
