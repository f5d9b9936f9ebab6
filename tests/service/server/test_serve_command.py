"""`agentloop serve`: a server for the database that is named, as a process."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

import httpx

from agentloop.values import ExecutionStatus
from tests.limits import LONGEST
from tests.loaded import loaded_agentloop
from tests.service.server.front import DEADLINE, opened, settled, start

PROGRAM = """
from agentloop import AgentLoop, ScriptedInference
loop = AgentLoop.for_model(ScriptedInference("Three lamps are left."))
"""


async def test_the_command_serves_a_file_and_a_url(tmp_path: Path, db: str) -> None:
    """What a client starts is recorded in the database that `--db` names, a file or a URL."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    command = loaded_agentloop("serve", "shop:loop", "--port", "0", "--db", db)
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(DEADLINE * 3):  # the command loads everything
            line = (await process.stderr.readline()).decode()
        assert line.startswith("serving at http://127.0.0.1:"), line
        url = line.split()[2].rstrip(";")
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client:
            await start(client, id="lamps")
            assert (await settled(client, "local:lamps"))["text"] == "Three lamps are left."
    finally:
        process.terminate()
        await process.wait()
    async with opened(db) as journal:
        assert [head.execution_id for head in await journal.list()] == ["local:lamps"]


STUBBORN = """
import asyncio
from agentloop import AgentLoop, ScriptedInference, ToolCall, tool

@tool(effect="pure")
async def wait() -> str:
    '''Wait, and ignore every cancellation.'''
    print("waits", flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("goes on", flush=True)

loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "wait", "{}"), "done"), tools=[wait])
"""


async def test_a_third_signal_ends_a_server_whose_tool_ignores_its_cancellation(tmp_path: Path) -> None:
    """The first two wait for the tool; the execution stays in progress, as after a crash."""
    (tmp_path / "shop.py").write_text(STUBBORN)
    db = str(tmp_path / "runs.db")
    command = [sys.executable, "-m", "agentloop.service.cli.main", "serve", "shop:loop", "--port", "0", "--db", db]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(LONGEST):
        url = (await process.stderr.readline()).decode().split()[2].rstrip(";")
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client:
            await start(client, id="lamps")
        assert await process.stdout.readline() == b"waits\n"
        process.terminate()
        assert await process.stdout.readline() == b"goes on\n"
        while process.returncode is None:  # signals that come at once can be one
            process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 0.1)
        assert process.returncode == -signal.SIGTERM
    async with opened(db) as journal:
        assert [head.status for head in await journal.list()] == [ExecutionStatus.IN_PROGRESS]
