"""Whatever a part raises, loses or lies about, the state keeps the settled calls and tokens, and one last event is emitted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import pytest
from attrs import evolve, field, frozen

from agentloop import (
    AgentLoop,
    AgentState,
    AgentStop,
    CanInfer,
    Interceptor,
    Message,
    RequireApproval,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    ToolExecutor,
    tool,
)
from agentloop.contracts import CanAcceptExecutionScope, CanExecuteToolCalls, CanHandleEvents, CanIntercept, CanUseTools
from agentloop.contracts.can_accept import CanAcceptLifecycle, CanAcceptTools
from agentloop.contracts.can_journal import Claim
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import Tools
from agentloop.drivers import Driver
from agentloop.drivers.driver import StepDraft
from agentloop.durable import MemoryJournal
from agentloop.errors import JournalFull, ProviderUnavailable
from agentloop.events import (
    AgentExecutionStarted,
    AgentStepCompleted,
    EventBus,
    ExecutionEnded,
    ToolCallCompleted,
)
from agentloop.interception import AfterToolUse, OnError, at
from agentloop.testing import CountingIds, CrashableJournal, ManualClock, run_in_virtual_time
from agentloop.values import (
    Event,
    ExecutionHead,
    ExecutionStatus,
    InferenceRequest,
    InferenceResponse,
    JournalRecord,
    RecordKind,
    ToolExecution,
    ToolExecutions,
    ToolStatus,
    approve,
)
from agentloop.values.batches import ToolCalls
from agentloop.values.interruptions import StepInterrupted, cause_of, interrupted_state
from agentloop.values.steps import NO_USAGE, AgentStep
from agentloop.values.tool_calls import ErrorInfo, ToolExchange

pytestmark = pytest.mark.unreplayed  # parts that break their contracts


@tool(repeatable=True)
async def pay() -> str:
    """Pay."""
    return "paid"


async def _cancelled_elsewhere() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def _raise() -> None:
    raise ValueError("a defect")


@frozen(kw_only=True)
class BrokenDriver(ToolCallingDriver):
    """Takes a step that calls a tool, and breaks its contract then."""

    spoil: Callable[[AgentState, AgentState], Any] = field(repr=False)

    async def use_tools(self, state: AgentState) -> AgentState:
        after = await super().use_tools(state)
        spoiled = self.spoil(state, after)
        result: AgentState = await spoiled if asyncio.iscoroutine(spoiled) else spoiled
        return result


@frozen
class BrokenExecutor(ToolExecutor):
    """Executes the calls, and breaks its contract then."""

    spoil: Callable[[ToolExecutions], Any] = field(kw_only=True, repr=False)

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        outcome = await super().execute_tools(tool_calls, state)
        spoiled = self.spoil(outcome)
        result: ToolExecutions = await spoiled if asyncio.iscoroutine(spoiled) else spoiled
        return result


@frozen
class Elsewhere(CanExecuteToolCalls, CanAcceptTools, CanAcceptLifecycle):
    """Executes calls outside of the execution, as a service does: only what it returns is known of them."""

    inner: ToolExecutor = field(factory=ToolExecutor)

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        return await self.inner.execute_tools(tool_calls, state)

    def with_tools(self, tools: Tools) -> Elsewhere:
        return Elsewhere(self.inner.with_tools(tools))

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Elsewhere:
        return Elsewhere(self.inner.with_lifecycle(interceptor, events))


executed_anywhere = pytest.mark.parametrize("executor", [ToolExecutor(), Elsewhere()], ids=["here", "elsewhere"])
"""Runs a test with an executor that notes each outcome itself, and with one that does not."""


def check_failed(loop: AgentLoop) -> AgentState:
    """Run, and check that the execution fails with its call, its tokens and one last event."""
    events = list[Event]()
    loop.wiretap(lambda event: events.append(event) if isinstance(event, ExecutionEnded) else None)
    state = run_in_virtual_time(loop.execute("Pay.", execution_id="run"))
    assert (state.status, state.execution_id) == (ExecutionStatus.FAILED, "run")
    executions = [execution for step in state.steps for execution in step.executions]
    assert [(execution.key, execution.value) for execution in executions] == [("run/1/0", "paid")]
    assert [step.number for step in state.steps] == [1]
    assert (state.usage.requests, state.usage.input_tokens) == (1, 10)
    assert [type(event).__name__ for event in events] == ["AgentExecutionFailed"]
    return state


def script() -> ScriptedInference:
    """Return a model that pays and answers."""
    return ScriptedInference(ToolCall("1", "pay"), "done")


DRIVERS: dict[str, Callable[[AgentState, AgentState], Any]] = {
    "raises": lambda _, __: _raise(),
    "awaits what another task cancelled": lambda _, __: _cancelled_elsewhere(),
    "returns nothing": lambda _, __: None,
    "returns the state before": lambda before, _: before,
    "returns another agent": lambda _, after: evolve(after, agent_id="another"),
    "drops the conversation": lambda _, after: after.with_messages(()),
    "loses the tokens": lambda _, after: after.with_last_step(evolve(after.steps[-1], usage=NO_USAGE)),
    "loses the outcome": lambda before, after: before.with_step(evolve(after.steps[-1], message=None)),
}


@executed_anywhere
@pytest.mark.parametrize("spoil", DRIVERS.values(), ids=DRIVERS)
def test_a_driver_that_breaks_its_contract_loses_nothing(
    spoil: Callable[[AgentState, AgentState], Any], executor: CanExecuteToolCalls
) -> None:
    """The step is built from what happened in it."""
    check_failed(AgentLoop(BrokenDriver(script(), mode="native", spoil=spoil), [pay], executor=executor))


CARRIED: dict[str, Callable[[AgentState, AgentState], AgentState]] = {
    "the state of another agent": lambda _, after: evolve(after, agent_id="another"),
    "the state of another execution": lambda _, after: after.with_execution_started("another", after.created_at),
    "a state with two more steps": lambda _, after: after.with_step(evolve(after.steps[-1], number=2)),
    "a conversation without its beginning": lambda _, after: after.with_messages(after.messages[1:]),
    "a step without its tokens": lambda _, after: after.with_last_step(evolve(after.steps[-1], usage=NO_USAGE)),
    "the state before": lambda before, _: before,
    "the state after": lambda _, after: after,
}


@executed_anywhere
@pytest.mark.parametrize("carried", CARRIED.values(), ids=CARRIED)
def test_a_driver_whose_error_carries_a_state_loses_nothing(
    carried: Callable[[AgentState, AgentState], AgentState], executor: CanExecuteToolCalls
) -> None:
    """A state that lacks something, or that is not of the execution, is not used; the step has the error of the driver."""

    def spoil(before: AgentState, after: AgentState) -> AgentState:
        raise StepInterrupted(carried(before, after), ValueError("a defect"))

    state = check_failed(AgentLoop(BrokenDriver(script(), mode="native", spoil=spoil), [pay], executor=executor))
    assert [error.message for error in state.errors] == ["a defect"]
    assert state.agent_id != "another"
    assert [message.text for message in state.messages if message.role == "user"] == ["Pay."]


LOSSES: dict[str, Callable[[ToolExecution], tuple[ToolExecution, ...]]] = {
    "leaves out an outcome": lambda _: (),
    "changes an outcome": lambda execution: (evolve(execution, value="never mind"),),
    "gives an outcome to another call": lambda execution: (evolve(execution, key="run/1/9"),),
}


@executed_anywhere
@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_driver_that_loses_one_of_several_outcomes_is_told_which(
    lose: Callable[[ToolExecution], tuple[ToolExecution, ...]], executor: CanExecuteToolCalls
) -> None:
    """The error names the call, and the step has the outcomes of all as they were, in the order of the calls."""

    def spoil(before: AgentState, after: AgentState) -> AgentState:
        first, second, third = after.steps[-1].executions
        exchanges = [ToolExchange(each.call, each) for each in (first, *lose(second), third)]
        return before.with_step(evolve(after.steps[-1], message=Message.assistant(*exchanges)))

    model = ScriptedInference([ToolCall(str(number), "pay") for number in range(3)], "done")
    loop = AgentLoop(BrokenDriver(model, mode="native", spoil=spoil), [pay], executor=executor)
    state = loop.execute_sync("Pay.", execution_id="run")
    assert (state.status, state.errors[-1].type) == (ExecutionStatus.FAILED, "ContractViolation")
    assert state.errors[-1].message.endswith("lacks the outcomes of these calls, or has other ones: run/1/1")
    executions = [(each.key, each.value) for each in state.steps[0].executions]
    assert executions == [("run/1/0", "paid"), ("run/1/1", "paid"), ("run/1/2", "paid")]


CHANGES: dict[str, Callable[[AgentStep], AgentStep]] = {
    "an outcome": lambda step: evolve(step, message=Message.assistant("I did nothing.")),
    "an error": lambda step: evolve(step, errors=(ErrorInfo("ValueError", "no"),)),
    "tokens": lambda step: evolve(step, usage=NO_USAGE),
}


@pytest.mark.parametrize("is_carried", [False, True], ids=["returned", "carried by an error"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_driver_that_changes_an_earlier_step_fails(
    change: Callable[[AgentStep], AgentStep], *, is_carried: bool
) -> None:
    """The earlier step is as it was when it was completed, and the current one is built from what happened in it."""

    def spoil(before: AgentState, after: AgentState) -> AgentState:
        if not before.steps:
            return after
        assert after.execution is not None
        first, second = after.steps
        spoiled = evolve(after, execution=evolve(after.execution, steps=(change(first), second)))
        if is_carried:
            raise StepInterrupted(spoiled, ValueError("a defect"))
        return spoiled

    model, completed = ScriptedInference(ToolCall("1", "pay"), ToolCall("2", "pay"), "done"), list[AgentStepCompleted]()
    loop = AgentLoop(BrokenDriver(model, mode="native", spoil=spoil), [pay])
    loop.on(AgentStepCompleted, completed.append)
    state = loop.execute_sync("Pay.", execution_id="run")
    assert state.status is ExecutionStatus.FAILED
    lost = "the driver BrokenDriver returned a state of which a part was lost: steps of the execution are missing or changed"
    assert [error.message for error in state.errors] == ["a defect" if is_carried else lost]
    assert state.steps == tuple([event.step for event in completed])
    assert [(each.key, each.value) for step in state.steps for each in step.executions] == [
        ("run/1/0", "paid"),
        ("run/2/0", "paid"),
    ]


@executed_anywhere
def test_a_driver_that_loses_a_pending_call_fails(executor: CanExecuteToolCalls) -> None:
    """The call that waited for a decision is in the step, cancelled with the execution."""

    def spoil(before: AgentState, after: AgentState) -> AgentState:
        return before.with_step(evolve(after.steps[-1], open_turn=None, message=Message.assistant("Never mind.")))

    driver = BrokenDriver(script(), mode="native", spoil=spoil)
    loop = AgentLoop(driver, [pay], interceptors=[RequireApproval()], executor=executor)
    state = loop.execute_sync("Pay.", execution_id="run")
    assert (state.status, state.errors[-1].type) == (ExecutionStatus.FAILED, "ContractViolation")
    assert state.errors[-1].message.endswith("lacks the outcomes of these calls, or has other ones: run/1/0")
    (execution,) = state.steps[0].executions
    assert (execution.key, execution.status) == ("run/1/0", ToolStatus.CANCELLED)


def test_the_errors_that_a_driver_has_recorded_are_kept() -> None:
    """The error that it raises is in the step once, after those that it recovered from."""
    first, second = ValueError("a defect"), ValueError("another one")

    def spoil(_: AgentState, after: AgentState) -> AgentState:
        step = evolve(after.steps[-1], errors=(ErrorInfo.of(first), ErrorInfo.of(second)))
        raise StepInterrupted(after.with_last_step(step), second)

    state = check_failed(AgentLoop(BrokenDriver(script(), mode="native", spoil=spoil), [pay]))
    assert [error.message for error in state.errors] == ["a defect", "another one"]


@executed_anywhere
@pytest.mark.parametrize("spoil", [lambda _: _raise(), lambda _: None], ids=["raises", "returns nothing"])
def test_what_interceptors_have_changed_in_a_batch_is_kept(
    executor: CanExecuteToolCalls, spoil: Callable[[AgentState], Any]
) -> None:
    """Their changes of the state belong to the calls, with which they stay when the driver fails after the batch."""

    @at("after_tool_use")
    def note(point: AfterToolUse) -> AfterToolUse:
        return point.with_state(point.state.with_metadata(seen=point.execution.key))

    driver = BrokenDriver(script(), mode="native", spoil=lambda _, after: spoil(after))
    state = check_failed(AgentLoop(driver, [pay], executor=executor, interceptors=[note]))
    assert state.context.metadata["seen"] == "run/1/0"


async def test_a_driver_that_swallows_a_cancellation_runs_no_call() -> None:
    """Its step ends at the first call, which no executor gets, and the task is cancelled."""
    waiting, batches = asyncio.Event(), list[ToolCalls]()

    @frozen(kw_only=True)
    class Stubborn(Driver):
        async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ToolCall, ...]:
            waiting.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return (ToolCall("1", "pay", "{}"),)

    class Counting(CanExecuteToolCalls):
        async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
            batches.append(tool_calls)
            return ToolExecutions((), (), state)

    loop = AgentLoop(Stubborn(), [pay], executor=Counting())
    task = asyncio.create_task(loop.execute("Pay."))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    state = interrupted_state(caught.value)
    assert state is not None
    assert (state.status, batches) == (ExecutionStatus.IN_PROGRESS, [])


async def test_a_swallowed_cancellation_ends_the_step_that_another_task_has_requested() -> None:
    """The steps of an iteration may be requested by different tasks: the one that requested the current step counts."""
    waiting, paid = asyncio.Event(), list[str]()

    @tool
    async def pay_for(item: str) -> str:
        """Pay for an item."""
        paid.append(item)
        return "paid"

    @frozen(kw_only=True)
    class Stubborn(Driver):
        async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ToolCall, ...]:
            if not paid:
                return (ToolCall("1", "pay_for", '{"item": "a lamp"}'),)
            waiting.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return (ToolCall("2", "pay_for", '{"item": "a bulb"}'),)

    states = AgentLoop(Stubborn(), [pay_for]).iterate("Pay.")
    assert (await anext(states)).step_count == 1

    async def request() -> AgentState:
        return await anext(states)

    task = asyncio.create_task(request())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert paid == ["a lamp"]


EXECUTORS: dict[str, Callable[[ToolExecutions], Any]] = {
    "raises": lambda _: _raise(),
    "awaits what another task cancelled": lambda _: _cancelled_elsewhere(),
    "returns nothing": lambda _: None,
    "returns no outcome": lambda outcome: evolve(outcome, executions=()),
    "returns an outcome twice": lambda outcome: evolve(outcome, executions=outcome.executions * 2),
    "returns another agent": lambda outcome: outcome.with_state(evolve(outcome.state, agent_id="another")),
}


@pytest.mark.parametrize("spoil", EXECUTORS.values(), ids=EXECUTORS)
def test_an_executor_that_breaks_its_contract_loses_nothing(spoil: Callable[[ToolExecutions], Any]) -> None:
    """Outcomes are paired with the calls by their keys, and what was settled is kept."""
    loop = AgentLoop(ToolCallingDriver(script(), mode="native"), [pay], executor=BrokenExecutor(spoil=spoil))
    state = check_failed(loop)
    if state.errors[0].type == "ContractViolation":
        assert state.errors[0].message.startswith("the executor BrokenExecutor broke its contract: ")


class Ends(CanInfer):
    """A model whose first request ends without a response."""

    def __init__(self, end: Callable[[], Awaitable[NoReturn]]) -> None:
        self.end = end

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        await self.end()


async def _raise_unavailable() -> NoReturn:
    raise ProviderUnavailable("down")


async def _raise_stop() -> NoReturn:
    raise AgentStop("enough")


async def _cancel() -> NoReturn:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    raise AssertionError("it was cancelled")


@frozen
class Forgetful(ToolCallingDriver):
    """A driver whose errors do not carry the state so far."""

    async def use_tools(self, state: AgentState) -> AgentState:
        try:
            return await super().use_tools(state)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # raised again, without what it carries
            raise cause_of(error) from None


@pytest.mark.parametrize("driver", [ToolCallingDriver, Forgetful])
@pytest.mark.parametrize(
    ("end", "status", "inferences"),
    [
        (_raise_unavailable, ExecutionStatus.FAILED, [1]),
        (_raise_stop, ExecutionStatus.STOPPED, []),
        (_cancel, ExecutionStatus.IN_PROGRESS, []),
    ],
)
async def test_a_request_without_a_response_makes_a_step_if_it_failed(
    end: Callable[[], Awaitable[NoReturn]],
    status: ExecutionStatus,
    inferences: list[int],
    driver: type[ToolCallingDriver],
) -> None:
    """The step of a failure counts the request; one that was stopped or cancelled leaves nothing that a step could hold."""
    loop = AgentLoop(driver(Ends(end), mode="native"))
    try:
        state = await loop.execute("Go.")
    except asyncio.CancelledError as cancelled:
        left = interrupted_state(cancelled)
        assert left is not None
        state = left
    assert (state.status, [step.inferences for step in state.steps]) == (status, inferences)


def test_a_failure_before_any_request_has_no_step_when_it_is_handled() -> None:
    """Interceptors of errors see the state before it; the error gets a step of its own."""

    class Broken(CanUseTools):
        async def use_tools(self, state: AgentState) -> NoReturn:
            raise ValueError("a defect")

    counts: list[int] = []

    def note(point: OnError) -> OnError:
        counts.append(point.state.step_count)
        return point

    state = AgentLoop(Broken(), interceptors=[at("on_error", note)]).execute_sync("Go.")
    assert (state.status, counts) == (ExecutionStatus.FAILED, [0])
    assert [[error.message for error in step.errors] for step in state.steps] == [["a defect"]]
    assert state.inference_count == 0


@frozen
class Confusing(Elsewhere, CanAcceptExecutionScope):
    """An executor that returns the outcome of each of two calls as that of the other one, and may note them so."""

    notes: bool = False
    scope: ExecutionScope = field(factory=ExecutionScope)

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        outcome = await self.inner.execute_tools(tool_calls, state)
        first, second = outcome.executions
        swapped = (evolve(second, key=first.key), evolve(first, key=second.key))
        for execution in swapped if self.notes else ():
            self.scope.ledger.settle(execution)
        return evolve(outcome, executions=swapped)

    def with_tools(self, tools: Tools) -> Confusing:
        return evolve(self, inner=self.inner.with_tools(tools))

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Confusing:
        return evolve(self, inner=self.inner.with_lifecycle(interceptor, events))

    def with_execution_scope(self, scope: ExecutionScope) -> Confusing:
        return evolve(self, scope=scope)


@pytest.mark.parametrize("notes", [False, True])
def test_an_executor_that_confuses_its_calls_fails(*, notes: bool) -> None:
    """No call has the result of another one without an error, also if the executor has noted it for the call."""
    model = ScriptedInference([ToolCall("a", "pay"), ToolCall("b", "pay")], "done")
    loop = AgentLoop(ToolCallingDriver(model, mode="native"), [pay], executor=Confusing(notes=notes))
    state = loop.execute_sync("Pay.", execution_id="run")
    assert (state.status, state.errors[0].type) == (ExecutionStatus.FAILED, "ContractViolation")
    assert state.errors[0].message.startswith("the executor Confusing broke its contract: ")
    assert "the outcome under the key 'run/1/0' is that of the call 'run/1/1'" in state.errors[0].message


@pytest.mark.parametrize(
    "kind", ["AgentStepStarted", "ToolCallCompleted", "ContinuationEvaluated", "AgentStepCompleted"]
)
def test_a_listener_that_fails_on_a_strict_bus_loses_nothing(kind: str) -> None:
    """The execution fails with its calls, and its last event is emitted."""
    bus, ends = EventBus(strict=True), list[str]()

    def broken(event: Event) -> None:
        if isinstance(event, ExecutionEnded):
            ends.append(type(event).__name__)
        if type(event).__name__ == kind and event.step_number == 2:
            raise ValueError("a defect")

    bus.wiretap(broken)
    model = ScriptedInference(ToolCall("1", "pay"), ToolCall("2", "pay"), "done")
    state = run_in_virtual_time(AgentLoop(ToolCallingDriver(model, mode="native"), [pay], events=bus).execute("Pay."))
    assert (state.status, ends) == (ExecutionStatus.FAILED, ["AgentExecutionFailed"])
    assert state.steps[0].executions[0].value == "paid"


def failing_bus(ends: list[str]) -> EventBus:
    """Return a strict bus with a listener that fails when an execution goes on, and that notes how calls and executions end."""
    bus = EventBus(strict=True)

    def broken(event: Event) -> None:
        if isinstance(event, ToolCallCompleted):
            ends.append(event.execution.status.value)
        if isinstance(event, ExecutionEnded):
            ends.append(type(event).__name__)
        if type(event) is AgentExecutionStarted:
            raise ValueError("a defect")

    bus.wiretap(broken)
    return bus


@pytest.mark.parametrize("journal", [None, MemoryJournal], ids=["unrecorded", "recorded"])
async def test_a_listener_that_fails_when_a_suspended_execution_goes_on_cancels_its_calls(
    journal: Callable[[], MemoryJournal] | None,
) -> None:
    """The approved call has not run, and like the undecided one it is settled and reported before the execution ends."""
    model = ScriptedInference([ToolCall("1", "pay"), ToolCall("2", "pay")], "done")
    guards = [RequireApproval()]
    loop = AgentLoop.for_model(model, tools=[pay], interceptors=guards, journal=journal and journal())
    suspended, ends = await loop.execute("Pay.", execution_id="run"), list[str]()
    state = await loop.replace(events=failing_bus(ends)).resume(suspended, {"run/1/0": approve()})
    assert (state.status, state.pending, state.open_turn) == (ExecutionStatus.FAILED, (), None)
    assert [each.status for each in state.steps[0].executions] == [ToolStatus.CANCELLED] * 2
    assert [[error.message for error in step.errors] for step in state.steps] == [[], ["a defect"]]
    assert ends == ["cancelled", "cancelled", "AgentExecutionFailed"]


async def test_a_listener_that_fails_when_an_interrupted_execution_goes_on_keeps_its_calls() -> None:
    """What the call has done is in the state: its recorded outcome, or that it is in doubt."""
    chronicle = CrashableJournal()
    model = ScriptedInference([ToolCall("1", "pay"), ToolCall("2", "pay")], "done")
    loop = AgentLoop.for_model(model, tools=[pay], journal=chronicle)
    await loop.execute("Pay.", execution_id="run")
    kinds, ends = [record.kind for record in chronicle.appended], list[str]()
    left = await chronicle.after_crash(kinds.index(RecordKind.CALL_OUTCOME) + 1)
    state = await loop.replace(journal=left, events=failing_bus(ends)).recover("run")
    assert state.status is ExecutionStatus.FAILED
    assert [each.status.value for each in state.steps[0].executions] == ["succeeded", "in_doubt"]
    assert [[error.message for error in step.errors] for step in state.steps] == [[], ["a defect"]]
    assert ends == ["succeeded", "in_doubt", "AgentExecutionFailed"]
    assert await left.state("run") == state


@pytest.mark.parametrize(
    ("guards", "lines"),
    [([], ["done"]), ([RequireApproval()], []), ([at("before_step", lambda point: point.stop("no"))], [])],
    ids=["completed", "suspended", "stopped"],
)
@pytest.mark.parametrize("journal", [None, MemoryJournal], ids=["unrecorded", "recorded"])
async def test_a_listener_that_fails_on_the_last_event_changes_nothing(
    guards: list[Interceptor], lines: list[str], journal: Callable[[], MemoryJournal] | None
) -> None:
    """The execution has ended by then: its calls still wait, and the event is emitted once."""
    ends = list[Event]()

    def broken(event: Event) -> None:
        ends.extend([event] if isinstance(event, ExecutionEnded) else [])
        if ends:
            raise ValueError("a defect")

    def loop(**parts: Any) -> AgentLoop:
        model = ScriptedInference(*lines, ToolCall("1", "pay"))
        options: dict[str, Any] = {"ids": CountingIds(), "clock": ManualClock(), "journal": journal and journal()}
        return AgentLoop.for_model(model, tools=[pay], interceptors=guards, **options, **parts)

    bus = EventBus(strict=True)
    bus.wiretap(broken)
    state = await loop(events=bus).execute("Pay.", execution_id="run")
    assert state == await loop().execute("Pay.", execution_id="run")
    assert len(state.pending) == (state.status is ExecutionStatus.SUSPENDED)
    assert len(ends) == 1


class Full(MemoryJournal):
    """A journal that has no room for the end of an execution."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        if records[-1].kind is RecordKind.EXECUTION_ENDED:
            raise JournalFull("no room")
        await super().append(head, records, claim)


@pytest.mark.parametrize("kind", ["AgentExecutionStarted", "AgentStepStarted", "AgentStepCompleted", "never"])
def test_an_end_that_cannot_be_recorded_leaves_the_execution_in_progress(kind: str) -> None:
    """Also when it is the end by a failure of a listener: the last event and the error say that it was interrupted."""
    bus, ends = EventBus(strict=True), list[str]()

    def broken(event: Event) -> None:
        if isinstance(event, ExecutionEnded):
            ends.append(type(event).__name__)
        if type(event).__name__ == kind:
            raise ValueError("a defect")

    bus.wiretap(broken)
    loop = AgentLoop.for_model(script(), tools=[pay], journal=Full(), events=bus)
    with pytest.raises(JournalFull) as caught:
        run_in_virtual_time(loop.execute("Pay."))  # a minute, in which it tries again
    state = interrupted_state(caught.value)
    assert state is not None
    assert (state.status, ends) == (ExecutionStatus.IN_PROGRESS, ["AgentExecutionInterrupted"])


class Opens(CanUseTools, CanAcceptExecutionScope):
    """A driver that opens a resource, which is closed by a function."""

    def __init__(self, driver: ToolCallingDriver, close: Callable[[], Awaitable[None]]) -> None:
        self.driver = driver
        self.close = close

    async def use_tools(self, state: AgentState) -> AgentState:
        return await self.driver.use_tools(state)

    def with_execution_scope(self, scope: Any) -> Opens:
        scope.local_resources.open("resource", object, lambda _: self.close())
        return Opens(self.driver.with_execution_scope(scope), self.close)


async def test_a_resource_that_cannot_be_closed_does_not_lose_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged, and the state returned."""
    loop = AgentLoop(Opens(ToolCallingDriver(ScriptedInference("done"), mode="native"), _raise))
    assert (await loop.execute("Go.")).final_text == "done"
    assert "what an execution held open could not be closed" in caplog.text
    assert "a defect" in caplog.text


async def test_a_cancellation_while_a_resource_is_closed_is_not_swallowed() -> None:
    """The error of the cancelled task carries the state with the answer."""
    closing = asyncio.Event()

    async def close() -> None:
        closing.set()
        await asyncio.Event().wait()

    loop = AgentLoop(Opens(ToolCallingDriver(ScriptedInference("done"), mode="native"), close))
    task = asyncio.create_task(loop.execute("Go."))
    await closing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    state = interrupted_state(caught.value)
    assert state is not None
    assert (state.status, state.final_text) == (ExecutionStatus.COMPLETED, "done")
