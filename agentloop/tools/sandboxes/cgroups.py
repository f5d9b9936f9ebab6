"""Control groups of Linux, versions 1 and 2: limits for all processes of a command together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from attrs import frozen

from agentloop.contracts.can_sandbox import SandboxLimits
from agentloop.errors import SandboxUnavailable

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
        name = f"{_NAME}{os.getpid()}-{next(_numbers)}"
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
