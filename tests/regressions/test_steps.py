"""Steps and their records: every effect is recorded, and every record matches an effect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pytest
from attrs import evolve, field, frozen

from agentloop import (
    AgentLoop,
    AgentLoopError,
    AgentState,
    AgentStop,
    Budget,
    Interceptor,
    Message,
    Permissions,
    ReActDriver,
    RequireApproval,
    ScriptedInference,
    StepLimit,
    TimeLimit,
    Tool,
    ToolCall,
    ToolCallingDriver,
    ToolContext,
    ToolExecution,
    ToolExecutor,
    Usage,
    from_json,
    handoff_to,
    to_json,
    tool,
)
from agentloop.compilers import SlidingWindow
from agentloop.contracts import CanExecuteToolCalls, CanInfer, CanUseTools
from agentloop.contracts.can_accept import CanAcceptToolRuntime
from agentloop.contracts.tool import ToolPolicy
from agentloop.contracts.tools import Tools
from agentloop.drivers import StepDraft
from agentloop.durable import MemoryJournal
from agentloop.errors import ContractViolation, ProviderUnavailable
from agentloop.events import (
    AgentExecutionCompleted,
    AgentExecutionFailed,
    AgentExecutionStarted,
    AgentExecutionStopped,
    AgentExecutionSuspended,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    InferenceRequestStarted,
    InferenceResponseReceived,
    ProtocolMonitor,
    StopSignalReceived,
    TokenUsageReported,
    ToolCallAbandoned,
    ToolCallCompleted,
    ToolCallStarted,
)
from agentloop.interception import ToolSelection, at
from agentloop.models import LLMConfig
from agentloop.models.wire_formats.wire_format import WIRE_FORMATS, wire_format
from agentloop.policies import Resilience
from agentloop.testing import LoopClock, run_in_virtual_time
from agentloop.toolkits import Ensemble
from agentloop.values import (
    Event,
    ExecutionStatus,
    InferenceRequest,
    InferenceResponse,
    Text,
    ToolExecutions,
    ToolStatus,
)
from agentloop.values.batches import ToolCalls
from agentloop.values.decisions import approve
from agentloop.values.interruptions import StepInterrupted, interrupted_state
from agentloop.values.points import AfterToolUse, AroundToolUse, BeforeStep, BeforeToolUse, ProceedToolUse, StatePoint
from agentloop.values.policies import DeduplicatePolicy

pytestmark = pytest.mark.unreplayed  # parts that break their contracts, and runs that are cancelled from outside

SECRET = "DE02120300000000202051"
ENDS = (AgentExecutionCompleted, AgentExecutionFailed, AgentExecutionStopped, AgentExecutionSuspended)


@frozen
class Till:
    """The calls of a payment tool: amounts and idempotency keys, in the order in which the calls started."""

    paid: list[int] = field(factory=list)
    keys: list[str] = field(factory=list)
    started: asyncio.Event = field(factory=asyncio.Event)

    def pay(self, *, seconds: float = 0, **settings: Any) -> Tool:
        """Return the tool; each call takes this many seconds after its effect."""

        @tool(name="pay", **settings)
        async def pay(n: int, context: ToolContext) -> str:
            """Pay."""
            self.paid.append(n)
            self.keys.append(context.idempotency_key)
            self.started.set()
            await asyncio.sleep(seconds)
            return f"paid {n}"

        return pay


def pay(n: int = 1) -> ToolCall:
    """Return a call of the payment tool."""
    return ToolCall(f"call_{n}", "pay", json.dumps({"n": n}))


def loop_of(lines: Sequence[Any], tools: Sequence[Any], *interceptors: Any, **parts: Any) -> AgentLoop:
    """Return a loop over a scripted model, with the clock of the running event loop."""
    driver = ToolCallingDriver(ScriptedInference(*lines), mode="native")
    return AgentLoop(driver, tools, interceptors=interceptors, clock=LoopClock(), **parts)


def record_events(loop: AgentLoop) -> tuple[list[Event], ProtocolMonitor]:
    """Record all events of a loop and check their protocol."""
    events, monitor = list[Event](), ProtocolMonitor()
    loop.wiretap(events.append)
    loop.wiretap(monitor)
    return events, monitor


async def ended(loop: AgentLoop, message: str | AgentState = "go") -> AgentState:
    """Run to the end; an exception that escapes the loop fails the test."""
    escaped: BaseException
    try:
        return await loop.execute(message)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the tests claim that nothing escapes
        escaped = error
    raise AssertionError(f"the run ended without a state: {escaped!r}")


async def cancelled_when(loop: AgentLoop, moment: asyncio.Event) -> AgentState | None:
    """Run, cancel when the event is set, and return the state: the result, or that of the cancellation."""
    task = asyncio.create_task(loop.execute("go"))
    await moment.wait()
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError as cancelled:
        return interrupted_state(cancelled)


def executions_of(state: AgentState) -> list[ToolExecution]:
    """Return the outcomes of all calls of an execution."""
    return [execution for step in state.steps for execution in step.executions]


def is_accounted_for(execution: ToolExecution) -> bool:
    """Return whether an outcome reports that its effect took place or may have."""
    return execution.succeeded or execution.may_have_run


def refusal(make: Callable[[], Any]) -> Exception | None:
    """Return the error that a constructor raises, or None."""
    try:
        make()
    except (AgentLoopError, TypeError, ValueError, AttributeError) as error:
        return error
    return None


def of_another() -> AgentState:
    """Return the state of another agent whose execution is in progress."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return AgentState.start("another question", agent_id="another").with_execution_started("another-run", now)


# --- the record of an effect survives later failures ----------------------------------------------------


@frozen(kw_only=True)
class FailsToFinish(ToolCallingDriver):
    """A driver that fails after the calls were executed."""

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        state = super().finish(draft, outcome)
        if outcome is not None:
            raise KeyError("a defect in the driver")
        return state


@frozen
class Rearranging(ToolExecutor):
    """An executor that executes the calls and returns other outcomes."""

    rearrange: Callable[[tuple[ToolExecution, ...]], Sequence[ToolExecution]] = field(kw_only=True)

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        outcome = await super().execute_tools(tool_calls, state)
        return evolve(outcome, executions=self.rearrange(outcome.executions))


def test_an_error_while_a_step_is_finished_keeps_its_calls_and_tokens() -> None:
    """The run fails, and its state holds the outcome of the call that ran and the tokens of the inference."""
    till = Till()
    driver = FailsToFinish(ScriptedInference(pay(), "done"), mode="native")
    state = run_in_virtual_time(ended(AgentLoop(driver, [till.pay()], clock=LoopClock())))
    assert till.paid == [1]
    assert state.status is ExecutionStatus.FAILED
    assert [execution.value for execution in executions_of(state)] == ["paid 1"]
    assert state.usage.input_tokens == 10
    assert state.tool_call_count == 1


def test_a_missing_outcome_does_not_lose_the_others() -> None:
    """The returned outcomes are recorded, and the call without an outcome is recorded as a call that may have run."""
    till = Till()
    executor = Rearranging(rearrange=lambda outcomes: outcomes[:-1])
    state = run_in_virtual_time(ended(loop_of([[pay(1), pay(2)], "done"], [till.pay()], executor=executor)))
    assert sorted(till.paid) == [1, 2]
    assert state.status is ExecutionStatus.FAILED
    recorded = executions_of(state)
    assert [dict(execution.arguments) for execution in recorded] == [{"n": 1}, {"n": 2}]
    assert recorded[0].value == "paid 1"
    assert is_accounted_for(recorded[1])


@frozen(kw_only=True)
class RepeatsSteps(ToolCallingDriver):
    """A driver that takes a step again after an error."""

    async def use_tools(self, state: AgentState) -> AgentState:
        try:
            return await super().use_tools(state)
        except AgentLoopError:
            return await super().use_tools(state)


def test_a_driver_that_repeats_a_failed_step_executes_no_second_call_under_the_same_key() -> None:
    """The run fails with the first call and the tokens of both inferences, and idempotency keys are unique."""
    till = Till()

    class Fails(Interceptor):
        def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            raise RuntimeError("a defect in the interceptor")

    driver = RepeatsSteps(ScriptedInference(pay(1), pay(2), "done"), mode="native")
    loop = AgentLoop(driver, [till.pay()], interceptors=[Fails()], clock=LoopClock())
    state = run_in_virtual_time(ended(loop))
    assert till.paid == [1]
    assert state.status is ExecutionStatus.FAILED
    assert [(e.key, dict(e.arguments), e.may_have_run) for e in executions_of(state)] == [
        (till.keys[0], {"n": 1}, True)
    ]
    assert state.usage.input_tokens == 20


@frozen
class ExecutesTwice(CanUseTools, CanAcceptToolRuntime):
    """A driver written against the contracts alone, which executes two batches with the same keys in one step."""

    executor: CanExecuteToolCalls | None = None

    def with_tool_runtime(self, tools: Tools, executor: CanExecuteToolCalls) -> ExecutesTwice:
        del tools
        return ExecutesTwice(executor)

    async def use_tools(self, state: AgentState) -> AgentState:
        assert self.executor is not None
        for number in (1, 2):
            state = (await self.executor.execute_tools(ToolCalls.of([pay(number)], state), state)).state
        return state


def test_a_key_is_executed_once_in_a_step() -> None:
    """The second batch with the same key does not run, and the first is recorded."""
    till = Till()
    state = run_in_virtual_time(ended(AgentLoop(ExecutesTwice(), [till.pay()], clock=LoopClock())))
    assert (till.paid, state.status) == ([1], ExecutionStatus.FAILED)
    assert [execution.value for execution in executions_of(state)] == ["paid 1"]


@frozen(kw_only=True)
class LosesTokens(ToolCallingDriver):
    """A driver whose steps have no usage."""

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        state = super().finish(draft, outcome)
        step = state.last_step
        assert step is not None
        return state.with_last_step(evolve(step, usage=Usage.none(), inferences=0))


@frozen(kw_only=True)
class FailsLate(ToolCallingDriver):
    """A driver that fails after its step, whatever became of it."""

    async def use_tools(self, state: AgentState) -> AgentState:
        with suppress(AgentLoopError):
            await super().use_tools(state)
        raise KeyError("a defect in the driver")


def test_a_driver_cannot_lose_tokens() -> None:
    """The run fails with the tokens that were spent."""
    loop = AgentLoop(LosesTokens(ScriptedInference("done"), mode="native"), clock=LoopClock())
    state = run_in_virtual_time(ended(loop))
    assert (state.status, state.usage.input_tokens, state.inference_count) == (ExecutionStatus.FAILED, 10, 1)


def test_requests_that_failed_are_counted_after_an_error_of_the_driver() -> None:
    """The failed request is counted although the driver lost its error."""

    class Unavailable(CanInfer):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            raise ProviderUnavailable("down")

    loop = AgentLoop(FailsLate(Unavailable(), mode="native"), clock=LoopClock())
    state = run_in_virtual_time(ended(loop))
    assert (state.status, state.inference_count) == (ExecutionStatus.FAILED, 1)


@pytest.mark.unmonitored
def test_a_foreign_state_before_a_call_prevents_the_call() -> None:
    """The foreign state is detected when the interceptor returns it: no payment is made, and the run fails with its own identity."""
    till = Till()

    class Confuses(Interceptor):
        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            return point.with_state(of_another())

    loop = loop_of([pay(), "done"], [till.pay()], Confuses())
    _, monitor = record_events(loop)
    state = run_in_virtual_time(ended(loop, AgentState.start("go", agent_id="own")))
    assert till.paid == []
    assert (state.agent_id, state.status) == ("own", ExecutionStatus.FAILED)
    assert (monitor.violations, monitor.unfinished) == ([], [])


@pytest.mark.unmonitored
def test_a_foreign_state_after_a_call_does_not_lose_its_record() -> None:
    """The run fails, and its own state records that the call ran or may have run."""
    till = Till()

    class Confuses(Interceptor):
        def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            return point.with_state(of_another())

    loop = loop_of([pay(), "done"], [till.pay()], Confuses())
    _, monitor = record_events(loop)
    state = run_in_virtual_time(ended(loop, AgentState.start("go", agent_id="own")))
    assert till.paid == [1]
    assert (state.agent_id, state.status) == ("own", ExecutionStatus.FAILED)
    assert [is_accounted_for(execution) for execution in executions_of(state)] == [True]
    assert state.usage.input_tokens == 10
    assert (monitor.violations, monitor.unfinished) == ([], [])


# --- foreign and stale states --------------------------------------------------------------------------------

STATE_POINTS = (
    "before_execution",
    "before_step",
    "before_inference",
    "after_inference",
    "after_step",
    "on_stop",
    "after_execution",
)


def returning(name: str, replace: Callable[[StatePoint], AgentState]) -> Interceptor:
    """Return an interceptor that returns another state at one point."""

    def point(_: Interceptor, at: StatePoint) -> StatePoint:
        return at.with_state(replace(at))

    kind: type[Interceptor] = type("Confuses", (Interceptor,), {name: point})
    return kind()


@pytest.mark.unmonitored
@pytest.mark.parametrize("in_progress", [True, False], ids=["in progress", "not started"])
@pytest.mark.parametrize("name", STATE_POINTS)
def test_a_foreign_state_is_an_error_of_the_run(name: str, in_progress: bool) -> None:  # noqa: FBT001  # a parameter of the test
    """The run fails with its own identity and its own steps, and its terminal event is emitted."""
    till = Till()
    foreign = of_another() if in_progress else AgentState.start("another question", agent_id="another")
    loop = loop_of([pay(), "done"], [till.pay()], returning(name, lambda _: foreign))
    events, monitor = record_events(loop)
    state = run_in_virtual_time(ended(loop, AgentState.start("go", agent_id="own")))
    assert (state.agent_id, state.status) == ("own", ExecutionStatus.FAILED)
    assert len(executions_of(state)) == len(till.paid)
    assert [type(event) for event in events if isinstance(event, ENDS)] == [AgentExecutionFailed]
    assert {event.agent_id for event in events} == {"own"}
    assert monitor.violations == []


@pytest.mark.unmonitored
@pytest.mark.parametrize("name", ["before_step", "after_step"])
def test_a_stale_state_drops_no_step(name: str) -> None:
    """Every payment stays in the state, and idempotency keys are unique."""
    till, first = Till(), list[AgentState]()

    def stale(point: StatePoint) -> AgentState:
        first.append(point.state)
        return first[0]

    class Remembers(Interceptor):
        priority = 1

        def before_step(self, point: Any) -> Any:
            first.append(point.state)
            return point

    loop = loop_of([pay(1), pay(2), "done"], [till.pay()], Remembers(), returning(name, stale))
    state = run_in_virtual_time(ended(loop))
    assert len(set(till.keys)) == len(till.keys)
    assert [execution.key for execution in executions_of(state)] == till.keys


@pytest.mark.parametrize("name", ["on_stop", "after_execution"])
def test_a_stale_state_at_the_end_drops_no_step(name: str) -> None:
    """Every payment stays in the final state."""
    till, first = Till(), list[AgentState]()

    class Remembers(Interceptor):
        def before_step(self, point: Any) -> Any:
            first.append(point.state)
            return point

    loop = loop_of([pay(), "done"], [till.pay()], Remembers(), returning(name, lambda _: first[0]))
    state = run_in_virtual_time(ended(loop))
    assert till.paid == [1]
    assert [execution.key for execution in executions_of(state)] == till.keys


# --- outcomes are paired by key -----------------------------------------------------------------------------


def test_outcomes_in_another_order_are_paired_with_their_calls() -> None:
    """Each call is paired with the outcome that has its key, in any order of the outcomes."""
    executor = Rearranging(rearrange=lambda outcomes: outcomes[::-1])
    state = run_in_virtual_time(ended(loop_of([[pay(1), pay(2)], "done"], [Till().pay()], executor=executor)))
    assert state.status is ExecutionStatus.COMPLETED
    pairs = [(exchange.call.arguments["n"], exchange.execution.value) for exchange in state.messages[1].exchanges]
    assert pairs == [(1, "paid 1"), (2, "paid 2")]


@pytest.mark.parametrize("ids", [("a", "b"), ("a", "a")], ids=["different ids", "equal ids"])
def test_outcomes_under_each_other_s_keys_are_recorded_with_their_calls(ids: tuple[str, str]) -> None:
    """The run fails, and each call is recorded with the outcome that it had."""
    executor = Rearranging(
        rearrange=lambda outcomes: [
            evolve(outcome, key=other.key) for outcome, other in zip(outcomes, outcomes[::-1], strict=True)
        ]
    )
    calls = [evolve(pay(number), id=call_id) for number, call_id in zip((1, 2), ids, strict=True)]
    state = run_in_virtual_time(ended(loop_of([calls, "done"], [Till().pay()], executor=executor)))
    assert state.status is ExecutionStatus.FAILED
    pairs = [(exchange.call.arguments["n"], exchange.execution.value) for exchange in state.messages[1].exchanges]
    assert pairs == [(1, "paid 1"), (2, "paid 2")]


@pytest.mark.parametrize("key", ["another-run/1/0", ""])
def test_an_outcome_with_a_foreign_key_fails_the_run_and_records_the_batch(key: str) -> None:
    """The run fails, and its state has the call with the right key, as a call that ran or may have run."""
    till = Till()
    executor = Rearranging(rearrange=lambda outcomes: [evolve(outcome, key=key) for outcome in outcomes])
    state = run_in_virtual_time(ended(loop_of([pay(), "done"], [till.pay()], executor=executor)))
    assert till.paid == [1]
    assert state.status is ExecutionStatus.FAILED
    assert [(execution.key, is_accounted_for(execution)) for execution in executions_of(state)] == [
        (till.keys[0], True)
    ]


# --- cancellation and timeouts -------------------------------------------------------------------


@tool(name="read_account")
async def read_account() -> str:
    """Read the account number."""
    return SECRET


def masked(seconds: float) -> tuple[AgentLoop, asyncio.Event]:
    """Return a loop with an interceptor that masks results slowly, and an event that is set when it starts."""
    asked = asyncio.Event()

    class Masks(Interceptor):
        async def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            asked.set()
            await asyncio.sleep(seconds)
            return point.with_value("***")

    return loop_of([ToolCall("1", "read_account", "{}"), "done"], [read_account], Masks()), asked


@pytest.mark.unmonitored
@pytest.mark.parametrize("seconds", [1, 1_000_000], ids=["slow", "endless"])
def test_cancellation_during_masking_never_stores_the_unmasked_value(seconds: float) -> None:
    """A run that is cancelled during masking stores the masked value or no value."""

    async def run() -> AgentState | None:
        return await cancelled_when(*masked(seconds))

    state = run_in_virtual_time(run())
    assert state is not None
    assert SECRET not in to_json(state).decode()


@pytest.mark.unmonitored
def test_a_call_that_is_cancelled_during_masking_has_a_last_event() -> None:
    """The events follow the protocol: each call that started has a completion event with the execution in the state."""

    async def run() -> tuple[AgentState | None, list[Event], ProtocolMonitor]:
        loop, asked = masked(1)
        events, monitor = record_events(loop)
        return await cancelled_when(loop, asked), events, monitor

    state, events, monitor = run_in_virtual_time(run())
    assert state is not None
    completed = [event.execution for event in events if isinstance(event, ToolCallCompleted)]
    assert completed == executions_of(state)
    assert (monitor.violations, monitor.unfinished) == ([], [])


def test_an_interceptor_that_stops_does_not_hide_a_value_from_the_others() -> None:
    """The value is masked although an interceptor before the one that masks it stops the execution."""

    class Stops(Interceptor):
        def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            raise AgentStop("enough")

    class Masks(Interceptor):
        priority = 10

        def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            return point.with_value("***")

    state = run_in_virtual_time(ended(loop_of([ToolCall("1", "read_account", "{}")], [read_account], Stops(), Masks())))
    assert (state.status, [e.value for e in executions_of(state)]) == (ExecutionStatus.STOPPED, ["***"])
    assert SECRET not in to_json(state).decode()


@pytest.mark.unmonitored
def test_a_sub_agent_that_is_cancelled_during_masking_ends_before_its_caller() -> None:
    """Nothing is abandoned: the sub-agent has less time than its caller, and every execution has a last event."""

    async def run() -> tuple[AgentState | None, list[Event], ProtocolMonitor]:
        child, asked = masked(1_000_000)
        loop = loop_of([ToolCall("1", "ask", '{"task": "read"}'), "done"], [child.as_tool("ask", "Ask an agent.")])
        events, monitor = record_events(loop)
        return await cancelled_when(loop, asked), events, monitor

    state, events, monitor = run_in_virtual_time(run())
    assert state is not None
    assert (monitor.violations, monitor.unfinished) == ([], [])
    assert not [event for event in events if isinstance(event, ToolCallAbandoned)]
    assert SECRET not in "".join(to_json(event).decode() for event in events)


def with_cleanup(seconds: float) -> tuple[AgentLoop, list[str], asyncio.Event]:
    """Return a loop over two ensembles that stop slowly, the log of their actions, and an event that is set when one stops."""
    log, stopping = list[str](), asyncio.Event()

    def group(name: str, member: Tool) -> Ensemble:
        async def start() -> None:
            log.append(f"start {name}")

        async def stop() -> None:
            log.append(f"stop {name}")
            stopping.set()
            await asyncio.sleep(seconds)

        return Ensemble(name, [member], start=start, stop=stop)

    groups = [group("first", Till().pay()), group("second", read_account)]
    return loop_of([pay(), "done"], groups), log, stopping


def test_a_run_that_is_cancelled_during_cleanup_is_not_lost() -> None:
    """The final state is returned, or attached to the cancellation."""

    async def run() -> AgentState | None:
        loop, _, stopping = with_cleanup(1)
        return await cancelled_when(loop, stopping)

    state = run_in_virtual_time(run())
    assert state is not None
    assert state.status is ExecutionStatus.COMPLETED
    assert [execution.value for execution in executions_of(state)] == ["paid 1"]


def test_a_run_that_is_cancelled_during_cleanup_stops_every_ensemble() -> None:
    """Each ensemble that was started is stopped once."""

    async def run() -> list[str]:
        loop, log, stopping = with_cleanup(1)
        await cancelled_when(loop, stopping)
        return log

    log = run_in_virtual_time(run())
    assert sorted(log) == ["start first", "start second", "stop first", "stop second"]


async def _awaited_for(proceed: ProceedToolUse) -> ToolExecution:
    return await asyncio.wait_for(proceed(), 1)


async def _within_timeout(proceed: ProceedToolUse) -> ToolExecution:
    async with asyncio.timeout(1):
        return await proceed()


@pytest.mark.parametrize("with_timeout", [_awaited_for, _within_timeout])
def test_an_effect_that_an_interceptor_times_out_may_have_run(
    with_timeout: Callable[[ProceedToolUse], Awaitable[ToolExecution]],
) -> None:
    """The outcome of a call that an interceptor timed out after its start reports that the call may have run."""
    till = Till()

    class Hurries(Interceptor):
        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            try:
                return await with_timeout(proceed)
            except TimeoutError:
                return point.fail("too slow")

    state = run_in_virtual_time(ended(loop_of([pay(), "done"], [till.pay(seconds=10)], Hurries())))
    assert till.paid == [1]
    assert [execution.may_have_run for execution in executions_of(state)] == [True]


def test_a_tool_does_not_start_after_its_call_is_settled() -> None:
    """An interceptor that leaves `proceed()` behind and returns an outcome of its own has prevented the call."""
    till, left = Till(), list[asyncio.Task[ToolExecution]]()

    class Leaves(Interceptor):
        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            left.append(asyncio.ensure_future(proceed()))
            return point.fail("not now")

    async def run() -> tuple[AgentState, BaseException | None]:
        state = await ended(loop_of([pay(), "done"], [till.pay()], Leaves()))
        await asyncio.wait(left)
        return state, left[0].exception()

    state, error = run_in_virtual_time(run())
    assert till.paid == []
    assert [execution.may_have_run for execution in executions_of(state)] == [False]
    assert isinstance(error, ContractViolation)


def test_an_effect_that_raises_on_cancellation_may_have_run() -> None:
    """An error that replaces the cancellation does not hide that the effect may have taken place."""

    async def run() -> AgentState | None:
        started = asyncio.Event()

        @tool
        async def transfer() -> str:
            """Transfer."""
            started.set()
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                raise ConnectionError("connection lost") from None
            return "transferred"

        return await cancelled_when(loop_of([ToolCall("1", "transfer", "{}"), "done"], [transfer]), started)

    state = run_in_virtual_time(run())
    assert state is not None
    assert [execution.may_have_run for execution in executions_of(state)] == [True]


def test_a_duplicate_of_a_call_that_may_have_run_does_not_run() -> None:
    """With `deduplicate="exact"`, a call that timed out counts as executed, so its effect is not repeated."""
    till = Till()
    tools = [till.pay(seconds=10, timeout=1, deduplicate="exact")]
    state = run_in_virtual_time(ended(loop_of([pay(), pay(), "done"], tools, Resilience())))
    assert till.paid == [1]
    assert executions_of(state)[0].may_have_run


@pytest.mark.parametrize("journaled", [False, True])
def test_a_duplicate_does_not_run_after_its_execution_was_resumed(journaled: bool) -> None:  # noqa: FBT001  # a parameter of the test
    """A call that timed out before the suspension does not run again."""
    till = Till()

    @tool
    async def sign() -> str:
        """Sign."""
        return "signed"

    slow = till.pay(seconds=10, timeout=1, deduplicate="exact")
    lines = [pay(1), ToolCall("2", "sign", "{}"), pay(1), pay(2), "done"]
    journal = MemoryJournal() if journaled else None
    loop = loop_of(lines, [slow, sign], Resilience(), RequireApproval(["sign"]), journal=journal)

    async def resumed() -> AgentState:
        state = await ended(loop)
        return await loop.resume(state, {call.key: approve() for call in state.pending})

    state = run_in_virtual_time(resumed())
    assert till.paid == [1, 2]
    assert [e.error.type for e in executions_of(state) if e.error] == [
        "ToolTimedOut",
        "DuplicateInDoubt",
        "ToolTimedOut",
    ]


def test_a_success_before_a_suspension_is_shared_after_it() -> None:
    """An equal call after the resumption gets the result of the first one."""
    till = Till()

    @tool
    async def sign() -> str:
        """Sign."""
        return "signed"

    loop = loop_of(
        [pay(1), ToolCall("2", "sign", "{}"), pay(1), "done"],
        [till.pay(deduplicate="exact"), sign],
        Resilience(),
        RequireApproval(["sign"]),
    )

    async def resumed() -> AgentState:
        state = await ended(loop)
        return await loop.resume(state, {call.key: approve() for call in state.pending})

    state = run_in_virtual_time(resumed())
    assert till.paid == [1]
    assert [execution.value for execution in executions_of(state)] == ["paid 1", "signed", "paid 1"]


def test_a_suspended_call_is_no_duplicate_of_itself() -> None:
    """An agent that waits for an approval runs on when it is resumed, although its calls are deduplicated across executions."""
    till = Till()
    child = loop_of([pay(), "paid"], [till.pay()], RequireApproval())
    once = ToolPolicy(deduplicate=DeduplicatePolicy(seconds=1000, across_executions=True))
    call = ToolCall("1", "ask", '{"task": "pay"}')
    loop = loop_of([call, "done"], [child.as_tool("ask", "Ask an agent.", policy=once)], Resilience())

    async def resumed() -> AgentState:
        state = await ended(loop)
        return await loop.resume(state, {call.key: approve() for call in state.pending if not call.waits_for})

    state = run_in_virtual_time(resumed())
    assert (till.paid, [execution.value for execution in executions_of(state)]) == ([1], ["paid"])


# --- permissions --------------------------------------------------------------------------------------------

never_awaited = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


def answering(*, answer: Any) -> Any:
    """Return an async predicate with this answer."""

    async def predicate(_: BeforeToolUse) -> Any:
        await asyncio.sleep(0)
        return answer

    return predicate


def paid_under(permissions: Permissions, *others: Any, n: int = 1) -> list[int]:
    """Return the payments that these permissions allow."""
    till = Till()

    @tool(effect="pure")
    async def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    lines = [ToolCall("1", "look", json.dumps({"n": n})) if others else pay(n), "done"]
    run_in_virtual_time(ended(loop_of(lines, [till.pay(), look], permissions, *others)))
    return till.paid


@never_awaited
def test_an_async_predicate_that_returns_false_allows_nothing() -> None:
    """The result of an async predicate of `allow` decides, not the truth value of its coroutine."""
    assert paid_under(Permissions(allow=[answering(answer=False)])) == []


@never_awaited
def test_an_async_predicate_that_does_not_deny_lets_a_call_run() -> None:
    """The result of an async predicate of `deny` decides, not the truth value of its coroutine."""
    assert paid_under(Permissions(deny=[answering(answer=False)])) == [1]


@never_awaited
@pytest.mark.parametrize(
    "predicate", [lambda _: "no", lambda _: 1, answering(answer="no")], ids=["text", "number", "async text"]
)
def test_a_verdict_that_is_not_a_bool_allows_nothing(predicate: Any) -> None:
    """A predicate that returns anything but True or False allows nothing."""
    assert paid_under(Permissions(allow=[predicate])) == []


def test_a_deny_predicate_without_a_verdict_denies() -> None:
    """A predicate that returns None denies the call, like a predicate that raises."""
    silent: Any = lambda _: None  # noqa: E731  # not a valid predicate type
    assert paid_under(Permissions(deny=[silent])) == []


def test_a_call_that_is_changed_to_a_denied_tool_does_not_run() -> None:
    """The permissions apply to the call that runs when an interceptor changes the tool."""
    rewrite = at(
        "before_tool_use",
        lambda point: point.with_call(evolve(point.call, name="pay")) if point.call.name == "look" else point,
    )
    assert paid_under(Permissions(deny=["pay"]), rewrite) == []


def test_a_call_that_is_changed_inside_of_an_approval_waits_for_it() -> None:
    """An approval applies to the call that runs when an interceptor further inside changes the tool."""
    till = Till()
    rewrite = at(
        "before_tool_use",
        lambda point: point.with_call(evolve(point.call, name="pay")) if point.call.name == "look" else point,
        priority=-2000,
    )

    @tool(effect="pure")
    async def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    loop = loop_of([ToolCall("1", "look", '{"n": 1}'), "done"], [till.pay(), look], RequireApproval(["pay"]), rewrite)

    async def run() -> tuple[AgentState, list[int], AgentState]:
        state = await ended(loop)
        before = list(till.paid)
        decisions = {call.key: approve(call.digest) for call in state.pending}
        return state, before, await loop.resume(state, decisions)

    suspended, before, state = run_in_virtual_time(run())
    assert ([call.call.name for call in suspended.pending], before) == (["pay"], [])
    assert (state.status, till.paid) == (ExecutionStatus.COMPLETED, [1])


def unawaited(*_: object) -> Any:
    """Return what an async function returns where nobody awaits it; it is closed, so that Python does not warn."""
    coroutine = asyncio.sleep(0, result=False)
    coroutine.close()
    return coroutine


def test_an_async_comparison_of_calls_is_an_error() -> None:
    """A function that compares calls returns True or False; the truth value of a coroutine would make all calls the same."""
    till = Till()
    tools = [till.pay(deduplicate=DeduplicatePolicy(by=unawaited))]
    state = run_in_virtual_time(ended(loop_of([pay(1), pay(2), "done"], tools, Resilience())))
    assert (till.paid, state.status) == ([1], ExecutionStatus.FAILED)


def test_an_async_predicate_of_a_tool_selection_is_an_error() -> None:
    """No tool is offered because a coroutine is true."""
    model = ScriptedInference("done")
    loop = AgentLoop(
        ToolCallingDriver(model, mode="native"),
        [Till().pay()],
        interceptors=[ToolSelection([unawaited])],
        clock=LoopClock(),
    )
    assert run_in_virtual_time(ended(loop)).status is ExecutionStatus.FAILED
    assert model.requests == []


def test_arguments_that_are_changed_after_a_check_do_not_run() -> None:
    """The permissions apply to the arguments that run when an interceptor changes them."""
    till = Till()
    permissions = Permissions(deny=[lambda point: point.arguments["n"] > 100])
    convert = at(
        "before_tool_use",
        lambda point: point if point.arguments["n"] > 100 else point.with_arguments({"n": point.arguments["n"] * 1000}),
    )
    run_in_virtual_time(ended(loop_of([pay(50), "done"], [till.pay()], permissions, convert)))
    assert till.paid == []


# --- values ------------------------------------------------------------------------------------------------------


def test_every_recorded_state_can_be_read_again() -> None:
    """Results that nest earlier results are rejected when they are too deep to be read again."""

    @tool(effect="pure")
    async def wrap(state: AgentState) -> Any:
        """Wrap the previous result in a report."""
        exchanges = state.messages[-1].exchanges
        report: Any = exchanges[0].execution.value if exchanges else "initial"
        for _ in range(150):
            report = {"of": report}
        return report

    calls = [ToolCall(str(number), "wrap", "{}") for number in range(2)]
    state = run_in_virtual_time(ended(loop_of([*calls, "done"], [wrap])))
    written = to_json(state)
    assert refusal(lambda: from_json(written, AgentState)) is None


@pytest.mark.parametrize(
    "mapping_of",
    [
        lambda: AgentState.start("go").context.metadata,
        lambda: ToolCall("1", "pay").provider_data,
        lambda: ToolCalls((), ()).decisions,
    ],
    ids=["metadata", "provider data", "decisions"],
)
def test_the_empty_mapping_of_a_value_is_not_shared_with_others(mapping_of: Callable[[], Any]) -> None:
    """Entries that C code adds to a mapping, as `eval` does to its globals, do not appear in other values."""
    mapping, expression = mapping_of(), "1 + 1"
    with suppress(TypeError):  # a mapping that raises is correct too
        eval(expression, mapping)
    try:
        assert dict(AgentState.start("another").context.metadata) == {}
        assert dict(ToolCall("2", "look").provider_data) == {}
        assert dict(ToolCalls((), ()).decisions) == {}
    finally:
        if isinstance(mapping, dict):
            dict.pop(mapping, "__builtins__", None)


@pytest.mark.parametrize("name", WIRE_FORMATS)
def test_a_lone_surrogate_in_a_result_is_not_sent(name: str) -> None:
    """A request body contains no lone surrogate, so strict JSON parsers accept it."""

    @tool(effect="pure")
    async def newest() -> str:
        """Return the name of the newest file."""
        return "caf\udce9.txt"

    state = run_in_virtual_time(ended(loop_of([ToolCall("1", "newest", "{}"), "done"], [newest])))
    config = LLMConfig(model="m", base_url="http://localhost")
    body = wire_format(name).encode_request(InferenceRequest(state.messages), config).body
    read = json.dumps(json.loads(body), ensure_ascii=False)
    assert [character for character in read if "\ud800" <= character <= "\udfff"] == []


@pytest.mark.parametrize(
    "make",
    [
        lambda wrong: ToolCall("1", "pay", wrong({"n": 1})),
        lambda wrong: ToolCall(wrong(1), "pay"),
        lambda wrong: ToolCall("1", wrong(None)),
        lambda wrong: Text(wrong(5)),
        lambda wrong: Usage(wrong("ten"), 5),
        lambda wrong: AgentState.start(wrong(5)),
        lambda wrong: AgentState.start("go").with_message(wrong({"role": "user"})),
        lambda wrong: AgentState.start("go", agent_id=wrong(7)),
        lambda wrong: AgentState.start("go", system_prompt=wrong(["Be brief."])),
    ],
    ids=["arguments", "id", "name", "text", "usage", "first message", "message", "agent id", "system prompt"],
)
def test_constructors_reject_values_of_the_wrong_type(make: Callable[[Callable[[Any], Any]], Any]) -> None:
    """A constructor raises instead of creating a value that cannot be read back."""
    assert refusal(lambda: make(lambda wrong: wrong)) is not None


def test_arguments_that_are_not_text_are_rejected_or_readable() -> None:
    """A call with a mapping instead of JSON text is rejected, or its state can be read back."""
    arguments: Any = {"n": 1}
    calls: list[ToolCall] = []
    if refusal(lambda: calls.append(ToolCall("1", "pay", arguments))) is None:
        state = run_in_virtual_time(ended(loop_of([calls[0], "done"], [Till().pay()])))
        assert refusal(lambda: from_json(to_json(state), AgentState)) is None


# --- cancellation -------------------------------------------------------------------------------------


class SingleFlight(CanInfer):
    """A model whose concurrent requests share one pending answer, as in a caching client."""

    def __init__(self) -> None:
        self.pending: asyncio.Future[InferenceResponse] | None = None
        self.requested = asyncio.Event()

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        if self.pending is None:
            self.pending = asyncio.ensure_future(self._answer())
        return await self.pending

    async def _answer(self) -> InferenceResponse:
        self.requested.set()
        await asyncio.sleep(1)
        return InferenceResponse((Text("an answer"),))


def test_a_cancellation_of_another_task_is_an_error_of_the_run() -> None:
    """A run that was not cancelled returns its state although an awaited future was cancelled."""

    async def run() -> list[Any]:
        model = SingleFlight()
        loop = AgentLoop(ToolCallingDriver(model, mode="native"), clock=LoopClock())
        tasks = [asyncio.create_task(loop.execute("go")) for _ in range(2)]
        await model.requested.wait()
        await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second = run_in_virtual_time(run())
    assert isinstance(first, asyncio.CancelledError)
    assert isinstance(second, AgentState), f"{second!r} escaped from a run that was not cancelled"
    assert second.status is ExecutionStatus.FAILED


@pytest.mark.parametrize("name", ["before_execution", "before_step", "before_inference", "after_step", "on_stop"])
def test_a_cancelled_future_of_an_interceptor_is_an_error_of_the_run(name: str) -> None:
    """An interceptor that awaits a cancelled future fails, and the run returns its state."""

    async def point(_: Interceptor, at: StatePoint) -> StatePoint:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
        return at

    kind: type[Interceptor] = type("Waits", (Interceptor,), {name: point})
    assert run_in_virtual_time(ended(loop_of(["done"], [], kind()))).status is ExecutionStatus.FAILED


def cancelled_during(kind: type[Event]) -> tuple[AgentState | None, list[Event], ProtocolMonitor]:
    """Run a payment, and cancel the run while an async listener handles the first event of a type."""

    async def run() -> tuple[AgentState | None, list[Event], ProtocolMonitor]:
        loop, reached = loop_of([pay(), "done"], [Till().pay()]), asyncio.Event()
        events, monitor = record_events(loop)

        async def slow(event: Event) -> None:
            if isinstance(event, kind) and not reached.is_set():
                reached.set()
                await asyncio.sleep(1)

        loop.wiretap(slow)
        return await cancelled_when(loop, reached), events, monitor

    return run_in_virtual_time(run())


EVENTS = (
    AgentExecutionStarted,
    AgentStepStarted,
    InferenceRequestStarted,
    InferenceResponseReceived,
    TokenUsageReported,
    ToolCallStarted,
    ToolCallCompleted,
    ContinuationEvaluated,
    AgentStepCompleted,
    StopSignalReceived,
    AgentExecutionCompleted,
)


@pytest.mark.unmonitored
@pytest.mark.parametrize("kind", EVENTS)
def test_cancellation_during_a_listener_follows_the_event_protocol(kind: type[Event]) -> None:
    """For any event: each step is completed once, every start has an end, and the state is preserved."""
    state, events, monitor = cancelled_during(kind)
    completed = [event.step.number for event in events if isinstance(event, AgentStepCompleted)]
    assert len(completed) == len(set(completed))
    assert (monitor.violations, monitor.unfinished) == ([], [])
    assert state is not None


@pytest.mark.unmonitored
def test_a_tool_that_outlives_its_cancelled_run_is_reported() -> None:
    """An event reports an abandoned call when its coroutine ignores cancellation."""

    async def run() -> tuple[list[Event], ProtocolMonitor]:
        started, release, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @tool
        async def stubborn() -> str:
            """Continue until released, ignoring cancellation."""
            started.set()
            while not release.is_set():
                with suppress(asyncio.CancelledError):
                    await release.wait()
            finished.set()
            return "done"

        loop = loop_of([ToolCall("1", "stubborn", "{}"), "done"], [stubborn])
        events, monitor = record_events(loop)
        await cancelled_when(loop, started)
        release.set()
        await finished.wait()
        return events, monitor

    events, monitor = run_in_virtual_time(run())
    assert [type(event) for event in events if isinstance(event, ToolCallAbandoned)] == [ToolCallAbandoned]
    assert (monitor.violations, monitor.unfinished) == ([], [])


@frozen(kw_only=True)
class ReturnsState(ToolCallingDriver):
    """A driver that handles a cancellation as the end of its step."""

    async def use_tools(self, state: AgentState) -> AgentState:
        try:
            return await super().use_tools(state)
        except asyncio.CancelledError as cancelled:
            carrier = StepInterrupted.find_in(cancelled)
            return carrier.state if carrier is not None else state


@frozen(kw_only=True)
class Retries(ToolCallingDriver):
    """A driver that handles a cancellation as a temporary failure."""

    async def use_tools(self, state: AgentState) -> AgentState:
        try:
            return await super().use_tools(state)
        except asyncio.CancelledError:
            return await super().use_tools(state)


@pytest.mark.parametrize("kind", [ReturnsState, pytest.param(Retries, marks=pytest.mark.unmonitored)])
def test_a_driver_that_swallows_cancellation_does_not_pay_again(kind: type[ToolCallingDriver]) -> None:
    """A run whose task was cancelled takes no further step, however its driver handles the cancellation."""

    async def run() -> tuple[list[int], bool]:
        till = Till()
        driver = kind(ScriptedInference(pay(1), pay(2), "done"), mode="native")
        loop = AgentLoop(driver, [till.pay(seconds=10)], clock=LoopClock())
        task = asyncio.create_task(loop.execute("go"))
        await till.started.wait()
        task.cancel()
        await asyncio.wait((task,))
        return till.paid, task.cancelled()

    assert run_in_virtual_time(run()) == ([1], True)


# --- interceptors ------------------------------------------------------------------------------------


def _block(*arguments: Any) -> Any:
    """Block the call of the last argument, a point."""
    return arguments[-1].block("not today")


def _misspelled() -> Interceptor:
    kind: type[Interceptor] = type("Guard", (Interceptor,), {"before_tool_call": _block})
    return kind()


def _on_instance() -> Interceptor:
    class Guard(Interceptor):
        """Does nothing yet."""

    guard: Any = Guard()
    guard.before_tool_use = _block
    interceptor: Interceptor = guard
    return interceptor


def _on_class() -> Interceptor:
    class Guard(Interceptor):
        """Does nothing yet."""

    changed: Any = Guard
    changed.before_tool_use = _block
    return Guard()


@pytest.mark.parametrize(
    "make", [_misspelled, _on_instance, _on_class], ids=["misspelled", "on an instance", "on a class"]
)
def test_a_method_of_an_interceptor_is_called_or_rejected(make: Callable[[], Interceptor]) -> None:
    """A method that is set on an interceptor in an unusual way is called, or setting it raises."""
    till, loops = Till(), list[AgentLoop]()
    if refusal(lambda: loops.append(loop_of([pay(), "done"], [till.pay()], make()))) is None:
        run_in_virtual_time(ended(loops[0]))
    assert till.paid == []


def test_a_patched_method_of_an_interceptor_is_called() -> None:
    """A point that is patched in a test is called."""

    class Guard(Interceptor):
        """Does nothing yet."""

    with patch.object(Guard, "before_tool_use", autospec=True, side_effect=_block) as patched:
        till = Till()
        run_in_virtual_time(ended(loop_of([pay(), "done"], [till.pay()], Guard())))
    assert (patched.call_count, till.paid) == (1, [])


def test_a_method_that_is_set_after_the_loop_was_made_is_called() -> None:
    """The methods of an execution are those that its interceptors have when it starts."""
    till, guard = Till(), Interceptor()
    loop = loop_of([pay(), "done"], [till.pay()], guard)
    run_in_virtual_time(ended(loop))
    with patch.object(guard, "before_tool_use", side_effect=_block):
        run_in_virtual_time(ended(loop))
    assert till.paid == [1]


@pytest.mark.parametrize("name", ["beforeToolUse", "befor_tool_use", "on_tool_use", "around_tool", "afterstep"])
def test_a_method_that_only_looks_like_a_point_is_rejected(name: str) -> None:
    """The class cannot be defined, and the message has the most similar point; other methods are fine."""
    with pytest.raises(TypeError, match=rf"{name} is not a point of an interceptor.*did you mean"):
        type("Guard", (Interceptor,), {name: _block})
    assert type("Guard", (Interceptor,), {f"_{name}": _block, "use": _block})().points == frozenset()


def test_a_method_that_only_looks_like_a_point_is_rejected_wherever_it_is_defined() -> None:
    """Methods of mixins and methods that are set later on a class are checked, too."""
    mixin = type("Mixin", (), {"before_tool_call": _block})
    with pytest.raises(TypeError, match=r"Mixin.before_tool_call is not a point"):
        type("Guard", (mixin, Interceptor), {})
    late: Any = type("Guard", (Interceptor,), {})
    late.before_tool_call = _block
    with pytest.raises(TypeError, match=r"Guard.before_tool_call is not a point"):
        loop_of(["done"], [], late())


def test_a_point_of_a_mixin_is_called_or_rejected() -> None:
    """A mixin before the base class is called; one behind it would be hidden, which is an error."""
    till, mixin = Till(), type("Mixin", (), {"before_tool_use": _block})
    kind: type[Interceptor] = type("Guard", (mixin, Interceptor), {})
    run_in_virtual_time(ended(loop_of([pay(), "done"], [till.pay()], kind())))
    assert till.paid == []
    with pytest.raises(TypeError, match=r"Guard hides Mixin.before_tool_use"):
        type("Guard", (Interceptor, mixin), {})


def test_a_point_that_a_subclass_of_a_budget_overrides_is_called() -> None:
    """The subclass calls `super()` for the limit, which is enforced, too."""

    class Guard(Budget):
        def before_step(self, point: BeforeStep) -> Any:
            return super().before_step(point.with_state(point.state.with_metadata(steps=point.state.step_count)))

        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            return point.block("not today")

    till = Till()
    state = run_in_virtual_time(ended(loop_of([pay(), pay(), "done"], [till.pay()], Guard(steps=2, wrap_up=0))))
    assert (till.paid, state.context.metadata["steps"], state.step_count) == ([], 2, 2)


def test_a_large_budget_lets_all_concurrent_agents_finish() -> None:
    """Fifty concurrent agents that together use a small part of the budget all answer."""

    class Answers(CanInfer):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            await asyncio.sleep(1)
            return InferenceResponse((Text("an answer"),), usage=Usage(100, 10))

    child = AgentLoop(ToolCallingDriver(Answers(), mode="native"), clock=LoopClock())
    calls = [ToolCall(str(number), "ask", '{"task": "answer"}') for number in range(50)]
    tools = [child.as_tool("ask", "Ask an agent.")]
    state = run_in_virtual_time(ended(loop_of([calls, "done"], tools, Budget(tokens=1_000_000))))
    assert [execution.status for execution in executions_of(state)] == [ToolStatus.SUCCEEDED] * 50


class RewritesAfter(Interceptor):
    """Changes fields of the outcome of a call in `after_tool_use`."""

    def __init__(self, **facts: Any) -> None:
        self.facts = facts

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        return point.with_execution(evolve(point.execution, **self.facts))


class RewritesAround(Interceptor):
    """Changes fields of the outcome of a call in `around_tool_use`."""

    def __init__(self, **facts: Any) -> None:
        self.facts = facts

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        return evolve(await proceed(), **self.facts)


LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
FACTS: dict[str, dict[str, Any]] = {
    "call": {"call": pay(999)},
    "start": {"started_at": LONG_AGO},
    "end": {"ended_at": LONG_AGO},
    "may have run": {"may_have_run": False},
}


@pytest.mark.parametrize("kind", [RewritesAfter, RewritesAround])
@pytest.mark.parametrize("name", FACTS)
def test_an_interceptor_does_not_change_the_facts_of_a_call(name: str, kind: type[Interceptor]) -> None:
    """Interceptors cannot change the recorded call, its times and whether it may have run."""
    make: Callable[..., Interceptor] = kind
    till = Till()
    state = run_in_virtual_time(ended(loop_of([pay(), "done"], [till.pay(seconds=10, timeout=1)], make(**FACTS[name]))))
    (recorded,) = executions_of(state)
    assert till.paid == [1]
    assert recorded.arguments == {"n": 1}
    assert LONG_AGO not in {recorded.started_at, recorded.ended_at}
    assert recorded.may_have_run


# --- ReAct, handoffs, limits and windows -------------------------------------------------------------


def _decision(n: int) -> str:
    return json.dumps({"thought": "I pay.", "type": "tool", "tool": "pay", "args": {"n": n}})


@pytest.mark.parametrize(
    "text",
    [f"{_decision(1)}\n{_decision(2)}", f"[{_decision(1)}, {_decision(2)}]", f"{_decision(1)}{_decision(2)}"],
    ids=["lines", "list", "side by side"],
)
def test_two_decisions_in_one_answer_both_run_or_are_requested_again(text: str) -> None:
    """A ReAct answer with two calls never runs only one of them."""
    till = Till()
    final = json.dumps({"thought": "I know.", "type": "final", "answer": "done"})
    driver = ReActDriver(ScriptedInference(text, final, final), output="json")
    run_in_virtual_time(ended(AgentLoop(driver, [till.pay()], clock=LoopClock())))
    assert sorted(till.paid) in ([1, 2], [])


def test_metadata_of_the_user_does_not_lose_a_handoff() -> None:
    """A conversation stays with the agent of its handoff when the user replaces the metadata."""
    billing = AgentLoop(
        ToolCallingDriver(ScriptedInference("billing"), mode="native"),
        system_prompt="You are billing.",
        clock=LoopClock(),
    )
    handoff = handoff_to(billing, name="to_billing", description="Money.")
    desk = ScriptedInference(_desk)
    loop = AgentLoop(
        ToolCallingDriver(desk, mode="native"), [handoff], system_prompt="You are the desk.", clock=LoopClock()
    )

    async def run() -> AgentState:
        state = await ended(loop)
        assert state.final_text == "billing"
        context = evolve(state.context, metadata={"tenant": "acme"})
        return await ended(loop, state.with_context(context).with_message("And now?"))

    assert run_in_virtual_time(run()).final_text == "billing"


def _desk(request: InferenceRequest) -> InferenceResponse:
    asked = sum(message.role == "user" for message in request.messages)
    return InferenceResponse((ToolCall("1", "to_billing", "{}") if asked == 1 else Text("desk"),))


@pytest.mark.parametrize(
    "make",
    [lambda limit: limit(StepLimit)(50, tokens=1), lambda limit: limit(TimeLimit)(60, tokens=1)],
    ids=["steps", "time"],
)
def test_a_limit_takes_no_parameter_of_another_limit(make: Callable[[Callable[[Any], Any]], Any]) -> None:
    """The limits on steps and time reject the parameter `tokens`."""
    assert isinstance(refusal(lambda: make(lambda limit: limit)), TypeError)


@pytest.mark.parametrize("size", [3, 4, 5, 8])
def test_a_sliding_window_shows_every_question_with_the_previous_answer(size: int) -> None:
    """In a conversation of questions and answers, each request after the first contains the previous answer."""
    model = ScriptedInference("an answer")
    loop = AgentLoop(ToolCallingDriver(model, mode="native"), compiler=SlidingWindow(size), clock=LoopClock())

    async def run() -> None:
        state = await ended(loop, "question 0")
        for number in range(1, 10):
            state = await ended(loop, state.with_message(Message.user(f"question {number}")))

    run_in_virtual_time(run())
    shown = [[message.role for message in request.messages] for request in model.requests]
    assert [roles[-2:] for roles in shown[1:]] == [["assistant", "user"]] * 9
