"""Sessions: each is one conversation, whose messages are answered in the order of their acceptance, whatever process dies."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal, open_journal
from agentloop.durable.journal import Journal
from agentloop.durable.sessions import (
    SESSIONS,
    SessionQueue,
    agent_of_session,
    all_waiting,
    delete_session,
    find_waiting,
    session_of,
    waiting_state,
)
from agentloop.errors import (
    ConfigurationError,
    DecisionError,
    ExecutionClaimed,
    ExecutionFailed,
    InvalidParameter,
    JournalConflict,
)
from agentloop.events import AgentExecutionCompleted, AgentExecutionStarted
from agentloop.testing import run_in_virtual_time
from agentloop.values import AgentState, ExecutionCommand, InferenceRequest, InferenceResponse, Message, approve
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import SystemClock
from tests.durable.records import append_head
from tests.limits import LONGEST
from tests.loaded import loaded_python

ROOT = Path(__file__).parents[2]


@pytest.fixture
def journal(journal_place: str | None) -> Journal:
    """Return an empty journal of each kind."""
    return MemoryJournal() if journal_place is None else open_journal(journal_place)


@pytest.fixture
def other(journal_place: str | None, journal: Journal) -> Journal:
    """Return the journal as another process has it."""
    return journal if journal_place is None else open_journal(journal_place)


def answer(request: InferenceRequest) -> str:
    """Answer the last message of a conversation."""
    return f"re: {request.messages[-1].text}"


def echoing(journal: Journal) -> AgentLoop:
    """Return a loop that answers with the message."""
    return AgentLoop.for_model(ScriptedInference(answer), journal=journal, system_prompt="Echo.")


async def conversation(journal: Journal, session: str) -> list[str]:
    """Return the texts of a session's newest state, after a check that its turns are numbered without gaps."""
    heads = await journal.list(agent_id=agent_of_session(session))
    newest = max(heads, key=lambda head: head.number)
    assert sorted(head.number for head in heads) == list(range(1, len(heads) + 1))
    return [message.text for message in (await journal.state(newest.execution_id)).messages]


def turns(texts: Sequence[str]) -> list[str]:
    """Return a conversation as it has to be after messages that were answered in this order."""
    return [each for text in texts for each in (text, f"re: {text}")]


class Gate:
    """A loop whose tool waits until it is let go, and whose model calls it in answer to "work"."""

    def __init__(self, journal: Journal) -> None:
        self.started, self.proceed = asyncio.Event(), asyncio.Event()

        @tool(effect="pure")
        async def work() -> str:
            """Work."""
            self.started.set()
            await self.proceed.wait()
            return "worked"

        self.loop = AgentLoop.for_model(ScriptedInference(*[self._answer] * 3), tools=[work], journal=journal)

    def _answer(self, request: InferenceRequest) -> InferenceResponse | str:
        last = request.messages[-1]
        if last.role == "user" and last.text == "work":
            return InferenceResponse((ToolCall("1", "work", "{}"),))
        return f"re: {[each.text for each in request.messages if each.role == 'user'][-1]}"


async def accept(journal: Journal, text: str, execution_id: str, session: str = "user-7", agent: str = "") -> None:
    """Accept a message, as a process does that dies before it answers."""
    queue = SessionQueue.of(journal, session)
    await queue.add(Message.user(text), execution_id, SystemClock(), agent=agent)


async def until_waiting(journal: Journal, count: int) -> None:
    """Wait until a number of messages wait in the session."""
    queue = SessionQueue.of(journal, "user-7")
    while len(await queue.waiting()) < count:
        await journal.wait_for_change(queue.agent_id, timeout=LONGEST, caller=queue)


@pytest.mark.parametrize("status", [ExecutionStatus.IN_PROGRESS, ExecutionStatus.COMPLETED])
async def test_a_turn_that_another_process_has_begun_is_left_to_it(journal: Journal, status: ExecutionStatus) -> None:
    """A process whose claim has ended without its knowledge finds the turn begun: that is a conflict, as another process has it."""
    queue = SessionQueue.of(journal, "user-7")
    await accept(journal, "Hello.", "m-1")
    (command,) = await queue.waiting()
    await append_head(journal, "m-1", agent_id=queue.agent_id, status=status)
    with pytest.raises(JournalConflict, match="m-1"):
        await queue.first_state(command, AgentLoop.for_model(ScriptedInference("Hi."), journal=journal))


# --- one conversation -------------------------------------------------------------------------------------------------


async def test_a_session_is_continued_by_any_loop_and_process(journal: Journal, other: Journal) -> None:
    """Each message continues the conversation of its session, and of no other one."""
    assert await echoing(journal).run("one", session="user-7") == "re: one"
    state = await echoing(other).execute(Message.user("two"), session="user-7")
    assert await echoing(other).run("else", session="user-8") == "re: else"
    assert [message.text for message in state.messages] == turns(["one", "two"])
    assert state.agent_id == "session/user-7"
    assert state.context.system_prompt == "Echo."
    assert await conversation(journal, "user-8") == turns(["else"])
    assert await journal.unfinished("") == ()


async def test_messages_at_once_are_answered_in_order(journal: Journal, other: Journal) -> None:
    """Messages that processes send at the same time become whole turns, one after the other."""
    loops = echoing(journal), echoing(other)
    sent = [loops[number % 2].run(str(number), session="user-7") for number in range(6)]
    assert await asyncio.gather(*sent) == [f"re: {number}" for number in range(6)]
    texts = await conversation(journal, "user-7")
    assert sorted(texts[::2]) == [str(number) for number in range(6)]
    assert texts == turns(texts[::2])


async def test_a_message_waits_for_the_turn_before_it(journal: Journal, other: Journal) -> None:
    """While a turn runs, the next message waits for its end, and begins with its answer."""
    gate = Gate(journal)
    first = asyncio.create_task(gate.loop.run("work", session="user-7"))
    await gate.started.wait()
    second = asyncio.create_task(echoing(other).execute("next", session="user-7", execution_id="second"))
    await until_waiting(other, 2)
    assert await other.head("second") is None
    gate.proceed.set()
    assert await first == "re: work"
    assert (await second).messages[-3].text == "re: work"


@pytest.mark.parametrize("way", ["stream", "stream_text", "iterate", "get_or_start"])
async def test_each_way_to_run_takes_a_turn(journal: Journal, way: str) -> None:
    """Streams, steps and named executions are turns of the session, too; a stream has the events of its own turn alone."""
    loop = echoing(journal)
    await accept(journal, "left", "left")
    match way:
        case "stream":
            events = [event async for event in loop.stream("now", session="user-7", execution_id="e")]
            assert {event.execution_id for event in events} == {"e"}
            assert isinstance(events[0], AgentExecutionStarted)
            assert isinstance(events[-1], AgentExecutionCompleted)
        case "stream_text":
            async with loop.stream_text("now", session="user-7") as stream:
                assert "".join([piece async for piece in stream]) == "re: now"
        case "iterate":
            states = [state async for state in loop.iterate("now", session="user-7")]
            assert states[-1].status is ExecutionStatus.COMPLETED
        case _:
            first = await loop.get_or_start("now", "e", session="user-7")
            assert await loop.get_or_start("now", "e", session="user-7") == first
    assert await conversation(journal, "user-7") == turns(["left", "now"])
    assert await journal.unfinished("") == ()


def test_programs_without_an_event_loop_have_sessions() -> None:
    """The synchronous twins take the session, too."""
    loop = echoing(MemoryJournal())
    assert loop.run_sync("1", session="s") == "re: 1"
    assert loop.execute_sync("2", session="s").execution_count == 2
    assert list(loop.iterate_sync("3", session="s"))[-1].execution_count == 3
    assert "".join(loop.stream_text_sync("4", session="s")) == "re: 4"
    assert [*loop.stream_sync("5", session="s")]
    assert len(loop.get_or_start_sync("6", "e", session="s").messages) == 12


async def test_a_turn_that_failed_is_followed_by_the_next(journal: Journal) -> None:
    """A turn that ends with an error is a turn: the next message continues after it."""

    def fail(request: InferenceRequest) -> str:
        if request.messages[-1].text == "bad":
            raise RuntimeError("down")
        return answer(request)

    loop = AgentLoop.for_model(ScriptedInference(fail), journal=journal)
    with pytest.raises(ExecutionFailed):
        await loop.run("bad", session="s")
    assert await loop.run("good", session="s") == "re: good"
    assert [text for text in await conversation(journal, "s") if text] == ["bad", "good", "re: good"]


# --- processes that die, and callers that leave -----------------------------------------------------------------------


async def test_the_message_of_a_dead_process_is_answered_first(journal: Journal, other: Journal) -> None:
    """A message that was accepted by a process which died before it answered is answered by the next one."""
    await accept(journal, "left", "left")
    await accept(journal, "left, too", "left, too")
    assert await echoing(other).run("now", session="user-7") == "re: now"
    assert await conversation(journal, "user-7") == turns(["left", "left, too", "now"])


async def test_an_interrupted_turn_is_continued_first(journal: Journal, other: Journal) -> None:
    """A turn whose process died while it ran is run to its end before the next message is answered."""
    gate = Gate(journal)
    first = asyncio.create_task(gate.loop.run("work", session="user-7", execution_id="first"))
    await gate.started.wait()
    first.cancel()
    await asyncio.wait([first])
    again = Gate(other)
    again.proceed.set()
    assert await again.loop.run("next", session="user-7") == "re: next"
    head = await other.head("first")
    assert head is not None
    assert head.status is ExecutionStatus.COMPLETED
    texts = [text for text in await conversation(journal, "user-7") if text]
    assert texts == ["work", "re: work", "next", "re: next"]


async def test_a_message_is_taken_back_when_its_caller_leaves(journal: Journal, other: Journal) -> None:
    """A caller that is cancelled while its message waits takes it back, and its id can be used again."""
    gate = Gate(journal)
    first = asyncio.create_task(gate.loop.run("work", session="user-7"))
    await gate.started.wait()
    second = asyncio.create_task(echoing(other).run("never", session="user-7", execution_id="second"))
    await until_waiting(other, 2)
    second.cancel()
    await asyncio.wait([second])
    gate.proceed.set()
    await first
    assert await echoing(other).run("after all", session="user-7", execution_id="second") == "re: after all"
    assert "never" not in await conversation(journal, "user-7")


async def test_a_message_that_was_accepted_for_somebody_else_is_not_taken_back(journal: Journal) -> None:
    """A process that ends while it waits on behalf of a client leaves the message for the next one."""
    await accept(journal, "theirs", "e")
    holder = await journal.claim("front")
    queue = SessionQueue.of(journal, "user-7")
    await accept(journal, "front", "front", "user-8")
    await journal.finish(["begin:front"], forget=True)
    gate = Gate(journal)
    before = asyncio.create_task(gate.loop.run("work", session="user-7"))  # behind `theirs`
    await gate.started.wait()
    assert [each.begins for each in await queue.waiting()][1:] == []
    await accept(journal, "later", "later")
    waiting = asyncio.create_task(echoing(journal).get_or_start("later", "later", session="user-7"))
    for _ in range(20):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert [each.begins for each in await queue.waiting()][1:] == ["later"]
    gate.proceed.set()
    await before
    await holder.release()
    assert await echoing(journal).run("last", session="user-7") == "re: last"
    texts = [text for text in await conversation(journal, "user-7") if text]
    assert texts == turns(["theirs", "work", "later", "last"])


async def test_a_turn_that_ends_each_process_fails_in_the_end(journal: Journal) -> None:
    """A turn that was recovered three times without progress ends as failed, and does not block its session."""
    gate = Gate(journal)
    for attempt in range(4):
        run = gate.loop.execute("work", session="s", execution_id="bad") if not attempt else gate.loop.recover("bad")
        task = asyncio.create_task(run)
        await gate.started.wait()
        gate.started.clear()
        task.cancel()
        await asyncio.wait([task])
    assert await echoing(journal).run("next", session="s") == "re: next"
    head = await journal.head("bad")
    assert head is not None
    assert head.status is ExecutionStatus.FAILED


async def test_a_message_for_another_agent_waits_for_those_who_have_it(journal: Journal) -> None:
    """A message that names an agent is not answered by another one."""
    await accept(journal, "for sales", "e1", agent="sales")
    await accept(journal, "for support", "e2", agent="support")
    waiting = asyncio.create_task(echoing(journal).get_or_start("for support", "e2", session="user-7"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not await journal.list()
    assert (await echoing(journal).get_or_start("for sales", "e1", session="user-7")).final_text == "re: for sales"
    assert (await waiting).messages[0].text == "for sales"


# --- decisions --------------------------------------------------------------------------------------------------------


async def test_a_session_waits_for_decisions(journal: Journal) -> None:
    """A message to a session whose turn waits for a decision is refused with what to do, and is not kept."""

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    model = ScriptedInference(ToolCall("1", "pay", "{}"), "Paid.", "Thanks.")
    loop = AgentLoop.for_model(model, tools=[pay], interceptors=[RequireApproval("pay")], journal=journal)
    suspended = await loop.execute("Pay.", session="s", execution_id="first")
    with pytest.raises(DecisionError, match=r"'s' waits for a decision.*AgentLoop.resume\('first'"):
        await loop.run("And?", session="s")
    [call] = suspended.pending
    assert (await loop.resume("first", {call.key: approve(call.digest)})).final_text == "Paid."
    assert len(await SessionQueue.of(journal, "s").waiting()) == 0
    state = await echoing(journal).execute("And?", session="s")
    assert [each.text for each in state.messages if each.role == "user"] == ["Pay.", "And?"]


# --- ids and errors ---------------------------------------------------------------------------------------------------


async def test_a_session_needs_a_journal() -> None:
    """Without a journal, a session is refused with a way out."""
    loop = AgentLoop.for_model(ScriptedInference("no"))
    with pytest.raises(ConfigurationError, match="MemoryJournal"):
        await loop.run("hi", session="s")
    with pytest.raises(ConfigurationError, match="MemoryJournal"):
        _ = [event async for event in loop.stream("hi", session="s")]


@pytest.mark.parametrize("session", ["", " ", "x" * 201, "a\0b", "\ud800", 7])
async def test_wrong_ids_of_sessions_are_refused(session: Any) -> None:
    """The id of a session is a text that every journal can store."""
    with pytest.raises(InvalidParameter, match="session"):
        await echoing(MemoryJournal()).run("hi", session=session)


@given(st.text(min_size=1, max_size=200).filter(lambda text: text.strip() and "\0" not in text))
def test_each_session_has_an_agent_of_its_own(session: str) -> None:
    """The id of a session can be read from that of its agent, and those of forks are of no session."""
    agent_id = agent_of_session(session)
    assert session_of(agent_id) == session
    assert session_of(f"{agent_id}/fork-1") == ""
    assert session_of(session.removeprefix(SESSIONS)) in {"", session_of(session)}


async def test_states_and_known_ids_do_not_begin_turns(journal: Journal) -> None:
    """A session has a state of its own, and each of its turns an id of its own."""
    loop = echoing(journal)
    with pytest.raises(InvalidParameter, match="conversation of its own"):
        await loop.execute(AgentState.start("hi"), session="s")
    await loop.run("hi", session="s", execution_id="e")
    with pytest.raises(JournalConflict, match="'e' already"):
        await loop.run("again", session="s", execution_id="e")
    claim = await journal.claim("f")
    with pytest.raises(ExecutionClaimed):
        await loop.run("again", session="s", execution_id="f")
    await claim.release()
    await accept(journal, "elsewhere", "g", "t")
    with pytest.raises(JournalConflict, match="another session"):
        await loop.run("again", session="s", execution_id="g")
    assert await conversation(journal, "s") == turns(["hi"])


async def test_waiting_messages_can_be_found(journal: Journal, other: Journal) -> None:
    """Messages that wait are listed over all sessions, and found by the executions that they begin."""
    await accept(journal, "one", "e1", "a", agent="sales")
    await accept(other, "two", "e2", "b")
    assert [each.begins for each in await all_waiting(other)] == ["e1", "e2"]
    found = await find_waiting(other, "e1")
    assert found is not None
    state = waiting_state(found)
    assert (state.execution_id, state.agent_id, state.messages[0].text) == ("e1", "session/a", "one")
    assert await find_waiting(journal, "e3") is None


def test_a_run_without_a_session_does_not_load_sessions(tmp_path: Path) -> None:
    """Programs that have no sessions do not load what keeps them, with a journal and without one."""
    program = (
        "import sys\nfrom agentloop import AgentLoop, ScriptedInference, SqliteJournal\n"
        "AgentLoop.for_model(ScriptedInference('a')).run_sync('b')\n"
        f"AgentLoop.for_model(ScriptedInference('a'), journal=SqliteJournal({str(tmp_path / 'j.db')!r})).run_sync('b')\n"
        "print('agentloop.durable.sessions' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    assert printed.stdout == "False\n"


async def test_a_session_can_be_deleted(journal: Journal, other: Journal) -> None:
    """The turns and the waiting messages of a session are deleted, no other ones, and not under a live process."""
    loop = echoing(journal)
    for text in ("one", "two"):
        await loop.run(text, session="s")
    await loop.run("else", session="t")
    await accept(journal, "left", "left", "s")
    claim = await journal.claim("left")
    with pytest.raises(ExecutionClaimed):
        await delete_session(other, "s")
    assert len(await conversation(journal, "s")) == 4
    await claim.release()
    assert await delete_session(other, "s") == 3
    assert await delete_session(other, "s") == 0
    assert await journal.unfinished("") == ()
    assert [head.agent_id for head in await journal.list()] == ["session/t"]
    assert (await loop.execute("new", session="s")).execution_count == 1


# --- any interleaving -------------------------------------------------------------------------------------------------


class Noting(MemoryJournal):
    """A journal that notes which messages were accepted, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted: list[ExecutionCommand] = []

    async def post(self, command: ExecutionCommand) -> None:
        await super().post(command)
        self.accepted.append(command)


WRITES = st.lists(
    st.tuples(
        st.integers(0, 2),  # the session
        st.integers(0, 30),  # when it is sent
        st.none() | st.integers(0, 40),  # when its caller leaves
    ),
    min_size=1,
    max_size=9,
)


@given(WRITES)
def test_each_conversation_is_a_sequence_of_whole_turns_in_the_order_of_acceptance(
    writes: list[tuple[int, int, int | None]],
) -> None:
    """Whoever sends what when, and leaves when: a session has the accepted messages in their order, each with its answer."""

    async def main() -> None:
        journal, inferences = Noting(), random.Random(len(writes))

        @tool(effect="pure")
        async def think() -> str:
            """Think."""
            await asyncio.sleep(inferences.choice([0, 3, 7]))
            return "thought"

        def reply(request: InferenceRequest) -> InferenceResponse | str:
            if request.messages[-1].role == "user":
                return InferenceResponse((ToolCall("1", "think", "{}"),))
            return f"re: {[each.text for each in request.messages if each.role == 'user'][-1]}"

        loop = AgentLoop.for_model(ScriptedInference(*[reply] * 2), tools=[think], journal=journal)
        left = set[str]()

        async def write(number: int, session: int, at: int, leaves: int | None) -> None:
            await asyncio.sleep(at)
            run = asyncio.create_task(loop.run(str(number), session=f"s{session}"))
            await asyncio.wait([run], timeout=leaves)
            if not run.done():
                left.add(str(number))
                run.cancel()
            with suppress(asyncio.CancelledError):
                assert await run == f"re: {number}"

        await asyncio.gather(*[write(number, *each) for number, each in enumerate(writes)])
        for session in {session for session, _, _ in writes}:
            await loop.run("last", session=f"s{session}")
            texts = [text for text in await conversation(journal, f"s{session}") if text]
            agent_id = agent_of_session(f"s{session}")
            accepted = [
                each.message.text for each in journal.accepted if each.execution_id == agent_id and each.message
            ]
            kept = [text for text in accepted if text in texts or text not in left]
            assert texts == turns(kept)
        assert await journal.unfinished("") == ()

    run_in_virtual_time(main())


def kill_at_any_moment(commands: Sequence[Sequence[str]], chance: random.Random) -> None:
    """Start processes, and kill each after some of the lines that it prints."""
    children = [subprocess.Popen(each, cwd=ROOT, stdout=subprocess.PIPE, text=True) for each in commands]
    for child in children:
        assert child.stdout is not None
        for _ in range(chance.randint(1, 10)):
            child.stdout.readline()
        child.kill()
        child.communicate()


@pytest.mark.parametrize("seed", range(3))
async def test_kills_lose_nothing_and_block_no_session(tmp_path: Path, seed: int) -> None:
    """Processes that send messages at once are killed at any moment: what was accepted is answered, in order, once."""
    path, chance, sessions = tmp_path / "j.db", random.Random(seed), 3
    journal = open_journal(str(path))
    await journal.list()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE accepted (number INTEGER PRIMARY KEY, execution_id TEXT, body TEXT)")
        database.execute(
            "CREATE TRIGGER noting AFTER INSERT ON commands BEGIN "
            "INSERT INTO accepted (execution_id, body) VALUES (NEW.execution_id, NEW.body); END"
        )
    command = loaded_python("-m", "tests.durable.session_process", str(path))
    for round_ in range(3):
        kill_at_any_moment([[*command, f"{name}{round_}", str(sessions), "6"] for name in "ab"], chance)
    loop = echoing(journal)
    for number in range(sessions):
        await loop.run("last", session=f"s{number}")
        with closing(sqlite3.connect(path)) as database:
            rows = database.execute(
                "SELECT body FROM accepted WHERE execution_id = ? ORDER BY number", (agent_of_session(f"s{number}"),)
            ).fetchall()
        accepted = [json.loads(body)["value"]["message"]["parts"][0]["text"] for (body,) in rows]
        assert await conversation(journal, f"s{number}") == turns(accepted)
    assert await journal.unfinished("") == ()
    await journal.aclose()
