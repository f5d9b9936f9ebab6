"""Sandboxes that break one law each. All run on the host, in a folder of their own, so that none of them is confined."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import ClassVar

from attrs import evolve, frozen

from agentloop.contracts import CanSandbox, SandboxCommand, SandboxFile, SandboxResult
from agentloop.contracts.can_sandbox import LimitName
from agentloop.testing import SandboxKit
from agentloop.toolkits import BubblewrapSandbox
from tests.testing.zoo.zoo import Member

_MARK = "PLAIN_SANDBOX"
_NUMBERS = count(1)
_PROCESSES = Path("/proc")


class RunsOnTheHost(CanSandbox):
    """Breaks law 46: a folder of its own is all that separates a command from the host. The classes below break one law more."""

    environment: ClassVar[Mapping[str, str]] = {"PATH": os.defpath, "HOME": "/nowhere"}

    async def check(self) -> None:
        """Commands can run wherever there are processes."""

    async def run(self, command: SandboxCommand) -> SandboxResult:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            return await self.run_in(Path(name), command)

    async def run_in(self, folder: Path, command: SandboxCommand) -> SandboxResult:
        self.write(folder, command)
        mark = f"{os.getpid()}-{next(_NUMBERS)}"
        starting = asyncio.create_subprocess_exec(
            *self.arguments(command),
            cwd=folder,
            env={**self.environment, _MARK: mark},
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )
        start = asyncio.ensure_future(starting)
        try:
            return await self.watch(await asyncio.shield(start), folder, command)
        finally:
            process = await start
            await self.end(process, mark)
            # What runs on may hold the pipes open, and their transports would outlive the event loop.
            process._transport.close()  # type: ignore[attr-defined]  # nothing public does

    async def watch(self, process: Process, folder: Path, command: SandboxCommand) -> SandboxResult:
        stdout, stderr = bytearray(), bytearray()
        pumps = [self.read(process.stdout, stdout, command), self.read(process.stderr, stderr, command)]
        tasks = [asyncio.ensure_future(each) for each in (self.feed(process, command), *pumps)]
        exceeded: LimitName = ""
        try:
            await asyncio.wait_for(_exit_of(process), command.limits.max_seconds)
            await asyncio.wait(tasks, timeout=0.2)
        except TimeoutError:
            exceeded = "time"
            os.killpg(process.pid, signal.SIGKILL)
        finally:
            for task in tasks:
                task.cancel()
        code = await _exit_of(process)
        result = self.result(folder, 128 - code if code < 0 else code, bytes(stdout), bytes(stderr))
        limit = command.limits.max_output
        is_cut = len(stdout) > limit or len(stderr) > limit
        cut = evolve(result, stdout=self.cut(result.stdout, limit), stderr=self.cut(result.stderr, limit))
        return evolve(cut, exceeded=exceeded or ("output" if is_cut else ""))

    async def feed(self, process: Process, command: SandboxCommand) -> None:
        assert process.stdin is not None
        with suppress(ConnectionError):
            process.stdin.write(command.stdin)
            await process.stdin.drain()
        process.stdin.close()

    async def read(self, stream: asyncio.StreamReader | None, into: bytearray, command: SandboxCommand) -> None:
        assert stream is not None
        while data := await stream.read(65536):
            if len(into) < 64 * command.limits.max_output:
                into += data

    def cut(self, data: bytes, limit: int) -> bytes:
        return data if len(data) <= limit else data[: limit // 2] + data[-(limit // 2) :]

    def arguments(self, command: SandboxCommand) -> Sequence[str]:
        return command.arguments

    def write(self, folder: Path, command: SandboxCommand) -> None:
        for name in command.folders:
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name, file in command.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
            path.chmod(0o755 if file.executable else 0o644)

    def result(self, folder: Path, code: int, stdout: bytes, stderr: bytes) -> SandboxResult:
        paths = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
        regular = {name: path for name, path in paths.items() if path.is_file() and not path.is_symlink()}
        files = {name: SandboxFile(path.read_bytes(), os.access(path, os.X_OK)) for name, path in regular.items()}
        empty = [name for name, path in paths.items() if path.is_dir() and not any(path.iterdir())]
        links = [name for name, path in paths.items() if path.is_symlink()]
        return SandboxResult(exit_code=code, stdout=stdout, stderr=stderr, files=files, folders=empty, omitted=links)

    async def end(self, process: Process, mark: str) -> None:
        """Kill whatever has the mark of the run in its environment, in sessions of its own as well."""
        for folder in _PROCESSES.iterdir():  # noqa: ASYNC240
            with suppress(OSError):
                if folder.name.isdigit() and f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
        await _exit_of(process)


async def _exit_of(process: Process) -> int:
    """Return the exit code; `wait` would wait for whatever has the pipes, too."""
    while process.returncode is None:  # noqa: ASYNC110  # asyncio sets it
        await asyncio.sleep(0.005)
    return process.returncode


class KillsOneProcess(RunsOnTheHost):
    """Breaks law 19: what the command has started goes on after it."""

    async def end(self, process: Process, mark: str) -> None:
        if process.returncode is None:
            process.kill()
        await _exit_of(process)


class KillsTheGroup(RunsOnTheHost):
    """Breaks law 19: a process in a session of its own is not in the group that is killed."""

    async def end(self, process: Process, mark: str) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await _exit_of(process)


class RunsOnWhenCancelled(RunsOnTheHost):
    """Breaks law 34: what the command of a task that is cancelled has started runs on."""

    async def end(self, process: Process, mark: str) -> None:
        if process.returncode is None:
            process.kill()
            await _exit_of(process)
        else:
            await super().end(process, mark)


class SwallowsCancellation(RunsOnTheHost):
    """Breaks law 34: a command that is cancelled has a result."""

    async def run(self, command: SandboxCommand) -> SandboxResult:
        try:
            return await super().run(command)
        except asyncio.CancelledError:
            return SandboxResult(exit_code=137)


class CollectsAllOutput(RunsOnTheHost):
    """Breaks law 31: what a command writes is returned whole."""

    async def watch(self, process: Process, folder: Path, command: SandboxCommand) -> SandboxResult:
        limits = evolve(command.limits, max_output=1 << 30)
        return await super().watch(process, folder, evolve(command, limits=limits))


class CutsSilently(RunsOnTheHost):
    """Breaks law 31: output that is cut looks complete."""

    async def run(self, command: SandboxCommand) -> SandboxResult:
        return evolve(await super().run(command), exceeded="")


class KeepsTheStart(RunsOnTheHost):
    """Breaks law 31: of long output, the end is missing, where programs say why they failed."""

    def cut(self, data: bytes, limit: int) -> bytes:
        return data[:limit]


class WaitsForever(RunsOnTheHost):
    """Breaks law 31: a command has as much time as it wants."""

    async def watch(self, process: Process, folder: Path, command: SandboxCommand) -> SandboxResult:
        limits = evolve(command.limits, max_seconds=3600.0)
        return await super().watch(process, folder, evolve(command, limits=limits))


class AlwaysSucceeds(RunsOnTheHost):
    """Breaks law 47: every command that ends has ended well."""

    def result(self, folder: Path, code: int, stdout: bytes, stderr: bytes) -> SandboxResult:
        return super().result(folder, 0, stdout, stderr)


class DecodesOutput(RunsOnTheHost):
    """Breaks law 47: output is text, with signs of replacement for other bytes."""

    def result(self, folder: Path, code: int, stdout: bytes, stderr: bytes) -> SandboxResult:
        texts = [each.decode("utf-8", "replace").encode() for each in (stdout, stderr)]
        return super().result(folder, code, *texts)


class StripsOutput(RunsOnTheHost):
    """Breaks law 47: spaces around the output are no part of it."""

    def result(self, folder: Path, code: int, stdout: bytes, stderr: bytes) -> SandboxResult:
        return super().result(folder, code, stdout.strip(), stderr.strip())


class MixesStreams(RunsOnTheHost):
    """Breaks law 47: errors are output."""

    def result(self, folder: Path, code: int, stdout: bytes, stderr: bytes) -> SandboxResult:
        return super().result(folder, code, stdout + stderr, b"")


class IgnoresInput(RunsOnTheHost):
    """Breaks law 47: the standard input is empty."""

    async def feed(self, process: Process, command: SandboxCommand) -> None:
        await super().feed(process, evolve(command, stdin=b""))


class UsesAShell(RunsOnTheHost):
    """Breaks law 47: a shell reads the arguments once more."""

    def arguments(self, command: SandboxCommand) -> Sequence[str]:
        program, *others = command.arguments
        return ["sh", "-c", " ".join([shlex.quote(program), *[f'"{each}"' for each in others]])]


class WritesText(RunsOnTheHost):
    """Breaks law 47: the files of a command are written as text."""

    def write(self, folder: Path, command: SandboxCommand) -> None:
        files = {
            name: evolve(file, data=file.data.decode("utf-8", "ignore").encode())
            for name, file in command.files.items()
        }
        super().write(folder, evolve(command, files=files))


class ForgetsPermissions(RunsOnTheHost):
    """Breaks law 47: no file can be run."""

    def write(self, folder: Path, command: SandboxCommand) -> None:
        files = {name: evolve(file, executable=False) for name, file in command.files.items()}
        super().write(folder, evolve(command, files=files))


class SharesItsFolder(RunsOnTheHost):
    """Breaks law 9: the folder of a command waits on the object, where another command replaces it."""

    async def run(self, command: SandboxCommand) -> SandboxResult:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            self.folder = Path(name)
            await asyncio.sleep(0)
            return await self.run_in(self.folder, command)


def _sandbox(law: int, sandbox: Callable[[], CanSandbox]) -> Member:
    return Member(sandbox, law, lambda examples: SandboxKit(sandbox, examples=min(examples, 2)))


# --- with a real sandbox inside: what keeps its commands from the host has one hole -----------------------------------


@frozen(kw_only=True)
class SharesTheNetwork(BubblewrapSandbox):
    """Breaks law 46: commands have the network of the host."""

    def arguments(self, folder: str) -> list[str]:
        return [*BubblewrapSandbox.arguments(self, folder), "--share-net"]


class Wraps(CanSandbox):
    """Passes commands to another sandbox, and keeps all laws; the classes below break one each."""

    def __init__(self, inner: CanSandbox) -> None:
        self.inner = inner

    async def check(self) -> None:
        await self.inner.check()

    async def run(self, command: SandboxCommand) -> SandboxResult:
        return await self.inner.run(command)


class PassesTheEnvironment(Wraps):
    """Breaks law 46: the command has the variables of the process."""

    async def run(self, command: SandboxCommand) -> SandboxResult:
        variables = [f"{name}={value}" for name, value in os.environ.items() if name != "PATH"]
        return await super().run(evolve(command, arguments=["env", *variables, *command.arguments]))


class FollowsLinks(Wraps):
    """Breaks law 46: a link that the command leaves is returned as the file of the host that it points to."""

    script = '"$@"; code=$?; for each in *; do [ -L "$each" ] && readlink "$each" > ".$each"; done; exit $code'

    async def run(self, command: SandboxCommand) -> SandboxResult:
        arguments = ["sh", "-c", self.script, "sh", *command.arguments]
        result = await super().run(evolve(command, arguments=arguments))
        hidden = [file.data.decode().strip() for name, file in result.files.items() if name.startswith(".")]
        targets = [Path(target) for target in hidden if os.path.isfile(target)]  # noqa: ASYNC240, PTH113  # a liar
        return evolve(result, files={target.name: SandboxFile(target.read_bytes()) for target in targets})


class PutsFilesItself(Wraps):
    """Breaks law 46: an absolute path of a file is one of the host."""

    async def run(self, command: SandboxCommand) -> SandboxResult:
        with tempfile.TemporaryDirectory() as folder:
            for name, file in command.files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.data)
        return await super().run(evolve(command, files={}))


WITH_HOLES: Mapping[str, Callable[[CanSandbox], CanSandbox]] = {
    "SharesTheNetwork": lambda _: SharesTheNetwork(),
    "ShowsTemporaryFiles": lambda _: BubblewrapSandbox(readable=[tempfile.gettempdir()]),
    "PassesTheEnvironment": PassesTheEnvironment,
    "FollowsLinks": FollowsLinks,
    "PutsFilesItself": PutsFilesItself,
}
"""By name, what breaks law 46 and no other; each is made of a sandbox that can run here."""

SANDBOXES: tuple[Member, ...] = (
    _sandbox(9, SharesItsFolder),
    _sandbox(19, KillsOneProcess),
    _sandbox(19, KillsTheGroup),
    _sandbox(31, CollectsAllOutput),
    _sandbox(31, CutsSilently),
    _sandbox(31, KeepsTheStart),
    _sandbox(31, WaitsForever),
    _sandbox(34, RunsOnWhenCancelled),
    _sandbox(34, SwallowsCancellation),
    _sandbox(46, RunsOnTheHost),
    _sandbox(47, AlwaysSucceeds),
    _sandbox(47, DecodesOutput),
    _sandbox(47, StripsOutput),
    _sandbox(47, MixesStreams),
    _sandbox(47, IgnoresInput),
    _sandbox(47, UsesAShell),
    _sandbox(47, WritesText),
    _sandbox(47, ForgetsPermissions),
)
