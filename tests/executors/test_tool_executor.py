"""The executor: outcomes of calls, their order, and the events about them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Self

import pytest
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AgentLoop,
    AgentState,
    AgentStop,
    Interceptor,
    ScriptedInference,
    Tool,
    ToolCall,
    ToolContext,
    ToolExecutor,
    tool,
)
from agentloop.contracts import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.contracts.tool import (
    CanAccessAgentState,
    CanAccessToolCall,
    CanPinDefinition,
    CanPrepareArguments,
    CanUseInline,
)
from agentloop.errors import (
    ContractViolation,
    InterceptorFailed,
    InvalidArguments,
    ToolDefinitionError,
    ToolUnavailable,
)
from agentloop.events import (
    AbandonedToolCallEnded,
    EventBus,
    ToolCallAbandoned,
    ToolCallCompleted,
    ToolCallProgressed,
    ToolCallRejected,
    ToolCallReviewed,
    ToolCallSettled,
    ToolCallSlow,
    ToolCallStarted,
    ToolDefinitionChanged,
)
from agentloop.events.bus import JoinedBus
from agentloop.interception import CancellationToken, at
from agentloop.interception.stack import InterceptorStack
from agentloop.loop.binding import bind_executor
from agentloop.policies import Deadline, Resilience, TimeLimit
from agentloop.testing import ExecutorBench, Ledger, LoopClock, run_in_virtual_time, toy_call, toy_tools
from agentloop.testing.executor_bench import started_state
from agentloop.tools.decorator import collect_tools
from agentloop.tools.results import ReadResult
from agentloop.values import (
    Bounds,
    Effect,
    ErrorInfo,
    Event,
    ExecutionStatus,
    Image,
    JsonObject,
    StopReason,
    Text,
    ToolCalls,
    ToolExecutions,
    ToolStatus,
    answer,
    approve,
    deny,
    edit,
)
from agentloop.values.interruptions import BatchFailed, BatchInterrupted, interrupted_state
from agentloop.values.points import AfterToolUse, AroundToolUse, BeforeToolUse, ProceedToolUse
from agentloop.values.stop import InterceptorTimedOut
from agentloop.values.tool_calls import ToolExecution, ToolSpec
from tests.limits import LONGEST, jump

USER: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


@tool(effect="pure")
def thread_name() -> str:
    """Return the name of the thread."""
    return threading.current_thread().name


@tool(effect="pure")
def current_user() -> str:
    """Return the value of a context variable."""
    return USER.get()


@tool(timeout=900)
def stuck() -> str:
    """Wait until the test releases it."""
    STARTED.set()
    RELEASE.wait(LONGEST)
    return "late"


STARTED, RELEASE = threading.Event(), threading.Event()


@tool
async def sleepy(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "awake"


@tool
async def exits() -> str:
    """Exit the program."""
    raise SystemExit(3)


@tool(max_result_bytes=20)
async def long_text() -> str:
    """Return more than its limit."""
    return "ä" * 50


@tool
async def big_table() -> list[dict[str, int]]:
    """Return a large table."""
    return [{"number": number} for number in range(50_000)]


@tool
async def picture() -> Image:
    """Return a picture."""
    return Image(data=b"png", media_type="image/png")


@tool
async def show_context(word: str, context: ToolContext, state: AgentState, tool_call: ToolCall) -> list[str]:
    """Return what was injected."""
    return [word, context.idempotency_key, state.agent_id, tool_call.name, str(context.dependencies)]


@tool
async def report(context: ToolContext) -> str:
    """Report progress from a coroutine."""
    context.progress("half")
    context.progress({"done": 1.0})
    return "ok"


@tool
def report_in_thread(context: ToolContext) -> str:
    """Report progress from a thread."""
    context.progress(0.5)
    return "ok"


def statuses(executions: Any) -> list[str]:
    return [execution.status.value for execution in executions]


def test_outcomes_are_in_call_order_whichever_call_ends_first() -> None:
    """The outcome of the first call comes first, although the last call ends first."""
    bench = ExecutorBench(toy_tools(Ledger()))
    done = run_in_virtual_time(
        bench.run(toy_call("echo", 1, seconds=3), toy_call("echo", 2, seconds=1), toy_call("echo", 3))
    )
    assert [execution.value for execution in done] == [1, 2, 3]
    settled = [event.execution.value for event in bench.events if isinstance(event, ToolCallSettled)]
    assert settled == [1, 2, 3]


def test_calls_of_a_batch_run_concurrently() -> None:
    """Three calls of three seconds take three seconds."""

    async def seconds() -> float:
        before = asyncio.get_running_loop().time()
        await ExecutorBench(toy_tools(Ledger())).run(*[toy_call("echo", n, seconds=3) for n in range(3)])
        return asyncio.get_running_loop().time() - before

    assert run_in_virtual_time(seconds()) == pytest.approx(3)


@pytest.mark.parametrize(("max_concurrency", "expected"), [(1, 6), (2, 4), (None, 2)])
def test_max_concurrency_limits_the_calls_that_run_at_once(max_concurrency: int | None, expected: float) -> None:
    """Three calls of two seconds take the longer, the fewer of them may run at once."""

    async def seconds() -> float:
        before = asyncio.get_running_loop().time()
        bench = ExecutorBench(toy_tools(Ledger()), ToolExecutor(max_concurrency=max_concurrency))
        await bench.run(*[toy_call("echo", n, seconds=2) for n in range(3)])
        return asyncio.get_running_loop().time() - before

    assert run_in_virtual_time(seconds()) == pytest.approx(expected)


def test_a_sequential_tool_runs_alone() -> None:
    """A sequential call starts after all calls before it have ended, and ends before the calls after it start."""
    bench = ExecutorBench(toy_tools(Ledger()))
    run_in_virtual_time(
        bench.run(toy_call("echo", 1, seconds=2), toy_call("alone", 2, seconds=2), toy_call("echo", 3, seconds=2))
    )
    order = [(type(e).__name__, e.key[-1]) for e in bench.events if isinstance(e, ToolCallStarted | ToolCallSettled)]
    assert order == [
        ("ToolCallStarted", "0"),
        ("ToolCallCompleted", "0"),
        ("ToolCallStarted", "1"),
        ("ToolCallCompleted", "1"),
        ("ToolCallStarted", "2"),
        ("ToolCallCompleted", "2"),
    ]


def test_calls_with_the_same_ordering_key_run_one_after_the_other() -> None:
    """Calls with equal keys never overlap; calls with different keys do."""
    bench = ExecutorBench(toy_tools(Ledger()))
    run_in_virtual_time(
        bench.run(
            toy_call("keyed", 1, seconds=2, key="a"),
            toy_call("keyed", 2, seconds=2, key="b"),
            toy_call("keyed", 3, key="a"),
        )
    )
    order = [(type(e).__name__, e.key[-1]) for e in bench.events if isinstance(e, ToolCallStarted | ToolCallSettled)]
    assert order.index(("ToolCallStarted", "1")) < order.index(("ToolCallCompleted", "0"))
    assert order.index(("ToolCallStarted", "2")) > order.index(("ToolCallCompleted", "0"))


@pytest.mark.parametrize(
    ("tool_call", "error", "message"),
    [
        (toy_call("ekko", 1), "UnknownTool", "did you mean 'echo'?"),
        (toy_call("nothing like it", 1), "UnknownTool", "the tools are echo, plain"),
        (ToolCall("", "echo", '{"value": 1'), "MalformedArguments", "cut off"),
        (ToolCall("", "echo", '{"value": "x'), "MalformedArguments", "cut off"),
        (ToolCall("", "echo", "value=1"), "MalformedArguments", "not valid JSON"),
        (ToolCall("", "echo", "[1]"), "MalformedArguments", "a JSON array, not an object"),
        (ToolCall("", "echo", '{"value": NaN}'), "MalformedArguments", "NaN is not JSON"),
        (toy_call("echo", "one"), "InvalidArguments", "at $.value: 'one' is not of type 'integer'"),
        (toy_call("echo", -1), "InvalidArguments", "at $.value: -1 is less than the minimum of 0"),
        (toy_call("echo", 1, surplus=1), "InvalidArguments", "'surplus' was unexpected"),
        (ToolCall("", "echo", ""), "InvalidArguments", "'value' is a required property"),
    ],
)
def test_an_invalid_call_is_rejected_with_the_reason(tool_call: ToolCall, error: str, message: str) -> None:
    """An invalid call does not run and emits no start event; its error tells the model how to correct it."""
    ledger = Ledger()
    bench = ExecutorBench(toy_tools(ledger))
    (outcome,) = run_in_virtual_time(bench.run(tool_call)).executions
    assert outcome.status is ToolStatus.REJECTED
    assert outcome.error is not None
    assert outcome.error.type == error
    assert message in outcome.error.message
    assert not ledger.calls
    assert bench.event_names() == ["ToolCallRejected"]


def test_an_argument_for_an_injected_parameter_is_rejected() -> None:
    """A model cannot replace what the program injects, even if the schema allows additional properties."""
    loose = tool(schema={"type": "object", "properties": {"word": {"type": "string"}}})(show_context.function)
    for candidate in (show_context, loose):
        arguments = ToolCall("", candidate.name, '{"word": "x", "state": {"agent_id": "forged"}}')
        (outcome,) = run_in_virtual_time(ExecutorBench([candidate]).run(arguments)).executions
        assert outcome.status is ToolStatus.REJECTED
        assert "state" in outcome.error_message


def test_state_call_and_context_are_injected() -> None:
    """A tool receives the state, its call and its context as the annotations of its parameters request."""
    bench = ExecutorBench([show_context], dependencies="the database")
    (outcome,) = run_in_virtual_time(bench.run(ToolCall("c", "show_context", '{"word": "hi"}'))).executions
    assert outcome.value == ("hi", "run/1/0", "agent", "show_context", "the database")


class Reader(Tool, CanAccessAgentState, CanAccessToolCall):
    """A class tool that reads the state and its call."""

    name = "reader"
    description = "Read."
    parameters: Mapping[str, Any] = {"type": "object"}  # as a user writes it

    def __init__(self, seen: str = "") -> None:
        self.seen = seen

    def with_agent_state(self, state: AgentState) -> Self:
        return type(self)(self.seen + state.agent_id)

    def with_tool_call(self, call: ToolCall) -> Self:
        return type(self)(self.seen + call.id)

    async def use(self, *_: Any, **__: Any) -> str:
        return self.seen


def test_a_class_tool_receives_state_and_call_through_its_contracts() -> None:
    """A class tool is bound by copying; the registered tool does not change."""
    reader = Reader()
    (outcome,) = run_in_virtual_time(ExecutorBench([reader]).run(ToolCall("id7", "reader"))).executions
    assert outcome.value == "agentid7"
    assert reader.seen == ""


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("fail", "RuntimeError", "the toy fails on 1"),
        ("broken", "ToolFailed", "the result of the toy cannot be used for 1"),
        ("exits", "SystemExit", "3"),
    ],
)
def test_a_tool_that_raises_or_returns_an_invalid_result_fails_alone(name: str, error: str, message: str) -> None:
    """The call fails with the tool's own error, and its siblings succeed."""
    tool_call = toy_call(name, 1) if name != "exits" else ToolCall("", name)
    done = run_in_virtual_time(
        ExecutorBench([*toy_tools(Ledger()), exits]).run(toy_call("echo", 1), tool_call, toy_call("echo", 2))
    )
    assert statuses(done) == ["succeeded", "failed", "succeeded"]
    failed = done.executions[1]
    assert failed.error is not None
    assert failed.error.type == error
    assert message in failed.error.message


def test_a_timeout_ends_a_coroutine_which_may_have_had_an_effect() -> None:
    """A call that exceeds its timeout ends as timed out, and its siblings continue."""
    bench = ExecutorBench(toy_tools(Ledger()), ToolExecutor(default_timeout=5))
    done = run_in_virtual_time(
        bench.run(toy_call("hasty", 1, seconds=3), toy_call("echo", 2, seconds=3), toy_call("echo", 3, seconds=7))
    )
    assert statuses(done) == ["timed_out", "succeeded", "timed_out"]
    assert done.executions[0].may_have_run
    assert "within 1 seconds" in done.executions[0].error_message


def test_a_coroutine_that_ignores_its_cancellation_is_abandoned() -> None:
    """A tool that swallows its cancellation does not delay the batch, and an event reports it."""

    @tool(timeout=1.0)
    async def stubborn() -> str:
        """Ignore cancellations."""
        for _ in range(5):
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                continue
        return "done"

    bench = ExecutorBench([stubborn])

    async def seconds() -> tuple[float, list[str]]:
        before = asyncio.get_running_loop().time()
        done = await bench.run(ToolCall("", "stubborn"))
        return asyncio.get_running_loop().time() - before, statuses(done)

    spent, outcome = run_in_virtual_time(seconds())
    assert outcome == ["timed_out"]
    assert spent <= 3
    assert any(isinstance(event, ToolCallAbandoned) for event in bench.events)


async def test_plain_functions_run_in_the_threads_of_a_pool() -> None:
    """A plain function runs outside the event loop's thread, and sees the context variables of its caller."""
    USER.set("ada")
    done = await ExecutorBench([thread_name, current_user]).run(
        ToolCall("", "thread_name"), ToolCall("", "current_user")
    )
    assert done.executions[0].value == "agentloop-tool"
    assert done.executions[1].value == "ada"
    assert not [thread for thread in threading.enumerate() if thread.name == "agentloop-tool"]


@tool(effect="pure", inline=True)
def inline_place(user: str) -> list[str]:
    """Return the name of the thread and the value of a context variable, and set the variable."""
    before = USER.get()
    USER.set(user)
    return [threading.current_thread().name, before]


@tool(effect="pure", inline=True)
def inline_exit() -> str:
    """Exit the program."""
    raise SystemExit(3)


def test_inline_functions_run_in_the_event_loop() -> None:
    """They run one after the other in its thread, alone or beside others; what they set does not reach it, nor does an exit."""
    bench = ExecutorBench([inline_place, inline_exit, thread_name, sleepy])
    here = threading.current_thread().name
    one = [ToolCall("", "inline_place", '{"user": "ada"}')]
    several = [*one, ToolCall("", "inline_exit"), *one]
    for calls in (one, several, [*several, ToolCall("", "thread_name"), ToolCall("", "sleepy", '{"seconds": 0}')]):
        executions = asyncio.run(bench.run(*calls)).executions
        places = [execution for execution in executions if execution.name == "inline_place"]
        assert [execution.value for execution in places] == [(here, "nobody")] * len(places)
        assert all(execution.succeeded is (execution.name != "inline_exit") for execution in executions)


def test_no_inline_function_runs_after_one_during_which_the_execution_is_cancelled() -> None:
    """The outcome of that one counts; nothing awaits between them, so that the others could not be stopped later."""
    ran: list[int] = []

    @tool(effect="pure", inline=True)
    def count(number: int) -> int:
        """Count, and cancel the execution at 2."""
        ran.append(number)
        if number == 2:
            running[0].cancel()
        return number

    running: list[asyncio.Task[ToolExecutions]] = []

    async def run() -> Sequence[ToolExecution]:
        calls = [ToolCall("", "count", f'{{"number": {number}}}') for number in range(1, 5)]
        running.append(asyncio.create_task(ExecutorBench([count]).run(*calls)))
        with pytest.raises(asyncio.CancelledError) as caught:
            await running[0]
        carrier = BatchInterrupted.find_in(caught.value)
        assert carrier is not None
        return carrier.executions.executions

    executions = run_in_virtual_time(run())
    assert statuses(executions) == ["succeeded", "succeeded", "cancelled", "cancelled"]
    assert ran == [1, 2]


async def test_other_tasks_run_between_steps_of_inline_functions() -> None:
    """A loop yields to other tasks after a step whose calls never wait for anything."""
    order: list[str] = []

    @tool(effect="pure", inline=True)
    def look() -> str:
        """Look, and let another task run as soon as it can."""
        asyncio.get_running_loop().call_soon(order.append, "another task")
        order.append("look")
        return "seen"

    model = ScriptedInference(*[[ToolCall("", "look")]] * 2, "done")
    await AgentLoop.for_model(model, tools=[look]).execute("go")
    assert order == ["look", "another task"] * 2


async def test_a_single_function_in_a_thread_is_left_behind_when_its_execution_is_cancelled() -> None:
    """It has no task of its own; its call is settled as cancelled, and its end is reported when it comes."""
    STARTED.clear()
    RELEASE.clear()
    bench = ExecutorBench([stuck])
    running = asyncio.create_task(bench.run(ToolCall("", "stuck")))
    await asyncio.to_thread(STARTED.wait, LONGEST)
    running.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await running
    batch = caught.value.__cause__
    assert isinstance(batch, BatchInterrupted)
    (execution,) = batch.executions
    assert (execution.status, execution.may_have_run) == (ToolStatus.CANCELLED, True)
    RELEASE.set()


async def test_a_plain_function_that_times_out_continues_in_its_thread() -> None:
    """A thread cannot be interrupted: the call ends as timed out, and an event reports that the function still runs."""
    STARTED.clear()
    RELEASE.clear()
    bench = ExecutorBench([stuck, thread_name])
    running = asyncio.create_task(bench.run(ToolCall("", "stuck"), ToolCall("", "thread_name")))
    assert await asyncio.to_thread(STARTED.wait, LONGEST)
    jump(900)
    done = await running
    assert statuses(done) == ["timed_out", "succeeded"]
    assert done.executions[0].may_have_run
    assert any(isinstance(event, ToolCallAbandoned) for event in bench.events)
    RELEASE.set()
    for thread in [thread for thread in threading.enumerate() if thread.name == "agentloop-tool"]:
        thread.join(LONGEST)
    await asyncio.sleep(0)  # what the threads have left for the event loop
    assert [event.error for event in bench.events if isinstance(event, AbandonedToolCallEnded)] == [None]
    assert done.executions[0].value is None


async def test_a_function_that_continues_is_reported_once_however_slow_the_listeners_are() -> None:
    """One event says that it continues, and one that it has ended, when it has."""
    STARTED.clear()
    RELEASE.clear()
    names, ended = list[str](), asyncio.Event()
    loop = AgentLoop.for_model(ScriptedInference([ToolCall("1", "stuck")], "done"), tools=[stuck])

    async def listen(event: ToolCallAbandoned | AbandonedToolCallEnded) -> None:
        names.append(type(event).__name__)
        if isinstance(event, AbandonedToolCallEnded):
            ended.set()
        jump(100)
        await asyncio.sleep(0.1)

    loop.on(ToolCallAbandoned, listen)
    loop.on(AbandonedToolCallEnded, listen)
    running = asyncio.create_task(loop.execute("go"))
    assert await asyncio.to_thread(STARTED.wait, LONGEST)
    jump(900)
    state = await running
    assert statuses(state.steps[0].executions) == ["timed_out"]
    assert names == ["ToolCallAbandoned"]
    RELEASE.set()
    await ended.wait()
    assert names == ["ToolCallAbandoned", "AbandonedToolCallEnded"]


async def test_progress_is_emitted_between_start_and_end() -> None:
    """Each progress report of a tool is an event before that of the outcome, also from a thread."""
    bench = ExecutorBench([report, report_in_thread])
    await bench.run(ToolCall("", "report"))
    await bench.run(ToolCall("", "report_in_thread"))
    updates = [event.update for event in bench.events if isinstance(event, ToolCallProgressed)]
    assert updates == ["half", {"done": 1.0}, 0.5]
    assert bench.event_names()[:4] == [
        "ToolCallStarted",
        "ToolCallProgressed",
        "ToolCallProgressed",
        "ToolCallCompleted",
    ]


def test_a_long_result_is_truncated_for_the_model_and_kept_whole() -> None:
    """The model receives as many bytes as the limit allows, with a notice; the value of the execution is whole."""
    done = run_in_virtual_time(
        ExecutorBench([long_text, big_table]).run(ToolCall("", "long_text"), ToolCall("", "big_table"))
    )
    text, table = done.executions
    assert text.value == "ä" * 50
    assert text.text == f"{'ä' * 7}\n[cut here: 20 of 100 bytes are shown]\n{'ä' * 3}"
    assert isinstance(table.value, tuple)
    assert len(table.value) == 50_000
    assert len(table.text) < 101_000


def test_an_image_is_sent_to_the_model_as_content() -> None:
    """A tool may return parts: they are the content for the model, and the value describes them."""
    (outcome,) = run_in_virtual_time(ExecutorBench([picture]).run(ToolCall("", "picture"))).executions
    assert outcome.content == (Image(data=b"png", media_type="image/png"),)
    assert outcome.value == ({"type": "image", "media_type": "image/png", "bytes": 3},)


def test_a_tool_that_stops_the_execution_leaves_its_siblings_settled() -> None:
    """An `AgentStop` of a tool becomes a stop signal with the tool as its source; the other calls are settled."""
    done = run_in_virtual_time(
        ExecutorBench(toy_tools(Ledger())).run(toy_call("echo", 1), toy_call("stop", 2), toy_call("echo", 3))
    )
    assert statuses(done) == ["succeeded", "cancelled", "succeeded"]
    signal = done.state.stop_signal
    assert signal is not None
    assert (signal.reason, signal.source, signal.message) == (StopReason.STOP_REQUESTED, "stop", "the toy stops at 2")


def test_raising_on_failure_settles_the_whole_batch_first() -> None:
    """The error carries the outcomes of all calls, including those of the siblings."""
    bench = ExecutorBench(toy_tools(Ledger()), ToolExecutor(raise_on_tool_failure=True))
    with pytest.raises(BatchInterrupted, match="the tool 'fail' failed: the toy fails on 1") as caught:
        run_in_virtual_time(bench.run(toy_call("fail", 1), toy_call("echo", 2, seconds=2)))
    assert isinstance(caught.value.cause, BatchFailed)
    failed = caught.value.cause.execution
    assert (failed.name, failed.arguments) == ("fail", {"value": 1})
    assert statuses(caught.value.executions) == ["failed", "succeeded"]


class Blocking(Interceptor):
    """Blocks calls by their value."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.block("not two") if point.arguments["value"] == 2 else point


def test_a_blocked_call_is_reported_and_its_siblings_run() -> None:
    """A blocked call has an outcome with the reason and a `ToolCallBlocked` event; no start event is emitted."""
    bench = ExecutorBench(toy_tools(Ledger()), interceptors=[Blocking()])
    done = run_in_virtual_time(bench.run(toy_call("echo", 1), toy_call("echo", 2), toy_call("echo", 3)))
    assert statuses(done) == ["succeeded", "blocked", "succeeded"]
    assert done.executions[1].error_message == "not two"
    assert bench.event_names().count("ToolCallBlocked") == 1
    assert bench.event_names().count("ToolCallStarted") == 2


def test_stopping_on_a_block_cancels_the_calls_after_it() -> None:
    """Calls admitted before the block run; the calls after it are cancelled without running."""
    ledger = Ledger()
    bench = ExecutorBench(toy_tools(ledger), ToolExecutor(stop_on_tool_block=True), interceptors=[Blocking()])
    done = run_in_virtual_time(bench.run(toy_call("echo", 1), toy_call("echo", 2), toy_call("echo", 3)))
    assert statuses(done) == ["succeeded", "blocked", "cancelled"]
    assert [arguments["value"] for _, arguments in ledger.calls] == [1]


class Changing(Interceptor):
    """Changes calls and outcomes, and counts them in the state."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        seen = point.state.context.metadata.get("before", 0)
        value = point.arguments["value"]
        changed = point.with_state(point.state.with_metadata(before=seen + 1))
        return changed.with_arguments({"value": value * 10}) if value < 3 else changed.with_arguments({"value": "bad"})

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        seen = point.state.context.metadata.get("after", 0)
        changed = point.with_state(point.state.with_metadata(after=seen + 1))
        return changed.with_value([point.execution.value]) if point.execution.succeeded else changed


def test_interceptors_change_calls_outcomes_and_the_state() -> None:
    """A changed call is validated again, a changed outcome is final, and the changed state is returned with the batch."""
    bench = ExecutorBench(toy_tools(Ledger()), interceptors=[Changing()])
    done = run_in_virtual_time(bench.run(toy_call("echo", 1), toy_call("echo", 2), toy_call("echo", 3)))
    assert [execution.value for execution in done] == [(10,), (20,), None]
    assert statuses(done) == ["succeeded", "succeeded", "rejected"]
    assert done.state.context.metadata == {"before": 3, "after": 3}
    emitted = [event.execution for event in bench.events if isinstance(event, ToolCallSettled)]
    assert emitted == list(done.executions)


class Around(Interceptor):
    """Answers one call itself, and repeats calls that fail."""

    repeats_effects = True

    def __init__(self) -> None:
        self.statuses: list[str] = []

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        if point.arguments["value"] == 1:
            return point.succeed("from the cache")
        first = await proceed()
        self.statuses.append(first.status.value)
        return await proceed() if first.has_error else first


def test_an_interceptor_may_repeat_or_replace_a_call() -> None:
    """Each attempt receives new arguments; a replaced call does not run."""
    ledger, around = Ledger(), Around()
    done = run_in_virtual_time(
        ExecutorBench(toy_tools(ledger), interceptors=[around]).run(
            toy_call("echo", 1), toy_call("fail", 2), toy_call("echo", 3)
        )
    )
    assert [execution.value for execution in done] == ["from the cache", None, 3]
    assert around.statuses == ["failed", "succeeded"]
    assert [name for name, _ in ledger.calls] == ["fail", "fail", "echo"]


class Raising(Interceptor):
    """Raises at one point for one value."""

    def __init__(self, point: str) -> None:
        self.point = point

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        self._raise("before", point.arguments)
        return point

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        self._raise("around", point.arguments)
        return await proceed()

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        self._raise("after", point.execution.arguments)
        return point

    def _raise(self, point: str, arguments: JsonObject) -> None:
        if self.point == point and arguments.get("value") == 2:
            raise ValueError("broken interceptor")


@pytest.mark.parametrize(
    ("point", "expected", "values"),
    [
        ("before", ["succeeded", "failed", "cancelled"], [1]),
        ("around", ["succeeded", "failed", "succeeded"], [1, 3]),
        ("after", ["succeeded", "failed", "succeeded"], [1, 2, 3]),
    ],
)
def test_an_interceptor_that_raises_fails_closed(point: str, expected: list[str], values: list[int]) -> None:
    """The guarded call is no success, every call has an outcome, and the error names the interceptor."""
    ledger = Ledger()
    with pytest.raises(BatchInterrupted, match=f"the interceptor Raising failed at {point}_tool_use") as caught:
        run_in_virtual_time(
            ExecutorBench(toy_tools(ledger), interceptors=[Raising(point)]).run(
                *[toy_call("echo", n) for n in (1, 2, 3)]
            )
        )
    assert isinstance(caught.value.cause, InterceptorFailed)
    outcome = caught.value.executions
    assert statuses(outcome) == expected
    assert [arguments["value"] for _, arguments in ledger.calls] == values
    assert outcome.executions[1].value is None


@pytest.mark.parametrize(
    ("error", "status", "value"),
    [
        (ValueError("broken"), "failed", None),
        (AgentStop("enough"), "succeeded", 2),
        (InterceptorTimedOut("no time left"), "failed", None),
        (None, "failed", None),
    ],
)
@pytest.mark.parametrize("repeats", [1, 2])
def test_interceptors_outside_of_one_that_fails_see_how_the_call_ends(
    error: Exception | None, status: str, value: object, repeats: int
) -> None:
    """They get the outcome that goes into the state and the event, and may change its error or value and the state."""
    seen: list[ToolExecution] = []

    class Failing(Interceptor):
        def after_tool_use(self, point: AfterToolUse) -> Any:
            if error is not None and point.execution.arguments["value"] == 2:
                raise error
            return None if point.execution.arguments["value"] == 2 else point

    class Marking(Interceptor):
        priority = 5

        def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            point = point.with_state(point.state.with_metadata(marked=point.execution.key))
            return point.with_error("masked") if point.execution.has_error else point

    class Watching(Interceptor):
        priority = 10

        def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            seen.append(point.execution)
            return point

    ledger = Ledger()
    bench = ExecutorBench(toy_tools(ledger), interceptors=[*[Failing() for _ in range(repeats)], Marking(), Watching()])
    try:
        done = run_in_virtual_time(bench.run(toy_call("echo", 1), toy_call("echo", 2)))
    except BatchInterrupted as interrupted:
        assert not isinstance(error, AgentStop)
        done = interrupted.executions
    first, second = done.executions
    assert (first.value, second.status.value, second.value) == (1, status, value)
    assert (second.may_have_run, second.error_message) == ((True, "masked") if status == "failed" else (False, ""))
    settled = [event.execution for event in bench.events if isinstance(event, ToolCallCompleted)]
    assert seen == settled == [first, second]
    assert done.state.context.metadata == {"marked": second.key}
    execution = done.state.execution
    assert execution is not None
    stops = [signal.message for signal in execution.continuation.signals]
    assert stops == ([str(error)] * repeats if isinstance(error, AgentStop) else [])


@pytest.mark.parametrize("error", [ValueError("broken"), InterceptorTimedOut("no time left")])
def test_an_error_that_an_interceptor_failed_to_mask_is_dropped(error: Exception) -> None:
    """The failure of the interceptor takes the place of what the tool raised."""

    @tool
    async def leak() -> None:
        """Fail."""
        raise RuntimeError("the password is 1234")

    def fail(_: AfterToolUse) -> AfterToolUse:
        raise error

    bench = ExecutorBench([leak], interceptors=[at("after_tool_use", fail)])
    try:
        (outcome,) = run_in_virtual_time(bench.run(ToolCall("", "leak")))
    except BatchInterrupted as interrupted:
        (outcome,) = interrupted.executions
    assert (outcome.status, outcome.may_have_run) == (ToolStatus.FAILED, True)
    assert "1234" not in outcome.error_message
    assert str(error) in outcome.error_message


def test_a_value_of_an_interceptor_between_two_that_fail_is_dropped() -> None:
    """The second one that fails may have been about to mask the new value."""

    def fail(_: AfterToolUse) -> AfterToolUse:
        raise ValueError("broken")

    layers = [
        at("after_tool_use", fail, priority=0),
        at("after_tool_use", lambda point: point.with_value("card 4111"), priority=5),
        at("after_tool_use", fail, priority=10),
    ]
    with pytest.raises(BatchInterrupted) as caught:
        run_in_virtual_time(ExecutorBench(toy_tools(Ledger()), interceptors=layers).run(toy_call("echo", 1)))
    (outcome,) = caught.value.executions
    assert (outcome.status, outcome.value) == (ToolStatus.FAILED, None)


@pytest.mark.parametrize(("point", "values"), [("before", []), ("around", []), ("after", [2])])
def test_no_call_that_waits_runs_once_an_interceptor_has_failed(point: str, values: list[int]) -> None:
    """Neither the next of calls that run one after the other, which waits already, nor those behind it."""
    ledger = Ledger()
    with pytest.raises(BatchInterrupted) as caught:
        run_in_virtual_time(
            ExecutorBench(toy_tools(ledger), interceptors=[Raising(point)]).run(
                *[toy_call("alone", n) for n in (2, 3, 4)]
            )
        )
    assert statuses(caught.value.executions) == ["failed", "cancelled", "cancelled"]
    assert [arguments["value"] for _, arguments in ledger.calls] == values


def test_a_call_with_another_ordering_key_does_not_make_its_old_key_wait() -> None:
    """What counts is the key with the arguments that an interceptor gave it."""

    class Move(Interceptor):
        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            moved = {"value": 1, "key": "b", "seconds": 2}
            return point.with_arguments(moved) if point.arguments["value"] == 1 else point

    bench = ExecutorBench(toy_tools(Ledger()), interceptors=[Move()])
    run_in_virtual_time(
        bench.run(toy_call("keyed", 1, key="a", seconds=2), toy_call("keyed", 2, key="a")),
    )
    assert bench.event_names()[:2] == ["ToolCallStarted", "ToolCallStarted"]


class Suspending(Interceptor):
    """Suspends the calls with the value 2."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.suspend("two needs a decision") if point.arguments["value"] == 2 else point


def test_a_suspended_call_is_pending_and_its_siblings_run() -> None:
    """A suspended call has no outcome; a sequential call after it is pending until it is settled."""
    ledger = Ledger()
    bench = ExecutorBench(toy_tools(ledger), interceptors=[Suspending()])
    done = run_in_virtual_time(
        bench.run(toy_call("echo", 1), toy_call("echo", 2), toy_call("alone", 3), toy_call("echo", 4))
    )
    assert [execution.value for execution in done] == [1, 4]
    assert [(pending.key, pending.reason, pending.waits_for) for pending in done.pending] == [
        ("run/1/1", "two needs a decision", ""),
        ("run/1/2", "runs after run/1/1", "run/1/1"),
    ]
    assert [arguments["value"] for _, arguments in ledger.calls] == [1, 4]


def test_a_call_that_becomes_an_ordered_one_does_not_overtake_a_pending_call() -> None:
    """What counts is the call that an interceptor made of it: it waits for the decision, and runs after it."""

    class Order(Interceptor):
        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            if point.arguments["value"] == 2 and point.decision is None:
                return point.suspend("two needs a decision")
            if point.call.name == "echo" and point.arguments["value"] == 3:
                return point.with_call(toy_call("keyed", 3, id=point.call.id, key="a"))
            return point

    ledger = Ledger()
    bench = ExecutorBench(toy_tools(ledger), interceptors=[Order()])
    done = run_in_virtual_time(bench.run(toy_call("keyed", 2, key="a"), toy_call("echo", 3), toy_call("echo", 4)))
    assert ledger.values == [4]
    assert [(pending.call.name, pending.waits_for) for pending in done.pending] == [("keyed", ""), ("keyed", "run/1/0")]
    keys = [pending.key for pending in done.pending]
    calls = [pending.call for pending in done.pending]
    done = run_in_virtual_time(bench.run(*calls, keys=keys, decisions={keys[0]: approve()}))
    assert statuses(done) == ["succeeded", "succeeded"]
    assert ledger.values == [4, 2, 3]


@pytest.mark.parametrize("between", [[], [toy_call("alone", 3)], [toy_call("echo", "invalid")]])
@pytest.mark.parametrize(
    ("last", "waits_for"),
    [
        (toy_call("alone", 4), "run/1/0"),
        (toy_call("keyed", 4, key="a"), "run/1/0"),
        (toy_call("keyed", 4), None),
        (toy_call("echo", 4), None),
    ],
)
def test_of_the_calls_after_a_pending_one_only_those_with_an_order_wait(
    last: ToolCall, waits_for: str | None, between: list[ToolCall]
) -> None:
    """They wait for the decision about the first one, also if a call between them waits already, or is rejected."""
    ledger = Ledger()
    bench = ExecutorBench(toy_tools(ledger), interceptors=[Suspending()])
    done = run_in_virtual_time(bench.run(toy_call("echo", 2), *between, last))
    waiting = {pending.key: pending.waits_for for pending in done.pending}
    assert waiting.get(f"run/1/{1 + len(between)}") == waits_for
    assert ledger.values == ([4] if waits_for is None else [])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_rejected_call_does_not_divide_a_batch(place: int) -> None:
    """The calls before and after it are admitted together, and it is settled in its place."""
    seen: list[tuple[str, str]] = []

    class Noting(Interceptor):
        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            seen.append(("before", point.key))
            return point

        def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            seen.append(("after", point.execution.key))
            return point

    calls = [toy_call("echo", 1), toy_call("echo", 2)]
    calls.insert(place, toy_call("echo", "invalid"))
    run_in_virtual_time(ExecutorBench(toy_tools(Ledger()), interceptors=[Noting()]).run(*calls))
    keys = [f"run/1/{number}" for number in range(3)]
    admitted = [("before", key) for number, key in enumerate(keys) if number != place]
    assert seen == [*admitted, *[("after", key) for key in keys]]


def test_calls_of_tools_with_the_same_constant_ordering_key_run_one_after_the_other() -> None:
    """A key that is a text is that of every call; those of a tool without a key run next to them."""
    running, most = list[str](), list[int]()

    def tool_with(name: str, key: str | None) -> Tool:
        async def use() -> None:
            """Take a second."""
            running.append(name)
            most.append(sum(each != "free" for each in running))
            await asyncio.sleep(1)
            running.remove(name)

        return tool(name=name, key=key)(use)

    tools = [tool_with("debit", "account"), tool_with("credit", "account"), tool_with("free", None)]
    names = ["debit", "free", "credit", "debit"]
    done = run_in_virtual_time(ExecutorBench(tools).run(*[ToolCall("", name) for name in names]))
    assert statuses(done) == ["succeeded"] * 4
    assert max(most) == 1


@pytest.mark.parametrize(
    ("decision", "status", "value"),
    [
        (approve(), "succeeded", 2),
        (deny("too risky"), "blocked", None),
        (answer("by hand"), "succeeded", "by hand"),
        (edit({"value": 5}), "succeeded", 5),
        (edit({"value": "five"}), "rejected", None),
    ],
)
def test_a_decision_settles_its_call(decision: Any, status: str, value: object) -> None:
    """Approved calls run, denied calls are blocked, answered calls are settled, edited calls are validated again."""
    bench = ExecutorBench(toy_tools(Ledger()), interceptors=[Suspending()])
    done = run_in_virtual_time(bench.run(toy_call("echo", 2), keys=["run/1/3"], decisions={"run/1/3": decision}))
    (outcome,) = done.executions
    assert (outcome.key, outcome.status.value, outcome.value) == ("run/1/3", status, value)
    assert {event.step_number for event in bench.events} == {1}


@pytest.mark.parametrize("after", [0.0, 0.5, 1.5, 2.5])
def test_cancelling_settles_every_call_and_carries_the_batch(after: float) -> None:
    """Whenever the task is cancelled, the carrier behind the cancellation holds an outcome for each call."""
    bench = ExecutorBench(toy_tools(Ledger()))

    async def cancel() -> BatchInterrupted | None:
        task = asyncio.ensure_future(
            bench.run(toy_call("echo", 1, seconds=1), toy_call("alone", 2, seconds=1), toy_call("echo", 3, seconds=1))
        )
        await asyncio.sleep(after)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        return BatchInterrupted.find_in(caught.value)

    carrier = run_in_virtual_time(cancel())
    assert carrier is not None
    outcome = carrier.executions
    finished = int(after)
    assert statuses(outcome) == ["succeeded"] * finished + ["cancelled"] * (3 - finished)
    assert not outcome.executions[-1].may_have_run or after > 2
    interrupted = outcome.executions[finished]
    assert interrupted.duration_ms == pytest.approx((after - finished) * 1000)


def test_an_invalid_schema_is_reported_before_any_tool_runs() -> None:
    """Binding a tool whose parameters are not a valid JSON Schema raises an error."""

    class Odd(Reader):
        name = "odd"
        parameters: Mapping[str, Any] = {"type": "objekt"}  # as a user writes it

    with pytest.raises(ToolDefinitionError, match="the parameter schema of the tool 'odd' is not a valid JSON Schema"):
        run_in_virtual_time(ExecutorBench([Odd()]).run(ToolCall("", "odd")))


def test_text_parts_of_a_tool_are_truncated() -> None:
    """The limit applies to each text part that a tool returns."""

    @tool(max_result_bytes=10)
    async def parts() -> list[Text]:
        """Return parts."""
        return [Text("x" * 30), Text("short")]

    (outcome,) = run_in_virtual_time(ExecutorBench([parts]).run(ToolCall("", "parts"))).executions
    assert outcome.content is not None
    assert [part.text.splitlines()[0] for part in outcome.content if isinstance(part, Text)] == ["x" * 7, "short"]


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.heavy)])
def test_thousands_of_calls_in_one_batch_are_all_settled(count: int) -> None:
    """A very large batch returns one outcome per call."""
    bench = ExecutorBench(toy_tools(Ledger()), bounds=Bounds(calls_per_answer=count))
    done = run_in_virtual_time(bench.run(*[toy_call("echo", n) for n in range(count)]))
    assert len(done) == count
    assert done.executions[-1].value == count - 1


def test_an_interceptor_may_stop_the_execution_before_a_call() -> None:
    """The call is blocked, and the stop signal is in the state."""

    class Stopping(Interceptor):
        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            raise AgentStop("enough", reason=StopReason.USER_REQUESTED)

    ledger = Ledger()
    done = run_in_virtual_time(ExecutorBench(toy_tools(ledger), interceptors=[Stopping()]).run(toy_call("echo", 1)))
    assert statuses(done) == ["blocked"]
    assert not ledger.calls
    assert done.state.stop_signal is not None
    assert done.state.stop_signal.source == "Stopping"


def test_no_call_of_an_answer_with_too_many_calls_runs() -> None:
    """Each call is rejected, in an event, too, with an error that names the bound; at the bound, all calls run."""
    ledger = Ledger()
    bench = ExecutorBench(toy_tools(ledger), bounds=Bounds(calls_per_answer=2))
    rejected = run_in_virtual_time(bench.run(*[toy_call("echo", n) for n in range(3)]))
    assert [execution.status for execution in rejected] == [ToolStatus.REJECTED] * 3
    assert ledger.calls == []
    assert all("Bounds.calls_per_answer" in execution.error_message for execution in rejected)
    assert [event.execution for event in bench.events if isinstance(event, ToolCallRejected)] == list(rejected)
    done = run_in_virtual_time(bench.run(*[toy_call("echo", n) for n in range(2)]))
    assert [execution.status for execution in done] == [ToolStatus.SUCCEEDED] * 2


def test_a_slow_call_is_reported_once_while_it_runs() -> None:
    """The event comes when the bound has passed, only for the slow call, and before its end."""
    bench = ExecutorBench(toy_tools(Ledger()), bounds=Bounds(slow_tool_seconds=60))
    run_in_virtual_time(bench.run(toy_call("echo", 1, seconds=200), toy_call("echo", 2, seconds=59)))
    (slow,) = [event for event in bench.events if isinstance(event, ToolCallSlow)]
    assert (slow.key, slow.seconds) == ("run/1/0", 60)
    started = next(event.time for event in bench.events if isinstance(event, ToolCallStarted))
    assert (slow.time - started).total_seconds() == 60


def test_a_failure_after_the_tool_has_begun_may_have_run() -> None:
    """An error of a tool does not exclude its effect, unless it is one that says so."""

    @tool
    async def pay(reason: str) -> str:
        """Pay."""
        raise ToolUnavailable("closed") if reason == "closed" else ConnectionError("lost")

    calls = [ToolCall("", "pay", f'{{"reason": "{reason}"}}') for reason in ("lost", "closed")]
    outcomes = run_in_virtual_time(ExecutorBench([pay]).run(*calls))
    assert [execution.may_have_run for execution in outcomes] == [True, False]


# --- what runs, and how often -----------------------------------------------------------------------------------------


class Repeating(Interceptor):
    """Runs each call three times."""

    repeats_effects = True

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        await proceed()
        await proceed()
        return await proceed()


def test_each_attempt_gets_arguments_that_no_other_has_changed() -> None:
    """A tool that changes what it is given sees the same in its next attempts, which are counted from 1."""
    seen: list[tuple[int, list[int]]] = []

    @tool
    async def collect(numbers: list[int], context: ToolContext) -> int:
        """Collect."""
        seen.append((context.attempt, list(numbers)))
        numbers.append(0)
        return len(numbers)

    bench = ExecutorBench([collect], interceptors=[Repeating()])
    run_in_virtual_time(bench.run(ToolCall("", "collect", '{"numbers": [7]}')))
    assert seen == [(1, [7]), (2, [7]), (3, [7])]


class Awaited(Tool):
    """A tool that is awaited."""

    name = "either"
    description = "Be one or the other."
    parameters: Mapping[str, Any] = {"type": "object"}  # as a user writes it

    async def use(self, *_: Any, **__: Any) -> str:
        return "awaited"


class Either(Awaited, CanUseInline, CanAccessToolCall):
    """A tool that runs inline, unless the call has an id."""

    def with_tool_call(self, call: ToolCall) -> Any:
        return Awaited() if call.id else self

    def use_inline(self, **_: Any) -> str:
        return "inline"


class Opposite(Awaited, CanAccessToolCall):
    """A tool that is awaited, unless the call has an id."""

    def with_tool_call(self, call: ToolCall) -> Any:
        return Either() if call.id else self


@pytest.mark.parametrize(
    ("offered", "values"), [(Either(), ["inline", "awaited"]), (Opposite(), ["awaited", "inline"])]
)
def test_a_tool_bound_to_its_call_runs_as_what_it_is_then(offered: Tool, values: list[str]) -> None:
    """Whether a function runs in the event loop is up to the copy that serves the call."""
    done = run_in_virtual_time(ExecutorBench([offered]).run(ToolCall("", "either"), ToolCall("7", "either")))
    assert [execution.value for execution in done] == values


def test_a_tool_cannot_cancel_the_batch_by_its_current_task() -> None:
    """A single call has a task of its own, so that what a tool does to it ends that call alone."""

    @tool
    async def cancel_me() -> str:
        """Cancel the current task."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)
        return "not cancelled"

    (outcome,) = run_in_virtual_time(ExecutorBench([cancel_me]).run(ToolCall("", "cancel_me")))
    assert outcome.status is ToolStatus.CANCELLED


def test_a_call_whose_task_is_cancelled_before_it_begins_is_settled() -> None:
    """Whoever cancels it, the batch goes on: the call ends as cancelled, and has not run."""
    ledger = Ledger()

    def cancel_calls(_: ToolCallRejected) -> None:
        for task in asyncio.all_tasks():
            if task.get_name().startswith("agentloop tool"):
                task.cancel()

    async def run() -> AgentState:
        calls = [toy_call("echo", "invalid"), toy_call("echo", 1), toy_call("echo", 2), toy_call("alone", 3)]
        loop = AgentLoop.for_model(ScriptedInference(calls, "done"), tools=toy_tools(ledger))
        loop.on(ToolCallRejected, cancel_calls)
        return await asyncio.wait_for(loop.execute("go"), LONGEST)

    state = run_in_virtual_time(run())
    executions = state.steps[0].executions
    assert statuses(executions) == ["rejected", "cancelled", "cancelled", "succeeded"]
    assert [execution.may_have_run for execution in executions] == [False] * 4
    assert (ledger.values, state.final_text) == ([3], "done")


async def test_a_function_in_a_thread_does_not_keep_the_calls_after_it_from_running() -> None:
    """It may wait for what a later call of the batch does, whether that is a coroutine or a function."""
    begun = threading.Event()

    @tool
    def wait() -> bool:
        """Wait for the other call."""
        return begun.wait(LONGEST)

    @tool
    async def begin() -> None:
        """Let the other call end."""
        begun.set()

    @tool
    def begin_in_thread() -> None:
        """Let the other call end."""
        begun.set()

    for other in (begin, begin_in_thread):
        begun.clear()
        done = await ExecutorBench([wait, other]).run(ToolCall("", "wait"), ToolCall("", other.name))
        assert done.executions[0].value is True


async def test_a_call_that_waits_for_a_thread_has_not_started() -> None:
    """With one thread, the start of the second call follows the end of the first one."""
    ended: list[int] = []

    @tool
    def count(number: int) -> int:
        """Count."""
        ended.append(number)
        return number

    seen: list[tuple[str, int]] = []

    class Watching(Interceptor):
        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            seen.append(("starts", len(ended)))
            return await proceed()

    bench = ExecutorBench([count], interceptors=[Watching()], bounds=Bounds(threads=1))
    await bench.run(*[ToolCall("", "count", f'{{"number": {number}}}') for number in range(3)])
    assert seen == [("starts", 0), ("starts", 1), ("starts", 2)]


def test_a_call_is_not_repeated_after_it_was_settled() -> None:
    """An interceptor that keeps `proceed` and awaits it too late gets an error, and nothing runs."""
    ledger, kept = Ledger(), list[ProceedToolUse]()

    class Keeping(Interceptor):
        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            kept.append(proceed)
            return point.succeed("kept")

    async def run() -> None:
        await ExecutorBench(toy_tools(ledger), interceptors=[Keeping()]).run(toy_call("echo", 1))
        with pytest.raises(ContractViolation, match="was awaited after the call was settled"):
            await kept[0]()

    run_in_virtual_time(run())
    assert ledger.calls == []


def test_an_attempt_that_has_ended_is_closed_before_the_next_one_begins() -> None:
    """A tool that runs on after its timeout sees that at once, and what it reports then is no progress of the call."""
    closed: list[tuple[int, float]] = []

    @tool(timeout=2, effect="idempotent")
    async def measure(context: ToolContext) -> str:
        """Report progress for ten seconds, and ignore the cancellation; the second attempt ends at once."""
        loop = asyncio.get_running_loop()
        attempt, end = context.attempt, loop.time() + (10 if context.attempt == 1 else 0)
        while loop.time() < end:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.5)
            context.progress(attempt)
            if context.is_closed:
                closed.append((attempt, loop.time()))
        context.progress(attempt)
        return "measured"

    class Repeating(Interceptor):
        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            await proceed()
            await asyncio.sleep(4)
            return await proceed()

    bench = ExecutorBench([measure], interceptors=[Repeating()])
    (outcome,) = run_in_virtual_time(bench.run(ToolCall("", "measure")))
    assert outcome.value == "measured"
    names = [name for name in bench.event_names() if name != "InterceptorRan"]
    updates = [event.update for event in bench.events if isinstance(event, ToolCallProgressed)]
    assert closed[0] == (1, 3.0)  # one second after the timeout, in which it might have ended
    assert updates == [1] * (names.index("ToolCallAbandoned") - 1) + [2]


def test_slow_calls_are_reported_each_in_its_time() -> None:
    """A call that begins later is reported later, although one before it has ended in time."""
    bench = ExecutorBench(toy_tools(Ledger()), ToolExecutor(max_concurrency=2), bounds=Bounds(slow_tool_seconds=60))
    run_in_virtual_time(
        bench.run(
            toy_call("echo", 1, seconds=40),
            toy_call("echo", 2, seconds=50),
            toy_call("echo", 3, seconds=100),
            toy_call("echo", 4, seconds=100),
        )
    )
    started = {event.key: event.time for event in bench.events if isinstance(event, ToolCallStarted)}
    slow = [event for event in bench.events if isinstance(event, ToolCallSlow)]
    assert [event.key for event in slow] == ["run/1/2", "run/1/3"]
    assert [(event.time - started[event.key]).total_seconds() for event in slow] == pytest.approx([60, 60])


# --- what an effect cannot be excluded for ----------------------------------------------------------------------------


def test_a_call_that_never_began_has_not_run() -> None:
    """A blocked, a rejected and a cancelled call have had no effect."""
    bench = ExecutorBench(toy_tools(Ledger()), ToolExecutor(stop_on_tool_block=True), interceptors=[Blocking()])
    done = run_in_virtual_time(bench.run(toy_call("echo", "one"), toy_call("echo", 2), toy_call("echo", 3)))
    assert statuses(done) == ["rejected", "blocked", "cancelled"]
    assert [execution.may_have_run for execution in done] == [False] * 3


@pytest.mark.parametrize(("effect", "may_have_run"), [(Effect.EFFECT, True), (Effect.PURE, False)])
def test_a_call_that_its_tool_suspended_may_have_run(effect: Effect, *, may_have_run: bool) -> None:
    """It began before it was suspended, so that a denial does not exclude an effect, unless the tool has none."""
    bench = ExecutorBench(toy_tools(Ledger(), effect))
    pending = run_in_virtual_time(bench.run(toy_call("defer", 1))).pending[0]
    assert (pending.begun, pending.suspension) == (True, 1)
    state = started_state("agent", "run")
    batch = ToolCalls((pending.call,), (pending.key,), {pending.key: deny("no")}, begun={pending.key: pending})
    (outcome,) = run_in_virtual_time(bench.run_batch(batch, state))
    assert (outcome.status, outcome.may_have_run) == (ToolStatus.BLOCKED, may_have_run)


def test_each_suspension_of_a_call_has_a_number_of_its_own() -> None:
    """A decision about an earlier suspension does not apply to a later one."""
    bench = ExecutorBench(toy_tools(Ledger()), interceptors=[Suspending()])
    state = started_state("agent", "run")
    for number in range(3):
        batch = ToolCalls((toy_call("echo", 2),), ("run/1/0",), suspensions={"run/1/0": number})
        (pending,) = run_in_virtual_time(bench.run_batch(batch, state)).pending
        assert pending.suspension == number + 1


# --- what is reported -------------------------------------------------------------------------------------------------


def test_an_abandoned_tool_that_ends_while_that_is_reported_stays_cancelled() -> None:
    """Its call has its outcome before listeners are awaited."""
    statuses_seen: list[ToolStatus] = []

    async def run() -> None:
        release = asyncio.Event()

        @tool
        async def wait() -> str:
            """Wait for the listener."""
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                await release.wait()
            return "late"

        async def let_it_end(_: ToolCallAbandoned) -> None:
            release.set()
            await asyncio.sleep(1)

        loop = AgentLoop.for_model(ScriptedInference([ToolCall("", "wait")]), tools=[wait])
        loop.on(ToolCallAbandoned, let_it_end)
        loop.on(ToolCallCompleted, lambda event: statuses_seen.append(event.execution.status))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.execute("go"), 1)

    run_in_virtual_time(run())
    assert statuses_seen == [ToolStatus.CANCELLED]


@pytest.mark.parametrize(("by", "status"), [("execution", "cancelled"), ("layer", "failed"), ("nobody", "timed_out")])
def test_a_cancellation_while_a_tool_ends_by_its_timeout_is_not_lost(by: str, status: str) -> None:
    """Neither that of the execution nor that of a layer around the call; the tool has its time to clean up."""
    cleaned: list[float] = []

    @tool(timeout=1)
    async def tidy() -> None:
        """Take half a second to clean up."""
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.5)
            cleaned.append(asyncio.get_running_loop().time())

    class Limiting(Interceptor):
        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            try:
                async with asyncio.timeout(1.25 if by == "layer" else None):
                    return await proceed()
            except TimeoutError:
                return point.fail("too slow for this layer")

    async def run() -> list[str]:
        bench = ExecutorBench([tidy], interceptors=[Limiting()])
        running = asyncio.create_task(bench.run(ToolCall("", "tidy")))
        if by == "execution":
            asyncio.get_running_loop().call_later(1.25, running.cancel)
        await asyncio.wait((running,))
        if not running.cancelled():
            return statuses(running.result())
        try:
            return statuses(running.result())
        except asyncio.CancelledError as cancelled:
            carrier = BatchInterrupted.find_in(cancelled)
            assert carrier is not None
            return statuses(carrier.executions)

    assert run_in_virtual_time(run()) == [status]
    assert cleaned == [1.5]


def test_what_a_tool_raises_at_its_timeout_is_no_unhandled_error(caplog: pytest.LogCaptureFixture) -> None:
    """The call has timed out, and the event loop does not complain that nobody looked at the error."""

    @tool(timeout=1)
    async def sore() -> None:
        """Raise when it is cancelled."""
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise OSError("cannot clean up") from None

    (outcome,) = run_in_virtual_time(ExecutorBench([sore]).run(ToolCall("", "sore")))
    assert outcome.status is ToolStatus.TIMED_OUT
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_each_entry_of_the_log_about_a_call_names_it_and_its_execution(caplog: pytest.LogCaptureFixture) -> None:
    """Whether its tool has failed, goes on, has timed out or has ended, handlers find the same fields."""

    @tool
    async def fail() -> None:
        """Fail."""
        raise OSError("down")

    @tool(timeout=1)
    async def stubborn() -> None:
        """Ignore the cancellation."""
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(100)

    async def run() -> None:
        await ExecutorBench([fail, stubborn]).run(ToolCall("", "fail"), ToolCall("", "stubborn"))
        await asyncio.sleep(200)

    with caplog.at_level("WARNING", "agentloop.tools"):
        run_in_virtual_time(run())
    fields = [
        (vars(record)["execution_id"], vars(record)["call_key"], vars(record)["tool"]) for record in caplog.records
    ]
    assert fields == [("run", "run/1/0", "fail"), *[("run", "run/1/1", "stubborn")] * 3]


@pytest.mark.parametrize("error", [None, OSError("too late"), SystemExit(3)])
def test_the_end_of_an_abandoned_coroutine_is_reported(
    error: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    """An event and the log say that it goes on, and later that it has ended, and with which error."""

    @tool(timeout=1.0)
    async def stubborn() -> str:
        """Ignore the cancellation."""
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(100)
        if error is not None:
            raise error
        return "late"

    bench = ExecutorBench([stubborn])

    async def run() -> None:
        await bench.run(ToolCall("", "stubborn"))
        await asyncio.sleep(200)

    with caplog.at_level("WARNING", "agentloop.tools"):
        run_in_virtual_time(run())
    assert bench.event_names() == [
        "ToolCallStarted",
        "ToolCallAbandoned",
        "ToolCallCompleted",
        "AbandonedToolCallEnded",
    ]
    (ended,) = [event for event in bench.events if isinstance(event, AbandonedToolCallEnded)]
    assert ended.error == (None if error is None else ErrorInfo(type(error).__name__, str(error)))
    goes_on, timed_out, has_ended = [record for record in caplog.records if record.name == "agentloop.tools"]
    assert timed_out.getMessage() == "the tool 'stubborn' timed out in call run/1/0: ToolTimedOut"
    assert goes_on.getMessage() == "the tool 'stubborn' continues although its call run/1/0 has ended"
    assert has_ended.getMessage() == "the abandoned call run/1/0 of 'stubborn' has ended"
    assert (has_ended.exc_info or (None, None, None))[1] is error


@pytest.mark.parametrize("around", [False, True])
def test_the_error_of_a_coroutine_that_a_cancelled_batch_has_left_behind_is_reported(*, around: bool) -> None:
    """It has ignored the cancellation for longer than the grace, and raises something after all."""

    @tool
    async def stubborn() -> None:
        """Ignore the cancellation."""
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(100)
        raise OSError("no such disk")

    async def pass_on(_: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        return await proceed()

    bench = ExecutorBench([stubborn], interceptors=[at("around_tool_use", pass_on)] if around else [])

    async def run() -> None:
        await cancelled(bench, ToolCall("", "stubborn"))
        await asyncio.sleep(200)

    run_in_virtual_time(run())
    (ended,) = [event for event in bench.events if isinstance(event, AbandonedToolCallEnded)]
    assert ended.error == ErrorInfo("OSError", "no such disk")


def test_the_end_of_a_coroutine_that_was_left_behind_is_reported_if_it_ends_by_its_cancellation() -> None:
    """It has ignored the cancellation of the batch for longer than the grace, and then follows it."""

    @tool
    async def hesitant() -> None:
        """Take long to clean up."""
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(100)

    bench = ExecutorBench([hesitant])

    async def run() -> None:
        await cancelled(bench, ToolCall("", "hesitant"))
        assert bench.event_names()[-1] == "ToolCallCompleted"
        await asyncio.sleep(200)

    run_in_virtual_time(run())
    (ended,) = [event for event in bench.events if isinstance(event, AbandonedToolCallEnded)]
    assert (ended.key, ended.error) == ("run/1/0", None)


class Picky(Tool, CanPrepareArguments):
    """A tool that refuses what it is called with before it runs."""

    name = "picky"
    description = "Refuse."
    parameters: Mapping[str, Any] = {"type": "object"}

    def __init__(self, error: Exception) -> None:
        self.error = error

    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        raise self.error

    async def use(self, *_: Any, **__: Any) -> None:
        raise AssertionError("it must not run")


@pytest.mark.parametrize(
    ("error", "status"),
    [(InvalidArguments("not so"), ToolStatus.REJECTED), (ZeroDivisionError("a defect"), ToolStatus.FAILED)],
)
def test_a_defect_of_what_prepares_arguments_is_logged_with_its_traceback_and_a_refusal_without(
    error: Exception, status: ToolStatus, caplog: pytest.LogCaptureFixture
) -> None:
    """Interceptors see what was raised, with its traceback; a refusal is a matter of the model, and its message may hold arguments."""
    seen: list[BaseException | None] = []

    def note(point: AfterToolUse) -> AfterToolUse:
        seen.append(point.exception)
        return point

    bench = ExecutorBench([Picky(error)], interceptors=[at("after_tool_use", note)])
    with caplog.at_level("WARNING", "agentloop.tools"):
        (execution,) = run_in_virtual_time(bench.run(ToolCall("", "picky")))
    is_defect = status is ToolStatus.FAILED
    assert (execution.status, execution.may_have_run) == (status, False)
    assert seen == [error if is_defect else None]
    logged = [(record.getMessage(), (record.exc_info or (None, None))[1]) for record in caplog.records]
    refused = "the call run/1/0 of the tool 'picky' was rejected: InvalidArguments", None
    assert logged == [("the tool 'picky' failed in call run/1/0", error) if is_defect else refused]


@tool(timeout=1.0)
async def tardy(secret: str, seconds: float = 0) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return secret


@pytest.mark.parametrize(
    ("call", "layers", "message"),
    [
        (ToolCall("1", "tardy", '{"secret": "s3"}'), [], None),
        (
            ToolCall("1", "tardy", '{"secret": "s3", "seconds": 5}'),
            [],
            "the tool 'tardy' timed out in call run/1/0: ToolTimedOut",
        ),
        (
            ToolCall("1", "tardy", '{"secret": "s3", "seconds": 0.9}'),
            [Resilience(deadline=Deadline(0.5))],
            "the tool 'tardy' timed out in call run/1/0: ToolTimedOut",
        ),
        (
            ToolCall("1", "tardy", '{"secret": "s3", "seconds": "s3"}'),
            [],
            "the call run/1/0 of the tool 'tardy' was rejected: InvalidArguments at '$.seconds'",
        ),
        (ToolCall("1", "tardy", '{"secret": "s3'), [], "the call run/1/0 of the tool 'tardy' was rejected: "),
        (
            ToolCall("1", "tardi", '{"secret": "s3"}'),
            [],
            "the call run/1/0 of the tool 'tardi' was rejected: UnknownTool",
        ),
    ],
)
def test_each_call_that_times_out_or_is_rejected_is_logged_as_an_error(
    call: ToolCall, layers: list[CanIntercept], message: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The record names the execution, the call and the kind of the error, and holds no argument."""
    bench = ExecutorBench([tardy], interceptors=layers)
    with caplog.at_level("INFO", "agentloop.tools"):
        run_in_virtual_time(bench.run(call))
    records = [record for record in caplog.records if record.name == "agentloop.tools"]
    assert [record.levelname for record in records] == ([] if message is None else ["ERROR"])
    assert all(record.getMessage().startswith(message or "") for record in records)
    fields = [{key: vars(record)[key] for key in ("execution_id", "call_key", "tool")} for record in records]
    assert fields == [{"execution_id": "run", "call_key": "run/1/0", "tool": call.name}] * len(records)
    assert not [record for record in records if "s3" in repr(vars(record))]


def test_a_call_keeps_its_step_and_its_place_whenever_it_is_settled() -> None:
    """Both are in its key, also when calls of an earlier step are settled that waited for decisions."""
    places: list[tuple[str, int]] = []

    class Placing(Interceptor):
        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            places.append((point.key, point.index))
            return point

    bench = ExecutorBench(toy_tools(Ledger()), interceptors=[Placing()])
    run_in_virtual_time(bench.run(toy_call("echo", 1), toy_call("echo", 2), keys=["run/4/3", "run/4/5"]))
    assert places == [("run/4/3", 3), ("run/4/5", 5)]
    assert {event.step_number for event in bench.events} == {4}


def test_what_interceptors_report_of_the_end_of_a_call_comes_right_before_its_event() -> None:
    """Reports come in call order, whichever call ends first."""
    bench = ExecutorBench(toy_tools(Ledger()))
    reported: list[tuple[str, int]] = []

    class Reporting(Interceptor):
        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            execution = await proceed()
            point.report_at_end(lambda: reported.append((point.key, bench.event_names().count("ToolCallCompleted"))))
            return execution

    bench = evolve(bench, interceptors=[Reporting()])
    run_in_virtual_time(bench.run(toy_call("echo", 1, seconds=2), toy_call("echo", 2, seconds=1), toy_call("echo", 3)))
    assert reported == [("run/1/0", 0), ("run/1/1", 1), ("run/1/2", 2)]


class Defect(Exception):
    """What a listener raises."""


@pytest.mark.parametrize(
    ("call", "end"), [(toy_call("echo", 1), "ToolCallCompleted"), (toy_call("defer", 1), "ToolCallSuspended")]
)
def test_what_interceptors_report_of_a_call_is_reported_whole_whatever_listeners_raise(
    call: ToolCall, end: str
) -> None:
    """Also if the call is suspended; the first error ends the batch, and the event of the call follows nevertheless."""
    bench, reported = ExecutorBench(toy_tools(Ledger())), list[tuple[str, bool]]()

    def report(text: str) -> None:
        reported.append((text, end in bench.event_names()))
        if text != "third":
            raise Defect(text)

    class Reporting(Interceptor):
        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            for text in ("first", "second", "third"):
                point.report_at_end(partial(report, text))
            return await proceed()

    with pytest.raises(BatchInterrupted) as caught:
        run_in_virtual_time(evolve(bench, interceptors=[Reporting()]).run(call))
    assert str(caught.value.cause) == "first"
    assert reported == [("first", False), ("second", False), ("third", False)]
    assert bench.event_names()[-1] == end


def test_a_decision_is_reported_before_its_call_runs() -> None:
    """The event names the call and the decision."""
    bench = ExecutorBench(toy_tools(Ledger()))
    run_in_virtual_time(bench.run(toy_call("echo", 2), keys=["run/1/3"], decisions={"run/1/3": approve("fine")}))
    assert bench.event_names() == ["ToolCallReviewed", "ToolCallStarted", "ToolCallCompleted"]
    (reviewed,) = [event for event in bench.events if isinstance(event, ToolCallReviewed)]
    assert (reviewed.key, reviewed.decision) == ("run/1/3", approve("fine"))


@pytest.mark.parametrize(("count", "more"), [(3, ""), (100, ""), (101, " and 1 more")])
def test_an_unknown_name_is_answered_with_at_most_a_hundred_names(count: int, more: str) -> None:
    """The message says how many more there are, if there are."""
    names = [f"tool{number}" for number in range(count)]
    tools = [tool(name=name)(sleepy.function) for name in names]
    (outcome,) = run_in_virtual_time(ExecutorBench(tools).run(ToolCall("", "quite different")))
    assert outcome.error_message.endswith(f"the tools are {', '.join(names[:100])}{more}")


@pytest.mark.parametrize("tools", [[], [sleepy]])
@pytest.mark.parametrize(("size", "shown"), [(200, "x" * 200), (201, "x" * 200 + "…")])
def test_an_unknown_name_is_shown_as_it_is_up_to_two_hundred_characters(
    size: int, shown: str, tools: list[Tool]
) -> None:
    """A longer one is cut, so that a model that repeats itself does not fill the conversation."""
    (outcome,) = run_in_virtual_time(ExecutorBench(tools).run(ToolCall("", "x" * size)))
    assert outcome.error_message.startswith(f"there is no tool {shown!r}")


@pytest.mark.parametrize("character", ["x", "ä"])
@pytest.mark.parametrize("size", [1_000_000, 2_500_001])
def test_the_notice_says_how_large_a_text_of_any_size_is(size: int, character: str) -> None:
    """The size is that in bytes, and the two ends are shown."""

    @tool(max_result_bytes=100)
    async def write() -> str:
        """Return a large text."""
        return character * size

    (outcome,) = run_in_virtual_time(ExecutorBench([write]).run(ToolCall("", "write")))
    bytes_in_all = size * len(character.encode())
    assert f"of {bytes_in_all:,} bytes are shown" in outcome.text


def test_a_cut_result_says_how_the_rest_is_read() -> None:
    """If there is a tool that reads results, the notice names it, and the line at which reading goes on."""

    @tool(max_result_bytes=60)
    async def lines() -> str:
        """Return lines."""
        return "".join(f"line {number:02}\n" for number in range(1, 21))

    @tool(max_result_bytes=1)
    async def umlauts() -> str:
        """Return a text whose first character does not fit."""
        return "ä" * 10

    done = run_in_virtual_time(
        ExecutorBench([lines, umlauts, ReadResult()]).run(ToolCall("", "lines"), ToolCall("", "umlauts"))
    )
    for execution, line in zip(done, (6, 1), strict=True):
        (notice,) = [text for text in execution.text.splitlines() if text.startswith("[cut here")]
        assert "read_result(" in notice
        assert f"from={line})" in notice


# --- interceptors that change, check and hang -------------------------------------------------------------------------


class Rewriting(Interceptor):
    """Replaces the value of a call."""

    def __init__(self, **values: int) -> None:
        self.old, self.new = values["old"], values["new"]

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.with_arguments({"value": self.new}) if point.arguments["value"] == self.old else point


class Checking(Interceptor):
    """Checks calls, and does to the value 1 what it is told."""

    checks_calls = True

    def __init__(self, act: Any) -> None:
        self.act = act

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return self.act(point) if point.arguments["value"] == 1 else point


@pytest.mark.parametrize(
    ("act", "status", "reason"),
    [
        (lambda point: point.block("not one"), "blocked", "not one"),
        (lambda point: point.with_arguments({"value": 7}), "blocked", "may block or suspend this call"),
        (lambda point: point.answer("made up"), "blocked", "may block or suspend this call"),
        (lambda point: point, "succeeded", ""),
    ],
)
@pytest.mark.parametrize("before", [[Rewriting(old=1, new=5)], []])
def test_a_changed_call_is_checked_as_it_will_run(
    act: Any, status: str, reason: str, before: list[Interceptor]
) -> None:
    """A layer that checks calls sees them after the layers inside of it have changed them, also back to what they were."""
    ledger, value = Ledger(), 1 if before else 5
    layers = [*before, Checking(act), Rewriting(old=5, new=1)]
    call = ToolCall("", "echo").with_arguments({"value": value})
    (outcome,) = run_in_virtual_time(ExecutorBench(toy_tools(ledger), interceptors=layers).run(call))
    assert outcome.status.value == status
    assert reason in outcome.error_message
    assert ledger.values == ([1] if status == "succeeded" else [])


class Foreign(Awaited, CanPinDefinition):
    """A tool whose server has changed it."""

    name = "foreign"
    spec = ToolSpec("foreign", "Changed.", {"type": "object"}, definition="new", pinned="old")

    def __init__(self) -> None:
        self.accepted = 0

    def accept_definition(self) -> None:
        self.accepted += 1


def test_an_approval_accepts_the_new_definition_of_a_tool() -> None:
    """Without it every call waits; with it the calls after it run as well, and the definition is pinned."""
    foreign = Foreign()
    bench, calls = ExecutorBench([foreign]), [ToolCall("", "foreign")] * 2
    assert len(run_in_virtual_time(bench.run(*calls)).pending) == 2
    assert foreign.accepted == 0
    keys = ["run/1/0", "run/1/1"]
    done = run_in_virtual_time(bench.run(*calls, keys=keys, decisions={keys[0]: approve()}))
    assert statuses(done) == ["succeeded", "succeeded"]
    assert foreign.accepted == 1


def test_a_call_that_becomes_one_of_a_changed_tool_waits_for_a_decision() -> None:
    """What counts is the call that an interceptor made of it: it does not run, whatever the call was before."""

    def redirect(point: BeforeToolUse) -> BeforeToolUse:
        return point.with_call(ToolCall(point.call.id, "foreign")) if point.call.name == "echo" else point

    bench = ExecutorBench([*toy_tools(Ledger()), Foreign()], interceptors=[at("before_tool_use", redirect)])
    done = run_in_virtual_time(bench.run(toy_call("echo", 1)))
    (pending,) = done.pending
    assert (pending.call.name, pending.waits_for, pending.definition) == ("foreign", "", "new")
    assert "the definition of its tool has changed" in pending.reason
    (changed,) = [event for event in bench.events if isinstance(event, ToolDefinitionChanged)]
    assert (changed.key, changed.name) == (pending.key, "foreign")
    assert "ToolCallStarted" not in bench.event_names()


@pytest.mark.parametrize("whose", ["its own task", "another task"])
def test_an_interceptor_that_awaits_something_cancelled_fails_at_the_outcome(whose: str) -> None:
    """The outcome that it had to see is dropped, and the batch ends with an error."""

    class Awaiting(Interceptor):
        async def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            task = asyncio.current_task() if whose == "its own task" else asyncio.ensure_future(asyncio.sleep(1))
            assert task is not None
            task.cancel()
            await (asyncio.sleep(1) if task is asyncio.current_task() else task)
            return point

    with pytest.raises(BatchInterrupted) as caught:
        run_in_virtual_time(ExecutorBench(toy_tools(Ledger()), interceptors=[Awaiting()]).run(toy_call("echo", 1)))
    (outcome,) = caught.value.executions
    assert (outcome.status, outcome.value, outcome.may_have_run) == (ToolStatus.FAILED, None, True)
    if whose == "its own task":
        assert "an interceptor of a tool call awaited something that was cancelled" in outcome.error_message


class Watchful(Interceptor):
    """Takes its time with each outcome, and for cleaning up when it is interrupted."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.cleaned: list[str] = []

    async def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
            self.cleaned.append(point.execution.key)
            raise
        return point.with_error("seen")


@tool
async def ignorant() -> str:
    """Ignore the cancellation."""
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        await asyncio.sleep(1000)
    return "late"


async def cancelled(bench: ExecutorBench, *calls: ToolCall) -> ToolExecutions:
    """Cancel a batch after a second, and return the outcomes."""
    running = asyncio.ensure_future(bench.run(*calls))
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await running
    carrier = BatchInterrupted.find_in(caught.value)
    assert carrier is not None
    return carrier.executions


async def just_proceed(point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
    """Run the call."""
    return await proceed()


TEN_YEARS = 10 * 365 * 86_400  # the state of a bench began at another time than its clock
LAYERS: dict[str, Callable[[], list[CanIntercept]]] = {
    "none": list,
    "a timeout of an interceptor": lambda: [at("around_tool_use", just_proceed, timeout=900)],
    "a time limit": lambda: [TimeLimit(TEN_YEARS)],
    "a token": lambda: [CancellationToken()],
    "all": lambda: [CancellationToken(), TimeLimit(TEN_YEARS), at("around_tool_use", just_proceed, timeout=900)],
}


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("timeout", [None, 900])
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (None, ("succeeded", "receipt", "")),
        (ValueError("no receipt"), ("failed", None, "ValueError")),
        (AgentStop("enough"), ("cancelled", None, "AgentStop")),
        (asyncio.CancelledError(), ("cancelled", None, "Cancelled")),
    ],
)
def test_a_tool_that_is_cancelled_may_still_end_as_it_wants(
    end: BaseException | None, expected: tuple[str, object, str], timeout: float | None, layers: str
) -> None:
    """What it returns or raises is its outcome, whatever limits its time; the batch stays cancelled, and starts nothing."""
    ran: list[str] = []

    @tool(timeout=timeout)
    async def pay() -> str:
        """Wait for the receipt, although the call is cancelled."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        await asyncio.sleep(0.5)
        if end is not None:
            raise end
        return "receipt"

    @tool(sequential=True)
    async def after() -> None:
        """Run after it."""
        ran.append("after")

    bench = ExecutorBench([pay, after], interceptors=LAYERS[layers]())
    done = run_in_virtual_time(cancelled(bench, ToolCall("", "pay"), ToolCall("", "after")))
    outcome = done.executions[0]
    assert (outcome.status.value, outcome.value, outcome.error.type if outcome.error else "") == expected
    assert outcome.may_have_run is not outcome.succeeded
    assert ran == []


async def test_nothing_starts_after_a_function_that_ends_when_its_batch_is_cancelled() -> None:
    """At whichever turn of the event loop the cancellation comes; the batch stays cancelled."""
    batch: list[asyncio.Task[Any]] = []
    loop = asyncio.get_running_loop()

    def cancel_after(turns: int) -> None:
        if turns:
            loop.call_soon(cancel_after, turns - 1)
        else:
            batch[-1].cancel()

    @tool(timeout=LONGEST, sequential=True)
    def last(turns: int) -> None:
        """Let the batch be cancelled some turns of the event loop after the function ends, or before."""
        loop.call_soon_threadsafe(cancel_after, turns)

    class Events(list[Event]):
        """Notes which events come after the cancellation."""

        def append(self, event: Event) -> None:
            if batch[-1].cancelling():
                super().append(event)

    for turns in list(range(60)) * 3:
        bench = ExecutorBench([last, sleepy], events=Events())
        calls = [ToolCall("", "last", f'{{"turns": {turns}}}'), ToolCall("", "sleepy", '{"seconds": 0}')]
        batch.append(asyncio.ensure_future(bench.run(*calls[:1], *calls)))
        await asyncio.wait(batch[-1:])
        assert batch[-1].cancelled() is (batch[-1].cancelling() > 0)
        assert "ToolCallStarted" not in bench.event_names()[1:]


def test_after_a_cancellation_tools_and_then_interceptors_have_the_grace() -> None:
    """An interceptor sees the outcome in time, although the tool has used up its own time."""
    bench = ExecutorBench([ignorant], ToolExecutor(cancel_grace=20), interceptors=[Watchful(18)])
    (outcome,) = run_in_virtual_time(cancelled(bench, ToolCall("", "ignorant")))
    assert outcome.error_message == "seen"


@pytest.mark.parametrize(("seconds", "status"), [(4.9, "succeeded"), (5.1, "cancelled")])
def test_a_cancelled_call_has_five_seconds_to_end(seconds: float, status: str) -> None:
    """That is the grace of an executor for which nothing else is set."""

    @tool
    async def pay() -> str:
        """Wait for the receipt, although the call is cancelled."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        await asyncio.sleep(seconds)
        return "receipt"

    done = run_in_virtual_time(cancelled(ExecutorBench([pay]), ToolCall("", "pay")))
    assert statuses(done) == [status]


def test_an_interceptor_without_time_is_interrupted_and_cleans_up() -> None:
    """The outcome that it did not see is dropped, and the execution ends after its cleaning up."""
    watchful = Watchful(100)
    bench = ExecutorBench(toy_tools(Ledger()), ToolExecutor(cancel_grace=20), interceptors=[watchful])

    async def run() -> tuple[ToolExecution, list[str]]:
        (outcome,) = await cancelled(bench, toy_call("echo", 1, seconds=5))
        return outcome, list(watchful.cleaned)

    outcome, cleaned = run_in_virtual_time(run())
    assert "before the interceptors had seen the outcome" in outcome.error_message
    assert cleaned == ["run/1/0"]


@pytest.mark.parametrize("suspended", [frozenset(), {0}, {2}, {3}, {2, 3}, {4}], ids=str)
def test_every_call_of_a_cancelled_batch_has_one_event_however_slow_interceptors_are(
    suspended: AbstractSet[int],
) -> None:
    """Calls whose turn did not come within the time of the batch are settled at its end; those that wait go on waiting."""

    def suspend(point: BeforeToolUse) -> BeforeToolUse:
        return point.suspend("ask") if point.arguments["value"] in suspended else point

    interceptors = [Watchful(100), at("before_tool_use", suspend)]
    bench = ExecutorBench(toy_tools(Ledger()), ToolExecutor(cancel_grace=20), interceptors=interceptors)
    done = run_in_virtual_time(cancelled(bench, *[toy_call("echo", number, seconds=5) for number in range(5)]))
    assert {call.call.arguments["value"] for call in done.pending} == suspended
    assert statuses(done) == ["cancelled"] * (5 - len(suspended))
    settled = [event.execution for event in bench.events if isinstance(event, ToolCallSettled)]
    assert settled == list(done)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_no_interceptor_of_an_outcome_runs_on_after_a_cancelled_batch(count: int) -> None:
    """Also the one whose turn came last is interrupted, and cleans up before the batch ends."""
    watchful = Watchful(1e6)
    bench = ExecutorBench(toy_tools(Ledger()), ToolExecutor(cancel_grace=5), interceptors=[watchful])

    async def run() -> tuple[list[str], int]:
        done = await cancelled(bench, *[toy_call("echo", number) for number in range(count)])
        assert statuses(done) == ["cancelled"] * count
        return list(watchful.cleaned), len(asyncio.all_tasks())

    cleaned, tasks = run_in_virtual_time(run())
    assert cleaned == [f"run/1/{index}" for index in range(min(count, 3))]
    assert tasks == 1  # that of the test


def test_a_tool_that_ends_after_its_call_was_settled_without_a_turn_changes_no_outcome() -> None:
    """Also while an interceptor cleans up, which is the last thing that a cancelled batch waits for."""
    ended: list[float] = []

    @tool
    async def late() -> str:
        """Ignore the cancellation, and end a moment after the time of the batch is over."""
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(45.25)
        ended.append(asyncio.get_running_loop().time())
        return "late"

    bench = ExecutorBench([*toy_tools(Ledger()), late], ToolExecutor(cancel_grace=20), interceptors=[Watchful(100)])

    async def run() -> tuple[ToolExecutions, float]:
        calls = [toy_call("echo", 1), toy_call("echo", 2), ToolCall("", "late")]
        return await cancelled(bench, *calls), asyncio.get_running_loop().time()

    done, end = run_in_virtual_time(run())
    assert ended[0] < end
    assert statuses(done) == ["cancelled"] * 3
    assert [event.execution for event in bench.events if isinstance(event, ToolCallSettled)] == list(done)


def test_an_interceptor_that_is_interrupted_last_leaves_no_unhandled_error(caplog: pytest.LogCaptureFixture) -> None:
    """The event loop does not complain that nobody looked at its cancellation."""
    watchful = Watchful(1e6)
    bench = ExecutorBench(toy_tools(Ledger()), ToolExecutor(cancel_grace=5), interceptors=[watchful])
    run_in_virtual_time(cancelled(bench, *[toy_call("echo", number) for number in range(3)]))
    gc.collect()
    assert len(watchful.cleaned) == 3
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


# --- errors that are no outcome -------------------------------------------------------------------------------------


class AssertionOfTest(BaseException):
    """What a test raises in an interceptor, as `pytest.fail` does; it is no `Exception`."""


@frozen
class Interrupted:
    """How a batch ended under a bus that raises the errors of its listeners.

    Attributes:
        error: what `execute_tools` raised; None if nothing.
        executions: the outcomes that it carries, or that were returned.
        settled: the outcomes of the events.
        ran: the values of the calls whose tools had begun when the batch ended.
        later: the same, some time later.
        tasks: the number of tasks that were left when the batch ended.
    """

    error: BaseException | None
    executions: tuple[ToolExecution, ...]
    settled: list[ToolExecution]
    ran: list[object]
    later: list[object]
    tasks: int


async def linger(_event: Event) -> None:
    await asyncio.sleep(1)


def run_strictly(
    *calls: ToolCall,
    listener: Callable[[Event], None] | None = None,
    interceptors: Sequence[Interceptor] = (),
    cancel_after: float | None = None,
    is_joined: bool = False,
) -> Interrupted:
    """Run a batch with a listener that may raise, and cancel it after some seconds; None not to cancel it."""

    async def run() -> Interrupted:
        ledger, settled, carrier = Ledger(), list[ToolExecution](), None
        bus, other = EventBus(strict=True), EventBus(strict=True)
        bus.on(ToolCallCompleted, lambda event: settled.append(event.execution))
        if is_joined:  # the listeners of the second bus are called although those of the first one were cancelled
            bus.on(ToolCallCompleted, linger)
        if listener is not None:
            (other if is_joined else bus).wiretap(listener)
        events = JoinedBus(bus, other) if is_joined else bus
        resources, state = Resources(), started_state("agent", "run")
        scope = ExecutionScope(clock=LoopClock(), local_resources=resources, shared_resources=resources)
        stack, tools = InterceptorStack.of(interceptors), collect_tools(toy_tools(ledger))
        executor = bind_executor(ToolExecutor(), tools, stack.bind(events, scope), events, scope)
        before = asyncio.all_tasks()
        task = asyncio.ensure_future(executor.execute_tools(ToolCalls.of(calls, state), state))
        if cancel_after is not None:
            asyncio.get_running_loop().call_later(cancel_after, task.cancel)
        error: BaseException | None = None
        executions: tuple[ToolExecution, ...] = ()
        try:
            executions = (await task).executions
        except BaseException as raised:  # noqa: BLE001  # looked at by the tests
            error, carrier = raised, BatchInterrupted.find_in(raised)
        if carrier is not None:
            executions = carrier.executions.executions
        left = len(asyncio.all_tasks() - before)
        ran = list(ledger.values)
        await asyncio.sleep(100)
        await resources.aclose()
        return Interrupted(error, executions, settled, ran, ledger.values, left)

    return run_in_virtual_time(run())


class Passing(Interceptor):
    """Sees every call at every point, and changes nothing."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        return await proceed()

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        return point


@given(
    names=st.lists(st.sampled_from(["echo", "alone", "keyed"]), min_size=1, max_size=4),
    seconds=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    raises_at=st.frozensets(st.integers(0, 25), min_size=1, max_size=3),
    cancel_after=st.none() | st.sampled_from([0.0, 0.5, 1.5, 2.5]),
    is_intercepted=st.booleans(),
    is_joined=st.booleans(),
)
def test_a_listener_that_raises_loses_no_call(
    names: list[str],
    seconds: list[int],
    raises_at: frozenset[int],
    cancel_after: float | None,
    *,
    is_intercepted: bool,
    is_joined: bool,
) -> None:
    """Every call has one outcome and one event, what ran is not denied, nothing runs on, and a cancellation stays one."""
    count, raised = itertools.count(), list[Defect]()

    def listen(event: Event) -> None:
        if next(count) in raises_at:
            raised.append(Defect(type(event).__name__))
            raise raised[-1]

    calls = [
        toy_call(name, value, seconds=seconds[value], **({"key": "a"} if name == "keyed" else {}))
        for value, name in enumerate(names)
    ]
    done = run_strictly(
        *calls,
        listener=listen,
        interceptors=[Passing()] if is_intercepted else [],
        cancel_after=cancel_after,
        is_joined=is_joined,
    )
    assert [execution.call for execution in done.executions] == calls
    assert sorted(done.settled, key=lambda execution: execution.key) == list(done.executions)
    assert done.tasks == 0
    assert done.later == done.ran
    for execution in done.executions:
        begun = execution.arguments["value"] in done.ran
        assert not begun or execution.succeeded or execution.may_have_run
        assert not execution.succeeded or begun
    if isinstance(done.error, asyncio.CancelledError):
        assert cancel_after is not None
    elif raised:
        assert isinstance(done.error, BatchInterrupted)
        assert done.error.cause in raised
    else:
        assert done.error is None


@pytest.mark.parametrize(("seconds", "is_joined"), [(5, False), (0, True)])
def test_the_error_of_a_listener_does_not_replace_a_cancellation(seconds: int, *, is_joined: bool) -> None:
    """Neither while the calls are settled, nor from the second of two joined buses."""

    def listen(event: Event) -> None:
        if isinstance(event, ToolCallCompleted):
            raise Defect

    calls = [toy_call("echo", 1, seconds=seconds), toy_call("echo", 2)]
    done = run_strictly(*calls, listener=listen, cancel_after=0.5, is_joined=is_joined)
    assert isinstance(done.error, asyncio.CancelledError)
    assert len(done.executions) == 2
    assert done.tasks == 0


@pytest.mark.parametrize("point", ["before", "around", "after"])
def test_an_assertion_in_an_interceptor_leaves_a_settled_batch(point: str) -> None:
    """What is no `Exception` is raised as it is, after every call was settled, and nothing runs on."""

    class Asserting(Raising):
        def _raise(self, point: str, arguments: JsonObject) -> None:
            if self.point == point and arguments.get("value") == 2:
                raise AssertionOfTest

    calls = [toy_call("echo", 1), toy_call("echo", 2), toy_call("echo", 3, seconds=5)]
    done = run_strictly(*calls, interceptors=[Asserting(point)])
    assert isinstance(done.error, AssertionOfTest)
    assert done.tasks == 0
    assert done.later == done.ran
    expected = {"before": ["cancelled"] * 3, "around": ["succeeded", "cancelled", "cancelled"]}
    assert statuses(done.settled) == expected.get(point, ["succeeded", "failed", "cancelled"])


def test_of_several_assertions_each_but_the_one_that_is_raised_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Under the key of its call, so that none is lost."""

    class Asserting(Interceptor):
        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            raise AssertionOfTest(point.arguments["value"])

    with caplog.at_level("ERROR", "agentloop.tools"):
        done = run_strictly(*[toy_call("echo", value) for value in (1, 2, 3)], interceptors=[Asserting()])
    assert isinstance(done.error, AssertionOfTest)
    assert done.error.args == (1,)
    logged = [(record.getMessage(), str((record.exc_info or (None, None))[1])) for record in caplog.records]
    assert logged == [
        (f"an error in an interrupted batch of tool calls, at the call run/1/{index}", str(index + 1))
        for index in (1, 2)
    ]


@pytest.mark.parametrize(
    ("cancel_after", "reason"),
    [(None, "the calls were interrupted by Defect"), (0.5, "the execution was cancelled")],
)
def test_the_calls_of_an_interrupted_batch_say_what_has_interrupted_it(cancel_after: float | None, reason: str) -> None:
    """The error of a listener, or the cancellation that came while another listener was still called."""

    def listen(event: Event) -> None:
        if isinstance(event, ToolCallCompleted):
            raise Defect

    calls = [toy_call("echo", 1), toy_call("echo", 2, seconds=5)]
    done = run_strictly(*calls, listener=listen, cancel_after=cancel_after, is_joined=True)
    assert [execution.error_message for execution in done.executions] == ["", reason]


@pytest.mark.parametrize("ends_by", ["cancellation", "timeout"])
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_listener_that_fails_at_an_abandoned_call_takes_no_outcome(
    ends_by: str, caplog: pytest.LogCaptureFixture, *, in_thread: bool
) -> None:
    """The call is cancelled, or has timed out, nothing runs after it, and a cancellation stays one; the error is logged."""
    release, ran = threading.Event(), list[str]()
    timeout = 0.2 if ends_by == "timeout" else None

    @tool(name="stubborn", timeout=timeout)
    async def stubborn() -> None:
        """Ignore the cancellation."""
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    @tool(name="stubborn", timeout=timeout)
    def stubborn_in_thread() -> None:
        """Wait until the test releases it."""
        release.wait(LONGEST)

    @tool(sequential=True)
    async def after() -> None:
        """Run after it."""
        ran.append("after")

    bus = EventBus(strict=True)

    def fail(_event: Event) -> None:
        raise Defect

    bus.on(ToolCallAbandoned, fail)
    model = ScriptedInference([ToolCall("1", "stubborn"), ToolCall("2", "after")], "done")
    tools = [stubborn_in_thread if in_thread else stubborn, after]
    executor = ToolExecutor(cancel_grace=0.1)

    async def run() -> AgentState | None:
        task = asyncio.ensure_future(
            AgentLoop.for_model(model, tools=tools, executor=executor, events=bus).execute("go")
        )
        if ends_by == "cancellation":
            asyncio.get_running_loop().call_later(0.2, task.cancel)
        await asyncio.wait((task,))
        release.set()
        try:
            return task.result()
        except asyncio.CancelledError as cancelled:
            return interrupted_state(cancelled)

    state = asyncio.run(run())
    assert state is not None
    assert ran == []
    assert statuses(state.steps[0].executions) == ["timed_out" if timeout else "cancelled", "cancelled"]
    assert state.status is (ExecutionStatus.FAILED if timeout else ExecutionStatus.IN_PROGRESS)
    (logged,) = [record for record in caplog.records if record.exc_info and record.exc_info[0] is Defect]
    assert state.steps[0].executions[0].key in logged.getMessage()


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "least", "refused"),
    [
        ("cancel_grace", 0, -0.1),
        ("cancel_grace", 0.5, float("nan")),
        ("max_concurrency", 1, 0),
        ("default_timeout", 0.001, 0),
        ("max_result_bytes", 1, 0),
    ],
)
def test_settings_out_of_range_are_refused(name: str, least: float, refused: float) -> None:
    """The least that makes sense is accepted, and runs a call."""
    least_of: dict[str, Any] = {name: least}
    (outcome,) = run_in_virtual_time(
        ExecutorBench(toy_tools(Ledger()), ToolExecutor(**least_of)).run(toy_call("echo", 1))
    )
    assert outcome.value == 1
    with pytest.raises(ValueError, match=name):
        ToolExecutor(**{**least_of, name: refused})
