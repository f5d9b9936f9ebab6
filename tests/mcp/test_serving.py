"""`agentloop mcp serve`: tools and agents of ours, called over the protocol."""

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

import httpx
import pytest

from agentloop.contracts import ToolContext
from agentloop.errors import ToolFailed
from agentloop.mcp import McpEnsemble
from agentloop.values import Effect, Image
from tests.limits import LONGEST
from tests.loaded import loaded_agentloop
from tests.mcp.running import NO_TIMEOUTS, free_port, sdk_program, wait_for_listener, wait_for_note

ROOT = Path(__file__).parents[2]
TRUSTED: dict[str, Any] = {**NO_TIMEOUTS, "trust_annotations": True}
TOOLS = "tests/mcp/served_tools.py"
AGENTS = "tests.mcp.served_tools"


def serve(*arguments: str) -> McpEnsemble:
    """Return the ensemble of `agentloop mcp serve` with these arguments."""
    launcher, *rest = loaded_agentloop("mcp", "serve", *arguments)
    return McpEnsemble.stdio(launcher, rest, cwd=ROOT, name="ours", **TRUSTED)


@asynccontextmanager
async def serve_over_http(*arguments: str) -> AsyncIterator[McpEnsemble]:
    """Run `agentloop mcp serve --http` with these arguments, yield its ensemble, and end it with Ctrl-C."""
    port = free_port()
    command = ["mcp", "serve", *arguments, "--http", "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*loaded_agentloop(*command), cwd=ROOT)
    try:
        await wait_for_listener(port)
        yield McpEnsemble.http(f"http://127.0.0.1:{port}/mcp", name="ours", **TRUSTED)
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), LONGEST)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def call(server: McpEnsemble, name: str, updates: list[Any] | None = None, /, **arguments: object) -> Any:
    """Call a tool of a held server; progress is appended to `updates`."""
    tool: Any = next(tool for tool in server.offered if tool.name == name)
    report = [].append if updates is None else updates.append
    context = ToolContext(execution_id="e", agent_id="a", idempotency_key="e/1/0", report=report)
    return await tool.with_tool_context(context).use(**arguments)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "bearer  secret"}, 200),
        ({}, 401),
        pytest.param({"authorization": "Bearer other"}, 401, marks=pytest.mark.heavy),
        pytest.param({"authorization": "Bearer secret", "origin": "http://evil.example"}, 403, marks=pytest.mark.heavy),
    ],
)
async def test_beyond_this_machine_a_token_is_needed(headers: dict[str, str], status: int) -> None:
    """A request with the token is answered; one without it, or from a web page elsewhere, is not."""
    port = free_port()
    command = ["mcp", "serve", TOOLS, "--http", "--host", "0.0.0.0", "--port", str(port)]
    environment = {**os.environ, "AGENTLOOP_MCP_TOKEN": "secret"}
    process = await asyncio.create_subprocess_exec(*loaded_agentloop(*command), cwd=ROOT, env=environment)
    accepted = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    try:
        await wait_for_listener(port)
        async with httpx.AsyncClient(trust_env=False) as client:
            response = await client.post(f"http://127.0.0.1:{port}/mcp", json=body, headers={**accepted, **headers})
        assert response.status_code == status
    finally:
        process.kill()
        await process.wait()


async def test_a_token_may_be_any_bytes() -> None:
    """A token that is not UTF-8 is the bytes of the environment."""
    port, secret = free_port(), b"caf\xe9"
    command = ["mcp", "serve", TOOLS, "--http", "--port", str(port)]
    environment = {**os.environ, "AGENTLOOP_MCP_TOKEN": os.fsdecode(secret)}
    process = await asyncio.create_subprocess_exec(*loaded_agentloop(*command), cwd=ROOT, env=environment)
    try:
        await wait_for_listener(port)
        async with httpx.AsyncClient(trust_env=False) as client:
            answers = [
                (await client.get(f"http://127.0.0.1:{port}/mcp", headers={b"authorization": b"Bearer " + token}))
                for token in (secret, b"cafe")
            ]
        assert [answer.status_code == 401 for answer in answers] == [False, True]
    finally:
        process.kill()
        await process.wait()


async def test_without_a_token_the_server_listens_on_this_machine_only() -> None:
    """The command refuses to start, and says how to set a token."""
    command = ["mcp", "serve", TOOLS, "--http", "--host", "0.0.0.0", "--port", "0"]
    process = await asyncio.create_subprocess_exec(*loaded_agentloop(*command), cwd=ROOT, stderr=PIPE)
    _, error = await process.communicate()
    assert process.returncode == 2
    assert b"AGENTLOOP_MCP_TOKEN" in error


async def check_tools(server: McpEnsemble) -> None:
    """Check that the tools are offered and behave like in a loop."""
    offered = {tool.name: tool for tool in server.offered}
    assert set(offered) == {"add", "parts", "picture", "stepwise", "cut", "wait"}
    effects = [offered[name].effect for name in ("add", "parts", "wait")]
    assert effects == [Effect.PURE, Effect.IDEMPOTENT, Effect.EFFECT]
    assert (await call(server, "add", a=1, b=2)).value == "3"
    assert (await call(server, "parts")).value == {"parts": (1, 2)}
    assert (await call(server, "picture")).content == (Image(data=b"picture", media_type="image/png"),)
    with pytest.raises(ToolFailed, match=r"InvalidArguments: .*at \$\.b"):
        await call(server, "add", a=1, b="two")
    updates: list[Any] = []
    assert (await call(server, "stepwise", updates)).value == "done"
    assert updates == [{"progress": 0.5}, {"progress": 2, "message": "nearly"}, {"progress": 3, "total": 3}]


async def test_tools_are_served_over_stdio() -> None:
    """Served tools behave like in a loop, and their prints do not break the protocol."""
    async with serve(TOOLS) as server:
        await check_tools(server)


async def test_tools_are_served_over_http() -> None:
    """Served tools behave like in a loop, and Ctrl-C ends the server."""
    async with serve_over_http(TOOLS) as server, server:
        await check_tools(server)


@asynccontextmanager
async def served(transport: str) -> AsyncIterator[McpEnsemble]:
    """Serve the tools over a transport, and yield their ensemble, which is held."""
    if transport == "stdio":
        async with serve(TOOLS) as server:
            yield server
    else:
        async with serve_over_http(TOOLS) as server, server:
            yield server


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_half_characters_end_no_session(transport: str) -> None:
    """Arguments, progress, results and errors have U+FFFD in place of half a character, and the session goes on."""
    updates: list[Any] = []
    async with served(transport) as server, asyncio.timeout(LONGEST):
        assert (await call(server, "cut", updates, text="a \ud83d")).value == {"half \ufffd": "a \ufffd"}
        with pytest.raises(ToolFailed, match="half \ufffd"):
            await call(server, "cut", text="fail")
        with pytest.raises(ToolFailed, match="InvalidArguments"):
            await call(server, "cut", **{"\ud83d": "a"})
        assert (await call(server, "add", a=1, b=2)).value == "3"
    assert updates == [{"progress": 1, "message": "half \ufffd"}]


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_cancelled_call_is_cancelled_in_the_tool(transport: str, tmp_path: Path) -> None:
    """The cancellation of a client reaches the tool, over each transport."""
    notes = tmp_path / "notes"
    async with served(transport) as server:
        await cancel_call(server, "wait", notes, path=str(notes))


async def cancel_call(server: McpEnsemble, name: str, notes: Path, **arguments: object) -> None:
    """Begin a call, cancel it, and wait until the tool has written a note about it."""
    running = asyncio.create_task(call(server, name, None, **arguments))
    await wait_for_note(notes, "waiting")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_for_note(notes, "cancelled")


async def test_ctrl_c_ends_a_server_that_waits_for_input(tmp_path: Path) -> None:
    """Ctrl-C ends a server that waits for its next message, and cancels the running call."""
    notes = tmp_path / "notes"
    command = ["mcp", "serve", TOOLS]
    process = await asyncio.create_subprocess_exec(
        *loaded_agentloop(*command), cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    assert process.stdin is not None
    initialize = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    wait = {"name": "wait", "arguments": {"path": str(notes)}}
    requests = [("initialize", 1, initialize), ("notifications/initialized", None, {}), ("tools/call", 2, wait)]
    for method, number, params in requests:
        message = {"jsonrpc": "2.0", "method": method, "params": params, **({} if number is None else {"id": number})}
        process.stdin.write(json.dumps(message).encode() + b"\n")
    await wait_for_note(notes, "waiting")
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), LONGEST) == 130
    await wait_for_note(notes, "cancelled")
    process.stdin.close()
    await process.communicate()


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


async def test_stdout_has_messages_alone_and_may_be_closed(tmp_path: Path) -> None:
    """What a module prints goes to stderr; a client that closes the output of the server ends it, without an error."""
    (tmp_path / "talking.py").write_text((ROOT / TOOLS).read_text() + "print('loaded')\n")
    command = loaded_agentloop("mcp", "serve", str(tmp_path / "talking.py"))
    read, write = os.pipe()
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=write, stderr=PIPE)
    os.close(write)
    assert process.stdin is not None
    process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
    output = await asyncio.to_thread(os.read, read, 1 << 16)
    assert json.loads(output.splitlines()[0])["id"] == 1
    os.close(read)
    process.stdin.write(json.dumps({**INITIALIZE, "id": 2, "method": "ping", "params": {}}).encode() + b"\n")
    assert process.stderr is not None
    assert (await process.stderr.read()).decode() == "loaded\n"
    assert await process.wait() == 0
    process.stdin.close()


async def test_an_agent_is_served_as_one_tool() -> None:
    """The tool takes a task and returns the answer of the agent; its steps and calls are the progress."""
    async with serve("--agent", f"{AGENTS}:loop", "--description", "Adds.") as server:
        assert [(tool.name, tool.description) for tool in server.offered] == [("loop", "Adds.")]
        updates: list[Any] = []
        answer = await call(server, "loop", updates, task="What is 20 + 22?")
    assert answer.value == "It is 42."
    assert [update["message"] for update in updates] == ["thinks", "calls add", "thinks"]


async def test_a_cancelled_agent_cancels_its_tools(tmp_path: Path) -> None:
    """The cancellation of a client reaches the tools of a served agent."""
    notes = tmp_path / "notes"
    async with serve("--agent", f"{AGENTS}:waiting") as server:
        await cancel_call(server, "waiting", notes, task=str(notes))


async def test_a_failed_agent_is_an_error() -> None:
    """The client receives the error of the agent."""
    async with serve("--agent", f"{AGENTS}:failing") as server:
        with pytest.raises(ToolFailed, match="the model is broken"):
            await call(server, "failing", task="anything")


async def test_an_address_in_use_is_a_usage_error() -> None:
    """An address that is in use ends the command with a message and exit code 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = ["mcp", "serve", TOOLS, "--http", "--port", port]
        process = await asyncio.create_subprocess_exec(*loaded_agentloop(*command), cwd=ROOT, stderr=PIPE)
        _, output = await process.communicate()
    assert process.returncode == 2
    assert output.decode() == f"Error: cannot listen at 127.0.0.1, port {port}: Address already in use\n"


async def test_port_0_is_any_free_port() -> None:
    """With `--port 0` the server listens on a free port and prints its address."""
    command = ["mcp", "serve", TOOLS, "--http", "--port", "0"]
    process = await asyncio.create_subprocess_exec(*loaded_agentloop(*command), cwd=ROOT, stderr=PIPE)
    assert process.stderr is not None
    try:
        line = (await process.stderr.readline()).decode()
        async with McpEnsemble.http(line.removeprefix("serving at ").strip(), name="ours", **NO_TIMEOUTS) as server:
            assert (await call(server, "add", a=1, b=2)).value == "3"
    finally:
        process.send_signal(signal.SIGINT)
        await process.communicate()


async def test_the_ensembles_of_a_file_are_served(tmp_path: Path) -> None:
    """The tools of a TOML file are served."""
    (tmp_path / "tools.toml").write_text('[ensembles.texts]\nuse = "agentloop.toolkits.summarization:summarization"\n')
    async with serve(str(tmp_path / "tools.toml")) as server:
        assert (await call(server, "condense", text="One. Two.", sentences=2)).value == "One. Two."


async def test_tools_of_other_servers_are_served(tmp_path: Path) -> None:
    """`--mcp` serves the tools of other servers."""
    config = tmp_path / "mcp.json"
    command, *arguments = sdk_program("-m", "mcp_server_time")
    config.write_text(json.dumps({"mcpServers": {"time": {"command": command, "args": arguments}}}))
    async with serve("--mcp", str(config)) as server:
        assert "get_current_time" in [tool.name for tool in server.offered]
