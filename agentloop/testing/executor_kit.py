"""The law suite of executors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
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
from agentloop.testing.toys import BATCHES, PARAMETERS, THREADED_BATCHES, Gatekeeper, Ledger, toy_call, toy_tools
from agentloop.tools.validation import SchemaValidator
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.event import Event
from agentloop.values.interruptions import BatchInterrupted
from agentloop.values.points import AfterToolUse, AroundToolUse, BeforeToolUse, ProceedToolUse
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.time_and_ids import Clock
from agentloop.values.tool_calls import ToolCall, ToolExecution, ToolStatus

_AGENTS = ("ada", "bob")


class ExecutorKit(Kit):
    """Checks an executor against the laws of `CanExecuteToolCalls`.

    Args:
        factory: creates a new executor. The kit binds it to toy tools, interceptors, events and a scope, through the contracts
            that it implements.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (1, 3, 8, 9, 10, 11, 14, 17, 19)

    def __init__(self, factory: Callable[[], CanExecuteToolCalls], *, examples: int = 100) -> None:
        super().__init__(examples=examples)
        self.factory = factory

    def law_1(self) -> None:
        """Every call has an outcome or is pending, in call order, even when the batch fails or is cancelled."""

        def holds(example: tuple[list[ToolCall], float | None]) -> None:
            calls, cancel_after = example
            run = run_in_virtual_time(_BatchRunner(self.factory, [Gatekeeper()]).run(calls, cancel_after=cancel_after))
            require(1, run.answer is not None, f"the executor raised {run.error!r} and lost the batch")
            assert run.answer is not None  # noqa: S101  # narrows the type
            keys = list(ToolCalls.of(calls, run.state).keys)
            executed = [execution.key for execution in run.answer.executions]
            pending = [call.key for call in run.answer.pending]
            require(
                1,
                sorted(executed + pending, key=keys.index) == keys,
                f"of the calls {keys}, {executed} have outcomes and {pending} are pending",
            )
            require(1, executed == sorted(executed, key=keys.index), f"executions are out of call order: {executed}")
            require(1, pending == sorted(pending, key=keys.index), f"pending calls are out of call order: {pending}")

        self.for_all(st.tuples(BATCHES, st.sampled_from([None, None, 0, 0.5, 1, 2.5])), holds)

    def law_3(self) -> None:
        """The executor changes neither the state nor the calls that are passed to it."""

        def holds(calls: list[ToolCall]) -> None:
            before = [to_json(call) for call in calls]
            run = run_in_virtual_time(_BatchRunner(self.factory, [Gatekeeper()]).run(calls))
            require(3, [to_json(call) for call in calls] == before, "a call was changed")
            require(3, to_json(run.state) == run.state_before, "the state was changed")

        self.for_all(BATCHES, holds)

    def law_8(self) -> None:
        """The result does not depend on which call finishes first."""

        def holds(example: tuple[list[ToolCall], list[float]]) -> None:
            calls, delays = example
            clock = ManualClock()
            answers = []
            for seconds in (delays, delays[::-1]):
                delayed = [_with_delay(call, delay) for call, delay in zip(calls, seconds, strict=False)]
                run = run_in_virtual_time(_BatchRunner(self.factory, [Gatekeeper()], clock).run(delayed))
                answers.append(_without_delays(run.answer))
            require(8, answers[0] == answers[1], f"two orders of completion give {answers[0]!r} and {answers[1]!r}")

        values = st.lists(
            st.builds(toy_call, st.sampled_from(["echo", "whoami", "fail"]), st.integers(0, 9)), max_size=5
        )
        delays = st.lists(st.sampled_from([0, 0.2, 0.4]), min_size=5, max_size=5)
        self.for_all(st.tuples(values, delays), holds)

    def law_9(self) -> None:
        """Concurrent batches see only their own state."""

        async def run_concurrently(calls: list[ToolCall]) -> list[BatchResult]:
            executor = self.factory()
            runner = _BatchRunner(lambda: executor, [Gatekeeper()])
            return await asyncio.gather(*[runner.run(calls, name=name) for name in _AGENTS])

        def holds(calls: list[ToolCall]) -> None:
            for name, run in zip(
                _AGENTS, run_in_virtual_time(run_concurrently([*calls, toy_call("whoami", 1, seconds=1)])), strict=True
            ):
                require(9, run.answer is not None, f"the executor raised {run.error!r}")
                assert run.answer is not None  # noqa: S101  # narrows the type
                require(9, run.answer.state.agent_id == name, "the result holds the state of another agent")
                seen = {each.value for each in run.answer.executions if each.name == "whoami" and each.value in _AGENTS}
                require(9, seen <= {name}, f"tools of {name} saw the state of {seen - {name}}")

        self.for_all(BATCHES, holds)

    def law_10(self) -> None:
        """The outcomes in events are the outcomes in the result."""

        def holds(calls: list[ToolCall]) -> None:
            run = run_in_virtual_time(_BatchRunner(self.factory, [Gatekeeper()]).run(calls))
            require(10, run.answer is not None, f"the executor raised {run.error!r}")
            assert run.answer is not None  # noqa: S101  # narrows the type
            emitted = [event.execution for event in run.events if isinstance(event, ToolCallSettled)]
            require(
                10, emitted == list(run.answer.executions), f"emitted {emitted!r}, returned {run.answer.executions!r}"
            )

        self.for_all(BATCHES, holds)

    def law_11(self) -> None:
        """A call whose interceptor raises does not run and does not succeed, and the executor raises."""

        def holds(example: tuple[list[ToolCall], str]) -> None:
            calls, point = example
            run = run_in_virtual_time(_BatchRunner(self.factory, [_RaisingInterceptor(point)]).run(calls))
            if point != "after_tool_use":
                require(11, not run.ledger.calls, f"{point} raised, and these calls ran: {run.ledger.calls}")
            outcomes = run.answer.executions if run.answer is not None else ()
            require(11, not any(execution.succeeded for execution in outcomes), f"{point} raised, and a call succeeded")
            require(11, run.error is not None, f"{point} raised, and the executor did not raise")

        batches = st.lists(
            st.builds(toy_call, st.sampled_from(["echo", "alone", "whoami"]), st.integers(0, 9)), min_size=1
        )
        points = st.sampled_from(["before_tool_use", "around_tool_use", "after_tool_use"])
        self.for_all(st.tuples(batches, points), holds)

    def law_14(self) -> None:
        """After a crash, a recorded call does not run again: its outcome is reused, or the call is in doubt."""

        def holds(example: tuple[list[str], float]) -> None:
            names, share = example
            calls = [toy_call(name, place) for place, name in enumerate(names)]
            run_in_virtual_time(require_effects_accounted(self.factory, calls, share))

        names = st.lists(st.sampled_from(["echo", "whoami", "alone", "keyed"]), min_size=1, max_size=5)
        self.for_all(st.tuples(names, st.floats(0, 1)), holds)

    def law_17(self) -> None:
        """Tools are called only with arguments that satisfy their schema, and not by calls that the driver rejects."""
        validator = SchemaValidator(PARAMETERS)

        def holds_for_rejected(example: tuple[list[str], set[int]]) -> None:
            names, rejected = example
            calls = [toy_call(name, value) for value, name in enumerate(names)]
            rejections = {place: f"call {place} is rejected" for place in rejected if place < len(calls)}
            run = run_in_virtual_time(_BatchRunner(self.factory).run(calls, rejections=rejections))
            require(17, run.answer is not None, f"the executor raised {run.error!r}")
            assert run.answer is not None  # noqa: S101  # narrows the type
            ran = {arguments["value"] for _, arguments in run.ledger.calls}
            require(17, not ran & rejections.keys(), f"the rejected calls {ran & rejections.keys()} ran")
            keys = ToolCalls.of(calls, run.state).keys
            outcomes = {execution.key: execution for execution in run.answer.executions}
            for place, reason in rejections.items():
                outcome = outcomes.get(keys[place])
                settled = None if outcome is None else (outcome.status, outcome.error_message)
                require(17, settled == (ToolStatus.REJECTED, reason), f"{reason}, and its outcome is {outcome}")

        def holds(calls: list[ToolCall]) -> None:
            run = run_in_virtual_time(_BatchRunner(self.factory, [_ArgumentBreaker()]).run(calls))
            for name, arguments in run.ledger.calls:
                require(17, validator.accepts(arguments), f"{name} was called with {arguments}")

        self.for_all(BATCHES, holds)
        names = st.lists(st.sampled_from(["echo", "whoami", "alone", "keyed"]), max_size=5)
        self.for_all(st.tuples(names, st.sets(st.integers(0, 4))), holds_for_rejected)

    def law_19(self) -> None:
        """No task or thread outlives a batch, even when it is cancelled."""

        async def count_leaked_tasks(calls: list[ToolCall], cancel_after: float | None) -> int:
            before = asyncio.all_tasks()
            await _BatchRunner(self.factory, [Gatekeeper()]).run(calls, cancel_after=cancel_after)
            return len(asyncio.all_tasks() - before)

        def holds_for_tasks(example: tuple[list[ToolCall], float | None]) -> None:
            require(19, run_in_virtual_time(count_leaked_tasks(*example)) == 0, "tasks are still running")

        def holds_for_threads(calls: list[ToolCall]) -> None:
            before = set(threading.enumerate())
            asyncio.run(_BatchRunner(self.factory, [Gatekeeper()]).run(calls))
            leaked = set(threading.enumerate()) - before
            require(19, not leaked, f"threads are still running: {leaked}")

        self.for_all(st.tuples(BATCHES, st.sampled_from([None, 0, 0.5, 1])), holds_for_tasks)
        self.for_all(THREADED_BATCHES, holds_for_threads)


@frozen
class BatchResult:
    """The result of a batch, and everything that the laws look at.

    Attributes:
        answer: the executions that the executor returned, or that its error carries.
        error: the error that the executor raised.
        events: the events that were emitted.
        ledger: the calls that ran.
        state: the state that was passed to the executor.
        state_before: the JSON of that state before the batch.
    """

    answer: ToolExecutions | None
    error: BaseException | None
    events: list[Event]
    ledger: Ledger
    state: AgentState
    state_before: bytes


@frozen
class _BatchRunner:
    """Runs batches of toy calls with an executor.

    Attributes:
        factory: creates the executor.
        interceptors: the interceptors of the calls.
        clock: the source of times.
    """

    factory: Callable[[], CanExecuteToolCalls]
    interceptors: Sequence[CanIntercept] = ()
    clock: Clock = field(factory=LoopClock)

    async def run(
        self,
        calls: Sequence[ToolCall],
        *,
        cancel_after: float | None = None,
        name: str = "agent",
        rejections: Mapping[int, str] | None = None,
    ) -> BatchResult:
        """Execute a batch.

        Args:
            calls: the calls of the batch.
            cancel_after: cancel the batch after this many seconds; None to let it finish.
            name: the agent's id.
            rejections: why the driver rejects calls, by their positions.
        """
        ledger, state = Ledger(), started_state(name, f"execution of {name}")
        bench = ExecutorBench(toy_tools(ledger), self.factory(), self.interceptors, clock=self.clock)
        answer, error, state_before = None, None, to_json(state)
        try:
            answer = await _cancel_after(bench.run(*calls, state=state, rejections=rejections), cancel_after)
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001  # the laws judge every error
            error = raised
            carrier = BatchInterrupted.find_in(raised)
            answer = carrier.executions if carrier is not None else None
        return BatchResult(answer, error, bench.events, ledger, state, state_before)


async def _cancel_after(batch: Coroutine[Any, Any, ToolExecutions], seconds: float | None) -> ToolExecutions:
    """Await a batch, and cancel it after this many seconds."""
    if seconds is None:
        return await batch
    task = asyncio.ensure_future(batch)
    await asyncio.wait((task,), timeout=seconds)
    task.cancel()
    return await task


class _RaisingInterceptor(Interceptor):
    """Raises at one interceptor point."""

    def __init__(self, point: str) -> None:
        self._point = point

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
        if self._point == name:
            raise RuntimeError(f"this interceptor raises at {name}")


class _ArgumentBreaker(Interceptor):
    """Replaces odd values by ones that the schema rejects."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        value = point.arguments["value"]
        return point.with_arguments({"value": -value}) if value % 2 else point


def _with_delay(call: ToolCall, seconds: float) -> ToolCall:
    return call.with_arguments({**call.arguments, "seconds": seconds})


def _without_delays(answer: ToolExecutions | None) -> list[tuple[str, str, str, object, str]]:
    """Return the outcomes without the argument `seconds`, which differs between the runs."""
    executions = answer.executions if answer is not None else ()
    return [(each.id, each.key, each.status.value, each.value, each.error_message) for each in executions]
