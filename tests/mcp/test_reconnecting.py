"""HTTP servers that are restarted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentloop.contracts import ToolPolicy
from agentloop.mcp import McpEnsemble
from agentloop.values import ToolStatus
from tests.limits import LONGEST
from tests.mcp.running import NO_TIMEOUTS, everything_at, free_port, small_at, wait_for_note
from tests.toolkits.running import Call, executions, scripted_loop


@pytest.mark.usefixtures("descriptors")
async def test_calls_wait_for_a_restarted_server() -> None:
    """Calls wait for a server that is away, and are sent to the new process, which does not know the old session."""
    port = free_port()
    server = McpEnsemble.http(f"http://127.0.0.1:{port}/mcp", name="small", effects={"add": "pure"}, **NO_TIMEOUTS)
    async with scripted_loop([server], ("add", {"a": 1, "b": 1})) as loop:
        async with small_at(port):
            assert executions(await loop.execute("go"))[0].succeeded
        async with server:
            add = next(tool for tool in server.offered if tool.name == "add")
            waiting = [asyncio.create_task(add.use(a=number, b=1)) for number in range(50)]
            async with small_at(port):
                results = await asyncio.gather(*waiting)
                assert [result.value["result"] for result in results] == [number + 1 for number in range(50)]


@pytest.mark.usefixtures("descriptors")
async def test_an_unknown_session_is_initialized_again() -> None:
    """A restarted reference server does not know the session, which is initialized again."""
    port = free_port()
    server = McpEnsemble.http(f"http://127.0.0.1:{port}/mcp", name="everything", required=False, **NO_TIMEOUTS)
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
async def test_a_server_that_stays_away_fails_only_its_calls() -> None:
    """After `reconnect_timeout` calls fail with `ToolUnavailable`, and the execution continues."""
    port = free_port()
    settings = {
        **NO_TIMEOUTS,
        "required": False,
        "reconnect_timeout": 0.3,
        "policy": ToolPolicy(timeout=LONGEST),
    }
    server = McpEnsemble.http(f"http://127.0.0.1:{port}/mcp", name="small", **settings)
    calls: list[Call] = [("add", {"a": 1, "b": 1}), ("put", {"path": "/dev/null", "text": ""})]
    async with scripted_loop([server], calls) as loop:
        assert not await server.discover()
        async with small_at(port):
            assert await server.discover()  # retries at once, although the server was away a moment ago
        state = await loop.execute("go")
    assert state.final_text == "done"
    for execution in executions(state):
        assert execution.error is not None
        assert (execution.status, execution.error.type) == (ToolStatus.FAILED, "ToolUnavailable")


@pytest.mark.usefixtures("descriptors")
async def test_a_call_with_an_effect_is_in_doubt_when_the_server_is_lost(tmp_path: Path) -> None:
    """A sent call of a tool with an effect ends in doubt when the server is lost."""
    port = free_port()
    server = McpEnsemble.http(f"http://127.0.0.1:{port}/mcp", name="small", **{**NO_TIMEOUTS, "reconnect_timeout": 0.3})
    notes = tmp_path / "notes"
    async with small_at(port) as process, scripted_loop([server], ("wait", {"path": str(notes)})) as loop:
        running = asyncio.create_task(loop.execute("go"))
        await wait_for_note(notes, "waiting")
        process.kill()
        execution = executions(await running)[0]
    assert execution.status is ToolStatus.IN_DOUBT
