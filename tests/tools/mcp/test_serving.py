"""Tools and agents of ours, offered to others and called through the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentloop.contracts import ToolContext
from agentloop.errors import ToolFailed
from agentloop.tools.mcp import McpEnsemble
from agentloop.values import Effect, Image
from tests.limits import LONGEST
from tests.tools.mcp.running import PATIENT, free_port, listening, noted, program

ROOT = Path(__file__).parents[3]
TOOLS = "tests/tools/mcp/served_tools.py"
AGENTS = "tests.tools.mcp.served_tools"


def served(*arguments: str) -> McpEnsemble:
    """Return what `agentloop mcp serve` offers with these arguments."""
    return McpEnsemble.stdio(program("agentloop"), ["mcp", "serve", *arguments], cwd=ROOT, name="ours", **PATIENT)


@asynccontextmanager
async def served_over_http(*arguments: str) -> AsyncIterator[McpEnsemble]:
    """Run `agentloop mcp serve --http` with these arguments; end it with Ctrl-C."""
    port = free_port()
    command = ["mcp", "serve", *arguments, "--http", "--port", str(port)]
    process = await asyncio.create_subprocess_exec(program("agentloop"), *command, cwd=ROOT)
    try:
        await listening(port)
        yield McpEnsemble.http(f"http://127.0.0.1:{port}/mcp", name="ours", **PATIENT)
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), LONGEST)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def called(server: McpEnsemble, name: str, told: list[Any] | None = None, **arguments: object) -> Any:
    """Call a tool of a held server; progress is appended to `told`."""
    tool: Any = next(one for one in server.offered if one.name == name)
    report = [].append if told is None else told.append
    context = ToolContext(execution_id="e", agent_id="a", idempotency_key="e/1/0", report=report)
    return await tool.with_tool_context(context).use(**arguments)


async def check_tools(server: McpEnsemble) -> None:
    """Check that the tools are offered and behave as they do in a loop."""
    offered = {tool.name: tool for tool in server.offered}
    assert set(offered) == {"add", "parts", "picture", "stepwise", "wait"}
    effects = [offered[name].effect for name in ("add", "parts", "wait")]
    assert effects == [Effect.PURE, Effect.IDEMPOTENT, Effect.EFFECT]
    assert (await called(server, "add", a=1, b=2)).value == "3"
    assert (await called(server, "parts")).value == {"parts": (1, 2)}
    assert (await called(server, "picture")).content == (Image(data=b"picture", media_type="image/png"),)
    with pytest.raises(ToolFailed, match=r"InvalidArguments: .*at \$\.b"):
        await called(server, "add", a=1, b="two")
    told: list[Any] = []
    assert (await called(server, "stepwise", told)).value == "done"
    assert told == [{"progress": 0.5}, {"progress": 2, "message": "nearly"}, {"progress": 3, "total": 3}]


async def test_tools_are_offered_over_stdio() -> None:
    """What they print does not disturb the protocol."""
    async with served(TOOLS) as server:
        await check_tools(server)


async def test_tools_are_offered_over_http() -> None:
    """On this machine only, unless told otherwise; Ctrl-C ends it."""
    async with served_over_http(TOOLS) as server, server:
        await check_tools(server)


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_call_that_is_cancelled_is_cancelled_in_the_tool(transport: str, tmp_path: Path) -> None:
    """The cancellation reaches into the tool, over either transport."""
    notes = tmp_path / "notes"
    if transport == "stdio":
        async with served(TOOLS) as server:
            await cancelled_call(server, "wait", notes, path=str(notes))
    else:
        async with served_over_http(TOOLS) as server, server:
            await cancelled_call(server, "wait", notes, path=str(notes))


async def cancelled_call(server: McpEnsemble, name: str, notes: Path, **arguments: object) -> None:
    """Begin a call, cancel it, and wait until the tool has noted that."""
    running = asyncio.create_task(called(server, name, None, **arguments))
    await noted(notes, "waiting")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await noted(notes, "cancelled")


async def test_ctrl_c_ends_a_server_that_waits_for_its_input(tmp_path: Path) -> None:
    """Although nothing comes in any more; the call that runs is cancelled."""
    notes = tmp_path / "notes"
    command = ["mcp", "serve", TOOLS]
    process = await asyncio.create_subprocess_exec(
        program("agentloop"), *command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    assert process.stdin is not None
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    call = {"name": "wait", "arguments": {"path": str(notes)}}
    requests = [("initialize", 1, hello), ("notifications/initialized", None, {}), ("tools/call", 2, call)]
    for method, number, params in requests:
        message = {"jsonrpc": "2.0", "method": method, "params": params, **({} if number is None else {"id": number})}
        process.stdin.write(json.dumps(message).encode() + b"\n")
    await noted(notes, "waiting")
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), LONGEST) == 130
    await noted(notes, "cancelled")
    process.stdin.close()
    await process.communicate()


async def test_an_agent_is_offered_as_one_tool() -> None:
    """It takes a task and returns its answer; its steps and calls are the progress."""
    async with served("--agent", f"{AGENTS}:loop", "--description", "Adds.") as server:
        assert [(tool.name, tool.description) for tool in server.offered] == [("loop", "Adds.")]
        told: list[Any] = []
        answer = await called(server, "loop", told, task="What is 20 + 22?")
    assert answer.value == "It is 42."
    assert [update["message"] for update in told] == ["thinks", "calls add", "thinks"]


async def test_a_cancelled_agent_cancels_its_tools(tmp_path: Path) -> None:
    """The cancellation reaches through the loop into the tool that it runs."""
    notes = tmp_path / "notes"
    async with served("--agent", f"{AGENTS}:waiting") as server:
        await cancelled_call(server, "waiting", notes, task=str(notes))


async def test_an_agent_that_fails_is_told_as_an_error() -> None:
    """The client learns why."""
    async with served("--agent", f"{AGENTS}:failing") as server:
        with pytest.raises(ToolFailed, match="the model is broken"):
            await called(server, "failing", task="anything")


async def test_an_address_that_is_taken_is_told() -> None:
    """As a mistake of the one who typed the command."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = ["mcp", "serve", TOOLS, "--http", "--port", port]
        process = await asyncio.create_subprocess_exec(program("agentloop"), *command, cwd=ROOT, stderr=PIPE)
        _, told = await process.communicate()
    assert process.returncode == 2
    assert told.decode() == f"Error: cannot listen at 127.0.0.1, port {port}: Address already in use\n"


async def test_a_free_port_is_found_and_told() -> None:
    """Port 0 is any."""
    command = ["mcp", "serve", TOOLS, "--http", "--port", "0"]
    process = await asyncio.create_subprocess_exec(program("agentloop"), *command, cwd=ROOT, stderr=PIPE)
    assert process.stderr is not None
    told = (await process.stderr.readline()).decode()
    async with McpEnsemble.http(told.removeprefix("serving at ").strip(), name="ours", **PATIENT) as server:
        assert (await called(server, "add", a=1, b=2)).value == "3"
    process.send_signal(signal.SIGINT)
    await process.communicate()


async def test_what_a_toml_file_describes_is_offered(tmp_path: Path) -> None:
    """An ensemble keeps its names and effects."""
    (tmp_path / "tools.toml").write_text('[ensembles.math]\nuse = "agentloop.tools.ensembles.calculator:calculator"\n')
    async with served(str(tmp_path / "tools.toml")) as server:
        assert (await called(server, "calculate", expression="6*7")).value == "42"


async def test_servers_of_others_are_passed_on(tmp_path: Path) -> None:
    """`--mcp` offers what other servers offer."""
    config = tmp_path / "mcp.json"
    config.write_text(
        f'{{"mcpServers": {{"time": {{"command": {os.fspath(program("mcp-server-time"))!r}}}}}}}'.replace("'", '"')
    )
    async with served("--mcp", str(config)) as server:
        assert "get_current_time" in [tool.name for tool in server.offered]
