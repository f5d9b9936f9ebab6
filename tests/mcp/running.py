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

import anyio
import pytest

from agentloop.contracts import ToolPolicy
from agentloop.mcp import McpEnsemble
from agentloop.mcp.sdk.names import IS_FIRST_GENERATION, Client, types
from tests.limits import LONGEST
from tests.loaded import loaded_python

HERE = Path(__file__).parent
SMALL = str(HERE / "small_server.py")
HOSTILE = str(HERE / "hostile_server.py")
NO_TIMEOUTS: dict[str, Any] = {
    "connect_timeout": 10 * LONGEST,
    "reconnect_timeout": 10 * LONGEST,
    "policy": ToolPolicy(timeout=10 * LONGEST),
}
"""Settings with which no call fails because a server or the machine is slow."""

SINCE_2026 = pytest.mark.skipif(
    IS_FIRST_GENERATION, reason="the installed SDK, mcp 1, does not know the protocol of 2026-07-28"
)


def small_entry() -> dict[str, Any]:
    """Return the entry of the small server in a file of servers."""
    command, *arguments = loaded_python(SMALL)
    return {"command": command, "args": arguments}


def on_sdk(*command: str, **settings: Any) -> McpEnsemble:
    """Return a server of somebody else that is a program on the official SDK, over stdio."""
    launcher, *arguments = sdk_program(*command)
    return McpEnsemble.stdio(launcher, arguments, **{**NO_TIMEOUTS, **settings})


def sdk_program(*command: str) -> list[str]:
    """Return the command of a server in Python of somebody else, which needs generation 2 of the SDK."""
    return [str(HERE.parents[1] / ".venv/bin/python"), *command] if IS_FIRST_GENERATION else loaded_python(*command)


@asynccontextmanager
async def connected(server: Any) -> AsyncIterator[Client]:
    """Yield a client of the SDK, which is connected to a server in this process."""

    async def ignore(*_: object) -> None:
        """Receive messages and logs that no test looks at."""

    settings: dict[str, Any] = dict.fromkeys(["message_handler", "logging_callback"], ignore)
    settings |= dict.fromkeys(["elicitation_callback", "sampling_callback"])
    client: Any = Client  # of either generation
    information = types.Implementation(name="test", version="1")
    async with client(_in_process(server), client_info=information, **settings) as connection:
        yield connection


@asynccontextmanager
async def _in_process(server: Any) -> AsyncIterator[tuple[Any, Any]]:
    """Run a server; yield the streams of a client."""
    to_server, from_client = anyio.create_memory_object_stream[Any](1)
    to_client, from_server = anyio.create_memory_object_stream[Any](1)
    options = server.create_initialization_options()
    async with to_server, from_client, to_client, from_server, anyio.create_task_group() as tasks:
        tasks.start_soon(server.run, from_client, to_client, options)
        yield from_server, to_server
        tasks.cancel_scope.cancel()


def small(**settings: Any) -> McpEnsemble:
    """Return the small server over stdio."""
    launcher, *arguments = loaded_python(SMALL)
    return McpEnsemble.stdio(launcher, arguments, **{**NO_TIMEOUTS, "name": "small", **settings})


def hostile(behavior: str, **settings: Any) -> McpEnsemble:
    """Return the hostile server with this behavior, without which an agent goes on."""
    settings = {"required": False, **NO_TIMEOUTS, **settings}
    return McpEnsemble.stdio(sys.executable, ["-S", HOSTILE, behavior], name="hostile", **settings)


def node_program(name: str) -> str:
    """Return the path of a program from npm, which `make test` installs; without npm, the test is skipped."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, and this server is a program for node")
    # The environments of other targets, such as `make coverage`, use those of `make test`.
    folders = [Path(sys.prefix), HERE.parents[1] / ".venv"]
    folder = next((folder for folder in folders if (folder / "npm").is_dir()), folders[0])
    return str(folder / "npm" / "node_modules" / ".bin" / name)


def children() -> set[str]:
    """Return the child processes of this process, without that of the forks."""
    pids: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended in the meantime
            pids.update((task / "children").read_text().split())
    return {pid for pid in pids if not _is_loaded(pid)}


def _is_loaded(pid: str) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):  # the child has ended in the meantime
        return b"tests.loaded" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def server_pids() -> list[int]:
    """Return the running servers: the children of the guards, which are children of this process."""
    pids: list[int] = []
    for guard in children():
        with suppress(FileNotFoundError):  # the guard has ended in the meantime
            pids += map(int, Path(f"/proc/{guard}/task/{guard}/children").read_text().split())
    return pids


def is_running(pid: int) -> bool:
    """Return whether there is such a process that is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def wait_until_gone(pid: int) -> bool:
    """Wait until there is no such process; return whether it ended in time."""
    deadline = asyncio.get_running_loop().time() + LONGEST
    while is_running(pid) and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110  # it is not a child process
        await asyncio.sleep(0.01)
    return not is_running(pid)


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


@asynccontextmanager
async def run_http_server(*command: str, ready: bytes, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a server over HTTP; yield its process when its output says that it is ready."""
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


def small_at(port: int) -> Any:
    """Run the small server at a port."""
    return run_http_server(*loaded_python(SMALL, str(port)), ready=b"running on")


@asynccontextmanager
async def small_over_http() -> AsyncIterator[str]:
    """Run the small server over HTTP; yield its address."""
    port = free_port()
    async with small_at(port):
        yield f"http://127.0.0.1:{port}/mcp"


def everything_at(port: int) -> Any:
    """Run the reference server at a port."""
    return run_http_server(
        node_program("mcp-server-everything"), "streamableHttp", ready=b"listening on port", PORT=str(port)
    )


@asynccontextmanager
async def everything_over_http() -> AsyncIterator[str]:
    """Run the reference server over HTTP; yield its address."""
    port = free_port()
    async with everything_at(port):
        yield f"http://127.0.0.1:{port}/mcp"


async def wait_for_note(notes: Path, text: str) -> None:
    """Wait until a server has written a note."""
    deadline = asyncio.get_running_loop().time() + LONGEST
    while text not in _read(notes):
        assert asyncio.get_running_loop().time() < deadline, f"there is no note {text!r}"
        await asyncio.sleep(0.01)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def wait_for_listener(port: int) -> None:
    """Wait until a server listens at a port."""
    deadline = asyncio.get_running_loop().time() + LONGEST
    while True:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)
