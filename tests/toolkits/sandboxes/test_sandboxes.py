"""What every sandbox does with a command: files, streams, limits, cancellation, and errors before anything starts."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import ANY

import pytest

from agentloop.contracts import CanSandbox, SandboxCommand, SandboxFile, SandboxLimits
from agentloop.errors import SandboxUnavailable
from agentloop.toolkits import BubblewrapSandbox, ContainerSandbox
from agentloop.toolkits.sandboxes import bubblewrap
from agentloop.toolkits.sandboxes.bubblewrap import ControlGroup, find_parents
from tests.limits import LONGEST
from tests.toolkits.sandboxes.available import SANDBOXES, is_required, problem_of, sandbox_named
from tests.toolkits.sandboxes.test_hostile_commands import processes_with


def test_a_sandbox_runs_where_it_has_to() -> None:
    """In CI the tests of sandboxes are not skipped: at least one of them can run."""
    problems = {name: problem_of(name) for name in SANDBOXES}
    if not is_required() and all(problems.values()):
        pytest.skip(f"no sandbox can run here: {problems}")
    assert not all(problems.values()), problems


async def test_files_and_streams_go_in_and_come_back(sandbox: CanSandbox) -> None:
    """A command gets its files, folders, arguments and standard input, and its results are values."""
    script = 'cat in/data.bin; ls -d empty; cat; printf "%s\\n" "$@" >&2; [ -x run ] && echo ok > out.txt; mkdir -p a/b; rm run; exit 7'
    command = SandboxCommand(
        ["sh", "-c", script, "sh", "one two", "'; rm -rf /", "ü"],
        {
            "in/data.bin": SandboxFile(b"\x00\xff\n"),
            "run": SandboxFile(b"", executable=True),
            f"{'n' * 200}.txt": SandboxFile(b"n"),
        },
        folders=["empty"],
        stdin=b"typed\n",
    )
    result = await sandbox.run(command)
    assert result.exit_code == 7
    assert result.stdout == b"\x00\xff\nempty\ntyped\n"
    assert result.stderr.decode() == "one two\n'; rm -rf /\nü\n"
    assert result.files == {
        "in/data.bin": SandboxFile(b"\x00\xff\n"),
        f"{'n' * 200}.txt": SandboxFile(b"n"),
        "out.txt": SandboxFile(b"ok\n", modified=ANY),
    }
    assert result.folders == ("a/b", "empty")
    assert result.has_all_files


async def test_a_long_output_keeps_its_start_and_end(sandbox: CanSandbox) -> None:
    """The middle is left out, with a mark that says how much."""
    limits = SandboxLimits(max_output=1_000)
    result = await sandbox.run(SandboxCommand(["sh", "-c", "echo first; seq 10000; echo last"], limits=limits))
    assert result.stdout.startswith(b"first\n1\n")
    assert result.stdout.endswith(b"10000\nlast\n")
    assert re.search(rb"\n\[\.\.\. \d+ bytes \.\.\.\]\n", result.stdout)
    assert len(result.stdout) < 1_100
    assert result.exceeded == ""


async def test_commands_at_the_same_time_are_separate(sandbox: CanSandbox) -> None:
    """Each has its own files and processes."""
    commands = [SandboxCommand(["sh", "-c", f"echo {number} > f; cat f"]) for number in range(4)]
    results = await asyncio.gather(*map(sandbox.run, commands))
    assert [result.stdout for result in results] == [b"0\n", b"1\n", b"2\n", b"3\n"]


async def test_a_cancelled_run_leaves_no_process(sandbox: CanSandbox) -> None:
    """When a run that was cancelled has ended, all of its processes have, daemons included."""
    mark = f"{2_000_000 + os.getpid()}"
    script = f"setsid sleep {mark} & trap '' TERM; while :; do sleep {mark}; done"
    task = asyncio.create_task(sandbox.run(SandboxCommand(["sh", "-c", script])))
    deadline = time.monotonic() + LONGEST
    while len(processes_with(f"sleep\0{mark}")) < 2:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_with(mark) == []
    others = [other for other in asyncio.all_tasks() if other is not asyncio.current_task()]
    assert others == []


async def test_a_run_can_be_cancelled_at_any_moment() -> None:
    """Whether the sandbox is being made, its files come in or the command runs: no process of it is left."""
    sandbox = sandbox_named("bubblewrap-per-process")
    mark = f"{4_000_000 + os.getpid()}"
    for milliseconds in range(0, 120, 6):
        task = asyncio.create_task(sandbox.run(SandboxCommand(["sh", "-c", f"setsid sleep {mark} & sleep {mark}"])))
        await asyncio.sleep(milliseconds / 1_000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_with(mark) == [], milliseconds


def test_commands_end_with_the_process_that_runs_them(tmp_path: Path) -> None:
    """After `kill -9` of the program, nothing of its command goes on."""
    sandbox_named("bubblewrap-per-process")
    mark = f"{3_000_000 + os.getpid()}"
    program = (
        "import asyncio\nfrom agentloop.contracts import SandboxCommand\nfrom agentloop.toolkits import BubblewrapSandbox\n"
        f"asyncio.run(BubblewrapSandbox(memory='process').run(SandboxCommand(['setsid', '-f', 'sh', '-c', 'sleep {mark} & wait'])))\n".replace(
            "['setsid', '-f', ", "["
        )
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    wait_until(lambda: bool(processes_with(f"sleep\0{mark}")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not processes_with(f"sleep\0{mark}"))


def test_a_program_that_is_killed_while_a_command_starts_leaves_no_command() -> None:
    """Whatever moment of the start `kill -9` meets, nothing of the command runs or waits.

    Between two calls of bubblewrap there is a moment of which the page tells, whose kill leaves a process of bubblewrap itself.
    """
    sandbox_named("bubblewrap-per-process")
    mark = f"{5_000_000 + os.getpid()}"
    program = (
        "import asyncio\nfrom agentloop.contracts import SandboxCommand\nfrom agentloop.toolkits import BubblewrapSandbox\n"
        f"sandbox, command = BubblewrapSandbox(memory='process'), SandboxCommand(['sleep', '{mark}'])\n"
        "print('ready', flush=True)\nasyncio.run(sandbox.run(command))\n"
    )
    for milliseconds in range(5, 80, 15):
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(milliseconds / 1_000)  # the moment that is tested
            process.kill()
        wait_until(lambda: all(Path(line.partition("\0")[0]).name == "bwrap" for line in processes_with(mark)))


async def test_a_command_cannot_stop_the_clock(sandbox: CanSandbox) -> None:
    """A command that stops the process which measures its time ends in time nevertheless; its files are kept or missed."""
    script = "echo kept > f; kill -STOP -1; sleep 1000"
    started = time.monotonic()
    result = await sandbox.run(SandboxCommand(["sh", "-c", script], limits=SandboxLimits(max_seconds=1.0)))
    assert time.monotonic() - started < LONGEST
    assert result.exceeded == "time"
    assert not result.has_all_files or result.files["f"].data == b"kept\n"


async def test_a_broken_pipe_ends_a_program_without_a_word(sandbox: CanSandbox) -> None:
    """Signals have their usual effects: a program whose reader has left ends, as in a terminal."""
    result = await sandbox.run(SandboxCommand(["sh", "-c", "yes | head -n 1"]))
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"y\n", b"")


def wait_until(condition: object) -> None:
    """Wait for a condition about other processes, which tell nobody."""
    assert callable(condition)
    deadline = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_control_group_has_both_limits() -> None:
    """The control group of a command has both limits, and is gone afterwards."""
    sandbox_named("bubblewrap")
    group = ControlGroup.create(SandboxLimits(max_memory=50_000_000, max_disk=10_000_000, max_processes=7))
    try:
        limits = [
            int((folder / file).read_text())
            for folder in group.folders
            for file in ("memory.max", "memory.limit_in_bytes", "pids.max")
            if (folder / file).exists()
        ]
    finally:
        group.remove()
    assert min(limits) == 9
    assert 59_990_000 < max(limits) <= 60_000_000
    assert not any(folder.exists() for folder in group.folders)


async def test_many_processes_share_the_memory() -> None:
    """Processes that each use less than the limit cannot use more of it together."""
    sandbox = sandbox_named("bubblewrap")
    limits = SandboxLimits(max_memory=100_000_000, max_disk=1_000_000, max_seconds=20.0)
    script = "for i in 1 2 3 4; do head -c 80000000 /dev/zero | tail -c 80000000 | (sleep 1; wc -c) & done; wait"
    result = await sandbox.run(SandboxCommand(["sh", "-c", script], limits=limits))
    assert result.exceeded == "memory"
    assert result.stdout.count(b"80000000") < 4


async def test_a_container_without_memory_leaves_the_working_directory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the runtime notes about a container that used up its memory is not left where the program runs."""
    monkeypatch.chdir(tmp_path)
    limits = SandboxLimits(max_memory=50_000_000, max_disk=1_000_000, max_seconds=20.0)
    script = "head -c 200000000 /dev/zero | tail -c 200000000 | wc -c"
    result = await sandbox_named("container").run(SandboxCommand(["sh", "-c", script], limits=limits))
    assert result.exceeded == "memory"
    assert os.listdir(tmp_path) == []  # noqa: PTH208  # nothing else runs in this loop


def test_control_groups_of_version_2_are_found_where_they_can_be_divided(tmp_path: Path) -> None:
    """The nearest group above this process that passes both controllers on is used; without one there is none."""
    mount = tmp_path / "cgroup"
    own = mount / "user.slice" / "app.slice" / "shell.scope"
    own.mkdir(parents=True)
    for folder, controllers in (
        (own, ""),
        (own.parent, "memory pids"),
        (own.parent.parent, "cpu memory pids"),
        (mount, "memory"),
    ):
        (folder / "cgroup.subtree_control").write_text(controllers)
        (folder / "cgroup.procs").write_text("")
    process = tmp_path / "process"
    process.mkdir()
    (process / "mountinfo").write_text(f"30 23 0:26 / {mount} rw,nosuid - cgroup2 cgroup2 rw\n")
    (process / "cgroup").write_text("0::/user.slice/app.slice/shell.scope\n")
    assert list(find_parents(process)) == [own.parent]
    (own.parent / "cgroup.subtree_control").write_text("pids")
    assert list(find_parents(process)) == [own.parent.parent]
    (own.parent.parent / "cgroup.subtree_control").write_text("")
    assert list(find_parents(process)) == []


async def test_without_control_groups_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that cannot be enforced is an error that says what to do."""
    if problem_of("bubblewrap-per-process"):
        pytest.skip(problem_of("bubblewrap-per-process"))
    monkeypatch.setattr("agentloop.toolkits.sandboxes.bubblewrap.find_parents", lambda process: [])
    with pytest.raises(SandboxUnavailable, match=r"memory='process'"):
        await BubblewrapSandbox().run(SandboxCommand(["true"]))


async def test_files_beyond_the_limits_are_refused(sandbox: CanSandbox) -> None:
    """Neither too many files nor too many bytes of them go in."""
    two = {"a": SandboxFile(bytes(600)), "b": SandboxFile(bytes(600))}
    with pytest.raises(SandboxUnavailable, match="max_disk"):
        await sandbox.run(SandboxCommand(["true"], two, limits=SandboxLimits(max_disk=1_000)))
    with pytest.raises(SandboxUnavailable, match="max_files"):
        await sandbox.run(SandboxCommand(["true"], two, limits=SandboxLimits(max_files=1)))


async def test_arguments_that_no_program_can_be_given_are_errors(sandbox: CanSandbox) -> None:
    """Null characters, one text in place of a list, and arguments beyond what the system takes."""
    with pytest.raises(ValueError, match="null character"):
        SandboxCommand(["echo", "a\0b"])
    with pytest.raises(TypeError, match=r"\['sh', '-c'"):
        SandboxCommand("echo a")
    with pytest.raises(SandboxUnavailable, match="cannot be started"):
        await sandbox.run(SandboxCommand(["echo", "x" * 200_000]))


async def test_a_program_that_does_not_exist_is_an_outcome(sandbox: CanSandbox) -> None:
    """It has the exit code of shells and a message."""
    result = await sandbox.run(SandboxCommand(["no-such-program"]))
    assert result.exit_code == 127
    assert b"no-such-program" in result.stderr


async def test_folders_of_the_host_can_be_read_where_the_program_says_so() -> None:
    """A readable folder is there and cannot be changed; its neighbors are not there."""
    sandbox_named("bubblewrap-per-process")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # noqa: ASYNC240 # as root, the command runs as a user who could not enter it otherwise
        (folder / "shown").mkdir()
        (folder / "shown" / "a").write_text("shown\n")
        (folder / "hidden").write_text("hidden\n")
        sandbox = BubblewrapSandbox(readable=[str(folder / "shown")], memory="process")
        script = f"cd {folder}; cat shown/a; cat hidden; echo x > shown/a; echo x > shown/b"
        result = await sandbox.run(SandboxCommand(["sh", "-c", script]))
        assert result.stdout == b"shown\n"
        assert (folder / "shown" / "a").read_text() == "shown\n"
        assert [path.name for path in (folder / "shown").iterdir()] == ["a"]


async def test_a_failing_sandbox_says_why() -> None:
    """What the program that makes the sandbox reports is in the error, and nothing ran."""
    sandbox_named("bubblewrap-per-process")
    with pytest.raises(SandboxUnavailable, match="cannot run a command here"):
        await BubblewrapSandbox(program="/bin/false", memory="process").check()
    with pytest.raises(SandboxUnavailable, match="there is no program 'no-podman'"):
        ContainerSandbox(image="x", program="no-podman")
    with pytest.raises(SandboxUnavailable, match="readable: there is no /no/such"):
        BubblewrapSandbox(readable=["/no/such"])


async def test_a_missing_image_is_not_downloaded() -> None:
    """The error comes from the program, before anything starts."""
    sandbox_named("container")
    container = SANDBOXES["container"]()
    assert isinstance(container, ContainerSandbox)
    missing = ContainerSandbox(image="localhost/missing:1", program=container.program)
    with pytest.raises(SandboxUnavailable, match="missing"):
        await missing.check()


def test_the_arguments_of_a_container_confine_it(tmp_path: Path) -> None:
    """Whatever the program is, its command line has every restriction."""
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    limits = SandboxLimits(max_memory=1_000_000, max_disk=4_096, max_processes=5)
    arguments = ContainerSandbox(image="img", program=str(program)).arguments("name", limits)
    line = " ".join(arguments)
    for part in (
        "--network none --ipc none --read-only",
        "--cap-drop ALL --security-opt no-new-privileges",
        "--pids-limit 7",
        "--memory 1007616 --memory-swap 1007616",
        "--pull never",
        "--user 65534:65534",
        "--entrypoint /bin/sh img",
    ):
        assert part in line
    assert "--read-only-tmpfs=false" not in line


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_without_rights_can_use_it(tmp_path: Path) -> None:
    """The guard sets up namespaces, limits and disk for a user who is not root, where the system allows user namespaces."""
    sandbox_named("bubblewrap-per-process")
    sandbox = BubblewrapSandbox(memory="process")
    settings = {**sandbox.settings(SandboxLimits()), "uid": 0, "groups": [], "descriptors": []}
    guard = Path(bubblewrap.__file__).with_name("guard.py").read_text()
    as_user = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups"]
    script = "id -u; touch /work/x && df /work | tail -1"
    done = subprocess.run(
        [*as_user, "/usr/bin/python3", "-I", "-S", "-c", guard, json.dumps(settings), "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert done.stdout.startswith("1000\n"), done.stderr
    assert "tmpfs" in done.stdout
