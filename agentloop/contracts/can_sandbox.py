"""The contract of sandboxes, which run programs that may be hostile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from attrs import field, frozen
from attrs.validators import gt

from agentloop.values.json import as_frozen_dict
from agentloop.values.value import Value

LimitName: TypeAlias = Literal["", "time", "memory", "output"]
"""The name of a limit that ended a command or cut its output; empty for none."""


@frozen(eq=False, repr=False, kw_only=True)
class SandboxLimits(Value):
    """The resources that a command and all processes that it starts may use.

    Attributes:
        max_seconds: seconds of wall-clock time; then the processes are ended, and the files written until then are returned.
        max_memory: bytes of memory of all processes together, in addition to the files.
        max_processes: the number of processes and threads at one time.
        max_output: bytes of each of standard output and standard error that are returned, from its start and its end. A program
            that writes 64 times as much finds its output closed.
        max_disk: bytes of all files that can be written, temporary ones included.
        max_files: the number of files and folders, temporary ones included.

    Raises:
        ValueError: for a limit that is not above 0.
    """

    max_seconds: float = field(default=60.0, validator=gt(0))
    max_memory: int = field(default=512 * 1024 * 1024, validator=gt(0))
    max_processes: int = field(default=64, validator=gt(0))
    max_output: int = field(default=64 * 1024, validator=gt(0))
    max_disk: int = field(default=256 * 1024 * 1024, validator=gt(0))
    max_files: int = field(default=10_000, validator=gt(0))


DEFAULT_LIMITS = SandboxLimits()


@frozen(eq=False, repr=False)
class SandboxFile(Value):
    """A regular file, as a value.

    Attributes:
        data: the content.
        executable: whether it can be run.
        modified: the time of its last change, in seconds since 1970; programs such as make compare it.
    """

    data: bytes = field(repr=lambda data: f"<{len(data)} bytes>")
    executable: bool = False
    modified: int = 0


def _is_text(argument: str) -> bool:
    return argument.isascii() or not any("\ud800" <= character <= "\udfff" for character in argument)


def _as_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    if isinstance(arguments, str):
        raise TypeError(f"arguments is a sequence of texts; for a line of shell code: ['sh', '-c', {arguments!r:.100}]")
    if any("\0" in argument or not _is_text(argument) for argument in arguments):
        raise ValueError(
            "an argument of a command has a null character or half of a character, which no program can be given"
        )
    return tuple(arguments)


@frozen(eq=False, repr=False)
class SandboxCommand(Value):
    """A program to run in a sandbox.

    Attributes:
        arguments: the program and its arguments. No shell interprets them.
        files: the files in the work folder when the command starts, by their paths relative to it.
        folders: the folders in it that have no files.
        stdin: the standard input.
        limits: the resources that it may use.

    Raises:
        TypeError: when `arguments` is one text.
        ValueError: when one of them has a null character or half of one (a lone surrogate).
    """

    arguments: tuple[str, ...] = field(converter=_as_arguments)
    files: Mapping[str, SandboxFile] = field(factory=dict, converter=as_frozen_dict, repr=False)
    folders: tuple[str, ...] = field(default=(), converter=tuple[str, ...], kw_only=True)
    stdin: bytes = field(default=b"", repr=False, kw_only=True)
    limits: SandboxLimits = field(default=DEFAULT_LIMITS, kw_only=True)


@frozen(eq=False, repr=False, kw_only=True)
class SandboxResult(Value):
    """What became of a command.

    Attributes:
        exit_code: its exit code; 128 plus the number of the signal that ended it.
        stdout: its standard output; where it is longer than `max_output`, a mark is in place of its middle.
        stderr: its standard error, likewise.
        exceeded: the limit that ended it or closed its output; empty for none. A full disk and a missing process are errors that
            the program itself gets.
        files: all regular files in the work folder afterwards, by their paths.
        folders: the folders in it that have no files.
        omitted: the paths in the work folder that are not regular files: links, sockets, devices.
        has_all_files: whether `files` is complete. It is not when a file could not be read, there were too many bytes, or the
            memory was used up.
    """

    exit_code: int
    stdout: bytes = field(default=b"", repr=False)
    stderr: bytes = field(default=b"", repr=False)
    exceeded: LimitName = ""
    files: Mapping[str, SandboxFile] = field(factory=dict, converter=as_frozen_dict, repr=False)
    folders: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    omitted: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    has_all_files: bool = True


class CanSandbox(ABC):
    """Runs programs that may be hostile, away from the host.

    An implementation keeps these laws for every command (9, 19, 31, 34, 46 and 47, which `SandboxKit` checks), whatever it does:

    - Confined: it has no network, no device, no process and no terminal of the host. It reads the programs and libraries that
      the implementation names, and no other file of the host; it changes none. Its environment has a few fixed names.
    - Values: the work folder, the current folder of the command, starts with copies of `files`. What the command leaves in it is returned as data: nothing follows
      its links, and nothing of the host is written.
    - Limited: every limit of `limits` holds. One that cannot be enforced here is an error before anything starts.
    - Gone: when `run` ends, in any way, no process of the command is left.
    - Separate: commands at the same time do not affect each other (law 9).
    """

    @abstractmethod
    async def check(self) -> None:
        """Check that commands can run here, by running one.

        Raises:
            SandboxUnavailable: if they cannot; says what is missing.
        """

    @abstractmethod
    async def run(self, command: SandboxCommand) -> SandboxResult:
        """Run a command and return its outcome, also when a limit ended it.

        Raises:
            SandboxUnavailable: before anything starts, if the sandbox or a limit cannot be set up, or the files exceed the
                limits.
            asyncio.CancelledError: the task was cancelled; all processes are gone by then.
        """
