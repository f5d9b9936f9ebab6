"""A sandbox made by a container runtime: podman or docker."""

from __future__ import annotations

import asyncio
import os
import re
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from posixpath import join
from tempfile import TemporaryDirectory

from attrs import field, frozen

from agentloop._shielding import run_shielded
from agentloop.contracts.can_sandbox import CanSandbox, SandboxCommand, SandboxFile, SandboxLimits, SandboxResult
from agentloop.errors import SandboxUnavailable
from agentloop.toolkits.executables import find_executable
from agentloop.toolkits.sandboxes.archive import MEMBER_BYTES, check_files, pack, unpack
from agentloop.toolkits.sandboxes.processes import ENVIRONMENT, KILLED, OutputCapture, Pipes, name_exceeded_limit
from agentloop.values.time_and_ids import RandomIds

_PROGRAMS = ("podman", "docker")
_PAGE_BYTES = 4_096
_OWN_FILES = 3  # the root of the file system, the work folder and the standard input
_USER = "65534:65534"
_GRACE_SECONDS = 60.0  # for the container and the files to come and go
_END_SECONDS = 30.0
_LATE_SECONDS = 5.0  # after the time of a command; the program timeout takes two of them

# The first process of the container, which no other process in it can end. Its standard output carries three things: a line
# when the command starts, the output of the command, and, after a line with its exit code, the archive of its files. The
# last lines need no new process, since a command may have used up all of them.
_STAGE = """
name=$1 pids=$2 memory=$3 limit=$4
shift 4
for root in /sys/fs/cgroup /sys/fs/cgroup/pids; do read -r has_pids < $root/pids.max; done 2>/dev/null
{ read -r has_memory < /sys/fs/cgroup/memory.max; } 2>/dev/null
{ read -r has_memory < /sys/fs/cgroup/memory/memory.limit_in_bytes; } 2>/dev/null
if [ "$has_pids" != "$pids" ] || [ "$has_memory" != "$memory" ]; then
    echo "the limits of memory ($has_memory) and processes ($has_pids) are not in force" >&2
    exit 125
fi
for folder in /dev/shm /run /var/tmp /; do
    if (: > $folder/agentloop) 2>/dev/null; then
        echo "$folder can be written to without a limit" >&2
        exit 125
    fi
done
warnings=$(tar -x -f - -C /tmp 2>&1) && cd /tmp/work || { echo "$warnings" >&2; exit 125; }
exec 3</tmp/stdin
rm /tmp/stdin
exec 5>&2 2>/dev/null
echo "$name"
timeout -k 2 "$limit" "$@" <&3 2>&5 3<&- 5>&-
code=$?
kill -9 -1
for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    while read -r key value; do [ "$key" = oom_kill ] && killed=$value; done < $file
done
echo "$name $code ${killed:-0}"
exec tar -c -f - .
"""


@frozen(kw_only=True)
class ContainerSandbox(CanSandbox):
    """Runs commands with podman or docker, each in a new container of an image.

    A command sees the files of the image, read-only, and writes to `/tmp`, which is in memory; its folder is `/tmp/work`. It runs
    without network and capabilities as the user 65534. The image needs `/bin/sh`, `tar` and `timeout`, which the images of common
    distributions have. It has to be there: nothing is downloaded.

        sandbox = ContainerSandbox(image="docker.io/library/python:3.13-slim")

    Attributes:
        image: the name of the image.
        program: the path or name of podman or docker; by default the one that is installed.
        runtime_arguments: further arguments of `run`, such as `["--runtime", "runsc"]`.

    Raises:
        SandboxUnavailable: when there is no such program.
    """

    image: str
    program: str = ""
    runtime_arguments: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    _path: str = field(init=False, repr=False)

    @_path.default
    def _find_program(self) -> str:
        names = (self.program,) if self.program else _PROGRAMS
        path = next(filter(None, map(find_executable, names)), None)
        if path is None:
            raise SandboxUnavailable(f"there is no program {' or '.join(map(repr, names))}; install podman or docker")
        return str(Path(path).absolute())

    async def check(self) -> None:
        """Run a command that does nothing.

        Raises:
            SandboxUnavailable: when that fails; says why.
        """
        result = await self.run(SandboxCommand(["true"]))
        if result.exit_code:
            raise SandboxUnavailable(f"containers of {self.image} run no commands: exit code {result.exit_code}")

    async def run(self, command: SandboxCommand) -> SandboxResult:
        """Run a command.

        Raises:
            SandboxUnavailable: when the container or a limit cannot be set up, or the files exceed the limits.
        """
        check_files(command)
        # Not by counting: programs in several containers have the same number, and may share a runtime.
        name = RandomIds().new_id(f"agentloop-{os.getpid()}-")
        limits = command.limits
        options = f"o=nr_blocks={limits.max_disk // _PAGE_BYTES + 1},nr_inodes={limits.max_files + _OWN_FILES},mode=1777,nosuid,nodev"
        try:
            # A volume, because `--tmpfs` of podman has no maximum number of files.
            await self._manage(
                "volume", "create", "--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", options, name
            )
            return await self._run(command, name)
        finally:
            await run_shielded(self._remove(name), _END_SECONDS)

    def arguments(self, name: str, limits: SandboxLimits) -> list[str]:
        """Return the arguments of the program that run a container, without those of the command.

        Args:
            name: the name of the container and of its volume.
            limits: the limits of the command.
        """
        memory = str(_memory_of(limits))
        arguments = [
            "run",
            "--interactive",
            "--name",
            name,
            "--hostname",
            "sandbox",
            "--pull",
            "never",
            "--log-driver",
            "none",
        ]
        arguments += ["--network", "none", "--ipc", "none", "--read-only", "--volume", f"{name}:/tmp", "--workdir", "/"]
        arguments += ["--user", _USER, "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        arguments += ["--memory", memory, "--memory-swap", memory, "--pids-limit", str(_pids_of(limits))]
        arguments += [
            "--ulimit",
            "core=0:0",
            "--ulimit",
            "nofile=1024:1024",
            "--ulimit",
            f"fsize={limits.max_disk}:{limits.max_disk}",
        ]
        # By default, podman makes folders beside those of the image that can be written to.
        arguments += ["--read-only-tmpfs=false"] if "podman" in self._path.rpartition("/")[2] else []
        for key, value in ENVIRONMENT.items():
            arguments += ["--env", f"{key}={value}"]
        # The entry point of the image is not what is to run.
        return [*arguments, *self.runtime_arguments, "--entrypoint", "/bin/sh", self.image, "-c", _STAGE, "sh"]

    async def _run(self, command: SandboxCommand, name: str) -> SandboxResult:
        limits = command.limits
        stderr, output = OutputCapture.of_output(limits), _StageOutput(name, limits)
        files = {join("work", path): file for path, file in command.files.items()} | {
            "stdin": SandboxFile(command.stdin)
        }
        folders = ["work", *[join("work", path) for path in command.folders]]
        archive = await asyncio.to_thread(pack, files, folders)
        loop = asyncio.get_running_loop()
        pipes = Pipes()
        # podman's monitor leaves a file in its working directory when the memory of a container is used up.
        folder = TemporaryDirectory(prefix="agentloop-container-")
        try:
            try:
                process = await asyncio.create_subprocess_exec(
                    *[self._path, *self.arguments(name, limits), name],
                    *[str(_pids_of(limits)), str(_memory_of(limits)), str(limits.max_seconds), *command.arguments],
                    stdin=await pipes.write_from(archive),
                    stdout=await pipes.read_into(output),
                    stderr=await pipes.read_into(stderr),
                    cwd=folder.name,
                )
            except OSError as error:  # such as arguments that are too long
                raise SandboxUnavailable(f"the command cannot be started: {error}") from error
            finally:
                pipes.close()
            started = loop.time()
            await self._wait(process, name, output, limits.max_seconds)
            seconds = loop.time() - started
            await output.wait()
            await stderr.wait()
        finally:
            output.close()
            stderr.close()
            folder.cleanup()
        return await asyncio.to_thread(_result, limits, process.returncode, seconds, output, stderr)

    async def _wait(self, process: Process, name: str, output: _StageOutput, seconds: float) -> None:
        """Wait for the end of a container; end it when it takes too long, or when this is cancelled."""
        try:
            async with asyncio.timeout(seconds + _GRACE_SECONDS):
                await output.wait_for_start()
                # A command may have stopped the program that measures its time.
                async with asyncio.timeout(seconds + _LATE_SECONDS):
                    await output.archive.wait_for_data()
                await process.wait()
        except TimeoutError:
            # Removing alone would wait ten seconds for the first process, which ignores SIGTERM.
            await self._call("kill", name)
            await self._remove(name)
            await process.wait()
        except BaseException:
            await run_shielded(self._remove(name), _END_SECONDS)
            await run_shielded(_wait(process), _END_SECONDS)
            raise

    async def _remove(self, name: str) -> None:
        """Remove a container with all of its processes, and its volume, as far as they are there."""
        await self._call("rm", "--force", name)
        await self._call("volume", "rm", "--force", name)

    async def _manage(self, *arguments: str) -> None:
        code, message = await self._call(*arguments)
        if code:
            raise SandboxUnavailable(
                f"{self._path} {arguments[0]} {arguments[1]} failed: {message or f'exit code {code}'}"
            )

    async def _call(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            self._path, *arguments, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
        )
        _, stderr = await process.communicate()
        return process.returncode or 0, stderr.decode(errors="replace").strip()[-500:]


async def _wait(process: Process) -> None:
    await process.wait()


def _pids_of(limits: SandboxLimits) -> int:
    # The shell that starts the command, and the program that ends it in time.
    return limits.max_processes + 2


def _memory_of(limits: SandboxLimits) -> int:
    # The files of a command are in memory as well.
    return -(-(limits.max_memory + limits.max_disk) // _PAGE_BYTES) * _PAGE_BYTES


class _StageOutput(asyncio.Protocol):
    """Reads what the first process of a container writes: a line, the output of the command, another line, the archive.

    Attributes:
        output: the output of the command.
        archive: the archive.
        has_started: whether the command was started.
        status: the second line; None while it has not come.
    """

    def __init__(self, name: str, limits: SandboxLimits) -> None:
        self.output = OutputCapture.of_output(limits)
        archive_bytes = limits.max_disk + MEMBER_BYTES * limits.max_files
        self.archive = OutputCapture(archive_bytes, archive_bytes)
        self.has_started = False
        self.status: re.Match[bytes] | None = None
        self._start = name.encode() + b"\n"
        self._status = re.compile(re.escape(name.encode()) + rb" (\d{1,3}) (\d{1,9})\n")
        self._max_status_bytes = len(name) + 16
        self._pending = b""
        self._started = asyncio.Event()
        self._ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the archive close the pipe when too much comes."""
        self.archive.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass the data on to where it belongs."""
        if self.status is not None:
            self.archive.data_received(data)
            return
        self._pending += data
        if not self.has_started:
            if len(self._pending) < len(self._start):
                return
            self.has_started = self._pending.startswith(self._start)
            self._started.set()
            self._pending = self._pending[len(self._start) :]
        self.status = self._status.search(self._pending)
        if self.status is not None:
            self.output.data_received(self._pending[: self.status.start()])
            self.archive.data_received(self._pending[self.status.end() :])
            self._pending = b""
        else:
            # The line may have come in part.
            self.output.data_received(self._pending[: -self._max_status_bytes])
            self._pending = self._pending[-self._max_status_bytes :]

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        if self.status is None:
            self.output.data_received(self._pending)
        self.archive.connection_lost(exc)
        self._started.set()
        self._ended.set()

    async def wait_for_start(self) -> None:
        """Wait until the command starts, or for the end of the pipe."""
        await self._started.wait()

    async def wait(self) -> None:
        """Wait for the end of the pipe."""
        await self._ended.wait()

    def close(self) -> None:
        """Close the pipe."""
        self.archive.close()


def _result(
    limits: SandboxLimits, code: int | None, seconds: float, output: _StageOutput, stderr: OutputCapture
) -> SandboxResult:
    if not output.has_started:
        reason = stderr.data.decode(errors="replace").strip()
        raise SandboxUnavailable(f"no container can run a command here: {reason or f'exit code {code}'}")
    status = output.status
    # A command that used up the memory can take the first process with it, and the files then.
    exit_code = int(status[1]) if status else KILLED
    contents = unpack(output.archive.data, limits.max_files + 1, limits.max_disk)
    return SandboxResult(
        exit_code=exit_code,
        stdout=output.output.data,
        stderr=stderr.data,
        exceeded=name_exceeded_limit(
            limits,
            exit_code,
            seconds,
            is_out_of_memory=seconds < limits.max_seconds if status is None else int(status[2]) > 0,
            is_flooded=output.output.is_flooded or stderr.is_flooded,
        ),
        files=contents.files,
        folders=contents.empty_folders,
        omitted=tuple(contents.omitted),
        has_all_files=contents.is_complete and code == 0,
    )
