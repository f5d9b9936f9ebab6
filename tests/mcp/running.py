"""Real servers, started and stopped by tests."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agentloop.mcp import McpEnsemble
from tests.limits import LONGEST

HERE = Path(__file__).parent
SMALL = str(HERE / "small_server.py")
HOSTILE = str(HERE / "hostile_server.py")
PATIENT: dict[str, Any] = {"connect_timeout": 10 * LONGEST, "reconnect_timeout": 10 * LONGEST}
"""Settings of an ensemble with which nothing ends because a server, or the machine, is slow."""


def small(**settings: Any) -> McpEnsemble:
    """Return the small server over stdio."""
    return McpEnsemble.stdio(sys.executable, [SMALL], name="small", **{**PATIENT, **settings})


def hostile(manner: str, **settings: Any) -> McpEnsemble:
    """Return a server that behaves in this manner."""
    return McpEnsemble.stdio(sys.executable, ["-S", HOSTILE, manner], name="hostile", **{**PATIENT, **settings})


def program(name: str) -> str:
    """Return the path of a program of the virtual environment."""
    return str(Path(sys.executable).with_name(name))


def node_program(name: str) -> str:
    """Return the path of a server from npm; `make test` installs them. Where there is no npm, the test is skipped."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, and this server is a program for node")
    return str(Path(sys.prefix) / "npm" / "node_modules" / ".bin" / name)


def children() -> set[str]:
    """Return the processes that were started by this one."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found.update((task / "children").read_text().split())
    return found


def server_pids() -> list[int]:
    """Return the servers that run: the children of the guards that were started by this process."""
    found: list[int] = []
    for guard in children():
        with suppress(FileNotFoundError):  # it has ended meanwhile
            found += map(int, Path(f"/proc/{guard}/task/{guard}/children").read_text().split())
    return found


def is_running(pid: int) -> bool:
    """Say whether there is such a process, other than one that waits to be forgotten."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pid: int) -> bool:
    """Wait until there is no such process; say whether that came true."""
    until = asyncio.get_running_loop().time() + LONGEST
    while is_running(pid) and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110  # it is not a child of ours
        await asyncio.sleep(0.01)
    return not is_running(pid)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def serving(*command: str, ready: bytes, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a server of HTTP; return when it has written that it is ready."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env={**os.environ, **env}
    )
    assert process.stdout is not None
    try:
        while ready not in (line := await process.stdout.readline()):
            assert line, "the server ended before it was ready"
        draining = asyncio.create_task(process.stdout.read())
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await draining
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def serving_small(port: int) -> Any:
    """Run the small server at this port."""
    return serving(sys.executable, SMALL, str(port), ready=b"running on")


@asynccontextmanager
async def small_over_http() -> AsyncIterator[str]:
    """Run the small server over HTTP; return its address."""
    port = free_port()
    async with serving_small(port):
        yield f"http://127.0.0.1:{port}/mcp"


def everything_at(port: int) -> Any:
    """Run the reference server at this port."""
    return serving(node_program("mcp-server-everything"), "streamableHttp", ready=b"listening on port", PORT=str(port))


@asynccontextmanager
async def everything_over_http() -> AsyncIterator[str]:
    """Run the reference server over HTTP; return its address."""
    port = free_port()
    async with everything_at(port):
        yield f"http://127.0.0.1:{port}/mcp"


async def noted(notes: Path, text: str) -> None:
    """Wait until a server has left a note."""
    until = asyncio.get_running_loop().time() + LONGEST
    while text not in _read(notes):
        assert asyncio.get_running_loop().time() < until, f"nothing was noted of {text}"
        await asyncio.sleep(0.01)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def listening(port: int) -> None:
    """Wait until somebody listens at a port."""
    until = asyncio.get_running_loop().time() + LONGEST
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert asyncio.get_running_loop().time() < until
        await asyncio.sleep(0.02)
