"""Time limits of interceptors: their own, that of the execution, and cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AgentLoop,
    AgentState,
    Budget,
    CancellationToken,
    Interceptor,
    ScriptedInference,
    TimeLimit,
    ToolCall,
    ToolCallingDriver,
    tool,
)
from agentloop.contracts import CanInfer, CanIntercept
from agentloop.errors import ConfigurationError, InterceptorFailed
from agentloop.events import InterceptorInterrupted, ProtocolMonitor
from agentloop.interception import (
    AfterToolUse,
    AroundInference,
    AroundToolUse,
    BeforeStep,
    BeforeToolUse,
    ProceedInference,
    ProceedToolUse,
    at,
)
from agentloop.policies import AttemptTimeout, Deadline
from agentloop.testing import Ledger, LoopClock, run_in_virtual_time, toy_call, toy_tools
from agentloop.values import (
    Effect,
    ExecutionStatus,
    InferenceRequest,
    InferenceResponse,
    StopReason,
    Text,
    ToolExecution,
    ToolStatus,
)
from agentloop.values.interruptions import interrupted_state
from agentloop.values.points import POINTS, Point

FORMS: dict[str, Any] = {name: partial(at, name) for name in POINTS}


async def hang(point: Point, proceed: Any = None) -> Any:
    await asyncio.sleep(1_000_000)


async def ignore_cancellation(point: Point, proceed: Any = None) -> Any:
    loop = asyncio.get_running_loop()
    end = loop.time() + 10_000
    while loop.time() < end:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            continue


class Run:
    """A loop that calls one tool, its events and the time that an execution took."""

    def __init__(self, *interceptors: CanIntercept, seconds: float = 0, effect: Effect = Effect.EFFECT) -> None:
        self.ledger = Ledger()
        self.events: list[InterceptorInterrupted] = []
        self.monitor = ProtocolMonitor()
        script = ([toy_call("echo", 1, seconds=seconds)], "done")
        tools, driver = toy_tools(self.ledger, effect=effect), ToolCallingDriver(ScriptedInference(*script))
        self.loop = AgentLoop(driver, tools, interceptors=interceptors, clock=LoopClock())
        self.loop.on(InterceptorInterrupted, self.events.append)
        self.loop.wiretap(self.monitor)
        self.seconds = 0.0

    def execute(self) -> AgentState:
        async def run() -> AgentState:
            state = await self.loop.execute("go")
            self.seconds = asyncio.get_running_loop().time()
            return state

        state = run_in_virtual_time(run())
        self.monitor.check()
        return state


class SlowInference(CanInfer):
    """A scripted model that takes a time for each answer.

    Args:
        script: its answers.
        seconds: the time.
    """

    def __init__(self, *script: Any, seconds: float) -> None:
        self.script = ScriptedInference(*script)
        self.seconds = seconds

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        response = await self.script.infer(request)
        await asyncio.sleep(self.seconds)
        return response


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize("function", [hang, ignore_cancellation])
def test_an_interceptor_that_exceeds_its_timeout_has_failed(
    name: str, function: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """At every point the execution fails with an error and an event that name interceptor and point, at that time.

    That an interceptor is left behind because it ignores its cancellation is logged as well.
    """
    run = Run(FORMS[name](function, timeout=2.5))
    if name == "on_error":
        run.loop = run.loop.replace(driver=ToolCallingDriver(ScriptedInference(RuntimeError("no model"))))
    state = run.execute()
    assert state.status is ExecutionStatus.FAILED
    error = state.errors[-1]
    assert (error.type, error.message) == (
        "InterceptorFailed",
        f"the interceptor {function.__name__} failed at {name}: TimeoutError: it did not end within its timeout of 2.5 seconds",
    )
    assert isinstance(error.exception, InterceptorFailed)
    assert (error.exception.interceptor, error.exception.point) == (function.__name__, name)
    event = run.events[0]
    assert (event.interceptor, event.point, event.limit, event.seconds) == (function.__name__, name, "timeout", 2.5)
    assert event.is_abandoned is (function is ignore_cancellation)
    assert (f"ignores its cancellation at {name} and was left behind" in caplog.text) is event.is_abandoned
    assert run.seconds == pytest.approx(3.5 if event.is_abandoned else 2.5)


def test_a_call_whose_guard_exceeds_its_timeout_does_not_run() -> None:
    """At `before_tool_use` and before `proceed()` a timeout fails closed (law 11)."""
    for guard in (at("before_tool_use", hang, timeout=1), at("around_tool_use", hang, timeout=1)):
        run = Run(guard)
        state = run.execute()
        assert not run.ledger.calls
        assert [execution.status for step in state.steps for execution in step.executions] == [ToolStatus.FAILED]


def test_a_late_interceptor_after_a_call_drops_the_outcome() -> None:
    """An outcome that an interceptor was to mask is not used when it takes too long; that the tool ran is kept."""
    run = Run(FORMS["after_tool_use"](hang, timeout=1))
    (execution,) = run.execute().steps[0].executions
    assert run.ledger.calls
    assert (execution.status, execution.value, execution.may_have_run) == (ToolStatus.FAILED, None, True)


def test_the_timeout_of_a_class_is_an_attribute() -> None:
    """A subclass sets `timeout`; an instance may set another one; a fast method is not affected."""

    class Slow(Interceptor):
        timeout = 5.0

        async def before_step(self, point: BeforeStep) -> BeforeStep:
            await asyncio.sleep(3)
            return point.with_state(point.state.with_metadata(slept=True))

    state = Run(Slow()).execute()
    assert state.context.metadata == {"slept": True}
    impatient = Slow()
    impatient.timeout = 1.0
    assert "timeout of 1 seconds" in Run(impatient).execute().errors[-1].message


def test_the_time_of_the_operation_does_not_count() -> None:
    """Around a call, the limit counts the interceptor's own time before and after each `proceed()`, not the tool's."""

    async def around(point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        await asyncio.sleep(1)
        await proceed()
        outcome = await proceed()
        await asyncio.sleep(1)
        return outcome

    run = Run(at("around_tool_use", around, timeout=2.5), seconds=60, effect=Effect.IDEMPOTENT)
    assert run.execute().status is ExecutionStatus.COMPLETED
    assert run.seconds == pytest.approx(122)
    late = Run(at("around_tool_use", around, timeout=1.5), seconds=60, effect=Effect.IDEMPOTENT)
    (execution,) = late.execute().steps[0].executions
    assert (execution.status, execution.may_have_run) == (ToolStatus.FAILED, True)
    assert late.events[0].seconds == pytest.approx(1.5)
    assert late.seconds == pytest.approx(121.5)


def test_nothing_starts_after_the_timeout() -> None:
    """An interceptor that catches its cancellation, and proceeds then, does not start the operation."""

    async def stubborn(point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return await proceed()
        raise AssertionError

    inference = ScriptedInference("done")
    loop = AgentLoop(ToolCallingDriver(inference), interceptors=[at("around_inference", stubborn, timeout=1)])
    assert run_in_virtual_time(loop.execute("go")).status is ExecutionStatus.FAILED
    assert not inference.requests


@pytest.mark.parametrize("name", [name for name in POINTS if name != "on_error"])
@pytest.mark.parametrize("function", [hang, ignore_cancellation])
@pytest.mark.parametrize("priority", [0, 2000])
def test_a_time_limit_bounds_every_interceptor(name: str, function: Callable[..., Any], priority: int) -> None:
    """An interceptor without a timeout ends with the time of the execution, inside and outside of the limit."""
    run = Run(FORMS[name](function, priority=priority), TimeLimit(30))
    state = run.execute()
    assert state.status is ExecutionStatus.STOPPED
    assert state.stop_signal is not None
    assert state.stop_signal.reason.value == "time_limit"
    # At worst each of the points after an operation, which have five seconds of their own, is abandoned.
    assert run.seconds <= 30 + 10 + 4 * 6


@pytest.mark.parametrize("name", [name for name in POINTS if name != "on_error"])
@pytest.mark.parametrize("function", [hang, ignore_cancellation])
def test_a_cancellation_token_interrupts_every_interceptor(name: str, function: Callable[..., Any]) -> None:
    """A hanging interceptor does not outlive a cancellation, even if it ignores its own."""
    token = CancellationToken()
    run = Run(FORMS[name](function), token)

    async def execute() -> tuple[AgentState, float]:
        task = asyncio.create_task(run.loop.execute("go"))
        await asyncio.sleep(20)
        token.cancel("the user left")
        return await task, asyncio.get_running_loop().time()

    state, seconds = run_in_virtual_time(execute())
    assert state.stop_signal is not None
    assert state.stop_signal.reason.value == "user_requested"
    assert seconds <= 20 + 10 + 4 * 6
    run.monitor.check()


class CountingToken(CancellationToken):
    """Counts who waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = self.waiting = 0

    def notify_at_stop(self, notify: Callable[[], None]) -> Callable[[], None]:
        take_back = super().notify_at_stop(notify)
        self.asked += 1
        self.waiting += 1

        def forget() -> None:
            self.waiting -= 1
            take_back()

        return forget


@pytest.mark.parametrize("ending", [None, 5, ValueError("no luck")])
@pytest.mark.parametrize("name", [name for name in POINTS if name != "on_error"])
def test_a_token_keeps_nothing_of_interceptors_that_have_ended(name: str, ending: object) -> None:
    """One token may serve a program for all its life, however each interceptor under it ends."""

    async def end(point: Point, proceed: Any = None) -> Any:
        if isinstance(ending, Exception):
            raise ending
        if ending is not None:
            await hang(point)
        return point if proceed is None else await proceed()

    token = CountingToken()
    run = Run(FORMS[name](end, priority=5000, timeout=3), token)
    assert (run.execute().status is ExecutionStatus.FAILED) is (ending is not None)
    assert token.asked
    assert not token.waiting


@pytest.mark.parametrize("name", ["before_step", "around_inference", "around_tool_use", "after_step"])
def test_the_cancellation_of_the_task_bounds_an_interceptor_with_a_timeout(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It has a second to end when the task of the execution is cancelled; then it is left behind and reported."""
    run = Run(FORMS[name](ignore_cancellation, timeout=500))

    async def execute() -> tuple[AgentState, float]:
        task = asyncio.create_task(run.loop.execute("go"))
        await asyncio.sleep(20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        state = interrupted_state(caught.value)
        assert state is not None
        return state, asyncio.get_running_loop().time()

    with caplog.at_level(logging.WARNING, "agentloop"):
        state, seconds = run_in_virtual_time(execute())
    assert state.status is ExecutionStatus.IN_PROGRESS
    assert seconds <= 20 + 6
    assert f"ignore_cancellation ignores its cancellation at {name} and was left behind" in caplog.text


def test_an_interceptor_that_awaits_a_cancelled_task_of_others_has_failed() -> None:
    """With a timeout, too, a foreign cancellation is an error of the interceptor, not the end of the run."""

    async def await_foreign(point: BeforeStep) -> BeforeStep:
        task = asyncio.create_task(asyncio.sleep(100))
        asyncio.get_running_loop().call_later(1, task.cancel)
        await task
        return point

    state = Run(at("before_step", await_foreign, timeout=5)).execute()
    assert state.status is ExecutionStatus.FAILED
    assert "await_foreign failed at before_step: CancelledError" in state.errors[-1].message


def test_context_variables_of_an_interceptor_reach_the_tools() -> None:
    """A variable that an async interceptor sets is set for what follows, with and without a limit."""
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    seen: list[str] = []

    async def set_variable(point: BeforeStep) -> BeforeStep:
        variable.set("set")
        return point

    def read_variable(point: BeforeToolUse) -> BeforeToolUse:
        seen.append(variable.get())
        return point

    for timeout in (None, 3):
        Run(at("before_step", set_variable, timeout=timeout), at("before_tool_use", read_variable)).execute()
    assert seen == ["set", "set"]


def test_an_exit_in_an_interceptor_with_a_timeout_reaches_the_caller() -> None:
    """`SystemExit` does not end the event loop behind the back of the execution."""

    async def leave(point: BeforeStep) -> BeforeStep:
        raise SystemExit(3)

    async def execute() -> int:
        loop = AgentLoop(ToolCallingDriver(ScriptedInference("x")), interceptors=[at("before_step", leave, timeout=1)])
        try:
            await loop.execute("go")
        except SystemExit as left:
            return int(str(left.code))
        return 0

    assert run_in_virtual_time(execute()) == 3


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "2", True])
def test_a_timeout_is_a_positive_number(timeout: Any) -> None:
    """The error of the construction names the interceptor."""
    with pytest.raises(ConfigurationError, match="the timeout of the interceptor hang is a number of seconds above 0"):
        AgentLoop(ToolCallingDriver(ScriptedInference()), interceptors=[at("before_step", hang, timeout=timeout)])


def test_a_plain_method_is_not_interrupted() -> None:
    """The timeout applies to async methods; a plain one returns whatever time it took."""
    state = Run(
        FORMS["after_tool_use"](lambda point: AfterToolUse.with_value(point, "masked"), timeout=0.001)
    ).execute()
    assert state.steps[0].executions[0].value == "masked"


async def test_without_limits_no_task_is_made() -> None:
    """An async interceptor without any limit runs in the task of the execution."""
    tasks: list[object] = []

    async def note(point: BeforeStep) -> BeforeStep:
        tasks.append(asyncio.current_task())
        return point

    work: Awaitable[AgentState] = AgentLoop(
        ToolCallingDriver(ScriptedInference("x")), interceptors=[at("before_step", note)]
    ).execute("go")
    await work
    assert tasks == [asyncio.current_task()]


@pytest.mark.parametrize("outer", [0, 1, 3])
@pytest.mark.parametrize("name", ["around_inference", "around_tool_use"])
def test_the_time_of_the_operation_counts_for_the_execution(name: str, outer: int) -> None:
    """An interceptor around an operation that leaves nothing of a time limit has five seconds afterwards, and each around it."""

    async def hang_after(point: Point, proceed: Any) -> Any:
        outcome = await proceed()
        await asyncio.sleep(1_000_000)
        return outcome

    async def hang_in_the_end(point: Point, proceed: Any) -> Any:
        try:
            return await proceed()
        finally:
            await asyncio.sleep(1_000_000)

    layers = [FORMS[name](hang_in_the_end, priority=6000 + index) for index in range(outer)]
    run = Run(FORMS[name](hang_after, priority=5000, timeout=1_000), *layers, TimeLimit(100), seconds=99)
    if name == "around_inference":
        run.loop = run.loop.replace(driver=ToolCallingDriver(SlowInference("done", seconds=99)))
    state = run.execute()
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.TIME_LIMIT
    assert {event.limit for event in run.events} == {"time_limit"}
    assert run.seconds == pytest.approx(99 + 5 * (outer + 1))


@pytest.mark.parametrize("timeout", [None, 50.0])
@pytest.mark.parametrize("name", ["around_inference", "around_tool_use"])
@pytest.mark.parametrize("by_token", [True, False])
def test_nothing_starts_after_a_cancellation(name: str, timeout: float | None, *, by_token: bool) -> None:
    """An interceptor that catches the cancellation of the operation, and proceeds again, does not start it again."""

    async def proceed_again(point: Point, proceed: Any) -> Any:
        try:
            return await proceed()
        except asyncio.CancelledError:
            return await asyncio.create_task(proceed())

    token, model = CancellationToken(), SlowInference([toy_call("echo", 1, seconds=100)], "done", seconds=2)
    layers = [FORMS[name](proceed_again, timeout=timeout), FORMS[name](proceed_again, priority=1, timeout=timeout)]
    run = Run(*layers, token)
    run.loop = run.loop.replace(driver=ToolCallingDriver(model))

    async def execute() -> None:
        work = asyncio.create_task(run.loop.execute("go"))
        asyncio.get_running_loop().call_later(
            1 if name == "around_inference" else 10, token.cancel if by_token else work.cancel
        )
        await asyncio.wait((work,))
        run.seconds = asyncio.get_running_loop().time()

    run_in_virtual_time(execute())
    assert len(model.script.requests) == 1
    assert len(run.ledger.calls) == (name == "around_tool_use")
    assert run.seconds == pytest.approx(1 if name == "around_inference" else 10)


async def test_an_execution_that_cleans_up_after_a_cancellation_proceeds() -> None:
    """A task that was cancelled before it executes an agent is not cancelled anew: interceptors proceed as always."""

    async def pass_on(point: Point, proceed: Any) -> Any:
        return await proceed()

    run = Run(*[FORMS[name](pass_on) for name in ("around_inference", "around_tool_use")])

    async def clean_up() -> AgentState:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            return await run.loop.execute("go")
        raise AssertionError

    work = asyncio.create_task(clean_up())
    await asyncio.sleep(0)
    work.cancel()
    assert (await work).status is ExecutionStatus.COMPLETED
    assert run.ledger.calls


async def pass_on(point: Point, proceed: Any) -> Any:
    """Run the operation."""
    return await proceed()


@pytest.mark.parametrize(
    "layer",
    [CancellationToken(), TimeLimit(100), Budget(seconds=100), at("around_inference", pass_on, timeout=100)],
    ids=lambda layer: layer.name,
)
def test_an_answer_to_a_cancelled_inference_is_not_in_the_state(layer: CanIntercept) -> None:
    """What a model returns although its inference is cancelled, together with the execution, is dropped."""

    class AnswersNevertheless(CanInfer):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(10)
            return InferenceResponse((Text("too late"),))

    async def execute() -> AgentState | None:
        agent = AgentLoop(ToolCallingDriver(AnswersNevertheless()), interceptors=[layer], clock=LoopClock())
        work = asyncio.create_task(agent.execute("go"))
        asyncio.get_running_loop().call_later(1, work.cancel)
        with pytest.raises(asyncio.CancelledError) as caught:
            await work
        return interrupted_state(caught.value)

    state = run_in_virtual_time(execute())
    assert state is not None
    assert state.status is ExecutionStatus.IN_PROGRESS
    assert [message.text for message in state.messages] == ["go"]


LIMITS: dict[str, Callable[[float], CanIntercept]] = {
    "time limit": TimeLimit,
    "budget": lambda seconds: Budget(seconds=seconds),
    "deadline": Deadline,
    "attempt": AttemptTimeout,
    "timeout": lambda seconds: at("around_tool_use", pass_on, timeout=seconds),
}
SECONDS = st.sampled_from([0.5, 1.0, 1.25, 60.0])


@given(
    limits=st.dictionaries(st.sampled_from(sorted(LIMITS)), SECONDS),
    cancelled=st.dictionaries(st.sampled_from(["task", "token"]), SECONDS),
    timeout=st.sampled_from([None, 500.0]),
    clean_up=st.sampled_from([0.0, 0.25, 0.75]),
)
def test_what_a_tool_returns_counts_however_often_it_is_cancelled(
    limits: dict[str, float], cancelled: dict[str, float], timeout: float | None, clean_up: float
) -> None:
    """Limits may be reached together, and while a cancelled tool still ends: nothing is dropped, and nothing left behind."""
    returned: list[str] = []

    @tool(timeout=timeout)
    async def pay() -> str:
        """Wait for the receipt, although the call is cancelled."""
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(10)
        await asyncio.sleep(clean_up)
        returned.append("receipt")
        return "receipt"

    async def execute() -> AgentState | None:
        token, loop = CancellationToken(), asyncio.get_running_loop()
        layers = [LIMITS[name](seconds) for name, seconds in limits.items()]
        driver = ToolCallingDriver(ScriptedInference([ToolCall("", "pay")], "done"))
        agent = AgentLoop(driver, [pay], interceptors=[*layers, token], clock=LoopClock())
        work = asyncio.create_task(agent.execute("go"))
        for what, seconds in cancelled.items():
            loop.call_later(seconds, work.cancel if what == "task" else token.cancel)
        await asyncio.wait((work,))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        try:
            return await work
        except asyncio.CancelledError as error:
            return interrupted_state(error)

    state = run_in_virtual_time(execute())
    assert state is not None
    assert [execution.value for execution in state.steps[0].executions if execution.succeeded] == returned
