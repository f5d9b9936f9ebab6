"""What is written down, and what others make of it: decisions, trees of executions, claims, crashes, files."""

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
from agentloop.cli.main import main
from agentloop.errors import JournalBusy, JournalConflict, JournalError
from agentloop.events import EventBus, ToolCallRateLimited
from agentloop.events.execution import (
    AgentExecutionCompleted,
    AgentExecutionFailed,
    AgentExecutionStopped,
    AgentExecutionSuspended,
)
from agentloop.interception import AroundToolUse, BeforeStep, ProceedToolUse, Resilience
from agentloop.journal import MemoryJournal, SqliteJournal
from agentloop.journal.sqlite.schema import SCHEMA_VERSION
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
)
from agentloop.values.records import DidNotHappen
from tests.loop.recovery_bench import Model

ROOT = Path(__file__).parents[2]
RUN = "run"


def fails(reason: str) -> pytest.MarkDecorator:
    """Mark a test of what is known to be broken."""
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)


# --- processes that die ----------------------------------------------------------------------------------------------


class Place:
    """A folder with the journal of one process, and what is left of it when the process is killed.

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
        """Die here: the files are copied as `kill -9` leaves them, and nothing that follows counts."""
        left = self.folder.with_name(f"{self.folder.name}+")
        shutil.copytree(self.folder, left)
        self._left = left
        self._is_dead.set()
        await asyncio.Event().wait()

    async def killed_in(self, running: Coroutine[Any, Any, AgentState]) -> Place:
        """Run until the process dies; return what the next process finds."""
        going, death = asyncio.create_task(running), asyncio.create_task(self._is_dead.wait())
        await asyncio.wait({going, death}, return_when=asyncio.FIRST_COMPLETED)
        going.cancel()
        death.cancel()
        await asyncio.gather(going, death, return_exceptions=True)
        if self._left is None:
            raise RuntimeError("the process did not come to where it is killed")
        return Place(self._left)


@asynccontextmanager
async def opened(file: Path, **options: Any) -> AsyncIterator[SqliteJournal]:
    """Open a journal, and close it at the end."""
    async with aclosing(SqliteJournal(file, **options)) as journal:
        yield journal


Dies = Literal["before", "after"]


class Bank:
    """Counts what is really paid, over any number of processes.

    Attributes:
        paid: the sums.
    """

    def __init__(self) -> None:
        self.paid: list[int] = []

    def tool(self, place: Place | None = None, dies: Dies | None = None) -> Tool:
        """Make a tool that pays, in a process that dies before or after it has."""

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
    """Make an agent that pays once and says that it is done."""
    return AgentLoop.for_model(Model([("pay", {"cents": 5})], "done"), tools=[bank_tool], **options)


def asking_clerk(clerk: AgentLoop, **options: Any) -> AgentLoop:
    """Make an agent that has another one do the work."""
    model = Model([("clerk", {"task": "pay"})], "done")
    return AgentLoop.for_model(model, tools=[clerk.as_tool("clerk", "Does it.")], **options)


def nested(bank_tool: Tool, depth: int, journal: SqliteJournal, inner: Sequence[Interceptor] = ()) -> AgentLoop:
    """Make an agent that pays, below so many others, which asks a person about doubts."""
    options: list[dict[str, Any]] = [{} for _ in range(depth + 1)]
    options[-1] |= {"journal": journal, "in_doubt": InDoubt.SUSPEND}
    options[0] |= {"interceptors": inner}
    loop = payer(bank_tool, **options[0])
    for level in options[1:]:
        loop = asking_clerk(loop, **level)
    return loop


# --- decisions -------------------------------------------------------------------------------------------------------

DEPTHS = [
    pytest.param(0, id="the agent itself"),
    *[
        pytest.param(
            depth,
            id=f"{depth} below",
            marks=fails("C4: one approval of a sub-agent's call also answers its next doubt"),
        )
        for depth in (1, 2)
    ],
]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("asked_for", ["a doubt", "an approval"])
async def test_one_approval_is_one_payment(tmp_path: Path, depth: int, asked_for: str) -> None:
    """A call that was approved once, ran, and is in doubt again is asked about again, however deep it is."""
    bank, place = Bank(), Place(tmp_path / "a")
    guards = [RequireApproval()] if asked_for == "an approval" else []
    async with opened(place.file) as journal:
        if guards:
            await nested(bank.tool(), depth, journal, guards).execute("go", execution_id=RUN)
        else:
            first = nested(bank.tool(place, "before"), depth, journal)
            place = await place.killed_in(first.execute("go", execution_id=RUN))
    async with opened(place.file) as journal:
        second = nested(bank.tool(place, "after"), depth, journal, guards)
        asking = await second.recover(RUN)
        decisions = {call.key: approve(call.digest) for call in asking.pending if call.call.name == "pay"}
        assert (asking.status, len(decisions), bank.paid) == (ExecutionStatus.SUSPENDED, 1, [])
        place = await place.killed_in(second.resume(RUN, decisions))
    async with opened(place.file) as journal:
        state = await nested(bank.tool(), depth, journal, guards).recover(RUN)
    assert (bank.paid, state.status) == ([5], ExecutionStatus.SUSPENDED)


# --- trees of executions ---------------------------------------------------------------------------------------------


@fails("C5: a deleted execution leaves the answers of its sub-agents to the next one of its id")
async def test_what_was_deleted_answers_nobody() -> None:
    """After an execution was deleted, one of the same id does all its work itself, that of sub-agents too."""
    bank, journal = Bank(), MemoryJournal()
    for _ in range(2):
        await journal.delete(RUN)
        await asking_clerk(payer(bank.tool()), journal=journal).execute("go", execution_id=RUN)
    assert bank.paid == [5, 5]


@fails("C5: deleting an execution leaves those of its sub-agents behind")
@pytest.mark.parametrize("how", ["delete", "purge"])
async def test_a_tree_is_deleted_whole(how: str) -> None:
    """No execution of a sub-agent is left over when that of its caller is deleted, and none goes before it."""
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
    """Dies when a tool has returned, before that is written down.

    Args:
        name: the tool.
        place: of which process.
    """

    def __init__(self, name: str, place: Place) -> None:
        self._name = name
        self._place = place

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        execution = await proceed()
        if execution.call.name == self._name:
            await self._place.die()
        return execution


@fails("C5: the ended sub-agent of an execution in progress is purged, and its effects are repeated")
async def test_what_an_execution_still_needs_is_not_purged(tmp_path: Path) -> None:
    """The record of a sub-agent that has ended stays while its caller is in progress."""
    bank, place = Bank(), Place(tmp_path / "a")
    async with opened(place.file) as journal:
        dying = asking_clerk(payer(bank.tool()), journal=journal, interceptors=[DyingAfter("clerk", place)])
        place = await place.killed_in(dying.execute("go", execution_id=RUN))
    async with opened(place.file) as journal:
        await journal.purge(datetime.now(UTC))
        state = await asking_clerk(payer(bank.tool()), journal=journal).recover(RUN)
    assert (bank.paid, state.status) == ([5], ExecutionStatus.COMPLETED)


@fails("C5: an execution that a user gave the id of a sub-agent's is taken for its answer")
async def test_an_execution_of_a_user_is_no_answer_of_a_sub_agent() -> None:
    """An execution with the id that one of a sub-agent has does not answer for it; such an id may also be refused."""
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


@fails("C6: a fork whose original is gone runs its effects again")
@pytest.mark.parametrize("how", ["delete", "purge"])
async def test_a_fork_that_reuses_effects_never_runs_them(how: str) -> None:
    """When the original of a fork is gone, the fork is refused; what it was to reuse is not done again."""
    bank, journal = Bank(), MemoryJournal()
    loop = payer(bank.tool(), journal=journal)
    await loop.execute("go", execution_id=RUN)
    fork = await journal.fork(RUN, 0, effects="reuse")
    with suppress(JournalError):
        await (journal.delete(RUN) if how == "delete" else journal.purge(datetime.now(UTC)))
    with suppress(JournalError):
        await loop.recover(fork)
    assert bank.paid == [5]


@fails("C6: purging takes the original of a fork that has not ended")
async def test_the_original_of_an_unfinished_fork_is_not_purged() -> None:
    """An execution stays while a fork that reuses its effects is in progress, and may go when that has ended."""
    bank, journal = Bank(), MemoryJournal()
    loop = payer(bank.tool(), journal=journal)
    await loop.execute("go", execution_id=RUN)
    fork = await journal.fork(RUN, 0, effects="reuse")
    await journal.purge(datetime.now(UTC))
    assert await journal.head(RUN) is not None
    await loop.recover(fork)
    await journal.purge(datetime.now(UTC))
    assert await journal.head(RUN) is None


# --- claims ----------------------------------------------------------------------------------------------------------


def child(what: str, path: Path) -> subprocess.Popen[str]:
    """Start one of the programs that fork."""
    command = [sys.executable, "-m", "tests.regressions.records_child", what, str(path)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")


@fails("H20: processes of a pool keep the claim of the process that started them")
@needs_fork
async def test_a_claim_dies_with_the_one_who_claimed(tmp_path: Path) -> None:
    """After `kill -9`, an execution can be recovered although processes that its tool forked live on."""

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
            driver.stdout.read()  # until nobody is there who could write
    assert status == ExecutionStatus.COMPLETED


@fails("H21: a journal that is named by a symbolic link has claims of its own")
async def test_a_claim_holds_under_every_name_of_the_file(tmp_path: Path) -> None:
    """Two drivers that name one file differently cannot drive one execution: one of them is refused, one payment is made."""
    paid: list[str] = []

    def loop(journal: SqliteJournal, begun: asyncio.Event, goes_on: asyncio.Event) -> AgentLoop:
        def reconcile() -> DidNotHappen:
            return did_not_happen()

        @tool(reconcile=reconcile)
        async def pay(context: ToolContext) -> str:
            """Pay."""
            begun.set()
            await goes_on.wait()
            paid.append(context.idempotency_key)
            return "paid"

        return AgentLoop.for_model(Model([("pay", {})], "done"), tools=[pay], journal=journal)

    file, link = tmp_path / "runs.db", tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(file)
    begun, goes_on, at_once = asyncio.Event(), asyncio.Event(), asyncio.Event()
    at_once.set()
    async with opened(file) as journal, opened(link) as same:
        first = asyncio.create_task(loop(journal, begun, goes_on).execute("go", execution_id=RUN))
        await begun.wait()
        with suppress(JournalConflict):
            await loop(same, asyncio.Event(), at_once).recover(RUN)
        goes_on.set()
        with suppress(JournalError):
            await first
    assert len(paid) == 1


# --- interrupting and stopping ---------------------------------------------------------------------------------------


async def cancelled(journal: MemoryJournal, bank: Bank, place: Place, events: EventBus | None = None) -> None:
    """Run until the money is paid, and cancel the task there."""
    loop = payer(bank.tool(place, "after"), journal=journal, **({} if events is None else {"events": events}))
    await place.killed_in(loop.execute("go", execution_id=RUN))


@fails("H22: an execution whose task was cancelled is stopped, and not gone on with")
async def test_a_cancelled_task_leaves_its_execution_in_progress(tmp_path: Path) -> None:
    """What a shutdown cancels is interrupted: `recover` goes on with it to its answer, and repeats no effect."""
    bank, journal = Bank(), MemoryJournal()
    await cancelled(journal, bank, Place(tmp_path / "a"))
    head = await journal.head(RUN)
    assert head is not None
    assert head.status is ExecutionStatus.IN_PROGRESS
    state = await payer(bank.tool(), journal=journal).recover(RUN)
    assert (state.status, state.final_text, bank.paid) == (ExecutionStatus.COMPLETED, "done", [5])


ENDS = (AgentExecutionCompleted, AgentExecutionFailed, AgentExecutionStopped, AgentExecutionSuspended)


@fails("H22: a cancelled execution is told as a stopped one")
async def test_an_interruption_is_no_end(tmp_path: Path) -> None:
    """What is told of an execution whose task is cancelled is none of the ends after which nothing goes on."""
    events, told = EventBus(), list[Event]()
    events.wiretap(told.append)
    await cancelled(MemoryJournal(), Bank(), Place(tmp_path / "a"), events)
    assert told
    assert not [event for event in told if isinstance(event, ENDS)]


@fails("H22: Ctrl-C ends an execution for good")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send to one process")
def test_ctrl_c_leaves_an_execution_in_progress() -> None:
    """An execution whose program gets SIGINT is gone on with by `recover`."""
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


async def test_what_was_stopped_stays_stopped() -> None:
    """An execution that an interceptor stopped is final: `recover` returns it as it ended, and runs nothing."""

    class Stopping(Interceptor):
        async def before_step(self, point: BeforeStep) -> BeforeStep:
            raise AgentStop("enough")

    bank, journal = Bank(), MemoryJournal()
    stopped = await payer(bank.tool(), journal=journal, interceptors=[Stopping()]).execute("go", execution_id=RUN)
    assert stopped.status is ExecutionStatus.STOPPED
    assert await payer(bank.tool(), journal=journal).recover(RUN) == stopped
    assert bank.paid == []


# --- size ------------------------------------------------------------------------------------------------------------


@fails("H23: each turn of a conversation writes the whole conversation down again")
async def test_a_conversation_takes_as_much_disk_per_turn_at_its_end_as_at_its_beginning(tmp_path: Path) -> None:
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
    """Counts the groups of records that are appended.

    Attributes:
        groups: how many.
    """

    groups = 0

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        self.groups += 1
        await super().append(head, records)


@fails("M32: a group of one small record is written as some eight pages")
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


# --- the file under others -------------------------------------------------------------------------------------------


@fails("M25: a journal that was used before a fork hangs in the child")
@needs_fork
def test_a_journal_that_was_used_before_a_fork_answers_in_the_child(tmp_path: Path) -> None:
    """A forked child can use the journal of its parent, or is told that it cannot; it does not wait for ever."""
    with child("prefork", tmp_path / "runs.db") as parent:
        assert parent.wait() == 0


class Lock:
    """Somebody who holds the lock of a database for writing, until told to leave or for so many seconds.

    Args:
        file: the database.
        seconds: how long at most.
    """

    def __init__(self, file: Path, seconds: float) -> None:
        self._file = file
        self._seconds = seconds
        self._is_held, self._is_over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        with closing(sqlite3.connect(self._file, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            self._is_held.set()
            self._is_over.wait(self._seconds)
            connection.execute("ROLLBACK")

    def take(self) -> None:
        self._thread.start()
        self._is_held.wait()

    def leave(self) -> None:
        self._is_over.set()
        self._thread.join()


@fails("M26: an outcome that cannot be written down for a while is in doubt afterwards")
@pytest.mark.parametrize(
    ("options", "seconds"), [({"busy_timeout": 0.1}, 3.0), ({}, 8.0)], ids=["a short wait", "the default"]
)
async def test_a_known_outcome_is_not_lost_to_a_lock(tmp_path: Path, options: dict[str, Any], seconds: float) -> None:
    """Somebody who locks the file while a call runs, and then lets go, makes no doubt of the outcome that was known."""
    file = tmp_path / "runs.db"
    lock = Lock(file, seconds)

    @tool
    async def pay() -> str:
        """Pay."""
        lock.take()
        return "paid"

    async with opened(file, **options) as journal:
        loop = AgentLoop.for_model(Model([("pay", {})], "done"), tools=[pay], journal=journal)
        try:
            state = await loop.execute("go", execution_id=RUN)
        except JournalBusy:
            lock.leave()
            state = await loop.recover(RUN)
        finally:
            lock.leave()
    outcomes = [execution.status for step in state.steps for execution in step.executions]
    assert (state.status, outcomes) == (ExecutionStatus.COMPLETED, [ToolStatus.SUCCEEDED])


@fails("M27: calls that waited behind a rate limit when the process died are in doubt")
async def test_a_call_that_waited_for_its_turn_is_not_in_doubt(tmp_path: Path) -> None:
    """Of calls that wait behind a rate limit when the process dies, only the one that had begun is in doubt."""
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


@fails("M28: a log that was cut or lost is a step back that nobody is told of")
@pytest.mark.parametrize("how", ["cut", "lost"])
async def test_a_damaged_log_is_found(tmp_path: Path, how: str) -> None:
    """When the `-wal` of a process that died is cut or gone, the journal does not pass for sound."""
    place = Place(tmp_path / "a")

    @tool
    async def pay(cents: int) -> str:
        """Pay; the fourth time is the last."""
        if cents == 4:
            await place.die()
        return "paid"

    async with opened(place.file) as journal:
        model = Model(*[[("pay", {"cents": cents})] for cents in range(1, 5)], "done")
        loop = AgentLoop.for_model(model, tools=[pay], journal=journal)
        left = await place.killed_in(loop.execute("go", execution_id=RUN))
    wal = left.file.with_name(f"{left.file.name}-wal")
    left.file.with_name(f"{left.file.name}-shm").unlink()  # what a loss of power leaves of it is not used either
    if how == "cut":
        os.truncate(wal, wal.stat().st_size * 6 // 10)
    else:
        wal.unlink()
    found: object
    async with opened(left.file) as journal:
        try:
            found = await journal.verify()
        except JournalError as error:
            found = error
    assert found


@fails("M29: tables of an older version are taken for those of today")
async def test_a_file_of_an_older_version_is_brought_up_to_date_or_refused(tmp_path: Path) -> None:
    """A file whose tables are older than the code is never used as it is."""
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
SPELLINGS: dict[str, Callable[[str], str]] = {
    "base64": lambda text: b64encode(text.encode()).decode(),
    "base64 for URLs": lambda text: urlsafe_b64encode(text.encode()).decode(),
    "base64 without padding": lambda text: b64encode(text.encode()).decode().rstrip("="),
    "base64, one in": lambda text: b64encode(f"user:ab{text}".encode()).decode(),
    "base64, two in": lambda text: b64encode(f"user:{text}".encode()).decode(),
    "part of a URL": partial(quote, safe=""),
    "path of a URL": quote,
    "query of a URL": quote_plus,
    "part of a URL, small letters": lambda text: quote(text, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
}


@fails("M30: Base64 and URL spellings of secrets are written down")
@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_secret_is_masked_in_the_spellings_of_the_web(spelling: str) -> None:
    """A secret that a tool returns as a header or a part of a URL would carry it does not reach the journal."""
    spelled = SPELLINGS[spelling](SECRET)

    @tool(effect="pure")
    def fetch() -> str:
        """Fetch."""
        return f"asked with {spelled} and got nothing"

    journal = MemoryJournal(secrets=[SECRET])
    await AgentLoop.for_model(Model([("fetch", {})], "done"), tools=[fetch], journal=journal).execute(
        "go", execution_id=RUN
    )
    assert not [record.kind for record in await journal.read(RUN) if spelled in record.body]


@fails("M30: everybody can read the file of a journal")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes of files")
async def test_the_files_of_a_journal_are_for_their_owner(tmp_path: Path) -> None:
    """Nobody else can read what is written down, whatever the process's mask is."""
    mask = os.umask(0o022)
    try:
        async with opened(tmp_path / "runs.db") as journal:
            await AgentLoop.for_model(Model("hello"), journal=journal).execute("go", execution_id=RUN)
            modes = {each.name: oct(each.stat().st_mode & 0o077) for each in os.scandir(tmp_path)}
    finally:
        os.umask(mask)
    assert modes
    assert {name: mode for name, mode in modes.items() if mode != "0o0"} == {}


# --- the command line ------------------------------------------------------------------------------------------------


def command(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[object, str]:
    """Run the command line; return its exit code and what it wrote to stdout."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(given)
    return ended.value.code, capsys.readouterr().out


def recorded(file: Path, *ids: str) -> None:
    """Write executions down, each with a sub-agent's."""

    async def record() -> None:
        async with opened(file) as journal:
            for one in ids:
                await asking_clerk(payer(Bank().tool()), journal=journal).execute("go", execution_id=one)

    asyncio.run(record())


def ids_in(file: Path) -> set[str]:
    """Return the ids of all that is recorded."""
    with closing(sqlite3.connect(file)) as connection:
        return {one for (one,) in connection.execute("SELECT execution_id FROM executions")}


@fails("M31: `agentloop runs` deletes nothing")
def test_an_execution_can_be_deleted_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`agentloop runs delete ID` takes an execution away with those of its sub-agents, and no other."""
    file = tmp_path / "runs.db"
    recorded(file, "one", "two")
    kept = {one for one in ids_in(file) if one.startswith("two")}
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    code, _ = command(capsys, "runs", "delete", "one", "--journal", str(file))
    assert (code, ids_in(file)) == (0, kept)


@fails("M31: there are no commands to purge, to recover or to end executions")
@pytest.mark.parametrize("names", [["purge"], ["recover"], ["cancel", "stop"]], ids=["purge", "recover", "cancel"])
def test_executions_are_looked_after_on_the_command_line(capsys: pytest.CaptureFixture[str], names: list[str]) -> None:
    """`agentloop runs` can take away what is old, go on with all that was interrupted, and end what is not to go on."""
    assert 0 in [command(capsys, "runs", name, "--help")[0] for name in names]


LISTING = """
import os, sys
if os.access(sys.argv[1], os.W_OK):
    sys.exit("can write")
from agentloop.cli.main import main
main(["runs", "list", "--json", "--journal", sys.argv[2]])
"""
WITHOUT_THE_RIGHTS_OF_ROOT = """
import ctypes, os, sys
if os.geteuid() == 0:
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE: modes of files count for root too
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""


@fails("M31: who may only read a journal cannot list what is in it")
@pytest.mark.skipif(sys.platform != "linux", reason="the rights of root are given up as on Linux")
def test_who_may_only_read_can_list(tmp_path: Path) -> None:
    """`agentloop runs list` reads a journal in a folder that it cannot write to."""
    folder = tmp_path / "archive"
    folder.mkdir()
    file = folder / "runs.db"
    recorded(file, "one")
    for each in folder.iterdir():
        each.chmod(0o444)
    folder.chmod(0o555)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", WITHOUT_THE_RIGHTS_OF_ROOT, LISTING, str(folder), str(file)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        folder.chmod(0o755)
    if "can write" in ended.stderr:
        pytest.skip("the rights of root could not be given up")
    assert ended.returncode == 0, ended.stderr
    assert [row["execution_id"] for row in json.loads(ended.stdout)] == ["one"]
