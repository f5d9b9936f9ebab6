"""No server outlives the program that started it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from agentloop.tools.mcp import McpEnsemble, server_process
from tests.limits import LONGEST, jump
from tests.tools.mcp.running import PATIENT, SMALL, gone, is_running, noted

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()} {child.pid} are there")
while True:
    time.sleep(600)
"""
PROGRAM = """
import asyncio, sys
from agentloop.tools.mcp import McpEnsemble

async def main():
    async with McpEnsemble.stdio(sys.executable, [sys.argv[1]], name="small", connect_timeout=1000) as server:
        pid = next(tool for tool in server.offered if tool.name == "pid")
        print((await pid.use()).value["result"], flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGSEGV])
async def test_a_server_ends_with_the_program_however_that_ends(how: signal.Signals) -> None:
    """Killed, interrupted by Ctrl-C, terminated, crashed: the server is gone soon after."""
    root = str(Path(__file__).parents[3])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, SMALL, stdout=PIPE, stderr=PIPE, env={**os.environ, "PYTHONPATH": root}
    )
    assert process.stdout is not None
    server = int(await process.stdout.readline())
    assert is_running(server)
    process.send_signal(how)
    await asyncio.wait_for(process.communicate(), LONGEST)
    assert await gone(server)


@pytest.mark.usefixtures("descriptors")
async def test_a_server_that_does_not_want_to_end_is_ended_with_all_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores the end of its input and the request to terminate, and has a child of its own."""
    monkeypatch.setattr(server_process, "_KILL_SECONDS", LONGEST)
    note = tmp_path / "pids"
    server = McpEnsemble.stdio(sys.executable, ["-S", "-c", STUBBORN, str(note)], name="stubborn", **PATIENT)
    await server.hold()
    discovering = asyncio.create_task(server.discover())
    await noted(note, "are there")
    pids = [int(pid) for pid in note.read_text().split()[:2]]
    jump(PATIENT["connect_timeout"])
    assert await discovering == ()
    await server.release()
    assert len(pids) == 2
    for pid in pids:
        assert await gone(pid)
