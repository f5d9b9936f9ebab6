"""The law suite of executors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from attrs import evolve, field, frozen
from hypothesis import strategies as st

from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.run_log import CallLog
from agentloop.contracts.tool import Tool
from agentloop.durable.recorder import ExecutionRecorder
from agentloop.events.tool_calls import (
    ToolCallBlocked,
    ToolCallCompleted,
    ToolCallRejected,
    ToolCallSettled,
    ToolCallStarted,
)
from agentloop.interception.interceptor import Interceptor
from agentloop.testing.blocking import YIELDING, refuse_blocking
from agentloop.testing.clocks import LoopClock, ManualClock, run_in_real_time, run_in_virtual_time
from agentloop.testing.executor_bench import ExecutorBench, started_state
from agentloop.testing.journal_bench import CrashableJournal
from agentloop.testing.kit import PLACES, Kit, LawNotChecked, checked_factory, find_difference, require
from agentloop.testing.observers import RaisingInterceptor, Tally
from agentloop.testing.scenario import waiting_calls
from agentloop.testing.surroundings import Surroundings, require_no_trace
from agentloop.testing.toys import (
    BATCHES,
    CANCELLATIONS,
    PARAMETERS,
    RICH_BATCHES,
    RICH_RESULTS,
    THREADED_BATCHES,
    Doorkeeper,
    Gatekeeper,
    Ledger,
    decide_toys,
    find_disobedience,
    toy_call,
    toy_tools,
)
from agentloop.tools.decorator import tool
from agentloop.tools.validation import SchemaValidator
from agentloop.values.batches import ToolCalls, ToolExecutions, ready_calls
from agentloop.values.event import Event
from agentloop.values.interruptions import BatchInterrupted
from agentloop.values.json import parse_json
from agentloop.values.points import BeforeToolUse
from agentloop.values.records import InDoubt, RecordKind
from agentloop.values.serialization import to_json, to_plain
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep, SuspendedTurn
from agentloop.values.time_and_ids import Clock
from agentloop.values.tool_calls import Effect, ToolCall, ToolExecution, ToolStatus

T = TypeVar("T")

_AGENTS = ("ada", "bob")
_MAX_DECISIONS = 12
"""How often a batch of a few calls can be suspended."""
_CALLS_OF_A_BATCH = 4
_AFTERWARDS = 60.0
"""How many seconds an executor is watched after the end of a batch."""
_SECONDS_TO_STOP = 60.0
"""How long what was cancelled may take to end."""
_SECONDS_TO_END, _TOY_SECONDS_TO_END = 60.0, 100.0
"""How long work in real time may take: so many seconds, and so many of those of the toys."""
_PLAIN_NAMES = ("echo", "whoami", "alone", "keyed")
_EFFECTS = st.sampled_from([Effect.EFFECT, Effect.IDEMPOTENT, Effect.PURE])
_REPEATS = st.tuples(st.lists(st.sampled_from(_PLAIN_NAMES), min_size=1, max_size=3), _EFFECTS)
"""Names of toys that are called twice in each batch with the same arguments, and the effect that they declare."""
_BATCHES_OF_ONE = 2
"""How many batches one executor gets with the same calls."""


class ExecutorKit(Kit):
    """Checks an executor against the laws of `CanExecuteToolCalls`.

    Tools that run in another process are `toy_tools` there, too. With a `FileLedger` of the same path on both sides, the kit knows
    which of them ran; without one, it judges by the outcomes. What waits for another process takes real time, so that such an
    executor needs `second`:

        ledger = FileLedger(path)  # in the other process: toy_tools(FileLedger(path), second=0.02)
        ExecutorKit(lambda: MyRemoteExecutor(…), ledger=ledger, second=0.02, examples=10)

    Args:
        factory: creates a new executor. The kit binds it to toy tools, interceptors, events and a scope, through the contracts
            that it implements.
        examples: the number of examples that are tried for each law.
        ledger: receives the calls that run, wherever they do; a new one in memory by default.
        second: how long a second of the toys takes in real seconds; None for virtual time.
    """

    laws: tuple[int, ...] = (1, 3, 8, 9, 10, 11, 14, 16, 17, 19, 21, 22, 34, 38, YIELDING)
    sentences: ClassVar[Mapping[int, str]] = MappingProxyType(
        {
            14: "Effects: the intent of each call is recorded before its tool runs and its outcome before the batch ends; a "
            "recorded outcome is used again, and an effect without one is in doubt."
        }
    )

    def __init__(
        self,
        factory: Callable[[], CanExecuteToolCalls],
        *,
        examples: int = 100,
        ledger: Ledger | None = None,
        second: float | None = None,
    ) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[], CanExecuteToolCalls] = checked_factory(factory)
        self.ledger: Ledger = Ledger() if ledger is None else ledger
        self.second = second

    @property
    def runs_elsewhere(self) -> bool:
        """Whether the tools run where the ledger does not see them, so that only outcomes tell which calls ran.

        Raises:
            LawNotChecked: a plain call of a toy does not succeed.
        """
        self.require_working()
        return not self.ledger.calls

    def require_working(self) -> None:
        """Check that a plain call of a toy succeeds, so that no law holds because nothing runs.

        Raises:
            LawNotChecked: it does not.
        """
        result = self._run(self._bench().run([toy_call("echo", 1)]))
        ran = result.executions and result.executions[0].succeeded
        # Where the ledger sees nothing, the value is the only sign that the call ran.
        if not ran or (not self.ledger.calls and result.executions[0].value != 1):
            outcomes = ", ".join(
                f"{each.status.value} {each.value!r} {each.error_message}" for each in result.executions
            )
            raise LawNotChecked(
                f"a plain call of the toy `echo` did not succeed: {_describe(result.error)}, with the outcomes ({outcomes})"
            )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        self.ledger.clear()
        if self.second is None:
            return run_in_virtual_time(work)
        return run_in_real_time(work, seconds=_SECONDS_TO_END + _TOY_SECONDS_TO_END * self.second)

    def _bench(
        self,
        *interceptors: CanIntercept,
        executor: CanExecuteToolCalls | None = None,
        effect: Effect = Effect.EFFECT,
    ) -> BatchRunner:
        return BatchRunner(executor or self.factory(), interceptors, self.ledger, self.second or 1.0, effect)

    def law_1(self) -> None:
        """Every call has an outcome or is pending, in call order, even when the batch fails or is cancelled."""

        def holds(example: tuple[list[ToolCall], float | None]) -> None:
            calls, cancel_after = example
            run = self._run(self._bench(Gatekeeper()).run(calls, cancel_after=cancel_after))
            if run.is_untouched:
                return
            require(1, run.answer is not None, f"the executor raised {run.error!r} and lost the batch")
            pending = () if run.answer is None else run.answer.pending
            _require_total(list(ToolCalls.of(calls, run.state).keys), run.executions, [call.key for call in pending])

        self.for_all(st.tuples(BATCHES, st.sampled_from([None, None, 0, 0.5, 1, 2.5])), holds)

    def law_3(self) -> None:
        """The executor changes neither the state nor the calls that are passed to it."""

        def holds(calls: list[ToolCall]) -> None:
            before = [to_json(call) for call in calls]
            run = self._run(self._bench(Gatekeeper()).run(calls))
            require(3, [to_json(call) for call in calls] == before, "a call was changed")
            require(3, to_json(run.state) == run.state_before, "the state was changed")

        self.for_all(BATCHES, holds)

    def law_8(self) -> None:
        """The result does not depend on which call finishes first."""

        def holds(example: tuple[list[ToolCall], list[float]]) -> None:
            calls, delays = example
            answers = []
            for seconds in (delays, delays[::-1]):
                delayed = [_with_delay(call, delay) for call, delay in zip(calls, seconds, strict=False)]
                run = self._run(evolve(self._bench(Gatekeeper()), clock=ManualClock()).run(delayed))
                self._require_ran(8, run)
                answers.append(_without_delays(run.executions))
            differs = find_difference(*answers)
            require(8, not differs, f"two orders of completion give different outcomes, at {differs}")

        values = st.lists(
            st.builds(toy_call, st.sampled_from(["echo", "whoami", "fail"]), st.integers(0, 9)), max_size=5
        )
        delays = st.lists(st.sampled_from([0, 0.2, 0.4]), min_size=5, max_size=5)
        names = ("echo", "whoami", "fail", "echo")
        self.for_each([([toy_call(name, number) for number, name in enumerate(names)], [0.6, 0.4, 0.2, 0])], holds)
        self.for_all(st.tuples(values, delays), holds)

    def law_9(self) -> None:
        """Batches that run at once, or one after the other, see only their own state."""

        async def run_concurrently(calls: list[ToolCall], effect: Effect) -> list[BatchRun]:
            executor = self.factory()
            benches = [self._bench(Gatekeeper(), executor=executor, effect=effect) for _ in _AGENTS]
            return await asyncio.gather(
                *[bench.run(calls, name=name) for bench, name in zip(benches, _AGENTS, strict=True)]
            )

        def holds(example: tuple[list[ToolCall], Effect]) -> None:
            calls, effect = example
            runs = self._run(run_concurrently([*calls, toy_call("whoami", 1, seconds=1)], effect))
            for name, run in zip(_AGENTS, runs, strict=True):
                require(9, run.answer is not None, f"the executor raised {run.error!r}")
                require(9, run.after.agent_id == name, "the result holds the state of another agent")
                self._require_ran(9, run)
                others = [f"execution of {other}" for other in _AGENTS if other != name]
                texts = [to_json(run.after).decode(), *[to_json(each).decode() for each in run.executions]]
                require_no_trace(9, texts, others, of=f"the batch of {name}")
                seen = {each.value for each in run.executions if each.name == "whoami" and each.value in _AGENTS}
                require(9, seen <= {name}, f"tools of {name} saw the state of {seen - {name}}")

        self.for_all(st.tuples(BATCHES, _EFFECTS), holds)
        self.for_all(_REPEATS, lambda example: self._run(self._check_agents(*example)))

    async def _check_agents(self, names: Sequence[str], effect: Effect) -> None:
        """Check that a call which two agents make one after the other is answered for each with its own state."""
        executor, calls = self.factory(), [toy_call(name, 1) for name in ("whoami", *names)]
        for agent in _AGENTS:
            run = await self._bench(executor=executor, effect=effect).run(calls, name=agent)
            require(9, run.answer is not None, f"the executor raised {run.error!r}")
            seen = {each.value for each in run.executions if each.name == "whoami" and each.value in _AGENTS}
            require(9, seen <= {agent}, f"a {effect} call of whoami by {agent} saw the state of {seen - {agent}}")

    def law_10(self) -> None:
        """The outcomes in events are those in the result, also of calls that were made before, and the class of each tells how it ended."""

        def holds(calls: list[ToolCall]) -> None:
            _require_events(self._run(self._bench(Gatekeeper()).run(calls)))

        self.for_all(BATCHES, holds)
        for value in range(0, len(RICH_RESULTS), _CALLS_OF_A_BATCH):
            calls = [toy_call("tell", value + index) for index in range(_CALLS_OF_A_BATCH)]
            self.for_all(st.just(calls), lambda calls: _require_events(self._run(self._bench().run(calls))))
        equal = [toy_call("count", 1, id=id) for id in ("", "a", "A", "a%", "a_", "c" * 64, "c" * 65)]  # noqa: A001  # names the field
        for batch in (st.just(equal), st.just([toy_call("count", 1)] * 3), RICH_BATCHES):
            self.for_all(batch, lambda calls: _require_events(self._run(self._bench().run(calls, linger=_AFTERWARDS))))
        self.for_all(_REPEATS, lambda example: self._run(self._check_repeated_events(*example)))

    async def _check_repeated_events(self, names: Sequence[str], effect: Effect) -> None:
        executor = self.factory()
        for _ in range(_BATCHES_OF_ONE):
            _require_events(await self._bench(executor=executor, effect=effect).run(_repeated(names)))

    def law_11(self) -> None:
        """A call whose interceptor raises does not run and does not succeed, and the executor raises."""

        def holds(example: tuple[list[ToolCall], str, Effect]) -> None:
            calls, point, effect = example
            run = self._run(self._bench(RaisingInterceptor(point), effect=effect).run(calls))
            _require_closed(run, point)

        batches = st.lists(
            st.builds(toy_call, st.sampled_from(["echo", "alone", "whoami"]), st.integers(0, 9)), min_size=1
        )
        points = st.sampled_from(["before_tool_use", "around_tool_use", "after_tool_use"])
        self.for_all(st.tuples(batches, points, _EFFECTS), holds)
        self.for_all(st.tuples(_REPEATS, points), lambda example: self._run(self._check_raising_later(*example)))

    async def _check_raising_later(self, repeat: tuple[list[str], Effect], point: str) -> None:
        """Check that an interceptor is obeyed which raises at calls that have succeeded before."""
        names, effect = repeat
        executor, calls = self.factory(), _repeated(names)
        await self._bench(executor=executor, effect=effect).run(calls)
        run = await self._bench(RaisingInterceptor(point), executor=executor, effect=effect).run(calls)
        _require_closed(run, point)

    def law_14(self) -> None:
        """After a crash, a recorded call does not run again: its outcome is reused, or the call is in doubt.

        Every call is recorded, whatever its effect and however often it was made before.
        """
        is_seen = not self.runs_elsewhere

        def holds(example: tuple[list[str], float]) -> None:
            names, share = example
            calls = [toy_call(name, place) for place, name in enumerate(names)]
            self._run(self._check_recovery(calls, share, is_seen=is_seen))

        names = st.lists(st.sampled_from(_PLAIN_NAMES), min_size=1, max_size=5)
        self.for_all(st.tuples(names, st.floats(0, 1)), holds)
        self.for_all(_REPEATS, lambda example: self._run(self._check_repeated_records(*example)))

    async def _check_repeated_records(self, names: Sequence[str], effect: Effect) -> None:
        """Check that calls which an executor has run before are recorded in each execution, and not run again in a recovery."""
        executor, calls = self.factory(), _repeated(names)
        for _ in range(_BATCHES_OF_ONE):
            journal = CrashableJournal()
            first = await self.run_journaled(calls, journal, executor, effect)
            _require_recorded(first, journal)
        before = len(self.ledger.calls)
        second = await self.run_journaled(calls, await journal.after_crash(len(journal.appended)), executor, effect)
        again = self.ledger.calls[before:]
        require(14, not again, f"these {effect} calls have recorded outcomes, and ran again: {again}")
        values = [[each.value for each in run.executions] for run in (first, second)]
        require(14, values[0] == values[1], f"the recorded outcomes were {values[0]!r}, not {values[1]!r}")

    async def _check_recovery(self, calls: Sequence[ToolCall], share: float, *, is_seen: bool) -> None:
        """Execute a batch, discard the last records as a crash does, and execute the batch again.

        Args:
            calls: the batch; the value of each call is its index.
            share: the share of the records that survive the crash, from 0 to 1.
            is_seen: whether the ledger sees which calls run; otherwise those that succeed without a recorded outcome have run.
        """
        journal = CrashableJournal()
        first = await self.run_journaled(calls, journal)
        _require_recorded(first, journal)
        # At least one record survives: without any, there is no execution to recover.
        survived = await journal.after_crash(1 + round(share * (len(journal.appended) - 1)))
        started = call_keys(survived, RecordKind.CALL_INTENT, "intent")
        ended = call_keys(survived, RecordKind.CALL_OUTCOME, "execution")
        second = await self.run_journaled(calls, survived)
        repeated = {arguments["value"] for _, arguments in second.ran}
        for index, (before, after) in enumerate(zip(first.executions, second.executions, strict=True)):
            runs_again = index in repeated if is_seen else after.succeeded and after.key not in ended
            if after.key in started:
                require(14, not runs_again, f"the call {after.key} had started, and ran again")
            if after.key in ended:
                same = after.value == before.value
                require(14, same, f"the outcome of {after.key} was {before.value!r}, not {after.value!r}")
            elif after.key in started:
                doubt = after.status is ToolStatus.IN_DOUBT
                require(14, doubt, f"the call {after.key} is in doubt, not {after.status}")
            else:
                require(14, runs_again, f"the call {after.key} had not started, and did not run")

    async def run_journaled(
        self,
        calls: Sequence[ToolCall],
        journal: CrashableJournal,
        executor: CanExecuteToolCalls | None = None,
        effect: Effect = Effect.EFFECT,
    ) -> BatchRun:
        """Execute a batch as the first step of a journaled execution, or recover it when the journal holds it."""
        clock, state = ManualClock(), started_state("agent", "run")
        if await journal.head("run") is None:
            log = ExecutionRecorder(journal, InDoubt.TELL, clock)
        else:
            log = await ExecutionRecorder.reopen(journal, "run", InDoubt.TELL, clock)
        await log.start(state)
        try:
            bench = self._bench(executor=executor, effect=effect)
            run = await evolve(bench, clock=clock, log=log).run(calls, state=state)
        finally:
            await log.aclose()
        require(14, run.answer is not None, f"the executor raised {run.error!r}, and lost the batch")
        return run

    def law_16(self) -> None:
        """A call that waits does not run before it is decided, and then it is settled as it was decided."""
        is_seen = not self.runs_elsewhere
        batches = waiting_calls("echo", "whoami", "keyed", "defer").map(_as_echo)
        self.for_all(batches, lambda calls: self._run(self._check_decisions(calls, is_seen=is_seen)))

    async def _check_decisions(self, calls: Sequence[ToolCall], *, is_seen: bool) -> None:
        run = await self._bench(Doorkeeper()).run(calls)
        require(16, run.answer is not None, f"the executor raised {run.error!r}, and lost the batch")
        keys = ToolCalls.of(calls, run.state).keys
        waiting = {key: call for key, call in zip(keys, calls, strict=True) if call.arguments["value"] % 5 == 0}
        begun = {key: call for key, call in zip(keys, calls, strict=True) if call.name == "defer"}
        pending = {call.key: call for call in (run.answer.pending if run.answer is not None else ())}
        require(16, pending.keys() >= waiting.keys(), f"{sorted(waiting.keys() - pending.keys())} do not wait")
        lost = [key for key in begun.keys() - waiting.keys() if key not in pending or not pending[key].begun]
        require(16, not lost, f"the tools of {lost} have suspended their calls, which are not pending as begun")
        early = {call.arguments["value"] for call in waiting.values()} & set(run.values)
        require(16, not early, f"the calls of {sorted(early)} ran before they were decided")
        executions, ran = await self._decide_all(run, calls)
        is_blocked = False
        for key, call in zip(keys, calls, strict=True):
            require(16, key in executions, f"the call {key} was decided, and has no outcome")
            if is_blocked and executions[key].status is ToolStatus.CANCELLED:
                continue  # an executor may stop at a call that is blocked
            is_blocked = is_blocked or executions[key].status is ToolStatus.BLOCKED
            # Where the ledger sees nothing, the values of the outcomes tell what ran.
            problem = find_disobedience(call, executions[key], ran if is_seen else None)
            require(16, not problem, problem)

    async def _decide_all(
        self, run: BatchRun, calls: Sequence[ToolCall]
    ) -> tuple[Mapping[str, ToolExecution], list[int]]:
        """Decide about what waits until nothing does; return the outcomes by key, and the values of the calls that ran."""
        ran, executions = list(run.values), {each.key: each for each in run.executions}
        keys = ToolCalls.of(calls, run.state).keys
        for _ in range(_MAX_DECISIONS):
            pending = run.answer.pending if run.answer is not None else ()
            if not pending:
                break
            decided = decide_toys(pending)
            slots = [evolve(call, decision=decided.get(call.key)) for call in pending]
            turn = SuspendedTurn.of(tuple(calls), tuple(keys), tuple(executions.values()), tuple(slots))
            state = with_turn(run.after, turn)
            run = await self._bench(Doorkeeper()).run((), batch=ready_calls(turn), state=state)
            require(16, run.answer is not None, f"the executor raised {run.error!r}, and lost the batch")
            ignored = [call.key for call in (run.answer.pending if run.answer else ()) if not call.begun]
            require(16, not set(ignored) & decided.keys(), f"{ignored} were decided, and wait for the same again")
            executions |= {each.key: each for each in run.executions}
            ran += run.values
        return executions, ran

    def law_17(self) -> None:
        """Tools are called only with arguments that satisfy their schema, and not by calls that the driver rejects."""
        validator = SchemaValidator(PARAMETERS)

        def holds(calls: list[ToolCall]) -> None:
            run = self._run(self._bench(_ArgumentBreaker()).run(calls))
            for name, arguments in run.ran:
                require(17, validator.accepts(arguments), f"{name} was called with {arguments}")
            statuses = {execution.key: execution.status for execution in run.executions}
            for call, key in zip(calls, ToolCalls.of(calls, run.state).keys, strict=True):
                if _is_invalid(call, validator):
                    rejected = statuses.get(key) in {ToolStatus.REJECTED, ToolStatus.CANCELLED}
                    require(17, rejected, f"the call {call!r} is invalid, and its status is {statuses.get(key)}")

        self.for_all(BATCHES, holds)
        names = st.lists(st.sampled_from(_PLAIN_NAMES), max_size=5)
        self.for_all(st.tuples(names, st.sets(st.integers(0, 4))), self._check_rejections)

    def _check_rejections(self, example: tuple[list[str], set[int]]) -> None:
        names, rejected = example
        calls = [toy_call(name, value) for value, name in enumerate(names)]
        rejections = {place: f"call {place} is rejected" for place in rejected if place < len(calls)}
        run = self._run(self._bench().run(calls, rejections=rejections))
        require(17, run.answer is not None, f"the executor raised {run.error!r}")
        ran = set(run.values)
        require(17, not ran & rejections.keys(), f"the rejected calls {ran & rejections.keys()} ran")
        keys = ToolCalls.of(calls, run.state).keys
        outcomes = {execution.key: execution for execution in run.executions}
        for place, key in enumerate(keys):
            outcome = outcomes.get(key)
            if place in rejections:
                settled = None if outcome is None else (outcome.status, outcome.error_message)
                expected = ToolStatus.REJECTED, rejections[place]
                require(17, settled == expected, f"{rejections[place]}, and its outcome is {outcome}")
            else:
                is_rejected = outcome is None or outcome.status is ToolStatus.REJECTED
                require(17, not is_rejected, f"the call {key} is valid, and gave {outcome}")

    def law_19(self) -> None:
        """No task or thread outlives a batch, even when it is cancelled."""

        async def run_tidily(calls: list[ToolCall], cancel_after: float | None) -> None:
            before = Surroundings.now()
            await self._bench(Gatekeeper()).run(calls, cancel_after=cancel_after)
            await before.require_tasks_and_sockets()

        def holds_for_tasks(example: tuple[list[ToolCall], float | None]) -> None:
            self._run(run_tidily(*example))

        def holds_for_threads(calls: list[ToolCall]) -> None:
            before = Surroundings.now()
            run_in_real_time(self._bench(Gatekeeper()).run(calls), seconds=_SECONDS_TO_END)
            before.require_threads()

        self.for_all(st.tuples(BATCHES, st.sampled_from([None, 0, 0.5, 1])), holds_for_tasks)
        self.for_all(THREADED_BATCHES, holds_for_threads)

    def law_21(self) -> None:
        """When an interceptor fails or the batch is cancelled, the error carries all outcomes, as they were emitted."""

        def holds(example: tuple[list[ToolCall], str, int, float | None]) -> None:
            calls, point, index, cancel_after = example
            value = calls[index % len(calls)].arguments["value"]
            raising = () if cancel_after is not None else (RaisingInterceptor(point, value),)
            run = self._run(self._bench(*raising).run(_slow(calls), cancel_after=cancel_after))
            if run.error is None or run.is_untouched:
                return
            require(21, run.answer is not None, f"the executor raised {run.error!r}, and lost the batch")
            for execution in [each for each in run.executions if not each.succeeded]:
                done = execution.may_have_run or execution.call.arguments["value"] not in run.values
                require(21, done, f"the call {execution.key} ran, and its outcome says that it has not")
            settled = {event.key: event.execution for event in run.events if isinstance(event, ToolCallSettled)}
            # What an executor around others does not hand over has no event: nothing has happened to these calls.
            kept = [each for each in run.executions if each.key in settled or not _is_not_begun(each)]
            lost = [each.key for each in kept if settled.get(each.key) != each]
            require(21, not lost, f"no event has the outcomes that the error carries of {', '.join(lost)}")

        points = st.sampled_from(["before_tool_use", "around_tool_use", "after_tool_use"])
        times = st.sampled_from([None, None, 0.5, 1.5])
        batches = waiting_calls("echo", "alone", "keyed")
        self.for_all(st.tuples(batches, points, st.integers(0, 5), times), holds)

    def law_22(self) -> None:
        """What interceptors change in the state during a batch is in the state that the batch returns."""

        def holds(calls: list[ToolCall]) -> None:
            tally = Tally()
            run = self._run(self._bench(tally).run(calls))
            require(22, run.answer is not None, f"the executor raised {run.error!r}, and lost the batch")
            loss = tally.find_loss(run.after)
            require(22, not loss, loss)
            require(22, run.after.messages == run.state.messages, "the executor changed the conversation")

        self.for_all(BATCHES, holds)

    def law_34(self) -> None:
        """An executor whose task is cancelled raises the cancellation, runs no more tools, and serves the next batch as a new one does."""

        def holds(example: tuple[list[ToolCall], float], times: int = 3) -> None:
            self._run(self._check_cancellation(*example, times))

        batches = waiting_calls("echo", "alone", "keyed")
        self.for_all(st.tuples(batches, st.sampled_from(CANCELLATIONS)), holds)
        if self.second is None:
            self.for_each(CANCELLATIONS, lambda cancel_after: holds(([toy_call("echo", 1)], cancel_after), PLACES))

    async def _check_cancellation(self, calls: Sequence[ToolCall], cancel_after: float, times: int) -> None:
        executor = self.factory()
        for _ in range(times if self.second is None else 1):  # each may leave something behind
            run = await self._bench(executor=executor).run(_slow(calls), cancel_after=cancel_after)
            if not run.was_cancelled:
                break
            is_raised = isinstance(run.error, asyncio.CancelledError)
            require(34, is_raised, f"the executor was cancelled, and {_describe(run.error)}")
            if self.second is None:  # what another process notes arrives when it arrives
                require(34, not run.late, f"these calls began after the cancellation: {run.late}")
                said = f"the executor ended {run.seconds_to_end:g} seconds after its cancellation"
                require(34, run.seconds_to_end <= _SECONDS_TO_STOP, said)
        for name in ("agent", *_AGENTS):
            again = await self._bench(executor=executor).run([toy_call("echo", 1)], name=name)
            require(34, again.error is None, f"a batch of {name} after one that was cancelled {_describe(again.error)}")
            problem = [each for each in again.executions if not each.succeeded or each.value != 1]
            require(
                34, again.executions and not problem, f"after a batch that was cancelled, a plain call gave {problem}"
            )

    def _require_ran(self, law: int, run: BatchRun) -> None:
        """Check that the calls that succeeded ran, if the ledger has seen any call so far."""
        ran = [value for value in run.values if isinstance(value, int)]
        plain = [each for each in run.executions if each.name in {"echo", "whoami"} and each.succeeded]
        unseen = [each.key for each in plain if each.call.arguments["value"] not in ran and each.may_have_run]
        require(law, not unseen or not ran, f"these calls succeeded, and did not run: {', '.join(unseen)}")

    def law_38(self) -> None:
        """The time limit and the order that a tool declares hold for its calls; only in virtual time, and where tools run here."""
        if self.second is not None or self.runs_elsewhere:
            return
        stopped = self._run(self._bench().run([toy_call("stop", 1)]))
        signals = () if stopped.after.execution is None else stopped.after.execution.continuation.signals
        require(38, signals or stopped.error is not None, "a tool raised AgentStop, and the state has no stop signal")
        begun: list[str] = []
        open_calls: list[str] = []
        overlaps: list[str] = []

        @tool(timeout=1)
        async def limited() -> str:
            """Take too long."""
            begun.append("limited")
            await asyncio.sleep(60)
            return "late"

        async def run_alone(name: str) -> str:
            overlaps.extend(open_calls)
            open_calls.append(name)
            await asyncio.sleep(1)
            open_calls.remove(name)
            return "done"

        @tool(sequential=True)
        async def alone() -> str:
            """Run alone."""
            return await run_alone("alone")

        @tool(key="one")
        async def keyed() -> str:
            """Run after others with the same key."""
            return await run_alone("keyed")

        def run(*names: str) -> Sequence[ToolExecution]:
            bench = ExecutorBench([limited, alone, keyed], self.factory())
            calls = [ToolCall(str(number), name, "{}") for number, name in enumerate(names)]
            try:
                return run_in_virtual_time(bench.run(*calls)).executions
            except BatchInterrupted as interrupted:  # such as of an executor that raises on failures
                return interrupted.executions.executions

        (execution,) = run("limited")
        if not begun:
            return  # its tools are on another side
        status = execution.status
        require(38, status is ToolStatus.TIMED_OUT, f"a tool with timeout=1 ran for 60 seconds: {status.value}")
        for name, policy in (("alone", "sequential=True"), ("keyed", "key='one'")):
            run(name, name, name)
            require(38, not overlaps, f"calls of a tool with {policy} run at the same time")

    def law_45(self) -> None:
        """The event loop runs while the executor waits."""

        @refuse_blocking
        def holds(calls: list[ToolCall]) -> None:
            self._run(self._bench(Gatekeeper()).run(calls))

        self.for_all(BATCHES, holds)


@frozen(repr=False)
class BatchRun:
    """The result of a batch, and everything that the laws look at.

    Attributes:
        answer: the executions that the executor returned, or that its error carries.
        error: the error that the executor raised.
        events: the events that were emitted.
        ran: the calls that ran.
        state: the state that was passed to the executor.
        state_before: the JSON of that state before the batch.
        was_cancelled: whether the batch was cancelled before it had ended.
        late: the calls that ran after the cancellation.
        seconds_to_end: how long it took to end after the cancellation.
    """

    answer: ToolExecutions | None
    error: BaseException | None
    events: list[Event]
    ran: list[tuple[str, dict[str, Any]]]
    state: AgentState
    state_before: bytes
    was_cancelled: bool = False
    late: list[tuple[str, dict[str, Any]]] = field(factory=list)
    seconds_to_end: float = 0.0

    @property
    def is_untouched(self) -> bool:
        """Whether it was cancelled before anything happened, so that there is nothing that an error could lose."""
        return self.was_cancelled and self.answer is None and not self.ran and not self.events

    @property
    def executions(self) -> tuple[ToolExecution, ...]:
        """The outcomes; none if the executor lost the batch."""
        return () if self.answer is None else self.answer.executions

    @property
    def after(self) -> AgentState:
        """The state after the batch; the one before if the executor lost it."""
        return self.state if self.answer is None else self.answer.state

    @property
    def values(self) -> list[Any]:
        """The argument `value` of each call that ran."""
        return [arguments.get("value") for _, arguments in self.ran]


@frozen
class BatchRunner:
    """Runs batches of toy calls with an executor.

    Attributes:
        executor: the executor.
        interceptors: the interceptors of the calls.
        ledger: receives the calls that run.
        second: how long a second takes.
        effect: the effect that the toys declare.
        clock: the source of times.
        log: records the calls; None to record nothing.
        more: further tools.
    """

    executor: CanExecuteToolCalls
    interceptors: Sequence[CanIntercept]
    ledger: Ledger
    second: float
    effect: Effect
    clock: Clock = field(factory=LoopClock)
    log: CallLog | None = None
    more: Sequence[Tool] = ()

    async def run(
        self,
        calls: Sequence[ToolCall],
        *,
        cancel_after: float | None = None,
        name: str = "agent",
        rejections: Mapping[int, str] | None = None,
        batch: ToolCalls | None = None,
        state: AgentState | None = None,
        linger: float = 0.0,
    ) -> BatchRun:
        """Execute a batch.

        Args:
            calls: the calls of the batch.
            cancel_after: cancel the batch after this many seconds; None to let it finish.
            name: the agent's id.
            rejections: why the driver rejects calls, by their positions.
            batch: the batch in place of the calls.
            state: the state that it belongs to; by default that of a new execution.
            linger: how many seconds to wait for what comes after the end.
        """
        state = state or started_state(name, f"execution of {name}")
        tools = [*toy_tools(self.ledger, self.effect, second=self.second), *self.more]
        bench = ExecutorBench(tools, self.executor, self.interceptors, clock=self.clock, log=self.log)
        run = bench.run(*calls, state=state, rejections=rejections) if batch is None else bench.run_batch(batch, state)
        state_before, begun = to_json(state), len(self.ledger.calls)
        task = asyncio.ensure_future(run)
        await asyncio.wait((task,), timeout=None if cancel_after is None else cancel_after * self.second)
        was_cancelled, at_cancel, time = task.cancel(), len(self.ledger.calls), asyncio.get_running_loop().time
        cancelled_at = time()
        answer, error = None, None
        try:
            answer = await task
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001  # the laws judge every error
            error = raised
            carrier = BatchInterrupted.find_in(raised)
            answer = carrier.executions if carrier is not None else None
        seconds = time() - cancelled_at
        await asyncio.sleep(linger * self.second)
        ran = list(self.ledger.calls)
        late = ran[at_cancel:] if was_cancelled else []
        return BatchRun(answer, error, bench.events, ran[begun:], state, state_before, was_cancelled, late, seconds)


class _ArgumentBreaker(Interceptor):
    """Replaces odd values by ones that the schema rejects."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        value = point.arguments["value"]
        return point.with_arguments({"value": -value}) if value % 2 else point


def _require_events(run: BatchRun) -> None:
    """Check that the outcomes of a batch were emitted as they are (law 10)."""
    require(10, run.answer is not None, f"the executor raised {run.error!r}")
    emitted = [event.execution for event in run.events if isinstance(event, ToolCallSettled)]
    silent = [each.key for each in run.executions if each.key not in {other.key for other in emitted}]
    require(10, not silent, f"no ToolCallCompleted was emitted for the calls {', '.join(silent)}, which have outcomes")
    keys = [[each.key for each in executions] for executions in (emitted, run.executions)]
    require(10, keys[0] == keys[1], f"outcomes of {keys[0]} were emitted, and those of {keys[1]} were returned")
    for event, outcome in zip(emitted, run.executions, strict=True):
        if event != outcome:
            differs = find_difference(to_plain(event), to_plain(outcome))
            require(10, condition=False, reason=f"of {event.key}, the event and the result differ at {differs}")
    started = {event.key for event in run.events if isinstance(event, ToolCallStarted)}
    for settled in [event for event in run.events if isinstance(event, ToolCallSettled)]:
        outcome = settled.execution
        is_prevented = outcome.key not in started and outcome.status in _PREVENTED
        expected = _PREVENTED[outcome.status] if is_prevented else ToolCallCompleted
        found, name = type(settled).__name__, expected.__name__
        require(
            10,
            isinstance(settled, expected),
            f"{outcome.key} is {outcome.status}, and its event a {found}, not a {name}",
        )


_PREVENTED: Mapping[ToolStatus, type[ToolCallSettled]] = {
    ToolStatus.BLOCKED: ToolCallBlocked,
    ToolStatus.REJECTED: ToolCallRejected,
}
"""The events of calls that did not start."""


def _is_not_begun(execution: ToolExecution) -> bool:
    return execution.status is ToolStatus.CANCELLED and not execution.may_have_run


def _require_closed(run: BatchRun, point: str) -> None:
    """Check that an interceptor which raised at a point let no call of a batch run or succeed (law 11)."""
    if point != "after_tool_use":
        require(11, not run.ran, f"{point} raised, and these calls ran: {run.ran}")
        begun = [each.name for each in run.executions if each.may_have_run]
        require(11, not begun, f"{point} raised, and these calls may have run: {begun}")
    succeeded = [each.key for each in run.executions if each.succeeded]
    require(11, not succeeded, f"{point} raises at every call, and these succeeded: {', '.join(succeeded)}")
    require(11, run.error is not None, f"{point} raised, and the executor did not raise")


def _require_total(keys: list[str], executions: Sequence[ToolExecution], pending: list[str]) -> None:
    executed = [execution.key for execution in executions]
    both = sorted(executed + pending, key=partial(_place_in, keys))
    require(1, both == keys, f"of the calls {keys}, {executed} have outcomes and {pending} are pending")
    require(1, executed == sorted(executed, key=keys.index), f"executions are out of call order: {executed}")
    require(1, pending == sorted(pending, key=keys.index), f"pending calls are out of call order: {pending}")


def _place_in(keys: list[str], key: str) -> int:
    return keys.index(key) if key in keys else len(keys)


def _is_invalid(call: ToolCall, validator: SchemaValidator) -> bool:
    """Return whether a call has to be rejected, whatever an interceptor makes of it."""
    try:
        return not validator.accepts(parse_json(call.arguments_json))
    except ValueError:
        return True


def _as_echo(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """Return the calls without those of `whoami`, whose results are not their values."""
    return [toy_call("echo", call.arguments["value"]) if call.name == "whoami" else call for call in calls]


def _slow(calls: Sequence[ToolCall]) -> list[ToolCall]:
    return [_with_delay(call, 1 + index % 3) for index, call in enumerate(calls)]


def _with_delay(call: ToolCall, seconds: float) -> ToolCall:
    return call.with_arguments({**call.arguments, "seconds": seconds})


def _without_delays(executions: Sequence[ToolExecution]) -> list[dict[str, object]]:
    """Return the outcomes without the argument `seconds`, which differs between the runs."""
    names = ("id", "key", "status", "value", "error_message")
    return [{name: getattr(each, name) for name in names} for each in executions]


def with_turn(state: AgentState, turn: SuspendedTurn) -> AgentState:
    """Return a state whose last step is suspended with this turn."""
    now = state.updated_at
    step = AgentStep(id="step", number=1, message=None, open_turn=turn, started_at=now, ended_at=now)
    return state.with_last_step(step) if state.step_count else state.with_step(step)


def _describe(error: BaseException | None) -> str:
    return "returned" if error is None else f"raised {error!r}"


def _repeated(names: Sequence[str]) -> list[ToolCall]:
    """Return a batch with each of these calls twice, with the same arguments."""
    return [toy_call(name, place) for place, name in enumerate(names) for _ in range(2)]


def _require_recorded(run: BatchRun, journal: CrashableJournal) -> None:
    """Check that the calls of a batch that succeeded have records of their intents and of their outcomes (law 14)."""
    succeeded = {execution.key for execution in run.executions if execution.succeeded}
    intents = call_keys(journal, RecordKind.CALL_INTENT, "intent")
    require(14, succeeded <= intents, f"these calls ran without a recorded intent: {sorted(succeeded - intents)}")
    outcomes = call_keys(journal, RecordKind.CALL_OUTCOME, "execution")
    require(14, succeeded <= outcomes, f"the outcomes of these calls are not recorded: {sorted(succeeded - outcomes)}")


def call_keys(journal: CrashableJournal, kind: RecordKind, name: str) -> set[str]:
    """Return the keys of the calls in the records of a kind; `name` is the field of their bodies that holds the call."""
    return {parse_json(record.body)[name]["key"] for record in journal.appended if record.kind is kind}
