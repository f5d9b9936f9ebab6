"""Between the calls of a step and its record: what was done is recorded, and what is recorded was done."""

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
    Budget,
    Interceptor,
    Message,
    Permissions,
    ReActDriver,
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
from agentloop.contracts import CanInfer
from agentloop.drivers import StepDraft
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
from agentloop.inference import LLMConfig
from agentloop.inference.wire_formats.wire_format import WIRE_FORMATS, wire_format
from agentloop.interception import Resilience, before_tool_use
from agentloop.testing import LoopClock, run_in_virtual_time
from agentloop.tools.ensembles import Ensemble
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
from agentloop.values.interruptions import StepInterrupted, interrupted_state
from agentloop.values.points import AfterToolUse, AroundToolUse, BeforeToolUse, ProceedToolUse, StatePoint

pytestmark = pytest.mark.unreplayed  # parts that break their contracts, and runs that are cancelled from outside

SECRET = "DE02120300000000202051"
ENDS = (AgentExecutionCompleted, AgentExecutionFailed, AgentExecutionStopped, AgentExecutionSuspended)


@frozen
class Till:
    """What a payment tool did: the amounts and the idempotency keys, in the order in which it began."""

    paid: list[int] = field(factory=list)
    keys: list[str] = field(factory=list)
    begun: asyncio.Event = field(factory=asyncio.Event)

    def pay(self, *, seconds: float = 0, **settings: Any) -> Tool:
        """Make the tool; each payment takes so many seconds after its effect."""

        @tool(name="pay", **settings)
        async def pay(n: int, context: ToolContext) -> str:
            """Pay."""
            self.paid.append(n)
            self.keys.append(context.idempotency_key)
            self.begun.set()
            await asyncio.sleep(seconds)
            return f"paid {n}"

        return pay


def pay(n: int = 1) -> ToolCall:
    """Make the call of a payment."""
    return ToolCall(f"call_{n}", "pay", json.dumps({"n": n}))


def loop_of(lines: Sequence[Any], tools: Sequence[Any], *interceptors: Any, **parts: Any) -> AgentLoop:
    """Make a loop over a scripted model, with the clock of the running event loop."""
    driver = ToolCallingDriver(ScriptedInference(*lines), mode="native")
    return AgentLoop(driver, tools, interceptors=interceptors, clock=LoopClock(), **parts)


def listened(loop: AgentLoop) -> tuple[list[Event], ProtocolMonitor]:
    """Listen to everything that a loop emits."""
    events, monitor = list[Event](), ProtocolMonitor()
    loop.wiretap(events.append)
    loop.wiretap(monitor)
    return events, monitor


async def ended(loop: AgentLoop, given: str | AgentState = "go") -> AgentState:
    """Run to the end; whatever leaves the loop instead of a state fails the test."""
    escaped: BaseException
    try:
        return await loop.execute(given)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the claim is that nothing leaves
        escaped = error
    raise AssertionError(f"the run ended without a state: {escaped!r}")


async def cancelled_when(loop: AgentLoop, moment: asyncio.Event) -> AgentState | None:
    """Run, cancel at a moment, and return the state that is left: returned, or on the cancellation."""
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
    """Say whether an outcome admits that its effect took place, or may have."""
    return execution.succeeded or execution.may_have_run


def refusal(make: Callable[[], Any]) -> Exception | None:
    """Return the error with which something is refused at construction; None when it is accepted."""
    try:
        make()
    except (AgentLoopError, TypeError, ValueError, AttributeError) as error:
        return error
    return None


def of_another() -> AgentState:
    """Return the state of another agent whose execution is in progress."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return AgentState.start("another question", agent_id="another").with_execution_started("another-run", now)


# --- H8: the record of an effect survives what fails after it ----------------------------------------------------


@frozen(kw_only=True)
class FailsToFinish(ToolCallingDriver):
    """A driver whose own bookkeeping fails once calls were executed."""

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        state = super().finish(draft, outcome)
        if outcome is not None:
            raise KeyError("a mistake in the bookkeeping")
        return state


@frozen
class Rearranging(ToolExecutor):
    """An executor that executes well, and answers something else."""

    rearrange: Callable[[tuple[ToolExecution, ...]], Sequence[ToolExecution]] = field(kw_only=True)

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await super().execute_tools(tool_calls, state)
        return evolve(answer, executions=self.rearrange(answer.executions))


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H8: an error in Driver.finish loses the executed calls")
def test_an_error_while_a_step_is_finished_keeps_its_calls_and_tokens() -> None:
    """The run fails, and its state holds the outcome of the call that ran and the tokens of the inference."""
    till = Till()
    driver = FailsToFinish(ScriptedInference(pay(), "done"), mode="native")
    state = run_in_virtual_time(ended(AgentLoop(driver, [till.pay()], clock=LoopClock())))
    assert till.paid == [1]
    assert state.status is ExecutionStatus.FAILED
    assert [one.value for one in executions_of(state)] == ["paid 1"]
    assert state.usage.input_tokens == 10
    assert state.tool_call_count == 1


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H8: an outcome too few loses the whole batch")
def test_an_executor_that_answers_too_few_outcomes_loses_none_that_it_gave() -> None:
    """The outcomes that came are kept, and the call without one is recorded as one that may have run."""
    till = Till()
    executor = Rearranging(rearrange=lambda outcomes: outcomes[:-1])
    state = run_in_virtual_time(ended(loop_of([[pay(1), pay(2)], "done"], [till.pay()], executor=executor)))
    assert sorted(till.paid) == [1, 2]
    assert state.status is ExecutionStatus.FAILED
    recorded = executions_of(state)
    assert [dict(one.arguments) for one in recorded] == [{"n": 1}, {"n": 2}]
    assert recorded[0].value == "paid 1"
    assert is_accounted_for(recorded[1])


@pytest.mark.unmonitored
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H8: a foreign state is noticed after the call has run")
def test_a_foreign_state_before_a_call_keeps_the_call_from_running() -> None:
    """The interceptor's mistake is found where it returns: nothing is paid, and the run fails as itself."""
    till = Till()

    class Confuses(Interceptor):
        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            return point.with_state(of_another())

    loop = loop_of([pay(), "done"], [till.pay()], Confuses())
    _, monitor = listened(loop)
    state = run_in_virtual_time(ended(loop, AgentState.start("go", agent_id="own")))
    assert till.paid == []
    assert (state.agent_id, state.status) == ("own", ExecutionStatus.FAILED)
    assert (monitor.violations, monitor.unfinished) == ([], [])


@pytest.mark.unmonitored
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H8: a foreign state after a call loses its record")
def test_a_foreign_state_after_a_call_does_not_lose_its_record() -> None:
    """The run fails, and its own state says that the call ran or may have run."""
    till = Till()

    class Confuses(Interceptor):
        def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            return point.with_state(of_another())

    loop = loop_of([pay(), "done"], [till.pay()], Confuses())
    _, monitor = listened(loop)
    state = run_in_virtual_time(ended(loop, AgentState.start("go", agent_id="own")))
    assert till.paid == [1]
    assert (state.agent_id, state.status) == ("own", ExecutionStatus.FAILED)
    assert [is_accounted_for(one) for one in executions_of(state)] == [True]
    assert state.usage.input_tokens == 10
    assert (monitor.violations, monitor.unfinished) == ([], [])


# --- H9: foreign and stale states --------------------------------------------------------------------------------

STATE_POINTS = (
    "before_execution",
    "before_step",
    "before_inference",
    "after_inference",
    "after_step",
    "on_stop",
    "after_execution",
)


def returning(name: str, made: Callable[[StatePoint], AgentState]) -> Interceptor:
    """Make an interceptor that goes on with another state at one point."""

    def point(_: Interceptor, at: StatePoint) -> StatePoint:
        return at.with_state(made(at))

    kind: type[Interceptor] = type("Confuses", (Interceptor,), {name: point})
    return kind()


@pytest.mark.unmonitored
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
@pytest.mark.parametrize("name", STATE_POINTS)
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H9: a foreign state of an interceptor leaves the run")
def test_a_foreign_state_is_an_error_of_the_run(name: str, begun: bool) -> None:  # noqa: FBT001  # a parameter of the test
    """The run fails with its own identity and its own steps, and its terminal event is emitted."""
    till = Till()
    foreign = of_another() if begun else AgentState.start("another question", agent_id="another")
    loop = loop_of([pay(), "done"], [till.pay()], returning(name, lambda _: foreign))
    events, monitor = listened(loop)
    state = run_in_virtual_time(ended(loop, AgentState.start("go", agent_id="own")))
    assert (state.agent_id, state.status) == ("own", ExecutionStatus.FAILED)
    assert len(executions_of(state)) == len(till.paid)
    assert [type(event) for event in events if isinstance(event, ENDS)] == [AgentExecutionFailed]
    assert {event.agent_id for event in events} == {"own"}
    assert monitor.violations == []


@pytest.mark.unmonitored
@pytest.mark.parametrize("name", ["before_step", "after_step"])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H9: a state without the last step is accepted")
def test_a_stale_state_drops_no_step(name: str) -> None:
    """Every payment stays in the state, and no two have the same idempotency key."""
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
    assert [one.key for one in executions_of(state)] == till.keys


@pytest.mark.parametrize("name", ["on_stop", "after_execution"])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H9: at the end, a state without steps is accepted")
def test_a_stale_state_at_the_end_drops_no_step(name: str) -> None:
    """What was paid stays in the final state."""
    till, first = Till(), list[AgentState]()

    class Remembers(Interceptor):
        def before_step(self, point: Any) -> Any:
            first.append(point.state)
            return point

    loop = loop_of([pay(), "done"], [till.pay()], Remembers(), returning(name, lambda _: first[0]))
    state = run_in_virtual_time(ended(loop))
    assert till.paid == [1]
    assert [one.key for one in executions_of(state)] == till.keys


# --- H10: outcomes are paired by key -----------------------------------------------------------------------------


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H10: outcomes are paired with calls by their place")
def test_outcomes_in_another_order_are_paired_with_their_calls() -> None:
    """Each call is answered by the outcome that has its key, whatever the order of the answer."""
    executor = Rearranging(rearrange=lambda outcomes: outcomes[::-1])
    state = run_in_virtual_time(ended(loop_of([[pay(1), pay(2)], "done"], [Till().pay()], executor=executor)))
    assert state.status is ExecutionStatus.COMPLETED
    pairs = [(one.call.arguments["n"], one.execution.value) for one in state.messages[1].exchanges]
    assert pairs == [(1, "paid 1"), (2, "paid 2")]


@pytest.mark.parametrize("key", ["another-run/1/0", ""])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H10: an outcome with a foreign key is accepted")
def test_an_outcome_with_a_foreign_key_is_a_violation_that_keeps_the_batch(key: str) -> None:
    """The run fails, and the call stands in its state with its own key, as one that ran or may have run."""
    till = Till()
    executor = Rearranging(rearrange=lambda outcomes: [evolve(one, key=key) for one in outcomes])
    state = run_in_virtual_time(ended(loop_of([pay(), "done"], [till.pay()], executor=executor)))
    assert till.paid == [1]
    assert state.status is ExecutionStatus.FAILED
    assert [(one.key, is_accounted_for(one)) for one in executions_of(state)] == [(till.keys[0], True)]


# --- H11 to H14: cancelled, cut off, timed out -------------------------------------------------------------------


@tool(name="read_account")
async def read_account() -> str:
    """Read the number of the account."""
    return SECRET


def masked(seconds: float) -> tuple[AgentLoop, asyncio.Event]:
    """Make a loop whose results are masked by an interceptor that takes its time, and the moment when it begins to."""
    asked = asyncio.Event()

    class Masks(Interceptor):
        async def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            asked.set()
            await asyncio.sleep(seconds)
            return point.with_value("***")

    return loop_of([ToolCall("1", "read_account", "{}"), "done"], [read_account], Masks()), asked


@pytest.mark.unmonitored
@pytest.mark.parametrize("seconds", [1, 1_000_000], ids=["slow", "endless"])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H11: cancelled while masked, the value is stored bare")
def test_a_value_that_is_being_masked_is_never_stored_bare(seconds: float) -> None:
    """A run that is cancelled meanwhile keeps the masked value or none."""

    async def run() -> AgentState | None:
        return await cancelled_when(*masked(seconds))

    state = run_in_virtual_time(run())
    assert state is not None
    assert SECRET not in to_json(state).decode()


@pytest.mark.unmonitored
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H11: cancelled while masked, a call has no last event")
def test_a_call_that_is_cancelled_while_it_is_masked_has_its_last_event() -> None:
    """The events keep the grammar: each call that started is said to have ended, with what the state holds."""

    async def run() -> tuple[AgentState | None, list[Event], ProtocolMonitor]:
        loop, asked = masked(1)
        events, monitor = listened(loop)
        return await cancelled_when(loop, asked), events, monitor

    state, events, monitor = run_in_virtual_time(run())
    assert state is not None
    said = [event.execution for event in events if isinstance(event, ToolCallCompleted)]
    assert said == executions_of(state)
    assert (monitor.violations, monitor.unfinished) == ([], [])


def with_clean_up(seconds: float) -> tuple[AgentLoop, list[str], asyncio.Event]:
    """Make a loop over two ensembles that take their time to stop, what they did, and the moment when one begins to."""
    did, stopping = list[str](), asyncio.Event()

    def group(name: str, member: Tool) -> Ensemble:
        async def start() -> None:
            did.append(f"start {name}")

        async def stop() -> None:
            did.append(f"stop {name}")
            stopping.set()
            await asyncio.sleep(seconds)

        return Ensemble(name, [member], start=start, stop=stop)

    groups = [group("first", Till().pay()), group("second", read_account)]
    return loop_of([pay(), "done"], groups), did, stopping


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H12: cancelled during clean-up, the run is lost")
def test_a_run_that_is_cancelled_while_it_cleans_up_is_not_lost() -> None:
    """The finished state is returned, or carried by the cancellation."""

    async def run() -> AgentState | None:
        loop, _, stopping = with_clean_up(1)
        return await cancelled_when(loop, stopping)

    state = run_in_virtual_time(run())
    assert state is not None
    assert state.status is ExecutionStatus.COMPLETED
    assert [one.value for one in executions_of(state)] == ["paid 1"]


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H12: cancelled during clean-up, others are not stopped")
def test_a_run_that_is_cancelled_while_it_cleans_up_stops_every_ensemble() -> None:
    """Each ensemble that was started is told to stop, once."""

    async def run() -> list[str]:
        loop, did, stopping = with_clean_up(1)
        await cancelled_when(loop, stopping)
        return did

    did = run_in_virtual_time(run())
    assert sorted(did) == ["start first", "start second", "stop first", "stop second"]


async def _awaited_for(proceed: ProceedToolUse) -> ToolExecution:
    return await asyncio.wait_for(proceed(), 1)


async def _within_timeout(proceed: ProceedToolUse) -> ToolExecution:
    async with asyncio.timeout(1):
        return await proceed()


@pytest.mark.parametrize("cut_off", [_awaited_for, _within_timeout])
@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="H13: an effect cut off by a layer is said not to have run"
)
def test_an_effect_that_a_layer_cuts_off_may_have_run(
    cut_off: Callable[[ProceedToolUse], Awaitable[ToolExecution]],
) -> None:
    """An interceptor's own timeout around a call that has begun leaves an outcome that admits it."""
    till = Till()

    class Hurries(Interceptor):
        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            try:
                return await cut_off(proceed)
            except TimeoutError:
                return point.fail("too slow")

    state = run_in_virtual_time(ended(loop_of([pay(), "done"], [till.pay(seconds=10)], Hurries())))
    assert till.paid == [1]
    assert [one.may_have_run for one in executions_of(state)] == [True]


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="H13: a cancelled effect that raises is said not to have run"
)
def test_an_effect_that_answers_cancellation_with_an_error_may_have_run() -> None:
    """A library that makes a lost connection of a cancellation does not hide that the effect may have taken place."""

    async def run() -> AgentState | None:
        begun = asyncio.Event()

        @tool
        async def transfer() -> str:
            """Transfer."""
            begun.set()
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                raise ConnectionError("connection lost") from None
            return "transferred"

        return await cancelled_when(loop_of([ToolCall("1", "transfer", "{}"), "done"], [transfer]), begun)

    state = run_in_virtual_time(run())
    assert state is not None
    assert [one.may_have_run for one in executions_of(state)] == [True]


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H14: a repeated call runs again after a timeout")
def test_a_call_that_may_have_run_is_not_run_again_by_its_repetition() -> None:
    """With `deduplicate="exact"`, a call that timed out counts as seen: its effect is not repeated."""
    till = Till()
    tools = [till.pay(seconds=10, timeout=1, deduplicate="exact")]
    state = run_in_virtual_time(ended(loop_of([pay(), pay(), "done"], tools, Resilience())))
    assert till.paid == [1]
    assert executions_of(state)[0].may_have_run


# --- H15: permissions --------------------------------------------------------------------------------------------

never_awaited = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


def answering(*, answer: Any) -> Any:
    """Make an async predicate, as one that asks a service."""

    async def predicate(_: BeforeToolUse) -> Any:
        await asyncio.sleep(0)
        return answer

    return predicate


def paid_under(permissions: Permissions, *others: Any, n: int = 1) -> list[int]:
    """Return what a payment comes to under these permissions."""
    till = Till()

    @tool(effect="pure")
    async def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    lines = [ToolCall("1", "look", json.dumps({"n": n})) if others else pay(n), "done"]
    run_in_virtual_time(ended(loop_of(lines, [till.pay(), look], permissions, *others)))
    return till.paid


@never_awaited
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H15: an async predicate counts as true")
def test_an_async_predicate_that_says_no_is_no_permission() -> None:
    """What an async predicate of `allow` answers decides, not that there is a coroutine."""
    assert paid_under(Permissions(allow=[answering(answer=False)])) == []


@never_awaited
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H15: an async predicate that says no denies")
def test_an_async_predicate_that_does_not_deny_lets_a_call_run() -> None:
    """What an async predicate of `deny` answers decides, not that there is a coroutine."""
    assert paid_under(Permissions(deny=[answering(answer=False)])) == [1]


@never_awaited
@pytest.mark.parametrize(
    "predicate", [lambda _: "no", lambda _: 1, answering(answer="no")], ids=["text", "number", "async text"]
)
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H15: a verdict that is not a bool counts as true")
def test_a_verdict_that_is_no_bool_is_no_permission(predicate: Any) -> None:
    """A predicate that answers anything but True or False allows nothing."""
    assert paid_under(Permissions(allow=[predicate])) == []


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="H15: a denying predicate without a verdict denies nothing"
)
def test_a_predicate_of_deny_that_gives_no_verdict_lets_nothing_run() -> None:
    """A predicate that forgets to return anything is refused like one that raises: the call does not run."""
    silent: Any = lambda _: None  # noqa: E731  # of no type that a predicate may have
    assert paid_under(Permissions(deny=[silent])) == []


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H15: a call that is rewritten to a denied tool runs")
def test_a_call_that_is_rewritten_to_a_denied_tool_does_not_run() -> None:
    """The call that runs is the call that was checked, when an interceptor changes which tool is called."""
    rewrite = before_tool_use(
        lambda point: point.with_call(evolve(point.call, name="pay")) if point.call.name == "look" else point
    )
    assert paid_under(Permissions(deny=["pay"]), rewrite) == []


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H15: arguments that are rewritten past a rule run")
def test_arguments_that_are_rewritten_past_a_rule_do_not_run() -> None:
    """The arguments that run are those that were checked, when an interceptor converts them."""
    till = Till()
    permissions = Permissions(deny=[lambda point: point.arguments["n"] > 100])
    convert = before_tool_use(
        lambda point: point if point.arguments["n"] > 100 else point.with_arguments({"n": point.arguments["n"] * 1000})
    )
    run_in_virtual_time(ended(loop_of([pay(50), "done"], [till.pay()], permissions, convert)))
    assert till.paid == []


# --- H16, M7, M15, M16: values -----------------------------------------------------------------------------------


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="H16: depth is not measured through frozen values")
def test_whatever_a_run_records_can_be_read_again() -> None:
    """Results that grow around earlier results are refused by the depth at which they could not be read."""

    @tool(effect="pure")
    async def wrap(state: AgentState) -> Any:
        """Put what was found so far into a report."""
        exchanges = state.messages[-1].exchanges
        report: Any = exchanges[0].execution.value if exchanges else "found"
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
    ],
    ids=["metadata", "provider data"],
)
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="M7: the empty mapping is shared and can be written to")
def test_an_empty_mapping_of_one_value_cannot_be_filled_for_others(mapping_of: Callable[[], Any]) -> None:
    """What C code writes into a mapping, as `eval` does into its globals, reaches no other value."""
    mapping, expression = mapping_of(), "1 + 1"
    with suppress(TypeError):  # a mapping that refuses is right too
        eval(expression, mapping)
    try:
        assert dict(AgentState.start("another").context.metadata) == {}
        assert dict(ToolCall("2", "look").provider_data) == {}
    finally:
        if isinstance(mapping, dict):
            dict.pop(mapping, "__builtins__", None)


@pytest.mark.parametrize("name", WIRE_FORMATS)
@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="M15: a lone surrogate makes a body that is no strict JSON"
)
def test_a_file_name_that_is_no_text_makes_a_body_that_strict_parsers_take(name: str) -> None:
    """A lone surrogate in a result does not reach the wire."""

    @tool(effect="pure")
    async def newest() -> str:
        """Name the newest file."""
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
        lambda wrong: AgentState.start("go", agent_id=wrong(7)),
        lambda wrong: AgentState.start("go", system_prompt=wrong(["Be brief."])),
    ],
    ids=["arguments", "id", "name", "text", "usage", "agent id", "system prompt"],
)
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="M16: constructors take values of any type")
def test_a_value_of_the_wrong_type_is_refused_where_it_is_made(make: Callable[[Callable[[Any], Any]], Any]) -> None:
    """A constructor raises instead of making what cannot be read back."""
    assert refusal(lambda: make(lambda wrong: wrong)) is not None


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="M16: a call with a mapping for its text cannot be read back"
)
def test_a_run_with_arguments_that_are_no_text_leaves_a_readable_state_or_never_begins() -> None:
    """A call made with a mapping instead of JSON text is refused, or its run can be read back."""
    arguments: Any = {"n": 1}
    made: list[ToolCall] = []
    if refusal(lambda: made.append(ToolCall("1", "pay", arguments))) is None:
        state = run_in_virtual_time(ended(loop_of([made[0], "done"], [Till().pay()])))
        assert refusal(lambda: from_json(to_json(state), AgentState)) is None


# --- M8 to M11: cancellation -------------------------------------------------------------------------------------


class SingleFlight(CanInfer):
    """A model whose equal requests share one answer under way, as in a client that caches."""

    def __init__(self) -> None:
        self.flight: asyncio.Future[InferenceResponse] | None = None
        self.asked = asyncio.Event()

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        if self.flight is None:
            self.flight = asyncio.ensure_future(self._answer())
        return await self.flight

    async def _answer(self) -> InferenceResponse:
        self.asked.set()
        await asyncio.sleep(1)
        return InferenceResponse((Text("an answer"),))


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="M8: a cancellation of another task ends the run")
def test_a_cancellation_that_is_not_of_the_run_is_an_error_of_the_run() -> None:
    """A run that nobody cancelled returns its state, although what it waited for was cancelled."""

    async def run() -> list[Any]:
        model = SingleFlight()
        loop = AgentLoop(ToolCallingDriver(model, mode="native"), clock=LoopClock())
        tasks = [asyncio.create_task(loop.execute("go")) for _ in range(2)]
        await model.asked.wait()
        await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second = run_in_virtual_time(run())
    assert isinstance(first, asyncio.CancelledError)
    assert isinstance(second, AgentState), f"{second!r} left a run that nobody cancelled"
    assert second.status is ExecutionStatus.FAILED


@pytest.mark.parametrize("name", ["before_execution", "before_step", "before_inference", "after_step", "on_stop"])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="M8: a cancelled future of an interceptor ends the run")
def test_a_cancelled_future_of_an_interceptor_is_an_error_of_the_run(name: str) -> None:
    """An interceptor that waits for what somebody else has cancelled fails; the run returns its state."""

    async def point(_: Interceptor, at: StatePoint) -> StatePoint:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
        return at

    kind: type[Interceptor] = type("Waits", (Interceptor,), {name: point})
    assert run_in_virtual_time(ended(loop_of(["done"], [], kind()))).status is ExecutionStatus.FAILED


def heard(kind: type[Event]) -> tuple[AgentState | None, list[Event], ProtocolMonitor]:
    """Run a payment, and cancel the run while an async listener takes the first event of a kind."""

    async def run() -> tuple[AgentState | None, list[Event], ProtocolMonitor]:
        loop, reached = loop_of([pay(), "done"], [Till().pay()]), asyncio.Event()
        events, monitor = listened(loop)

        async def slow(event: Event) -> None:
            if isinstance(event, kind) and not reached.is_set():
                reached.set()
                await asyncio.sleep(1)

        loop.wiretap(slow)
        return await cancelled_when(loop, reached), events, monitor

    return run_in_virtual_time(run())


broken_by_cancellation = pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="M9: cancelled with async listeners, events break the grammar"
)
EVENTS = (
    AgentExecutionStarted,
    AgentStepStarted,
    InferenceRequestStarted,
    pytest.param(InferenceResponseReceived, marks=broken_by_cancellation),
    TokenUsageReported,
    ToolCallStarted,
    ToolCallCompleted,
    pytest.param(ContinuationEvaluated, marks=broken_by_cancellation),
    pytest.param(AgentStepCompleted, marks=broken_by_cancellation),
    StopSignalReceived,
    AgentExecutionCompleted,
)


@pytest.mark.unmonitored
@pytest.mark.parametrize("kind", EVENTS)
def test_a_run_that_is_cancelled_while_a_listener_works_keeps_the_grammar(kind: type[Event]) -> None:
    """Whatever event was being taken: each step is completed once, what began ends, and the state is kept."""
    state, events, monitor = heard(kind)
    completed = [event.step.number for event in events if isinstance(event, AgentStepCompleted)]
    assert len(completed) == len(set(completed))
    assert (monitor.violations, monitor.unfinished) == ([], [])
    assert state is not None


@pytest.mark.unmonitored
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="M10: a tool that outlives its cancellation is not told")
def test_a_tool_that_outlives_its_cancelled_run_is_told() -> None:
    """An event says that a call was abandoned when its coroutine does not let itself be cancelled."""

    async def run() -> tuple[list[Event], ProtocolMonitor]:
        begun, release, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @tool
        async def stubborn() -> str:
            """Go on whatever happens."""
            begun.set()
            while not release.is_set():
                with suppress(asyncio.CancelledError):
                    await release.wait()
            over.set()
            return "done"

        loop = loop_of([ToolCall("1", "stubborn", "{}"), "done"], [stubborn])
        events, monitor = listened(loop)
        await cancelled_when(loop, begun)
        release.set()
        await over.wait()
        return events, monitor

    events, monitor = run_in_virtual_time(run())
    assert [type(event) for event in events if isinstance(event, ToolCallAbandoned)] == [ToolCallAbandoned]
    assert (monitor.violations, monitor.unfinished) == ([], [])


@frozen(kw_only=True)
class GoesOn(ToolCallingDriver):
    """A driver that takes a cancellation for the end of its step."""

    async def use_tools(self, state: AgentState) -> AgentState:
        try:
            return await super().use_tools(state)
        except asyncio.CancelledError as cancelled:
            carrier = StepInterrupted.find_in(cancelled)
            return carrier.state if carrier is not None else state


@frozen(kw_only=True)
class TriesAgain(ToolCallingDriver):
    """A driver that takes a cancellation for a failure that passes."""

    async def use_tools(self, state: AgentState) -> AgentState:
        try:
            return await super().use_tools(state)
        except asyncio.CancelledError:
            return await super().use_tools(state)


@pytest.mark.parametrize("kind", [GoesOn, pytest.param(TriesAgain, marks=pytest.mark.unmonitored)])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="M11: a driver that swallows cancellation pays again")
def test_a_driver_that_swallows_cancellation_does_not_pay_again(kind: type[ToolCallingDriver]) -> None:
    """A run whose task was cancelled takes no further step, whatever its driver makes of it."""

    async def run() -> tuple[list[int], bool]:
        till = Till()
        driver = kind(ScriptedInference(pay(1), pay(2), "done"), mode="native")
        loop = AgentLoop(driver, [till.pay(seconds=10)], clock=LoopClock())
        task = asyncio.create_task(loop.execute("go"))
        await till.begun.wait()
        task.cancel()
        await asyncio.wait((task,))
        return till.paid, task.cancelled()

    assert run_in_virtual_time(run()) == ([1], True)


# --- M12 to M14: interceptors ------------------------------------------------------------------------------------


def _blocks(*given: Any) -> Any:
    """Block whatever call the last argument is about."""
    return given[-1].block("not today")


def _misspelled() -> Interceptor:
    kind: type[Interceptor] = type("Guard", (Interceptor,), {"before_tool_call": _blocks})
    return kind()


def _on_instance() -> Interceptor:
    class Guard(Interceptor):
        """Does nothing yet."""

    guard: Any = Guard()
    guard.before_tool_use = _blocks
    made: Interceptor = guard
    return made


def _on_class() -> Interceptor:
    class Guard(Interceptor):
        """Does nothing yet."""

    changed: Any = Guard
    changed.before_tool_use = _blocks
    return Guard()


@pytest.mark.parametrize(
    "make", [_misspelled, _on_instance, _on_class], ids=["misspelled", "on an instance", "on a class"]
)
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="M12: an interceptor's method is silently not there")
def test_a_method_of_an_interceptor_works_or_is_refused(make: Callable[[], Interceptor]) -> None:
    """A guard that was put on an interceptor in an unusual way guards, or cannot be put there."""
    till, loops = Till(), list[AgentLoop]()
    if refusal(lambda: loops.append(loop_of([pay(), "done"], [till.pay()], make()))) is None:
        run_in_virtual_time(ended(loops[0]))
    assert till.paid == []


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="M12: a patched method of an interceptor is not called")
def test_a_patched_method_of_an_interceptor_is_called() -> None:
    """A test that patches a point of an interceptor sees it called."""

    class Guard(Interceptor):
        """Does nothing yet."""

    with patch.object(Guard, "before_tool_use", autospec=True, side_effect=_blocks) as patched:
        till = Till()
        run_in_virtual_time(ended(loop_of([pay(), "done"], [till.pay()], Guard())))
    assert (patched.call_count, till.paid) == (1, [])


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="M13: a budget starves agents that run side by side")
def test_a_budget_that_is_hardly_used_lets_every_agent_of_a_fan_out_work() -> None:
    """Fifty agents that together use a small part of the budget all answer."""

    class Answers(CanInfer):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            await asyncio.sleep(1)
            return InferenceResponse((Text("an answer"),), usage=Usage(100, 10))

    child = AgentLoop(ToolCallingDriver(Answers(), mode="native"), clock=LoopClock())
    calls = [ToolCall(str(number), "ask", '{"task": "answer"}') for number in range(50)]
    tools = [child.as_tool("ask", "Ask somebody.")]
    state = run_in_virtual_time(ended(loop_of([calls, "done"], tools, Budget(tokens=1_000_000))))
    assert [one.status for one in executions_of(state)] == [ToolStatus.SUCCEEDED] * 50


class RewritesAfter(Interceptor):
    """Puts other facts into the outcome of a call after it ran."""

    def __init__(self, **facts: Any) -> None:
        self.facts = facts

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        return point.with_execution(evolve(point.execution, **self.facts))


class RewritesAround(Interceptor):
    """Puts other facts into the outcome of a call that it stands around."""

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


facts_change = pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="M14: interceptors may change what was called, when, and its doubt"
)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *[pytest.param(RewritesAfter, name, marks=facts_change) for name in FACTS],
        pytest.param(RewritesAround, "call", marks=facts_change),
        pytest.param(RewritesAround, "start", marks=facts_change),
        (RewritesAround, "end"),
        (RewritesAround, "may have run"),
    ],
)
def test_an_interceptor_does_not_change_the_facts_of_a_call(name: str, kind: type[Interceptor]) -> None:
    """The record says what was called, when, and whether it may have run, whatever is said of the outcome afterwards."""
    make: Callable[..., Interceptor] = kind
    till = Till()
    state = run_in_virtual_time(ended(loop_of([pay(), "done"], [till.pay(seconds=10, timeout=1)], make(**FACTS[name]))))
    (recorded,) = executions_of(state)
    assert till.paid == [1]
    assert recorded.arguments == {"n": 1}
    assert LONG_AGO not in {recorded.started_at, recorded.ended_at}
    assert recorded.may_have_run


# --- M17 to M20: what is asked for, and what is kept -------------------------------------------------------------


def _decision(n: int) -> str:
    return json.dumps({"thought": "I pay.", "type": "tool", "tool": "pay", "args": {"n": n}})


@pytest.mark.parametrize(
    "text",
    [f"{_decision(1)}\n{_decision(2)}", f"[{_decision(1)}, {_decision(2)}]", f"{_decision(1)}{_decision(2)}"],
    ids=["lines", "list", "side by side"],
)
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="M17: ReAct JSON drops the second of two calls")
def test_two_decisions_in_one_answer_are_both_taken_or_asked_for_again(text: str) -> None:
    """A ReAct answer with two calls never runs one of them and drops the other."""
    till = Till()
    final = json.dumps({"thought": "I know.", "type": "final", "answer": "done"})
    driver = ReActDriver(ScriptedInference(text, final, final), output="json")
    run_in_virtual_time(ended(AgentLoop(driver, [till.pay()], clock=LoopClock())))
    assert sorted(till.paid) in ([1, 2], [])


def test_metadata_of_the_user_does_not_lose_a_handoff() -> None:
    """A conversation that was handed over stays there when the user sets the metadata anew."""
    billing = AgentLoop(
        ToolCallingDriver(ScriptedInference("billing"), mode="native"),
        system_prompt="You are billing.",
        clock=LoopClock(),
    )
    over = handoff_to(billing, name="to_billing", description="Money.")
    desk = ScriptedInference(_desk)
    loop = AgentLoop(
        ToolCallingDriver(desk, mode="native"), [over], system_prompt="You are the desk.", clock=LoopClock()
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
    """A limit on steps or on time does not stop a run by its tokens."""
    assert isinstance(refusal(lambda: make(lambda limit: limit)), TypeError)


shows_questions_alone = pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="M20: a sliding window of 4 shows every second question without history"
)


@pytest.mark.parametrize("size", [3, pytest.param(4, marks=shows_questions_alone), 5, 8])
def test_a_sliding_window_shows_every_question_with_what_came_before(size: int) -> None:
    """In a conversation of questions and answers, each request after the first holds the answer before it."""
    model = ScriptedInference("an answer")
    loop = AgentLoop(ToolCallingDriver(model, mode="native"), compiler=SlidingWindow(size), clock=LoopClock())

    async def run() -> None:
        state = await ended(loop, "question 0")
        for number in range(1, 10):
            state = await ended(loop, state.with_message(Message.user(f"question {number}")))

    run_in_virtual_time(run())
    shown = [[message.role for message in request.messages] for request in model.requests]
    assert [roles[-2:] for roles in shown[1:]] == [["assistant", "user"]] * 9
