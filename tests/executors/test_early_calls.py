"""Tools that an executor starts before the batch of their calls: what they know, report and leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from attrs import field, frozen

from agentloop import AgentLoop, AgentState, Interceptor, ToolCall, ToolCallingDriver, ToolContext, ToolExecutor, tool
from agentloop.contracts import CanInfer
from agentloop.contracts.can_execute_tool_calls import EagerCalls
from agentloop.durable import MemoryJournal, replay
from agentloop.errors import InvalidResponse
from agentloop.events import (
    AbandonedToolCallEnded,
    InferenceResponseReceived,
    ToolCallAbandoned,
    ToolCallCompleted,
    ToolCallProgressed,
    ToolCallStarted,
)
from agentloop.executors import ForwardingExecutor
from agentloop.interception import BeforeToolUse
from agentloop.testing import CountingIds, run_in_virtual_time
from agentloop.testing.eager_start_kit import StreamedModel, StreamedTurn
from agentloop.testing.scenario import ScriptedTurn
from agentloop.values import Bounds, Event, InferenceDelta, InferenceRequest, ToolCalls, ToolExecutions, ToolStatus
from agentloop.values.interruptions import interrupted_state
from tests.executors.test_remote import NearExecutor
from tests.limits import LONGEST


def call(item: int, name: str = "look") -> ToolCall:
    """Return a call; each of them takes two deltas."""
    return ToolCall(f"call {item}", name, f'{{"item": {item}}}')


def loop_for(
    tools: Sequence[Any],
    *calls: ToolCall,
    fault: str = "",
    wait: float = 1.0,
    eager: bool = True,
    events: list[Event] | None = None,
    **parts: Any,
) -> AgentLoop:
    """Return a loop whose model streams these calls, with a pause before each delta, and answers."""
    turns = [StreamedTurn(ScriptedTurn("", calls), wait=wait, chunk=100, fault=fault)]
    model = StreamedModel([*turns, *[StreamedTurn(ScriptedTurn("done"), wait=0)] * 2])
    loop = AgentLoop(
        ToolCallingDriver(model, streaming=True, eager=eager, max_retries=0), tools, ids=CountingIds(), **parts
    )
    loop.wiretap((events if events is not None else []).append)
    return loop


def run(loop: AgentLoop) -> AgentState:
    """Return the final state, in virtual time."""

    async def execute() -> AgentState:
        return await loop.execute("?", execution_id="e")

    return run_in_virtual_time(execute())


def begins(began: list[float]) -> Any:
    """Return a tool that notes when it begins."""

    @tool(effect="pure")
    async def look(item: int) -> int:
        """Look."""
        began.append(asyncio.get_running_loop().time())
        return item

    return look


def test_a_function_that_runs_in_another_process_starts_early() -> None:
    """It reads neither the context of its call nor its id, which a call does not have before its batch."""
    began: list[float] = []
    run(loop_for([begins([])], call(1), executor=NearExecutor(far=[begins(began)])))
    assert began == [2.0]


class Passing(ForwardingExecutor):
    """Changes nothing."""


@frozen
class Deciding(ForwardingExecutor):
    """Decides in its own way which calls run."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        """Run them all."""
        return await self.inner.execute_tools(tool_calls, state)


@frozen
class DecidingEarly(Deciding):
    """Allows early starts nevertheless."""

    def eager_calls(self, request: Any, state: AgentState) -> Any:
        """Allow them."""
        return self.inner.eager_calls(request, state)  # type: ignore[attr-defined]  # it has them


@pytest.mark.parametrize(
    ("executor", "seconds"),
    [
        (ToolExecutor(), 2.0),
        (Passing(ToolExecutor()), 2.0),
        (Deciding(ToolExecutor()), 3.0),
        (Passing(Deciding(ToolExecutor())), 3.0),
        (DecidingEarly(ToolExecutor()), 2.0),
    ],
    ids=["plain", "passing", "deciding", "deciding inside", "deciding early"],
)
def test_calls_start_early_unless_a_layer_of_the_executor_has_to_see_them(executor: Any, seconds: float) -> None:
    """One that overrides `execute_tools` alone may decide there which calls run; each call runs once."""
    began: list[float] = []
    run(loop_for([begins(began)], call(1), executor=executor))
    assert began == [seconds]


class NotingCalls(EagerCalls):
    """Notes which calls were started."""

    def __init__(self, calls: EagerCalls, started: list[bool]) -> None:
        self.calls = calls
        self.started = started

    def start(self, call: ToolCall) -> bool:
        self.started.append(self.calls.start(call))
        return self.started[-1]

    def discard(self) -> None:
        self.calls.discard()

    @property
    def discarded(self) -> tuple[ToolCall, ...]:
        return self.calls.discarded


@frozen
class Noting(ForwardingExecutor):
    """Notes for each answer whether its calls may start early, and for each call whether it did."""

    allowed: list[bool] = field(factory=list)
    started: list[bool] = field(factory=list)

    def eager_calls(self, request: InferenceRequest, state: AgentState) -> EagerCalls | None:
        """Return the calls, watched."""
        calls = super().eager_calls(request, state)
        self.allowed.append(calls is not None)
        return None if calls is None else NotingCalls(calls, self.started)


def test_no_call_is_asked_for_after_one_that_has_to_wait() -> None:
    """The driver is told which call was the first of them, and does not ask for the others."""
    executor, began = Noting(ToolExecutor()), list[float]()

    @tool
    async def change(item: int) -> None:
        """Have an effect."""

    run(loop_for([begins(began), change], call(1), call(2, "change"), call(3), executor=executor))
    assert executor.started == [True, False]
    assert (began[0], len(began)) == (2.0, 2)


def test_calls_start_early_under_a_journal_unless_it_answers_them() -> None:
    """In a fork and in a replay, recorded outcomes take the place of tools, so that none is started before that is known."""
    executor, journal = Noting(ToolExecutor()), MemoryJournal()

    async def execute() -> list[list[bool]]:
        loop = loop_for([begins([])], call(1), executor=executor, journal=journal)
        await loop.execute("?", execution_id="e")
        seen = [executor.allowed.copy()]
        executor.allowed.clear()
        await loop_for([begins([])], call(1), executor=executor, journal=journal).recover(await journal.fork("e", 0))
        seen.append(executor.allowed.copy())
        executor.allowed.clear()
        await replay(journal, "e", loop)
        return [*seen, executor.allowed.copy()]

    recorded, forked, replayed = run_in_virtual_time(execute())
    assert (recorded, forked) == ([True, True], [False, False])
    assert not any(replayed)


@pytest.mark.parametrize(
    ("end", "status", "value"),
    [
        ("raise", ToolStatus.CANCELLED, None),
        ("return", ToolStatus.SUCCEEDED, "in time"),
        ("fail", ToolStatus.FAILED, None),
    ],
)
@pytest.mark.parametrize("eager", [True, False])
def test_a_tool_that_is_cancelled_while_its_batch_waits_ends_as_it_wants(
    end: str, status: ToolStatus, value: object, *, eager: bool
) -> None:
    """It gets the cancellation of the execution and the time to clean up, whether or not it was started early."""
    ended: list[float] = []

    @tool(effect="pure")
    async def look(item: int) -> str:
        """Look for a long time."""
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            ended.append(asyncio.get_running_loop().time())
            if end == "raise":
                raise
            if end == "fail":
                raise OSError("no time") from None
        return "in time"

    async def execute() -> AgentState | None:
        running = asyncio.create_task(loop_for([look], call(1), eager=eager).execute("?"))
        asyncio.get_running_loop().call_later(50, running.cancel)
        with pytest.raises(asyncio.CancelledError) as caught:
            await running
        return interrupted_state(caught.value)

    state = run_in_virtual_time(execute())
    assert state is not None
    (execution,) = state.steps[0].executions
    assert (execution.status, execution.value, ended) == (status, value, [51.0])


def test_a_tool_that_is_cancelled_early_runs_in_its_batch() -> None:
    """Only the early run has ended; the call has not."""
    runs: list[int] = []

    @tool(effect="pure")
    async def look(item: int) -> int:
        """Cancel the task at first."""
        runs.append(item)
        if len(runs) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)
        return item

    (execution,) = run(loop_for([look], call(1))).steps[0].executions
    assert (execution.value, runs) == (1, [1, 1])


@pytest.mark.parametrize("eager", [True, False])
def test_a_tool_that_still_runs_when_its_batch_begins_knows_what_the_batch_knows(*, eager: bool) -> None:
    """The id of the execution, the ids derived from it, the scope and the bus are those of the call; the tool runs once."""
    runs: list[int] = []

    @tool(effect="pure")
    async def look(item: int, context: ToolContext) -> list[Any]:
        """Wait for the batch."""
        runs.append(item)
        await asyncio.sleep(100)
        own = [context.id, context.ids().new_id("thing"), context.idempotency_key]
        return [*own, context.events is not None, context.scope.bounds.threads]

    (execution,) = run(loop_for([look], call(1), eager=eager, bounds=Bounds(threads=7))).steps[0].executions
    assert isinstance(execution.value, tuple)
    assert execution.value[0] == execution.id
    assert str(execution.value[1]).startswith(f"{execution.id}/thing")
    assert execution.value[2:] == (execution.key, True, 7)
    assert runs == [1]


def test_a_tool_that_sees_the_state_runs_again_only_if_the_state_has_changed() -> None:
    """One that does not see it keeps its early outcome."""

    class Changing(Interceptor):
        allows_eager_start = True

        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            return point.with_state(point.state.with_metadata(changed=True))

    for interceptors, runs in (([], ["sees", "blind"]), ([Changing()], ["sees", "blind", "sees"])):
        ran: list[str] = []

        @tool(effect="pure")
        async def sees(item: int, state: AgentState) -> bool:
            """See the state."""
            ran.append("sees")  # noqa: B023  # of this round
            return "changed" in state.context.metadata

        @tool(effect="pure")
        async def blind(item: int) -> int:
            """See nothing."""
            ran.append("blind")  # noqa: B023  # of this round
            return item

        loop = loop_for([sees, blind], call(1, "sees"), call(2, "blind"), interceptors=interceptors)
        executions = run(loop).steps[0].executions
        assert [execution.value for execution in executions] == [bool(interceptors), 2]
        assert ran == runs


@pytest.mark.parametrize(("functions", "is_early"), [(1, True), (2, False)])
async def test_a_call_does_not_overtake_one_that_waits_for_a_thread(functions: int, *, is_early: bool) -> None:
    """With all threads busy, a function waits for its batch, and so do the calls behind it; a coroutine does not wait."""
    gate, events, seen = threading.Event(), list[Event](), list[bool]()

    @tool(effect="pure")
    def hold(item: int) -> int:
        """Hold the only thread."""
        gate.wait(LONGEST)
        return item

    @tool(effect="pure")
    async def look(item: int) -> int:
        """Note whether the answer of the model was complete."""
        seen.append(any(isinstance(event, InferenceResponseReceived) for event in events))
        gate.set()
        return item

    calls = [*[call(item, "hold") for item in range(functions)], call(functions)]
    loop = loop_for([hold, look], *calls, wait=0.01, events=events, bounds=Bounds(threads=1))
    state = await loop.execute("?")
    assert [execution.value for execution in state.steps[0].executions] == [*range(functions + 1)]
    assert seen == [not is_early]


async def test_a_call_that_had_not_begun_was_not_in_vain() -> None:
    """When the stream breaks off, a call that waits for a thread is not among those that ran for nothing."""
    began, gate = threading.Event(), threading.Event()

    @tool(effect="pure")
    def hold(item: int) -> int:
        """Hold the only thread."""
        began.set()
        gate.wait(LONGEST)
        return item

    class Breaking(CanInfer):
        """Writes two calls at once and the beginning of a third, and breaks off when a tool has begun."""

        async def infer(self, request: Any) -> Any:
            raise NotImplementedError

        async def stream(self, request: Any) -> AsyncGenerator[Any, None]:
            for index in range(3):
                yield InferenceDelta("tool_call", index=index, call_id=str(index), name="hold")
                yield InferenceDelta("arguments", f'{{"item": {index}' + "}" * (index < 2), index=index)
            await asyncio.to_thread(began.wait, LONGEST)
            raise InvalidResponse("broke off")

    driver = ToolCallingDriver(Breaking(), streaming=True, eager=True, max_retries=0)
    state = await AgentLoop(driver, [hold], bounds=Bounds(threads=1)).execute("?")
    gate.set()
    assert [each.arguments["item"] for each in state.steps[0].discarded_calls] == [0]


# --- reports ----------------------------------------------------------------------------------------------------------


def stubborn(seconds: float, timeout: float | None) -> Any:
    """Return a tool that ignores its cancellation, and ends after some seconds more."""

    @tool(effect="pure", timeout=timeout)
    async def look(item: int) -> int:
        """Look."""
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(seconds)
        return item

    return look


def names(events: Sequence[Event]) -> list[str]:
    """Return the names of the events about calls."""
    kinds = ToolCallStarted | ToolCallProgressed | ToolCallAbandoned | AbandonedToolCallEnded | ToolCallCompleted
    return [type(event).__name__ for event in events if isinstance(event, kinds)]


def test_progress_before_the_batch_is_reported_in_its_place() -> None:
    """It follows the start of the call, before what comes later."""
    events: list[Event] = []

    @tool(effect="pure")
    async def look(item: int, context: ToolContext) -> int:
        """Look, with progress before and in the batch."""
        context.progress("early")
        await asyncio.sleep(100)
        context.progress("late")
        return item

    run(loop_for([look], call(1), events=events))
    assert names(events) == ["ToolCallStarted", "ToolCallProgressed", "ToolCallProgressed", "ToolCallCompleted"]
    assert [event.update for event in events if isinstance(event, ToolCallProgressed)] == ["early", "late"]


@pytest.mark.parametrize(
    ("wait", "seconds", "expected"),
    [
        (20.0, 10.0, ["ToolCallStarted", "ToolCallAbandoned", "AbandonedToolCallEnded", "ToolCallCompleted"]),
        (20.0, 90.0, ["ToolCallStarted", "ToolCallAbandoned", "ToolCallCompleted", "AbandonedToolCallEnded"]),
        (1.0, 90.0, ["ToolCallStarted", "ToolCallAbandoned", "ToolCallCompleted", "AbandonedToolCallEnded"]),
    ],
)
def test_a_tool_that_is_abandoned_is_reported_after_its_start(wait: float, seconds: float, expected: list[str]) -> None:
    """Whether its timeout passes, and the tool ends, before its batch or in it."""
    events: list[Event] = []
    (execution,) = run(loop_for([stubborn(seconds, 3.0)], call(1), wait=wait, events=events)).steps[0].executions
    assert execution.status.value == "timed_out"
    assert names(events) == expected


def test_a_discarded_tool_that_goes_on_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Its call is in no batch, so that no event is about it."""
    events: list[Event] = []
    loop = loop_for([stubborn(50.0, 100.0)], call(1), fault="fewer", events=events)

    async def execute() -> None:
        await loop.execute("?", execution_id="e")
        await asyncio.sleep(100)

    with caplog.at_level("WARNING", "agentloop.tools"):
        run_in_virtual_time(execute())
    logged = [record.getMessage() for record in caplog.records if record.name == "agentloop.tools"]
    assert "the tool 'look' continues although its call e/1/0 has ended" in logged
    assert "the abandoned call e/1/0 of 'look' has ended" in logged
    assert names(events) == []


@pytest.mark.parametrize(
    ("seconds", "ends", "logged"), [(5.0, 7.0, []), (50.0, 22.5, ["1/0 ignores its cancellation and continues"])]
)
def test_a_cancelled_execution_waits_for_its_early_tools(
    seconds: float, ends: float, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It waits as long as calls have to end, and no longer; a tool that takes longer is logged."""

    @tool(effect="pure")
    async def look(item: int) -> int:
        """Ignore all cancellations for some seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(end - loop.time())
        return item

    async def execute() -> float:
        loop = loop_for([look], call(1), call(2), executor=ToolExecutor(cancel_grace=20))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.execute("?"), 2.5)
        return asyncio.get_running_loop().time()

    with caplog.at_level("WARNING", "agentloop.tools"):
        assert run_in_virtual_time(execute()) == pytest.approx(ends)
    messages = [record.getMessage() for record in caplog.records if record.name == "agentloop.tools"]
    assert [message.partition("agentloop early tool ")[2].partition("/")[2] for message in messages] == logged


def test_the_clean_up_of_an_early_tool_is_not_cut_off() -> None:
    """A cancelled execution cancels it once, and waits for its end."""
    cleaned: list[int] = []

    @tool(effect="pure")
    async def look(item: int) -> int:
        """Clean up for some time."""
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(2)
            cleaned.append(item)
        return item

    async def execute() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(
                loop_for([look], call(1), call(2), executor=ToolExecutor(cancel_grace=20)).execute("?"), 2.5
            )

    run_in_virtual_time(execute())
    assert cleaned == [1]


@dataclass
class Row:
    """What a tool returns."""

    item: int


def test_the_result_of_an_early_tool_is_not_kept_for_the_rest_of_the_execution() -> None:
    """What the tool returned is freed when its call has an outcome, which holds the JSON of it."""
    returned: list[weakref.ref[Row]] = []
    kept: list[bool] = []

    @tool(effect="pure")
    async def look(item: int) -> Row:
        """Return an object."""
        row = Row(item)
        returned.append(weakref.ref(row))
        return row

    @tool(effect="pure", eager=False)
    async def check(item: int) -> None:
        """Look for the object."""
        gc.collect()
        kept.extend(row() is not None for row in returned)

    turns = [ScriptedTurn("", (call(1), call(2))), ScriptedTurn("", (call(3, "check"),)), ScriptedTurn("done")]
    model = StreamedModel([StreamedTurn(turn, wait=1.0, chunk=100) for turn in turns])
    loop = AgentLoop(ToolCallingDriver(model, streaming=True, eager=True, max_retries=0), [look, check])
    state = run(loop)
    assert [execution.value for execution in state.steps[0].executions] == [{"item": 1}, {"item": 2}]
    assert kept == [False, False]
