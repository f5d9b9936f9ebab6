"""MCP servers of agents that are tools of others, of loops that a conversation is handed to, and of executions left early."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import pytest

from agentloop import (
    AgentLoop,
    AgentState,
    Approval,
    ScenarioStep,
    ScriptedDriver,
    ScriptedInference,
    ToolCall,
    from_json,
    handoff_to,
    to_json,
)
from agentloop.contracts import ToolPolicy
from agentloop.contracts.tool_policy import DEFAULT_POLICY
from agentloop.events import ToolCallCompleted, ToolCallStarted
from agentloop.tools.mcp import server_process
from agentloop.values import ToolStatus, approve
from tests.limits import LONGEST, jump
from tests.tools.ensembles.running import executions, scripted_loop
from tests.tools.mcp.running import noted, small

pytestmark = pytest.mark.usefixtures("descriptors")


@pytest.fixture(autouse=True)
def _servers_have_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers end by themselves, which includes their notes, however long that takes."""
    monkeypatch.setattr(server_process, "_GRACE_SECONDS", LONGEST)


def waiting_agent(notes: Path, policy: ToolPolicy = DEFAULT_POLICY) -> AgentLoop:
    """Return a loop whose agent calls a tool that waits, and which has a server of its own."""
    patient = small(policy=ToolPolicy(timeout=10 * LONGEST))
    agent = scripted_loop([patient], ("wait", {"path": str(notes)}))
    return scripted_loop([agent.as_tool("ask", "Waits.", policy=policy), small()], ("ask", {"task": "wait"}))


async def test_a_server_is_kept_between_the_calls_of_an_agent_whose_loop_is_entered() -> None:
    """It is one process then, and one for each call else."""
    agent, pids = scripted_loop([small()], ("pid", {})), list[object]()
    agent.on(ToolCallCompleted, lambda event: pids.append(event.execution.value))
    loop = scripted_loop([agent.as_tool("ask", "Asks.")], ("ask", {"task": "a"}), ("ask", {"task": "b"}))
    async with agent, loop:
        await loop.execute("go")
    await loop.execute("go")
    assert len(pids) == 4
    assert pids[0] == pids[1]
    assert len(set(map(str, pids))) == 3


async def test_a_call_that_waits_for_approval_is_sent_when_it_has_it(tmp_path: Path) -> None:
    """Through the caller of the agent, by a server that was started anew."""
    path = tmp_path / "log"
    log = ScenarioStep.tool_call("log", {"path": str(path)})
    agent = AgentLoop(ScriptedDriver(log, ScenarioStep.final("logged")), [small()], interceptors=[Approval(["log"])])
    ask = ScenarioStep.tool_call("ask", {"task": "log"})
    loop = AgentLoop(ScriptedDriver(ask, ScenarioStep.final("done")), [agent.as_tool("ask", "Logs.")])
    state = from_json(to_json(await loop.execute("go")), AgentState)
    assert not path.exists()
    (call,) = [one for one in state.pending if not one.waits_for]
    state = await loop.resume(state, {call.key: approve(call.digest)})
    assert (executions(state)[0].value, state.final_text, path.read_text()) == ("logged", "done", "line\n")


async def test_a_loop_that_a_conversation_is_handed_to_has_its_servers() -> None:
    """They are started when it gets the conversation."""
    sums = scripted_loop([small(allow=["add"])], ("add", {"a": 1, "b": 2}))
    model = ScriptedInference(ToolCall("1", "to_sums", json.dumps({"reason": "a sum"})))
    desk = AgentLoop.for_model(model, tools=[handoff_to(sums, name="to_sums", description="Sums.")])
    state = await desk.execute("go")
    assert [one.value for one in executions(state)] == ["the conversation is handed over", {"result": 3}]


async def test_an_execution_that_is_left_leaves_nothing(tmp_path: Path) -> None:
    """The agent's call is cancelled at its server, and both servers are ended (law 19)."""
    notes = tmp_path / "notes"
    async with waiting_agent(notes).stream("go") as events:
        async for event in events:
            if isinstance(event, ToolCallStarted) and event.call.name == "wait":
                await noted(notes, "waiting")
                break
    await noted(notes, "cancelled")


async def test_iterating_may_be_left_early() -> None:
    """The server is ended with the iterator (law 19)."""
    loop = scripted_loop([small()], ("pid", {}), ("pid", {}))
    async with aclosing(loop.iterate("go")) as states:
        async for state in states:
            assert executions(state)[0].succeeded
            break


async def test_a_cancellation_reaches_the_server_of_an_agent(tmp_path: Path) -> None:
    """Through the call of the agent."""
    notes = tmp_path / "notes"
    running = asyncio.create_task(waiting_agent(notes).execute("go"))
    await noted(notes, "waiting")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await noted(notes, "cancelled")


async def test_the_timeout_of_an_agent_reaches_its_server(tmp_path: Path) -> None:
    """The call is cancelled there; the caller goes on."""
    notes = tmp_path / "notes"
    running = asyncio.create_task(waiting_agent(notes, policy=ToolPolicy(timeout=LONGEST)).execute("go"))
    await noted(notes, "waiting")
    jump(LONGEST)
    state = await running
    assert (executions(state)[0].status, state.final_text) == (ToolStatus.TIMED_OUT, "done")
    await noted(notes, "cancelled")
