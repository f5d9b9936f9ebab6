"""Calls that became tasks of a server, after the process that made them was killed."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest

from agentloop import AgentState
from agentloop.durable import SqliteJournal
from agentloop.events import ToolCallRecovered
from agentloop.values import ExecutionStatus, RecordKind, ToolExecution, approve
from tests.loaded import loaded_python
from tests.mcp.running import wait_for_note
from tests.mcp.task_agent import RUN, task_agent


async def kill_agent(folder: Path, tool: str, effect: str, moment: str, command: str = "execute") -> None:
    """Run the agent in a process of its own, and kill it when the server has written a note."""
    command_line = loaded_python("-m", "tests.mcp.task_agent", str(folder), tool, effect, command)
    process = await asyncio.create_subprocess_exec(*command_line, stdout=PIPE, stderr=STDOUT)
    try:
        await wait_for_note(folder / "notes", moment)
    finally:
        process.kill()
        output, _ = await process.communicate()
    assert process.returncode == -9, output.decode()


async def recover(folder: Path, tool: str, effect: str, in_doubt: str = "tell") -> tuple[AgentState, list[str]]:
    """Recover the agent in this process; return its state, and how its calls were recovered."""
    how: list[str] = []
    (folder / "go").touch()
    async with task_agent(folder, tool, effect, in_doubt) as loop:
        loop.events.on(ToolCallRecovered, lambda event: how.append(event.recovery.value))
        return await loop.recover(RUN), how


def only_call(state: AgentState) -> ToolExecution:
    (execution,) = [execution for step in state.steps for execution in step.executions]
    return execution


def call_count(folder: Path, tool: str) -> int:
    """Return how often the server was called, which is how often there was an effect."""
    return (folder / "notes").read_text().count(f"called {tool}\n")


# Every test starts a server and two processes that load the SDK; the effect, which must not happen twice, is in every run.
@pytest.mark.parametrize(
    "effect",
    ["effect", pytest.param("idempotent", marks=pytest.mark.heavy), pytest.param("pure", marks=pytest.mark.heavy)],
)
async def test_a_recovered_call_waits_for_its_task(tmp_path: Path, effect: str) -> None:
    """The result of the task is that of the call, whose effect happens once, whatever the tool declares."""
    await kill_agent(tmp_path, "late", effect, "asked late")
    state, how = await recover(tmp_path, "late", effect)
    assert only_call(state).value == "worth waiting for"
    assert (call_count(tmp_path, "late"), how) == (1, ["continued"])
    assert await SqliteJournal(str(tmp_path / "runs.db")).verify() == ()


async def test_a_forgotten_task_of_an_effect_is_in_doubt(tmp_path: Path) -> None:
    """A server that does not know the task any more leaves it open whether the effect happened: it is not repeated."""
    await kill_agent(tmp_path, "late", "effect", "asked late")
    (tmp_path / "late").unlink()
    state, _ = await recover(tmp_path, "late", "effect")
    assert only_call(state).status == "in_doubt"
    assert "does not know the task" in only_call(state).error_message
    assert call_count(tmp_path, "late") == 1


@pytest.mark.parametrize("effect", ["idempotent", pytest.param("pure", marks=pytest.mark.heavy)])
async def test_a_forgotten_task_without_effect_is_called_again(tmp_path: Path, effect: str) -> None:
    """A call that can be repeated is repeated when its task is lost."""
    await kill_agent(tmp_path, "late", effect, "asked late")
    (tmp_path / "late").unlink()
    state, _ = await recover(tmp_path, "late", effect)
    assert only_call(state).value == "worth waiting for"
    assert call_count(tmp_path, "late") == 2


@pytest.mark.heavy
async def test_a_person_decides_about_a_forgotten_task(tmp_path: Path) -> None:
    """With `suspend`, the call in doubt waits for a person, and an approval makes a task of its own."""
    await kill_agent(tmp_path, "late", "effect", "asked late")
    (tmp_path / "late").unlink()
    state, how = await recover(tmp_path, "late", "effect", "suspend")
    assert (state.status, how) == (ExecutionStatus.SUSPENDED, ["continued"])
    (pending,) = state.pending
    assert "does not know the task" in pending.reason
    assert call_count(tmp_path, "late") == 1
    async with task_agent(tmp_path, "late", "effect", "suspend") as loop:
        state = await loop.resume(RUN, {pending.key: approve(pending.digest)})
    assert only_call(state).value == "worth waiting for"
    assert call_count(tmp_path, "late") == 2


@pytest.mark.heavy
async def test_a_forgotten_task_can_end_the_execution(tmp_path: Path) -> None:
    """With `fail`, the execution fails."""
    await kill_agent(tmp_path, "late", "effect", "asked late")
    (tmp_path / "late").unlink()
    state, _ = await recover(tmp_path, "late", "effect", "fail")
    assert state.status is ExecutionStatus.FAILED
    assert call_count(tmp_path, "late") == 1


async def test_a_task_whose_id_was_not_received_is_in_doubt(tmp_path: Path) -> None:
    """A process that is killed before it has the id cannot ask for the task, and does not call twice."""
    await kill_agent(tmp_path, "silent", "effect", "called silent")
    state, how = await recover(tmp_path, "silent", "effect")
    assert only_call(state).status == "in_doubt"
    assert (call_count(tmp_path, "silent"), how) == (1, ["in_doubt"])


@pytest.mark.heavy
async def test_a_recovery_can_be_killed_too(tmp_path: Path) -> None:
    """The record of the task lasts until the call has its outcome."""
    await kill_agent(tmp_path, "late", "effect", "asked late")
    (tmp_path / "notes").rename(tmp_path / "earlier")
    await kill_agent(tmp_path, "late", "effect", "asked late", "recover")
    state, how = await recover(tmp_path, "late", "effect")
    assert only_call(state).value == "worth waiting for"
    assert (call_count(tmp_path, "late"), how) == (0, ["continued"])
    kinds = [record.kind for record in await SqliteJournal(str(tmp_path / "runs.db")).read(RUN)]
    assert (kinds.count(RecordKind.CALL_INTENT), kinds.count(RecordKind.CALL_ATTACHED)) == (1, 1)
