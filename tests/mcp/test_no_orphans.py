"""Servers end with the program that started them."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from agentloop.mcp import McpEnsemble, server_process
from tests.limits import LONGEST, jump
from tests.mcp.running import NO_TIMEOUTS, SMALL, children, is_running, wait_for_note, wait_until_gone

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()} {child.pid} started")
while True:
    time.sleep(600)
"""
PROGRAM = """
import asyncio, sys
from agentloop.mcp import McpEnsemble

async def main():
    async with McpEnsemble.stdio(sys.executable, [sys.argv[1]], name="small", connect_timeout=1000) as server:
        pid = next(tool for tool in server.offered if tool.name == "pid")
        print((await pid.use()).value["result"], flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGSEGV])
async def test_a_server_ends_with_the_program(signal_number: signal.Signals) -> None:
    """The server ends soon after the program was killed, interrupted, terminated or has crashed."""
    root = str(Path(__file__).parents[2])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, SMALL, stdout=PIPE, stderr=PIPE, env={**os.environ, "PYTHONPATH": root}
    )
    assert process.stdout is not None
    server = int(await process.stdout.readline())
    assert is_running(server)
    process.send_signal(signal_number)
    await asyncio.wait_for(process.communicate(), LONGEST)
    assert await wait_until_gone(server)


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


@pytest.mark.parametrize("cancellations", [0, 1, 3])
@pytest.mark.parametrize("turns", [1, 4, 30])
def test_a_closed_event_loop_leaves_no_server(cancellations: int, turns: int) -> None:
    """Whenever a program is cancelled, however often, and ends: the server has ended, and no pipe is left to the garbage collector."""

    async def connect() -> None:
        async with McpEnsemble.stdio(sys.executable, ["-S", "-c", DEAF], name="deaf", **NO_TIMEOUTS):
            pass

    async def cancel() -> None:
        connecting = asyncio.ensure_future(connect())
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(cancellations):
            connecting.cancel()
            await asyncio.sleep(0)

    before = children()
    asyncio.run(cancel())
    gc.collect()  # warns of what is left, which is an error here
    assert children() == before


@pytest.mark.usefixtures("descriptors")
async def test_a_stubborn_server_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ignores the end of its input and SIGTERM is killed, and so is its child process."""
    monkeypatch.setattr(server_process, "_KILL_SECONDS", LONGEST)
    note = tmp_path / "pids"
    server = McpEnsemble.stdio(
        sys.executable, ["-S", "-c", STUBBORN, str(note)], name="stubborn", required=False, **NO_TIMEOUTS
    )
    await server.hold()
    discovering = asyncio.create_task(server.discover())
    await wait_for_note(note, "started")
    pids = [int(pid) for pid in note.read_text().split()[:2]]
    jump(NO_TIMEOUTS["connect_timeout"])
    assert await discovering == ()
    await server.release()
    assert len(pids) == 2
    for pid in pids:
        assert await wait_until_gone(pid)
