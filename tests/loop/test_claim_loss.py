"""What a running execution does when it loses its claim."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from agentloop import AgentLoop, ToolCall, ToolCallingDriver, ToolContext, tool
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_journal import CanJournal, Claim
from agentloop.durable import Journal, MemoryJournal, SqliteJournal, open_journal
from agentloop.errors import CallSuspended, ClaimLost, ExecutionClaimed, JournalError
from agentloop.events import (
    AgentExecutionInterrupted,
    ExecutionClaimLost,
    ExecutionEnded,
    ProtocolMonitor,
    ToolCallCompleted,
)
from agentloop.interception import RequireApproval
from agentloop.models.scripted import ScriptedInference
from agentloop.testing.journal_network import UnreliableJournal
from agentloop.toolkits import Ensemble
from agentloop.values import ErrorInfo, InferenceDelta, InferenceRequest, InferenceResponse, RecordKind
from agentloop.values.event import Event
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import ToolStatus
from tests.durable.records import append_records

SECONDS = 10.0
"""How long a test waits for an end that has to come at once."""


@pytest.fixture
def storage(journal_place: str | None) -> Journal:
    """Return a journal of each kind."""
    return MemoryJournal() if journal_place is None else open_journal(journal_place)


class SilentModel(CanInfer):
    """A model that never answers."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Wait."""
        self.is_asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Wait."""
        yield await self.infer(request)


def watch(loop: AgentLoop) -> list[Event]:
    """Return the list into which the events of a loop go, checked by the grammar."""
    events: list[Event] = []
    loop.wiretap(ProtocolMonitor())
    loop.wiretap(events.append)
    return events


def losses(events: list[Event]) -> list[str]:
    """Return the reasons of the lost claims, and check that each ends its run."""
    for event, following in zip(events, [*events[1:], None], strict=True):
        if isinstance(event, ExecutionClaimLost):
            assert event.token > 0
            assert isinstance(following, AgentExecutionInterrupted)
    return [event.reason for event in events if isinstance(event, ExecutionClaimLost)]


async def test_a_lost_claim_interrupts_an_inference(storage: Journal) -> None:
    """The execution ends at once, stays in progress, and another driver continues it."""
    network, model = UnreliableJournal(storage), SilentModel()
    loop = AgentLoop(ToolCallingDriver(model), journal=network)
    events = watch(loop)
    running = asyncio.ensure_future(loop.execute("go", execution_id="run"))
    await model.is_asked.wait()
    await network.expire(tells=True)
    with pytest.raises(ClaimLost, match="the storage could not reach this process") as caught:
        await asyncio.wait_for(running, SECONDS)
    assert not running.cancelled()
    assert caught.value.execution_id == "run"
    assert caught.value.state is not None
    assert caught.value.state.status is ExecutionStatus.IN_PROGRESS
    assert losses(events) == ["the storage could not reach this process"]
    other = AgentLoop(ToolCallingDriver(ScriptedInference("done")), journal=storage)
    assert (await other.recover("run")).final_text == "done"
    await storage.aclose()


@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize("at", ["the last event", "the stop of a group"])
async def test_a_claim_that_is_lost_after_the_end_interrupts_nothing(
    storage: Journal, at: str, *, suspends: bool
) -> None:
    """The end is recorded: the execution returns its result, and what follows it, such as a listener, is not cut off."""
    network, after = UnreliableJournal(storage), list[str]()

    async def lose() -> None:
        await network.expire(tells=True)
        for _ in range(20):
            await asyncio.sleep(0)
        after.append(at)

    async def listen(event: Event) -> None:
        if at == "the last event" and isinstance(event, ExecutionEnded):
            await lose()

    async def stop() -> None:
        if at == "the stop of a group":
            await lose()

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    script = ([ToolCall("1", "pay", "{}")], "done")
    guards = [RequireApproval()] if suspends else []
    shop = Ensemble("shop", [pay], stop=stop)
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(*script)), [shop], journal=network, interceptors=guards)
    events = watch(loop)
    loop.wiretap(listen)
    state = await asyncio.wait_for(loop.execute("go", execution_id="run"), SECONDS)
    assert state.status is (ExecutionStatus.SUSPENDED if suspends else ExecutionStatus.COMPLETED)
    assert after == [at]
    assert losses(events) == []
    assert await storage.state("run") == state
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await storage.aclose()


async def test_a_task_can_be_cancelled_after_a_lost_claim() -> None:
    """The loss leaves no cancellation behind in the task that ran the execution."""
    network, model = UnreliableJournal(MemoryJournal()), SilentModel()

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(ClaimLost):
            await AgentLoop(ToolCallingDriver(model), journal=network).execute("go", execution_id="run")
        assert task.cancelling() == 0

    running = asyncio.ensure_future(run())
    await model.is_asked.wait()
    await network.expire(tells=True)
    await asyncio.wait_for(running, SECONDS)


class LosesItsClaim(UnreliableJournal):
    """A journal whose claim on an execution is lost at one of its appends: at once, soon after it, or some turns later."""

    def __init__(self, at: int, turns: int) -> None:
        super().__init__(MemoryJournal())
        self.appends, self._at, self._turns = 0, at, turns

    async def append(self, *arguments: Any) -> None:
        """Append, and lose the claim."""
        self.appends += 1
        await super().append(*arguments)
        if self.appends == self._at:
            self._lose_after(self._turns)

    def _lose_after(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._lose_after, turns - 1)
        else:
            self.lose("run")


@pytest.mark.parametrize("turns", range(4))
async def test_a_claim_that_is_lost_at_any_append_is_a_lost_claim_whoever_notices_it_first(turns: int) -> None:
    """The task of the run may find the loss before it is told of it. It gets `ClaimLost`, and no cancellation stays behind."""

    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    task, script = asyncio.current_task(), ([ToolCall("1", "pay", "{}")], [ToolCall("2", "pay", "{}")], "done")
    assert task is not None
    ends: set[str] = set()
    for at in range(1, 100):
        journal = LosesItsClaim(at, turns)
        try:
            await AgentLoop(ToolCallingDriver(ScriptedInference(*script)), [pay], journal=journal).execute(
                "go", execution_id="run"
            )
            ends.add("ended")
        except ClaimLost:
            ends.add("lost")
        assert task.cancelling() == 0
        for _ in range(3):
            await asyncio.sleep(0)
        if journal.appends < at:
            break
    assert ends == {"ended", "lost"}


@pytest.mark.parametrize("nested", [False, True])
async def test_a_tool_that_runs_is_cancelled_when_the_loss_is_told(storage: Journal, *, nested: bool) -> None:
    """At once: it does nothing more beside the driver that has taken over, and no further call begins. Its call is in doubt."""
    network, begun, pays, log = UnreliableJournal(storage), asyncio.Event(), asyncio.Event(), list[str]()

    @tool
    async def pay(n: int) -> str:
        """Pay."""
        begun.set()
        try:
            await pays.wait()
        except asyncio.CancelledError:
            log.append(f"cancelled {n}")
            raise
        log.append(f"paid {n}")
        return "paid"

    @tool(sequential=True)
    async def ship() -> str:
        """Ship."""
        log.append("shipped")
        return "shipped"

    calls = [ToolCall("1", "pay", '{"n": 1}'), ToolCall("2", "ship", "{}")]

    def driver(journal: CanJournal) -> AgentLoop:
        loop = AgentLoop(ToolCallingDriver(ScriptedInference(calls, "done")), [pay, ship], journal=journal)
        if not nested:
            return loop
        clerk = AgentLoop(ToolCallingDriver(ScriptedInference(calls, "done")), [pay, ship]).as_tool("clerk", "Works.")
        asks = ScriptedInference([ToolCall("1", "clerk", '{"task": "work"}')], "done")
        return AgentLoop(ToolCallingDriver(asks), [clerk], journal=journal)

    first = driver(network)
    events = watch(first)
    running = asyncio.ensure_future(first.execute("go", execution_id="run"))
    await begun.wait()
    await network.expire(tells=True)
    with pytest.raises(ClaimLost):
        await asyncio.wait_for(running, SECONDS)
    assert log == ["cancelled 1"]
    assert losses(events)
    pays.set()
    state = await driver(storage).recover("run")
    (inner,) = state.steps[0].executions if nested else (None,)
    executions = state.steps[0].executions if inner is None else (await _state_of_clerk(storage)).steps[0].executions
    assert [execution.status for execution in executions] == [ToolStatus.IN_DOUBT, ToolStatus.SUCCEEDED]
    assert log == ["cancelled 1", "shipped"]
    assert await storage.verify() == ()
    await storage.aclose()


async def _state_of_clerk(storage: Journal) -> AgentState:
    (clerk,) = [head.execution_id for head in await storage.list() if head.execution_id != "run"]
    return await storage.state(clerk)


async def test_a_tool_in_a_thread_can_ask_whether_its_result_is_still_of_use() -> None:
    """It cannot be interrupted. Once the loss is told, its context says so, and its driver does not wait for it."""
    network, begun, asked, ended = UnreliableJournal(MemoryJournal()), *[threading.Event() for _ in range(3)]
    log = list[str]()

    @tool
    def pay(context: ToolContext) -> str:
        """Pay, unless nobody needs it any more."""
        closed = [context.is_closed]
        begun.set()
        assert asked.wait(SECONDS)
        closed.append(context.is_closed)
        log.append("left" if closed == [False, True] else "paid")
        ended.set()
        return "paid"

    loop = AgentLoop(ToolCallingDriver(ScriptedInference([ToolCall("1", "pay", "{}")], "done")), [pay], journal=network)
    running = asyncio.ensure_future(loop.execute("go", execution_id="run"))
    assert await asyncio.to_thread(begun.wait, SECONDS)
    await network.expire(tells=True)
    with pytest.raises(ClaimLost):
        await asyncio.wait_for(running, SECONDS)
    asked.set()
    assert await asyncio.to_thread(ended.wait, SECONDS)
    assert log == ["left"]


async def test_an_outcome_whose_record_is_cut_off_by_the_loss_is_told_to_nobody() -> None:
    """The tool has ended, and its append waits when the loss is told: the event does not say how the call ended."""
    storage = MemoryJournal()

    class Waiting(UnreliableJournal):
        async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
            if any(record.kind is RecordKind.CALL_OUTCOME for record in records):
                appending.set()
                await asyncio.Event().wait()
            await super().append(head, records, claim)

    network, appending = Waiting(storage), asyncio.Event()

    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    loop = AgentLoop(ToolCallingDriver(ScriptedInference([ToolCall("1", "pay", "{}")], "done")), [pay], journal=network)
    events = watch(loop)
    running = asyncio.ensure_future(loop.execute("go", execution_id="run"))
    await appending.wait()
    await network.expire(tells=True)
    with pytest.raises(ClaimLost):
        await asyncio.wait_for(running, SECONDS)
    (ended,) = [event.execution for event in events if isinstance(event, ToolCallCompleted)]
    assert (ended.status, ended.value, ended.may_have_run) == (ToolStatus.CANCELLED, None, True)


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize("end", ["return", "raise", "suspend"])
@pytest.mark.parametrize("effect", ["pure", "idempotent", "effect"])
async def test_an_outcome_that_came_after_the_loss_is_none_of_this_driver(
    effect: Literal["pure", "idempotent", "effect"], end: str, *, tells: bool
) -> None:
    """No event tells how the call ended, which the next driver finds out, but whether it may have had its effect."""
    storage, ran = MemoryJournal(), list[str]()
    network = UnreliableJournal(storage)

    @tool(effect=effect)
    async def pay() -> str:
        """Pay, and lose the claim at the first time."""
        ran.append("paid")
        if len(ran) > 1:
            return "paid again"
        await network.expire(tells=tells)
        if end == "suspend":
            raise CallSuspended("ask")
        if end == "raise":
            raise OSError("no receipt")
        return "paid"

    script = ([ToolCall("1", "pay", "{}")], "done")
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(*script)), [pay], journal=network)
    events = watch(loop)
    with pytest.raises(ClaimLost):
        await loop.execute("go", execution_id="run")
    ended = [event.execution for event in events if isinstance(event, ToolCallCompleted)]
    told = [(each.status, each.value, each.error and each.error.type, each.may_have_run) for each in ended]
    assert told == ([] if end == "suspend" else [(ToolStatus.CANCELLED, None, "ClaimLost", effect != "pure")])
    assert len(losses(events)) == 1
    state = await AgentLoop(ToolCallingDriver(ScriptedInference(*script)), [pay], journal=storage).recover("run")
    (execution,) = state.steps[0].executions
    expected = (ToolStatus.IN_DOUBT, None) if effect == "effect" else (ToolStatus.SUCCEEDED, "paid again")
    assert (execution.status, execution.value) == expected
    assert len(ran) == (1 if effect == "effect" else 2)


async def test_a_driver_that_was_not_told_stops_at_its_next_append(storage: Journal) -> None:
    """The call whose intent is refused does not run, although the driver knew of nothing."""
    network, ran = UnreliableJournal(storage), list[str]()

    async def take_over(request: InferenceRequest) -> None:
        await network.expire(tells=False)
        await (await storage.claim("run")).release()

    class Model(ScriptedInference):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            await take_over(request)
            return await super().infer(request)

    @tool
    async def pay() -> str:
        """Pay."""
        ran.append("paid")
        return "paid"

    loop = AgentLoop(ToolCallingDriver(Model([ToolCall("1", "pay", "{}")], "done")), [pay], journal=network)
    with pytest.raises(ClaimLost):
        await loop.execute("go", execution_id="run")
    assert not ran
    await storage.aclose()


async def test_the_loss_of_a_callers_claim_stops_its_agents(storage: Journal) -> None:
    """An agent that waits for its model is interrupted, and its execution stays in progress, too."""
    network, model = UnreliableJournal(storage), SilentModel()
    child = AgentLoop(ToolCallingDriver(model)).as_tool("clerk", "Works.")
    script = [ToolCall("1", "clerk", '{"task": "work"}')]
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(script, "done")), [child], journal=network)
    running = asyncio.ensure_future(loop.execute("go", execution_id="run"))
    await model.is_asked.wait()
    network.lose("run")
    with pytest.raises(ClaimLost) as caught:
        await asyncio.wait_for(running, SECONDS)
    assert caught.value.execution_id == "run"
    heads = await storage.list()
    assert len(heads) == 2
    assert {head.status for head in heads} == {ExecutionStatus.IN_PROGRESS}
    await storage.aclose()


async def test_the_loss_of_an_agents_claim_ends_its_caller(storage: Journal) -> None:
    """The caller records no outcome of the call, so that its recovery continues the agent, once."""
    network, model = UnreliableJournal(storage), SilentModel()
    child = AgentLoop(ToolCallingDriver(model)).as_tool("clerk", "Works.")
    script = ([ToolCall("1", "clerk", '{"task": "work"}')], "done")
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(*script)), [child], journal=network)
    running = asyncio.ensure_future(loop.execute("go", execution_id="run"))
    await model.is_asked.wait()
    (below,) = [head.execution_id for head in await storage.list() if head.execution_id != "run"]
    network.lose(below)
    with pytest.raises(ClaimLost) as caught:
        await asyncio.wait_for(running, SECONDS)
    assert caught.value.execution_id == below
    await network.expire(tells=True)
    again = AgentLoop(ToolCallingDriver(ScriptedInference("worked"))).as_tool("clerk", "Works.")
    state = await AgentLoop(ToolCallingDriver(ScriptedInference(*script)), [again], journal=storage).recover("run")
    assert [execution.text for execution in state.steps[0].executions] == ["worked"]
    assert state.final_text == "done"
    assert len(await storage.list()) == 2
    await storage.aclose()


async def test_an_agent_that_another_process_drives_interrupts_its_recovered_caller(tmp_path: Path) -> None:
    """The caller records no outcome of the call; it continues when the agent is free."""
    path, model = tmp_path / "j.db", SilentModel()
    first, second = SqliteJournal(path), SqliteJournal(path)
    script = ([ToolCall("1", "clerk", '{"task": "work"}')], "done")
    child = AgentLoop(ToolCallingDriver(model)).as_tool("clerk", "Works.")
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(*script)), [child], journal=first)
    running = asyncio.ensure_future(loop.execute("go", execution_id="run"))
    await model.is_asked.wait()
    running.cancel()
    await asyncio.wait((running,))
    (below,) = [head.execution_id for head in await first.list() if head.execution_id != "run"]
    claim = await first.claim(below)
    again = AgentLoop(ToolCallingDriver(ScriptedInference("worked"))).as_tool("clerk", "Works.")
    recovering = AgentLoop(ToolCallingDriver(ScriptedInference(*script)), [again], journal=second)
    events = watch(recovering)
    for _ in range(2):
        with pytest.raises(ExecutionClaimed) as caught:
            await recovering.recover("run")
        assert caught.value.execution_id == below
        assert isinstance(events[-1], AgentExecutionInterrupted)
    kinds = {record.kind for record in await second.read("run")}
    assert not kinds & {RecordKind.CALL_OUTCOME, RecordKind.STEP_COMPLETED, RecordKind.EXECUTION_ENDED}
    await claim.release()
    state = await recovering.recover("run")
    assert [execution.text for execution in state.steps[0].executions] == ["worked"]
    assert state.final_text == "done"
    await first.aclose()
    await second.aclose()


async def test_an_execution_in_the_way_that_is_no_agent_of_the_call_is_a_failure_of_its_tool(storage: Journal) -> None:
    """Only an agent that serves the call interrupts its caller."""
    claim = await storage.claim("other")

    @tool
    async def clean() -> str:
        """Delete an execution that runs."""
        await storage.delete("other")
        return "deleted"

    await append_records(storage, "other", "{}", claim=claim)
    script = ([ToolCall("1", "clean", "{}")], "done")
    state = await AgentLoop(ToolCallingDriver(ScriptedInference(*script)), [clean], journal=storage).execute("go")
    (execution,) = state.steps[0].executions
    assert execution.status is ToolStatus.FAILED
    assert execution.error is not None
    assert execution.error.type == "ExecutionClaimed"
    await storage.aclose()


@pytest.mark.parametrize(
    ("lost", "interrupts"),
    [
        ("", False),
        ("other", False),
        ("runner", False),
        ("runner/1/0/agent", False),
        ("run", True),
        ("run/1/0/agent", True),
        ("run/1/0/agent/2/0/agent", True),
    ],
)
async def test_a_tool_whose_claim_is_lost_interrupts_its_execution_only_if_that_is_above_it(
    lost: str, *, interrupts: bool
) -> None:
    """A claim on any other execution is a matter of the tool, which has failed."""
    journal = MemoryJournal()

    @tool
    async def clean() -> str:
        """Write to an execution."""
        raise ClaimLost("lost", execution_id=lost)

    script = ([ToolCall("1", "clean", "{}")], "done")
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(*script)), [clean], journal=journal)
    if interrupts:
        with pytest.raises(ClaimLost, match="lost"):
            await loop.execute("go", execution_id="run")
    else:
        (execution,) = (await loop.execute("go", execution_id="run")).steps[0].executions
        assert (execution.status, execution.error) == (ToolStatus.FAILED, ErrorInfo("ClaimLost", "lost"))
    kinds = [record.kind for record in await journal.read("run")]
    assert (RecordKind.CALL_INTENT in kinds, RecordKind.CALL_OUTCOME in kinds) == (True, not interrupts)


class StickyJournal(MemoryJournal):
    """A journal that cannot release claims."""

    async def claim(self, execution_id: str) -> Claim:
        """Claim an execution for ever."""
        claim = await super().claim(execution_id)
        claim.release = self._refuse  # type: ignore[method-assign]
        return claim

    async def _refuse(self) -> None:
        raise JournalError("the storage is gone")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_claim_that_cannot_be_released_does_not_hide_the_result(
    caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    """The execution returns its state, with its own error if it has one; the failure is logged."""
    model = ScriptedInference(ValueError("broken") if fails else "done")
    loop = AgentLoop(ToolCallingDriver(model), journal=StickyJournal())
    with caplog.at_level(logging.WARNING, logger="agentloop.journal"):
        state = await loop.execute("go", execution_id="run")
    assert [error.message for error in state.errors] == (["broken"] if fails else [])
    assert state.final_text == (None if fails else "done")
    assert ["could not be released" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("create", [MemoryJournal, lambda: None])
async def test_tools_get_the_token_of_the_claim(create: Callable[[], Any]) -> None:
    """It grows when the execution is driven again, and is None without a journal."""
    journal, tokens = create(), list[int | None]()

    @tool(repeatable=True)
    async def look(context: ToolContext) -> str:
        """Look."""
        tokens.append(context.claim_token)
        if len(tokens) == 1:
            raise asyncio.CancelledError
        return "seen"

    script = ([ToolCall("1", "look", "{}")], [ToolCall("2", "look", "{}")], "done")
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(*script)), [look], journal=journal)
    await loop.execute("go", execution_id="run")
    await loop.execute("go", execution_id="again")
    if journal is None:
        assert tokens == [None] * 4
    else:
        first, second = tokens[1], tokens[3]
        assert first is not None
        assert second is not None
        assert tokens == [first, first, second, second]
        assert second > first > 0
