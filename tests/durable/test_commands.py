"""Commands to running executions: messages and stops from other processes, each obeyed once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from agentloop import AgentLoop, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.contracts import CanJournal
from agentloop.contracts.can_journal import Claim
from agentloop.durable import CommandListener, MemoryJournal, PostgresJournal, open_journal, request_stop, send_message
from agentloop.durable.commands import check_in_time, undelivered_messages
from agentloop.durable.journal import Journal
from agentloop.errors import (
    ContractViolation,
    InboxClosed,
    JournalConflict,
    JournalCorrupt,
    JournalError,
    SchemaTooNew,
    UnknownExecution,
)
from agentloop.testing import CrashableJournal, ManualClock, run_in_virtual_time
from agentloop.values import (
    AgentState,
    CommandKind,
    ExecutionCommand,
    ExecutionHead,
    InferenceRequest,
    InferenceResponse,
    JournalRecord,
    Message,
    RecordKind,
    StopReason,
    approve,
    to_json,
)
from tests.limits import LONGEST, jump, turns_of_the_event_loop
from tests.postgres import run_sql

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def journal(journal_place: str | None) -> Journal:
    """Return an empty journal of each kind."""
    return MemoryJournal() if journal_place is None else open_journal(journal_place)


@pytest.fixture
def other(journal_place: str | None, journal: Journal) -> Journal:
    """Return the journal as another process has it."""
    return journal if journal_place is None else open_journal(journal_place)


def message(command_id: str, text: str = "Hello.", execution_id: str = "e") -> ExecutionCommand:
    """Return a command that sends a text."""
    return ExecutionCommand(
        id=command_id,
        execution_id=execution_id,
        kind=CommandKind.MESSAGE,
        message=Message.user(text),
        principal="ada",
        posted_at=NOW,
    )


class Work:
    """A loop whose tool runs until it is let go, and whose model calls it once."""

    def __init__(self, journal: Journal) -> None:
        self.started, self.proceed = asyncio.Event(), asyncio.Event()
        self.requests: list[InferenceRequest] = []

        @tool
        async def work() -> str:
            """Work."""
            self.started.set()
            await self.proceed.wait()
            return "worked"

        self.loop = AgentLoop.for_model(ScriptedInference(*[self._answer] * 9), tools=[work], journal=journal)

    def _answer(self, request: InferenceRequest) -> InferenceResponse | str:
        self.requests.append(request)
        if any(each.exchanges for each in request.messages):
            return "Done."
        return InferenceResponse((ToolCall("1", "work", "{}"),))


def texts(state: AgentState) -> list[str]:
    """Return the texts of the user's messages."""
    return [each.text for each in state.messages if each.role == "user"]


async def run(listener: CommandListener, loop: AgentLoop, execution_id: str = "e") -> AgentState:
    """Run an execution that obeys commands."""
    async with listener.listen(loop, execution_id) as listening:
        return await listening.get_or_start("Work.", execution_id)


async def wait_until_finished(journal: Journal, execution_id: str = "e") -> None:
    """Wait until no command for an execution is left."""
    async with asyncio.timeout(10):
        while await journal.commands([execution_id]):
            await journal.wait_for_change(timeout=0.05)


async def rest(journal: Journal, **options: Any) -> None:
    """Wait until a wait ends without a change; some end without one, too, and say that there was one."""
    async with asyncio.timeout(10):
        while await journal.wait_for_change("e", **options):
            pass


async def test_a_message_reaches_an_execution_that_runs_elsewhere(journal: Journal, other: Journal) -> None:
    """A message posted by another process is in the next request, and its command is finished."""
    work = Work(journal)
    task = asyncio.create_task(run(CommandListener(journal), work.loop))
    await work.started.wait()
    await other.post(message("m1"))
    await other.post(message("m1", "The same id again."))
    await other.post(message("m2", "And another."))
    await wait_until_finished(other)
    work.proceed.set()
    state = await task
    assert texts(state) == ["Work.", "Hello.", "And another."]
    assert [each.text for each in work.requests[-1].messages if each.role == "user"] == texts(state)
    sent = [record.body for record in await journal.read("e") if record.kind.value == "messages_sent"]
    assert len(sent) == 2
    assert '"command":"m1"' in sent[0]
    assert '"principal":"ada"' in sent[0]
    for each in {journal, other}:
        await each.aclose()


async def test_a_stop_ends_an_execution_that_runs_elsewhere(journal: Journal, other: Journal) -> None:
    """Its running call is settled as cancelled, the status is stopped, and the reason and the principal are recorded."""
    work = Work(journal)
    task = asyncio.create_task(run(CommandListener(journal), work.loop))
    await work.started.wait()
    assert await request_stop(other, "e", "too expensive", principal="ada") is None
    state = await asyncio.wait_for(task, LONGEST)
    signal = state.stop_signal
    assert signal is not None
    assert (state.status.value, signal.reason, signal.message) == (
        "stopped",
        StopReason.USER_REQUESTED,
        "too expensive",
    )
    assert signal.context["principal"] == "ada"
    assert [execution.status.value for step in state.steps for execution in step.executions] == ["cancelled"]
    assert await journal.commands(["e"]) == ()
    assert await journal.state("e") == state
    with pytest.raises(JournalConflict):
        await request_stop(other, "e", "again")
    for each in {journal, other}:
        await each.aclose()


async def test_commands_wait_for_an_execution_that_nobody_runs(journal: Journal) -> None:
    """Messages posted before the start are in the first step; a stop that was posted keeps it from running at all."""
    await journal.post(message("m1"))
    work = Work(journal)
    work.proceed.set()
    state = await run(CommandListener(journal), work.loop)
    assert texts(state) == ["Work.", "Hello."]
    assert [each.text for each in work.requests[0].messages] == ["Work.", "Hello."]
    stop = ExecutionCommand(id="s", execution_id="f", kind=CommandKind.STOP, reason="not needed", posted_at=NOW)
    await journal.post(stop)
    idle = Work(journal)
    stopped = await run(CommandListener(journal), idle.loop, "f")
    assert (stopped.status.value, idle.requests) == ("stopped", [])
    assert await journal.commands(["e", "f"]) == ()
    await journal.aclose()


async def test_stopping_what_nobody_runs_ends_it_at_once(journal: Journal) -> None:
    """An interrupted execution is stopped by the caller itself, and no command is left."""
    work = Work(journal)
    task = asyncio.create_task(work.loop.execute("Work.", execution_id="e"))
    await work.started.wait()
    task.cancel()
    await asyncio.wait((task,))
    state = await request_stop(journal, "e", "not needed", principal="ada")
    assert state is not None
    assert state.status.value == "stopped"
    assert state.stop_signal is not None
    assert state.stop_signal.context["principal"] == "ada"
    assert await journal.commands(["e"]) == ()
    with pytest.raises(UnknownExecution):
        await request_stop(journal, "unknown", "not needed")
    await journal.aclose()


@pytest.mark.parametrize("dies", [False, True])
async def test_a_stop_that_nobody_is_left_to_obey_is_finished(*, dies: bool) -> None:
    """If the process ends while the command is posted, the caller stops the execution itself; else the command waits for it."""

    class EndsWithPost(MemoryJournal):
        async def post(self, command: ExecutionCommand) -> None:
            await super().post(command)
            if dies:
                task.cancel()
                await asyncio.wait((task,))

    journal = EndsWithPost()
    work = Work(journal)
    task = asyncio.create_task(work.loop.execute("Work.", execution_id="e"))
    await work.started.wait()
    state = await request_stop(journal, "e", "not needed", principal="ada")
    assert (state is not None) is dies
    assert [command.kind for command in await journal.commands(["e"])] == ([] if dies else [CommandKind.STOP])
    if state is not None and state.stop_signal is not None:
        assert (state.status.value, state.stop_signal.context["principal"]) == ("stopped", "ada")
    task.cancel()
    await asyncio.wait((task,))


async def test_a_message_to_an_execution_that_ends_meanwhile_is_not_taken_for_received() -> None:
    """It ended between the first look and the posting: the sender is told, and the message stays in the journal."""

    class EndsBeforePost(MemoryJournal):
        async def post(self, command: ExecutionCommand) -> None:
            work.proceed.set()
            await task
            await super().post(command)

    journal = EndsBeforePost()
    work = Work(journal)
    task = asyncio.create_task(run(CommandListener(journal), work.loop))
    await work.started.wait()
    with pytest.raises(InboxClosed, match="too late: execution 'e' has ended, it is completed"):
        await send_message(journal, "e", Message.user("Hello."))
    assert [each.message for each in await journal.commands(["e"])] == [Message.user("Hello.")]


async def test_a_message_is_delivered_once_whenever_the_process_dies() -> None:
    """From every prefix of the records, with its command not finished, the message is in the final state exactly once."""
    journal = CrashableJournal()
    work = Work(journal)
    task = asyncio.create_task(run(CommandListener(journal), work.loop))
    await work.started.wait()
    await journal.post(message("m1"))
    await wait_until_finished(journal)
    work.proceed.set()
    assert texts(await task) == ["Work.", "Hello."]
    ended = False
    for count in range(1, len(journal.appended) + 1):
        crashed = await journal.after_crash(count)
        await crashed.post(message("m1"))  # not finished before the crash
        again = Work(crashed)
        again.proceed.set()
        ended = journal.appended[count - 1].kind.value == "execution_ended"
        state = await run(CommandListener(crashed), again.loop)
        assert texts(state) == ["Work.", "Hello."]
        assert await crashed.commands(["e"]) == ()
    assert ended


async def test_a_finished_command_is_not_obeyed_again(journal: Journal) -> None:
    """Posting a command once more after it was finished does nothing, until its execution is deleted."""
    await journal.post(message("m1"))
    assert [each.id for each in await journal.commands(["e", "f"])] == ["m1"]
    await journal.finish(["m1", "unknown"])
    await journal.post(message("m1"))
    assert await journal.commands(["e"]) == ()
    work = Work(journal)
    work.proceed.set()
    await work.loop.execute("Work.", execution_id="e")
    assert await journal.delete("e")
    await journal.post(message("m1"))
    assert [each.id for each in await journal.commands(["e"])] == ["m1"]
    await journal.aclose()


async def test_a_message_that_comes_too_late_stays_readable(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    """It cannot be delivered any more: who posted it can know, and it stays in the journal until the execution is deleted."""
    work = Work(journal)
    work.proceed.set()
    await work.loop.execute("Work.", execution_id="e")
    await journal.post(message("m1"))
    await journal.post(ExecutionCommand(id="s", execution_id="e", kind=CommandKind.STOP, posted_at=NOW))
    with pytest.raises(InboxClosed, match="too late: execution 'e' has ended, it is completed"):
        await check_in_time(journal, message("m1"))
    await run(CommandListener(journal), work.loop)
    assert [each.id for each in await journal.commands(["e"])] == ["m1"]
    assert [each.id for each in await undelivered_messages(journal, "e")] == ["m1"]
    assert "m1 came too late: execution e has ended" in caplog.text
    assert await journal.delete("e")
    assert await journal.commands(["e"]) == ()
    await journal.aclose()


async def test_a_message_that_was_received_is_in_time(journal: Journal) -> None:
    """Also when its command is not finished because the process died before that."""
    await journal.post(message("m1"))
    work = Work(journal)
    work.proceed.set()
    assert [each.id for each in await undelivered_messages(journal, "e")] == ["m1"]
    await check_in_time(journal, message("m1"))
    await run(CommandListener(journal), work.loop)
    assert await undelivered_messages(journal, "e") == ()
    await check_in_time(journal, message("m1"))
    await journal.aclose()


async def test_a_message_is_sent_to_an_execution_that_has_not_ended(journal: Journal, other: Journal) -> None:
    """Whoever runs it receives the message; one to an execution that is unknown or has ended is refused, and not kept."""
    work = Work(journal)
    with pytest.raises(UnknownExecution, match="no execution 'e'"):
        await send_message(other, "e", Message.user("Too early."))
    task = asyncio.create_task(run(CommandListener(journal), work.loop))
    await work.started.wait()
    command = await send_message(other, "e", Message.user("Hello."), principal="ada", clock=ManualClock(NOW))
    assert command == message(command.id)
    await wait_until_finished(other)
    work.proceed.set()
    assert texts(await task) == ["Work.", "Hello."]
    with pytest.raises(InboxClosed, match="execution 'e' has ended and takes no more messages: it is completed"):
        await send_message(other, "e", Message.user("Too late."))
    assert await other.commands(["e"]) == ()
    for each in {journal, other}:
        await each.aclose()


class Recording(CanJournal):
    """A journal of a user that records, and carries no commands."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()

    async def append(self, *args: Any) -> None:
        await self.journal.append(*args)

    async def read(self, *args: Any, **options: Any) -> Any:
        return await self.journal.read(*args, **options)

    async def head(self, execution_id: str) -> Any:
        return await self.journal.head(execution_id)

    async def list(self, **options: Any) -> Any:
        return await self.journal.list(**options)

    async def claim(self, execution_id: str) -> Any:
        return await self.journal.claim(execution_id)

    async def delete(self, *args: Any, **options: Any) -> Any:
        return await self.journal.delete(*args, **options)

    async def purge(self, *args: Any, **options: Any) -> Any:
        return await self.journal.purge(*args, **options)

    async def aclose(self) -> None:
        await self.journal.aclose()


async def test_a_journal_without_commands_has_no_messages() -> None:
    """Sending one is refused before anything else is looked at, and there are none that wait."""
    journal = Recording()
    with pytest.raises(JournalConflict, match="carries no messages to other processes"):
        await send_message(journal, "e", Message.user("Hello."))
    assert await undelivered_messages(journal, "e") == ()


async def test_a_message_that_an_interrupted_run_has_not_received_is_received_once() -> None:
    """It waits in this process and in the records: recovered by the same loop, it is in the conversation once."""
    journal = MemoryJournal()
    work, listener = Work(journal), CommandListener(journal)
    task = asyncio.create_task(run(listener, work.loop))
    await work.started.wait()
    await journal.post(message("m1"))
    await wait_until_finished(journal)
    task.cancel()
    await asyncio.wait((task,))
    work.proceed.set()
    state = await run(listener, work.loop)
    assert (state.final_text, texts(state)) == ("Done.", ["Work.", "Hello."])


class SlowToRecord(MemoryJournal):
    """A journal that appends messages when it may; if it `fails`, it refuses the first one."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.fails, self.looks = fails, 0
        self.begins, self.proceed = asyncio.Event(), asyncio.Event()

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        if any(record.kind is RecordKind.MESSAGES_SENT for record in records):
            self.begins.set()
            await self.proceed.wait()
            if self.fails:
                self.fails = False
                raise JournalError("the disk is broken")
        await super().append(head, records, claim)

    async def commands(self, execution_ids: Collection[str]) -> Sequence[ExecutionCommand]:
        self.looks += 1
        return await super().commands(execution_ids)

    async def wait_for_look(self) -> None:
        """Wait until commands are looked for once more."""
        before = self.looks
        async with asyncio.timeout(LONGEST):
            while self.looks == before:
                jump(1.0)
                await asyncio.sleep(0.01)
        await turns_of_the_event_loop()


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_command_is_finished_when_its_message_is_durable(*, is_early: bool) -> None:
    """Also when two look for commands at the same time, as the run and the listener do at the start of a run."""
    journal = SlowToRecord()
    work = Work(journal)
    if is_early:
        await journal.post(message("m1"))
    task = asyncio.create_task(run(CommandListener(journal), work.loop))
    if not is_early:
        await work.started.wait()
        await journal.post(message("m1"))
    await journal.begins.wait()
    if is_early:
        await journal.wait_for_look()
    assert len(await journal.commands(["e"])) == 1
    journal.proceed.set()
    work.proceed.set()
    assert texts(await task) == ["Work.", "Hello."]
    assert await journal.commands(["e"]) == ()
    assert [record.kind for record in await journal.read("e")].count(RecordKind.MESSAGES_SENT) == 1


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_message_that_could_not_be_recorded_reaches_the_next_run_once(*, is_early: bool) -> None:
    """No later look finishes its command, and it is not received a second time from the memory of this process."""
    journal = SlowToRecord(fails=True)
    work, listener = Work(journal), CommandListener(journal)
    if is_early:
        await journal.post(message("m1"))
    task = asyncio.create_task(run(listener, work.loop))
    if not is_early:
        await work.started.wait()
        await journal.post(message("m1"))
    await journal.begins.wait()
    if is_early:
        await journal.wait_for_look()
    journal.proceed.set()
    if not is_early:
        await journal.wait_for_look()
    work.proceed.set()
    with pytest.raises(JournalError):
        await task
    assert len(await journal.commands(["e"])) == 1
    assert texts(await run(listener, work.loop)) == ["Work.", "Hello."]
    assert await journal.commands(["e"]) == ()


async def test_a_message_to_a_suspended_execution_waits_for_its_next_run(caplog: pytest.LogCaptureFixture) -> None:
    """The run that was suspended delivers nothing any more, although its process still listens."""

    @tool
    async def work() -> str:
        """Work."""
        return "worked"

    journal = SlowToRecord()
    journal.proceed.set()
    model = ScriptedInference(ToolCall("1", "work", "{}"), "Done.")
    loop = AgentLoop.for_model(model, tools=[work], interceptors=[RequireApproval()], journal=journal)
    async with CommandListener(journal).listen(loop, "e") as listening:
        suspended = await listening.execute("Work.", execution_id="e")
        await journal.post(message("c1"))
        await journal.wait_for_look()
        assert [command.id for command in await journal.commands(["e"])] == ["c1"]
        state = await listening.resume("e", {call.key: approve(call.digest) for call in suspended.pending})
    assert texts(state) == ["Work.", "Hello."]
    assert await journal.commands(["e"]) == ()
    assert await journal.state("e") == state
    assert not caplog.records


class Failing(MemoryJournal):
    """A journal whose commands cannot be read once it `fails`, for the next time."""

    def __init__(self) -> None:
        super().__init__()
        self.fails, self.has_failed = False, asyncio.Event()

    async def commands(self, execution_ids: Collection[str]) -> Sequence[ExecutionCommand]:
        if self.fails:
            self.fails = False
            self.has_failed.set()
            raise JournalError("the storage is away")
        return await super().commands(execution_ids)


def test_commands_are_looked_for_again_when_they_could_not_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """The listener logs what failed, and obeys the command a second later."""

    async def receive() -> tuple[AgentState, float]:
        journal = Failing()
        work = Work(journal)
        task = asyncio.create_task(run(CommandListener(journal), work.loop))
        await work.started.wait()
        journal.fails = True
        await journal.post(message("m1"))
        await journal.has_failed.wait()
        failed_at = asyncio.get_running_loop().time()
        await wait_until_finished(journal)
        waited = asyncio.get_running_loop().time() - failed_at
        work.proceed.set()
        return await task, waited

    state, waited = run_in_virtual_time(receive())
    assert texts(state) == ["Work.", "Hello."]
    assert 0.9 < waited < 1.2
    assert "commands cannot be read from" in caplog.text
    assert "the storage is away" in caplog.text


def test_a_listener_looks_after_a_change_and_seldom_without_one() -> None:
    """A quiet journal is read about once a second, a command is obeyed at once, and many changes cause no more than 50 looks a second."""

    async def receive() -> tuple[AgentState, list[int]]:
        journal, looks = SlowToRecord(), list[int]()
        journal.proceed.set()
        work = Work(journal)
        task = asyncio.create_task(run(CommandListener(journal), work.loop))
        await work.started.wait()
        await asyncio.sleep(1)

        async def count_for(seconds: float) -> None:
            before = journal.looks
            await asyncio.sleep(seconds)
            looks.append(journal.looks - before)

        await count_for(60)
        await journal.post(message("m1"))
        await count_for(0.1)
        left = await MemoryJournal.commands(journal, ["e"])
        busy = asyncio.create_task(count_for(1))
        for number in range(1000):
            await journal.post(message(f"o{number}", execution_id="another"))
            await asyncio.sleep(0.001)
        await busy
        assert left == ()
        work.proceed.set()
        return await task, looks

    state, (quiet, after_a_command, busy) = run_in_virtual_time(receive())
    assert texts(state) == ["Work.", "Hello."]
    assert 50 <= quiet <= 60
    assert 1 <= after_a_command <= 5
    assert 1 <= busy <= 51


async def test_one_listener_serves_many_executions(journal: Journal) -> None:
    """Commands reach the execution that they are for, and the listener rests when none is left."""
    listener, works = CommandListener(journal), [Work(journal) for _ in range(5)]
    tasks = [asyncio.create_task(run(listener, work.loop, f"e{index}")) for index, work in enumerate(works)]
    for index, work in enumerate(works):
        await work.started.wait()
        await journal.post(message(f"m{index}", f"To {index}.", f"e{index}"))
    for index, work in enumerate(works):
        await wait_until_finished(journal, f"e{index}")
        work.proceed.set()
    for index, state in enumerate(await asyncio.gather(*tasks)):
        assert texts(state) == ["Work.", f"To {index}."]
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "agentloop commands"]
    async with listener.listen(works[0].loop, "e"):
        with pytest.raises(ContractViolation):
            async with listener.listen(works[0].loop, "e"):
                pass
    await journal.aclose()


async def test_a_listener_rests_only_when_its_last_execution_has_ended() -> None:
    """Until then the other ones still receive what is sent to them, and nothing is left in the event loop after it."""
    journal = MemoryJournal()
    listener, first, second = CommandListener(journal), Work(journal), Work(journal)
    tasks = [asyncio.create_task(run(listener, work.loop, name)) for name, work in (("e", first), ("f", second))]
    for work in (first, second):
        await work.started.wait()
    first.proceed.set()
    await tasks[0]
    await journal.post(message("m", execution_id="f"))
    await wait_until_finished(journal, "f")
    second.proceed.set()
    assert texts(await tasks[1]) == ["Work.", "Hello."]
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "agentloop commands"]


def insert_command(db: str, execution_id: str, body: str) -> None:
    """Store a text in place of a command."""
    if db.startswith("postgresql://"):
        statement = "INSERT INTO agentloop.commands (id, execution_id, body) VALUES (%s, %s, %s)"
        run_sql(db, statement, f"to {execution_id}", execution_id, body.encode())
        return
    with closing(sqlite3.connect(db)) as connection, connection:
        statement = "INSERT INTO commands (id, execution_id, sequence, body) VALUES (?, ?, 99, ?)"
        connection.execute(statement, (f"to {execution_id}", execution_id, body))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("{", JournalCorrupt),
        (to_json(message("x", execution_id="damaged")).decode()[:-3], JournalCorrupt),
        (to_json(message("x", execution_id="damaged")).decode().replace('"message",', '"pause",', 1), JournalCorrupt),
        ('{"schema_version":99,"kind":"ExecutionCommand","value":{}}', SchemaTooNew),
    ],
)
async def test_a_command_that_cannot_be_read_concerns_its_execution_only(
    db: str, body: str, expected: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """It is an error of the journal, which the listener logs; the other executions receive their commands."""
    journal = open_journal(db)
    listener, works = CommandListener(journal), {name: Work(journal) for name in ("damaged", "other")}
    tasks = [asyncio.create_task(run(listener, work.loop, name)) for name, work in works.items()]
    for work in works.values():
        await work.started.wait()
    insert_command(db, "damaged", body)
    with pytest.raises(expected):
        await journal.commands(["other", "damaged"])
    await journal.post(message("m", execution_id="other"))
    await wait_until_finished(journal, "other")
    for work in works.values():
        work.proceed.set()
    assert [texts(state) for state in await asyncio.gather(*tasks)] == [["Work."], ["Work.", "Hello."]]
    assert "commands cannot be read from" in caplog.text
    await journal.aclose()


async def test_changes_wake_those_who_wait_at_once(journal: Journal, other: Journal) -> None:
    """A wait returns when the execution changes, here or in another process, and False when only others do."""
    assert await journal.wait_for_change("e", timeout=0)  # the first wait of a caller
    await rest(journal, timeout=0)
    await other.post(message("m1"))
    assert await journal.wait_for_change("e", timeout=LONGEST)
    await rest(journal, timeout=0.05)
    # A change between two waits is not missed.
    await other.post(message("m2"))
    await asyncio.sleep(0)
    assert await journal.wait_for_change("e", timeout=LONGEST if isinstance(journal, PostgresJournal) else 0)
    # Another caller has seen nothing yet, and sees each change itself.
    caller = Work(journal)
    assert await asyncio.wait_for(journal.wait_for_change("e", timeout=LONGEST, caller=caller), LONGEST)
    await rest(journal, timeout=0, caller=caller)
    assert await journal.wait_for_change(timeout=0)
    waiting = asyncio.create_task(journal.wait_for_change("f", timeout=LONGEST, caller=caller))
    assert await waiting
    waiting = asyncio.create_task(journal.wait_for_change("f", timeout=LONGEST, caller=caller))
    await asyncio.sleep(0)
    await other.post(message("m3", execution_id="f"))
    assert await waiting
    for each in {journal, other}:
        await each.aclose()


class SlowToSuspend(MemoryJournal):
    """Takes its time to store a suspension; a message comes meanwhile."""

    async def append_using(
        self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim, uses: Sequence[Any]
    ) -> None:
        if records[-1].kind is RecordKind.EXECUTION_SUSPENDED:
            await send_message(self, head.execution_id, Message.user("and a bulb"))
            await asyncio.sleep(5)  # virtual seconds, in which the listener looks for commands
        await super().append_using(head, records, claim, uses)


def test_a_message_that_comes_while_a_suspension_is_recorded_waits_for_the_resumption() -> None:
    """No record follows that of a suspension but for a decision: their number names the suspension."""

    @tool
    def buy(item: str) -> str:
        """Buy."""
        return "bought"

    call = InferenceResponse((ToolCall("1", "buy", '{"item": "lamp"}'),))
    journal = SlowToSuspend()
    loop = AgentLoop.for_model(
        ScriptedInference(call, "done"), tools=[buy], interceptors=[RequireApproval("buy")], journal=journal
    )

    async def run() -> AgentState:
        listener = CommandListener(journal)
        async with listener.listen(loop, "order") as listening:
            state = await listening.get_or_start("Buy a lamp.", "order")
        assert (await journal.read("order"))[-1].kind is RecordKind.EXECUTION_SUSPENDED
        async with listener.listen(loop, "order") as listening:
            return await listening.resume("order", {state.pending[0].key: approve()})

    state = run_in_virtual_time(run())
    assert [message.text for message in state.messages if message.role == "user"] == ["Buy a lamp.", "and a bulb"]
