"""Recoveries that end before they have come to the calls that had begun: what is known of these is not lost."""

from __future__ import annotations

import asyncio

import pytest

from agentloop import AgentLoop, AgentState, AgentStop, Interceptor, to_json
from agentloop.events import AgentStepStarted, ToolCallCompleted, ToolCallRecovered
from agentloop.interception import AfterInference, BeforeExecution, BeforeStep, BeforeToolUse
from agentloop.journal import MemoryJournal
from agentloop.journal.fold import fold_records
from agentloop.values import Event, ExecutionStatus, InDoubt, RecordKind, ToolStatus, approve
from agentloop.values.interruptions import interrupted_state
from agentloop.values.json import parse_json
from tests.durability.world import RUN, MortalJournal, World, loop_of
from tests.loop.recovery_bench import cut

CALLS = [[("effect", "a"), ("idempotent", "b"), ("effect", "c")]]


class Ending(Interceptor):
    """Ends a recovery at a point, or waits there."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.waits = asyncio.Event()

    async def _reach(self, where: str) -> None:
        if where == self.where:
            raise AgentStop("no more") if where == "before_step" else ValueError("broken")
        if self.where == f"cancelled in {where}":
            self.waits.set()
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


async def interrupted(world: World, outcomes: int) -> MemoryJournal:
    """Run to the end, and return what the journal held when the calls had begun and so many of them had an outcome."""
    journal = MemoryJournal()
    await loop_of(world, CALLS, (), journal).execute("go", execution_id=RUN)
    kinds = [record.kind for record in await journal.read(RUN)]
    return await cut(journal, RUN, kinds.index(RecordKind.CALL_INTENT) + 3 + outcomes)


async def ended(loop: AgentLoop, ending: Ending) -> AgentState:
    """Recover until it ends, or is cancelled where it waits."""
    going = asyncio.create_task(loop.recover(RUN))
    if not ending.where.startswith("cancelled"):
        return await going
    await ending.waits.wait()
    going.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await going
    state = interrupted_state(cancelled.value)
    assert isinstance(state, AgentState)
    return state


@pytest.mark.parametrize("outcomes", [0, 1, 2])
@pytest.mark.parametrize(
    "where",
    [
        *["before_execution", "before_step", "after_inference", "before_tool_use"],
        *["cancelled in before_step", "cancelled in after_inference", "cancelled in before_tool_use"],
    ],
)
async def test_a_recovery_that_ends_early_knows_what_had_begun(where: str, outcomes: int) -> None:
    """However a recovery ends, its state has the outcomes that are recorded, and says what may have run; so do events and records."""
    world = World()
    journal = await interrupted(world, outcomes)
    bodies = [parse_json(record.body) for record in await journal.read(RUN) if record.kind is RecordKind.CALL_OUTCOME]
    recorded = {body["execution"]["key"] for body in bodies}
    assert len(recorded) == outcomes
    before, told = dict(world.runs), list[Event]()
    ending = Ending(where)
    loop = loop_of(world, CALLS, (), journal, ending)
    loop.on(ToolCallRecovered, told.append)
    loop.on(ToolCallCompleted, told.append)
    state = await ended(loop, ending)
    assert state.status in {ExecutionStatus.STOPPED, ExecutionStatus.FAILED}
    assert world.runs == before
    known = {one.key: one for step in state.steps for one in step.executions}
    assert len(known) == len(CALLS[0])
    assert {key for key, one in known.items() if one.succeeded} == recorded
    for key in known.keys() - recorded:
        assert known[key].may_have_run
        assert known[key].status is ToolStatus.IN_DOUBT or known[key].name == "idempotent"
    completed = {event.execution.key for event in told if isinstance(event, ToolCallCompleted)}
    assert completed == {one.key for one in known.values()}
    found = fold_records(await journal.read(RUN), RUN).state
    assert found is not None
    assert to_json(found) == to_json(state)


@pytest.mark.parametrize("where", ["before_step", "cancelled in before_step"])
async def test_a_call_that_was_approved_and_had_begun_is_not_lost(where: str) -> None:
    """A call that waited, was approved and had begun is in doubt, also where the recovery ends before it has come to it."""
    world, whole = World(), MemoryJournal()
    loop = loop_of(world, [[("asked", "a"), ("asked", "b")]], (), whole)
    state = await loop.execute("go", execution_id=RUN)
    await loop.resume(state, {"run/1/0": approve()})
    kinds = [record.kind for record in await whole.read(RUN)]
    journal = await cut(whole, RUN, kinds.index(RecordKind.CALL_INTENT) + 1)
    ending = Ending(where)
    state = await ended(loop_of(world, [], (), journal, ending), ending)
    begun, waiting = state.steps[-1].executions
    assert (begun.status, begun.may_have_run) == (ToolStatus.IN_DOUBT, True)
    assert (waiting.status, waiting.may_have_run) == (ToolStatus.CANCELLED, False)
    assert state.open_turn is None
    assert world.runs == {"run/1/0": 1}


async def test_a_run_that_is_cancelled_before_it_begins_tells_that_it_began() -> None:
    """Cancelled while its first record is written, a run has a beginning and an end, in the journal and for listeners (law 7)."""
    journal = MortalJournal([])
    journal.live(0)
    loop = loop_of(World(), CALLS, (), journal)
    told = list[str]()
    loop.wiretap(lambda event: told.append(type(event).__name__))
    going = asyncio.create_task(loop.execute("go", execution_id=RUN))
    journal.cancels = going
    with pytest.raises(asyncio.CancelledError):
        await going
    assert (told[0], told[-1]) == ("AgentExecutionStarted", "AgentExecutionStopped")
    assert (await journal.read(RUN))[-1].kind is RecordKind.EXECUTION_ENDED


async def test_a_message_stands_once_in_the_conversation() -> None:
    """What was sent to an execution before it was suspended is there once when the same process resumes it, and so is what came since."""
    world, journal = World(), MemoryJournal()
    loop = loop_of(world, [[("asked", "a")], [("pure", "b")]], (), journal)
    inbox = loop.inbox(RUN)

    def send(event: AgentStepStarted) -> None:
        if event.step_number == 1 and not world.runs and not inbox_was_used:
            inbox_was_used.append(event)
            inbox.send("before")

    inbox_was_used = list[AgentStepStarted]()
    loop.on(AgentStepStarted, send)
    state = await loop.execute("go", execution_id=RUN)
    assert [record.kind for record in await journal.read(RUN)].count(RecordKind.MESSAGES_SENT) == 1
    inbox.send("while it waits")
    inbox.send("before")
    state = await loop.resume(state, {call.key: approve() for call in state.pending})
    sent = [message.text for message in state.messages if message.role == "user"]
    assert sent == ["go", "before", "while it waits", "before"]


async def test_a_message_is_not_lost_when_a_resumption_is_cancelled_at_once() -> None:
    """What waits for an execution is in its final state, also when it is cancelled before it goes on."""
    world, journal = World(), MortalJournal([])
    loop = loop_of(world, [[("asked", "a")]], (), journal)
    loop.on(AgentStepStarted, lambda _: loop.inbox(RUN).send("a message"))
    state = await loop.execute("go", execution_id=RUN)
    other = loop_of(world, [[("asked", "a")]], (), journal)
    journal.live(0)
    going = asyncio.create_task(other.resume(RUN, {call.key: approve() for call in state.pending}))
    journal.cancels = going
    with pytest.raises(asyncio.CancelledError):
        await going
    found = fold_records(await journal.read(RUN), RUN).state
    assert found is not None
    assert found.status is ExecutionStatus.STOPPED
    assert [message.text for message in found.messages].count("a message") == 1


async def test_a_doubt_ends_the_execution_also_when_its_recovery_was_interrupted() -> None:
    """Under `fail` the execution fails wherever the recovery is interrupted that has written the doubt down."""
    world = World()
    journal = await interrupted(world, 0)
    loop = loop_of(world, CALLS, (), journal, in_doubt=InDoubt.FAIL)
    assert (await loop.recover(RUN)).status is ExecutionStatus.FAILED
    for count in range(5, len(await journal.read(RUN)) + 1):
        again = loop_of(world, CALLS, (), await cut(journal, RUN, count), in_doubt=InDoubt.FAIL)
        state = await again.recover(RUN)
        assert state.status is ExecutionStatus.FAILED, count
        assert "in doubt" in state.errors[-1].message
