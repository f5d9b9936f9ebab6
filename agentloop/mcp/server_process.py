"""A server that runs as a process of ours and is spoken to over its standard input and output, line by line."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

from agentloop.errors import ConfigurationError
from agentloop.mcp.servers import StdioServer
from agentloop.mcp.session import ConnectionLost

_LOG = logging.getLogger("agentloop.mcp.server")
_GUARD = str(Path(__file__).with_name("guard.py"))
_CHUNK = 1 << 16
_LONGEST_LOGGED = 2_000
_GRACE_SECONDS = 1.0
_KILL_SECONDS = 3.0
_LAST_WORDS_SECONDS = 0.2
_POLL_SECONDS = 0.01


class ServerProcess:
    """A running server.

    Its messages are what its standard output has in lines; its standard error goes to the log `agentloop.mcp.server`.
    When this process ends in whatever way, the server and all that it has started are ended too.
    """

    __slots__ = ("_lifeline", "_name", "_process", "_said", "_stderr")

    def __init__(self, name: str, process: Process, lifeline: int) -> None:
        self._name = name
        self._process = process
        self._lifeline = lifeline
        self._said = ""
        self._stderr = asyncio.create_task(self._log_stderr())

    @classmethod
    async def start(cls, name: str, server: StdioServer, environment: Mapping[str, str]) -> ServerProcess:
        """Start a server.

        Args:
            name: what it is called in the log.
            server: its command.
            environment: all of its environment variables.

        Raises:
            ConfigurationError: when there is no such program or folder, or this system has no process groups.
        """
        folder = None if server.cwd is None else str(server.cwd)
        _check(name, server.command, folder, environment)
        heard, lifeline = os.pipe()
        guarded = [sys.executable, "-I", "-S", _GUARD, str(heard), server.command, *server.args]
        try:
            process = await asyncio.create_subprocess_exec(
                *guarded,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=environment,
                cwd=folder,
                start_new_session=True,
                pass_fds=(heard,),
            )
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.close(heard)
        return cls(name, process, lifeline)

    async def lines(self, longest: int) -> AsyncIterator[bytes]:
        """Yield the lines that the server writes, without their ends, until it closes its output.

        Args:
            longest: the most bytes of a line.

        Raises:
            ConnectionLost: when a line is longer.
        """
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101  # it was opened with a pipe
        begun = bytearray()
        while chunk := await stdout.read(_CHUNK):
            *whole, rest = chunk.split(b"\n")
            for line in whole:
                begun += line
                yield bytes(begun)
                begun.clear()
            begun += rest
            if len(begun) > longest:
                raise ConnectionLost(f"it sent a message of more than {longest} bytes")
            await asyncio.sleep(0)  # a server that never stops writing does not keep others from their turn

    async def last_words(self, seen: str) -> tuple[str, str]:
        """Return how it has ended, as in "its …", and the last line of its standard error; waits a moment for both.

        Args:
            seen: what to return of one that has not ended.
        """
        await self._ended_within(_LAST_WORDS_SECONDS)
        await asyncio.wait((self._stderr,), timeout=_LAST_WORDS_SECONDS)
        code = self._process.returncode
        return seen if code is None else f"its process has ended with exit code {code}", self._said

    async def write(self, line: bytes) -> None:
        """Write a line.

        Raises:
            OSError: when the server does not read any more.
        """
        stdin = self._process.stdin
        assert stdin is not None  # noqa: S101  # it was opened with a pipe
        stdin.write(line + b"\n")
        await stdin.drain()

    async def stop(self) -> None:
        """Ask the server to end by closing its input, and end it when it does not; also when this is cancelled."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
            await self._ended_within(_GRACE_SECONDS)
        finally:
            os.close(self._lifeline)  # from here on the guard ends it
            self._stderr.cancel()
        await self._ended_within(_KILL_SECONDS)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        transport = getattr(
            self._process, "_transport", None
        )  # nothing public closes pipes that a grandchild holds open
        if transport is not None:
            transport.close()
        await asyncio.wait((self._stderr,))

    async def _ended_within(self, seconds: float) -> None:
        """Wait for the process, not for its pipes, which something that it has started may hold open."""
        clock = asyncio.get_running_loop()
        until = clock.time() + seconds
        while self._process.returncode is None and clock.time() < until:  # noqa: ASYNC110  # asyncio has no such event
            await asyncio.sleep(_POLL_SECONDS)

    async def _log_stderr(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None  # noqa: S101  # it was opened with a pipe
        begun = b""
        with suppress(OSError):
            while chunk := await stderr.read(_CHUNK):
                *whole, begun = (begun + chunk).split(b"\n")
                for line in whole:
                    self._log(line)
                begun = begun[:_LONGEST_LOGGED]
                await asyncio.sleep(0)
        if begun:
            self._log(begun)

    def _log(self, line: bytes) -> None:
        told = line[:_LONGEST_LOGGED].decode(errors="replace").rstrip()
        if told:
            self._said = told
            _LOG.info("%s: %s", self._name, told)


def _check(name: str, command: str, folder: str | None, environment: Mapping[str, str]) -> None:
    """Tell what a start would fail for in a way that is hard to understand."""
    if os.name != "posix":
        raise ConfigurationError("MCP servers over stdio need a POSIX system; use McpEnsemble.http here")
    if folder is not None and not Path(folder).is_dir():
        raise ConfigurationError(f"the MCP server {name!r} cannot be started: there is no folder {folder}")
    if shutil.which(command, path=environment.get("PATH")) is None and not Path(folder or ".", command).is_file():
        raise ConfigurationError(
            f"the MCP server {name!r} cannot be started: there is no program {command!r}; install it, or correct the command"
        )
