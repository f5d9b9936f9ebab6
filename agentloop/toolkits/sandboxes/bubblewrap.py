"""A sandbox made of namespaces and control groups of the Linux kernel, by the program bubblewrap."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import struct
import sys
from asyncio.subprocess import Process
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Literal

from attrs import field, frozen

from agentloop._shielding import run_shielded
from agentloop.contracts.can_sandbox import (
    CanSandbox,
    SandboxCommand,
    SandboxLimits,
    SandboxResult,
)
from agentloop.errors import SandboxUnavailable
from agentloop.toolkits.executables import find_executable
from agentloop.toolkits.sandboxes.archive import MEMBER_BYTES, check_files, pack, unpack
from agentloop.toolkits.sandboxes.processes import ENVIRONMENT, KILLED, OutputCapture, Pipes, name_exceeded_limit
from agentloop.values.time_and_ids import RandomIds
from agentloop.values.value import one_of

_SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_GUARD = str(Path(__file__).with_name("guard.py"))
_FOLDERS = ("work", "tmp", "shm")
# In place of those of the host.
_ACCOUNTS = {
    "passwd": "user:x:1000:1000:user:/tmp:/bin/sh\n",
    "group": "user:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n",
}
_HIDDEN = ("/mnt", "/media", "/srv", "/tmp")  # noqa: S108  # one of them is covered where the host does not see it
# What programs under /usr need of /etc; neither users nor keys nor the configuration of services.
_CONFIGURATION = ("alternatives", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types")
# The first process of the sandbox, which no other process in it can end. What is written here is given as data: the command
# comes as arguments. It starts at a word on 7: a program that was killed before the kernel knew that this ends with it says none.
# The last line needs no new process, since a command may have used up all of them.
_STAGE = """
warnings=$(tar -x -f - -C /work <&3 2>&1) || { echo "$warnings" >&2; exit 125; }
exec 3<&-
echo started >&4
read -r go <&7 || exit 125
exec 7<&- 8<&-
limit=$1
shift
exec 5>&2 2>/dev/null
timeout -k 2 "$limit" "$@" 2>&5 4>&- 5>&-
code=$?
kill -9 -1
echo "exit $code" >&4
exec tar -c -f - -C /work . >&4 4>&- 5>&-
"""
_STATUS = re.compile(rb"started\nexit (\d{1,3})\n")
_STARTED = b"started\n"
_OWN_FILES = 8  # the files and folders that the guard makes
_INFO_BYTES = 4_096
_GRACE_SECONDS = 30.0  # for the files to come and go
_START_SECONDS = 5.0
_LATE_SECONDS = 3.0  # after the time of a command; the program timeout takes two of them
_END_SECONDS = 15.0
_FIRST_FREE_UID, _FREE_UIDS = 2_000_000_000, 1_000_000_000
_FIRST_KERNEL = (5, 14)  # from which on the processes of a user are counted for each user namespace


def _as_paths(paths: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    if isinstance(paths, str | os.PathLike):
        raise TypeError(f"readable is a list of paths: [{str(paths)!r}]")
    return tuple([str(Path(path).resolve()) for path in paths])


@frozen(kw_only=True)
class BubblewrapSandbox(CanSandbox):
    """Runs commands with `bwrap`, in namespaces of their own, without an image or a daemon.

    A command sees `/usr`, `/bin`, `/sbin` and `/lib*` of the host, a few files of `/etc` without secrets, and the folders of
    `readable`, all read-only; it writes to `/work`, `/tmp` and `/dev/shm`, which are in memory. As root, it runs as another
    user, who owns nothing. Memory and processes are limited by a control group.

        sandbox = BubblewrapSandbox(readable=["/opt/venv"])
        result = await sandbox.run(SandboxCommand(["python3", "-c", "print(6 * 7)"]))

    Attributes:
        program: the path or name of bubblewrap, version 0.8 or newer.
        readable: folders and files of the host that commands can read, in addition to those of the system.
        memory: `run` limits the memory of all processes of a command together, which needs control groups; `process` limits the
            address space of each process, so that a command can use `max_processes` times as much.

    Raises:
        SandboxUnavailable: when the system is not Linux, there is no such program, or a path of `readable` does not exist.
    """

    program: str = "bwrap"
    readable: tuple[str, ...] = field(default=(), converter=_as_paths)
    memory: Literal["run", "process"] = field(default="run", validator=one_of(("run", "process")))
    _path: str = field(init=False, repr=False)

    @_path.default
    def _find_program(self) -> str:
        if sys.platform != "linux":
            raise SandboxUnavailable("bubblewrap needs Linux; use a ContainerSandbox here")
        path = find_executable(self.program)
        if path is None:
            raise SandboxUnavailable(
                f"there is no program {self.program!r}; install bubblewrap (apt-get install bubblewrap), or use a "
                "ContainerSandbox"
            )
        missing = next((path for path in self.readable if not Path(path).exists()), None)
        if missing is not None:
            raise SandboxUnavailable(f"readable: there is no {missing}")
        return os.path.realpath(path)

    async def check(self) -> None:
        """Run a command that does nothing.

        Raises:
            SandboxUnavailable: when that fails; says why.
        """
        result = await self.run(SandboxCommand(["true"]))
        if result.exit_code:
            raise SandboxUnavailable(f"bubblewrap runs no commands here: exit code {result.exit_code}")

    async def run(self, command: SandboxCommand) -> SandboxResult:
        """Run a command.

        Raises:
            SandboxUnavailable: when the sandbox or a limit cannot be set up, or the files exceed the limits.
        """
        check_files(command)
        if self.memory == "run":
            group = ControlGroup.create(command.limits)
            try:
                return await _Run(command, self.settings(command.limits), group).run()
            finally:
                group.remove()
        if _kernel() < _FIRST_KERNEL and os.getuid() != 0:
            raise SandboxUnavailable("memory='process' needs Linux 5.14 or newer, to count the processes of a command")
        return await _Run(command, self.settings(command.limits), None).run()

    def settings(self, limits: SandboxLimits) -> dict[str, object]:
        """Return the settings of the guard for commands with these limits, without the descriptors and the command."""
        folder = next(path for path in _HIDDEN if Path(path).is_dir() and not _is_used(path, self.readable))
        per_process = {
            "RLIMIT_AS": limits.max_memory,
            # The shell that starts the command, and the program that ends it in time.
            "RLIMIT_NPROC": limits.max_processes + 2,
        }
        return {
            # As root, a user of its own for each command: the system then counts the processes of no other one.
            "uid": _next_uid() if os.getuid() == 0 else 0,
            "folder": folder,
            "folders": [*_FOLDERS, "etc"],
            "files": {f"etc/{name}": text for name, text in _ACCOUNTS.items()},
            "disk": f"size={limits.max_disk},nr_inodes={limits.max_files + _OWN_FILES},mode=755",
            "limits": {
                **(per_process if self.memory == "process" else {}),
                "RLIMIT_FSIZE": limits.max_disk,
                "RLIMIT_CORE": 0,
                "RLIMIT_NOFILE": 1024,
            },
            "bubblewrap": [self._path, *self.arguments(folder)],
        }

    def arguments(self, folder: str) -> list[str]:
        """Return the arguments of bubblewrap, without the command.

        Args:
            folder: the folder of the file system that the guard has mounted.
        """
        arguments = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
        arguments += ["--as-pid-1", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--clearenv"]
        for name, value in ENVIRONMENT.items():
            arguments += ["--setenv", name, value]
        arguments += ["--ro-bind", "/usr", "/usr"]
        for name in _SYSTEM_FOLDERS:
            path = Path("/", name)
            if path.is_symlink():
                arguments += ["--symlink", str(path.readlink()), str(path)]
            elif path.is_dir():
                arguments += ["--ro-bind", str(path), str(path)]
        for name in _CONFIGURATION:
            arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        for name in _ACCOUNTS:
            arguments += ["--ro-bind", f"{folder}/etc/{name}", f"/etc/{name}"]
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        for name, target in zip(_FOLDERS, ("/work", "/tmp", "/dev/shm"), strict=True):  # noqa: S108  # in the sandbox
            arguments += ["--bind", f"{folder}/{name}", target]
        for readable in self.readable:
            arguments += ["--ro-bind", readable, readable]
        return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/work"]


@frozen
class _Run:
    """One run of a command.

    Attributes:
        command: the command.
        settings: the settings of the guard.
        group: its control group; None for none.
    """

    command: SandboxCommand
    settings: Mapping[str, object]
    group: ControlGroup | None

    async def run(self) -> SandboxResult:
        """Run it; when that is cancelled, end all of its processes first."""
        limits = self.command.limits
        stdout, stderr = OutputCapture.of_output(limits), OutputCapture.of_output(limits)
        archive_bytes = limits.max_disk + MEMBER_BYTES * limits.max_files
        archive, info = OutputCapture(archive_bytes, archive_bytes), OutputCapture(_INFO_BYTES, _INFO_BYTES)
        captures = (stdout, stderr, archive, info)
        loop = asyncio.get_running_loop()
        entrance, starter = os.pipe()
        try:
            started = loop.time()
            process = await self._start(entrance, *captures)
            try:
                async with asyncio.timeout(limits.max_seconds + _GRACE_SECONDS):
                    await self._watch(process, starter, archive, info)
            except TimeoutError:
                await _end(process, info)
            except BaseException:
                await run_shielded(_end(process, info), _END_SECONDS)
                raise
            seconds = loop.time() - started
            for capture in captures:
                await capture.wait()
        finally:
            os.close(starter)
            for capture in captures:
                capture.close()
        return await asyncio.to_thread(self._result, process.returncode, seconds, stdout, stderr, archive)

    async def _watch(self, process: Process, starter: int, archive: OutputCapture, info: OutputCapture) -> None:
        """Start the command when all is ready, and wait for the end."""
        await archive.wait_for_data()
        with suppress(BrokenPipeError):  # it has ended already; its output says why
            os.write(starter, b"go\n")
        try:
            async with asyncio.timeout(self.command.limits.max_seconds + _LATE_SECONDS):
                await process.wait()
        except TimeoutError:
            # The command has stopped the program that measures its time. Without its other processes, the first one packs the files.
            if first := _first_process(info):
                await asyncio.to_thread(_kill_descendants, first)
            await process.wait()

    async def _start(
        self, entrance: int, stdout: OutputCapture, stderr: OutputCapture, archive: OutputCapture, info: OutputCapture
    ) -> Process:
        pipes = Pipes([entrance])
        try:
            files = await asyncio.to_thread(pack, self.command.files, self.command.folders)
            # The numbers 3, 4 and 7 are those in `_STAGE`.
            told, copy = await pipes.read_unbroken(info)
            numbers = {
                3: await pipes.write_from(files),
                4: await pipes.read_into(archive),
                5: told,
                6: await pipes.write_from(filter_of_system_calls(os.uname().machine)),
                7: entrance,
                # Bubblewrap ends when it cannot say who the first process is, which then waits for it without an end.
                8: copy,
            }
            settings = {
                **self.settings,
                "groups": [] if self.group is None else self.group.entrances,
                "descriptors": [[source, target] for target, source in numbers.items()],
            }
            return await asyncio.create_subprocess_exec(
                *[sys.executable, "-I", "-S", _GUARD, json.dumps(settings)],
                *[
                    "--info-fd",
                    "5",
                    "--seccomp",
                    "6",
                    "--",
                    "/bin/sh",
                    "-c",
                    _STAGE,
                    "sh",
                    str(self.command.limits.max_seconds),
                ],
                *self.command.arguments,
                stdin=await pipes.write_from(self.command.stdin),
                stdout=await pipes.read_into(stdout),
                stderr=await pipes.read_into(stderr),
                pass_fds=list(numbers.values()),
                cwd="/",
                env={},
            )
        except OSError as error:  # such as arguments that are too long
            raise SandboxUnavailable(f"the command cannot be started: {error}") from error
        finally:
            pipes.close()

    def _result(
        self, code: int | None, seconds: float, stdout: OutputCapture, stderr: OutputCapture, archive: OutputCapture
    ) -> SandboxResult:
        limits = self.command.limits
        data = archive.data
        if not data.startswith(_STARTED):
            reason = stderr.data.decode(errors="replace").strip()
            raise SandboxUnavailable(f"bubblewrap cannot run a command here: {reason or f'exit code {code}'}")
        status = _STATUS.match(data)
        # A command that used up the memory can take the first process with it, and the files then.
        exit_code = int(status[1]) if status else KILLED
        contents = unpack(data[status.end() :] if status else b"", limits.max_files + 1, limits.max_disk)
        is_out_of_memory = self.group is not None and self.group.ran_out_of_memory
        return SandboxResult(
            exit_code=exit_code,
            stdout=stdout.data,
            stderr=stderr.data,
            exceeded=name_exceeded_limit(
                limits,
                exit_code,
                seconds,
                is_out_of_memory=is_out_of_memory,
                is_flooded=stdout.is_flooded or stderr.is_flooded,
            ),
            files=contents.files,
            folders=contents.empty_folders,
            omitted=tuple(contents.omitted),
            has_all_files=contents.is_complete and code == 0,
        )


async def _end(process: Process, info: OutputCapture) -> None:
    """Kill the first process of the sandbox, with which the kernel ends all others before bubblewrap ends."""
    # Bubblewrap tells who that is, and must not be killed while it makes the namespaces: nobody would end what it began.
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_SECONDS):
            await info.wait()
    first = _first_process(info)
    with suppress(ProcessLookupError):
        if not first:
            process.kill()
        elif process.returncode is None:
            os.kill(first, signal.SIGKILL)
    await process.wait()


def _first_process(info: OutputCapture) -> int:
    """Return the number of the first process of the sandbox; 0 when bubblewrap has not told it."""
    match = re.search(rb'"child-pid": *(\d+)', info.data)
    return 0 if match is None else int(match[1])


def _kill_descendants(first: int) -> None:
    """Kill all processes that a process has started, and those that these have started."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            # The name in parentheses may have spaces and parentheses itself.
            parent = path.read_bytes().rpartition(b")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(path.parent.name))
    reached = [first]
    for process in reached:
        reached += children.get(process, ())
    for process in reached[1:]:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _next_uid() -> int:
    return _FIRST_FREE_UID + (os.getpid() * 1_000 + next(_numbers)) % _FREE_UIDS


def _is_used(folder: str, paths: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for path in paths)


def _kernel() -> tuple[int, ...]:
    return tuple([int(number) for number in re.findall(r"\d+", os.uname().release)[:2]])


# --- control groups -------------------------------------------------------------------------------------------------

_CONTROLLERS = ("memory", "pids")
_MOUNT = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .* - (cgroup2?) \S+ (\S+)$", re.MULTILINE)
_NAME = "agentloop-"
_numbers = count(1)


@frozen
class ControlGroup:
    """A group for the processes of one command.

    Attributes:
        folders: its folders: one in version 2, one for each controller in version 1.
    """

    folders: tuple[Path, ...]

    @classmethod
    def create(cls, limits: SandboxLimits) -> ControlGroup:
        """Create a group with the limits of a command. Groups that a killed process has left behind are removed.

        Raises:
            SandboxUnavailable: when there are no control groups, or this process may not create any.
        """
        parents = list(find_parents(Path("/proc/self")))
        if not parents:
            raise SandboxUnavailable(
                "memory and processes of a command cannot be limited: this process has no control groups with the controllers "
                "memory and pids that it may divide; run it as root or under `systemd-run --user --scope -p Delegate=yes`, or "
                "pass memory='process' to limit each process by itself"
            )
        # Not by counting: a process that was killed may have left a group behind, and had the same number.
        name = RandomIds().new_id(f"{_NAME}{os.getpid()}-")
        group = cls(tuple([parent / name for parent in parents]))
        try:
            for parent, folder in zip(parents, group.folders, strict=True):
                _remove_abandoned(parent)
                folder.mkdir()
                _write_limits(folder, limits)
        except OSError as error:
            group.remove()
            raise SandboxUnavailable(f"the control group {name} cannot be set up: {error}") from error
        return group

    @property
    def entrances(self) -> list[str]:
        """The files that a process writes 0 to in order to enter the group."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the system has ended a process of the group because the memory was used up."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                with suppress(OSError):
                    if re.search(r"^oom_kill [1-9]", (folder / name).read_text(), re.MULTILINE):
                        return True
        return False

    def remove(self) -> None:
        """Remove the group, which has no processes any more."""
        for folder in self.folders:
            with suppress(OSError):  # a group that is in use yet is removed by a later command
                folder.rmdir()


def find_parents(process: Path) -> Iterator[Path]:
    """Yield the folders in which groups can be created: one of version 2, or one of version 1 for each controller.

    Args:
        process: the folder of this process in `/proc`.
    """
    with suppress(OSError):
        mounts = _MOUNT.findall((process / "mountinfo").read_text())
        # Lines such as `4:memory:/group` for version 1, and `0::/group` for version 2.
        lines = [line.split(":", 2) for line in (process / "cgroup").read_text().splitlines()]
        own = {name: path for _, names, path in lines for name in names.split(",")}
        first = {
            controller: _own_folder(root, mount, own[controller])
            for root, mount, kind, options in mounts
            for controller in _CONTROLLERS
            if kind == "cgroup" and controller in options.split(",") and controller in own
        }
        if set(first) == set(_CONTROLLERS):
            folders = list(first.values())
            yield from folders if all(os.access(folder, os.W_OK) for folder in folders) else ()
            return
        second = [_own_folder(root, mount, own.get("", "/")) for root, mount, kind, _ in mounts if kind == "cgroup2"]
        for folder in second[:1]:
            yield from _divisible(folder)


def _own_folder(root: str, mount: str, own: str) -> Path:
    # Inside of a container, the root of the mount is a group further down.
    relative = os.path.relpath(own, root)
    return Path(mount) if relative.startswith("..") else Path(mount, relative)


def _divisible(own: Path) -> Iterator[Path]:
    """Yield the nearest group above this one that passes the controllers on and that a process may move within."""
    for folder in (own, *own.parents):
        control = folder / "cgroup.subtree_control"
        if not control.exists():
            return
        is_writable = os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
        if is_writable and set(_CONTROLLERS) <= set(control.read_text().split()):
            yield folder
            return


def _write_limits(folder: Path, limits: SandboxLimits) -> None:
    """Write the limits that this folder controls.

    Raises:
        OSError: when the system refuses one.
    """
    # The files of a command are in memory as well.
    total = str(limits.max_memory + limits.max_disk)
    values: Mapping[str, str] = {
        "memory.limit_in_bytes": total,
        "memory.memsw.limit_in_bytes": total,
        "memory.max": total,
        "memory.swap.max": "0",
        # The shell that starts the command, and the program that ends it in time.
        "pids.max": str(limits.max_processes + 2),
    }
    written = [name for name in values if (folder / name).exists()]
    for name in written:
        (folder / name).write_text(values[name])
    if not written:
        raise OSError(f"{folder} has no limits")


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_NAME}*-*"):
        pid = folder.name.removeprefix(_NAME).partition("-")[0]
        if not Path("/proc", pid).exists():
            with suppress(OSError):
                folder.rmdir()


# --- system calls ---------------------------------------------------------------------------------------------------

# What namespaces do not keep apart: keys of the kernel, sockets to the host of a virtual machine, and calls that reach the
# same by other ways. For each architecture its mark in the kernel, and the numbers of the calls.
_REFUSED = ("add_key", "request_key", "keyctl", "perf_event_open", "bpf", "userfaultfd", "io_uring_setup")
_CALLS = ("ioctl", "socket", "socketpair", *_REFUSED)
_X86_64 = dict(zip(_CALLS, (16, 41, 53, 248, 249, 250, 298, 321, 323, 425), strict=True))
_GENERIC = dict(zip(_CALLS, (29, 198, 199, 217, 218, 219, 241, 280, 282, 425), strict=True))
_ARCHITECTURES: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "x86_64": (0xC000003E, _X86_64),
    "aarch64": (0xC00000B7, _GENERIC),
    "riscv64": (0xC00000F3, _GENERIC),
    "loongarch64": (0xC0000102, _GENERIC),
}
# For these calls, the values of an argument that are allowed or refused.
_SOCKET_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: each in the network of the sandbox
_TYPING_REQUESTS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: they type into a terminal
_X32 = 0x40000000  # the numbers of another interface to the same calls
_LOAD, _EQUAL, _GREATER_OR_EQUAL, _RETURN = 0x20, 0x15, 0x35, 0x06  # instructions of the Berkeley packet filter
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in `struct seccomp_data`
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def filter_of_system_calls(machine: str) -> bytes:
    """Return the program of the kernel that refuses some system calls, for `--seccomp`.

    Args:
        machine: the architecture, as `os.uname` names it.

    Raises:
        SandboxUnavailable: when the system calls of the architecture are not known here.
    """
    if machine not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise SandboxUnavailable(f"the system calls of {machine} are not known here ({known}); use a ContainerSandbox")
    mark, numbers = _ARCHITECTURES[machine]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        # Calls of programs for another architecture, such as 32-bit ones, have other numbers.
        (_EQUAL, 1, 0, mark),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER),
        (_GREATER_OR_EQUAL, 0, 1, _X32),
        (_RETURN, 0, 0, _REFUSE),
    ]
    program += _check_argument(numbers["ioctl"], 1, _TYPING_REQUESTS, is_allowed=False)
    program += _check_argument(numbers["socket"], 0, _SOCKET_FAMILIES, is_allowed=True)
    program += _check_argument(numbers["socketpair"], 0, _SOCKET_FAMILIES, is_allowed=True)
    for name in _REFUSED:
        program += [(_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, _REFUSE)]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join([struct.pack("=HBBI", *instruction) for instruction in program])


def _check_argument(
    number: int, index: int, values: Sequence[int], *, is_allowed: bool
) -> list[tuple[int, int, int, int]]:
    """Return the instructions that decide about a call by the lower half of an argument, and leave other calls alone."""
    count = len(values)
    listed, other = (_ALLOW, _REFUSE) if is_allowed else (_REFUSE, _ALLOW)
    return [
        (_EQUAL, 0, count + 3, number),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * index),
        *[(_EQUAL, count - position, 0, value) for position, value in enumerate(values)],
        (_RETURN, 0, 0, other),
        (_RETURN, 0, 0, listed),
    ]
