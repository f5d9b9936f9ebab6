"""`get_or_start`: one execution for one id, whoever calls it, and whenever."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.contracts import CanIntercept
from agentloop.durable import MemoryJournal, open_journal
from agentloop.durable.journal import Journal
from agentloop.errors import ConfigurationError, DecisionError, JournalConflict
from agentloop.interception import BeforeExecution, RequireApproval, at
from agentloop.testing import CrashableJournal
from agentloop.values import AgentState, InferenceRequest, InferenceResponse, approve
from tests.durable.processes import ROOT
from tests.loaded import loaded_python


def _model(request: InferenceRequest) -> InferenceResponse | str:
    if any(message.exchanges for message in request.messages):
        return "Done."
    return InferenceResponse((ToolCall("1", "work", "{}"),))


def _loop(journal: Journal | None, calls: list[str], interceptors: Iterable[CanIntercept] = ()) -> AgentLoop:
    @tool
    async def work() -> str:
        """Work."""
        calls.append("work")
        await asyncio.sleep(0)
        return "worked"

    script = ScriptedInference(*[_model] * 9)
    return AgentLoop.for_model(script, tools=[work], journal=journal, interceptors=interceptors)


async def test_it_starts_an_execution_once_and_then_returns_it() -> None:
    """The second call runs nothing, also with another input, and returns the recorded state."""
    calls: list[str] = []
    loop = _loop(MemoryJournal(), calls)
    first = await loop.get_or_start("Work.", "e")
    second = await loop.get_or_start("Something else.", "e")
    assert first == second
    assert first.messages[0].text == "Work."
    assert calls == ["work"]
    journal = loop.journal
    assert journal is not None
    # The composition of the loop is recorded as by `execute`.
    await loop.execute("Work.", execution_id="f")
    bodies = [(await journal.read(each))[0].body for each in ("e", "f")]
    assert all('"loop"' in body for body in bodies)


async def test_of_two_tasks_one_runs_the_execution(journal_place: str | None) -> None:
    """Of concurrent calls one starts the execution; the others get JournalConflict or the state."""
    calls: list[str] = []
    journal = MemoryJournal() if journal_place is None else open_journal(journal_place)
    loop = _loop(journal, calls)
    results = await asyncio.gather(*[loop.get_or_start("Work.", "e") for _ in range(8)], return_exceptions=True)
    states = [result for result in results if isinstance(result, AgentState)]
    conflicts = [result for result in results if isinstance(result, JournalConflict)]
    assert len(states) + len(conflicts) == 8
    assert {state.final_text for state in states} == {"Done."}
    assert calls == ["work"]
    assert len(await journal.list()) == 1
    await journal.aclose()


def test_of_two_threads_one_runs_the_execution(db: str) -> None:
    """The same holds for event loops in different threads."""
    calls: list[str] = []
    loop, barrier, results = _loop(open_journal(db), calls), threading.Barrier(4), list[object]()

    def run() -> None:
        barrier.wait()
        try:
            results.append(loop.get_or_start_sync("Work.", "e").final_text)
        except JournalConflict:
            results.append(JournalConflict)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) <= {"Done.", JournalConflict}
    assert "Done." in results
    assert calls == ["work"]


_PROGRAM = """
import sys
from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.errors import JournalConflict
from agentloop.durable import open_journal
from agentloop.values import InferenceResponse

@tool
def work() -> str:
    \"\"\"Work.\"\"\"
    with open(sys.argv[2], "a") as file:
        file.write("work\\n")
    return "worked"

def model(request):
    used = any(message.exchanges for message in request.messages)
    return "Done." if used else InferenceResponse((ToolCall("1", "work", "{}"),))

loop = AgentLoop.for_model(ScriptedInference(*[model] * 4), tools=[work], journal=open_journal(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
while True:
    try:
        print(loop.get_or_start_sync("Work.", "e").final_text, flush=True)
        break
    except JournalConflict:
        pass
"""


def test_of_two_processes_one_runs_the_execution(db: str, tmp_path: Path) -> None:
    """Processes that start the same id at once get the same state, and its tool runs once."""
    calls = tmp_path / "calls.txt"
    command = loaded_python("-c", _PROGRAM, db, str(calls))
    children = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    outputs = [child.communicate("go\n", timeout=60)[0] for child in children]
    assert outputs == ["Done.\n"] * 3
    assert calls.read_text() == "work\n"


async def test_it_recovers_an_execution_after_a_crash_at_any_record() -> None:
    """From every prefix of the records it reaches the same end, and nothing that has an outcome runs again."""
    calls: list[str] = []
    journal = CrashableJournal()
    final = await _loop(journal, calls).get_or_start("Work.", "e")
    for count in range(len(journal.appended) + 1):
        repeated: list[str] = []
        crashed = await journal.after_crash(count)
        state = await _loop(crashed, repeated).get_or_start("Work.", "e")
        assert state.final_text == final.final_text
        kinds = [record.kind.value for record in journal.appended[:count]]
        assert len(repeated) == ("call_intent" not in kinds)


async def test_an_execution_begins_once() -> None:
    """After a crash, interceptors of the beginning run again only if no step was recorded."""
    begun: list[str] = []

    def note(point: BeforeExecution) -> BeforeExecution:
        begun.append(point.state.execution_id)
        return point

    journal = CrashableJournal()
    await _loop(journal, []).get_or_start("Work.", "e")
    kinds = [record.kind.value for record in journal.appended]
    for count in range(len(kinds)):
        begun.clear()
        crashed = await journal.after_crash(count)
        await _loop(crashed, [], interceptors=[at("before_execution", note)]).get_or_start("Work.", "e")
        assert begun == ([] if "step_completed" in kinds[:count] else ["e"])


async def test_a_suspended_execution_is_returned_as_it_is() -> None:
    """It waits for its decision, however often it is asked for, and is completed by `resume`."""
    calls: list[str] = []
    loop = _loop(MemoryJournal(), calls, interceptors=[RequireApproval()])
    first = await loop.get_or_start("Work.", "e")
    assert await loop.get_or_start("Work.", "e") == first
    assert [call.call.name for call in first.pending] == ["work"]
    final = await loop.resume("e", {call.key: approve(call.digest) for call in first.pending})
    assert await loop.get_or_start("Work.", "e") == final
    assert calls == ["work"]


async def test_sub_agents_are_continued_with_their_callers() -> None:
    """An interrupted execution with a sub-agent continues in both, and the tool of the sub-agent runs once."""

    def build(journal: Journal, calls: list[str]) -> AgentLoop:
        def caller(request: InferenceRequest) -> InferenceResponse | str:
            asked = any(message.exchanges for message in request.messages)
            return "All done." if asked else InferenceResponse((ToolCall("1", "helper", '{"task": "Work."}'),))

        agent = _loop(None, calls).as_tool("helper", "Helps.")
        return AgentLoop.for_model(ScriptedInference(caller, caller), tools=[agent], journal=journal)

    calls: list[str] = []
    journal = CrashableJournal()
    await build(journal, calls).get_or_start("Go.", "e")
    assert calls == ["work"]
    for count in range(len(journal.appended) + 1):
        repeated: list[str] = []
        crashed = await journal.after_crash(count)
        state = await build(crashed, repeated).get_or_start("Go.", "e")
        assert state.final_text == "All done."
        done = any(
            record.kind.value == "call_intent" and record.execution_id != "e" for record in journal.appended[:count]
        )
        assert len(repeated) == (not done)


async def test_it_neither_continues_nor_returns_the_agent_of_a_call() -> None:
    """The recorded execution of an agent that has served a call belongs to its caller: its id is refused as any reserved one."""
    agent = AgentLoop.for_model(ScriptedInference("42"))
    call = ToolCall("1", "ask", '{"task": "?"}')
    loop = AgentLoop.for_model(
        ScriptedInference(call, "Done."), tools=[agent.as_tool("ask", "Knows.")], journal=MemoryJournal()
    )
    await loop.get_or_start("Ask.", "e")
    assert loop.journal is not None
    assert await loop.journal.head("e/1/0/agent") is not None
    with pytest.raises(ConfigurationError, match="reserved for an agent that serves a call of 'e'"):
        await loop.get_or_start("Ask.", "e/1/0/agent")


async def test_it_refuses_what_cannot_be_one_execution() -> None:
    """It needs a journal and a free id, and states in the middle of another execution are no input."""
    with pytest.raises(ConfigurationError, match="journal"):
        await _loop(None, []).get_or_start("Work.", "e")
    loop = _loop(MemoryJournal(), [], interceptors=[RequireApproval()])
    with pytest.raises(ConfigurationError, match="reserved"):
        await loop.get_or_start("Work.", "e/1/0/agent")
    suspended = await loop.get_or_start("Work.", "e")
    with pytest.raises(DecisionError):
        await loop.get_or_start(suspended, "f")
    # The refused call released its claim.
    assert (await loop.get_or_start("Work.", "f")).pending
