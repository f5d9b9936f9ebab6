"""The law suite of sandboxes. Its commands need `sh`, `cat`, `env`, `ln`, `printf`, `sleep` and `yes` in the sandbox."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from attrs import frozen
from hypothesis import strategies as st

from agentloop.contracts.can_sandbox import CanSandbox, SandboxCommand, SandboxFile, SandboxLimits, SandboxResult
from agentloop.errors import AgentLoopError
from agentloop.testing.kit import Kit, LawNotChecked, checked_factory, require

_SECRET = "the secret of the host of this kit"  # noqa: S105  # it protects nothing
_VARIABLE = "AGENTLOOP_KIT_SECRET"
_NUMBERS = count(1)
_ENDS_WITHIN = 10.0
"""Seconds after which a process that should be gone is taken for one that stays."""
_STARTS_WITHIN = 20.0
_BOUND = 1_000
_LINES = 500
_ECHO = 'cat; printf "%s\\0" "$@" >&2; cat in/data; [ -x run ] && printf x; exit 3'

_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
_ARGUMENTS = st.lists(st.sampled_from(["a  b", "$HOME", "'; exit 0 #", "*", "-n", '"', "\n"]) | _TEXTS, max_size=4)
_EXPLICIT: tuple[tuple[list[str], bytes, bytes], ...] = (
    (["a  b", "$HOME", "'; exit 0 #", "*", '"', "ü", ""], b" \n\x00\xff\xfe\n ", b"\x80\x81"),
    ([], b"", b""),
)


@frozen
class _Host:
    """The things of the host that a command tries to reach.

    Attributes:
        folder: a folder with a file that has the secret.
        port: the port of a server on the loopback interface.
        process: the number of a process.
    """

    folder: Path
    port: int
    process: int

    @property
    def file(self) -> Path:
        """The file with the secret."""
        return self.folder / "secret"


_READING = """cat {file}; cat /proc/*/root{file} /proc/*/cwd/secret; ls {folder}; env; cat /proc/*/environ"""
_LINKING = """ln -s {file} link; ln -s {folder} folder; ln {file} hard; true"""
_WRITING = """echo changed > {file}; echo new > {folder}/new; rm -f {file}; kill -9 {process}; true"""
_CALLING = """bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'; nc -w 1 127.0.0.1 {port} < /dev/null; true"""


class SandboxKit(Kit):
    """Checks a sandbox against the laws of `CanSandbox`.

    It runs some thirty commands, with processes of the host besides them. Law 46 tries the plain ways out: files, links,
    variables, processes and the network of the host. A sandbox for hostile programs needs more tests than these.

    Args:
        factory: creates a sandbox.
        examples: the number of examples that are tried for law 47; the other laws have a few fixed commands.
    """

    laws: tuple[int, ...] = (9, 19, 31, 34, 46, 47)

    def __init__(self, factory: Callable[[], CanSandbox], *, examples: int = 10) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[], CanSandbox] = checked_factory(factory)

    def require_working(self) -> None:
        """Check that a command runs.

        Raises:
            LawNotChecked: it does not.
        """
        try:
            result = asyncio.run(self.factory().run(_shell("printf ok")))
        except AgentLoopError as error:
            raise LawNotChecked(f"the sandbox runs no command: {type(error).__name__}: {error}") from error
        if (result.exit_code, result.stdout) != (0, b"ok"):
            reason = (
                f"`printf ok` ended with {result.exit_code}, and wrote {result.stdout!r} and {result.stderr!r:.300}"
            )
            raise LawNotChecked(reason)

    def law_9(self) -> None:
        """Commands at the same time, and one after the other, have folders of their own."""

        async def check() -> None:
            sandbox = self.factory()
            scripts = [f"printf {name} > name; sleep 0.3; cat name; ls" for name in ("one", "two")]
            for result, name in zip(await _run_all(sandbox, scripts), (b"one", b"two"), strict=True):
                expected = name + b"name\n"
                require(
                    9, result.stdout == expected, f"a command read {result.stdout!r} in its folder, not {expected!r}"
                )
            later = await sandbox.run(_shell("ls -A"))
            require(9, not later.stdout, f"the folder of a later command has {later.stdout!r}")

        asyncio.run(check())

    def law_19(self) -> None:
        """When `run` has returned, no process of the command is left, whatever ended it."""

        async def check() -> None:
            sandbox = self.factory()
            # The shell ends only when the process has a session of its own.
            own_session = "{{ setsid sh -c 'echo; exec {sleep}' & }} | read line; exit 0"
            for script, seconds in (("{sleep} & exit 0", 30.0), (own_session, 30.0), ("{sleep}", 0.5)):
                mark = _mark()
                sleep = f"sleep {mark} > /dev/null 2>&1"
                command = _shell(f"exec 2> /dev/null; {script.format(sleep=sleep)}", max_seconds=seconds)
                await sandbox.run(command)
                left = await _left(mark)
                require(19, not left, f"after the command {script!r}, this process is left: {', '.join(left)}")

        asyncio.run(check())

    def law_31(self) -> None:
        """The time and the output are bounded, and the result names the limit; output is cut in its middle."""

        async def check() -> None:
            sandbox = self.factory()
            late = await sandbox.run(_shell("printf begun; sleep 4; printf ended", max_seconds=0.5))
            require(31, late.exceeded == "time", f"a command of 4 s with a limit of 0.5 s ended with {late!r}")
            require(31, late.stdout == b"begun", f"it wrote `begun` before that, and the output is {late.stdout!r}")
            script = f"i=0; while [ $i -lt {_LINES} ]; do printf '%06d\\n' $i; i=$((i + 1)); done"
            for redirected in ("", " >&2"):
                result = await sandbox.run(_shell(f"{{ {script}; }}{redirected}", max_output=_BOUND))
                output = result.stderr if redirected else result.stdout
                bounded = len(output) <= 2 * _BOUND
                require(31, bounded, f"of {7 * _LINES} bytes with a limit of {_BOUND}, {len(output)} were returned")
                is_marked = any(not line.isdigit() for line in output.split() if line)
                require(
                    31,
                    result.exceeded == "output" or is_marked,
                    "output was cut, and neither it nor the result says so",
                )
                has_both = output.startswith(b"000000\n") and output.endswith(b"%06d\n" % (_LINES - 1))
                require(31, has_both, "of output that was cut, the start or the end is missing")
            endless = await sandbox.run(_shell("yes", max_seconds=2.0, max_output=_BOUND))
            require(31, endless.exceeded, "endless output was cut, and the result has no limit that was exceeded")

        asyncio.run(check())

    def law_34(self) -> None:
        """A command that is cancelled is killed, and `run` raises the cancellation again."""

        async def check() -> None:
            sandbox, mark = self.factory(), _mark()
            task = asyncio.ensure_future(sandbox.run(_shell(f"sleep {mark} & sleep {mark}")))
            await _wait_for(lambda: bool(_processes_with(mark)) or task.done(), _STARTS_WITHIN)
            task.cancel()
            await asyncio.wait([task], timeout=_ENDS_WITHIN)
            require(34, task.done(), f"a command was cancelled, and `run` has not ended {_ENDS_WITHIN:.0f} s later")
            require(34, task.cancelled(), "a command was cancelled, and `run` did not raise that")
            left = await _left(mark)
            require(34, not left, f"after a cancellation, this process is left: {', '.join(left)}")

        asyncio.run(check())

    def law_46(self) -> None:
        """A command reaches no file, variable, process or server of the host, and no link leads to one."""
        attempts = (self._read, self._follow_links, self._change, self._call, self._place_files)
        for attempt in attempts:
            with _host() as host:
                asyncio.run(attempt(host))

    async def _read(self, host: _Host) -> None:
        result = await self.factory().run(_attack(_READING, host))
        found = _SECRET.encode() in result.stdout + result.stderr
        require(46, not found, "a command read a file or a variable of the host")

    async def _follow_links(self, host: _Host) -> None:
        result = await self.factory().run(_attack(_LINKING, host))
        found = [path for path, file in result.files.items() if _SECRET.encode() in file.data]
        require(46, not found, f"the files of the result have a file of the host, as {', '.join(found)}")

    async def _change(self, host: _Host) -> None:
        await self.factory().run(_attack(_WRITING, host))
        names = sorted(path.name for path in host.folder.iterdir())
        unchanged = names == ["secret"] and host.file.read_text() == _SECRET
        require(46, unchanged, f"a command changed a folder of the host, which has {names} now")
        require(46, _is_alive(host.process), "a command ended a process of the host")

    async def _call(self, host: _Host) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0)
            await self.factory().run(_attack(_CALLING, _Host(host.folder, server.getsockname()[1], host.process)))
            with suppress(BlockingIOError):
                server.accept()[0].close()
                require(46, condition=False, reason="a command connected to a server of the host")

    async def _place_files(self, host: _Host) -> None:
        """A path of a file that leads out of the work folder is refused, or leads nowhere."""
        for path in (f"{host.folder}/new", f"{'../' * 16}{str(host.folder).lstrip('/')}/new"):
            with suppress(AgentLoopError, OSError, ValueError):
                await self.factory().run(SandboxCommand(["true"], {path: SandboxFile(b"written")}))
            require(46, not (host.folder / "new").exists(), f"the file {path} of a command was written on the host")

    def law_47(self) -> None:
        """Arguments, input and files come in byte by byte; output, exit code and files come back so."""
        examples = st.sampled_from(_EXPLICIT) | st.tuples(_ARGUMENTS, st.binary(max_size=40), st.binary(max_size=40))
        self.for_all(examples, lambda example: asyncio.run(self._check_bytes(*example)))
        asyncio.run(self._check_ends())

    async def _check_bytes(self, arguments: list[str], stdin: bytes, data: bytes) -> None:
        files = {"in/data": SandboxFile(data), "run": SandboxFile(b"", executable=True)}
        command = SandboxCommand(["sh", "-c", _ECHO, "sh", *arguments], files, folders=["empty"], stdin=stdin)
        result = await self.factory().run(command)
        expected: Mapping[str, object] = {
            "exit_code": 3,
            "stdout": stdin + data + b"x",
            "stderr": b"".join([argument.encode() + b"\0" for argument in arguments]) or b"\0",
            "exceeded": "",
            "folders": ("empty",),
        }
        for name, value in expected.items():
            found = getattr(result, name)
            require(47, found == value, f"a command that echoes its input has {name} {found!r}, not {value!r}")
        found_files = {path: (file.data, file.executable) for path, file in result.files.items()}
        wanted = {path: (file.data, file.executable) for path, file in files.items()}
        require(47, found_files == wanted, f"the files {wanted} came back as {found_files}")

    async def _check_ends(self) -> None:
        """Check the exit codes of commands, and a file that a command writes."""
        sandbox = self.factory()
        for script, code in (("exit 0", 0), ("exit 41", 41), ("kill -9 $$", 137), ("no-such-program-of-the-kit", 127)):
            result = await sandbox.run(_shell(script))
            require(
                47, result.exit_code == code, f"{script!r} ended with {code}, and the result has {result.exit_code}"
            )
        result = await sandbox.run(_shell("mkdir a; printf '\\000\\377' > a/b; rm c", {"c": SandboxFile(b"c")}))
        found = {path: file.data for path, file in result.files.items()}
        require(47, found == {"a/b": b"\x00\xff"}, f"a command left the file a/b alone, and the result has {found}")


def _shell(
    script: str, files: Mapping[str, SandboxFile] | None = None, *, max_seconds: float = 30.0, max_output: int = 65_536
) -> SandboxCommand:
    limits = SandboxLimits(max_seconds=max_seconds, max_output=max_output)
    return SandboxCommand(["sh", "-c", script], files or {}, limits=limits)


def _attack(script: str, host: _Host) -> SandboxCommand:
    return _shell(script.format(file=host.file, folder=host.folder, port=host.port, process=host.process))


async def _run_all(sandbox: CanSandbox, scripts: list[str]) -> list[SandboxResult]:
    runs: list[Coroutine[object, object, SandboxResult]] = [sandbox.run(_shell(script)) for script in scripts]
    return list(await asyncio.gather(*runs))


@contextmanager
def _host() -> Iterator[_Host]:
    """Yield things of the host; they are gone afterwards."""
    with tempfile.TemporaryDirectory() as name, subprocess.Popen(["sleep", "600"]) as process:  # noqa: S607
        before = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = _SECRET
        host = _Host(Path(name).resolve(), 0, process.pid)
        host.file.write_text(_SECRET)
        # Whatever user the command runs as: the rights of the files are not what keeps it from them.
        host.folder.chmod(0o777)
        host.file.chmod(0o666)
        try:
            yield host
        finally:
            process.kill()
            os.environ.pop(_VARIABLE)
            if before is not None:
                os.environ[_VARIABLE] = before


def _is_alive(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return subprocess.run(["kill", "-0", str(process)], check=False, capture_output=True).returncode == 0  # noqa: S603, S607
    return stat.rpartition(")")[2].split()[0] != "Z"


# --- processes --------------------------------------------------------------------------------------------------------


def _mark() -> str:
    """Return a number of seconds that no other command of this machine sleeps."""
    return f"{100 + next(_NUMBERS)}.{os.getpid()}"


def _processes_with(mark: str) -> list[str]:
    """Return the processes that sleep so long."""
    lines = []
    if Path("/proc/self/cmdline").exists():
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    else:
        done = subprocess.run(["ps", "-Ao", "args"], capture_output=True, check=False)  # noqa: S607
        lines = done.stdout.decode(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip() == f"sleep {mark}"]


async def _left(mark: str) -> list[str]:
    """Return the processes with a mark that do not end; one that was killed may take a moment."""
    await _wait_for(lambda: not _processes_with(mark), _ENDS_WITHIN if _processes_with(mark) else 0.0)
    return _processes_with(mark)


async def _wait_for(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:  # noqa: ASYNC110  # processes of the host set no event
        await asyncio.sleep(0.02)
