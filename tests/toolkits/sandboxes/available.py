"""The sandboxes that can run here."""

from __future__ import annotations

import asyncio
import atexit
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from agentloop.contracts import CanSandbox
from agentloop.errors import SandboxUnavailable
from agentloop.toolkits import BubblewrapSandbox, ContainerSandbox

REQUIRED = "AGENTLOOP_SANDBOX_REQUIRED"
"""The environment variable with which it is a failure when no sandbox can run here."""


@cache
def container_sandbox() -> ContainerSandbox:
    """Return a sandbox of containers that have BusyBox and nothing else, since no image can be downloaded here.

    Raises:
        SandboxUnavailable: when podman or BusyBox is not installed.
    """
    busybox = next((path for path in map(shutil.which, ("busybox.static", "busybox")) if path), None)
    podman = shutil.which("podman")
    if busybox is None or podman is None:
        raise SandboxUnavailable("podman and busybox-static are not installed")
    folder = Path(tempfile.mkdtemp(prefix="agentloop-podman-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = folder / "podman"
    storage = f"--root {folder}/store --runroot {folder}/run"
    mounts = Path("/proc/self/mounts").read_text()
    # Where both versions of control groups are mounted, crun refuses to start.
    umount = "umount /sys/fs/cgroup/unified; " if "/sys/fs/cgroup/unified cgroup2" in mounts else ""
    program.write_text(f'#!/bin/sh\nexec unshare -m sh -c \'{umount}exec {podman} {storage} "$@"\' sh "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        [program, "import", "-", "localhost/busybox:test"],
        input=_image(Path(busybox)),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise SandboxUnavailable(f"podman cannot import an image: {done.stderr.decode()[-300:]}")
    # Without this, podman asks for more processes than this machine may give.
    arguments = ["--ulimit", "nproc=4096:4096"]
    return ContainerSandbox(image="localhost/busybox:test", program=str(program), runtime_arguments=arguments)


def _image(busybox: Path) -> bytes:
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("bin", "tmp", "proc", "dev", "sys", "etc"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        archive.add(busybox.resolve(), "bin/busybox")
        for name in {*names} - {"busybox"}:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    return buffer.getvalue()


SANDBOXES: dict[str, Callable[[], CanSandbox]] = {
    "bubblewrap": BubblewrapSandbox,
    "bubblewrap-per-process": lambda: BubblewrapSandbox(memory="process"),
    "container": container_sandbox,
}


@cache
def problem_of(name: str) -> str:
    """Return why a sandbox cannot run here; empty when it can."""
    # In a thread, which has no event loop: the test that asks first may have one.
    with ThreadPoolExecutor(1) as executor:
        try:
            executor.submit(lambda: asyncio.run(SANDBOXES[name]().check())).result()
        except SandboxUnavailable as error:
            return str(error)
    return ""


def sandbox_named(name: str) -> CanSandbox:
    """Return a sandbox, or skip the test."""
    if problem_of(name):
        pytest.skip(f"{name} cannot run here: {problem_of(name)}")
    return SANDBOXES[name]()


def any_sandbox() -> CanSandbox:
    """Return the first sandbox that can run here, or skip the test."""
    name = next((name for name in SANDBOXES if not problem_of(name)), "bubblewrap")
    return sandbox_named(name)


def is_required() -> bool:
    """Return whether the environment says that sandboxes have to run here."""
    return bool(os.environ.get(REQUIRED))
