"""`AgentLoop`: starting, stepping, stopping, resuming, and the state that each kind of end leaves."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from attrs import evolve, frozen

from agentloop import (
    AgentLoop,
    AgentState,
    AgentStop,
    Interceptor,
    Message,
    ScriptedDriver,
    ScriptedInference,
    StopReason,
    ToolCall,
    ToolCallingDriver,
    ToolContext,
    ToolExecutor,
    from_json,
    to_json,
    tool,
)
from agentloop.contracts import CanCompileMessages, CanUseTools, Tool
from agentloop.drivers import Driver, ScenarioStep
from agentloop.durable import MemoryJournal
from agentloop.errors import (
    ConfigurationError,
    ContractViolation,
    DecisionError,
    ExecutionFailed,
    InvalidParameter,
    ToolDefinitionError,
)
from agentloop.events import (
    AgentExecutionInterrupted,
    AgentExecutionStarted,
    EventBus,
    StopSignalReceived,
    ToolCallCompleted,
    ToolCallProgressed,
    ToolCallStarted,
)
from agentloop.events.bus import emit_soon
from agentloop.interception import at
from agentloop.loop.event_stream import EventStream
from agentloop.models import LLMConfig
from agentloop.testing import CountingIds, Ledger, ManualClock, run_in_virtual_time, toy_call, toy_tools
from agentloop.toolkits import Ensemble
from agentloop.values import (
    AgentStep,
    Event,
    ExecutionStatus,
    InferenceRequest,
    InferenceResponse,
    StepKind,
    SystemClock,
    Text,
    ToolStatus,
    Usage,
    answer,
    approve,
    deny,
)
from agentloop.values.interruptions import interrupted_state
from agentloop.values.points import AfterInference, BeforeStep, BeforeToolUse, OnError
from agentloop.values.reprs import MAX_REPR
from tests.limits import LONGEST

REPORTS = 300
"""More events than a stream and the queues below it hold at once."""


def scripted(*lines: Any, ledger: Ledger | None = None, **parts: Any) -> AgentLoop:
    return AgentLoop(ToolCallingDriver(ScriptedInference(*lines)), toy_tools(ledger or Ledger()), **parts)


def test_an_execution_runs_from_question_to_answer() -> None:
    """The final state has the steps, the messages, the usage and the stop reason."""
    state = scripted([toy_call("echo", 1)], "done").execute_sync("go")
    assert state.status is ExecutionStatus.COMPLETED
    assert state.final_text == "done"
    assert [message.role for message in state.messages] == ["user", "assistant", "assistant"]
    assert [step.kind for step in state.steps] == [StepKind.TOOL_EXECUTION, StepKind.FINAL_RESPONSE]
    assert [step.number for step in state.steps] == [1, 2]
    assert state.usage == Usage(20, 10, 0, 0, 0, 2)
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.COMPLETED
    assert state.tool_call_count == 1
    assert state.raise_for_status() is state


def test_a_parallel_batch_is_one_assistant_message() -> None:
    """All calls of a response and their executions are in one message, in order."""
    state = scripted([toy_call("echo", 1), toy_call("fail", 2), toy_call("echo", 3)], "done").execute_sync("go")
    message = state.messages[1]
    assert [exchange.execution.status.value for exchange in message.exchanges] == ["succeeded", "failed", "succeeded"]
    assert len(state.messages) == 3


@pytest.mark.parametrize("question", ["go", Message.user("go"), AgentState.start("go")])
def test_the_input_is_a_text_a_message_or_a_state(question: Any) -> None:
    """All three forms of input lead to the same conversation."""
    state = scripted("done", system_prompt="be brief").execute_sync(question)
    assert [message.text for message in state.messages] == ["go", "done"]
    assert state.context.system_prompt == ("" if isinstance(question, AgentState) else "be brief")


def test_other_input_is_refused() -> None:
    """Input of another type is a TypeError before anything runs."""
    with pytest.raises(TypeError, match="is a text, a Message or an AgentState"):
        scripted("done").execute_sync(7)  # type: ignore[arg-type]  # the mistake under test


def test_a_final_state_starts_its_next_execution() -> None:
    """The conversation continues in a new execution with its own steps and usage."""
    loop = scripted([toy_call("echo", 1)], "first")
    state = loop.execute_sync("one", execution_id="run-1")
    state = loop.execute_sync(state.with_message("two"), execution_id="run-2")
    assert state.execution_id == "run-2"
    assert state.execution_count == 2
    assert state.step_count == 2
    assert [message.text for message in state.messages if message.text] == ["one", "first", "two", "first"]


def test_an_execution_starts_with_its_newest_message() -> None:
    """The event of the start has the message that is to be answered, not those of earlier executions."""
    loop, asked = scripted("first", "second"), list[str | None]()
    loop.on(AgentExecutionStarted, lambda event: asked.append(event.message.text if event.message else None))
    state = loop.execute_sync("one")
    loop.execute_sync(state.with_message("two"))
    assert asked == ["one", "two"]


@pytest.mark.parametrize(
    "point", [at("before_execution"), at("before_step"), at("after_step"), at("on_stop"), at("after_execution")]
)
def test_every_stop_signal_is_reported_once(point: Callable[..., Any]) -> None:
    """Wherever an interceptor stops the execution, the event has its reason, after those of earlier signals."""
    loop = scripted("done").with_interceptors(point(lambda point: point.stop("not today")))
    reported = list[str]()
    loop.on(StopSignalReceived, lambda event: reported.append(event.signal.message))
    state = loop.execute_sync("go")
    assert reported[-1] == "not today"
    assert state.execution is not None
    assert reported == [signal.message for signal in state.execution.continuation.signals]


def test_the_default_compiler_shows_the_whole_conversation() -> None:
    """The model sees the first execution in the second, its calls included."""
    inference = ScriptedInference([toy_call("echo", 1)], "first")
    loop = AgentLoop(ToolCallingDriver(inference), toy_tools(Ledger()))
    loop.execute_sync(loop.execute_sync("one").with_message("two"))
    texts = [[message.text for message in request.messages] for request in inference.requests]
    assert texts == [["one"], ["one", ""], ["one", "", "first", "two"], ["one", "", "first", "two", ""]]


async def test_iterate_yields_the_state_after_each_step_and_the_final_state() -> None:
    """Each yielded state is complete; only the last one is terminal."""
    states = [state async for state in scripted([toy_call("echo", 1)], "done").iterate("go")]
    assert [state.step_count for state in states] == [1, 2, 2]
    assert [state.status.value for state in states] == ["in_progress", "in_progress", "completed"]


async def test_a_state_between_steps_can_be_stored_and_continued() -> None:
    """A state that was yielded between steps is stored, loaded and executed to its end."""
    events: list[Event] = []
    bus = EventBus()
    bus.wiretap(events.append)
    loop = AgentLoop(
        ScriptedDriver(ScenarioStep.tool_call("echo", {"value": 1}), ScenarioStep.final("done")),
        toy_tools(Ledger()),
        events=bus,
    )
    states = loop.iterate("go")
    left = from_json(to_json(await anext(states)), AgentState)
    await states.aclose()
    final = await loop.execute(left)
    assert final.execution_id == left.execution_id
    assert (final.step_count, final.final_text) == (2, "done")
    assert [event.resumed for event in events if isinstance(event, AgentExecutionStarted)] == [False, True]
    with pytest.raises(ContractViolation, match="it keeps that id"):
        await loop.execute(left, execution_id="another")


async def test_a_stream_has_the_events_and_then_the_final_state() -> None:
    """`stream` yields the events as they happen and has the final state at the end."""
    stream = scripted([toy_call("echo", 1)], "done").stream("go")
    names = [type(event).__name__ async for event in stream]
    assert names[0] == "AgentExecutionStarted"
    assert names[-1] == "AgentExecutionCompleted"
    assert stream.state is not None
    assert stream.state.final_text == "done"


async def test_an_execution_waits_for_a_slow_reader_of_its_stream() -> None:
    """The execution is at most one buffer of events ahead of its reader."""
    ledger = Ledger()
    loop = scripted(*[[toy_call("echo", n)] for n in range(50)], "done", ledger=ledger, max_steps=None)
    async with loop.stream("go") as stream:
        await anext(stream)
        for _ in range(2000):
            await asyncio.sleep(0)
        assert 0 < len(ledger.calls) < 20
    assert len(ledger.calls) < 50


async def test_closing_a_stream_cancels_the_execution() -> None:
    """After an early exit no task is left."""
    before = asyncio.all_tasks()
    loop = scripted([toy_call("echo", 1, seconds=100)], "done")
    stream = loop.stream("go")
    await anext(stream)
    await stream.aclose()
    assert asyncio.all_tasks() == before


@pytest.mark.unmonitored  # a monitor is a listener
@pytest.mark.parametrize("is_closed", [True, False])
async def test_a_stream_that_was_left_or_has_ended_listens_no_longer(*, is_closed: bool) -> None:
    """Nobody listens to the loop then, although the stream is still there, so that no later event is made for it."""
    loop = scripted("done")
    stream = loop.stream("go")
    assert not loop.events.due(ToolCallStarted)
    await anext(stream)
    assert loop.events.due(ToolCallStarted)
    if is_closed:
        await stream.aclose()
    else:
        assert [event async for event in stream]
    assert not loop.events.due(ToolCallStarted)
    assert stream.state is not None


@tool(effect="pure")
async def report_often(context: ToolContext) -> str:
    """Report more progress than a stream holds at once, and then wait."""
    for number in range(REPORTS):
        context.progress(number)
    await asyncio.Event().wait()
    return "done"


@tool(effect="pure")
def yield_often() -> Iterator[int]:
    """Report more progress than a stream holds at once."""
    yield from range(REPORTS)


def _delegate_to_reporters() -> Tool:
    asking = AgentLoop(
        ScriptedDriver(ScenarioStep.tool_call("report_often", {}), ScenarioStep.final("x")), [report_often]
    )
    return asking.as_tool("delegate", "Delegates.", parameters={"type": "object"}, effect="pure")


async def _leave_by_break(stream: EventStream[str]) -> None:
    async for event in stream:
        if isinstance(event, ToolCallProgressed):
            break
    await stream.aclose()


async def _leave_by_error(stream: EventStream[str]) -> None:
    async def read() -> None:
        async with stream:
            async for event in stream:
                if isinstance(event, ToolCallProgressed):
                    raise KeyError(event.sequence)

    with pytest.raises(KeyError):
        await read()


async def _leave_by_timeout(stream: EventStream[str]) -> None:
    reading = asyncio.Event()

    async def read() -> None:
        async with stream:
            async for event in stream:
                if isinstance(event, ToolCallProgressed):
                    reading.set()
                    await asyncio.Event().wait()  # a reader that stalls

    task = asyncio.create_task(read())
    await reading.wait()
    for _ in range(REPORTS):  # until the execution waits for its reader
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leave", [_leave_by_break, _leave_by_error, _leave_by_timeout])
@pytest.mark.parametrize(
    "reporting", [report_often, yield_often, _delegate_to_reporters()], ids=lambda made: made.spec.name
)
async def test_a_stream_can_be_left_while_many_events_wait_for_its_reader(
    reporting: Tool, leave: Callable[[EventStream[str]], Awaitable[None]]
) -> None:
    """Leaving a stream waits for the end of its execution, however many reports of progress were not read."""
    before = asyncio.all_tasks()
    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", reporting.spec.name), "done"), tools=[reporting])
    stream = loop.stream("go")
    async with asyncio.timeout(LONGEST):
        await leave(stream)
    assert stream.state is not None
    assert stream.state.status is ExecutionStatus.IN_PROGRESS
    assert asyncio.all_tasks() == before


@pytest.mark.unmonitored  # its events are those of no real run
async def test_a_stream_can_be_left_while_many_executions_wait_for_its_reader() -> None:
    """Each event that waits for a place in the buffer lets the next one go when the stream is left."""
    bus = EventBus()
    state = AgentState.start("go").with_execution_started("run", SystemClock().now())
    branches = [bus.for_execution() for _ in range(REPORTS)]

    async def run() -> AgentState:
        for branch in branches:
            emit_soon(branch, AgentExecutionStarted, state, 0, None, resumed=False)
        try:
            return await asyncio.Future()
        finally:
            for branch in branches:
                await branch.drain()

    stream = EventStream(state.agent_id, bus, run)
    async with asyncio.timeout(LONGEST), stream:
        await anext(stream)
    assert stream.state is None


async def test_two_streams_of_one_loop_are_separate() -> None:
    """Each stream has the events of its own execution."""
    loop = scripted([toy_call("echo", 1)], "done")

    async def ids() -> set[str]:
        return {event.execution_id async for event in loop.stream("go")}

    first, second = await asyncio.gather(ids(), ids())
    assert len(first) == len(second) == 1
    assert first != second


async def test_two_streams_of_one_state_are_separate() -> None:
    """Two executions of the same agent have the same agent id, and each stream has only its own events."""
    loop = scripted([toy_call("echo", 1)], "done", [toy_call("echo", 1)], "done", "hello")
    answered = await loop.execute("hello")

    async def ids(text: str) -> list[str]:
        stream = loop.stream(answered.with_message(Message.user(text)))
        return [event.execution_id async for event in stream]

    first, second = await asyncio.gather(ids("one"), ids("two"))
    assert len(set(first)) == len(set(second)) == 1
    assert set(first) != set(second)
    assert first[0] != answered.execution_id


def calling_once(*calls: ToolCall) -> ScriptedInference:
    """Return a model that makes these calls in each execution, and answers then."""

    def answer_to(request: InferenceRequest) -> InferenceResponse | str:
        return "done" if request.messages[-1].exchanges else InferenceResponse(calls)

    return ScriptedInference(*[answer_to] * 9)


async def test_each_of_two_streams_of_one_state_has_the_agents_of_its_own_execution() -> None:
    """Agents below two executions of the same agent have the same caller."""
    child = AgentLoop.for_model(calling_once(toy_call("echo", 1)), tools=toy_tools(Ledger()))
    model = calling_once(ToolCall("1", "ask", '{"task": "?"}'))
    loop = AgentLoop(ToolCallingDriver(model), [child.as_tool("ask", "Knows.")])
    answered = await loop.execute("hello")

    async def ids(execution_id: str) -> list[str]:
        stream = loop.stream(answered.with_message(Message.user("And now?")), execution_id=execution_id)
        return [event.execution_id async for event in stream]

    first, second = await asyncio.gather(ids("a"), ids("b"))
    assert set(first) == {"a", "a/1/0/agent"}
    assert set(second) == {"b", "b/1/0/agent"}
    assert [each.replace("b", "a", 1) for each in second] == first


@pytest.mark.parametrize("same_agent", [False, True])
async def test_a_stream_lacks_what_its_tools_execute_besides(*, same_agent: bool) -> None:
    """An execution that a tool starts by itself, on the same bus, is no sub-agent, also if its agent is the same."""
    bus, seen = EventBus(), set[str]()
    bus.wiretap(lambda event: seen.add(event.execution_id))
    other = AgentLoop(ToolCallingDriver(ScriptedInference("elsewhere")), events=bus)
    hello = await other.execute("Hi.", execution_id="before")
    question = hello.with_message(Message.user("?"))

    @tool
    async def consult() -> str:
        """Consult."""
        return (await other.execute(question if same_agent else "?", execution_id="besides")).final_text or ""

    loop = AgentLoop(ToolCallingDriver(calling_once(ToolCall("1", "consult", "{}"))), [consult], events=bus)
    stream = loop.stream(question, execution_id="run")
    assert {event.execution_id async for event in stream} == {"run"}
    assert seen == {"before", "besides", "run"}
    assert stream.state is not None
    assert stream.state.steps[0].executions[0].value == "elsewhere"


async def test_a_break_out_of_a_stream_leaves_no_task() -> None:
    """A stream without references cancels its execution, without waiting for a garbage collection."""
    before = asyncio.all_tasks()
    loop = scripted([toy_call("echo", 1, seconds=100)], "done")
    gc.disable()
    try:
        async for event in loop.stream("go"):
            if isinstance(event, ToolCallStarted):
                break
        async with asyncio.timeout(LONGEST):
            while left := asyncio.all_tasks() - before:
                await asyncio.wait(left)
    finally:
        gc.enable()


async def test_a_stream_that_was_closed_early_has_the_last_state() -> None:
    """The steps before the early exit are in the state."""
    stream = scripted([toy_call("echo", 1)], [toy_call("echo", 2, seconds=100)], "done").stream("go")
    async with stream:
        async for event in stream:
            if isinstance(event, ToolCallStarted) and event.step_number > 1:
                break
    assert stream.state is not None
    assert stream.state.status is ExecutionStatus.IN_PROGRESS
    assert [e.status for step in stream.state.steps for e in step.executions] == ["succeeded", "cancelled"]


def test_the_sync_methods_work_repeatedly() -> None:
    """A script can run a loop several times in one process."""
    loop = scripted([toy_call("echo", 1), toy_call("plain", 2)], "done")
    for _ in range(3):
        assert loop.execute_sync("go").final_text == "done"
        assert [state.step_count for state in loop.iterate_sync("go")] == [1, 2, 2]


async def test_the_sync_methods_refuse_to_run_inside_an_event_loop() -> None:
    """The error names the coroutine to await instead."""
    with pytest.raises(RuntimeError, match=r"use await loop.execute\(…\)"):
        scripted("done").execute_sync("go")
    with pytest.raises(RuntimeError, match=r"use async for state in loop\.iterate"):
        scripted("done").iterate_sync("go")


def test_a_break_out_of_a_sync_iteration_leaves_no_thread() -> None:
    """A break out of the loop closes the threads that it started."""
    threads = set(threading.enumerate())
    for state in scripted([toy_call("plain", 1)], "done").iterate_sync("go"):
        assert state.step_count == 1
        break
    assert set(threading.enumerate()) == threads


@frozen
class MarkedExecutor(ToolExecutor):
    """A subclass of the executor."""


@frozen
class LastMessageCompiler(CanCompileMessages):
    """A compiler that shows only the last message."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        return state.messages[-1:]


def test_the_compiler_of_a_loop_decides_what_the_model_sees() -> None:
    """Each request has the messages that it selects; the state keeps all of them."""
    model = ScriptedInference([toy_call("echo", 1)], "done")
    loop = AgentLoop(ToolCallingDriver(model), toy_tools(Ledger()), compiler=LastMessageCompiler())
    state = loop.execute_sync("go")
    assert [request.messages for request in model.requests] == [state.messages[:1], state.messages[1:2]]
    assert len(state.messages) == 3


def test_changing_one_part_keeps_all_others() -> None:
    """Executor, compiler, bus and interceptors survive each `with_…`, and the original loop does not change."""
    executor, compiler, bus = MarkedExecutor(), LastMessageCompiler(), EventBus()
    limit = at("before_step", lambda point: point)
    loop = AgentLoop(
        ScriptedDriver(ScenarioStep.final("done")),
        executor=executor,
        interceptors=[limit],
        compiler=compiler,
        events=bus,
        max_steps=7,
        system_prompt="hi",
        ids=CountingIds(),
        clock=ManualClock(),
    )
    other = at("before_step", lambda point: point)
    changed = (
        loop.replace(tools=toy_tools(Ledger()))
        .with_interceptors(other)
        .replace(driver=ScriptedDriver(ScenarioStep.final("else")), max_steps=9, system_prompt="ho")
    )
    assert changed.executor is executor
    assert changed.compiler is compiler
    assert changed.events is bus
    assert changed.interceptors == (limit, other)
    assert (changed.ids, changed.clock) == (loop.ids, loop.clock)
    assert (changed.max_steps, changed.system_prompt) == (9, "ho")
    assert changed.execute_sync("go").final_text == "else"
    assert loop.execute_sync("go").final_text == "done"
    assert (len(loop.tools), loop.max_steps) == (0, 7)
    assert loop.replace(executor=ToolExecutor()).executor is not executor
    assert loop.replace(compiler=compiler).compiler is compiler
    assert loop.replace(events=EventBus()).events is not bus


def test_the_repr_of_a_loop_is_bounded() -> None:
    """However many parts it has; a loop that is small is shown by field."""

    @frozen
    class Labeled(Interceptor):
        label: str

        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point

    layers = [Labeled(f"layer {number}") for number in range(500)]
    small, large = (AgentLoop(ScriptedDriver(), interceptors=some) for some in (layers[:1], layers))
    assert repr(small).startswith("AgentLoop(driver=ScriptedDriver(")
    assert "Labeled(label='layer 0')" in repr(small)
    assert len(repr(large)) <= MAX_REPR
    assert repr(large).startswith("AgentLoop(")


def test_a_loop_is_equal_to_itself_alone() -> None:
    """A copy with the same parts is another loop, and any loop can be a key, whatever its parts are."""
    loop = AgentLoop(
        ScriptedDriver(), output_type={"type": "string"}, interceptors=[at("before_step", lambda point: point)]
    )
    copy = loop.replace(max_steps=loop.max_steps)
    assert loop == loop  # noqa: PLR0124  # the comparison is what is tested
    assert copy != loop
    assert {loop: "loop", copy: "copy"}[loop] == "loop"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((ToolCallingDriver,), "ToolCallingDriver"),
        (("not a driver",), "not .not a driver.; to call a model"),
        ((ScriptedDriver(), [list]), "type"),
        ((ScriptedDriver(), ["echo"]), "str"),
    ],
)
def test_parts_of_the_wrong_type_are_refused_at_construction(arguments: Any, named: str) -> None:
    """A wrong argument is an error before the first execution, in one sentence that names its type."""
    with pytest.raises(TypeError, match=named) as caught:
        AgentLoop(*arguments)
    assert caught.value.args == (str(caught.value),)


def test_two_tools_with_the_same_name_are_refused() -> None:
    """The error contains the name."""
    ledger = Ledger()
    with pytest.raises(ToolDefinitionError, match="two tools are named 'echo'"):
        AgentLoop(ScriptedDriver(), [*toy_tools(ledger), *toy_tools(ledger)])


def test_dependencies_reach_the_tools_and_nothing_else() -> None:
    """The dependencies are in the context of tools, and in no state."""

    @tool
    async def use_database(context: ToolContext) -> str:
        """Use the database."""
        return f"{context.dependencies['db']} {context.execution_id}"

    loop = AgentLoop(ToolCallingDriver(ScriptedInference([ToolCall("", "use_database")], "done")), [use_database])
    state = loop.execute_sync("go", execution_id="run", dependencies={"db": "secret handle"})
    assert state.steps[0].executions[0].value == "secret handle run"
    assert b"secret handle" not in to_json(evolve(state, context=evolve(state.context, messages=()), execution=None))


async def test_one_loop_runs_many_executions_concurrently() -> None:
    """Concurrent executions end as each of them would alone."""
    loop = scripted([toy_call("whoami", 1), toy_call("echo", 2, seconds=0.001)], "done")
    states = await asyncio.gather(*[loop.execute(AgentState.start("go", agent_id=f"agent {n}")) for n in range(50)])
    assert [state.steps[0].executions[0].value for state in states] == [f"agent {n}" for n in range(50)]
    assert len({state.execution_id for state in states}) == 50


def test_an_error_of_the_model_leads_to_a_failed_state() -> None:
    """The state has the error and all earlier steps; `raise_for_status` makes an exception of it."""
    state = scripted([toy_call("echo", 1)], ValueError("the model is down")).execute_sync("go")
    assert state.status is ExecutionStatus.FAILED
    assert [step.kind for step in state.steps] == [StepKind.TOOL_EXECUTION, StepKind.ERROR]
    assert [(error.type, error.message) for error in state.errors] == [("ValueError", "the model is down")]
    assert state.steps[0].executions[0].value == 1
    assert state.usage.requests == 1
    with pytest.raises(ExecutionFailed, match="failed after 2 steps: ValueError: the model is down") as caught:
        state.raise_for_status()
    assert caught.value.state is state


def test_a_failed_batch_is_recorded_with_every_outcome() -> None:
    """With an executor that raises, the failed step contains the whole batch."""
    loop = scripted(
        [toy_call("fail", 1), toy_call("echo", 2)], "never", executor=ToolExecutor(raise_on_tool_failure=True)
    )
    state = loop.execute_sync("go")
    assert state.status is ExecutionStatus.FAILED
    assert [execution.status.value for execution in state.steps[0].executions] == ["failed", "succeeded"]
    assert state.errors[0].type == "BatchFailed"
    assert len(state.messages) == 2


class MinimalDriver(CanUseTools):
    """A driver that implements `CanUseTools` and accepts nothing from the loop."""

    def __init__(self, *returns: Any) -> None:
        self.returns = returns

    async def use_tools(self, state: AgentState) -> AgentState:
        result = self.returns[state.step_count]
        if isinstance(result, Exception):
            raise result
        after: AgentState = result(state) if callable(result) else result
        return after


def with_answer(state: AgentState) -> AgentState:
    now = ManualClock().now()
    step = AgentStep(id="mine", number=1, message=Message.assistant("by hand"), started_at=now, ended_at=now)
    return state.with_step(step)


def test_a_driver_without_the_template_works() -> None:
    """The one method of the contract is enough."""
    assert AgentLoop(MinimalDriver(with_answer)).execute_sync("go").final_text == "by hand"


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "returned None; use_tools returns an AgentState"),
        (lambda state: state, "0 steps instead of 1"),
        (lambda state: with_answer(with_answer(state)), "2 steps instead of 1"),
        (lambda state: evolve(with_answer(state), agent_id="someone else"), "of another agent"),
    ],
)
def test_a_driver_that_breaks_its_contract_is_named(returned: Any, words: str) -> None:
    """The execution fails with the name of the driver and the violation."""
    state = AgentLoop(MinimalDriver(returned)).execute_sync("go")
    assert state.status is ExecutionStatus.FAILED
    assert state.errors[-1].type == "ContractViolation"
    assert "the driver MinimalDriver" in state.errors[-1].message
    assert words in state.errors[-1].message


def test_agent_stop_from_a_driver_stops_without_an_error() -> None:
    """The execution is stopped with the reason of the exception."""
    stop = AgentStop("that is all", reason=StopReason.NO_PROGRESS, source="a driver")
    state = AgentLoop(MinimalDriver(stop)).execute_sync("go")
    assert state.status is ExecutionStatus.STOPPED
    assert state.stop_signal is not None
    assert (state.stop_signal.reason, state.stop_signal.message) == (StopReason.NO_PROGRESS, "that is all")
    assert not state.errors


class SuspendEvenValues(Interceptor):
    """Suspends calls with an even value."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.suspend("even numbers need a decision") if point.arguments["value"] % 2 == 0 else point


def suspended(ledger: Ledger) -> tuple[AgentLoop, AgentState]:
    script = ScenarioStep.tool_calls(*[("echo", {"value": value}) for value in (1, 2, 4)], usage=Usage(1, 1))
    driver = ScriptedDriver(script, ScenarioStep.final("done", usage=Usage(1, 1)))
    loop = AgentLoop(driver, toy_tools(ledger), interceptors=[SuspendEvenValues()])
    return loop, loop.execute_sync("go", execution_id="run")


def test_a_suspended_execution_has_run_the_other_calls() -> None:
    """The pending calls are in the state; nothing of the turn is in the conversation yet."""
    ledger = Ledger()
    _, state = suspended(ledger)
    assert state.status is ExecutionStatus.SUSPENDED
    assert [pending.key for pending in state.pending] == ["run/1/1", "run/1/2"]
    assert [arguments["value"] for _, arguments in ledger.calls] == [1]
    assert [message.role for message in state.messages] == ["user"]
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.SUSPENDED


async def test_a_stored_suspended_state_is_resumed_call_by_call() -> None:
    """Calls without a decision stay pending, the others are settled, and nothing runs twice."""
    ledger = Ledger()
    loop, state = await asyncio.to_thread(suspended, ledger)
    stored = from_json(to_json(state), AgentState)
    half = await loop.resume(stored, {"run/1/1": approve()})
    assert half.status is ExecutionStatus.SUSPENDED
    assert [pending.key for pending in half.pending] == ["run/1/2"]
    done = await loop.resume(from_json(to_json(half), AgentState), {"run/1/2": deny("too even")})
    assert (done.status, done.final_text) == (ExecutionStatus.COMPLETED, "done")
    assert [execution.status.value for execution in done.steps[0].executions] == ["succeeded", "succeeded", "blocked"]
    assert [arguments["value"] for _, arguments in ledger.calls] == [1, 2]
    assert done.step_count == 2
    assert done.usage.requests == 2
    assert done.tool_call_count == 3


async def test_decisions_are_validated_against_the_pending_calls() -> None:
    """A decision for no pending call, or for other arguments, is refused, and nothing runs."""
    ledger = Ledger()
    loop, state = await asyncio.to_thread(suspended, ledger)
    digest = state.pending[0].digest
    with pytest.raises(DecisionError, match="no call with the key 'run/1/0' waits; waiting are run/1/1, run/1/2"):
        await loop.resume(state, {"run/1/0": approve()})
    with pytest.raises(DecisionError, match="given for another tool, definition, arguments or suspension"):
        await loop.resume(state, {"run/1/2": approve(digest)})
    with pytest.raises(DecisionError, match="this state waits for decisions about run/1/1, run/1/2"):
        await loop.execute(state)
    assert await loop.resume(state, {}) is state
    assert len(ledger.calls) == 1
    done = await loop.resume(state, {"run/1/1": approve(digest), "run/1/2": answer("four")})
    assert done.status is ExecutionStatus.COMPLETED
    with pytest.raises(DecisionError, match="nothing waits for a decision"):
        await loop.resume(done, {"run/1/1": approve()})


async def cancelled_after(loop: AgentLoop, seconds: float) -> AgentState:
    task = asyncio.ensure_future(loop.execute("go"))
    await asyncio.sleep(seconds)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    state = interrupted_state(caught.value)
    assert state is not None
    return state


@pytest.mark.parametrize("seconds", [0, 1, 3, 5, 7])
def test_a_cancelled_task_settles_its_calls_and_carries_the_state(seconds: float) -> None:
    """The error carries the last state: in progress, with a complete conversation, and one last event; it can be continued."""
    loop = scripted(
        [toy_call("echo", 1, seconds=2), toy_call("echo", 2, seconds=4)], [toy_call("echo", 3, seconds=4)], "done"
    )
    events: list[Event] = []
    loop.wiretap(events.append)
    state = run_in_virtual_time(cancelled_after(loop, seconds))
    assert state.status is ExecutionStatus.IN_PROGRESS
    assert state.stop_signal is None
    for step in state.steps:
        assert step.message is not None
        assert len(step.executions) == len(step.message.exchanges)
    assert sum(isinstance(event, AgentExecutionInterrupted) for event in events) == (1 if events else 0)
    again = run_in_virtual_time(loop.execute(state.with_message("go on")))
    assert (again.execution_id, again.final_text) == (state.execution_id, "done")


def test_pending_calls_are_cancelled_when_an_execution_ends() -> None:
    """An execution that fails while calls are pending has a complete conversation, with the calls cancelled."""
    loop = scripted([toy_call("echo", 2), toy_call("stop", 1)], "done").with_interceptors(
        at("before_tool_use", lambda point: point.suspend() if point.call.name == "echo" else point),
        at("before_step", lambda point: point),
    )
    state = loop.execute_sync("go")
    assert state.status is ExecutionStatus.SUSPENDED

    class Failing(Interceptor):
        def on_stop(self, point: Any) -> Any:
            raise ValueError("no")

    failed = loop.with_interceptors(Failing()).execute_sync("go")
    assert failed.status is ExecutionStatus.FAILED
    assert [execution.status for execution in failed.steps[0].executions] == [
        ToolStatus.CANCELLED,
        ToolStatus.CANCELLED,
    ]
    assert [message.role for message in failed.messages] == ["user", "assistant"]


async def test_resources_live_as_long_as_the_loop_is_entered() -> None:
    """Threads end with the execution, and shared resources with the outermost `async with`."""
    loop = scripted([toy_call("plain", 1)], "done")
    async with loop as entered:
        assert entered is loop
        async with loop:
            await loop.execute("go")
        assert loop._shared.resources.current() is not None
        await loop.replace(max_steps=3).execute("go")
        assert not [thread for thread in threading.enumerate() if thread.name == "agentloop-tool"]
    assert loop._shared.resources.current() is None
    await loop.aclose()


async def test_a_loop_that_was_closed_while_it_was_entered_can_be_entered_again() -> None:
    """Its groups are started for the inner `async with` and stopped at its end, and the outer one stops nothing twice."""
    events: list[str] = []
    group = Ensemble(
        "toys", toy_tools(Ledger()), start=lambda: events.append("start"), stop=lambda: events.append("stop")
    )
    loop = AgentLoop(ToolCallingDriver(ScriptedInference("done")), [group])
    async with loop:
        await loop.execute("go")
        await loop.execute("go")
        assert events == ["start"]
        await loop.aclose()
        assert events == ["start", "stop"]
        async with loop:
            await loop.execute("go")
            assert events == ["start", "stop", "start"]
        assert events == ["start", "stop"] * 2
    assert events == ["start", "stop"] * 2


def test_the_same_clock_and_ids_lead_to_the_same_bytes() -> None:
    """Two runs of the same script have byte-identical final states (law 8)."""

    def run() -> bytes:
        loop = scripted(
            [toy_call("echo", 1, seconds=2), toy_call("fail", 2), toy_call("echo", 3, seconds=1)],
            "done",
            clock=ManualClock(),
            ids=CountingIds(),
        )
        return to_json(run_in_virtual_time(loop.execute("go")))

    assert run() == run()


def test_explain_describes_an_execution() -> None:
    """`explain` returns a short description of the steps and calls."""
    account = (
        scripted([toy_call("echo", 1), toy_call("fail", 2)], "done").execute_sync("go", execution_id="run").explain()
    )
    assert account.splitlines()[0].startswith("execution run: completed")
    assert "2 steps, 2 tool calls, 30 tokens" in account
    assert "echo(value=1) succeeded" in account
    assert "fail(value=2) failed" in account
    assert AgentState.start("go").explain() == "no execution yet"


def test_describe_lists_the_parts_of_a_loop() -> None:
    """The description has the driver, the tools, the executor and the order of the interceptors."""
    text = scripted("done").with_interceptors(at("before_step", lambda point: point)).describe()
    assert "ToolCallingDriver" in text
    assert "echo, plain, whoami" in text
    assert text.index("1000  StepLimit ") < text.index("0  <lambda> ")


def test_describe_names_the_journal_of_a_loop_that_has_one() -> None:
    """A loop that records nothing has no such line."""
    journal = MemoryJournal()
    assert f"journal   {journal!r}" in scripted("done", journal=journal).describe().splitlines()
    assert "journal" not in scripted("done").describe()


@pytest.mark.parametrize(("count", "more"), [(1, []), (30, []), (32, ['  loop_executor --> loop_more(["2 more"])'])])
def test_a_drawing_names_thirty_tools(count: int, more: list[str]) -> None:
    """Of a loop with more tools, it says how many are left out."""
    tools = [scripted("done").as_tool(f"ask_{number}", "Ask.") for number in range(count)]
    lines = AgentLoop(ScriptedDriver(), tools).describe("mermaid").splitlines()
    assert [line for line in lines if line.startswith("  loop_executor --> loop_more")] == more
    assert len([line for line in lines if line.startswith("  loop_executor --> loop_tool_")]) == min(count, 30)


def test_describe_draws_a_loop_and_its_agents() -> None:
    """As Mermaid, a call passes the interceptors in their order to the tools, among them other loops; names are no markup."""
    helper = scripted("done").as_tool("ask", "Ask.")
    named = type('a"]<b>#', (Interceptor,), {})()
    drawing = scripted("done").replace(tools=[helper]).with_interceptors(named).describe("mermaid")
    lines = drawing.splitlines()
    assert lines[0] == "flowchart LR"
    assert "  loop_driver --> loop_0 --> loop_1 --> loop_executor" in lines
    assert '  loop_1["a#quot;]#lt;b#gt;#35; (0)"]' in lines
    assert '  loop_executor --> loop_tool_0(["ask: effect"])' in lines
    assert '  subgraph loop_tool_0_agent["ask"]' in lines
    assert "  loop_tool_0 --> loop_tool_0_driver" in lines
    assert any(line.startswith('  loop_tool_0_executor --> loop_tool_0_tool_0(["echo: ') for line in lines)


@pytest.mark.parametrize("form", ["svg", "yaml", "texts", "Text", "", None, 3])
def test_a_description_in_another_form_is_refused(form: Any) -> None:
    """The error names both forms."""
    with pytest.raises(InvalidParameter, match=f"'text' or 'mermaid', not {form!r}"):
        scripted("done").describe(form)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda loop: loop.replace(compiler=3), TypeError),
        (lambda loop: loop.replace(events=3), TypeError),
        (lambda loop: loop.replace(system_prompt=None), TypeError),
        (lambda loop: loop.replace(driver=ScriptedInference("so")), TypeError),
        (lambda loop: loop.for_model(3), TypeError),
        (lambda loop: loop.for_model(ScriptedInference("so"), base_url="http://x"), ConfigurationError),
        (lambda loop: loop.for_model(LLMConfig.parse("ollama:m"), api_key="k"), ConfigurationError),
    ],
)
def test_invalid_parts_are_refused_by_each_method(change: Callable[[Any], object], kind: type[Exception]) -> None:
    """An argument of a wrong type, or without effect, is an error before an execution starts."""
    with pytest.raises(kind):
        change(scripted("so"))


def test_for_model_accepts_a_string_a_configuration_or_an_inference() -> None:
    """The short form creates the same loop as the long form."""
    loop = AgentLoop.for_model("openai:some-model", tools=toy_tools(Ledger()), api_key="k", max_steps=5)
    assert isinstance(loop.driver, ToolCallingDriver)
    assert loop.max_steps == 5
    state = AgentLoop.for_model(ScriptedInference("hello"), system_prompt="hi").execute_sync("go")
    assert state.final_text == "hello"


def test_a_requested_continuation_leads_to_another_step_after_an_answer() -> None:
    """A requested continuation overrides the end by an answer, once per request."""

    class RequestsContinuation(Interceptor):
        def after_step(self, point: Any) -> Any:
            return point.request_continuation() if point.state.step_count < 3 else point

    state = scripted("one", "two", "three").with_interceptors(RequestsContinuation()).execute_sync("go")
    assert (state.step_count, state.final_text) == (3, "three")
    assert state.execution is not None
    assert [signal.reason for signal in state.execution.continuation.signals] == [StopReason.COMPLETED]


async def test_ids_of_agents_are_reserved_where_executions_are_recorded() -> None:
    """The id of an agent that has served a call is refused as such; without a journal, each id can be used."""
    call = ToolCall("1", "ask", '{"task": "?"}')
    loop = AgentLoop.for_model(ScriptedInference(call, "done"), tools=[scripted("42").as_tool("ask", "Knows.")])
    recorded = loop.replace(journal=MemoryJournal())
    state = await recorded.execute("go", execution_id="run")
    assert state.steps[0].executions[0].value == "42"
    with pytest.raises(
        ConfigurationError, match="'run/1/0/agent' is reserved for an agent that serves a call of 'run'"
    ):
        await recorded.execute("go", execution_id="run/1/0/agent")
    assert (await scripted("done").execute("go", execution_id="run/1/0/agent")).final_text == "done"


@pytest.mark.parametrize("parent", [None, "another"])
async def test_nothing_begins_under_a_reserved_id(parent: str | None) -> None:
    """It is refused before the first event and the first record, also for the state of an agent that once served a call."""
    journal, seen = MemoryJournal(), list[Event]()
    loop = scripted("done", journal=journal)
    loop.wiretap(seen.append)
    state = evolve(AgentState.start("go"), parent_agent_id=parent)
    with pytest.raises(ConfigurationError, match="is reserved for an agent"):
        await loop.execute(state, execution_id="run/1/0/agent")
    assert seen == []
    assert await journal.head("run/1/0/agent") is None


async def test_steps_that_wait_for_nothing_let_other_tasks_run() -> None:
    """An execution without calls returns to the event loop in each step."""

    class Continues(Interceptor):
        def after_step(self, point: Any) -> Any:
            return point.request_continuation() if point.state.step_count < 20 else point

    turns: list[int] = []

    async def count_turns() -> None:
        while True:
            turns.append(len(turns))
            await asyncio.sleep(0)

    other = asyncio.create_task(count_turns())
    driver = ScriptedDriver(*[ScenarioStep.final("done")] * 20)
    state = await AgentLoop(driver, interceptors=[Continues()]).execute("go")
    other.cancel()
    assert state.step_count == 20
    assert len(turns) >= 20


async def test_an_execution_that_is_cancelled_before_its_calls_asks_the_model_again() -> None:
    """The interrupted step has the tokens of the response, whose calls were lost, and stops nothing."""
    asked, model = asyncio.Event(), ScriptedInference([toy_call("echo", 1)], [toy_call("echo", 1)], "done")

    class Waits(Interceptor):
        async def after_inference(self, point: AfterInference) -> AfterInference:
            asked.set()
            await asyncio.Event().wait()
            return point

    loop = AgentLoop(ToolCallingDriver(model), toy_tools(Ledger()))
    task = asyncio.create_task(loop.with_interceptors(Waits()).execute("go"))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    left = interrupted_state(caught.value)
    assert left is not None
    assert (left.step_count, left.usage.requests, left.stop_signal) == (1, 1, None)
    state = await loop.execute(left)
    assert (state.status, state.final_text) == (ExecutionStatus.COMPLETED, "done")
    assert [len(step.executions) for step in state.steps] == [0, 1, 0]


async def test_events_of_a_call_precede_the_end_of_its_step() -> None:
    """Events are emitted in the order of what they report."""
    loop = scripted([toy_call("echo", 1)], "done")
    names = [type(event).__name__ async for event in loop.stream("go")]
    assert names.index("ToolCallCompleted") < names.index("AgentStepCompleted")
    assert ToolCallCompleted.__name__ in names


@frozen(kw_only=True)
class UppercaseDriver(Driver):
    """A minimal driver: answers with the last message."""

    async def decide(self, draft: Any, messages: Sequence[Message]) -> Any:
        draft.add_response(InferenceResponse((), usage=Usage.none()))
        return (Text(messages[-1].text.upper()),)


def test_a_subclass_of_the_driver_template_implements_one_method() -> None:
    """A subclass of `Driver` implements `decide`."""
    assert AgentLoop(UppercaseDriver()).execute_sync("hello").final_text == "HELLO"


async def test_an_interceptor_that_fails_before_every_step_does_not_bypass_the_limit() -> None:
    """Errors before steps that are recovered from become steps, which count (law 5)."""

    class FailingInterceptor(Interceptor):
        def before_step(self, point: BeforeStep) -> BeforeStep:
            raise RuntimeError("broken")

    class RecoveringInterceptor(Interceptor):
        def on_error(self, point: OnError) -> OnError:
            return point.recover()

    driver = ScriptedDriver(ScenarioStep.final("done"))
    final = await AgentLoop(driver, interceptors=[FailingInterceptor(), RecoveringInterceptor()], max_steps=3).execute(
        "go"
    )
    assert (final.status, final.step_count) == (ExecutionStatus.STOPPED, 3)
    assert final.stop_signal is not None
    assert final.stop_signal.reason is StopReason.STEP_LIMIT


async def test_changes_of_outer_interceptors_survive_a_failing_inner_one() -> None:
    """An interceptor that raises loses only its own change."""

    class MarksState(Interceptor):
        priority = 10

        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point.with_state(point.state.with_metadata(seen=True))

    class FailingInterceptor(Interceptor):
        def before_step(self, point: BeforeStep) -> BeforeStep:
            raise RuntimeError("broken")

    final = await AgentLoop(ScriptedDriver(), interceptors=[FailingInterceptor(), MarksState()]).execute("go")
    assert final.status is ExecutionStatus.FAILED
    assert final.context.metadata["seen"] is True
