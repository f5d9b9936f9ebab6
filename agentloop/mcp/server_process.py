"""A server that runs as a subprocess and exchanges lines over its standard input and output."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen

from agentloop._shielding import KeptTask, wait_through
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
_END_SECONDS = 10.0  # more than the process and its pipes have in all
_LAST_WORDS_SECONDS = 0.2
_POLL_SECONDS = 0.01


class ServerProcess:
    """A running server.

    Its messages are the lines of its standard output. Its standard error is written to the log `agentloop.mcp.server`.
    When this process ends, in whatever way, the server and all processes that it has started are ended too.
    """

    __slots__ = (
        "_input",
        "_last_output",
        "_lifeline",
        "_name",
        "_output",
        "_pipes",
        "_process",
        "_readers",
        "_stderr_task",
    )

    def __init__(self, name: str, process: Popen[bytes], lifeline: int) -> None:
        self._name = name
        self._process = process
        self._lifeline = lifeline
        self._last_output = ""
        self._output = asyncio.StreamReader()
        self._input: asyncio.StreamWriter | None = None
        self._stderr_task: asyncio.Task[None] | None = None
        self._readers: list[asyncio.BaseTransport] = []
        # Without a transport, which closes its pipe.
        self._pipes = [pipe for pipe in (process.stdin, process.stderr, process.stdout) if pipe is not None]

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
            # Not by asyncio: a cancellation while it connects the pipes has it kill the guard, and wait for a server that runs on.
            process = Popen(  # noqa: ASYNC220, S603  # asyncio starts processes in the same way
                command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                bufsize=0,
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
        started = cls(name, process, lifeline)
        try:
            await started._connect()
        except BaseException:
            await wait_through(KeptTask(started._end()), _END_SECONDS)
            raise
        return started

    async def _connect(self) -> None:
        loop, errors = asyncio.get_running_loop(), asyncio.StreamReader()
        for reader in (self._output, errors):
            reading, _ = await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), self._pipes.pop())
            self._readers.append(reading)
        # Read by a task of its own: a full pipe of the standard error would block the server.
        self._stderr_task = asyncio.create_task(self._log_stderr(errors))
        # A protocol of readers also tells a writer when the pipe is closed, or full.
        ending = partial(asyncio.StreamReaderProtocol, asyncio.StreamReader())
        writing, protocol = await loop.connect_write_pipe(ending, self._pipes.pop())
        self._input = asyncio.StreamWriter(writing, protocol, None, loop)

    async def read_lines(self, max_bytes: float) -> AsyncIterator[bytes]:
        """Yield the lines of the server, without line ends, until it closes its output.

        Args:
            max_bytes: maximum size of a line.

        Raises:
            ConnectionLost: when a line is longer.
        """
        begun = bytearray()
        while chunk := await self._output.read(_CHUNK_BYTES):
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                begun += line
                yield bytes(begun)
                begun.clear()
            begun += rest
            if len(begun) > max_bytes:
                raise ConnectionLost(f"it sent a message of more than {max_bytes:g} bytes (Bounds.message_bytes)")
            await asyncio.sleep(0)  # `read` returns at once when data is there: let other tasks run

    async def exit_reason(self, default: str) -> tuple[str, str]:
        """Return how the process has ended, as in "its …", and the last line of its standard error.

        Args:
            default: the reason for a process that has not ended.
        """
        # Both come shortly after the end of the output; without the wait most errors would have no explanation.
        await self._wait_for_exit(_LAST_WORDS_SECONDS)
        if self._stderr_task is not None:
            await asyncio.wait((self._stderr_task,), timeout=_LAST_WORDS_SECONDS)
        code = self._process.returncode
        return default if code is None else f"its process has ended with exit code {code}", self._last_output

    async def write_line(self, line: bytes) -> None:
        """Write a line.

        Raises:
            OSError: when the server has closed its input.
        """
        assert self._input is not None  # noqa: S101  # it was connected when the server was started
        self._input.write(line + b"\n")
        await self._input.drain()

    async def stop(self) -> None:
        """Close the server's input, and end the process when it does not exit by itself.

        A cancellation only ends the wait for that: the process has ended when it is raised.
        """
        try:
            if self._input is not None:
                self._input.close()
            await self._wait_for_exit(_GRACE_SECONDS)
        finally:
            cancelled = await wait_through(KeptTask(self._end()), _END_SECONDS)
        if cancelled is not None:
            raise cancelled

    async def _end(self) -> None:
        """End the process, and close its pipes."""
        os.close(self._lifeline)  # the guard now ends the server
        if self._stderr_task is not None:
            self._stderr_task.cancel()
        await self._wait_for_exit(_KILL_SECONDS)
        if self._process.returncode is None:
            self._process.kill()
            await self._wait_for_exit(_KILL_SECONDS)
        # A grandchild process may hold the pipes open.
        if self._input is not None:
            self._input.close()
        for reader in self._readers:
            reader.close()
        for pipe in self._pipes:
            pipe.close()
        if self._stderr_task is not None:
            await asyncio.wait((self._stderr_task,))

    async def _wait_for_exit(self, seconds: float) -> None:
        clock = asyncio.get_running_loop()
        deadline = clock.time() + seconds
        while self._process.poll() is None and clock.time() < deadline:  # noqa: ASYNC110  # processes of the system set no event
            await asyncio.sleep(_POLL_SECONDS)

    async def _log_stderr(self, errors: asyncio.StreamReader) -> None:
        rest = b""
        with suppress(OSError):
            while chunk := await errors.read(_CHUNK_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._log(line)
                rest = rest[:_MAX_LOGGED_BYTES]
                await asyncio.sleep(0)
        if rest:
            self._log(rest)

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
