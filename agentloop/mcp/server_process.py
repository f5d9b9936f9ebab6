"""A server that runs as a subprocess and exchanges lines over its standard input and output."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

from agentloop.errors import ConfigurationError
from agentloop.mcp.servers import StdioServer
from agentloop.mcp.session import ConnectionLost
from agentloop.toolkits.executables import find_executable

_LOG = logging.getLogger("agentloop.mcp.server")
_GUARD = str(Path(__file__).with_name("guard.py"))
_CHUNK_BYTES = 1 << 16
_MAX_LOGGED_BYTES = 2_000
_GRACE_SECONDS = 1.0
_KILL_SECONDS = 3.0
_LAST_WORDS_SECONDS = 0.2
_POLL_SECONDS = 0.01


class ServerProcess:
    """A running server.

    Its messages are the lines of its standard output. Its standard error is written to the log `agentloop.mcp.server`.
    When this process ends, in whatever way, the server and all processes that it has started are ended too.
    """

    __slots__ = ("_last_output", "_lifeline", "_name", "_process", "_stderr_task")

    def __init__(self, name: str, process: Process, lifeline: int) -> None:
        self._name = name
        self._process = process
        self._lifeline = lifeline
        # Read by a task of its own: a full pipe of the standard error would block the server.
        self._last_output = ""
        self._stderr_task = asyncio.create_task(self._log_stderr())

    @classmethod
    async def start(cls, name: str, server: StdioServer, environment: Mapping[str, str]) -> ServerProcess:
        """Start a server.

        Args:
            name: the name of the server, for the log.
            server: its command.
            environment: all of its environment variables.

        Raises:
            ConfigurationError: when there is no such program or folder, or the system is not POSIX.
        """
        folder = None if server.cwd is None else str(server.cwd)
        program = _find_program(name, str(server.command), folder, environment)
        guard_end, lifeline = os.pipe()
        command = [sys.executable, "-I", "-S", _GUARD, str(guard_end), program, *server.args]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=environment,
                cwd=folder,
                # Ctrl-C in a terminal goes to the whole foreground group, which must not include the guard.
                start_new_session=True,
                pass_fds=(guard_end,),
            )
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.close(guard_end)
        return cls(name, process, lifeline)

    async def read_lines(self, max_bytes: float) -> AsyncIterator[bytes]:
        """Yield the lines of the server, without line ends, until it closes its output.

        Args:
            max_bytes: maximum size of a line.

        Raises:
            ConnectionLost: when a line is longer.
        """
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101  # it was opened with a pipe
        partial = bytearray()
        while chunk := await stdout.read(_CHUNK_BYTES):
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                partial += line
                yield bytes(partial)
                partial.clear()
            partial += rest
            if len(partial) > max_bytes:
                raise ConnectionLost(f"it sent a message of more than {max_bytes:g} bytes (Bounds.message_bytes)")
            await asyncio.sleep(0)  # `read` returns at once when data is there: let other tasks run

    async def exit_reason(self, default: str) -> tuple[str, str]:
        """Return how the process has ended, as in "its …", and the last line of its standard error.

        Args:
            default: the reason for a process that has not ended.
        """
        # Both come shortly after the end of the output; without the wait most errors would have no explanation.
        await self._wait_for_exit(_LAST_WORDS_SECONDS)
        await asyncio.wait((self._stderr_task,), timeout=_LAST_WORDS_SECONDS)
        code = self._process.returncode
        return default if code is None else f"its process has ended with exit code {code}", self._last_output

    async def write_line(self, line: bytes) -> None:
        """Write a line.

        Raises:
            OSError: when the server has closed its input.
        """
        stdin = self._process.stdin
        assert stdin is not None  # noqa: S101  # it was opened with a pipe
        stdin.write(line + b"\n")
        await stdin.drain()

    async def stop(self) -> None:
        """Close the server's input, and end the process when it does not exit by itself, even when this is cancelled."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
            await self._wait_for_exit(_GRACE_SECONDS)
        finally:
            os.close(self._lifeline)  # the guard now ends the server
            self._stderr_task.cancel()
        await self._wait_for_exit(_KILL_SECONDS)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        # Nothing public closes pipes that a grandchild process holds open.
        transport = getattr(self._process, "_transport", None)
        if transport is not None:
            transport.close()
        await asyncio.wait((self._stderr_task,))

    async def _wait_for_exit(self, seconds: float) -> None:
        # `Process.wait` also waits for the pipes, which a grandchild process may hold open.
        clock = asyncio.get_running_loop()
        deadline = clock.time() + seconds
        while self._process.returncode is None and clock.time() < deadline:  # noqa: ASYNC110  # asyncio has no such event
            await asyncio.sleep(_POLL_SECONDS)

    async def _log_stderr(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None  # noqa: S101  # it was opened with a pipe
        partial = b""
        with suppress(OSError):
            while chunk := await stderr.read(_CHUNK_BYTES):
                *lines, partial = (partial + chunk).split(b"\n")
                for line in lines:
                    self._log(line)
                partial = partial[:_MAX_LOGGED_BYTES]
                await asyncio.sleep(0)
        if partial:
            self._log(partial)

    def _log(self, line: bytes) -> None:
        text = line[:_MAX_LOGGED_BYTES].decode(errors="replace").rstrip()
        if text:
            self._last_output = text
            _LOG.info("%s: %s", self._name, text)


def _find_program(name: str, command: str, folder: str | None, environment: Mapping[str, str]) -> str:
    """Return the path of the program of a server; raise for mistakes that would otherwise show only in the exit code of the guard."""
    if os.name != "posix":
        raise ConfigurationError("MCP servers over stdio need a POSIX system; use McpEnsemble.http here")
    if folder is not None and not Path(folder).is_dir():
        raise ConfigurationError(f"the MCP server {name!r} cannot be started: there is no folder {folder}")
    if os.sep in command:
        found = command if Path(folder or ".", command).is_file() else None
    else:
        found = find_executable(command, environment.get("PATH", ""))
    if found is None:
        raise ConfigurationError(
            f"the MCP server {name!r} cannot be started: there is no program {command!r}; install it, or correct the command"
        )
    return found
