"""Journals: decisions, nested executions, claims, interruptions, size, crashes, secrets and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from base64 import b64encode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager, closing, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, quote_plus

import pytest
from attrs import evolve

from agentloop import (
    AgentLoop,
    AgentLoopError,
    AgentState,
    AgentStop,
    Interceptor,
    RequireApproval,
    Tool,
    ToolContext,
    ToolExecution,
    tool,
)
from agentloop.contracts.can_journal import Claim
from agentloop.durable import Journal, MemoryJournal, SqliteJournal
from agentloop.durable.sqlite.schema import SCHEMA_VERSION
from agentloop.errors import (
    ConfigurationError,
    DecisionError,
    JournalBusy,
    JournalConflict,
    JournalError,
    UnknownExecution,
)
from agentloop.events import EventBus, ToolCallRateLimited
from agentloop.events.execution import (
    AgentExecutionCompleted,
    AgentExecutionFailed,
    AgentExecutionStopped,
    AgentExecutionSuspended,
)
from agentloop.interception import AroundToolUse, BeforeStep, ProceedToolUse
from agentloop.policies import Resilience
from agentloop.service.cli.main import main
from agentloop.values import (
    Event,
    ExecutionHead,
    ExecutionStatus,
    InDoubt,
    JournalRecord,
    RateLimit,
    ToolStatus,
    approve,
    did_not_happen,
    edit,
)
from agentloop.values.decisions import CallSuspended
from agentloop.values.records import DidNotHappen
from tests.durable.recovery_bench import Model

ROOT = Path(__file__).parents[2]
RUN = "run"


def fails(reason: str) -> pytest.MarkDecorator:
    """Mark a test of a known defect."""
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)


# --- processes that die ----------------------------------------------------------------------------------------------


class Place:
    """A folder with the journal of one process, and a copy of it from the moment when the process is killed.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.file = folder / "runs.db"
        self._left: Path | None = None
        self._is_dead = asyncio.Event()

    async def die(self) -> None:
        """Simulate `kill -9`: copy the files as they are, and never return."""
        left = self.folder.with_name(f"{self.folder.name}+")
        shutil.copytree(self.folder, left)
        self._left = left
        self._is_dead.set()
        await asyncio.Event().wait()

    async def killed_in(self, running: Coroutine[Any, Any, AgentState]) -> Place:
        """Run until the process dies; return the folder that the next process uses."""
        run, death = asyncio.create_task(running), asyncio.create_task(self._is_dead.wait())
        await asyncio.wait({run, death}, return_when=asyncio.FIRST_COMPLETED)
        run.cancel()
        death.cancel()
        await asyncio.gather(run, death, return_exceptions=True)
        if self._left is None:
            raise RuntimeError("the process did not reach the point where it is killed")
        return Place(self._left)


@asynccontextmanager
async def opened(file: Path, **options: Any) -> AsyncIterator[SqliteJournal]:
    """Open a journal; close it on exit."""
    async with aclosing(SqliteJournal(file, **options)) as journal:
        yield journal


Dies = Literal["before", "after"]


class Bank:
    """Counts the payments of any number of processes.

    Attributes:
        paid: the amounts.
    """

    def __init__(self) -> None:
        self.paid: list[int] = []

    def tool(self, place: Place | None = None, dies: Dies | None = None) -> Tool:
        """Return a tool that pays, in a process that dies before or after the payment."""

        @tool
        async def pay(cents: int) -> str:
            """Pay."""
            if dies == "before" and place is not None:
                await place.die()
            self.paid.append(cents)
            if dies == "after" and place is not None:
                await place.die()
            return f"paid {cents}"

        return pay


def payer(bank_tool: Tool, **options: Any) -> AgentLoop:
    """Return an agent that pays once and answers `done`."""
    return AgentLoop.for_model(Model([("pay", {"cents": 5})], "done"), tools=[bank_tool], **options)


def asking_clerk(clerk: AgentLoop, **options: Any) -> AgentLoop:
    """Return an agent that delegates the work to another agent."""
    model = Model([("clerk", {"task": "pay"})], "done")
    return AgentLoop.for_model(model, tools=[clerk.as_tool("clerk", "Does it.")], **options)


def nested(bank_tool: Tool, depth: int, journal: SqliteJournal, inner: Sequence[Interceptor] = ()) -> AgentLoop:
    """Return an agent that pays, nested below `depth` others, and suspends calls in doubt."""
    options: list[dict[str, Any]] = [{} for _ in range(depth + 1)]
    options[-1] |= {"journal": journal, "in_doubt": InDoubt.SUSPEND}
    options[0] |= {"interceptors": inner}
    loop = payer(bank_tool, **options[0])
    for level in options[1:]:
        loop = asking_clerk(loop, **level)
    return loop


# --- decisions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 1, 2], ids=["the agent itself", "1 below", "2 below"])
@pytest.mark.parametrize("cause", ["a doubt", "an approval"])
async def test_one_approval_is_one_payment(tmp_path: Path, depth: int, cause: str) -> None:
    """A call that was approved once, ran, and is in doubt again suspends again, at any depth."""
    bank, place = Bank(), Place(tmp_path / "a")
    guards = [RequireApproval()] if cause == "an approval" else []
    async with opened(place.file) as journal:
        if guards:
            await nested(bank.tool(), depth, journal, guards).execute("go", execution_id=RUN)
        else:
            first = nested(bank.tool(place, "before"), depth, journal)
            place = await place.killed_in(first.execute("go", execution_id=RUN))
    async with opened(place.file) as journal:
        second = nested(bank.tool(place, "after"), depth, journal, guards)
        suspended = await second.recover(RUN)
        decisions = {call.key: approve(call.digest) for call in suspended.pending if call.call.name == "pay"}
        assert (suspended.status, len(decisions), bank.paid) == (ExecutionStatus.SUSPENDED, 1, [])
        place = await place.killed_in(second.resume(RUN, decisions))
    async with opened(place.file) as journal:
        state = await nested(bank.tool(), depth, journal, guards).recover(RUN)
    assert (bank.paid, state.status) == ([5], ExecutionStatus.SUSPENDED)


@pytest.mark.parametrize("depth", [0, 1, 2], ids=["the agent itself", "1 below", "2 below"])
@pytest.mark.parametrize("kind", ["approve", "edit", "without digest"])
async def test_each_doubt_needs_a_decision_of_its_own(tmp_path: Path, depth: int, kind: str) -> None:
    """Of two doubts about one call, each has a digest of its own, and a decision about the first is refused for the second."""
    bank, place = Bank(), Place(tmp_path / "a")
    seen: list[str] = []
    for dies in ("before", "before", "before"):
        async with opened(place.file) as journal:
            loop = nested(bank.tool(place, dies), depth, journal)
            running = loop.execute("go", execution_id=RUN)
            if await journal.head(RUN) is not None:
                suspended = await loop.recover(RUN)
                (call,) = [call for call in suspended.pending if call.call.name == "pay"]
                if seen:
                    with pytest.raises(DecisionError, match="or suspension than"):
                        await loop.resume(RUN, {call.key: approve(seen[-1])})
                seen.append(call.digest)
                digest = "" if kind == "without digest" else call.digest
                decision = edit({"cents": 6}, digest) if kind == "edit" else approve(digest)
                running.close()
                running = loop.resume(RUN, {call.key: decision})
            place = await place.killed_in(running)
    async with opened(place.file) as journal:
        state = await nested(bank.tool(), depth, journal).recover(RUN)
    assert (len(set(seen)), bank.paid, state.status) == (2, [], ExecutionStatus.SUSPENDED)


@pytest.mark.parametrize("depth", [0, 1, 2], ids=["the agent itself", "1 below", "2 below"])
async def test_a_call_that_its_tool_suspends_again_needs_another_decision(depth: int) -> None:
    """An approved call whose tool suspends it waits in a second suspension, which the first approval does not decide."""
    journal, runs = MemoryJournal(), list[int]()

    @tool
    async def sign(context: ToolContext) -> str:
        """Sign."""
        runs.append(0 if context.resumed is None else context.resumed.suspension)
        if context.resumed is None:
            raise CallSuspended("show the document")
        return "signed"

    loop = AgentLoop.for_model(Model([("sign", {})], "done"), tools=[sign], interceptors=[RequireApproval()])
    for _ in range(depth):
        loop = asking_clerk(loop)
    loop = loop.replace(journal=journal)
    first = await loop.execute("go", execution_id=RUN)
    decisions = {call.key: approve(call.digest) for call in first.pending if call.call.name == "sign"}
    second = await loop.resume(first, decisions)
    with pytest.raises(DecisionError, match="or suspension than"):
        await loop.resume(second, decisions)
    (call,) = [call for call in second.pending if call.call.name == "sign"]
    state = await loop.resume(second, {call.key: approve(call.digest)})
    assert (runs, call.suspension, state.status) == ([0, 2], 2, ExecutionStatus.COMPLETED)


# --- trees of executions ---------------------------------------------------------------------------------------------


async def test_results_of_a_deleted_execution_are_not_reused() -> None:
    """After an execution is deleted, an execution with the same id repeats all work, including that of sub-agents."""
    bank, journal = Bank(), MemoryJournal()
    for _ in range(2):
        await journal.delete(RUN)
        await asking_clerk(payer(bank.tool()), journal=journal).execute("go", execution_id=RUN)
    assert bank.paid == [5, 5]


@pytest.mark.parametrize("how", ["delete", "purge"])
async def test_a_tree_of_executions_is_deleted_together(how: str) -> None:
    """Executions of sub-agents are deleted together with that of their caller, neither later nor earlier."""
    journal = MemoryJournal()
    await asking_clerk(payer(Bank().tool()), journal=journal).execute("go", execution_id=RUN)
    children = [head for head in await journal.list() if head.execution_id != RUN]
    assert children
    if how == "delete":
        await journal.delete(RUN)
    else:
        between = max(head.updated_at for head in children)
        root = await journal.head(RUN)
        assert root is not None
        assert root.updated_at > between
        await journal.purge(root.updated_at)  # before this: the agent below has ended earlier, its caller has not
    left = {head.execution_id for head in await journal.list()}
    assert left in (set(), {RUN, *[head.execution_id for head in children]})


class DyingAfter(Interceptor):
    """Dies when a tool has returned, before its result is recorded.

    Args:
        name: the name of the tool.
        place: the folder of the process.
    """

    def __init__(self, name: str, place: Place) -> None:
        self._name = name
        self._place = place

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        execution = await proceed()
        if execution.call.name == self._name:
            await self._place.die()
        return execution


async def test_the_sub_agents_of_an_unfinished_execution_are_not_purged(tmp_path: Path) -> None:
    """The records of a completed sub-agent are retained while its caller is in progress."""
    bank, place = Bank(), Place(tmp_path / "a")
    async with opened(place.file) as journal:
        dying = asking_clerk(payer(bank.tool()), journal=journal, interceptors=[DyingAfter("clerk", place)])
        place = await place.killed_in(dying.execute("go", execution_id=RUN))
    async with opened(place.file) as journal:
        await journal.purge(datetime.now(UTC))
        state = await asking_clerk(payer(bank.tool()), journal=journal).recover(RUN)
    assert (bank.paid, state.status) == ([5], ExecutionStatus.COMPLETED)


async def test_an_execution_of_a_user_is_not_used_as_the_answer_of_a_sub_agent() -> None:
    """A user's execution with the id of a sub-agent's execution does not replace it; the id may also be rejected."""
    bank, journal = Bank(), MemoryJournal()
    loop = asking_clerk(payer(bank.tool()), journal=journal)
    await loop.execute("go", execution_id="other")
    (inner,) = [head.execution_id for head in await journal.list() if head.execution_id != "other"]
    bank.paid.clear()
    own = AgentLoop.for_model(Model("an answer to something else"), journal=journal)
    with suppress(AgentLoopError, ValueError):
        await own.execute("go", execution_id=inner.replace("other", RUN))
    await loop.execute("go", execution_id=RUN)
    assert bank.paid == [5]


@pytest.mark.parametrize("how", ["delete", "purge"])
async def test_a_fork_that_reuses_effects_never_runs_them(how: str) -> None:
    """When the original of a fork was deleted, the fork is rejected and does not repeat the effects that it reuses."""
    bank, journal = Bank(), MemoryJournal()
    loop = payer(bank.tool(), journal=journal)
    await loop.execute("go", execution_id=RUN)
    fork = await journal.fork(RUN, 0, effects="reuse")
    with suppress(JournalError):
        await (journal.delete(RUN) if how == "delete" else journal.purge(datetime.now(UTC)))
    with suppress(JournalError):
        await loop.recover(fork)
    assert bank.paid == [5]


async def test_the_original_of_an_unfinished_fork_is_not_purged() -> None:
    """An execution is retained while a fork that reuses its effects is in progress, and can be purged afterwards."""
    bank, journal = Bank(), MemoryJournal()
    loop = payer(bank.tool(), journal=journal)
    await loop.execute("go", execution_id=RUN)
    fork = await journal.fork(RUN, 0, effects="reuse")
    await journal.purge(datetime.now(UTC))
    assert await journal.head(RUN) is not None
    await loop.recover(fork)
    await journal.purge(datetime.now(UTC))
    assert await journal.head(RUN) is None


@pytest.fixture(params=["memory", "sqlite"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    """Return a journal of each kind."""
    async with aclosing(
        MemoryJournal() if request.param == "memory" else SqliteJournal(tmp_path / "runs.db")
    ) as opened:
        yield opened


BELOW = (f"{RUN}/1/0/agent", f"{RUN}/1/0/agent/1/0/agent")


async def test_a_deep_tree_is_deleted_whole_or_not_at_all(journal: Journal) -> None:
    """Neither an execution below another one nor a tree with a claimed execution can be deleted or purged."""
    bank = Bank()

    def loop() -> AgentLoop:
        return asking_clerk(asking_clerk(payer(bank.tool())), journal=journal)

    await loop().execute("go", execution_id=RUN)
    now = datetime.now(UTC)
    for below in BELOW:
        with pytest.raises(JournalConflict, match=f"delete {RUN}$"):
            await journal.delete(below)
        claim = await journal.claim(below)
        with pytest.raises(JournalConflict, match=f"execution {below} is claimed"):
            await journal.delete(RUN)
        assert await journal.purge(now) == 0
        await claim.release()
    assert {head.execution_id for head in await journal.list()} == {RUN, *BELOW}
    assert await journal.delete(RUN)
    await loop().execute("go", execution_id=RUN)
    assert bank.paid == [5, 5]
    assert await journal.purge(datetime.now(UTC)) == 3


@pytest.mark.parametrize("below", BELOW)
async def test_ids_of_sub_agents_are_reserved(journal: Journal, below: str) -> None:
    """No execution or fork of a user can have an id that an execution of a sub-agent has."""
    own = AgentLoop.for_model(Model("hello", "hello"), journal=journal)
    await own.execute("go", execution_id="own")
    for refused in (own.execute("go", execution_id=below), journal.fork("own", 0, fork_id=below)):
        with pytest.raises(ConfigurationError, match="is reserved"):
            await refused
    started = AgentState.start("go").with_execution_started(below, datetime.now(UTC))
    with pytest.raises(ConfigurationError, match="is reserved"):
        await own.execute(started)
    assert await journal.head(below) is None


async def test_an_execution_that_serves_another_agent_is_not_used_as_an_answer(journal: Journal) -> None:
    """An execution that an earlier caller with the same id has left is neither continued nor used."""
    bank = Bank()
    left = AgentState.start("go").with_execution_started(BELOW[0], datetime.now(UTC))
    other = AgentLoop.for_model(Model("an answer to something else"), journal=journal)
    await other.execute(evolve(left, parent_agent_id="another agent"))
    state = await asking_clerk(payer(bank.tool()), journal=journal).execute("go", execution_id=RUN)
    (call,) = state.steps[0].executions
    assert (call.status, bank.paid) == (ToolStatus.FAILED, [])
    assert "does not serve a call" in call.error_message


@pytest.mark.parametrize("effects", ["reuse", "simulate"])
async def test_originals_of_forks_are_retained_until_the_forks_have_ended(journal: Journal, effects: str) -> None:
    """A tree from which a fork, or a fork of a fork, may reuse effects can be neither deleted nor purged before its end."""
    bank = Bank()
    loop = asking_clerk(payer(bank.tool()), journal=journal)
    await loop.execute("go", execution_id=RUN)
    first = await journal.fork(RUN, 0, effects=effects)
    second = await journal.fork(first, 0, effects=effects)
    await loop.recover(first)
    for original in (RUN, first):
        with pytest.raises(JournalConflict, match=f"original of the fork {second}"):
            await journal.delete(original)
    assert await journal.purge(datetime.now(UTC)) == 0
    await loop.recover(second)
    assert bank.paid == [5]
    assert await journal.delete(RUN)
    assert (await loop.recover(second)).status is ExecutionStatus.COMPLETED


@pytest.mark.parametrize("missing", ["the original", "its agent"])
@pytest.mark.parametrize("task", ["pay", "pay again"])
async def test_a_fork_whose_original_is_missing_is_rejected(tmp_path: Path, missing: str, task: str) -> None:
    """A fork does not run without the records of its original and of the agents below it, however these were lost."""
    bank, file = Bank(), tmp_path / "runs.db"
    async with opened(file) as journal:
        await asking_clerk(payer(bank.tool()), journal=journal).execute("go", execution_id=RUN)
        fork = await journal.fork(RUN, 0)
    lost = RUN if missing == "the original" else BELOW[0]
    with closing(sqlite3.connect(file)) as connection, connection:
        for table in ("executions", "records"):
            connection.execute(f"DELETE FROM {table} WHERE execution_id = ?", (lost,))
    async with opened(file) as journal:
        model = Model([("clerk", {"task": task})], "done")
        loop = AgentLoop.for_model(model, tools=[payer(bank.tool()).as_tool("clerk", "Does it.")], journal=journal)
        with pytest.raises(UnknownExecution, match=f"'{lost}'"):
            await loop.recover(fork)
    assert bank.paid == [5]


# --- claims ----------------------------------------------------------------------------------------------------------


def child(command_name: str, path: Path) -> subprocess.Popen[str]:
    """Start a program that forks."""
    command = [sys.executable, "-m", "tests.regressions.records_child", command_name, str(path)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")


@needs_fork
async def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    """After `kill -9`, an execution can be recovered although processes forked by its tool are still alive."""

    @tool(effect="pure")
    def work() -> str:
        """Work without a pool."""
        return "worked"

    file = tmp_path / "runs.db"
    with child("pool", file) as driver:
        assert driver.stdout is not None
        orphan = int(driver.stdout.readline())
        try:
            driver.wait()
            status: object
            async with opened(file) as journal:
                loop = AgentLoop.for_model(Model([("work", {})], "done"), tools=[work], journal=journal)
                try:
                    status = (await loop.recover(RUN)).status
                except JournalConflict as error:
                    status = error
        finally:
            os.kill(orphan, signal.SIGKILL)
            driver.stdout.read()  # until the last writer has exited
    assert status == ExecutionStatus.COMPLETED


async def test_a_claim_holds_under_every_name_of_the_file(tmp_path: Path) -> None:
    """Two processes that open one file by different paths cannot both run an execution: one is rejected, so one payment is made."""
    paid: list[str] = []

    def loop(journal: SqliteJournal, started: asyncio.Event, release: asyncio.Event) -> AgentLoop:
        def reconcile() -> DidNotHappen:
            return did_not_happen()

        @tool(reconcile=reconcile)
        async def pay(context: ToolContext) -> str:
            """Pay."""
            started.set()
            await release.wait()
            paid.append(context.idempotency_key)
            return "paid"

        return AgentLoop.for_model(Model([("pay", {})], "done"), tools=[pay], journal=journal)

    file, link = tmp_path / "runs.db", tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(file)
    started, release, released = asyncio.Event(), asyncio.Event(), asyncio.Event()
    released.set()
    async with opened(file) as journal, opened(link) as same:
        first = asyncio.create_task(loop(journal, started, release).execute("go", execution_id=RUN))
        await started.wait()
        with suppress(JournalConflict):
            await loop(same, asyncio.Event(), released).recover(RUN)
        release.set()
        with suppress(JournalError):
            await first
    assert len(paid) == 1


# --- interrupting and stopping ---------------------------------------------------------------------------------------


async def cancelled(journal: MemoryJournal, bank: Bank, place: Place, events: EventBus | None = None) -> None:
    """Run until the payment is made, then cancel the task."""
    loop = payer(bank.tool(place, "after"), journal=journal, **({} if events is None else {"events": events}))
    await place.killed_in(loop.execute("go", execution_id=RUN))


async def test_a_cancelled_task_leaves_its_execution_in_progress(tmp_path: Path) -> None:
    """A cancelled execution is interrupted: `recover` continues it to its answer without repeating effects."""
    bank, journal = Bank(), MemoryJournal()
    await cancelled(journal, bank, Place(tmp_path / "a"))
    head = await journal.head(RUN)
    assert head is not None
    assert head.status is ExecutionStatus.IN_PROGRESS
    state = await payer(bank.tool(), journal=journal).recover(RUN)
    assert (state.status, state.final_text, bank.paid) == (ExecutionStatus.COMPLETED, "done", [5])


ENDS = (AgentExecutionCompleted, AgentExecutionFailed, AgentExecutionStopped, AgentExecutionSuspended)


async def test_a_cancelled_execution_emits_no_terminal_event(tmp_path: Path) -> None:
    """An execution whose task is cancelled emits events, but no event that ends an execution."""
    bus, emitted = EventBus(), list[Event]()
    bus.wiretap(emitted.append)
    await cancelled(MemoryJournal(), Bank(), Place(tmp_path / "a"), bus)
    assert emitted
    assert not [event for event in emitted if isinstance(event, ENDS)]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send to one process")
def test_ctrl_c_leaves_an_execution_in_progress() -> None:
    """`recover` continues an execution whose program received SIGINT."""
    journal = MemoryJournal()

    def loop(*, is_interrupted: bool) -> AgentLoop:
        @tool(effect="idempotent")
        async def work() -> str:
            """Work."""
            if is_interrupted:
                signal.raise_signal(signal.SIGINT)
                await asyncio.Event().wait()
            return "worked"

        return AgentLoop.for_model(Model([("work", {})], "done"), tools=[work], journal=journal)

    with pytest.raises(KeyboardInterrupt):
        loop(is_interrupted=True).execute_sync("go", execution_id=RUN)
    state = asyncio.run(loop(is_interrupted=False).recover(RUN))
    assert (state.status, state.final_text) == (ExecutionStatus.COMPLETED, "done")


async def test_a_stopped_execution_stays_stopped() -> None:
    """An execution that an interceptor stopped is final: `recover` returns its final state and runs nothing."""

    class Stopping(Interceptor):
        async def before_step(self, point: BeforeStep) -> BeforeStep:
            raise AgentStop("enough")

    bank, journal = Bank(), MemoryJournal()
    stopped = await payer(bank.tool(), journal=journal, interceptors=[Stopping()]).execute("go", execution_id=RUN)
    assert stopped.status is ExecutionStatus.STOPPED
    assert await payer(bank.tool(), journal=journal).recover(RUN) == stopped
    assert bank.paid == []


# --- size ------------------------------------------------------------------------------------------------------------


async def test_the_disk_space_per_turn_does_not_grow_with_the_conversation(tmp_path: Path) -> None:
    """The file of a journal grows with the number of turns, not with its square."""
    words = "As many words as people write when they chat, a line or so, and no more. "
    file, turns, state = tmp_path / "runs.db", 60, None
    sizes = [0]
    for part in range(4):
        async with opened(file, synchronous="normal") as journal:
            loop = AgentLoop.for_model(Model(*[words] * (turns * 4)), journal=journal)
            for turn in range(turns):
                given: AgentState | str = words if state is None else state.with_message(words)
                state = await loop.execute(given, execution_id=f"turn {part * turns + turn}")
        sizes.append(file.stat().st_size)
    growth = [after - before for before, after in pairwise(sizes)]
    assert growth[-1] < 2 * growth[0], growth


class CountingJournal(SqliteJournal):
    """Counts the appended groups of records.

    Attributes:
        groups: the count.
    """

    groups = 0

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        self.groups += 1
        await super().append(head, records, claim)


async def test_a_small_record_is_a_small_write(tmp_path: Path) -> None:
    """With `full`, an execution of one short answer writes at most four pages for each group of records."""
    file = tmp_path / "runs.db"
    async with aclosing(CountingJournal(file)) as journal:
        loop = AgentLoop.for_model(Model("hello"), journal=journal)
        for number in range(40):
            await loop.execute("go", execution_id=str(number))
        written = file.with_name(f"{file.name}-wal").stat().st_size
    assert journal.groups >= 40
    assert written / journal.groups <= 4 * 4096


# --- the file and other processes -------------------------------------------------------------------------------------------


@needs_fork
def test_a_journal_that_was_used_before_a_fork_works_in_the_child(tmp_path: Path) -> None:
    """A forked child can use the journal of its parent, or gets an error; it does not wait forever."""
    with child("prefork", tmp_path / "runs.db") as parent:
        assert parent.wait() == 0


class Lock:
    """Holds the write lock of a database until released, or until a timeout.

    Args:
        file: the database.
        seconds: the timeout.
    """

    def __init__(self, file: Path, seconds: float) -> None:
        self._file = file
        self._seconds = seconds
        self._is_held, self._is_released = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        with closing(sqlite3.connect(self._file, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            self._is_held.set()
            self._is_released.wait(self._seconds)
            connection.execute("ROLLBACK")

    def acquire(self) -> None:
        self._thread.start()
        self._is_held.wait()

    def release(self) -> None:
        self._is_released.set()
        self._thread.join()


@pytest.mark.parametrize(
    ("options", "seconds"), [({"busy_timeout": 0.1}, 3.0), ({}, 8.0)], ids=["a short wait", "the default"]
)
async def test_a_known_outcome_is_not_lost_to_a_lock(tmp_path: Path, options: dict[str, Any], seconds: float) -> None:
    """A known outcome is recorded although another connection locks the file during the call."""
    file = tmp_path / "runs.db"
    lock = Lock(file, seconds)

    @tool
    async def pay() -> str:
        """Pay."""
        lock.acquire()
        return "paid"

    async with opened(file, **options) as journal:
        loop = AgentLoop.for_model(Model([("pay", {})], "done"), tools=[pay], journal=journal)
        try:
            state = await loop.execute("go", execution_id=RUN)
        except JournalBusy:
            lock.release()
            state = await loop.recover(RUN)
        finally:
            lock.release()
    outcomes = [execution.status for step in state.steps for execution in step.executions]
    assert (state.status, outcomes) == (ExecutionStatus.COMPLETED, [ToolStatus.SUCCEEDED])


async def test_a_call_that_waited_for_a_rate_limit_is_not_in_doubt(tmp_path: Path) -> None:
    """Of calls that wait for a rate limit when the process dies, only the call that had started is in doubt."""
    place, count = Place(tmp_path / "a"), 4
    waiting = asyncio.Semaphore(0)

    def loop(journal: SqliteJournal, *, dies: bool) -> AgentLoop:
        @tool(rate_limit=RateLimit(1, 3600) if dies else None)
        async def work(number: int) -> str:
            """Work."""
            if dies:
                for _ in range(count - 1):
                    await waiting.acquire()
                await place.die()
            return "worked"

        events = EventBus()
        events.on(ToolCallRateLimited, lambda _: waiting.release())
        model = Model([("work", {"number": number}) for number in range(count)], "done")
        return AgentLoop.for_model(model, tools=[work], journal=journal, events=events, interceptors=[Resilience()])

    async with opened(place.file) as journal:
        left = await place.killed_in(loop(journal, dies=True).execute("go", execution_id=RUN))
    async with opened(left.file) as journal:
        state = await loop(journal, dies=False).recover(RUN)
    outcomes = [execution.status for step in state.steps for execution in step.executions]
    assert outcomes == [ToolStatus.IN_DOUBT, *[ToolStatus.SUCCEEDED] * (count - 1)]


@pytest.mark.parametrize("how", ["truncated", "missing"])
async def test_a_damaged_log_is_reported(tmp_path: Path, how: str) -> None:
    """When the `-wal` file of a dead process is truncated or missing, the journal does not pass verification."""
    place = Place(tmp_path / "a")

    @tool
    async def pay(cents: int) -> str:
        """Pay; the fourth call dies."""
        if cents == 4:
            await place.die()
        return "paid"

    async with opened(place.file) as journal:
        model = Model(*[[("pay", {"cents": cents})] for cents in range(1, 5)], "done")
        loop = AgentLoop.for_model(model, tools=[pay], journal=journal)
        left = await place.killed_in(loop.execute("go", execution_id=RUN))
    wal = left.file.with_name(f"{left.file.name}-wal")
    left.file.with_name(f"{left.file.name}-shm").unlink()  # it is not usable after a power loss either
    if how == "truncated":
        os.truncate(wal, wal.stat().st_size * 6 // 10)
    else:
        wal.unlink()
    problem: object
    async with opened(left.file) as journal:
        try:
            problem = await journal.verify()
        except JournalError as error:
            problem = error
    assert problem


async def test_a_file_of_an_older_version_is_migrated_or_rejected(tmp_path: Path) -> None:
    """A file whose tables are older than the code is never used unchanged."""
    file = tmp_path / "runs.db"

    async def run(execution_id: str) -> None:
        async with opened(file) as journal:
            await AgentLoop.for_model(Model("hello"), journal=journal).execute("go", execution_id=execution_id)

    await run("new")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE meta SET value = '0' WHERE name = 'schema_version'")
    error: JournalError | None = None
    try:
        await run("old")
    except JournalError as raised:
        error = raised
    with closing(sqlite3.connect(file)) as connection:
        ((version,),) = connection.execute("SELECT value FROM meta WHERE name = 'schema_version'")
    assert error is not None or version == str(SCHEMA_VERSION)


# --- secrets ---------------------------------------------------------------------------------------------------------

SECRET = "p4ss/w0rd+with?odd=marks&more~"
ENCODINGS: dict[str, Callable[[str], str]] = {
    "base64": lambda text: b64encode(text.encode()).decode(),
    "base64 for URLs": lambda text: urlsafe_b64encode(text.encode()).decode(),
    "base64 without padding": lambda text: b64encode(text.encode()).decode().rstrip("="),
    "base64, offset by one": lambda text: b64encode(f"user:ab{text}".encode()).decode(),
    "base64, offset by two": lambda text: b64encode(f"user:{text}".encode()).decode(),
    "part of a URL": partial(quote, safe=""),
    "path of a URL": quote,
    "query of a URL": quote_plus,
    "part of a URL, lowercase": lambda text: quote(text, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_secret_is_masked_in_web_encodings(encoding: str) -> None:
    """A secret that a tool returns in the encoding of a header or a URL does not reach the journal."""
    encoded = ENCODINGS[encoding](SECRET)

    @tool(effect="pure")
    def fetch() -> str:
        """Fetch."""
        return f"asked with {encoded} and got nothing"

    journal = MemoryJournal(secrets=[SECRET])
    await AgentLoop.for_model(Model([("fetch", {})], "done"), tools=[fetch], journal=journal).execute(
        "go", execution_id=RUN
    )
    assert not [record.kind for record in await journal.read(RUN) if encoded in record.body]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no file modes")
async def test_the_files_of_a_journal_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    """Other users cannot read the files, whatever the umask of the process is."""
    mask = os.umask(0o022)
    try:
        async with opened(tmp_path / "runs.db") as journal:
            await AgentLoop.for_model(Model("hello"), journal=journal).execute("go", execution_id=RUN)
            modes = {entry.name: oct(entry.stat().st_mode & 0o077) for entry in os.scandir(tmp_path)}
    finally:
        os.umask(mask)
    assert modes
    assert {name: mode for name, mode in modes.items() if mode != "0o0"} == {}


# --- the command line ------------------------------------------------------------------------------------------------


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """Run the command line; return its exit code and its output."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code, capsys.readouterr().out


def record_executions(file: Path, *ids: str) -> None:
    """Record executions, each with the execution of a sub-agent."""

    async def record() -> None:
        async with opened(file) as journal:
            for execution_id in ids:
                await asking_clerk(payer(Bank().tool()), journal=journal).execute("go", execution_id=execution_id)

    asyncio.run(record())


def ids_in(file: Path) -> set[str]:
    """Return the ids of all recorded executions."""
    with closing(sqlite3.connect(file)) as connection:
        return {execution_id for (execution_id,) in connection.execute("SELECT execution_id FROM executions")}


def test_an_execution_can_be_deleted_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`agentloop runs delete ID` deletes an execution with those of its sub-agents, and no other."""
    file = tmp_path / "runs.db"
    record_executions(file, "one", "two")
    remaining = {execution_id for execution_id in ids_in(file) if execution_id.startswith("two")}
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    code, _ = command(capsys, "runs", "delete", "one", "--journal", str(file))
    assert (code, ids_in(file)) == (0, remaining)


@pytest.mark.parametrize("names", [["purge"], ["recover"], ["cancel", "stop"]], ids=["purge", "recover", "cancel"])
def test_executions_are_maintained_on_the_command_line(capsys: pytest.CaptureFixture[str], names: list[str]) -> None:
    """`agentloop runs` can purge old executions, recover interrupted executions and end others."""
    assert 0 in [command(capsys, "runs", name, "--help")[0] for name in names]


LISTING = """
import os, sys
if os.access(sys.argv[1], os.W_OK):
    sys.exit("can write")
from agentloop.service.cli.main import main
main(["runs", "list", "--json", "--journal", sys.argv[2]])
"""
WITHOUT_ROOT_PRIVILEGES = """
import ctypes, os, sys
if os.geteuid() == 0:
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE: modes of files count for root too
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="root privileges are dropped with a Linux call")
def test_read_only_access_is_enough_to_list(tmp_path: Path) -> None:
    """`agentloop runs list` reads a journal in a read-only folder."""
    folder = tmp_path / "archive"
    folder.mkdir()
    file = folder / "runs.db"
    record_executions(file, "one")
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", WITHOUT_ROOT_PRIVILEGES, LISTING, str(folder), str(file)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        folder.chmod(0o755)
    if "can write" in ended.stderr:
        pytest.skip("root privileges could not be dropped")
    assert ended.returncode == 0, ended.stderr
    assert [row["execution_id"] for row in json.loads(ended.stdout)] == ["one"]
