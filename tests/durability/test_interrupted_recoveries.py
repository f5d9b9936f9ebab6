"""Recoveries that end before they reach the calls that had started: their outcomes are not lost."""

from __future__ import annotations

import asyncio

import pytest

from agentloop import AgentLoop, AgentState, AgentStop, Interceptor, to_json
from agentloop.durable import MemoryJournal
from agentloop.durable.fold import fold_records
from agentloop.events import AgentStepStarted, ToolCallCompleted, ToolCallRecovered
from agentloop.interception import AfterInference, BeforeExecution, BeforeStep, BeforeToolUse
from agentloop.values import Event, ExecutionStatus, InDoubt, RecordKind, ToolStatus, approve
from agentloop.values.interruptions import interrupted_state
from agentloop.values.json import parse_json
from tests.durability.world import RUN, MortalJournal, World, make_loop
from tests.durable.recovery_bench import truncate

CALLS = [[("effect", "a"), ("idempotent", "b"), ("effect", "c")]]


class EndAtPoint(Interceptor):
    """Ends a recovery at an interceptor point, or waits there until it is cancelled."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.is_waiting = asyncio.Event()

    async def _reach(self, point: str) -> None:
        if point == self.point:
            raise AgentStop("no more") if point == "before_step" else ValueError("broken")
        if self.point == f"cancelled in {point}":
            self.is_waiting.set()
            await asyncio.Event().wait()

    async def before_execution(self, point: BeforeExecution) -> BeforeExecution:
        await self._reach("before_execution")
        return point

    async def before_step(self, point: BeforeStep) -> BeforeStep:
        await self._reach("before_step")
        return point

    async def after_inference(self, point: AfterInference) -> AfterInference:
        await self._reach("after_inference")
        return point

    async def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        await self._reach("before_tool_use")
        return point


async def interrupt(world: World, outcomes: int) -> MemoryJournal:
    """Run an execution, and return its journal as it was when the calls had started and some of them had an outcome."""
    journal = MemoryJournal()
    await make_loop(world, CALLS, (), journal).execute("go", execution_id=RUN)
    kinds = [record.kind for record in await journal.read(RUN)]
    return await truncate(journal, RUN, kinds.index(RecordKind.CALL_INTENT) + 3 + outcomes)


async def recover_until(loop: AgentLoop, end: EndAtPoint) -> AgentState:
    """Recover until the execution ends, or is cancelled at its point."""
    task = asyncio.create_task(loop.recover(RUN))
    if not end.point.startswith("cancelled"):
        return await task
    await end.is_waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task
    state = interrupted_state(cancelled.value)
    assert isinstance(state, AgentState)
    return state


@pytest.mark.parametrize("outcomes", [0, 1, 2])
@pytest.mark.parametrize(
    "point",
    [
        *["before_execution", "before_step", "after_inference", "before_tool_use"],
        *["cancelled in before_step", "cancelled in after_inference", "cancelled in before_tool_use"],
    ],
)
async def test_a_recovery_that_ends_early_keeps_the_started_calls(point: str, outcomes: int) -> None:
    """The final state has the recorded outcomes and the calls that may have run, and so have events and records.

    A recovery that is cancelled changes no record, so that the next one finds what this one found.
    """
    world = World()
    journal = await interrupt(world, outcomes)
    bodies = [parse_json(record.body) for record in await journal.read(RUN) if record.kind is RecordKind.CALL_OUTCOME]
    recorded = {body["execution"]["key"] for body in bodies}
    assert len(recorded) == outcomes
    before, events = dict(world.runs), list[Event]()
    end = EndAtPoint(point)
    loop = make_loop(world, CALLS, (), journal, end)
    loop.on(ToolCallRecovered, events.append)
    loop.on(ToolCallCompleted, events.append)
    records = await journal.read(RUN)
    state = await recover_until(loop, end)
    assert world.runs == before
    if point.startswith("cancelled"):
        assert state.status is ExecutionStatus.IN_PROGRESS
        assert {record.kind for record in (await journal.read(RUN))[len(records) :]} == {RecordKind.EXECUTION_RECOVERED}
        return
    assert state.status in {ExecutionStatus.STOPPED, ExecutionStatus.FAILED}
    executions = {execution.key: execution for step in state.steps for execution in step.executions}
    assert len(executions) == len(CALLS[0])
    assert {key for key, execution in executions.items() if execution.succeeded} == recorded
    for key in executions.keys() - recorded:
        assert executions[key].may_have_run
        assert executions[key].status is ToolStatus.IN_DOUBT or executions[key].name == "idempotent"
    completed = {event.execution.key for event in events if isinstance(event, ToolCallCompleted)}
    assert completed == set(executions)
    folded = fold_records(await journal.read(RUN), RUN).state
    assert folded is not None
    assert to_json(folded) == to_json(state)


@pytest.mark.parametrize("is_cancelled_before", [False, True])
async def test_an_approved_call_that_had_started_is_in_doubt(is_cancelled_before: bool) -> None:  # noqa: FBT001  # a parameter
    """An approved call that had started is in doubt, also when recoveries end before they reach the call."""
    world, source = World(), MemoryJournal()
    loop = make_loop(world, [[("approved", "a"), ("approved", "b")]], (), source)
    state = await loop.execute("go", execution_id=RUN)
    await loop.resume(state, {"run/1/0": approve()})
    kinds = [record.kind for record in await source.read(RUN)]
    journal = await truncate(source, RUN, kinds.index(RecordKind.CALL_INTENT) + 1)
    if is_cancelled_before:
        end = EndAtPoint("cancelled in before_step")
        cancelled = await recover_until(make_loop(world, [], (), journal, end), end)
        assert (cancelled.status, len(cancelled.pending)) == (ExecutionStatus.IN_PROGRESS, 2)
    end = EndAtPoint("before_step")
    state = await recover_until(make_loop(world, [], (), journal, end), end)
    started, waiting = state.steps[-1].executions
    assert (started.status, started.may_have_run) == (ToolStatus.IN_DOUBT, True)
    assert (waiting.status, waiting.may_have_run) == (ToolStatus.CANCELLED, False)
    assert state.open_turn is None
    assert world.runs == {"run/1/0": 1}


async def test_an_execution_cancelled_at_its_first_record_is_in_progress() -> None:
    """An execution that is cancelled while its first record is written has a first and a last event (law 7), and is in progress."""
    journal = MortalJournal([])
    journal.start_process(0)
    loop = make_loop(World(), CALLS, (), journal)
    events = list[str]()
    loop.wiretap(lambda event: events.append(type(event).__name__))
    task = asyncio.create_task(loop.execute("go", execution_id=RUN))
    journal.cancels = task
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (events[0], events[-1]) == ("AgentExecutionStarted", "AgentExecutionInterrupted")
    assert [record.kind for record in await journal.read(RUN)] == [RecordKind.EXECUTION_STARTED]


async def test_a_message_is_in_the_conversation_once() -> None:
    """A message before or during a suspension is in the conversation once after the same process resumes it."""
    world, journal = World(), MemoryJournal()
    loop = make_loop(world, [[("approved", "a")], [("pure", "b")]], (), journal)
    inbox = loop.inbox(RUN)

    sent_at = list[AgentStepStarted]()

    def send(event: AgentStepStarted) -> None:
        if event.step_number == 1 and not world.runs and not sent_at:
            sent_at.append(event)
            inbox.send("before")

    loop.on(AgentStepStarted, send)
    state = await loop.execute("go", execution_id=RUN)
    assert [record.kind for record in await journal.read(RUN)].count(RecordKind.MESSAGES_SENT) == 1
    inbox.send("during the suspension")
    inbox.send("before")
    state = await loop.resume(state, {call.key: approve() for call in state.pending})
    texts = [message.text for message in state.messages if message.role == "user"]
    assert texts == ["go", "before", "during the suspension", "before"]


async def test_a_message_is_not_lost_when_a_resumption_is_cancelled_at_once() -> None:
    """A waiting message reaches an execution whose resumption was cancelled at once and that is recovered."""
    world, journal = World(), MortalJournal([])
    loop = make_loop(world, [[("approved", "a")]], (), journal)
    loop.on(AgentStepStarted, lambda _: loop.inbox(RUN).send("a message"))
    state = await loop.execute("go", execution_id=RUN)
    other = make_loop(world, [[("approved", "a")]], (), journal)
    journal.start_process(0)
    task = asyncio.create_task(other.resume(RUN, {call.key: approve() for call in state.pending}))
    journal.cancels = task
    with pytest.raises(asyncio.CancelledError):
        await task
    folded = fold_records(await journal.read(RUN), RUN)
    assert folded.state is not None
    assert folded.state.status is ExecutionStatus.IN_PROGRESS
    assert [message.text for message in folded.waiting_messages] == ["a message"]
    done = await make_loop(world, [[("approved", "a")]], (), journal).recover(RUN)
    assert done.status is ExecutionStatus.COMPLETED
    assert [message.text for message in done.messages].count("a message") == 1


async def test_a_recorded_doubt_fails_the_execution_after_an_interrupted_recovery() -> None:
    """With `in_doubt="fail"` the execution fails wherever the recovery that recorded the doubt was interrupted."""
    world = World()
    journal = await interrupt(world, 0)
    loop = make_loop(world, CALLS, (), journal, in_doubt=InDoubt.FAIL)
    assert (await loop.recover(RUN)).status is ExecutionStatus.FAILED
    for count in range(5, len(await journal.read(RUN)) + 1):
        again = make_loop(world, CALLS, (), await truncate(journal, RUN, count), in_doubt=InDoubt.FAIL)
        state = await again.recover(RUN)
        assert state.status is ExecutionStatus.FAILED, count
        assert "in doubt" in state.errors[-1].message
