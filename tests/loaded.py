"""Programs in forks of a process that has what they use loaded: `python -m tests.loaded DESCRIPTOR MODULE…`.

Loading takes most of the time of a short program, and where many programs run, it is not what is tested. The process listens at the
socket with this descriptor, and loads the modules when the first program comes. Each connection brings what a program is started
with: arguments as of `python`, a folder, an environment and three files. A fork runs it, and the answers are its process id and its
exit code; it is killed when its connection is closed before.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TypedDict

from attrs import frozen

from tests.generated import run_first_case

ROOT = Path(__file__).parents[1]
_ROOMS = [
    "contracts",
    "durable",
    "errors",
    "events",
    "interception",
    "mcp",
    "models",
    "policies",
    "service.cluster",
    "testing",
    "values",
]
_COMMANDS = ["chat", "cluster", "mcp", "run", "runs", "serve"]
_MODULES = [
    "agentloop",
    *[f"agentloop.{name}" for name in _ROOMS],
    *[f"agentloop.service.cli.{name}" for name in _COMMANDS],
    "agentloop.mcp.sdk.session",
    "mcp.server.mcpserver" if find_spec("mcp_types") else "mcp.server.fastmcp",  # by the generation of the SDK
    "uvicorn",
]
_PLACE = "AGENTLOOP_TESTS_LOADED"
"""The variable that tells all processes of a session where the process listens that it has started."""
_LAUNCHER = Path(__file__).with_name("launcher.py")
_LONGEST_PROGRAM = 1_000_000


class _Program(TypedDict):
    arguments: list[str]
    folder: str
    environment: dict[str, str]


@frozen
class Ended:
    """How a program ended, and what it wrote."""

    code: int
    out: str
    err: str


@frozen
class LoadedProcess:
    """The process, as its user sees it.

    Args:
        path: the socket at which it listens.
    """

    path: str

    def run(self, code: str, folder: Path) -> Ended:
        """Run a program in a folder, as `python -W error -c` does, and wait for its end."""
        out, err = (folder.with_name(f"{folder.name}.{name}") for name in ("out", "err"))
        with ExitStack() as stack:
            places = ((Path(os.devnull), "r"), (out, "w"), (err, "w"))
            files = [stack.enter_context(path.open(mode)) for path, mode in places]
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            connection.connect(self.path)
            program = _Program(arguments=["-W", "error", "-c", code], folder=str(folder), environment=dict(os.environ))
            socket.send_fds(connection, [json.dumps(program).encode()], [file.fileno() for file in files])
            connection.recv(100)
            return Ended(int(connection.recv(100)), out.read_text(), err.read_text())

    def command(self, *arguments: str) -> list[str]:
        """Return a command that does what `python` does with these arguments."""
        return [sys.executable, "-I", "-S", str(_LAUNCHER), self.path, *arguments]


@contextmanager
def loaded_process(*modules: str) -> Iterator[LoadedProcess]:
    """Start the process, and end it at the end.

    Args:
        modules: what it loads; by default what most programs use.
    """
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path = str(Path(folder, "socket"))
        listener.bind(path)
        listener.listen()  # whoever connects waits until everything is loaded
        number = listener.fileno()
        command = [sys.executable, "-m", "tests.loaded", str(number), *(modules or _MODULES)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, pass_fds=[number]) as process:
            listener.close()
            try:
                yield LoadedProcess(path)
            finally:
                process.kill()


@contextmanager
def session_process() -> Iterator[None]:
    """Start the process for all processes of a session, and end it at the end."""
    with loaded_process() as process:
        os.environ[_PLACE] = process.path
        yield
        del os.environ[_PLACE]


def of_session() -> LoadedProcess:
    """Return the process of the session."""
    return LoadedProcess(os.environ[_PLACE])


def loaded_python(*arguments: str) -> list[str]:
    """Return a command that does what `python` does with these arguments, in a fork of the process of the session."""
    return of_session().command(*arguments)


def loaded_agentloop(*arguments: str) -> list[str]:
    """Return the command `agentloop` with these arguments, in such a fork."""
    return loaded_python("-m", "agentloop.service.cli.main", *arguments)


def _load(modules: Sequence[str]) -> None:
    """Load modules with what they load with the first use of a name, and what a run loads."""
    for name in modules:
        module = importlib.import_module(name)
        for exported in getattr(module, "__all__", ()):
            getattr(module, exported)
    if "agentloop" in modules:
        agentloop = importlib.import_module("agentloop")
        agentloop.AgentLoop.for_model(agentloop.ScriptedInference("x")).execute_sync("x")
    run_first_case()
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "a fork would lose the other threads"


def _wait_for_program(listener: socket.socket, modules: Sequence[str]) -> _Program | None:
    """Fork for each connection, and return its program there; return None when nobody can connect any more."""
    running: dict[int, socket.socket] = {}
    is_loaded = False
    waker, woken = socket.socketpair()
    with selectors.DefaultSelector() as selector, listener, waker, woken:
        waker.setblocking(False)  # noqa: FBT003  # takes its argument by position only
        signal.set_wakeup_fd(waker.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for source in (0, listener, woken):
            selector.register(source, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if 0 in ready:  # the process that has started this one has ended
                return None
            if woken in ready:
                woken.recv(1000)
                _report_ended(running)
            if listener in ready:
                if not is_loaded:
                    _load(modules)
                    is_loaded = True
                if (program := _fork(listener.accept()[0], running)) is not None:
                    return program


def _fork(connection: socket.socket, running: dict[int, socket.socket]) -> _Program | None:
    """Fork; return the program in the fork, and None elsewhere, where it is one more that runs."""
    data, files, _, _ = socket.recv_fds(connection, _LONGEST_PROGRAM, 3)
    if not data:
        connection.close()
        return None  # whoever connected was killed at once
    program: _Program = json.loads(data)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        for other in running.values():
            other.close()
        connection.send(str(os.getpid()).encode())
        _end_with(connection)
        for number, file in enumerate(files):
            os.dup2(file, number)
    else:
        running[pid] = connection
    for file in files:
        os.close(file)
    return None if pid else program


def _end_with(connection: socket.socket) -> None:
    """Have this process killed when the other end of the connection is closed."""
    number = connection.detach()
    fcntl.fcntl(number, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(number, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([number], [], [], 0)[0]:  # it has been closed before; nothing else comes from there
        os.kill(os.getpid(), signal.SIGKILL)


def _report_ended(running: dict[int, socket.socket]) -> None:
    """Send the exit codes of forks that have ended to those who wait for them."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as connection:
            try:
                connection.send(str(os.waitstatus_to_exitcode(status)).encode())
            except ConnectionError:
                continue  # the fork was killed because nobody waits


def _run(program: _Program) -> None:
    """Do what `python` does with these arguments."""
    os.setsid()
    os.chdir(program["folder"])
    os.environ.clear()
    os.environ.update(program["environment"])
    # What wraps the files of the process believes that these are of the same kind.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115  # as long as the process
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    first, *arguments = program["arguments"]
    if first == "-W":
        warnings.simplefilter(arguments[0])  # type: ignore[arg-type]  # an action
        first, *arguments = arguments[1:]
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[1:]], ""
        sys.modules["__main__"] = main_module = ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), main_module.__dict__)  # what `python -c` does
    elif first == "-m":
        sys.argv, sys.path[0] = ["-m", *arguments[1:]], program["folder"]
        sys.modules.pop(arguments[0], None)
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [first, *arguments], str(Path(first).resolve().parent)
        runpy.run_path(first, run_name="__main__")


def main() -> None:
    """Run programs until the standard input ends."""
    number, *modules = sys.argv[1:]
    program = _wait_for_program(socket.socket(fileno=int(number)), modules)
    if program is not None:
        _run(program)


if __name__ == "__main__":
    main()
