"""A small program between this process and bubblewrap: it gives up its rights, sets limits, and becomes bubblewrap.

It is run as a script; its first argument is a JSON object with `uid` (0 for the current one), `groups` (files of control groups to
enter), `limits` (names of the module `resource` with values), `folder` and `disk` (where a file system in memory is mounted, and
its options), `folders` and `files` (what it has at first), `descriptors` (pairs of an open file and the number that it gets)
and `bubblewrap` (its path and arguments). Only the standard library is imported, and little of it: a start takes 20 ms.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import signal
import sys
from typing import Any

_KEEP_DUMPABLE = 4  # PR_SET_DUMPABLE: without it a process that has changed its user cannot write its own uid_map
_NEW_NAMESPACES = 0x10000000 | 0x00020000  # CLONE_NEWUSER, CLONE_NEWNS
_MOUNT_FLAGS = 2 | 4  # MS_NOSUID, MS_NODEV


def main(text: str, arguments: list[str]) -> None:
    """Set everything up and execute bubblewrap.

    Args:
        text: the settings.
        arguments: further arguments of bubblewrap, and the command.

    Raises:
        OSError: when something cannot be set up; then nothing was started.
    """
    settings = json.loads(text)
    for path in settings["groups"]:
        _write(path, "0")
    # Even a sandbox with a hole then has the rights of a user that owns nothing.
    if settings["uid"]:
        os.setgroups([])
        os.setresgid(*[settings["uid"]] * 3)
        os.setresuid(*[settings["uid"]] * 3)
    _mount_disk(settings)
    for name, value in settings["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    os.umask(0o022)
    # Python ignores it, and programs inherit that: `yes | head -1` would end with an error.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    _number_descriptors(settings["descriptors"])
    os.execv(settings["bubblewrap"][0], [*settings["bubblewrap"], *arguments])  # noqa: S606  # a program that the parent has looked up


def _mount_disk(settings: dict[str, Any]) -> None:
    """Mount a file system in memory, in namespaces that end with the sandbox: it has maximum numbers of bytes and files."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    _check(libc.prctl(_KEEP_DUMPABLE, 1, 0, 0, 0), "prctl")
    _check(libc.unshare(_NEW_NAMESPACES), "user namespaces cannot be used here")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        _write(f"/proc/self/{name}", text)
    folder, options = settings["folder"], settings["disk"].encode()
    _check(libc.mount(b"tmpfs", folder.encode(), b"tmpfs", _MOUNT_FLAGS, options), "a file system in memory")
    for name in settings["folders"]:
        os.mkdir(f"{folder}/{name}", 0o755)  # noqa: PTH102  # pathlib takes milliseconds to import
    for name, text in settings["files"].items():
        _write(f"{folder}/{name}", text)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123  # as above
        file.write(text)


def _number_descriptors(pairs: list[list[int]]) -> None:
    # First all out of the way of all, since a number that one file gets may be that of another.
    moved = [(fcntl.fcntl(source, fcntl.F_DUPFD, 64), target) for source, target in pairs]
    for source, _ in pairs:
        os.close(source)
    for source, target in moved:
        os.dup2(source, target)
        os.close(source)


def _check(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def start() -> None:
    """Run with the arguments of the process; print what cannot be set up."""
    try:
        main(sys.argv[1], sys.argv[2:])
    except OSError as error:
        sys.exit(str(error.strerror or error))


if __name__ == "__main__":
    start()
