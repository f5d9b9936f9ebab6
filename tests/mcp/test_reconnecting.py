"""Servers over HTTP that go and come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentloop.contracts import ToolPolicy
from agentloop.mcp import McpEnsemble
from agentloop.values import ToolStatus
from tests.limits import LONGEST
from tests.mcp.running import PATIENT, everything_at, free_port, noted, serving_small
from tests.tools.ensembles.running import Call, executions, scripted_loop


@pytest.mark.usefixtures("descriptors")
async def test_calls_wait_for_a_server_that_comes_back() -> None:
    """They are sent to the new one, which knows nothing of the old one's session."""
    port = free_port()
    server = McpEnsemble.http(f"http://127.0.0.1:{port}/mcp", name="small", **PATIENT)
    async with scripted_loop([server], ("add", {"a": 1, "b": 1})) as loop:
        async with serving_small(port):
            assert executions(await loop.execute("go"))[0].succeeded
        async with server:
            add = next(tool for tool in server.offered if tool.name == "add")
            waiting = [asyncio.create_task(add.use(a=number, b=1)) for number in range(50)]
            async with serving_small(port):
                results = await asyncio.gather(*waiting)
                assert [result.value["result"] for result in results] == [number + 1 for number in range(50)]


@pytest.mark.usefixtures("descriptors")
async def test_a_session_that_is_not_known_any_more_is_begun_again() -> None:
    """The reference server forgets its sessions when it is started again."""
    port = free_port()
    server = McpEnsemble.http(f"http://127.0.0.1:{port}/mcp", name="everything", **PATIENT)
    async with server:
        assert server.offered == ()
    async with everything_at(port):
        await server.hold()
        offered = {tool.name: tool for tool in await server.discover()}
        assert (await offered["echo"].use(message="one")).value == "Echo: one"
    async with everything_at(port):
        assert (await offered["echo"].use(message="two")).value == "Echo: two"
        await server.release()


@pytest.mark.usefixtures("descriptors")
async def test_a_server_that_stays_away_fails_its_own_calls_only() -> None:
    """They are told as unavailable when there is no more patience; the executions go on."""
    port = free_port()
    settings = {**PATIENT, "reconnect_timeout": 0.3, "policy": ToolPolicy(timeout=LONGEST)}
    server = McpEnsemble.http(f"http://127.0.0.1:{port}/mcp", name="small", **settings)
    calls: list[Call] = [("add", {"a": 1, "b": 1}), ("put", {"path": "/dev/null", "text": ""})]
    async with scripted_loop([server], calls) as loop:
        async with serving_small(port):
            assert await server.discover()  # asks now, although it was away a moment ago
        state = await loop.execute("go")
    assert state.final_text == "done"
    for execution in executions(state):
        assert execution.error is not None
        assert (execution.status, execution.error.type) == (ToolStatus.FAILED, "ToolUnavailable")


@pytest.mark.usefixtures("descriptors")
async def test_a_server_that_is_lost_in_the_middle_of_a_call_leaves_it_in_doubt(tmp_path: Path) -> None:
    """It had been sent, and its tool is an effect."""
    port = free_port()
    server = McpEnsemble.http(f"http://127.0.0.1:{port}/mcp", name="small", **{**PATIENT, "reconnect_timeout": 0.3})
    notes = tmp_path / "notes"
    async with serving_small(port) as process, scripted_loop([server], ("wait", {"path": str(notes)})) as loop:
        running = asyncio.create_task(loop.execute("go"))
        await noted(notes, "waiting")
        process.kill()
        execution = executions(await running)[0]
    assert execution.status is ToolStatus.IN_DOUBT
