"""Programs in forks of a process that has what they use loaded: `python -m tests.loaded MODULE…`.

Loading takes most of the time of a short program, and where many programs run, it is not what is tested. The process reads a program
from each line of its input, forks, and answers with the exit code of the fork, whose interpreter ends as that of any program.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TypedDict

from attrs import frozen

ROOT = Path(__file__).parents[1]
_ROOMS = [
    f"agentloop{room}"
    for room in ("", ".contracts", ".errors", ".events", ".interception", ".journal", ".testing", ".values")
]


class _Program(TypedDict):
    code: str
    folder: str
    out: str
    err: str


@frozen
class Ended:
    """How a program ended, and what it wrote."""

    code: int
    out: str
    err: str


class LoadedProcess:
    """The process, as its user sees it.

    Args:
        process: what has been started.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, code: str, folder: Path) -> Ended:
        """Run a program in a folder, as `python -c` does, and wait for its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, err = (folder.with_name(f"{folder.name}.{name}") for name in ("out", "err"))
        program = _Program(code=code, folder=str(folder), out=str(out), err=str(err))
        self._process.stdin.write(f"{json.dumps(program)}\n")
        self._process.stdin.flush()
        return Ended(int(self._process.stdout.readline()), out.read_text(), err.read_text())


@contextmanager
def loaded_process(*modules: str, warnings: str = "error") -> Iterator[LoadedProcess]:
    """Start the process, and end it at the end.

    Args:
        modules: what it loads; by default the packages that most programs use.
        warnings: what becomes of warnings, as for the option `-W` of Python.
    """
    command = [sys.executable, "-W", warnings, "-m", "tests.loaded", *(modules or _ROOMS)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield LoadedProcess(process)
        finally:
            process.kill()


def _load(modules: Sequence[str]) -> None:
    """Load modules with what they load with the first use of a name, and what a run loads."""
    for name in modules:
        module = importlib.import_module(name)
        for exported in getattr(module, "__all__", ()):
            getattr(module, exported)
    agentloop = importlib.import_module("agentloop")
    agentloop.AgentLoop.for_model(agentloop.ScriptedInference("x")).execute_sync("x")
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "a fork would lose the other threads"


def _run(program: _Program) -> None:
    """Become a process that runs this program."""
    os.chdir(program["folder"])
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, program["out"], os.O_WRONLY | os.O_CREAT),
        (2, program["err"], os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv, sys.path[0] = ["-c"], ""
    sys.modules["__main__"] = main_module = ModuleType("__main__")
    exec(compile(program["code"], "<string>", "exec"), main_module.__dict__)  # what `python -c` does


def main() -> None:
    """Answer each line of the standard input."""
    _load(sys.argv[1:])
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(json.loads(line))
            return
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
