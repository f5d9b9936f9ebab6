"""The law suite of executors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from attrs import field, frozen
from hypothesis import strategies as st

from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.events.tool_calls import ToolCallSettled
from agentloop.interception.interceptor import Interceptor
from agentloop.testing.clocks import LoopClock, ManualClock, run_in_virtual_time
from agentloop.testing.executor_bench import ExecutorBench, require_effects_accounted, started_state
from agentloop.testing.kit import Kit, require
from agentloop.testing.toys import BATCHES, PARAMETERS, PLAIN_BATCHES, Gatekeeper, Ledger, toy_call, toy_tools
from agentloop.tools.validation import SchemaValidator
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.event import Event
from agentloop.values.interruptions import BatchInterrupted
from agentloop.values.points import AfterToolUse, AroundToolUse, BeforeToolUse, ProceedToolUse
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.time_and_ids import Clock
from agentloop.values.tool_calls import ToolCall, ToolExecution

_AGENTS = ("ada", "bob")


@frozen
class BatchResult:
    """What came of a batch.

    Attributes:
        answer: the executor's answer, also when it was carried by an error.
        error: what the executor raised.
        events: what it emitted.
        ledger: which toys ran.
        state: the state it was given.
        state_before: the JSON of that state before the batch.
    """

    answer: ToolExecutions | None
    error: BaseException | None
    events: list[Event]
    ledger: Ledger
    state: AgentState
    state_before: bytes


@frozen
class _Trial:
    """Batches of toys under one executor.

    Attributes:
        make: makes the executor.
        interceptors: what its calls pass.
        clock: where times come from.
    """

    make: Callable[[], CanExecuteToolCalls]
    interceptors: Sequence[CanIntercept] = ()
    clock: Clock = field(factory=LoopClock)

    async def run(
        self, calls: Sequence[ToolCall], *, cancel_after: float | None = None, name: str = "agent"
    ) -> BatchResult:
        """Execute a batch, and cancel it after some seconds if asked to."""
        ledger, state = Ledger(), started_state(name, f"execution of {name}")
        bench = ExecutorBench(toy_tools(ledger), self.make(), self.interceptors, clock=self.clock)
        answer, error, state_before = None, None, to_json(state)
        try:
            answer = await _cancelled_after(bench.run(*calls, state=state), cancel_after)
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001  # whatever it raises is looked at by the laws
            error = raised
            carrier = BatchInterrupted.find_in(raised)
            answer = carrier.executions if carrier is not None else None
        return BatchResult(answer, error, bench.events, ledger, state, state_before)


async def _cancelled_after(work: Coroutine[Any, Any, ToolExecutions], seconds: float | None) -> ToolExecutions:
    if seconds is None:
        return await work
    task = asyncio.ensure_future(work)
    await asyncio.wait((task,), timeout=seconds)
    task.cancel()
    return await task


class ExecutorKit(Kit):
    """Checks an executor against the laws of `CanExecuteToolCalls`.

    Args:
        make: makes a fresh executor; it is bound to toys, interceptors, events and a scope by the contracts it implements.
        examples: how many examples are tried for each law.
    """

    laws: tuple[int, ...] = (1, 3, 8, 9, 10, 11, 14, 17, 19)

    def __init__(self, make: Callable[[], CanExecuteToolCalls], *, examples: int = 100) -> None:
        super().__init__(examples=examples)
        self.make = make

    def law_1(self) -> None:
        """Every call has an outcome or waits, in call order, whatever happens, also under cancellation."""

        def holds(given: tuple[list[ToolCall], float | None]) -> None:
            calls, cancel_after = given
            run = run_in_virtual_time(_Trial(self.make, [Gatekeeper()]).run(calls, cancel_after=cancel_after))
            require(1, run.answer is not None, f"the executor raised {run.error!r} and lost the batch")
            assert run.answer is not None  # noqa: S101  # tells the type checker what was required
            keys = list(ToolCalls.of(calls, run.state).keys)
            settled = [execution.key for execution in run.answer.executions]
            waiting = [pending.key for pending in run.answer.pending]
            require(1, sorted(settled + waiting, key=keys.index) == keys, f"calls {keys}, got {settled} and {waiting}")
            require(1, settled == sorted(settled, key=keys.index), f"executions are out of call order: {settled}")
            require(1, waiting == sorted(waiting, key=keys.index), f"pending calls are out of call order: {waiting}")

        self.for_all(st.tuples(BATCHES, st.sampled_from([None, None, 0, 0.5, 1, 2.5])), holds)

    def law_3(self) -> None:
        """Neither the state nor a call that was given is changed."""

        def holds(calls: list[ToolCall]) -> None:
            before = [to_json(one) for one in calls]
            run = run_in_virtual_time(_Trial(self.make, [Gatekeeper()]).run(calls))
            require(3, [to_json(one) for one in calls] == before, "a call was changed")
            require(3, to_json(run.state) == run.state_before, "the state that was given was changed")

        self.for_all(BATCHES, holds)

    def law_8(self) -> None:
        """The answer does not depend on which call finishes first."""

        def holds(given: tuple[list[ToolCall], list[float]]) -> None:
            calls, delays = given
            clock = ManualClock()
            answers = []
            for seconds in (delays, delays[::-1]):
                delayed = [_delayed(one, delay) for one, delay in zip(calls, seconds, strict=False)]
                run = run_in_virtual_time(_Trial(self.make, [Gatekeeper()], clock).run(delayed))
                answers.append(_without_delays(run.answer))
            require(8, answers[0] == answers[1], f"two orders of finishing give {answers[0]!r} and {answers[1]!r}")

        values = st.lists(
            st.builds(toy_call, st.sampled_from(["echo", "whoami", "fail"]), st.integers(0, 9)), max_size=5
        )
        delays = st.lists(st.sampled_from([0, 0.2, 0.4]), min_size=5, max_size=5)
        self.for_all(st.tuples(values, delays), holds)

    def law_9(self) -> None:
        """Batches at the same time see their own state."""

        async def both(calls: list[ToolCall]) -> list[BatchResult]:
            executor = self.make()
            trial = _Trial(lambda: executor, [Gatekeeper()])
            return await asyncio.gather(*[trial.run(calls, name=name) for name in _AGENTS])

        def holds(calls: list[ToolCall]) -> None:
            for name, run in zip(
                _AGENTS, run_in_virtual_time(both([*calls, toy_call("whoami", 1, seconds=1)])), strict=True
            ):
                require(9, run.answer is not None, f"the executor raised {run.error!r}")
                assert run.answer is not None  # noqa: S101  # tells the type checker what was required
                require(9, run.answer.state.agent_id == name, "the answer holds the state of another agent")
                seen = {one.value for one in run.answer.executions if one.name == "whoami" and one.value in _AGENTS}
                require(9, seen <= {name}, f"tools of {name} have seen the state of {seen - {name}}")

        self.for_all(BATCHES, holds)

    def law_10(self) -> None:
        """An event about an outcome says what the answer says."""

        def holds(calls: list[ToolCall]) -> None:
            run = run_in_virtual_time(_Trial(self.make, [Gatekeeper()]).run(calls))
            require(10, run.answer is not None, f"the executor raised {run.error!r}")
            assert run.answer is not None  # noqa: S101  # tells the type checker what was required
            emitted = [event.execution for event in run.events if isinstance(event, ToolCallSettled)]
            require(
                10, emitted == list(run.answer.executions), f"emitted {emitted!r}, answered {run.answer.executions!r}"
            )

        self.for_all(BATCHES, holds)

    def law_11(self) -> None:
        """A call whose interceptor raises does not run, and its outcome is no success."""

        def holds(given: tuple[list[ToolCall], str]) -> None:
            calls, point = given
            run = run_in_virtual_time(_Trial(self.make, [_Raising(point)]).run(calls))
            if point != "after_tool_use":
                require(11, not run.ledger.calls, f"{point} raised, and these ran: {run.ledger.calls}")
            outcomes = run.answer.executions if run.answer is not None else ()
            require(11, not any(one.succeeded for one in outcomes), f"{point} raised, and a call succeeded")
            require(11, run.error is not None, f"{point} raised, and nobody was told")

        batches = st.lists(
            st.builds(toy_call, st.sampled_from(["echo", "alone", "whoami"]), st.integers(0, 9)), min_size=1
        )
        points = st.sampled_from(["before_tool_use", "around_tool_use", "after_tool_use"])
        self.for_all(st.tuples(batches, points), holds)

    def law_14(self) -> None:
        """What a journal holds of a batch is not done again; what has begun and not ended is in doubt, not run."""

        def holds(given: tuple[list[str], float]) -> None:
            names, share = given
            calls = [toy_call(name, place) for place, name in enumerate(names)]
            run_in_virtual_time(require_effects_accounted(self.make, calls, share))

        names = st.lists(st.sampled_from(["echo", "whoami", "alone", "keyed"]), min_size=1, max_size=5)
        self.for_all(st.tuples(names, st.floats(0, 1)), holds)

    def law_17(self) -> None:
        """Tools get arguments that satisfy their schema, and no others."""
        validator = SchemaValidator(PARAMETERS)

        def holds(calls: list[ToolCall]) -> None:
            run = run_in_virtual_time(_Trial(self.make, [_Spoiling()]).run(calls))
            for name, arguments in run.ledger.calls:
                require(17, validator.accepts(arguments), f"{name} was called with {arguments}")

        self.for_all(BATCHES, holds)

    def law_19(self) -> None:
        """Afterwards, tasks and threads are as before, also after a cancellation."""

        async def tasks_left(calls: list[ToolCall], cancel_after: float | None) -> int:
            before = asyncio.all_tasks()
            await _Trial(self.make, [Gatekeeper()]).run(calls, cancel_after=cancel_after)
            return len(asyncio.all_tasks() - before)

        def holds_for_tasks(given: tuple[list[ToolCall], float | None]) -> None:
            require(19, run_in_virtual_time(tasks_left(*given)) == 0, "tasks are left")

        def holds_for_threads(calls: list[ToolCall]) -> None:
            before = set(threading.enumerate())
            asyncio.run(_Trial(self.make, [Gatekeeper()]).run(calls))
            left = set(threading.enumerate()) - before
            require(19, not left, f"threads are left: {left}")

        self.for_all(st.tuples(BATCHES, st.sampled_from([None, 0, 0.5, 1])), holds_for_tasks)
        self.for_all(PLAIN_BATCHES, holds_for_threads)


class _Raising(Interceptor):
    """Raises at one point."""

    def __init__(self, point: str) -> None:
        self._at = point

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        self._raise_at("before_tool_use")
        return point

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:  # noqa: ARG002  # the contract
        self._raise_at("around_tool_use")
        return await proceed()

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        self._raise_at("after_tool_use")
        return point

    def _raise_at(self, name: str) -> None:
        if self._at == name:
            raise RuntimeError(f"this interceptor raises at {name}")


class _Spoiling(Interceptor):
    """Changes arguments to such as the schema refuses."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        value = point.arguments["value"]
        return point.with_arguments({"value": -value}) if value % 2 else point


def _delayed(one: ToolCall, seconds: float) -> ToolCall:
    return one.with_arguments({**one.arguments, "seconds": seconds})


def _without_delays(answer: ToolExecutions | None) -> list[tuple[str, str, str, object, str]]:
    """Return what an answer says apart from the delays, which differ between the runs."""
    executions = answer.executions if answer is not None else ()
    return [(one.id, one.key, one.status.value, one.value, one.error_message) for one in executions]
