"""MCP servers of agents as tools, of loops after a handoff, and of executions that are left early."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import pytest

from agentloop import (
    AgentLoop,
    AgentState,
    RequireApproval,
    ScriptedDriver,
    ScriptedInference,
    ToolCall,
    from_json,
    handoff_to,
    to_json,
)
from agentloop.contracts import ToolPolicy
from agentloop.contracts.tool import DEFAULT_POLICY
from agentloop.drivers import ScenarioStep
from agentloop.events import ToolCallCompleted, ToolCallStarted
from agentloop.mcp import server_process
from agentloop.values import ToolStatus, approve
from tests.limits import LONGEST, jump
from tests.mcp.running import small, wait_for_note
from tests.toolkits.running import executions, scripted_loop

pytestmark = pytest.mark.usefixtures("descriptors")


@pytest.fixture(autouse=True)
def _servers_may_end_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give servers enough time to end by themselves and to write their notes."""
    monkeypatch.setattr(server_process, "_GRACE_SECONDS", LONGEST)


def waiting_agent(notes: Path, policy: ToolPolicy = DEFAULT_POLICY) -> AgentLoop:
    """Return a loop with a server, and with an agent whose server has a tool that waits."""
    slow = small(policy=ToolPolicy(timeout=10 * LONGEST))
    agent = scripted_loop([slow], ("wait", {"path": str(notes)}))
    return scripted_loop([agent.as_tool("ask", "Waits.", policy=policy), small()], ("ask", {"task": "wait"}))


async def test_an_entered_agent_keeps_its_server_between_calls() -> None:
    """An agent whose loop is entered has one process for all calls; otherwise one for each call."""
    agent, pids = scripted_loop([small()], ("pid", {})), list[object]()
    agent.on(ToolCallCompleted, lambda event: pids.append(event.execution.value))
    loop = scripted_loop([agent.as_tool("ask", "Asks.")], ("ask", {"task": "a"}), ("ask", {"task": "b"}))
    async with agent, loop:
        await loop.execute("go")
    await loop.execute("go")
    assert len(pids) == 4
    assert pids[0] == pids[1]
    assert len(set(map(str, pids))) == 3


async def test_a_call_is_sent_after_its_approval(tmp_path: Path) -> None:
    """A call of an agent that is approved at its caller is sent by a new process of the server."""
    path = tmp_path / "log"
    log = ScenarioStep.tool_call("log", {"path": str(path)})
    agent = AgentLoop(
        ScriptedDriver(log, ScenarioStep.final("logged")), [small()], interceptors=[RequireApproval(["log"])]
    )
    ask = ScenarioStep.tool_call("ask", {"task": "log"})
    loop = AgentLoop(ScriptedDriver(ask, ScenarioStep.final("done")), [agent.as_tool("ask", "Logs.")])
    state = from_json(to_json(await loop.execute("go")), AgentState)
    assert not path.exists()
    (call,) = [pending for pending in state.pending if not pending.waits_for]
    state = await loop.resume(state, {call.key: approve(call.digest)})
    assert (executions(state)[0].value, state.final_text, path.read_text()) == ("logged", "done", "line\n")


async def test_a_loop_after_a_handoff_has_its_servers() -> None:
    """The servers of a loop are started when the conversation is handed over to it."""
    sums = scripted_loop([small(allow=["add"])], ("add", {"a": 1, "b": 2}))
    model = ScriptedInference(ToolCall("1", "to_sums", json.dumps({"reason": "a sum"})))
    desk = AgentLoop.for_model(model, tools=[handoff_to(sums, name="to_sums", description="Sums.")])
    state = await desk.execute("go")
    assert [execution.value for execution in executions(state)] == ["the conversation is handed over", {"result": 3}]


async def test_a_stream_that_is_left_ends_its_servers(tmp_path: Path) -> None:
    """Leaving a stream cancels the agent's call at its server and ends both servers (law 19)."""
    notes = tmp_path / "notes"
    async with waiting_agent(notes).stream("go") as events:
        async for event in events:
            if isinstance(event, ToolCallStarted) and event.call.name == "wait":
                await wait_for_note(notes, "waiting")
                break
    await wait_for_note(notes, "cancelled")


async def test_an_iterator_that_is_closed_ends_its_server() -> None:
    """Closing an iterator ends the server (law 19)."""
    loop = scripted_loop([small()], ("pid", {}), ("pid", {}))
    async with aclosing(loop.iterate("go")) as states:
        async for state in states:
            assert executions(state)[0].succeeded
            break


async def test_a_cancellation_reaches_the_server_of_an_agent(tmp_path: Path) -> None:
    """Cancelling an execution cancels the call at the server of an agent."""
    notes = tmp_path / "notes"
    running = asyncio.create_task(waiting_agent(notes).execute("go"))
    await wait_for_note(notes, "waiting")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_for_note(notes, "cancelled")


async def test_the_timeout_of_an_agent_reaches_its_server(tmp_path: Path) -> None:
    """The timeout of an agent cancels its call at the server, and the caller continues."""
    notes = tmp_path / "notes"
    running = asyncio.create_task(waiting_agent(notes, policy=ToolPolicy(timeout=LONGEST)).execute("go"))
    await wait_for_note(notes, "waiting")
    jump(LONGEST)
    state = await running
    assert (executions(state)[0].status, state.final_text) == (ToolStatus.TIMED_OUT, "done")
    await wait_for_note(notes, "cancelled")
