"""The errors of an execution whose journal cannot be written."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, tool
from agentloop.contracts.can_journal import Claim
from agentloop.durable import MemoryJournal
from agentloop.durable.recorder import ExecutionRecorder
from agentloop.errors import JournalBusy, JournalError
from agentloop.events import ExecutionEnded
from agentloop.testing import ManualClock, run_in_virtual_time
from agentloop.values import InferenceRequest, InferenceResponse, Message
from agentloop.values.interruptions import interrupted_state
from agentloop.values.records import ExecutionHead, InDoubt, JournalRecord
from agentloop.values.steps import ExecutionStatus
from tests.durable.replaying.bench import loop_of
from tests.limits import turns_of_the_event_loop


@tool(effect="pure")
def look_up(word: str) -> str:
    """Look a word up."""
    return f"a {word}"


class SlowModel(ScriptedInference):
    """Takes ten seconds for each response."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        await asyncio.sleep(10)
        return await super().infer(request)


class FailingJournal(MemoryJournal):
    """Raises an error at one of its appends, counted from 1."""

    def __init__(self, failing_append: int, error: BaseException) -> None:
        super().__init__()
        self.remaining, self.error = failing_append, error

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        self.remaining -= 1
        if self.remaining == 0:
            raise self.error
        await super().append(head, records, claim)


@pytest.mark.parametrize("failing_append", range(1, 9))
async def test_every_error_of_a_journal_is_raised_as_a_journal_error(failing_append: int) -> None:
    """The original error is the cause, and no exception of a task is left unretrieved."""
    unretrieved: list[Mapping[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unretrieved.append(context))
    journal = FailingJournal(failing_append, OSError("the disk is gone"))
    with pytest.raises(JournalError, match="its journal raised OSError: the disk is gone") as caught:
        await loop_of(journal=journal).execute("What about my orders?", execution_id="run")
    assert caught.value.__cause__ is journal.error
    assert interrupted_state(caught.value) is not None
    claim = await journal.claim("run")
    await claim.release()
    del caught
    gc.collect()
    assert not unretrieved


@pytest.mark.parametrize("failing_append", range(1, 9))
async def test_a_journal_that_awaits_what_another_task_cancelled_has_failed(failing_append: int) -> None:
    """The execution is not cancelled: it ends by an error of its journal, and continues with one that works."""
    journal, ends = FailingJournal(failing_append, asyncio.CancelledError("by the pool")), list[str]()
    loop = loop_of(journal=journal)
    loop.wiretap(lambda event: ends.append(type(event).__name__) if isinstance(event, ExecutionEnded) else None)
    with pytest.raises(JournalError, match="its journal raised ForeignCancellation: the journal Failing") as caught:
        await loop.execute("What about my orders?", execution_id="run")
    assert interrupted_state(caught.value) is not None
    assert ends == ["AgentExecutionInterrupted"] * (failing_append > 1)  # else it has not started
    if failing_append > 1:
        assert (await loop_of(journal=journal).recover("run")).status is ExecutionStatus.COMPLETED


class HangingJournal(MemoryJournal):
    """Never returns from its third append."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.hangs = 0, asyncio.Event()

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        self.count += 1
        if self.count == 3:
            self.hangs.set()
            await asyncio.Event().wait()
        await super().append(head, records, claim)


async def test_an_event_loop_that_ends_while_a_journal_writes_cancels_the_execution() -> None:
    """`asyncio.run` cancels all tasks, also the one that writes: that is no failure of the journal."""
    journal = HangingJournal()
    task = asyncio.create_task(loop_of(journal=journal).execute("What about my orders?", execution_id="run"))
    await journal.hangs.wait()
    for each in asyncio.all_tasks() - {asyncio.current_task()}:
        each.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    state = interrupted_state(caught.value)
    assert state is not None
    assert state.status is ExecutionStatus.IN_PROGRESS


class HeldUpJournal(MemoryJournal):
    """Fails its second append as soon as it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.writes, self.may_fail = 0, asyncio.Event(), asyncio.Event()

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        self.count += 1
        if self.count == 2:
            self.writes.set()
            await self.may_fail.wait()
            raise OSError("the disk is gone")
        await super().append(head, records, claim)


async def test_closing_waits_for_a_running_write_and_does_not_raise_its_error() -> None:
    """Who needs the records to be durable has waited for them; the others learn nothing from an error at the end."""
    journal = HeldUpJournal()
    recorder = await ExecutionRecorder.open(journal, "run", InDoubt.TELL, ManualClock())
    await recorder.start(AgentState.start("go").with_execution_started("run", ManualClock().now()))
    recorder.record_taken([Message.user("more")], 1)
    flushing = asyncio.ensure_future(recorder.flush())
    await journal.writes.wait()
    closing = asyncio.ensure_future(recorder.aclose())
    await turns_of_the_event_loop()
    assert not closing.done()
    journal.may_fail.set()
    await closing
    with pytest.raises(JournalError, match="the disk is gone"):
        await flushing


class BusyJournal(MemoryJournal):
    """Is locked by somebody else for some seconds from its second append on."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds, self._since = seconds, 0.0
        self.append_count = 0

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        now = asyncio.get_running_loop().time()
        self.append_count += 1
        if self.append_count == 2:
            self._since = now
        if self.append_count >= 2 and now < self._since + self._seconds:
            raise JournalBusy("locked")
        await super().append(head, records, claim)


def test_an_execution_waits_while_its_journal_is_busy() -> None:
    """Records wait in memory for up to 60 seconds and are then written in order; nothing runs twice."""
    journal = BusyJournal(59)
    state = run_in_virtual_time(loop_of(journal=journal).execute("What about my orders?", execution_id="run"))
    assert state.status is ExecutionStatus.COMPLETED
    assert asyncio.run(journal.verify()) == ()
    assert journal.append_count > 100


def test_an_execution_ends_when_its_journal_is_busy_for_too_long() -> None:
    """The error is that of the journal."""
    with pytest.raises(JournalBusy, match="locked"):
        run_in_virtual_time(loop_of(journal=BusyJournal(61)).execute("What about my orders?", execution_id="run"))


def test_what_nothing_waits_for_is_written_soon() -> None:
    """While a model takes its time, those who follow the execution see the step before it."""

    async def look() -> int:
        journal = MemoryJournal()
        model = SlowModel(ToolCall("1", "look_up", '{"word": "lamp"}'), "A lamp.")
        loop = AgentLoop.for_model(model, tools=[look_up], journal=journal)
        running = asyncio.create_task(loop.execute("What is it?", execution_id="slow"))
        await asyncio.sleep(10.5)
        head = await journal.head("slow")
        await running
        return 0 if head is None else head.step_count

    assert run_in_virtual_time(look()) == 1
