"""Commands that attack their sandbox or the host; the table in `docs/sandbox.md` lists them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from attrs import frozen

from agentloop.contracts import CanSandbox, SandboxCommand, SandboxFile, SandboxLimits, SandboxResult

SECRET = "the-secret-of-the-host"
Check: TypeAlias = Callable[[SandboxResult], bool]
MEGABYTE = 1024 * 1024
LIMITS = SandboxLimits(max_seconds=20.0)
SHORT = SandboxLimits(max_seconds=1.5)

ENVIRONMENT_NAMES = {"HOME", "LANG", "PATH", "PYTHONDONTWRITEBYTECODE", "TMPDIR"} | {
    *["PWD", "OLDPWD", "SHLVL", "_"],  # of the shell itself
    *["HOSTNAME", "TERM", "container"],  # of a container runtime, with fixed values
}


@frozen
class Attack:
    """A hostile script, and what has to hold of its result.

    Attributes:
        script: the script; HOST_FILE, HOST_PORT, HOST_PID and MARK are replaced.
        check: whether the attack has failed, as it should.
        limits: the limits of the command.
    """

    script: str
    check: Check
    limits: SandboxLimits = LIMITS


def says(*words: str) -> Check:
    """Return whether all of these words are in the output."""
    return lambda result: all(word.encode() in result.stdout + result.stderr for word in words)


def is_silent(result: SandboxResult) -> bool:
    """Return whether nothing was read."""
    return not result.stdout.strip()


ATTACKS = {
    "fork bomb": Attack(
        "f() { f | f & }; f; sleep 60",
        lambda result: result.exit_code != 0 and "fork" in result.stderr.decode().lower(),
        SHORT,
    ),
    "fork bomb in sessions of its own": Attack(
        "f() { setsid sh -c 'exec sleep 60' & f; }; f", lambda result: result.exit_code != 0, SHORT
    ),
    "memory": Attack(
        "head -c 3000000000 /dev/zero | tail | wc -c",
        lambda result: b"3000000000" not in result.stdout,
        SandboxLimits(max_memory=128 * MEGABYTE, max_disk=MEGABYTE),
    ),
    "disk": Attack(
        "head -c 100000000 /dev/zero > big; wc -c < big",
        lambda result: int(result.stdout) <= 5 * MEGABYTE and len(result.files["big"].data) <= 5 * MEGABYTE,
        SandboxLimits(max_disk=5 * MEGABYTE),
    ),
    "disk outside of the work folder": Attack(
        "for f in /tmp/a /dev/shm/b /var/c /run/d; do head -c 100000000 /dev/zero > $f; done; cat /tmp/a /dev/shm/b | wc -c",
        lambda result: int(result.stdout) <= 5 * MEGABYTE,
        SandboxLimits(max_disk=5 * MEGABYTE),
    ),
    "sparse file": Attack(
        "truncate -s 900G sparse || dd if=/dev/zero of=sparse bs=1 count=1 seek=900G",
        lambda result: "sparse" not in result.files or len(result.files["sparse"].data) < 6 * MEGABYTE,
        SandboxLimits(max_disk=5 * MEGABYTE),
    ),
    "number of files": Attack(
        "i=0; while : > f$i; do i=$((i + 1)); done",
        lambda result: len(result.files) <= 50,
        SandboxLimits(max_files=50),
    ),
    "output": Attack(
        "yes",
        lambda result: len(result.stdout) < 2_000 and result.exceeded in {"output", "time"},
        SandboxLimits(max_output=1_000, max_seconds=1.5),
    ),
    "network": Attack(
        "for place in '127.0.0.1 HOST_PORT' '1.1.1.1 53'; do bash -c 'exec 3<>/dev/tcp/$0/$1 && echo connected' $place; "
        "nc -w 2 $place < /dev/null && echo connected; done",
        is_silent,
    ),
    "interfaces of the host": Attack(
        "tail -n +3 /proc/net/dev | grep -v ' lo:'; ls /sys/class/net | grep -v '^lo$'", is_silent
    ),
    "sockets to the host of a virtual machine": Attack(
        'perl -e \'socket(S, 40, 1, 0) and print "vsock"; socket(S, 2, 1, 0) and print "inet"; socket(S, 1, 1, 0) and print "unix"\'',
        lambda result: result.stdout in {b"inetunix", b""},
    ),
    "keys of the kernel": Attack(
        # keyctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING), by its numbers on two architectures
        "perl -e 'print grep { $_ >= 0 } map { syscall($_, 0, -3, 1) } ($ENV{HOSTTYPE} // `uname -m`) =~ /x86/ ? 250 : 219'",
        is_silent,
    ),
    "symbolic link out of the folder": Attack(
        "ln -s HOST_FILE link; cat link; ln -s / root; cat root/HOST_FILE",
        lambda result: is_silent(result) and not result.files and set(result.omitted) == {"link", "root"},
    ),
    "hard link out of the folder": Attack(
        "ln HOST_FILE a; ln /usr/bin/env b; ln /etc/passwd c",
        lambda result: not result.files,
    ),
    "roots of other processes": Attack("cat /proc/[0-9]*/root/HOST_FILE /proc/[0-9]*/cwd/HOST_FILE", is_silent),
    "open files": Attack(
        "for f in /proc/self/fd/*; do readlink $f; done | grep -v -e pipe: -e ^/proc -e ^/dev/null -e '^/tmp/stdin'",
        is_silent,
    ),
    "secrets": Attack(
        "env | cut -d= -f1; cat HOST_FILE /root/.* /root/* /home/*/* /etc/ssh/* /run/secrets/* /proc/1/environ >&2",
        lambda result: set(result.stdout.decode().split()) <= ENVIRONMENT_NAMES and b"SECRET" not in result.stderr,
    ),
    "signals": Attack(
        "kill -9 HOST_PID && echo killed; kill -9 1; echo still", lambda result: result.stdout == b"still\n"
    ),
    "signals to all": Attack("kill -9 -1; echo", lambda result: result.exit_code >= 0),
    "daemon": Attack(
        "(setsid sh -c 'sleep MARK & sleep MARK' &) ; nohup sleep MARK >/dev/null 2>&1 & exit 0",
        lambda result: result.exit_code == 0 and not result.exceeded,
    ),
    "SIGTERM ignored": Attack(
        "trap '' TERM INT HUP; echo kept > f; while :; do sleep MARK; done",
        lambda result: result.exceeded == "time" and result.files["f"].data == b"kept\n",
        SHORT,
    ),
    "more rights": Attack(
        "grep NoNewPrivs /proc/self/status; grep CapEff /proc/self/status; id -u; su -c id root < /dev/null; mount -t tmpfs x /tmp; "
        "mkdir m; unshare -Urm sh -c 'mount --bind / m && ls m/root'",
        lambda result: re.search(rb"^NoNewPrivs:\s1\nCapEff:\s0+\n(?!0\b)\d+\n$", result.stdout) is not None,
    ),
    "system files": Attack(
        "for f in /x /usr/x /usr/bin/env /etc/passwd /bin/x /dev/x /proc/sys/kernel/core_pattern /proc/sysrq-trigger; do "
        "(echo x > $f) 2>/dev/null && echo wrote $f; done",
        is_silent,
    ),
    "file names": Attack(
        "n=$(printf '%0250d' 7); : > $n; : > 'a\nb'; : > -rf; : > \"$(printf '\\377')\"; "
        "i=0; while [ $i -lt 300 ] && mkdir d && cd d; do i=$((i + 1)); done; : > deep",
        lambda result: f"{7:0250d}" in result.files and "-rf" in result.files and len(result.omitted) > 200,
    ),
    "terminal": Attack("(echo x > /dev/tty) && echo opened; [ -t 0 ] && echo terminal", is_silent),
    "link race": Attack(
        "while :; do ln -sf HOST_FILE out; rm -f out; echo mine > out; done",
        lambda result: all(file.data in {b"", b"mine\n"} for file in result.files.values()),
        SHORT,
    ),
    "forged archive": Attack(
        "echo forged > /proc/1/fd/4; echo forged > /proc/1/fd/3; echo forged > /proc/$PPID/fd/4",
        lambda result: all(".." not in path for path in result.files),
    ),
    "unreadable files": Attack(
        "echo kept > f; mkdir d; echo x > d/g; chmod 0 d; chmod 0 f",
        lambda result: not result.has_all_files or "f" in result.files,
    ),
}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return the secret file, the server and the process of the host that scripts attack."""
    file = tmp_path / "secret"
    file.write_text(SECRET)
    os.environ["SECRET_OF_THE_HOST"] = SECRET
    with socket.create_server(("127.0.0.1", 0)) as server, subprocess.Popen(["sleep", "1000"]) as process:
        yield {"HOST_FILE": str(file), "HOST_PORT": str(server.getsockname()[1]), "HOST_PID": str(process.pid)}
        assert process.poll() is None, "the command has ended a process of the host"
        process.kill()
    assert file.read_text() == SECRET
    del os.environ["SECRET_OF_THE_HOST"]


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_hostile_command_is_confined(sandbox: CanSandbox, host: dict[str, str], name: str) -> None:
    """The attack fails, and when the run has ended, no process of it is left."""
    attack = ATTACKS[name]
    mark = f"{1_000_000 + os.getpid()}.{len(name)}"
    script = attack.script.replace("MARK", mark)
    for word, value in host.items():
        script = script.replace(word, value)
    result = await sandbox.run(SandboxCommand(["sh", "-c", script], limits=attack.limits))
    assert SECRET.encode() not in result.stdout + result.stderr
    assert all(SECRET.encode() not in file.data for file in result.files.values())
    assert attack.check(result), (
        result,
        result.stdout[-2_000:],
        result.stderr[-2_000:],
        list(result.files),
        result.omitted,
    )
    assert processes_with(mark) == []


class Unconfined(CanSandbox):
    """No sandbox at all: commands run on the host, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def check(self) -> None:
        """Nothing is checked."""

    async def run(self, command: SandboxCommand) -> SandboxResult:
        """Run a command on the host."""
        done = subprocess.run(command.arguments, cwd=self.folder, capture_output=True, check=False)  # noqa: ASYNC221  # a test of its own
        paths = [path for path in self.folder.iterdir() if path.is_file() and not path.is_symlink()]
        return SandboxResult(
            exit_code=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            files={path.name: SandboxFile(path.read_bytes()) for path in paths},
            omitted=[path.name for path in self.folder.iterdir() if path.is_symlink()],
        )


@pytest.mark.parametrize(
    "name",
    [
        "network",
        "symbolic link out of the folder",
        "hard link out of the folder",
        "roots of other processes",
        "secrets",
    ],
)
async def test_an_attack_succeeds_without_a_sandbox(tmp_path: Path, host: dict[str, str], name: str) -> None:
    """The attacks that do the host no harm work outside of a sandbox, so that their tests can fail."""
    folder = tmp_path / "folder"
    folder.mkdir()
    script = ATTACKS[name].script
    for word, value in host.items():
        script = script.replace(word, value)
    result = await Unconfined(folder).run(SandboxCommand(["sh", "-c", script]))
    leaked = SECRET.encode() in result.stdout + result.stderr + b"".join([file.data for file in result.files.values()])
    assert leaked or not ATTACKS[name].check(result)


def processes_with(mark: str) -> list[str]:
    """Return the processes of the host whose command line contains a text."""
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        lines += [line] if mark in line and "pytest" not in line else []
    return lines


def test_the_page_lists_every_attack() -> None:
    """The table of the page has each attack, and no other."""
    page = (Path(__file__).parents[3] / "docs" / "sandbox.md").read_text()
    _, _, table = page.partition("| Attack |")
    assert re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE) == list(ATTACKS)
